//! Reports an endpoint that cannot be reached before the run.

use crate::commands::error::Failure;
use crate::engine::load::plan::UnreachableEndpoint;
use crate::engine::load::target::ConnectError;

/// Returns the error for an endpoint to which no connection could be opened.
pub(in crate::commands::bench) fn unreachable(error: UnreachableEndpoint) -> Failure {
    let UnreachableEndpoint { name, target, error } = error;
    let next = match matches!(error, ConnectError::Tls(_)) {
        true => {
            "pass its CA with --cacert, skip verification with --insecure, or use http:// if the server does not use TLS"
        }
        false => "start the server, or specify the URL of a running one: http://HOST:PORT or https://HOST",
    };
    Failure::unreachable(format!("cannot connect to {}", target.url()))
        .tried(format!("connect to {} (endpoint {name})", target.at))
        .found(error.to_string())
        .next(next)
}
