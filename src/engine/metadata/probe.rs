//! Is the owner of a name still there? One question to its handshake port.
//!
//! The question is Mooncake's Probe message (type 3, `{}`), which engines of 0.3.12 and later answer with a frame. Older ones take
//! it for broken JSON and close the connection; they count as alive too, since something accepted it and closed in order. A
//! reset, silence, a refused connection, or an answer that is no frame of this protocol (another program has the port now) is
//! nobody.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::engine::base::HostPort;
use crate::engine::env::{Env, Net, deadline};
use crate::engine::wire::json::{Frame, HEADER_BYTES, Kind, payload_len};

/// Does an engine answer at `endpoint` within [`PROBE_LIMIT`]?
pub async fn is_alive<E: Env>(env: &E, endpoint: &HostPort) -> bool {
    let ask = async {
        let mut stream = env.net().connect(endpoint).await?;
        stream.write_all(&Frame::Typed(Kind::Probe, b"{}").encode()).await?;
        // The length and the type say who answers; what else it says is of no interest.
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
        Ok::<bool, std::io::Error>(is_frame && Frame::split(&[kind]) == Frame::Typed(Kind::Probe, b""))
    };
    matches!(deadline(env, PROBE_LIMIT, ask).await, Ok(Ok(true)))
}

/// Connecting, asking and being answered, all together.
pub const PROBE_LIMIT: Duration = Duration::from_millis(200);

/// Mooncake's largest configurable bound of a handshake frame.
const FRAME_BYTES_MAX: usize = 128 << 20;
