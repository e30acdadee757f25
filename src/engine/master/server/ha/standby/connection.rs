//! A standby's connection to its leader: it connects, and determines why the connection ended.

use std::io::ErrorKind;
use std::time::Duration;

use crate::server::ha::handshake::{HANDSHAKE_TIMEOUT, HaSecret, Hello, Welcome, greet};
use mcctl_base::HostPort;
use mcctl_sys::env::{Env, Net, deadline};

/// Maximum time to connect.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// Maximum time to determine whether the leader's RPC port refuses connections.
const PROBE_TIMEOUT: Duration = Duration::from_millis(200);
/// A process that is killed closes its sockets one after the other, so its port may be open a
/// little longer than the stream: number of attempts, and the pause before the next one.
const PROBES: u32 = 5;
const PROBE_PAUSE: Duration = Duration::from_millis(10);

/// A stream after the handshake with the leader.
pub(in crate::server::ha) struct Opening<S> {
    pub stream: S,
    pub welcome: Welcome,
    /// The last change that the standby has reported.
    pub applied: u64,
}

/// Connects to a leader's port for standbys. Returns the problem if that fails.
pub(in crate::server::ha) async fn connect<E: Env>(
    env: &E,
    at: &HostPort,
    secret: &HaSecret,
    hello: &Hello,
) -> Result<Opening<<E::Net as Net>::Stream>, String> {
    let mut stream = match deadline(env, CONNECT_TIMEOUT, env.net().connect(at)).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => return Err(error.to_string()),
        Err(elapsed) => return Err(elapsed.to_string()),
    };
    let greeted = greet(&mut stream, secret, hello);
    match deadline(env, HANDSHAKE_TIMEOUT, greeted).await {
        Ok(Ok(welcome)) => Ok(Opening { stream, welcome, applied: hello.applied }),
        Ok(Err(error)) => Err(error.to_string()),
        Err(elapsed) => Err(elapsed.to_string()),
    }
}

/// Whether a port of a reachable host is closed.
pub(in crate::server::ha) async fn refuses<E: Env>(env: &E, at: &HostPort) -> bool {
    for _ in 0..PROBES {
        match deadline(env, PROBE_TIMEOUT, env.net().connect(at)).await {
            Ok(Err(error)) if error.kind() == ErrorKind::ConnectionRefused => return true,
            // The port was closed during the attempt, or is still open.
            Ok(Err(error)) if error.kind() != ErrorKind::ConnectionReset => return false,
            Ok(_) => env.sleep(PROBE_PAUSE).await,
            Err(_) => return false,
        }
    }
    false
}
