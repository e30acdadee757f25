//! Asking a transfer engine's handshake port whether anybody is there: the one question that tells a dead process from one that
//! stands still, whose kernel goes on taking connections.

use std::io::ErrorKind;
use std::net::IpAddr;
use std::time::Duration;

use crate::engine::base::HostPort;
use crate::engine::doctor::Asked;
use crate::engine::doctor::cluster::facts::Dial;
use crate::engine::env::{Env, deadline};
use crate::engine::sys::interface;
use crate::engine::transfer::handshake::{RequestLimits, send_request};
use crate::engine::transfer::{TransferError, TransferStep};
use crate::engine::wire::json::HandshakeKind as Kind;

/// An engine answers in well under a millisecond; one of upstream's may be serving somebody silent before us.
const ANSWER: Duration = Duration::from_secs(3);
/// A host that is there takes a connection sooner than this.
const CONNECT: Duration = Duration::from_secs(2);
/// Longest answer: the probe's is empty.
const ANSWER_BYTES_MAX: usize = 1 << 20;

/// Is there an engine at `at`? The answer comes within `limit`, or within a few seconds if that is more.
pub async fn dial<E: Env>(env: &E, at: &HostPort, limit: Duration) -> Dial {
    let limits = RequestLimits { connect: CONNECT.min(limit), answer: ANSWER.min(limit), bytes_max: ANSWER_BYTES_MAX };
    match send_request(env, at, Kind::Probe, "{}", limits).await {
        Ok(_) => Dial::Answers,
        Err(TransferError::Lost { step: TransferStep::Connect, source, .. }) => match source.kind() {
            ErrorKind::ConnectionRefused => Dial::Refused(source.to_string()),
            _ => match resolves(env, &at.host, limits.connect).await {
                Ok(()) => Dial::Unreachable(source.to_string()),
                Err(why) => Dial::Unresolved(why),
            },
        },
        Err(TransferError::Timeout { step: TransferStep::Connect, limit, .. }) => {
            Dial::Unreachable(format!("no connection within {limit:?}"))
        }
        Err(TransferError::Timeout { limit, .. }) => Dial::Hung(limit),
        // Engines before 0.3.12 take the question for broken JSON, and close in order.
        Err(TransferError::Lost { source, .. }) if source.kind() == ErrorKind::UnexpectedEof => Dial::Answers,
        Err(TransferError::Lost { source, .. }) => Dial::Foreign(source.to_string()),
        Err(other) => Dial::Foreign(other.to_string()),
    }
}

/// Has `host` an address? The resolver blocks and knows no deadline of ours.
pub async fn resolves<E: Env>(env: &E, host: &str, limit: Duration) -> Asked<()> {
    if host.split('%').next().is_some_and(|ip| ip.parse::<IpAddr>().is_ok()) {
        return Ok(());
    }
    let name = host.to_owned();
    let resolving = tokio::task::spawn_blocking(move || interface::resolve(&name));
    match deadline(env, limit, resolving).await {
        Ok(Ok(resolved)) => resolved.map_err(|error| error.to_string()),
        Ok(Err(panic)) => Err(panic.to_string()),
        Err(late) => Err(format!("the resolver gives {late}")),
    }
}
