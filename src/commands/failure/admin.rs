//! The failures of calls to a master's admin HTTP endpoint.

use crate::commands::cli::args::show_duration;
use crate::commands::cli::error::Failure;
use crate::engine::admin::{AdminError, AdminErrorKind, KeyList};
use crate::engine::base::ByteSize;
use crate::engine::base::text::one_line;
use crate::engine::http::{AccessDecision, FetchError, StatusCode};

/// Characters of a response that an error shows.
const SHOWN: usize = 80;

/// The failure for `error`. `origin` names the setting that selected the endpoint's address.
pub fn failure(error: &AdminError, origin: &str) -> Failure {
    let at = &error.at;
    let unreachable = |found: &str| {
        Failure::unreachable(format!("cannot reach the master's admin HTTP endpoint at {at}"))
            .found(found)
            .next("start a store (mcctl up, or mcctl serve master), or pass its admin address with --admin HOST:PORT")
    };
    let late = |what: &str, limit| {
        Failure::unreachable(format!("the master's admin HTTP endpoint at {at} did not respond in time"))
            .found(format!("{what} within {}", show_duration(limit)))
            .next("check whether the master is overloaded or suspended, or set a longer --timeout")
    };
    let foreign = |found: String| {
        Failure::unreachable(format!("{at} is not the admin HTTP endpoint of a Mooncake master"))
            .found(found)
            .next("pass the master's admin address with --admin HOST:PORT (the port is the master's --metrics_port, 9003 by default)")
    };
    let failure = match &error.kind {
        AdminErrorKind::Status { status: status @ (401 | 403), body }
        | AdminErrorKind::Unexpected { status: status @ (401 | 403), body, .. } => {
            Failure::usage(format!("the master's admin HTTP endpoint at {at} refused the request"))
                .found(match body.trim() {
                    "" => shown(*status),
                    why => format!("{}: {why}", shown(*status)),
                })
                .next(AccessDecision::of_response(body).and_then(AccessDecision::remedy).unwrap_or(
                    "pass a token with --token-file FILE or MCCTL_TOKEN, or a certificate with --client-cert, if the master requires it",
                ))
        }
        AdminErrorKind::Fetch(FetchError::Unreachable(why) | FetchError::Unusable(why)) => unreachable(why),
        AdminErrorKind::Fetch(FetchError::Tls(mistake)) => {
            Failure::unreachable(format!("cannot connect to the master's admin HTTP endpoint at {at} with {}", error.scheme))
                .found(mistake.to_string())
                .next(mistake.remedy())
        }
        AdminErrorKind::Fetch(FetchError::Timeout(limit)) => late("no complete response", *limit),
        AdminErrorKind::Fetch(FetchError::TooLong(bytes)) => {
            foreign(format!("the response is larger than {bytes} bytes"))
        }
        AdminErrorKind::TooSlow(limit) => {
            late(&format!("received less than {} of the list", ByteSize(KeyList::PROGRESS_BYTES as u64)), *limit)
        }
        AdminErrorKind::Status { status, body } if body.is_empty() => foreign(shown(*status)),
        AdminErrorKind::Status { status, body } => foreign(format!("{}: {}", shown(*status), one_line(&body.split_whitespace().collect::<Vec<_>>().join(" "), SHOWN))),
        AdminErrorKind::Unexpected { status, reason, .. } => foreign(format!("{}: {reason}", shown(*status))),
        AdminErrorKind::LineTooLong(_) => foreign(error.kind.to_string()),
    };
    failure.tried(format!("{} {} ({origin})", error.method(), error.route))
}

/// The status code with its name.
fn shown(status: u16) -> String {
    StatusCode::from_u16(status).map_or_else(|_| status.to_string(), |status| status.to_string())
}
