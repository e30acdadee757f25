//! Client side of the handshake port.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::engine::base::HostPort;
use crate::engine::env::{Env, Net, deadline};
use crate::engine::transfer::{TransferError, TransferStep};
use crate::engine::wire::json::{HEADER_BYTES, HandshakeFrame, HandshakeKind, payload_len};

/// Time and size limits of an exchange.
#[derive(Clone, Copy, Debug)]
pub struct RequestLimits {
    pub connect: Duration,
    /// Limit for the answer, once connected.
    pub answer: Duration,
    /// Maximum size of the answer, bytes.
    pub bytes_max: usize,
}

/// Sends `json` as a request of `kind` to the handshake port at `to` and returns the JSON text of the answer.
///
/// # Errors
/// Fails with `Lost` or `Timeout`, or with `Frame` if the answer is not a valid frame.
pub async fn send_request<E: Env>(
    env: &E,
    to: &HostPort,
    kind: HandshakeKind,
    json: &str,
    limits: RequestLimits,
) -> Result<Vec<u8>, TransferError> {
    let peer = to.to_string();
    let lost = |step| {
        let peer = peer.clone();
        move |source: io::Error| TransferError::Lost { peer, step, source: Arc::new(source) }
    };
    let late = |step, limit| TransferError::Timeout { peer: peer.clone(), step, limit };
    let mut stream = deadline(env, limits.connect, env.net().connect(to))
        .await
        .map_err(|_| late(TransferStep::Connect, limits.connect))?
        .map_err(lost(TransferStep::Connect))?;
    let exchange = async {
        let step = TransferStep::Handshake;
        stream.write_all(&HandshakeFrame::Typed(kind, json.as_bytes()).encode()).await.map_err(lost(step))?;
        let mut header = [0; HEADER_BYTES];
        stream.read_exact(&mut header).await.map_err(lost(step))?;
        let length = payload_len(header, limits.bytes_max)
            .map_err(|source| TransferError::Frame { from: peer.clone(), source })?;
        let mut payload = vec![0; length];
        stream.read_exact(&mut payload).await.map_err(lost(step))?;
        Ok(HandshakeFrame::split(&payload).json().to_vec())
    };
    deadline(env, limits.answer, exchange).await.map_err(|_| late(TransferStep::Handshake, limits.answer))?
}
