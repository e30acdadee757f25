//! The client's shell: one connection, any number of calls in flight, made anew after it broke.
//!
//! A call whose answer never came is *unknown*, not failed: nothing is sent again here. Callers repeat what upstream's contract
//! makes repeatable.

use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::{mpsc, oneshot};
use tokio::task::AbortHandle;

use crate::engine::base::{ErrorCode, HostPort};
use crate::engine::env::{Env, Net, deadline};
use crate::engine::wire::frame::{
    self, FrameError, REQUEST_HEADER_BYTES, RESPONSE_HEADER_BYTES, RequestHeader, ResponseHeader, RpcErrc,
};
use crate::engine::wire::method::Channel;
use crate::engine::wire::{DecodeError, Method};

/// Requests waiting to be written on one connection; more callers than that wait for room.
const WRITE_QUEUE: usize = 1024;
/// Queued requests are gathered into one write up to this size.
const WRITE_AT_BYTES: usize = 256 << 10;

/// How long a client waits.
#[derive(Clone, Copy, Debug)]
pub struct Timeouts {
    /// For a connection.
    pub connect: Duration,
    /// For an answer.
    pub call: Duration,
}

impl Default for Timeouts {
    /// 3 s and 10 s. Upstream waits 30 s for each and repeats connects for 4 s.
    fn default() -> Timeouts {
        Timeouts { connect: Duration::from_secs(3), call: Duration::from_secs(10) }
    }
}

/// Why a call has no answer.
#[derive(Clone, Debug, thiserror::Error)]
pub enum CallError {
    /// No connection: the call was not sent.
    #[error("cannot connect to {address}: {source}")]
    Connect {
        /// Whom to.
        address: HostPort,
        /// What the system said.
        source: Arc<io::Error>,
    },
    /// No connection within the time: the call was not sent.
    #[error("no connection to {address} within {limit:?}")]
    ConnectTimeout {
        /// Whom to.
        address: HostPort,
        /// How long was waited.
        limit: Duration,
    },
    /// No answer within the time: whether the call was carried out is unknown.
    #[error("{} was not answered by {address} within {limit:?}", method.name())]
    Timeout {
        /// Whom.
        address: HostPort,
        /// What was called.
        method: Method,
        /// How long was waited.
        limit: Duration,
    },
    /// The connection broke: whether the call was carried out is unknown.
    #[error("the connection to {address} broke during {}: {why}", method.name())]
    Closed {
        /// Whom to.
        address: HostPort,
        /// What was called.
        method: Method,
        /// How.
        why: String,
    },
    /// The request is too large to send.
    #[error("a request of {bytes} bytes for {}: at most {} are sent", method.name(), frame::REQUEST_BODY_BYTES_MAX)]
    TooLarge {
        /// What was to be called.
        method: Method,
        /// The request's size.
        bytes: usize,
    },
    /// The server refused the request as such.
    #[error("{address} refuses {}: {error:?} ({message}); it may be of another release", method.name())]
    Remote {
        /// Whom.
        address: HostPort,
        /// What was called.
        method: Method,
        /// coro_rpc's number.
        error: RpcErrc,
        /// The server's words.
        message: String,
    },
    /// The answer is not of the type that it should be.
    #[error("the answer does not decode: {0}")]
    Decode(#[from] DecodeError),
}

impl CallError {
    /// The number that upstream's clients give for such a failure.
    pub fn code(&self) -> ErrorCode {
        match self {
            CallError::Timeout { .. } => ErrorCode::RPC_TIMEOUT,
            _ => ErrorCode::RPC_FAIL,
        }
    }
}

/// A client of one server. Clones share the connection.
#[derive(Clone)]
pub struct RpcClient<E: Env>(Arc<Inner<E>>);

struct Inner<E: Env> {
    env: E,
    address: HostPort,
    timeouts: Timeouts,
    connection: tokio::sync::Mutex<Option<Arc<Connection>>>,
}

/// A live connection. Its two tasks end when it breaks or when the last owner lets go.
struct Connection {
    seq: AtomicU32,
    requests: mpsc::Sender<Vec<u8>>,
    waiting: Arc<Waiting>,
    tasks: [AbortHandle; 2],
}

type Answer = (RpcErrc, Bytes);
type Calls = HashMap<u32, oneshot::Sender<Result<Answer, String>>>;

/// Who waits for which answer.
#[derive(Default)]
struct Waiting {
    broken: AtomicBool,
    calls: Mutex<Calls>,
}

impl<E: Env> RpcClient<E> {
    /// A client of the server at `address`; connects when first used.
    pub fn new(env: E, address: HostPort, timeouts: Timeouts) -> RpcClient<E> {
        RpcClient(Arc::new(Inner { env, address, timeouts, connection: tokio::sync::Mutex::new(None) }))
    }

    /// The server's address.
    pub fn address(&self) -> &HostPort {
        &self.0.address
    }

    /// The connection, made now if there is none. Callers that come while one connects wait for it, but none longer than the time
    /// for a connection.
    async fn connection(&self) -> Result<Arc<Connection>, CallError> {
        let inner = &*self.0;
        let connected = async {
            let mut slot = inner.connection.lock().await;
            if let Some(live) = slot.as_ref().filter(|c| !c.waiting.broken.load(Ordering::Acquire)) {
                return Ok(live.clone());
            }
            let stream = inner.env.net().connect(&inner.address).await?;
            let connection = Arc::new(Connection::over(stream));
            *slot = Some(connection.clone());
            Ok(connection)
        };
        match deadline(&inner.env, inner.timeouts.connect, connected).await {
            Ok(Ok(connection)) => Ok(connection),
            Ok(Err(source)) => Err(CallError::Connect { address: inner.address.clone(), source: Arc::new(source) }),
            Err(late) => Err(CallError::ConnectTimeout { address: inner.address.clone(), limit: late.0 }),
        }
    }

    async fn exchange(&self, method: Method, body: Vec<u8>) -> Result<Answer, CallError> {
        let length = u32::try_from(body.len()).ok().filter(|length| *length <= frame::REQUEST_BODY_BYTES_MAX);
        let length = length.ok_or(CallError::TooLarge { method, bytes: body.len() })?;
        let connection = self.connection().await?;
        let address = || self.0.address.clone();
        let seq = connection.seq.fetch_add(1, Ordering::Relaxed);
        let mut request = Vec::with_capacity(REQUEST_HEADER_BYTES + body.len());
        request.extend_from_slice(&RequestHeader { seq, function_id: method.id(), length, attachment: 0 }.encode());
        request.extend_from_slice(&body);
        let (answered, answer) = oneshot::channel();
        connection.waiting.lock().insert(seq, answered);
        let _forget = Forget { waiting: &connection.waiting, seq };
        let limit = self.0.timeouts.call;
        let answered = async {
            if connection.waiting.broken.load(Ordering::Acquire) || connection.requests.send(request).await.is_err() {
                return Err("it was closed before the request was written".to_owned());
            }
            answer.await.unwrap_or_else(|_| Err("closed".to_owned()))
        };
        match deadline(&self.0.env, limit, answered).await {
            Ok(answer) => answer.map_err(|why| CallError::Closed { address: address(), method, why }),
            Err(_) => {
                // A server that does not answer one call in its time is asked over a new connection next: this one may be dead
                // without having ended. Calls that wait on it still get their answers.
                connection.waiting.broken.store(true, Ordering::Release);
                Err(CallError::Timeout { address: address(), method, limit })
            }
        }
    }
}

impl<E: Env> Channel for RpcClient<E> {
    type Error = CallError;

    async fn call(&self, method: Method, body: Vec<u8>) -> Result<Bytes, CallError> {
        let (error, body) = self.exchange(method, body).await?;
        if error == RpcErrc::OK {
            return Ok(body);
        }
        let message = frame::error_message(&body).map_or_else(|e| e.to_string(), |text| text.to_string());
        Err(CallError::Remote { address: self.0.address.clone(), method, error, message })
    }
}

impl Connection {
    fn over<S: AsyncRead + AsyncWrite + Send + 'static>(stream: S) -> Connection {
        let (reader, writer) = tokio::io::split(stream);
        let (requests, queue) = mpsc::channel(WRITE_QUEUE);
        let waiting = Arc::new(Waiting::default());
        let (reading, writing) = (waiting.clone(), waiting.clone());
        let read = tokio::spawn(async move {
            let why = read_answers(reader, &reading).await;
            reading.fail_all(&why);
        });
        let write = tokio::spawn(async move {
            if let Err(error) = write_requests(writer, queue).await {
                writing.fail_all(&error.to_string());
            }
        });
        Connection { seq: AtomicU32::new(0), requests, waiting, tasks: [read.abort_handle(), write.abort_handle()] }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.tasks.iter().for_each(AbortHandle::abort);
    }
}

impl Waiting {
    fn lock(&self) -> MutexGuard<'_, Calls> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// No answer will come any more; later calls open a new connection.
    fn fail_all(&self, why: &str) {
        self.broken.store(true, Ordering::Release);
        for (_, call) in self.lock().drain() {
            let _ = call.send(Err(why.to_owned()));
        }
    }
}

/// Takes a call off the list of those that wait, also when its future is dropped.
struct Forget<'a> {
    waiting: &'a Waiting,
    seq: u32,
}

impl Drop for Forget<'_> {
    fn drop(&mut self) {
        self.waiting.lock().remove(&self.seq);
    }
}

/// Write what is queued, as much as there is at a time.
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

/// Hand out answers until the connection ends; why it did.
async fn read_answers(mut reader: impl AsyncRead + Unpin, waiting: &Waiting) -> String {
    let mut input = BytesMut::with_capacity(16 << 10);
    loop {
        match reader.read_buf(&mut input).await {
            Ok(0) => return "closed by the other side".to_owned(),
            Ok(_) => {}
            Err(error) => return error.to_string(),
        }
        loop {
            match next_answer(&mut input) {
                Ok(None) => break,
                Ok(Some((header, body))) => {
                    // Nobody waits any more for an answer that came after its deadline.
                    if let Some(call) = waiting.lock().remove(&header.seq) {
                        let _ = call.send(Ok((header.error, body)));
                    }
                }
                Err(error) => return error.to_string(),
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
