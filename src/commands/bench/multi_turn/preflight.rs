//! Reports an endpoint that cannot be reached before the run.

use crate::commands::cli::error::Failure;
use crate::engine::base::time::RoundedDuration;
use crate::engine::load::plan::{SilentServer, UnreachableEndpoint};
use crate::engine::load::target::ConnectError;

/// What to do if no inference server is at the endpoint. `is_default`: no flag selects the
/// endpoint.
fn remedy(is_default: bool) -> &'static str {
    match is_default {
        true => {
            "this is the default address: pass --url http://HOST:PORT of a running server, or start a simulated one on this address \
             with mcctl up --with-sim"
        }
        false => "start the server, or specify the URL of a running one: http://HOST:PORT or https://HOST",
    }
}

/// Returns the error for an endpoint to which no connection could be opened. `is_default`: no flag
/// selects the endpoint.
pub(in crate::commands::bench) fn unreachable(error: UnreachableEndpoint, is_default: bool) -> Failure {
    let UnreachableEndpoint { name, target, error } = error;
    let next = match matches!(error, ConnectError::Tls(_)) {
        true => {
            "pass its CA with --cacert, skip verification with --insecure, or use http:// if the server does not use TLS"
        }
        false => remedy(is_default),
    };
    Failure::unreachable(format!("cannot connect to {}", target.url()))
        .tried(format!("connect to {} (endpoint {name})", target.at))
        .found(error.to_string())
        .next(next)
}

/// Returns the error for a server that accepts connections and sends no response.
pub(super) fn silent_server(error: &SilentServer, is_default: bool) -> Failure {
    Failure::unreachable(format!("no HTTP response from {}", error.target.url()))
        .tried(format!("GET /v1/models at {} (endpoint {})", error.target.at, error.name))
        .found(format!("the connection was accepted, but nothing was sent within {}", RoundedDuration(error.limit)))
        .next(format!("{}; --no-server-calls skips this check", remedy(is_default)))
}
