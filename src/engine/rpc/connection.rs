//! One connection: reads requests, processes them in order and writes the responses.
//!
//! A small request needs no timer, lock or allocation. Any other incomplete request gets a buffer of its full size once a budget shared by
//! all connections allows it. A long call ([`RpcService::is_long`]) runs on a separate thread.
//!
//! The memory of all connections is bounded: each has a buffer of [`BUFFER_BYTES`], and larger ones are counted. A connection that uses
//! larger requests keeps its buffer as long as it is active, if the budget has room.

use std::collections::HashSet;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, SemaphorePermit, watch};
use tracing::Level;

use crate::engine::base::HostPort;
use crate::engine::env::{Env, Net, deadline};
use crate::engine::rpc::log;
use crate::engine::rpc::receipt::Receipt;
use crate::engine::rpc::service::{Admitted, RpcService};
use crate::engine::wire::frame::{
    self, FrameError, REQUEST_BODY_BYTES_MAX, REQUEST_HEADER_BYTES, RequestHeader, RpcErrc,
};
use crate::engine::wire::{DecodeError, Method};

/// Budget in bytes for large unfinished requests and for large unwritten responses to long calls, across all connections. Further large
/// messages wait.
pub const UNFINISHED_BYTES_MAX: usize = 192 << 20;
/// Budget in bytes for the buffers of medium requests, across all connections. Further ones wait. It is separate, so that large requests do
/// not delay them.
pub const MEDIUM_BYTES_MAX: usize = 64 << 20;
/// Requests above this size are large, and those above [`BUFFER_BYTES`] medium.
pub const SMALL_BYTES_MAX: usize = 64 << 10;
/// Size of a connection's buffer without a share of a budget. Small requests fit into it.
pub const BUFFER_BYTES: usize = 4 << 10;
/// A peer that has sent part of a request must send more within this time: at least one byte of a small request, or [`PROGRESS_BYTES`] (or
/// the rest) of any other.
pub const PROGRESS_DEADLINE: Duration = Duration::from_secs(30);
/// A large request must grow by this much per [`PROGRESS_DEADLINE`]. So even the largest request is complete, or dropped, after two
/// minutes.
pub const PROGRESS_BYTES: usize = 16 << 20;
/// Maximum number of concurrent long calls. Further long calls wait.
pub const LONG_CALLS_MAX: usize = 2;

/// A server to which a connection is forwarded must accept it within this time.
const FORWARD_DEADLINE: Duration = Duration::from_secs(1);
/// Granularity of the budgets in bytes.
const UNIT_BYTES: usize = 4 << 10;
/// Responses are written once this many bytes are buffered, even if more requests are waiting.
const WRITE_AT_BYTES: usize = 256 << 10;
/// An output buffer that grew beyond this size for a large response is freed afterwards.
const KEEP_BUFFER_BYTES: usize = 256 << 10;
/// Minimum size of a buffer for medium requests, so that the next one is likely to fit.
const MEDIUM_BUFFER_BYTES: usize = 16 << 10;
/// Larger buffers than [`BUFFER_BYTES`] are freed after this time without a request.
const KEEP_BUFFER_FOR: Duration = Duration::from_secs(1);
/// A peer that reads none of its responses for this long is disconnected.
const WRITE_DEADLINE: Duration = Duration::from_secs(30);

// The largest request fits into the budget, so it never waits forever.
const _: () = assert!(UNFINISHED_BYTES_MAX > REQUEST_BODY_BYTES_MAX as usize + REQUEST_HEADER_BYTES);

/// State shared by the connections of one server.
pub(super) struct ConnectionShared<E, S> {
    pub env: E,
    pub service: Arc<S>,
    pub idle_timeout: Option<Duration>,
    pub stopping: watch::Receiver<bool>,
    /// Budget for large messages, in units of [`UNIT_BYTES`].
    pub unfinished: Semaphore,
    /// Budget for the buffers of medium requests, in the same units.
    pub medium: Semaphore,
    /// Limits long calls. `None` if connections have no threads (simulations); long calls are then processed like all others.
    pub long_calls: Option<Arc<Semaphore>>,
}

impl<E, S> ConnectionShared<E, S> {
    pub(super) fn new(
        env: E,
        service: Arc<S>,
        idle_timeout: Option<Duration>,
        has_threads: bool,
        stopping: watch::Receiver<bool>,
    ) -> ConnectionShared<E, S> {
        let unfinished = Semaphore::new(UNFINISHED_BYTES_MAX / UNIT_BYTES);
        let medium = Semaphore::new(MEDIUM_BYTES_MAX / UNIT_BYTES);
        let long_calls = has_threads.then(|| Arc::new(Semaphore::new(LONG_CALLS_MAX)));
        ConnectionShared { env, service, idle_timeout, stopping, unfinished, medium, long_calls }
    }
}

impl<E, S> ConnectionShared<E, S> {
    /// Waits until the budget has room for a medium or large message. A message larger than the budget gets the whole budget.
    async fn acquire_budget(&self, bytes: usize) -> Option<SemaphorePermit<'_>> {
        let units = bytes.min(UNFINISHED_BYTES_MAX).div_ceil(UNIT_BYTES);
        let budget = if bytes > SMALL_BYTES_MAX { &self.unfinished } else { &self.medium };
        // The semaphores are never closed.
        budget.acquire_many(u32::try_from(units).unwrap_or(u32::MAX)).await.ok()
    }

    /// Returns a share for a buffer, for a connection whose own one is too small to receive many requests at a time.
    fn spare_buffer(&self) -> Option<BufferShare<'_>> {
        let units = u32::try_from(MEDIUM_BUFFER_BYTES / UNIT_BYTES).unwrap_or(u32::MAX);
        let permit = self.has_spare_buffers().then(|| self.medium.try_acquire_many(units).ok()).flatten()?;
        Some(BufferShare { permit, bytes: MEDIUM_BUFFER_BYTES })
    }

    /// Whether connections without requests may keep the buffers of medium requests for a while.
    fn has_spare_buffers(&self) -> bool {
        self.medium.available_permits() >= MEDIUM_BYTES_MAX / UNIT_BYTES / 2
    }
}

/// A connection's next step.
enum NextStep {
    /// Read: no complete request is buffered.
    Read,
    /// Read the rest of a medium or large request with this total size.
    ReadWhole(usize),
    /// Write the buffered responses, then continue.
    Write,
    /// Run this call on a separate thread, then continue.
    RunLong(LongCall),
    /// Wait until a request for this method can be processed, then continue.
    Wait(Method),
}

/// A share of a budget, for a buffer of `bytes`.
struct BufferShare<'a> {
    permit: SemaphorePermit<'a>,
    bytes: usize,
}

/// A call that may take long.
struct LongCall {
    method: Method,
    seq: u32,
    body: Vec<u8>,
}

/// Serves one connection until it ends. `_guard` is dropped at the end.
pub(super) async fn serve<E: Env, S: RpcService>(
    shared: Arc<ConnectionShared<E, S>>,
    mut stream: <E::Net as Net>::Stream,
    peer: String,
    _guard: impl Send,
) {
    let mut input = BytesMut::with_capacity(BUFFER_BYTES);
    let mut output = Vec::new();
    let mut decode_errors = DecodeErrorThrottle::default();
    // A buffer beyond BUFFER_BYTES has a share of a budget. A large request keeps it until it is processed, a large response until it is
    // written.
    let (mut share, mut answer_share) = (None::<BufferShare<'_>>, None);
    loop {
        let keeps_buffers = share.is_some() || output.capacity() > BUFFER_BYTES;
        let limit = match (input.is_empty(), shared.idle_timeout) {
            (true, idle) if keeps_buffers => Some(idle.unwrap_or(KEEP_BUFFER_FOR).min(KEEP_BUFFER_FOR)),
            (true, idle) => idle,
            (false, idle) => Some(idle.unwrap_or(PROGRESS_DEADLINE).min(PROGRESS_DEADLINE)),
        };
        if input.is_empty() {
            // Uses the whole buffer again, instead of what is left behind the last request.
            input.reserve(BUFFER_BYTES);
        }
        let read = match limit {
            None => stream.read_buf(&mut input).await,
            Some(limit) => match deadline(&shared.env, limit, stream.read_buf(&mut input)).await {
                Ok(read) => read,
                Err(_) if input.is_empty() && keeps_buffers => {
                    (input, output, share) = (BytesMut::with_capacity(BUFFER_BYTES), Vec::new(), None);
                    continue;
                }
                Err(_) if input.is_empty() => return,
                Err(_) => return report_unfinished(&peer, input.len(), limit),
            },
        };
        if !matches!(read, Ok(1..)) {
            return;
        }
        if share.is_none()
            && input.len() == input.capacity()
            && let Some(spare) = shared.spare_buffer()
        {
            input = with_capacity(&input, spare.bytes);
            share = Some(spare);
        }
        loop {
            let (next, receipt) = match answer_buffered(&shared, &mut input, &mut output, &mut decode_errors, &peer) {
                Ok(answered) => answered,
                Err(error) => return tracing::warn!(%peer, %error, "connection closed"),
            };
            if let Some(held) = &share {
                let is_long = matches!(next, NextStep::RunLong(_));
                let keeps = match next {
                    NextStep::ReadWhole(whole) => whole <= held.bytes,
                    _ => held.bytes <= SMALL_BYTES_MAX && shared.has_spare_buffers() || input.len() > BUFFER_BYTES,
                };
                if is_long || !keeps {
                    input = with_capacity(&input, BUFFER_BYTES);
                    // A long call has its own copy of the body, so it keeps its share of the budget.
                    if !is_long {
                        share = None;
                    }
                }
            }
            // The calls may have changed the state even if this connection ends here.
            if let Some(stored) = shared.service.commit(receipt)
                && !stored.await
            {
                return tracing::warn!(%peer, "connection closed without a response: the changes cannot be stored");
            }
            if !output.is_empty() {
                match deadline(&shared.env, WRITE_DEADLINE, stream.write_all(&output)).await {
                    Ok(Ok(())) => {
                        output.clear();
                        if answer_share.take().is_some() {
                            output = Vec::new();
                        }
                    }
                    Ok(Err(_)) => return,
                    Err(_) => return tracing::warn!(%peer, "connection closed: the peer is not reading its responses"),
                }
            }
            match next {
                NextStep::Read => break,
                NextStep::ReadWhole(whole) => {
                    // A connection that waits for a share of a budget has no other one: see above.
                    let held = match share.take() {
                        Some(held) => held,
                        None => match shared.acquire_budget(whole.max(MEDIUM_BUFFER_BYTES)).await {
                            Some(permit) => BufferShare { permit, bytes: whole.max(MEDIUM_BUFFER_BYTES) },
                            None => return,
                        },
                    };
                    if input.capacity() < whole {
                        input = with_capacity(&input, held.bytes);
                    }
                    share = Some(held);
                    match read_whole(&shared.env, &mut stream, &mut input, whole).await {
                        Ok(true) => {}
                        Ok(false) => return report_unfinished(&peer, input.len(), PROGRESS_DEADLINE),
                        Err(_) => return,
                    }
                }
                NextStep::Write => tokio::task::yield_now().await,
                NextStep::Wait(method) => {
                    let admitted = tokio::select! {
                        admitted = shared.service.admission(method) => admitted,
                        () = wait_for_close(&mut stream, &mut input) => return,
                    };
                    match admitted {
                        Admitted::Proceed => {}
                        Admitted::Forward(to) => return forward(&shared.env, stream, &input, &to).await,
                        Admitted::Close => return,
                    }
                }
                NextStep::RunLong(call) => {
                    let method = call.method;
                    let answered = tokio::select! {
                        answered = run_long_call(&shared, call, peer.clone(), share.take().map(|held| held.permit)) => answered,
                        () = wait_for_close(&mut stream, &mut input) => return,
                    };
                    let Some((answer, decode_error, permit)) = answered else { return };
                    (output, answer_share) = (answer, permit);
                    if let Some(error) = decode_error {
                        decode_errors.report(&peer, method, &error);
                    }
                }
            }
        }
        if output.capacity() > KEEP_BUFFER_BYTES {
            output = Vec::new();
        }
    }
}

/// Passes the received bytes, and all later ones in both directions, to another server until a side closes its connection.
async fn forward<E: Env>(env: &E, mut stream: <E::Net as Net>::Stream, input: &[u8], to: &HostPort) {
    let Ok(Ok(mut other)) = deadline(env, FORWARD_DEADLINE, env.net().connect(to)).await else { return };
    if other.write_all(input).await.is_ok() {
        let _ = tokio::io::copy_bidirectional(&mut stream, &mut other).await;
    }
}

fn report_unfinished(peer: &str, bytes: usize, limit: Duration) {
    tracing::warn!(%peer, bytes, ?limit, "connection closed: the rest of a request did not arrive in time");
}

/// Copies the received bytes into a buffer of at least this size.
fn with_capacity(input: &BytesMut, bytes: usize) -> BytesMut {
    let mut buffer = BytesMut::with_capacity(bytes.max(input.len()));
    buffer.extend_from_slice(input);
    buffer
}

/// Reads until `input`, which has room for them, contains `whole` bytes. Returns false if the peer is too slow.
async fn read_whole<E: Env>(
    env: &E,
    stream: &mut (impl AsyncRead + Unpin),
    input: &mut BytesMut,
    whole: usize,
) -> io::Result<bool> {
    while input.len() < whole {
        let step = whole.min(input.len() + PROGRESS_BYTES);
        let grow = async {
            while input.len() < step {
                // The buffer is not full, so this does not grow it.
                if stream.read_buf(input).await? == 0 {
                    return Err(io::Error::from(io::ErrorKind::UnexpectedEof));
                }
            }
            Ok(())
        };
        match deadline(env, PROGRESS_DEADLINE, grow).await {
            Ok(grown) => grown?,
            Err(_) => return Ok(false),
        }
    }
    Ok(true)
}

/// Processes a long call on a blocking thread. Returns the response bytes, any error decoding the request, and a large response's budget
/// share; `None` if the service panicked or the changes cannot be stored.
async fn run_long_call<'a, E: Env, S: RpcService>(
    shared: &'a ConnectionShared<E, S>,
    call: LongCall,
    peer: String,
    share: Option<SemaphorePermit<'a>>,
) -> Option<(Vec<u8>, Option<DecodeError>, Option<SemaphorePermit<'a>>)> {
    let permit = shared.long_calls.clone()?.acquire_owned().await.ok()?;
    let (service, env) = (shared.service.clone(), shared.env.clone());
    let runtime = Handle::current();
    let work = move || {
        let mut output = Vec::new();
        let mut decode_error = None;
        let answered = answer(&*service, &env, &peer, call.method, call.seq, &call.body, &mut output);
        let receipt = answered.unwrap_or_else(|error| {
            decode_error = Some(error);
            Receipt::default()
        });
        // This thread may wait.
        let stored = service.commit(receipt).is_none_or(|stored| runtime.block_on(stored));
        stored.then_some((output, decode_error, permit))
    };
    // A panic in the service ends this connection, just as it would without the thread.
    let (output, decode_error, permit) = tokio::task::spawn_blocking(work).await.ok()??;
    // The request's memory has been freed. A connection that waits for a share of the budget must not keep another one, or two connections
    // could wait for each other.
    drop(share);
    // This call keeps its slot until the budget has room for its response.
    let share = if output.len() > SMALL_BYTES_MAX { Some(shared.acquire_budget(output.len()).await?) } else { None };
    drop(permit);
    Some((output, decode_error, share))
}

/// Waits until the peer closes the connection. Meanwhile, received bytes are buffered up to a limit; beyond this limit, closing the
/// connection is no longer detected.
async fn wait_for_close(stream: &mut (impl AsyncRead + Unpin), input: &mut BytesMut) {
    while input.len() < BUFFER_BYTES {
        if !matches!(stream.read_buf(input).await, Ok(1..)) {
            return;
        }
    }
    std::future::pending().await
}

/// Processes the complete requests in `input` in order, until a different step is required. Also returns the merged
/// receipt of their responses.
fn answer_buffered<E: Env, S: RpcService>(
    shared: &ConnectionShared<E, S>,
    input: &mut BytesMut,
    output: &mut Vec<u8>,
    decode_errors: &mut DecodeErrorThrottle,
    peer: &str,
) -> Result<(NextStep, Receipt), FrameError> {
    let service = &*shared.service;
    let mut receipt = Receipt::default();
    while let Some(header) = next_header(input)? {
        let length = header.length as usize;
        let whole = REQUEST_HEADER_BYTES + length + header.attachment as usize;
        if input.len() < whole {
            if whole > BUFFER_BYTES {
                return Ok((NextStep::ReadWhole(whole), receipt));
            }
            if input.capacity() < whole {
                *input = with_capacity(input, BUFFER_BYTES);
            }
            return Ok((NextStep::Read, receipt));
        }
        let body = &input[REQUEST_HEADER_BYTES..REQUEST_HEADER_BYTES + length];
        match Method::from_id(header.function_id) {
            None => {
                frame::put_error(
                    output,
                    header.seq,
                    RpcErrc::FUNCTION_NOT_REGISTERED,
                    "the rpc function not registered",
                );
            }
            Some(method) if !service.admits(method) => return Ok((NextStep::Wait(method), receipt)),
            Some(method) if service.is_long(method) && shared.long_calls.is_some() => {
                let call = LongCall { method, seq: header.seq, body: body.to_vec() };
                input.advance(whole);
                return Ok((NextStep::RunLong(call), receipt));
            }
            Some(method) => match answer(service, &shared.env, peer, method, header.seq, body, output) {
                Ok(answered) => receipt.merge(answered),
                Err(error) => decode_errors.report(peer, method, &error),
            },
        }
        input.advance(whole);
        if output.len() >= WRITE_AT_BYTES {
            return Ok((NextStep::Write, receipt));
        }
    }
    Ok((NextStep::Read, receipt))
}

/// Appends the response to one request. If an error is returned, the appended response is an error response.
fn answer(
    service: &impl RpcService,
    env: &impl Env,
    peer: &str,
    method: Method,
    seq: u32,
    body: &[u8],
    output: &mut Vec<u8>,
) -> Result<Receipt, DecodeError> {
    let answered = frame::put_response(output, seq, |out| match tracing::enabled!(Level::DEBUG) {
        false => service.answer(peer, method, body, out),
        true => log::answer(service, env, peer, method, body, out),
    });
    if answered.is_err() {
        frame::put_error(output, seq, RpcErrc::INVALID_RPC_ARGUMENTS, "invalid rpc arg");
    }
    answered
}

/// Returns the header at the start of `input` if it is complete. The first byte is enough to detect a peer that uses another protocol.
fn next_header(input: &BytesMut) -> Result<Option<RequestHeader>, FrameError> {
    match input.first_chunk::<REQUEST_HEADER_BYTES>() {
        Some(bytes) => RequestHeader::decode(bytes).map(Some),
        None => match input.first() {
            Some(&found) if found != frame::MAGIC => Err(FrameError::Magic { found }),
            _ => Ok(None),
        },
    }
}

/// Limits warnings to one per method and connection, because a client from another release causes the same error on every call.
#[derive(Default)]
struct DecodeErrorThrottle(HashSet<Method>);

impl DecodeErrorThrottle {
    fn report(&mut self, peer: &str, method: Method, error: &DecodeError) {
        if self.0.insert(method) {
            tracing::warn!(%peer, method = method.name(), %error, "cannot decode a request");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::base::{Mono, Unix};
    use crate::engine::env::{Listener, RealEnv};
    use crate::engine::rpc::CommitWait;
    use crate::engine::wire::pack::DecodeFault;
    use std::pin::pin;
    use std::sync::Mutex;
    use tokio::sync::Notify;

    const ANSWER_BYTES: usize = 3 * SMALL_BYTES_MAX;

    /// Returns responses of [`ANSWER_BYTES`] bytes.
    struct LargeAnswers;

    impl RpcService for LargeAnswers {
        fn answer(&self, _: &str, _: Method, _: &[u8], out: &mut Vec<u8>) -> Result<Receipt, DecodeError> {
            out.resize(out.len() + ANSWER_BYTES, 0);
            Ok(Receipt::default())
        }
    }

    /// Each call makes a change, whose number is the first byte of its body. An empty body cannot be decoded.
    #[derive(Default)]
    struct NumberedChanges {
        committed: Mutex<Vec<Receipt>>,
    }

    impl RpcService for NumberedChanges {
        fn answer(&self, _: &str, _: Method, body: &[u8], _: &mut Vec<u8>) -> Result<Receipt, DecodeError> {
            let last = body.first().copied().map(u64::from).ok_or(DecodeFault::Short { needed: 1, left: 0 })?;
            Ok(Receipt { term: 1, last, ..Receipt::default() })
        }

        fn commit(&self, receipt: Receipt) -> Option<CommitWait<'_>> {
            self.committed.lock().unwrap().push(receipt);
            None
        }
    }

    /// The real environment, in which connections become idle when a test says so.
    #[derive(Clone, Default)]
    struct IdleEnv {
        real: RealEnv,
        idle: Arc<Notify>,
    }

    impl Env for IdleEnv {
        type Net = <RealEnv as Env>::Net;
        fn net(&self) -> &Self::Net {
            self.real.net()
        }
        fn now(&self) -> Mono {
            self.real.now()
        }
        fn unix(&self) -> Unix {
            self.real.unix()
        }
        async fn sleep(&self, duration: Duration) {
            match duration {
                KEEP_BUFFER_FOR => self.idle.notified().await,
                _ => self.real.sleep(duration).await,
            }
        }
        fn rng(&self) -> u64 {
            self.real.rng()
        }
    }

    fn request(method: Method, body: &[u8]) -> Vec<u8> {
        let header = RequestHeader { seq: 1, function_id: method.id(), length: body.len() as u32, attachment: 0 };
        [&header.encode()[..], body].concat()
    }

    #[test]
    fn one_receipt_covers_all_requests_of_a_buffer() {
        let (_stop, stopping) = watch::channel(false);
        let shared = ConnectionShared::new(RealEnv::new(), Arc::new(NumberedChanges::default()), None, false, stopping);
        let bodies: [&[u8]; 4] = [&[3], &[5], &[], &[4]];
        let mut input: BytesMut = bodies.iter().flat_map(|body| request(Method::PutEnd, body)).collect();
        let (mut output, mut errors) = (Vec::new(), DecodeErrorThrottle::default());
        let mut answer = || answer_buffered(&shared, &mut input, &mut output, &mut errors, "a:1").unwrap().1;
        assert_eq!(answer(), Receipt { term: 1, last: 5, ..Receipt::default() });
        assert_eq!(answer(), Receipt::default(), "a receipt covers its own requests only");
    }

    #[tokio::test]
    async fn a_long_call_commits_its_own_receipt() {
        let (_stop, stopping) = watch::channel(false);
        let shared = ConnectionShared::new(RealEnv::new(), Arc::new(NumberedChanges::default()), None, true, stopping);
        for body in [vec![7], vec![]] {
            let call = LongCall { method: Method::RemoveAll, seq: 1, body };
            assert!(run_long_call(&shared, call, String::new(), None).await.is_some());
        }
        let committed = shared.service.committed.lock().unwrap();
        assert_eq!(*committed, [Receipt { term: 1, last: 7, ..Receipt::default() }, Receipt::default()]);
    }

    #[tokio::test]
    async fn an_idle_connection_gives_its_buffer_back() {
        let (env, service) = (IdleEnv::default(), Arc::new(NumberedChanges::default()));
        let (_stop, stopping) = watch::channel(false);
        let shared = Arc::new(ConnectionShared::new(env.clone(), service, None, false, stopping));
        let mut listener = env.net().listen(&HostPort::new("127.0.0.1", 0)).await.unwrap();
        let mut client = env.net().connect(&HostPort::new("127.0.0.1", listener.port())).await.unwrap();
        let (stream, peer) = listener.accept().await.unwrap();
        let serving = tokio::spawn(serve(Arc::clone(&shared), stream, peer, ()));
        let all = MEDIUM_BYTES_MAX / UNIT_BYTES;
        let mut answer = [0; 16];
        for round in 0..2 {
            client.write_all(&request(Method::PutEnd, &[1; 10_000])).await.unwrap();
            client.read_exact(&mut answer).await.unwrap();
            let held = all - shared.medium.available_permits();
            assert_eq!(held, MEDIUM_BUFFER_BYTES / UNIT_BYTES, "kept while the connection is active, round {round}");
        }
        env.idle.notify_one();
        while shared.medium.available_permits() < all {
            tokio::task::yield_now().await;
        }
        client.write_all(&request(Method::PutEnd, &[1])).await.unwrap();
        client.read_exact(&mut answer).await.unwrap();
        assert_eq!(shared.medium.available_permits(), all, "a small request needs no share");
        drop(client);
        serving.await.unwrap();
    }

    #[tokio::test]
    async fn large_answers_to_long_calls_share_the_budget() {
        let (_stop, stopping) = watch::channel(false);
        let shared = ConnectionShared::new(RealEnv::new(), Arc::new(LargeAnswers), None, true, stopping);
        // The budget is large enough for one response, but not for two.
        shared.unfinished.forget_permits((UNFINISHED_BYTES_MAX - 2 * ANSWER_BYTES) / UNIT_BYTES);
        let ask = || {
            run_long_call(
                &shared,
                LongCall { method: Method::RemoveAll, seq: 1, body: Vec::new() },
                String::new(),
                None,
            )
        };
        let (answer, _, share) = ask().await.expect("a response");
        assert!(answer.len() > ANSWER_BYTES && share.is_some());
        let mut second = pin!(ask());
        let early = deadline(&shared.env, Duration::from_millis(200), second.as_mut()).await;
        assert!(early.is_err(), "the first response has not been written yet");
        drop(share);
        assert!(second.await.is_some());
        assert_eq!(shared.long_calls.as_ref().map(|turns| turns.available_permits()), Some(LONG_CALLS_MAX));
    }
}
