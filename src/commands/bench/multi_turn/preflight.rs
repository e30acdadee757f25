//! Is anybody there? Asked before anything is written or sent, so that a wrong address costs no run.

use crate::commands::error::Failure;
use crate::commands::runtime;
use crate::engine::env::RealEnv;
use crate::engine::load::session::LoadEndpoint;
use crate::engine::load::target::{ConnectError, LoadTarget, check_reachable};

/// Connect once to every endpoint of `sides`, TLS included.
///
/// # Errors
/// One of them cannot be connected to.
pub(super) fn all_reached(sides: &[LoadEndpoint]) -> Result<(), Failure> {
    reached(sides.iter().map(|side| (side.name.as_str(), &side.target)))
}

/// The same of endpoints by their names.
///
/// # Errors
/// As [`all_reached`].
pub(in crate::commands::bench) fn reached<'a>(
    sides: impl IntoIterator<Item = (&'a str, &'a LoadTarget)>,
) -> Result<(), Failure> {
    let mut before: Vec<&LoadTarget> = Vec::new();
    for (name, target) in sides {
        if before
            .iter()
            .any(|other| other.at == target.at && other.protocol.tls.is_some() == target.protocol.tls.is_some())
        {
            continue;
        }
        let tried = runtime::block_on(0, async { Ok(check_reachable(&RealEnv::new(), target).await) })?;
        tried.map_err(|error| away(name, target, &error))?;
        before.push(target);
    }
    Ok(())
}

fn away(name: &str, target: &LoadTarget, error: &ConnectError) -> Failure {
    let next = match matches!(error, ConnectError::Tls(_)) {
        true => "name its certificate with --cacert, believe any with --insecure, or write http:// if it has no TLS",
        false => "start the server, or name the one that runs: http://HOST:PORT or https://HOST",
    };
    Failure::unreachable(format!("nothing can be asked of {}", target.url()))
        .tried(format!("connect to {} (endpoint {name})", target.at))
        .found(error.to_string())
        .next(next)
}
