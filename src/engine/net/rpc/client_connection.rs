//! One connection of the RPC client: the calls that wait for responses, and the tasks that write
//! and read.

use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError};

use bytes::{Buf, Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::{mpsc, oneshot};
use tokio::task::AbortHandle;

use crate::rpc::shared_stream::SharedStream;
use mcctl_base::HostPort;
use mcctl_sys::env::{Env, Net};
use mcctl_wire::frame::{FrameError, RESPONSE_HEADER_BYTES, ResponseHeader, RpcErrc};

/// Maximum number of requests queued for writing, per connection. Further callers wait.
const WRITE_QUEUE: usize = 1024;
/// Queued requests are combined into one write of up to this many bytes.
const WRITE_AT_BYTES: usize = 256 << 10;

/// Why a connection ended.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ConnectionError {
    #[error("closed before the request was written")]
    ClosedBeforeWrite,
    #[error("closed by the peer")]
    ClosedByPeer,
    #[error("closed")]
    Closed,
    #[error("another master leads")]
    LeaderChanged,
    #[error("{0}")]
    Io(Arc<io::Error>),
    /// The peer sent an invalid frame.
    #[error(transparent)]
    Frame(FrameError),
}

/// A live connection. Its two tasks end when the connection breaks or its last owner is dropped.
pub(super) struct ClientConnection<E: Env> {
    pub(super) address: HostPort,
    stream: SharedStream<<E::Net as Net>::Stream>,
    pub(super) seq: AtomicU32,
    pub(super) requests: mpsc::Sender<Vec<u8>>,
    pub(super) waiting: Arc<WaitingCalls>,
    tasks: [AbortHandle; 2],
}

pub(super) type RpcAnswer = (RpcErrc, Bytes);
type CallSenders = HashMap<u32, oneshot::Sender<Result<RpcAnswer, ConnectionError>>>;

/// Calls that are waiting for their responses.
pub(super) struct WaitingCalls {
    /// Completed when the connection has broken and the loss is counted.
    broken: Once,
    /// The client's number of connections that broke.
    losses: Arc<AtomicU64>,
    calls: Mutex<CallSenders>,
}

impl<E: Env> ClientConnection<E> {
    /// Serves calls over `stream`. When the connection breaks, `losses` increases.
    pub(super) fn over(
        stream: <E::Net as Net>::Stream,
        address: HostPort,
        losses: Arc<AtomicU64>,
    ) -> ClientConnection<E> {
        let stream = SharedStream::new(stream);
        let reader = stream.clone();
        let writer = stream.clone();
        let (requests, queue) = mpsc::channel(WRITE_QUEUE);
        let waiting = Arc::new(WaitingCalls { broken: Once::new(), losses, calls: Mutex::default() });
        let reading = waiting.clone();
        let writing = waiting.clone();
        let read = tokio::spawn(async move {
            let why = read_answers(reader, &reading).await;
            reading.fail_all(why);
        });
        let write = tokio::spawn(async move {
            if let Err(error) = write_requests(writer, queue).await {
                writing.fail_all(ConnectionError::Io(Arc::new(error)));
            }
        });
        ClientConnection {
            address,
            stream,
            seq: AtomicU32::new(0),
            requests,
            waiting,
            tasks: [read.abort_handle(), write.abort_handle()],
        }
    }

    /// Counts this connection as broken if the server has closed it. The reader later finds the end
    /// of the stream, and fails the calls that have no response.
    pub(super) fn check(&self) {
        if !self.waiting.is_broken() && E::Net::is_hung_up(&self.stream.lock()) {
            self.waiting.set_broken();
        }
    }
}

impl<E: Env> Drop for ClientConnection<E> {
    fn drop(&mut self) {
        self.tasks.iter().for_each(AbortHandle::abort);
    }
}

impl WaitingCalls {
    pub(super) fn lock(&self) -> MutexGuard<'_, CallSenders> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn is_broken(&self) -> bool {
        self.broken.is_completed()
    }

    /// Counts a loss, once per connection. Later calls open a new connection.
    pub(super) fn set_broken(&self) {
        self.broken.call_once(|| {
            self.losses.fetch_add(1, Ordering::AcqRel);
        });
    }

    /// Fails all waiting calls. Later calls open a new connection.
    fn fail_all(&self, why: ConnectionError) {
        self.set_broken();
        for (_, call) in self.lock().drain() {
            let _ = call.send(Err(why.clone()));
        }
    }
}

/// Removes a call from the waiting calls on drop, even if its future is canceled.
pub(super) struct CallGuard<'a> {
    pub(super) waiting: &'a WaitingCalls,
    pub(super) seq: u32,
}

impl Drop for CallGuard<'_> {
    fn drop(&mut self) {
        self.waiting.lock().remove(&self.seq);
    }
}

/// Writes queued requests, combining those that are already queued.
async fn write_requests(mut writer: impl AsyncWrite + Unpin, mut queue: mpsc::Receiver<Vec<u8>>) -> io::Result<()> {
    let mut out = Vec::new();
    while let Some(first) = queue.recv().await {
        out.clear();
        out.extend_from_slice(&first);
        while out.len() < WRITE_AT_BYTES
            && let Ok(next) = queue.try_recv()
        {
            out.extend_from_slice(&next);
        }
        writer.write_all(&out).await?;
    }
    Ok(())
}

/// Passes responses to their calls until the connection ends. Returns why it ended.
async fn read_answers(mut reader: impl AsyncRead + Unpin, waiting: &WaitingCalls) -> ConnectionError {
    let mut input = BytesMut::with_capacity(16 << 10);
    loop {
        match reader.read_buf(&mut input).await {
            Ok(0) => return ConnectionError::ClosedByPeer,
            Ok(_) => {}
            Err(error) => return ConnectionError::Io(Arc::new(error)),
        }
        loop {
            match next_answer(&mut input) {
                Ok(None) => break,
                Ok(Some((header, body))) => {
                    // A call whose deadline has passed is no longer waiting for its response.
                    if let Some(call) = waiting.lock().remove(&header.seq) {
                        let _ = call.send(Ok((header.error, body)));
                    }
                }
                Err(error) => return ConnectionError::Frame(error),
            }
        }
    }
}

fn next_answer(input: &mut BytesMut) -> Result<Option<(ResponseHeader, Bytes)>, FrameError> {
    let Some(bytes) = input.first_chunk::<RESPONSE_HEADER_BYTES>() else { return Ok(None) };
    let header = ResponseHeader::decode(bytes)?;
    let whole = RESPONSE_HEADER_BYTES + header.length as usize + header.attachment as usize;
    if input.len() < whole {
        input.reserve((whole - input.len()).min(1 << 20));
        return Ok(None);
    }
    let mut frame = input.split_to(whole);
    frame.advance(RESPONSE_HEADER_BYTES);
    frame.truncate(header.length as usize);
    Ok(Some((header, frame.freeze())))
}
