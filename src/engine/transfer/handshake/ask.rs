//! Asking a peer's handshake port.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::engine::base::HostPort;
use crate::engine::env::{Env, Net, deadline};
use crate::engine::transfer::{Step, TransferError};
use crate::engine::wire::json::{Frame, HEADER_BYTES, Kind, payload_len};

/// How much time and room an exchange gets.
#[derive(Clone, Copy, Debug)]
pub struct AskLimits {
    /// For connecting.
    pub connect: Duration,
    /// For the answer, once connected.
    pub answer: Duration,
    /// Longest answer, bytes.
    pub bytes_max: usize,
}

/// Send `json` as a request of `kind` to the handshake port at `to`, and give the answer's JSON text.
///
/// # Errors
/// `Lost`, `Timeout`, or `Frame` for an answer that is none.
pub async fn ask<E: Env>(
    env: &E,
    to: &HostPort,
    kind: Kind,
    json: &str,
    limits: AskLimits,
) -> Result<Vec<u8>, TransferError> {
    let peer = to.to_string();
    let lost = |step| {
        let peer = peer.clone();
        move |source: io::Error| TransferError::Lost { peer, step, source: Arc::new(source) }
    };
    let late = |step, limit| TransferError::Timeout { peer: peer.clone(), step, limit };
    let mut stream = deadline(env, limits.connect, env.net().connect(to))
        .await
        .map_err(|_| late(Step::Connect, limits.connect))?
        .map_err(lost(Step::Connect))?;
    let exchange = async {
        let step = Step::Handshake;
        stream.write_all(&Frame::Typed(kind, json.as_bytes()).encode()).await.map_err(lost(step))?;
        let mut header = [0; HEADER_BYTES];
        stream.read_exact(&mut header).await.map_err(lost(step))?;
        let length = payload_len(header, limits.bytes_max)
            .map_err(|source| TransferError::Frame { from: peer.clone(), source })?;
        let mut payload = vec![0; length];
        stream.read_exact(&mut payload).await.map_err(lost(step))?;
        Ok(Frame::split(&payload).json().to_vec())
    };
    deadline(env, limits.answer, exchange).await.map_err(|_| late(Step::Handshake, limits.answer))?
}
