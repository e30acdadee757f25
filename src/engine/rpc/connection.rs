//! One connection: its requests are read, answered in their order, and the answers written.
//!
//! Small requests have no timer, no lock and no allocation of their own. A request that is large and not whole gets a buffer of its size
//! once there is room for it in a budget that all connections share. A long call ([`Service::is_long`]) runs on a thread of its own.

use std::collections::HashSet;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::sync::{Semaphore, SemaphorePermit, watch};
use tracing::Level;

use crate::engine::env::{Env, Net, deadline};
use crate::engine::rpc::log;
use crate::engine::rpc::server::Service;
use crate::engine::wire::frame::{
    self, FrameError, REQUEST_BODY_BYTES_MAX, REQUEST_HEADER_BYTES, RequestHeader, RpcErrc,
};
use crate::engine::wire::{DecodeError, Method};

/// Bytes of large unfinished requests and of large answers to long calls that their peers have not taken, all connections together. Messages
/// up to [`SMALL_BYTES_MAX`] are not counted; further large ones wait.
pub const UNFINISHED_BYTES_MAX: usize = 256 << 20;
/// Requests up to this size are not counted: a connection may hold as much of an unfinished one.
pub const SMALL_BYTES_MAX: usize = 64 << 10;
/// A peer that has sent a part of a request must go on within this time: with any byte of a small request, with
/// [`PROGRESS_BYTES`] (or the rest) of a large one.
pub const PROGRESS_DEADLINE: Duration = Duration::from_secs(30);
/// What a large request must grow by within [`PROGRESS_DEADLINE`]: the largest is whole, or dropped, after two minutes.
pub const PROGRESS_BYTES: usize = 16 << 20;
/// Long calls that run at once; further ones wait.
pub const LONG_CALLS_MAX: usize = 2;

/// The unit of the budget.
const UNIT_BYTES: usize = 64 << 10;
/// Answers are written when this many bytes have gathered, even if more requests wait.
const WRITE_AT_BYTES: usize = 256 << 10;
/// An output buffer that grew beyond this for one large answer is given back after it.
const KEEP_BUFFER_BYTES: usize = 256 << 10;
/// What a connection's input buffer starts with.
const INPUT_BYTES: usize = 16 << 10;
/// A peer that takes no answer for this long is dropped.
const WRITE_DEADLINE: Duration = Duration::from_secs(30);

// The largest request fits the budget, so that it is only ever a question of time.
const _: () = assert!(UNFINISHED_BYTES_MAX > REQUEST_BODY_BYTES_MAX as usize + REQUEST_HEADER_BYTES);

/// What the connections of one server share.
pub(super) struct Shared<E, S> {
    pub env: E,
    pub service: Arc<S>,
    pub idle_timeout: Option<Duration>,
    pub stopping: watch::Receiver<bool>,
    /// Room for large messages, in units of [`UNIT_BYTES`].
    pub unfinished: Semaphore,
    /// Turns for long calls. `None` where connections have no threads (simulations): long calls are answered like all others there.
    pub long_calls: Option<Arc<Semaphore>>,
}

impl<E, S> Shared<E, S> {
    pub fn new(
        env: E,
        service: Arc<S>,
        idle_timeout: Option<Duration>,
        has_threads: bool,
        stopping: watch::Receiver<bool>,
    ) -> Shared<E, S> {
        let unfinished = Semaphore::new(UNFINISHED_BYTES_MAX / UNIT_BYTES);
        let long_calls = has_threads.then(|| Arc::new(Semaphore::new(LONG_CALLS_MAX)));
        Shared { env, service, idle_timeout, stopping, unfinished, long_calls }
    }
}

impl<E, S> Shared<E, S> {
    /// Wait for room for a large message; one that is larger than all of it has the room for itself.
    async fn room(&self, bytes: usize) -> Option<SemaphorePermit<'_>> {
        let units = bytes.min(UNFINISHED_BYTES_MAX).div_ceil(UNIT_BYTES);
        // The semaphore is never closed.
        self.unfinished.acquire_many(u32::try_from(units).unwrap_or(u32::MAX)).await.ok()
    }
}

/// What a connection does next.
enum Next {
    /// Read: no whole request is left.
    Read,
    /// Read the rest of a large request, of which this many bytes are the whole.
    ReadLarge(usize),
    /// Write what has gathered, then go on.
    Write,
    /// Answer this apart, then go on.
    Apart(LongCall),
}

/// A call that takes long.
struct LongCall {
    method: Method,
    seq: u32,
    body: Vec<u8>,
}

/// Serve one connection until it ends; `_ticket` is held as long.
pub(super) async fn serve<E: Env, S: Service>(
    shared: Arc<Shared<E, S>>,
    mut stream: <E::Net as Net>::Stream,
    peer: String,
    _ticket: impl Send,
) {
    let mut input = BytesMut::with_capacity(INPUT_BYTES);
    let mut output = Vec::new();
    let mut misfits = Misfits::default();
    // The room of a large request, from before it is read until it is answered; and of a large answer, until it is written.
    let (mut room, mut answer_room) = (None, None);
    loop {
        let read = match (input.is_empty(), shared.idle_timeout) {
            (true, None) => stream.read_buf(&mut input).await,
            (true, Some(limit)) => deadline(&shared.env, limit, stream.read_buf(&mut input)).await.unwrap_or(Ok(0)),
            (false, idle) => {
                let limit = idle.unwrap_or(PROGRESS_DEADLINE).min(PROGRESS_DEADLINE);
                match deadline(&shared.env, limit, stream.read_buf(&mut input)).await {
                    Ok(read) => read,
                    Err(_) => return report_unfinished(&peer, input.len(), limit),
                }
            }
        };
        if !matches!(read, Ok(1..)) {
            return;
        }
        loop {
            let next = match answer_waiting(&shared, &mut input, &mut output, &mut misfits, &peer) {
                Ok(next) => next,
                Err(error) => return tracing::warn!(%peer, %error, "connection closed"),
            };
            if room.is_some() {
                let mut small = BytesMut::with_capacity(INPUT_BYTES);
                small.extend_from_slice(&input);
                input = small;
                // A call that is answered apart has a copy of its body, and so keeps its room.
                if !matches!(next, Next::Apart(_)) {
                    room = None;
                }
            }
            if !output.is_empty() {
                match deadline(&shared.env, WRITE_DEADLINE, stream.write_all(&output)).await {
                    Ok(Ok(())) => {
                        output.clear();
                        if answer_room.take().is_some() {
                            output = Vec::new();
                        }
                    }
                    Ok(Err(_)) => return,
                    Err(_) => return tracing::warn!(%peer, "connection closed: the peer does not read its answers"),
                }
            }
            match next {
                Next::Read => break,
                Next::ReadLarge(whole) => {
                    let Some(permit) = shared.room(whole).await else { return };
                    room = Some(permit);
                    match read_large(&shared.env, &mut stream, &mut input, whole).await {
                        Ok(true) => {}
                        Ok(false) => return report_unfinished(&peer, input.len(), PROGRESS_DEADLINE),
                        Err(_) => return,
                    }
                }
                Next::Write => tokio::task::yield_now().await,
                Next::Apart(call) => {
                    let method = call.method;
                    let answered = tokio::select! {
                        answered = answer_apart(&shared, call, peer.clone(), room.take()) => answered,
                        () = until_gone(&mut stream, &mut input) => return,
                    };
                    let Some((answer, misfit, permit)) = answered else { return };
                    (output, answer_room) = (answer, permit);
                    if let Some(error) = misfit {
                        misfits.report(&peer, method, &error);
                    }
                }
            }
        }
        if output.capacity() > KEEP_BUFFER_BYTES {
            output = Vec::new();
        }
    }
}

fn report_unfinished(peer: &str, bytes: usize, limit: Duration) {
    tracing::warn!(%peer, bytes, ?limit, "connection closed: the rest of a request did not arrive in time");
}

/// Read until `input` holds `whole` bytes, in a buffer of just that size. False when the peer is too slow.
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
                // The buffer is not full, so it does not grow.
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

/// Answer on a thread that may block, when it is this call's turn: the answer's bytes, why the request did not fit the method, and the room
/// of a large answer. `None` when the answer cannot be made.
async fn answer_apart<'a, E: Env, S: Service>(
    shared: &'a Shared<E, S>,
    call: LongCall,
    peer: String,
    room: Option<SemaphorePermit<'a>>,
) -> Option<(Vec<u8>, Option<DecodeError>, Option<SemaphorePermit<'a>>)> {
    let turn = shared.long_calls.clone()?.acquire_owned().await.ok()?;
    let (service, env) = (shared.service.clone(), shared.env.clone());
    let work = move || {
        let mut output = Vec::new();
        let misfit = answer(&*service, &env, &peer, call.method, call.seq, &call.body, &mut output).err();
        (output, misfit, turn)
    };
    // A panic there ends this connection, as one here would.
    let (output, misfit, turn) = tokio::task::spawn_blocking(work).await.ok()?;
    // The request is gone. A connection that waits for room holds none, or two could wait for each other.
    drop(room);
    // Until there is room for this answer, no other is made in its place.
    let room = if output.len() > SMALL_BYTES_MAX { Some(shared.room(output.len()).await?) } else { None };
    drop(turn);
    Some((output, misfit, room))
}

/// Wait until the peer closes the connection. What it sends meanwhile is kept, up to a bound; beyond that it is not watched.
async fn until_gone(stream: &mut (impl AsyncRead + Unpin), input: &mut BytesMut) {
    while input.len() < INPUT_BYTES {
        if !matches!(stream.read_buf(input).await, Ok(1..)) {
            return;
        }
    }
    std::future::pending().await
}

/// Answer the requests that are whole in `input`, one after the other, until something else has to come first.
fn answer_waiting<E: Env, S: Service>(
    shared: &Shared<E, S>,
    input: &mut BytesMut,
    output: &mut Vec<u8>,
    misfits: &mut Misfits,
    peer: &str,
) -> Result<Next, FrameError> {
    let service = &*shared.service;
    while let Some(header) = next_header(input)? {
        let length = header.length as usize;
        let whole = REQUEST_HEADER_BYTES + length + header.attachment as usize;
        if input.len() < whole {
            if whole > SMALL_BYTES_MAX {
                return Ok(Next::ReadLarge(whole));
            }
            input.reserve(whole - input.len());
            return Ok(Next::Read);
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
            Some(method) if service.is_long(method) && shared.long_calls.is_some() => {
                let call = LongCall { method, seq: header.seq, body: body.to_vec() };
                input.advance(whole);
                return Ok(Next::Apart(call));
            }
            Some(method) => {
                if let Err(error) = answer(service, &shared.env, peer, method, header.seq, body, output) {
                    misfits.report(peer, method, &error);
                }
            }
        }
        input.advance(whole);
        if output.len() >= WRITE_AT_BYTES {
            return Ok(Next::Write);
        }
    }
    Ok(Next::Read)
}

/// Append the answer to one request; the error is why the answer is a refusal.
fn answer(
    service: &impl Service,
    env: &impl Env,
    peer: &str,
    method: Method,
    seq: u32,
    body: &[u8],
    output: &mut Vec<u8>,
) -> Result<(), DecodeError> {
    let answered = frame::put_response(output, seq, |out| match tracing::enabled!(Level::DEBUG) {
        false => service.answer(peer, method, body, out),
        true => log::answer(service, env, peer, method, body, out),
    });
    if answered.is_err() {
        frame::put_error(output, seq, RpcErrc::INVALID_RPC_ARGUMENTS, "invalid rpc arg");
    }
    answered
}

/// The header at the front of `input`, if all of it has arrived. The first byte alone shows that the peer does not speak RPC.
fn next_header(input: &BytesMut) -> Result<Option<RequestHeader>, FrameError> {
    match input.first_chunk::<REQUEST_HEADER_BYTES>() {
        Some(bytes) => RequestHeader::decode(bytes).map(Some),
        None => match input.first() {
            Some(&found) if found != frame::MAGIC => Err(FrameError::Magic { found }),
            _ => Ok(None),
        },
    }
}

/// A client of another release fails in the same way on every call: each method is reported once per connection.
#[derive(Default)]
struct Misfits(HashSet<Method>);

impl Misfits {
    fn report(&mut self, peer: &str, method: Method, error: &DecodeError) {
        if self.0.insert(method) {
            tracing::warn!(%peer, method = method.name(), %error, "a request does not fit the method");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::env::RealEnv;
    use std::pin::pin;

    const ANSWER_BYTES: usize = 3 * UNIT_BYTES;

    /// Answers are of [`ANSWER_BYTES`].
    struct Large;

    impl Service for Large {
        fn answer(&self, _: &str, _: Method, _: &[u8], out: &mut Vec<u8>) -> Result<(), DecodeError> {
            out.resize(out.len() + ANSWER_BYTES, 0);
            Ok(())
        }
    }

    #[tokio::test]
    async fn large_answers_to_long_calls_share_the_budget() {
        let (_stop, stopping) = watch::channel(false);
        let shared = Shared::new(RealEnv::new(), Arc::new(Large), None, true, stopping);
        // Room for one answer, not for two.
        shared.unfinished.forget_permits(UNFINISHED_BYTES_MAX / UNIT_BYTES - 6);
        let ask = || {
            answer_apart(&shared, LongCall { method: Method::RemoveAll, seq: 1, body: Vec::new() }, String::new(), None)
        };
        let (answer, _, room) = ask().await.expect("an answer");
        assert!(answer.len() > ANSWER_BYTES && room.is_some());
        let mut second = pin!(ask());
        let early = deadline(&shared.env, Duration::from_millis(200), second.as_mut()).await;
        assert!(early.is_err(), "the first answer is not written yet");
        drop(room);
        assert!(second.await.is_some());
        assert_eq!(shared.long_calls.as_ref().map(|turns| turns.available_permits()), Some(LONG_CALLS_MAX));
    }
}
