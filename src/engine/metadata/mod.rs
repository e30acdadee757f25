//! Where segments are found: the client of the HTTP metadata service, and that service.
//!
//! Values are opaque here: nothing in this folder reads a segment descriptor (`wire::json` does). With `P2PHANDSHAKE` there is no
//! metadata service at all, and nothing of this folder runs.
//!
//! Start with [`MetadataClient`] or with [`table`]. Upstream: `transfer_metadata_plugin.cpp` and the HTTP metadata servers.

mod client;
pub mod discovery;
mod key;
pub mod probe;
mod service;
pub mod table;
mod uri;

pub use client::{CallLimits, MetadataClient};
pub use key::{KeySpace, escape};
pub use service::{Keys, MetadataService};
pub use uri::{MetadataUri, ParseMetadataUriError};

use std::time::Duration;

/// Why a call to the metadata service did not succeed.
#[derive(Debug, thiserror::Error)]
pub enum MetadataError {
    /// The URL cannot be used.
    #[error("'{url}' is not a URL of a metadata service: {reason}")]
    BadUrl {
        /// What was given.
        url: String,
        /// What is wrong with it.
        reason: String,
    },
    /// TLS could not be set up on this host.
    #[error("cannot set up an HTTP client for {url}")]
    Setup {
        /// The service.
        url: String,
        /// What the HTTP library says.
        #[source]
        source: reqwest::Error,
    },
    /// No connection to the service, or the connection broke.
    #[error("cannot reach the metadata service {url} for {key}")]
    Unreachable {
        /// The service.
        url: String,
        /// The record that was asked for.
        key: String,
        /// What the HTTP library says.
        #[source]
        source: reqwest::Error,
    },
    /// No whole answer in time.
    #[error("no answer from the metadata service {url} for {key} within {limit:?}")]
    Timeout {
        /// The service.
        url: String,
        /// The record that was asked for.
        key: String,
        /// How long a call may take.
        limit: Duration,
    },
    /// The service answered with another status than 200.
    #[error("the metadata service {url} answered {status} for {key}: {text}")]
    Refused {
        /// The service.
        url: String,
        /// The record that was asked for.
        key: String,
        /// HTTP status.
        status: u16,
        /// The start of the answer's body.
        text: String,
    },
    /// The record is larger than any descriptor can be.
    #[error("the metadata service {url} holds more than {limit} bytes under {key}")]
    TooLarge {
        /// The service.
        url: String,
        /// The record that was asked for.
        key: String,
        /// [`VALUE_BYTES_MAX`].
        limit: usize,
    },
}

impl MetadataError {
    /// Is it that another process owns this name (`rpc_meta` exists with other content)?
    pub fn is_duplicate(&self) -> bool {
        matches!(self, MetadataError::Refused { status: 400, text, .. } if text.contains("Duplicate rpc_meta"))
    }

    /// Could the same call succeed later, without a change of configuration?
    pub fn is_retryable(&self) -> bool {
        match self {
            MetadataError::Unreachable { .. } | MetadataError::Timeout { .. } => true,
            MetadataError::Refused { status, .. } => *status >= 500,
            MetadataError::BadUrl { .. } | MetadataError::Setup { .. } | MetadataError::TooLarge { .. } => false,
        }
    }
}

/// Longest record that is read or kept. A descriptor of 10,000 RDMA buffers on 16 devices is about 5 MiB.
pub const VALUE_BYTES_MAX: usize = 16 << 20;
