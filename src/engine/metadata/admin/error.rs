//! Why a call to a master's admin HTTP endpoint failed.

use std::time::Duration;

use crate::admin::routes;
use mcctl_base::HostPort;
use mcctl_base::text::one_line;
use mcctl_net::http::{FetchError, FetchResponse};

/// A call to the admin API that failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{} {scheme}://{at}{route}: {kind}", self.method())]
pub struct AdminError {
    /// The address of the endpoint.
    pub at: HostPort,
    /// `http` or `https`.
    pub scheme: &'static str,
    /// The path of the request.
    pub route: &'static str,
    pub kind: AdminErrorKind,
}

impl AdminError {
    /// The method of the request.
    pub fn method(&self) -> &'static str {
        if self.route == routes::STEP_DOWN { "POST" } else { "GET" }
    }
}

/// The reasons for a failure.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AdminErrorKind {
    /// No complete response arrived.
    #[error(transparent)]
    Fetch(#[from] FetchError),
    /// The endpoint responded with an error status.
    #[error("HTTP {status}: {}", one_line(body.trim(), SHOWN))]
    Status {
        status: u16,
        /// The start of the body; at most [`AdminErrorKind::BODY_CHARS_MAX`] characters.
        body: String,
    },
    /// The body is not the expected document, so the endpoint is probably not a Mooncake master's.
    #[error("HTTP {status}: {}: {reason}", one_line(body.trim(), SHOWN))]
    Unexpected {
        status: u16,
        /// The start of the body, as in [`AdminErrorKind::Status`].
        body: String,
        reason: String,
    },
    /// Less than 64 KiB of a list of keys arrived within the limit.
    #[error("received less than 64 KiB of the list within {0:?}")]
    TooSlow(Duration),
    /// A line of a list is longer than any key, in bytes.
    #[error("a line is longer than {0} bytes")]
    LineTooLong(usize),
}

/// Maximum number of characters of a body in a message.
const SHOWN: usize = 120;

impl AdminErrorKind {
    /// Maximum number of characters of a body that are kept.
    pub const BODY_CHARS_MAX: usize = 200;

    /// A response with an error status.
    pub(super) fn status(response: &FetchResponse) -> AdminErrorKind {
        AdminErrorKind::Status { status: response.status, body: start(&response.body) }
    }

    /// A response without the expected document.
    pub(super) fn unexpected(response: &FetchResponse, reason: &impl ToString) -> AdminErrorKind {
        AdminErrorKind::Unexpected { status: response.status, body: start(&response.body), reason: reason.to_string() }
    }
}

fn start(body: &str) -> String {
    body.chars().take(AdminErrorKind::BODY_CHARS_MAX).collect()
}
