//! Checks whether a name's owner is alive by sending one message to its handshake port.
//!
//! The message is Mooncake's Probe (type 3, `{}`), to which engines since 0.3.12 respond with a
//! frame. Older engines treat it as invalid JSON and close the connection. They count as alive,
//! because a process accepted the connection and closed it cleanly. A reset, silence, a refused
//! connection, or a response that is not a frame of this protocol (another program now uses the
//! port) counts as dead.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use mcctl_base::HostPort;
use mcctl_sys::env::{Env, Net, deadline};
use mcctl_wire::json::{HEADER_BYTES, HandshakeFrame, HandshakeKind, payload_len};

/// Returns true if an engine responds at `endpoint` within [`PROBE_LIMIT`].
pub async fn is_alive<E: Env>(env: &E, endpoint: &HostPort) -> bool {
    let ask = async {
        let mut stream = env.net().connect(endpoint).await?;
        stream.write_all(&HandshakeFrame::Typed(HandshakeKind::Probe, b"{}").encode()).await?;
        // Length and type identify the protocol. The rest of the response is irrelevant.
        let mut head = [0; HEADER_BYTES + 1];
        let mut read = 0;
        while read < head.len() {
            match stream.read(&mut head[read..]).await? {
                0 => return Ok(read == 0),
                n => read += n,
            }
        }
        let [length @ .., kind] = head;
        let is_frame = payload_len(length, FRAME_BYTES_MAX).is_ok();
        Ok::<bool, std::io::Error>(
            is_frame && HandshakeFrame::split(&[kind]) == HandshakeFrame::Typed(HandshakeKind::Probe, b""),
        )
    };
    matches!(deadline(env, PROBE_LIMIT, ask).await, Ok(Ok(true)))
}

/// Timeout for connecting, sending and receiving together.
pub const PROBE_LIMIT: Duration = Duration::from_millis(200);

/// Mooncake's largest configurable limit for a handshake frame.
const FRAME_BYTES_MAX: usize = 128 << 20;
