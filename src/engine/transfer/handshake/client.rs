//! Client side of the handshake protocol.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::{TransferError, TransferStep};
use mcctl_base::HostPort;
use mcctl_sys::env::{Env, Net, deadline};
use mcctl_wire::json::{HEADER_BYTES, HandshakeFrame, HandshakeKind, payload_len};

/// Time and size limits for an exchange.
#[derive(Clone, Copy, Debug)]
pub struct RequestLimits {
    pub connect: Duration,
    /// Timeout for the reply, once connected.
    pub answer: Duration,
    /// Maximum size of the reply, in bytes.
    pub bytes_max: usize,
}

/// Sends `json` as a request of type `kind` to the handshake port at `to` and returns the JSON text
/// of the reply.
///
/// # Errors
/// Fails with `Lost` or `Timeout`, or with `Frame` if the reply is not a valid frame.
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
