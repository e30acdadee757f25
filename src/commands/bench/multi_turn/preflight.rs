//! Connects to every endpoint before the run, so that a wrong address is reported immediately.

use crate::commands::error::Failure;
use crate::commands::runtime;
use crate::engine::env::RealEnv;
use crate::engine::load::session::LoadEndpoint;
use crate::engine::load::target::{ConnectError, LoadTarget, check_reachable};

/// Connects once to every endpoint in `sides`, including the TLS handshake.
///
/// # Errors
/// A connection fails.
pub(super) fn check_all_reachable(sides: &[LoadEndpoint]) -> Result<(), Failure> {
    check_endpoints_reachable(sides.iter().map(|side| (side.name.as_str(), &side.target)))
}

/// Same as [`check_all_reachable`], for endpoints and their names.
///
/// # Errors
/// Same as [`check_all_reachable`].
pub(in crate::commands::bench) fn check_endpoints_reachable<'a>(
    sides: impl IntoIterator<Item = (&'a str, &'a LoadTarget)>,
) -> Result<(), Failure> {
    let mut checked: Vec<&LoadTarget> = Vec::new();
    for (name, target) in sides {
        if checked
            .iter()
            .any(|other| other.at == target.at && other.protocol.tls.is_some() == target.protocol.tls.is_some())
        {
            continue;
        }
        let tried = runtime::block_on(0, async { Ok(check_reachable(&RealEnv::new(), target).await) })?;
        tried.map_err(|error| unreachable(name, target, &error))?;
        checked.push(target);
    }
    Ok(())
}

fn unreachable(name: &str, target: &LoadTarget, error: &ConnectError) -> Failure {
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
