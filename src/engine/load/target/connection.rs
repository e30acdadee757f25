//! An HTTP/1.1 connection, which carries one exchange at a time.
//!
//! Each token costs one system call and one pass over its bytes. Bytes are read into a buffer
//! shared by all exchanges on a thread, and are split into frames there. Only an incomplete line is
//! kept until the next read. A single timer per request enforces both time limits.

use std::cell::RefCell;
use std::future::poll_fn;
use std::io::{self, IoSlice, Write};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::header::{ACCEPT, CONTENT_LENGTH, CONTENT_TYPE, HOST, HeaderName};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::answer::TokenArrival;
use crate::target::body::{EncodedRequest, ROUTING_KEY};
use crate::target::http1::{Piece, ResponseParser};
use crate::target::response::ResponseAccumulator;
use crate::target::timestamped::StreamTimes;
use crate::target::wire::WireStream;
use crate::target::{ExchangeOutcome, LoadTarget};
use mcctl_base::Mono;
use mcctl_sys::env::Env;

const READ_BYTES: usize = 64 << 10;

thread_local! {
    /// Read buffer. Its content is only valid until the next read.
    static SCRATCH: RefCell<Box<[u8]>> = RefCell::new(vec![0; READ_BYTES].into());
}

/// An open HTTP/1.1 connection and its transfer times.
pub(super) struct Http1Connection<E: Env + Unpin> {
    env: E,
    wire: WireStream<E>,
    stamps: Arc<StreamTimes>,
    /// Whether it has carried an exchange.
    used: bool,
    /// Whether it can carry another exchange.
    open: bool,
}

/// How an exchange ended.
pub(super) enum ExchangeEnd {
    /// End time and outcome. The outcome is [`ExchangeOutcome::Ok`] if the response was complete.
    Ended(Mono, ExchangeOutcome),
    /// The idle connection was closed before the request had been fully written. The server has not
    /// received the request.
    Unsent,
}

/// State of an exchange while its request is written and its response is read.
struct ExchangeState<'a, F> {
    parts: [&'a [u8]; 2],
    written: usize,
    /// Whether the kernel has accepted the entire request.
    sent: bool,
    failed: Option<io::Error>,
    answering: ResponseParser,
    answered: bool,
    keeps: bool,
    response: &'a mut ResponseAccumulator<F>,
}

impl<E: Env + Unpin> Http1Connection<E> {
    pub(super) fn new(env: E, wire: WireStream<E>, stamps: Arc<StreamTimes>) -> Http1Connection<E> {
        Http1Connection { env, wire, stamps, used: false, open: true }
    }

    /// Whether the connection can carry another request.
    pub(super) fn is_open(&mut self) -> bool {
        self.open && self.wire.is_quiet()
    }

    /// Sends `request` and passes the response to `response`. For each read, `delays` records how
    /// long the bytes had been waiting in the kernel.
    pub(super) async fn exchange<F: FnMut(TokenArrival)>(
        &mut self,
        target: &LoadTarget,
        request: &EncodedRequest,
        response: &mut ResponseAccumulator<F>,
        mut delays: impl FnMut(Duration),
    ) -> ExchangeEnd {
        let head = head(target, request);
        let Http1Connection { env, wire, stamps, used, open } = self;
        // An early return leaves the connection unusable.
        *open = false;
        let reused = std::mem::replace(used, true);
        let mut state = ExchangeState {
            parts: [&head, &request.body],
            written: 0,
            sent: false,
            failed: None,
            answering: ResponseParser::new(),
            answered: false,
            keeps: false,
            response,
        };
        let begun = env.now();
        let over = begun + target.limits.whole;
        let mut last = begun;
        let mut ring = over.min(begun + target.limits.silence);
        let mut alarm = pin!(env.sleep(ring.since(begun)));
        let end = poll_fn(|cx| {
            state.write(wire, stamps, cx, &mut last);
            let mut idle = true;
            loop {
                match state.read(wire, stamps, cx) {
                    Poll::Pending => break,
                    Poll::Ready(Some(outcome)) => return Poll::Ready((outcome, stamps.read())),
                    Poll::Ready(None) => {
                        idle = false;
                        last = stamps.read();
                        delays(last.since(stamps.arrived()));
                        // As long as the server does not pause, the timer is not polled.
                        if last >= over {
                            return Poll::Ready((ExchangeOutcome::TimedOut(target.limits.whole), last));
                        }
                    }
                }
            }
            if let Some(error) = &state.failed {
                return Poll::Ready((ExchangeOutcome::Broken(error.to_string()), stamps.wrote()));
            }
            // If a timer fires at the same time as a read, there is only one wakeup.
            while (idle || last >= ring) && alarm.as_mut().poll(cx).is_ready() {
                let now = env.now();
                let limits = [(over, target.limits.whole), (last + target.limits.silence, target.limits.silence)];
                if let Some((_, limit)) = limits.iter().find(|(at, _)| *at <= now) {
                    return Poll::Ready((ExchangeOutcome::TimedOut(*limit), now));
                }
                ring = limits[0].0.min(limits[1].0);
                alarm.set(env.sleep(ring.since(now)));
                idle = true;
            }
            Poll::Pending
        });
        let (outcome, at) = end.await;
        if matches!(outcome, ExchangeOutcome::Broken(_)) && reused && !state.sent && !state.answered {
            return ExchangeEnd::Unsent;
        }
        *open = outcome == ExchangeOutcome::Ok && state.keeps && state.sent;
        // If the response ended when the connection closed, `at` is the time of that last read.
        ExchangeEnd::Ended(at, outcome)
    }
}

impl<F: FnMut(TokenArrival)> ExchangeState<'_, F> {
    /// Writes as many bytes as the kernel accepts.
    fn write<E: Env + Unpin>(
        &mut self,
        wire: &mut WireStream<E>,
        stamps: &StreamTimes,
        cx: &mut Context<'_>,
        last: &mut Mono,
    ) {
        let [head, body] = self.parts;
        while !self.sent && self.failed.is_none() {
            let left = head.len() + body.len() - self.written;
            let done = if left > 0 {
                let rest_of_head = &head[self.written.min(head.len())..];
                let rest_of_body = &body[self.written.saturating_sub(head.len())..];
                let parts = [IoSlice::new(rest_of_head), IoSlice::new(rest_of_body)];
                Pin::new(&mut *wire).poll_write_vectored(cx, if rest_of_head.is_empty() { &parts[1..] } else { &parts })
            } else {
                // TLS buffers records that the kernel has not accepted yet.
                Pin::new(&mut *wire).poll_flush(cx).map_ok(|()| 0)
            };
            match done {
                Poll::Pending => return,
                Poll::Ready(Ok(0)) if left > 0 => self.failed = Some(io::ErrorKind::WriteZero.into()),
                Poll::Ready(Ok(count)) => {
                    (self.written, *last) = (self.written + count, stamps.wrote());
                    if left == 0 {
                        self.sent = true;
                        self.response.wrote(stamps.wrote());
                    }
                }
                Poll::Ready(Err(error)) => self.failed = Some(error),
            }
        }
    }

    /// Reads available bytes. Returns the outcome if the response has ended, or `None` if bytes
    /// arrived.
    fn read<E: Env + Unpin>(
        &mut self,
        wire: &mut WireStream<E>,
        stamps: &StreamTimes,
        cx: &mut Context<'_>,
    ) -> Poll<Option<ExchangeOutcome>> {
        SCRATCH.with_borrow_mut(|scratch| {
            let mut buf = ReadBuf::new(scratch);
            match Pin::new(&mut *wire).poll_read(cx, &mut buf) {
                Poll::Pending => Poll::Pending,
                Poll::Ready(Err(error)) => Poll::Ready(Some(self.broken(&error.to_string()))),
                Poll::Ready(Ok(())) if buf.filled().is_empty() => Poll::Ready(Some(match self.answering.ends() {
                    true => ExchangeOutcome::Ok,
                    false => self.broken("the server closed the connection"),
                })),
                Poll::Ready(Ok(())) => Poll::Ready(self.feed(buf.filled(), stamps.arrived())),
            }
        })
    }

    fn broken(&mut self, why: &str) -> ExchangeOutcome {
        let failed = self.failed.take().map(|error| error.to_string());
        ExchangeOutcome::Broken(failed.unwrap_or_else(|| why.to_owned()))
    }

    /// Processes bytes of the response.
    fn feed(&mut self, mut bytes: &[u8], at: Mono) -> Option<ExchangeOutcome> {
        self.answered = true;
        loop {
            let (piece, used) = match self.answering.take(bytes) {
                Ok(taken) => taken,
                Err(malformed) => return Some(ExchangeOutcome::Broken(malformed.to_string())),
            };
            bytes = &bytes[used..];
            match piece {
                Piece::More => return None,
                Piece::End => {
                    // Bytes after the end of the response do not belong to any request.
                    self.keeps &= bytes.is_empty();
                    return Some(ExchangeOutcome::Ok);
                }
                Piece::Head(head) => {
                    self.keeps = head.keeps;
                    self.response.head(head);
                }
                Piece::Data(data) => match self.response.data(data, at) {
                    Ok(true) => {}
                    Ok(false) => {
                        self.keeps = false;
                        return Some(ExchangeOutcome::Ok);
                    }
                    Err(long) => return Some(ExchangeOutcome::Broken(long.to_string())),
                },
            }
        }
    }
}

/// Builds the request head. User-supplied headers replace the default ones, except for the content
/// length.
fn head(target: &LoadTarget, request: &EncodedRequest) -> Vec<u8> {
    let length = request.body.len();
    let mut head = Vec::with_capacity(512);
    let ours: [(HeaderName, &str); 3] = [
        (HOST, &target.authority()),
        (CONTENT_TYPE, "application/json"),
        (ACCEPT, "text/event-stream, application/json"),
    ];
    let write = |head: &mut Vec<u8>, name: &HeaderName, value: &[u8]| {
        for part in [name.as_str().as_bytes(), b": ", value, b"\r\n"] {
            head.extend_from_slice(part);
        }
    };
    for part in [b"POST ", target.path.as_bytes(), b" HTTP/1.1\r\n"] {
        head.extend_from_slice(part);
    }
    for (name, value) in ours.iter().filter(|(name, _)| !target.headers.contains_key(name)) {
        write(&mut head, name, value.as_bytes());
    }
    for (name, value) in target.headers.iter().filter(|(name, _)| **name != CONTENT_LENGTH) {
        write(&mut head, name, value.as_bytes());
    }
    if let Some(key) = &request.routing_key {
        write(&mut head, &ROUTING_KEY, key.as_bytes());
    }
    write!(head, "content-length: {length}\r\n\r\n").expect("writing to a vector succeeds");
    head
}
