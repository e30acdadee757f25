//! One connection: reads requests, processes them in order and writes the responses.
//!
//! A small request needs no timer, lock or allocation. An incomplete large request gets a buffer of
//! its full size once a budget shared by all connections allows it. A long call
//! ([`RpcService::is_long`]) runs on a separate thread.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, SemaphorePermit, watch};
use tracing::Level;

use crate::rpc::connection_client::ConnectionClient;
use crate::rpc::latency::{AnsweredCalls, RpcLatency};
use crate::rpc::log;
use crate::rpc::receipt::Receipt;
use crate::rpc::releases::ClientReleases;
use crate::rpc::server::ServerConfig;
use crate::rpc::service::{Admitted, RpcCall, RpcService};
use mcctl_base::time::RoundedDuration;
use mcctl_base::{HostPort, Mono};
use mcctl_sys::env::{Env, Net, deadline};
use mcctl_wire::frame::{self, FrameError, REQUEST_BODY_BYTES_MAX, REQUEST_HEADER_BYTES, RequestHeader, RpcErrc};
use mcctl_wire::{DecodeError, Method, MethodLayout};

/// Budget in bytes for large unfinished requests and for large unwritten responses to long calls,
/// across all connections. Messages of up to [`SMALL_BYTES_MAX`] are not counted. Further large
/// messages wait.
pub const UNFINISHED_BYTES_MAX: usize = 256 << 20;
/// Requests up to this size are not counted. Each connection may buffer this many bytes of an
/// unfinished request.
pub const SMALL_BYTES_MAX: usize = 64 << 10;
/// A peer that has sent part of a request must send more within this time: the rest of a small
/// request, or [`PROGRESS_BYTES`] (or the rest) of a large one.
pub const PROGRESS_DEADLINE: Duration = Duration::from_secs(30);
/// A large request must grow by this much per [`PROGRESS_DEADLINE`]. So even the largest request is
/// complete, or dropped, after two minutes.
pub const PROGRESS_BYTES: usize = 16 << 20;
/// Maximum number of concurrent long calls. Further long calls wait.
pub const LONG_CALLS_MAX: usize = 2;

/// A server to which a connection is forwarded must accept it within this time.
const FORWARD_DEADLINE: Duration = Duration::from_secs(1);
/// Granularity of the budget in bytes.
const UNIT_BYTES: usize = 64 << 10;
/// Responses are written once this many bytes are buffered, even if more requests are waiting.
const WRITE_AT_BYTES: usize = 256 << 10;
/// Encoding responses of this size takes long enough to count in their latency.
const LATENCY_BYTES_MIN: usize = 1 << 10;
/// An output buffer that grew beyond this size for a large response is freed afterwards.
const KEEP_BUFFER_BYTES: usize = 256 << 10;
/// Upstream's message for a request that cannot be decoded.
const INVALID_ARGUMENTS: &str = "invalid rpc arg";
/// Initial size of a connection's input buffer.
const INPUT_BYTES: usize = 16 << 10;
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
    /// Limits long calls. `None` if connections have no threads (simulations); long calls are then
    /// processed like all others.
    pub long_calls: Option<Arc<Semaphore>>,
    pub latency: RpcLatency,
    pub releases: ClientReleases,
}

impl<E, S> ConnectionShared<E, S> {
    pub(super) fn new(
        env: E,
        service: Arc<S>,
        config: &ServerConfig,
        stopping: watch::Receiver<bool>,
    ) -> ConnectionShared<E, S> {
        let ServerConfig { threads, idle_timeout, client_release, .. } = *config;
        let unfinished = Semaphore::new(UNFINISHED_BYTES_MAX / UNIT_BYTES);
        let long_calls = (threads > 0).then(|| Arc::new(Semaphore::new(LONG_CALLS_MAX)));
        let latency = RpcLatency::new(threads.max(1));
        let releases = ClientReleases::new(client_release);
        ConnectionShared { env, service, idle_timeout, stopping, unfinished, long_calls, latency, releases }
    }
}

impl<E, S> ConnectionShared<E, S> {
    /// Waits until the budget has room for a large message. A message larger than the budget gets
    /// the whole budget.
    async fn acquire_budget(&self, bytes: usize) -> Option<SemaphorePermit<'_>> {
        let units = bytes.min(UNFINISHED_BYTES_MAX).div_ceil(UNIT_BYTES);
        // The semaphore is never closed.
        self.unfinished.acquire_many(u32::try_from(units).unwrap_or(u32::MAX)).await.ok()
    }
}

/// A connection's next step.
enum NextStep {
    /// Read: no complete request is buffered.
    Read,
    /// Read the rest of a large request with this total size.
    ReadLarge(usize),
    /// Write the buffered responses, then continue.
    Write,
    /// Run this call on a separate thread, then continue.
    RunLong(LongCall),
    /// Wait until a request for this method can be processed, then continue.
    Wait(Method),
}

/// A call that may take long.
struct LongCall {
    method: Method,
    layout: &'static MethodLayout,
    seq: u32,
    body: Vec<u8>,
}

/// Serves one connection until it ends, on worker number `worker`. `_guard` is dropped at the end.
pub(super) async fn serve<E: Env, S: RpcService>(
    shared: Arc<ConnectionShared<E, S>>,
    worker: usize,
    mut stream: <E::Net as Net>::Stream,
    peer: String,
    _guard: impl Send,
) {
    let mut input = BytesMut::with_capacity(INPUT_BYTES);
    let mut output = Vec::new();
    let mut client = ConnectionClient::new(peer, shared.releases.clone());
    // A large request keeps its budget share until it is processed, a large response until it is
    // written.
    let mut share = None;
    let mut answer_share = None;
    // When the first part of the unfinished request was received.
    let mut unfinished_since: Option<Mono> = None;
    let mut answered = AnsweredCalls::default();
    loop {
        let read = match (input.is_empty(), shared.idle_timeout) {
            (true, None) => stream.read_buf(&mut input).await,
            (true, Some(limit)) => match deadline(&shared.env, limit, stream.read_buf(&mut input)).await {
                Ok(read) => read,
                // The server closes the connection, not the client.
                Err(_) => return,
            },
            (false, idle) => {
                let now = shared.env.now();
                let since = *unfinished_since.get_or_insert(now);
                let limit = PROGRESS_DEADLINE.saturating_sub(now.since(since));
                let limit = idle.unwrap_or(limit).min(limit);
                match deadline(&shared.env, limit, stream.read_buf(&mut input)).await {
                    Ok(read) => read,
                    Err(_) => return report_unfinished(&client.peer, input.len(), shared.env.now().since(since)),
                }
            }
        };
        if !matches!(read, Ok(1..)) {
            if matches!(read, Ok(0)) && input.is_empty() {
                client.end(shared.env.now());
            }
            return;
        }
        // When the buffered requests were received. Requests that arrive while an earlier one waits
        // count from the arrival of that one.
        let mut received_at = shared.env.now();
        client.read(received_at);
        loop {
            let buffered = input.len();
            let (next, receipt) = match answer_buffered(&shared, &mut input, &mut output, &mut answered, &mut client) {
                Ok(answered) => answered,
                Err(error) => return tracing::warn!(peer = client.peer, %error, "connection closed"),
            };
            let peer = &client.peer;
            if input.len() != buffered {
                unfinished_since = None;
            }
            if share.is_some() {
                let mut small = BytesMut::with_capacity(INPUT_BYTES);
                small.extend_from_slice(&input);
                input = small;
                // A long call has its own copy of the body, so it keeps its share of the budget.
                if !matches!(next, NextStep::RunLong(_)) {
                    share = None;
                }
            }
            // The calls may have changed the state even if this connection ends here.
            let storing = shared.service.commit(receipt);
            let is_ready = storing.is_none();
            if let Some(stored) = storing
                && !stored.await
            {
                return tracing::warn!(
                    %peer,
                    "connection closed without a response: this master no longer leads, or cannot store the changes. The client calls again"
                );
            }
            if !answered.is_empty() {
                // Reading the clock again would cost about 0.5 % of a small call. The service has
                // read it when it unlocked the state.
                let is_small = is_ready && output.len() < LATENCY_BYTES_MIN;
                let ready_at = if is_small { shared.env.recent() } else { shared.env.now() };
                answered.record(&shared.latency, worker, ready_at.since(received_at));
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
                NextStep::ReadLarge(whole) => {
                    let Some(permit) = shared.acquire_budget(whole).await else { return };
                    share = Some(permit);
                    match read_large(&shared.env, &mut stream, &mut input, whole).await {
                        Ok(true) => received_at = shared.env.now(),
                        Ok(false) => return report_unfinished(peer, input.len(), PROGRESS_DEADLINE),
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
                        Admitted::Proceed => client.is_admitted = true,
                        Admitted::Forward(to) => return forward(&shared.env, stream, &input, &to).await,
                        Admitted::Close => return,
                    }
                }
                NextStep::RunLong(call) => {
                    let method = call.method;
                    let answered = tokio::select! {
                        answered = run_long_call(&shared, call, client.peer.clone(), share.take()) => answered,
                        () = wait_for_close(&mut stream, &mut input) => return,
                    };
                    let Some((answer, decode_error, permit)) = answered else { return };
                    output = answer;
                    answer_share = permit;
                    match decode_error {
                        Some(error) => client.report(method, &error, shared.env.recent()),
                        None => shared.latency.record(worker, method, 1, shared.env.now().since(received_at)),
                    }
                }
            }
        }
        if output.capacity() > KEEP_BUFFER_BYTES {
            output = Vec::new();
        }
    }
}

/// Passes the received bytes, and all later ones in both directions, to another server until a side
/// closes its connection.
async fn forward<E: Env>(env: &E, mut stream: <E::Net as Net>::Stream, input: &[u8], to: &HostPort) {
    let Ok(Ok(mut other)) = deadline(env, FORWARD_DEADLINE, env.net().connect(to)).await else { return };
    if other.write_all(input).await.is_ok() {
        let _ = tokio::io::copy_bidirectional(&mut stream, &mut other).await;
    }
}

fn report_unfinished(peer: &str, bytes: usize, waited: Duration) {
    tracing::warn!(%peer, bytes, waited = %RoundedDuration(waited), "connection closed: the rest of a request did not arrive in time");
}

/// Reads until `input` contains `whole` bytes, in a buffer of exactly that size. Returns false if
/// the peer is too slow.
async fn read_large<E: Env>(
    env: &E,
    stream: &mut (impl AsyncRead + Unpin),
    input: &mut BytesMut,
    whole: usize,
) -> io::Result<bool> {
    let mut large = BytesMut::with_capacity(whole);
    large.extend_from_slice(input);
    *input = large;
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

/// Processes a long call on a blocking thread. Returns the response bytes, any error decoding the
/// request, and a large response's budget share; `None` if the service panicked or the changes
/// cannot be stored.
async fn run_long_call<'a, E: Env, S: RpcService>(
    shared: &'a ConnectionShared<E, S>,
    call: LongCall,
    peer: String,
    share: Option<SemaphorePermit<'a>>,
) -> Option<(Vec<u8>, Option<DecodeError>, Option<SemaphorePermit<'a>>)> {
    let permit = shared.long_calls.clone()?.acquire_owned().await.ok()?;
    let service = shared.service.clone();
    let env = shared.env.clone();
    let runtime = Handle::current();
    let work = move || {
        let mut output = Vec::new();
        let mut decode_error = None;
        let request = RpcCall { peer: &peer, method: call.method, layout: call.layout, body: &call.body };
        let answered = answer(&*service, &env, request, call.seq, &mut output);
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
    // The request's memory has been freed. A connection that waits for a share of the budget must
    // not keep another one, or two connections could wait for each other.
    drop(share);
    // This call keeps its slot until the budget has room for its response.
    let share = if output.len() > SMALL_BYTES_MAX { Some(shared.acquire_budget(output.len()).await?) } else { None };
    drop(permit);
    Some((output, decode_error, share))
}

/// Waits until the peer closes the connection. Meanwhile, received bytes are buffered up to a
/// limit; beyond this limit, closing the connection is no longer detected.
async fn wait_for_close(stream: &mut (impl AsyncRead + Unpin), input: &mut BytesMut) {
    while input.len() < INPUT_BYTES {
        if !matches!(stream.read_buf(input).await, Ok(1..)) {
            return;
        }
    }
    std::future::pending().await
}

/// Processes the complete requests in `input` in order, until a different step is required. Also
/// returns the merged receipt of their responses. `answered` receives the calls that were answered.
fn answer_buffered<E: Env, S: RpcService>(
    shared: &ConnectionShared<E, S>,
    input: &mut BytesMut,
    output: &mut Vec<u8>,
    answered: &mut AnsweredCalls,
    client: &mut ConnectionClient,
) -> Result<(NextStep, Receipt), FrameError> {
    let service = &*shared.service;
    let mut receipt = Receipt::default();
    while let Some(header) = next_header(input)? {
        let length = header.length as usize;
        let whole = REQUEST_HEADER_BYTES + length + header.attachment as usize;
        if input.len() < whole {
            if whole > SMALL_BYTES_MAX {
                return Ok((NextStep::ReadLarge(whole), receipt));
            }
            input.reserve(whole - input.len());
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
            // A request that has waited is not delayed again.
            Some(method) if !std::mem::take(&mut client.is_admitted) && !service.admits(method) => {
                return Ok((NextStep::Wait(method), receipt));
            }
            Some(method) => match client.layout(method, body, shared.env.recent()) {
                Err(error) => {
                    frame::put_error(output, header.seq, RpcErrc::INVALID_RPC_ARGUMENTS, INVALID_ARGUMENTS);
                    client.report(method, &error, shared.env.recent());
                }
                Ok(layout) if service.is_long(method) && shared.long_calls.is_some() => {
                    let call = LongCall { method, layout, seq: header.seq, body: body.to_vec() };
                    input.advance(whole);
                    return Ok((NextStep::RunLong(call), receipt));
                }
                Ok(layout) => {
                    let call = RpcCall { peer: &client.peer, method, layout, body };
                    match answer(service, &shared.env, call, header.seq, output) {
                        Ok(call) => {
                            answered.add(method);
                            receipt.merge(call);
                        }
                        Err(error) => client.report(method, &error, shared.env.recent()),
                    }
                }
            },
        }
        input.advance(whole);
        if output.len() >= WRITE_AT_BYTES {
            return Ok((NextStep::Write, receipt));
        }
    }
    Ok((NextStep::Read, receipt))
}

/// Appends the response to one request. If an error is returned, the appended response is an error
/// response.
fn answer(
    service: &impl RpcService,
    env: &impl Env,
    call: RpcCall<'_>,
    seq: u32,
    output: &mut Vec<u8>,
) -> Result<Receipt, DecodeError> {
    let answered = frame::put_response(output, seq, |out| match tracing::enabled!(Level::DEBUG) {
        false => service.answer(call, out),
        true => log::answer(service, env, call, out),
    });
    if answered.is_err() {
        frame::put_error(output, seq, RpcErrc::INVALID_RPC_ARGUMENTS, INVALID_ARGUMENTS);
    }
    answered
}

/// Returns the header at the start of `input` if it is complete. The first byte is enough to detect
/// a peer that uses another protocol.
fn next_header(input: &BytesMut) -> Result<Option<RequestHeader>, FrameError> {
    match input.first_chunk::<REQUEST_HEADER_BYTES>() {
        Some(bytes) => RequestHeader::decode(bytes).map(Some),
        None => match input.first() {
            Some(&found) if found != frame::MAGIC => Err(FrameError::Magic { found }),
            _ => Ok(None),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use crate::rpc::{AdmissionWait, CommitWait, RpcServer};
    use mcctl_sys::env::RealEnv;
    use mcctl_wire::Release;
    use mcctl_wire::pack::DecodeFault;
    use std::pin::pin;
    use std::sync::Mutex;

    const ANSWER_BYTES: usize = 3 * UNIT_BYTES;

    /// Returns responses of [`ANSWER_BYTES`] bytes.
    struct LargeAnswers;

    impl RpcService for LargeAnswers {
        fn answer(&self, _: RpcCall<'_>, out: &mut Vec<u8>) -> Result<Receipt, DecodeError> {
            out.resize(out.len() + ANSWER_BYTES, 0);
            Ok(Receipt::default())
        }
    }

    /// Each call makes a change, whose number is the last byte of its body. An empty body cannot
    /// be decoded.
    #[derive(Default)]
    struct NumberedChanges {
        committed: Mutex<Vec<Receipt>>,
    }

    impl RpcService for NumberedChanges {
        fn answer(&self, call: RpcCall<'_>, _: &mut Vec<u8>) -> Result<Receipt, DecodeError> {
            let last = call.body.last().copied().map(u64::from).ok_or(DecodeFault::Short { needed: 1, left: 0 })?;
            Ok(Receipt { term: 1, last, ..Receipt::default() })
        }

        fn commit(&self, receipt: Receipt) -> Option<CommitWait<'_>> {
            self.committed.lock().unwrap().push(receipt);
            None
        }
    }

    fn layout(method: Method) -> &'static MethodLayout {
        method.layout(Release::LATEST).unwrap()
    }

    fn config(threads: usize) -> ServerConfig {
        let listen = HostPort::new("127.0.0.1", 0);
        ServerConfig { listen, threads, idle_timeout: None, client_release: Release::LATEST }
    }

    /// A request with these arguments; without any, one that cannot be decoded.
    fn request(method: Method, arguments: &[u8]) -> Vec<u8> {
        let hash = layout(method).request().unwrap().hash().to_le_bytes();
        let body = if arguments.is_empty() { Vec::new() } else { [&hash, arguments].concat() };
        let header = RequestHeader { seq: 1, function_id: method.id(), length: body.len() as u32, attachment: 0 };
        [&header.encode()[..], &body].concat()
    }

    #[test]
    fn one_receipt_covers_all_requests_of_a_buffer() {
        let (_stop, stopping) = watch::channel(false);
        let shared = ConnectionShared::new(RealEnv::new(), Arc::new(NumberedChanges::default()), &config(0), stopping);
        let bodies: [&[u8]; 4] = [&[3], &[5], &[], &[4]];
        let mut input: BytesMut = bodies.iter().flat_map(|body| request(Method::PutEnd, body)).collect();
        let mut client = ConnectionClient::new("a:1".to_owned(), shared.releases.clone());
        let (mut output, mut answered) = (Vec::new(), AnsweredCalls::default());
        let mut answer = || answer_buffered(&shared, &mut input, &mut output, &mut answered, &mut client).unwrap().1;
        assert_eq!(answer(), Receipt { term: 1, last: 5, ..Receipt::default() });
        assert_eq!(answer(), Receipt::default(), "a receipt covers its own requests only");
    }

    /// Each call is stored after this time.
    const STORED_AFTER: Duration = Duration::from_millis(20);

    /// Its calls wait until they are stored. An empty body cannot be decoded.
    struct SlowStorage;

    impl RpcService for SlowStorage {
        fn answer(&self, call: RpcCall<'_>, _: &mut Vec<u8>) -> Result<Receipt, DecodeError> {
            let decoded = call.body.last().map(|_| Receipt::default());
            decoded.ok_or_else(|| DecodeFault::Short { needed: 1, left: 0 }.into())
        }

        fn commit(&self, _: Receipt) -> Option<CommitWait<'_>> {
            Some(Box::pin(async {
                RealEnv::new().sleep(STORED_AFTER).await;
                true
            }))
        }

        fn is_long(&self, method: Method) -> bool {
            method == Method::RemoveAll
        }
    }

    #[tokio::test]
    async fn a_latency_includes_the_wait_for_storage() {
        for threads in [0, 1] {
            let listen = HostPort::new("127.0.0.1", 0);
            let config = ServerConfig { listen: listen.clone(), ..config(threads) };
            let server = RpcServer::start(config, RealEnv::new(), Arc::new(SlowStorage)).await.unwrap();
            assert!(server.latency().by_method().is_empty());
            let at = HostPort { port: server.port(), ..listen };
            let mut stream = RealEnv::new().net().connect(&at).await.unwrap();
            let calls = [(Method::Ping, "b"), (Method::Ping, "b"), (Method::RemoveAll, "b"), (Method::ExistKey, "")];
            let bytes: Vec<u8> = calls.iter().flat_map(|(method, body)| request(*method, body.as_bytes())).collect();
            stream.write_all(&bytes).await.unwrap();
            let mut answers = BytesMut::new();
            while answers.len() < calls.len() * frame::RESPONSE_HEADER_BYTES {
                assert!(stream.read_buf(&mut answers).await.unwrap() > 0, "the connection stays open");
            }
            let found = server.latency().by_method();
            let counts: Vec<_> = found.iter().map(|(method, all)| (*method, all.count())).collect();
            assert_eq!(
                counts,
                [(Method::Ping, 2), (Method::RemoveAll, 1)],
                "a call that cannot be decoded is left out"
            );
            for (method, all) in found {
                let least = STORED_AFTER * u32::try_from(all.count()).unwrap();
                assert!(all.sum() >= least && all.sum() < PROGRESS_DEADLINE, "{method:?}: {:?}", all.sum());
            }
            server.stop().await;
        }
    }

    /// Each of its calls waits for its admission.
    struct DelayedCalls;

    impl RpcService for DelayedCalls {
        fn answer(&self, _: RpcCall<'_>, _: &mut Vec<u8>) -> Result<Receipt, DecodeError> {
            Ok(Receipt::default())
        }

        fn admits(&self, _: Method) -> bool {
            false
        }

        fn admission(&self, _: Method) -> AdmissionWait<'_> {
            Box::pin(async { Admitted::Proceed })
        }
    }

    #[tokio::test]
    async fn a_request_that_was_admitted_after_a_wait_does_not_wait_again() {
        let listen = HostPort::new("127.0.0.1", 0);
        let config = ServerConfig { listen: listen.clone(), ..config(1) };
        let server = RpcServer::start(config, RealEnv::new(), Arc::new(DelayedCalls)).await.unwrap();
        let at = HostPort { port: server.port(), ..listen };
        let mut stream = RealEnv::new().net().connect(&at).await.unwrap();
        let bytes: Vec<u8> = (0..3).flat_map(|_| request(Method::Ping, b"b")).collect();
        stream.write_all(&bytes).await.unwrap();
        let mut answers = BytesMut::new();
        while answers.len() < 3 * frame::RESPONSE_HEADER_BYTES {
            let read = deadline(&RealEnv::new(), Duration::from_secs(10), stream.read_buf(&mut answers)).await;
            assert!(read.expect("a response").unwrap() > 0);
        }
        server.stop().await;
    }

    #[tokio::test]
    async fn a_long_call_commits_its_own_receipt() {
        let (_stop, stopping) = watch::channel(false);
        let shared = ConnectionShared::new(RealEnv::new(), Arc::new(NumberedChanges::default()), &config(1), stopping);
        for body in [vec![7], vec![]] {
            let call = LongCall { method: Method::RemoveAll, layout: layout(Method::RemoveAll), seq: 1, body };
            assert!(run_long_call(&shared, call, String::new(), None).await.is_some());
        }
        let committed = shared.service.committed.lock().unwrap();
        assert_eq!(*committed, [Receipt { term: 1, last: 7, ..Receipt::default() }, Receipt::default()]);
    }

    #[tokio::test]
    async fn large_answers_to_long_calls_share_the_budget() {
        let (_stop, stopping) = watch::channel(false);
        let shared = ConnectionShared::new(RealEnv::new(), Arc::new(LargeAnswers), &config(1), stopping);
        // The budget is large enough for one response, but not for two.
        shared.unfinished.forget_permits(UNFINISHED_BYTES_MAX / UNIT_BYTES - 6);
        let ask = || {
            run_long_call(
                &shared,
                LongCall { method: Method::RemoveAll, layout: layout(Method::RemoveAll), seq: 1, body: Vec::new() },
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
