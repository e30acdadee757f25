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

/// Does an engine answer at `endpoint` within [`PROBE_LIMIT`]?
pub async fn is_alive<E: Env>(env: &E, endpoint: &HostPort) -> bool {
    let ask = async {
        let mut stream = env.net().connect(endpoint).await?;
        stream.write_all(PROBE).await?;
        let mut header = [0; 9];
        let mut read = 0;
        while read < header.len() {
            match stream.read(&mut header[read..]).await? {
                0 => return Ok(read == 0),
                n => read += n,
            }
        }
        let [length @ .., kind] = header;
        Ok::<bool, std::io::Error>((1..=FRAME_BYTES_MAX).contains(&u64::from_le_bytes(length)) && kind == PROBE_TYPE)
    };
    matches!(deadline(env, PROBE_LIMIT, ask).await, Ok(Ok(true)))
}

/// Connecting, asking and being answered, all together.
pub const PROBE_LIMIT: Duration = Duration::from_millis(200);

const PROBE_TYPE: u8 = 3;
/// Length of what follows as 8 bytes little-endian, the type, the JSON text.
const PROBE: &[u8] = &[4, 0, 0, 0, 0, 0, 0, 0, PROBE_TYPE, b'{', b'}', b'\n'];
/// Mooncake's largest configurable bound of a handshake frame.
const FRAME_BYTES_MAX: u64 = 128 << 20;
