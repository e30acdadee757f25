//! Is anybody there? Asked before anything is written or sent, so that a wrong address costs no run.

use crate::commands::error::Failure;
use crate::commands::runtime;
use crate::engine::env::RealEnv;
use crate::engine::load::session::Side;
use crate::engine::load::target::{Target, reach};

/// Connect once to every endpoint of `sides`, TLS included.
///
/// # Errors
/// One of them cannot be connected to.
pub(super) fn all_reached(sides: &[Side]) -> Result<(), Failure> {
    reached(sides.iter().map(|side| (side.name.as_str(), &side.target)))
}

/// The same of endpoints by their names.
///
/// # Errors
/// As [`all_reached`].
pub(in crate::commands::bench) fn reached<'a>(
    sides: impl IntoIterator<Item = (&'a str, &'a Target)>,
) -> Result<(), Failure> {
    let mut before: Vec<&Target> = Vec::new();
    for (name, target) in sides {
        if before.iter().any(|other| other.at == target.at && other.via.tls.is_some() == target.via.tls.is_some()) {
            continue;
        }
        let tried = runtime::block_on(0, async { Ok(reach(&RealEnv::new(), target).await) })?;
        tried.map_err(|why| away(name, target, &why))?;
        before.push(target);
    }
    Ok(())
}

fn away(name: &str, target: &Target, why: &str) -> Failure {
    let next = match why.starts_with("TLS") {
        true => "name its certificate with --cacert, believe any with --insecure, or write http:// if it has no TLS",
        false => "start the server, or name the one that runs: http://HOST:PORT or https://HOST",
    };
    Failure::unreachable(format!("nothing can be asked of {}", target.url()))
        .tried(format!("connect to {} (endpoint {name})", target.at))
        .found(why)
        .next(next)
}
