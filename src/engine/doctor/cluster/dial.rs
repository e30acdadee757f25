//! Connects to a transfer engine's handshake port. The response distinguishes a dead process from a
//! stalled one, whose kernel still accepts connections.

use std::io::ErrorKind;
use std::net::IpAddr;
use std::time::Duration;

use crate::cluster::facts::DialResult;
use crate::{Fact, Unavailable};
use mcctl_base::HostPort;
use mcctl_base::time::RoundedDuration;
use mcctl_sys::env::{Env, deadline};
use mcctl_sys::interface;
use mcctl_transfer::handshake::{RequestLimits, send_request};
use mcctl_transfer::{TransferError, TransferStep};
use mcctl_wire::json::HandshakeKind;

/// Maximum wait for a response. An engine responds within 1 ms, but an upstream engine may first
/// wait for another client that sends nothing.
const ANSWER: Duration = Duration::from_secs(3);
/// Maximum wait for a connection.
const CONNECT: Duration = Duration::from_secs(2);
/// Maximum response size; the response to a probe is empty.
const ANSWER_BYTES_MAX: usize = 1 << 20;

/// Probes the engine at `at`. Returns after at most `limit` or a few seconds, whichever is shorter.
pub(super) async fn dial<E: Env>(env: &E, at: &HostPort, limit: Duration) -> DialResult {
    let limits = RequestLimits { connect: CONNECT.min(limit), answer: ANSWER.min(limit), bytes_max: ANSWER_BYTES_MAX };
    match send_request(env, at, HandshakeKind::Probe, "{}", limits).await {
        Ok(_) => DialResult::Answers,
        Err(TransferError::Lost { step: TransferStep::Connect, source, .. }) => match source.kind() {
            ErrorKind::ConnectionRefused => DialResult::Refused(source.to_string()),
            _ => match resolves(env, &at.host, limits.connect).await {
                Ok(()) => DialResult::Unreachable(source.to_string()),
                Err(why) => DialResult::Unresolved(why.into()),
            },
        },
        Err(TransferError::Timeout { step: TransferStep::Connect, limit, .. }) => {
            DialResult::Unreachable(format!("no connection within {}", RoundedDuration(limit)))
        }
        Err(TransferError::Timeout { limit, .. }) => DialResult::Hung(limit),
        // Engines older than 0.3.12 treat the probe as broken JSON and close the connection
        // cleanly.
        Err(TransferError::Lost { source, .. }) if source.kind() == ErrorKind::UnexpectedEof => DialResult::Answers,
        Err(TransferError::Lost { source, .. }) => DialResult::Foreign(source.to_string()),
        Err(other) => DialResult::Foreign(other.to_string()),
    }
}

/// Resolves `host`. The system resolver blocks and has no timeout.
pub(super) async fn resolves<E: Env>(env: &E, host: &str, limit: Duration) -> Fact<()> {
    if host.split('%').next().is_some_and(|ip| ip.parse::<IpAddr>().is_ok()) {
        return Ok(());
    }
    let name = host.to_owned();
    let resolving = tokio::task::spawn_blocking(move || interface::resolve(&name));
    match deadline(env, limit, resolving).await {
        Ok(Ok(resolved)) => resolved.map_err(Unavailable::new),
        Ok(Err(panic)) => Err(panic.to_string().into()),
        Err(late) => Err(format!("the resolver: {late}").into()),
    }
}
