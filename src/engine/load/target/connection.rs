//! One connection of HTTP/1.1, and one exchange after the other over it.
//!
//! A token costs one system call and one pass over its bytes: they are read into a buffer that all exchanges of a thread share, cut
//! into frames there, and only the beginning of a line is kept until the next read. One timer a request watches over both limits.

use std::cell::RefCell;
use std::future::poll_fn;
use std::io::{self, IoSlice, Write};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::header::{ACCEPT, CONTENT_LENGTH, CONTENT_TYPE, HOST, HeaderName};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::engine::base::Mono;
use crate::engine::env::Env;
use crate::engine::load::answer::Arrival;
use crate::engine::load::target::body::{Asking, ROUTING_KEY};
use crate::engine::load::target::hearing::Hearing;
use crate::engine::load::target::http1::{Answering, Piece};
use crate::engine::load::target::stamped::Stamps;
use crate::engine::load::target::wire::Wire;
use crate::engine::load::target::{Outcome, Target};

/// Bytes of one read.
const READ_BYTES: usize = 64 << 10;

thread_local! {
    /// Nothing stays in it from one read to the next.
    static SCRATCH: RefCell<Box<[u8]>> = RefCell::new(vec![0; READ_BYTES].into());
}

/// An open connection.
pub(super) struct Connection<E: Env + Unpin> {
    env: E,
    wire: Wire<E>,
    stamps: Arc<Stamps>,
    /// Has it carried an exchange?
    used: bool,
    /// Can it take another one?
    open: bool,
}

/// How an exchange ended.
pub(super) enum End {
    /// When, and how; [`Outcome::Ok`] where the answer came whole.
    Ended(Mono, Outcome),
    /// The connection had been closed while it was idle, before the request was written whole: the server knows nothing of it.
    Unsent,
}

/// A request on its way out, and its answer on its way in.
struct Talk<'a, F> {
    parts: [&'a [u8]; 2],
    written: usize,
    /// All of it is with the system.
    sent: bool,
    failed: Option<io::Error>,
    answering: Answering,
    answered: bool,
    keeps: bool,
    hearing: &'a mut Hearing<F>,
}

impl<E: Env + Unpin> Connection<E> {
    pub(super) fn new(env: E, wire: Wire<E>, stamps: Arc<Stamps>) -> Connection<E> {
        Connection { env, wire, stamps, used: false, open: true }
    }

    /// Can it take another request?
    pub(super) fn is_open(&mut self) -> bool {
        self.open && self.wire.is_quiet()
    }

    /// Send `asking`, and have `hearing` hear the answer; `delays` hears how long bytes had lain in the system when they were read.
    pub(super) async fn exchange<F: FnMut(Arrival)>(
        &mut self,
        target: &Target,
        asking: &Asking,
        hearing: &mut Hearing<F>,
        mut delays: impl FnMut(Duration),
    ) -> End {
        let head = head(target, asking);
        let Connection { env, wire, stamps, used, open } = self;
        // Whatever ends this early leaves a connection that nobody can use.
        *open = false;
        let reused = std::mem::replace(used, true);
        let mut talk = Talk {
            parts: [&head, &asking.body],
            written: 0,
            sent: false,
            failed: None,
            answering: Answering::new(),
            answered: false,
            keeps: false,
            hearing,
        };
        let begun = env.now();
        let over = begun + target.limits.whole;
        let mut last = begun;
        let mut ring = over.min(begun + target.limits.silence);
        let mut alarm = pin!(env.sleep(ring.since(begun)));
        let end = poll_fn(|cx| {
            talk.write(wire, stamps, cx, &mut last);
            let mut idle = true;
            loop {
                match talk.read(wire, stamps, cx) {
                    Poll::Pending => break,
                    Poll::Ready(Some(outcome)) => return Poll::Ready((outcome, stamps.read())),
                    Poll::Ready(None) => {
                        (idle, last) = (false, stamps.read());
                        delays(last.since(stamps.arrived()));
                        // A server that never stops talking keeps the alarm from being asked.
                        if last >= over {
                            return Poll::Ready((Outcome::TooSlow(target.limits.whole), last));
                        }
                    }
                }
            }
            if let Some(error) = &talk.failed {
                return Poll::Ready((Outcome::Broken(error.to_string()), stamps.wrote()));
            }
            // An alarm that rang together with bytes wakes once for both.
            while (idle || last >= ring) && alarm.as_mut().poll(cx).is_ready() {
                let now = env.now();
                let limits = [(over, target.limits.whole), (last + target.limits.silence, target.limits.silence)];
                if let Some((_, limit)) = limits.iter().find(|(at, _)| *at <= now) {
                    return Poll::Ready((Outcome::TooSlow(*limit), now));
                }
                ring = limits[0].0.min(limits[1].0);
                alarm.set(env.sleep(ring.since(now)));
                idle = true;
            }
            Poll::Pending
        });
        let (outcome, at) = end.await;
        if matches!(outcome, Outcome::Broken(_)) && reused && !talk.sent && !talk.answered {
            return End::Unsent;
        }
        *open = outcome == Outcome::Ok && talk.keeps && talk.sent;
        // An answer that ended with the connection ends there: `at` is the last read, that of the end.
        End::Ended(at, outcome)
    }
}

impl<F: FnMut(Arrival)> Talk<'_, F> {
    /// Write what the system takes.
    fn write<E: Env + Unpin>(&mut self, wire: &mut Wire<E>, stamps: &Stamps, cx: &mut Context<'_>, last: &mut Mono) {
        let [head, body] = self.parts;
        while !self.sent && self.failed.is_none() {
            let left = head.len() + body.len() - self.written;
            let done = if left > 0 {
                let rest_of_head = &head[self.written.min(head.len())..];
                let rest_of_body = &body[self.written.saturating_sub(head.len())..];
                let parts = [IoSlice::new(rest_of_head), IoSlice::new(rest_of_body)];
                Pin::new(&mut *wire).poll_write_vectored(cx, if rest_of_head.is_empty() { &parts[1..] } else { &parts })
            } else {
                // TLS keeps records that the system did not take.
                Pin::new(&mut *wire).poll_flush(cx).map_ok(|()| 0)
            };
            match done {
                Poll::Pending => return,
                Poll::Ready(Ok(0)) if left > 0 => self.failed = Some(io::ErrorKind::WriteZero.into()),
                Poll::Ready(Ok(count)) => {
                    (self.written, *last) = (self.written + count, stamps.wrote());
                    if left == 0 {
                        self.sent = true;
                        self.hearing.wrote(stamps.wrote());
                    }
                }
                Poll::Ready(Err(error)) => self.failed = Some(error),
            }
        }
    }

    /// Read what is there: an end, if this was it, or nothing but that something came.
    fn read<E: Env + Unpin>(
        &mut self,
        wire: &mut Wire<E>,
        stamps: &Stamps,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Outcome>> {
        SCRATCH.with_borrow_mut(|scratch| {
            let mut buf = ReadBuf::new(scratch);
            match Pin::new(&mut *wire).poll_read(cx, &mut buf) {
                Poll::Pending => Poll::Pending,
                Poll::Ready(Err(error)) => Poll::Ready(Some(self.broken(&error.to_string()))),
                Poll::Ready(Ok(())) if buf.filled().is_empty() => Poll::Ready(Some(match self.answering.ends() {
                    true => Outcome::Ok,
                    false => self.broken("the server closed the connection"),
                })),
                Poll::Ready(Ok(())) => Poll::Ready(self.hear(buf.filled(), stamps.arrived())),
            }
        })
    }

    fn broken(&mut self, why: &str) -> Outcome {
        let failed = self.failed.take().map(|error| error.to_string());
        Outcome::Broken(failed.unwrap_or_else(|| why.to_owned()))
    }

    /// Bytes of the answer.
    fn hear(&mut self, mut bytes: &[u8], at: Mono) -> Option<Outcome> {
        self.answered = true;
        loop {
            let (piece, used) = match self.answering.take(bytes) {
                Ok(taken) => taken,
                Err(malformed) => return Some(Outcome::Broken(malformed.to_string())),
            };
            bytes = &bytes[used..];
            match piece {
                Piece::More => return None,
                Piece::End => {
                    // Bytes after the end belong to no request of ours.
                    self.keeps &= bytes.is_empty();
                    return Some(Outcome::Ok);
                }
                Piece::Head(head) => {
                    self.keeps = head.keeps;
                    self.hearing.head(head);
                }
                Piece::Data(data) => match self.hearing.data(data, at) {
                    Ok(true) => {}
                    Ok(false) => {
                        self.keeps = false;
                        return Some(Outcome::Ok);
                    }
                    Err(long) => return Some(Outcome::Broken(long.to_string())),
                },
            }
        }
    }
}

/// The head of a request with a body of `length` bytes. The user's headers win over ours, but for the length.
fn head(target: &Target, asking: &Asking) -> Vec<u8> {
    let length = asking.body.len();
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
    if let Some(key) = &asking.routing_key {
        write(&mut head, &ROUTING_KEY, key.as_bytes());
    }
    write!(head, "content-length: {length}\r\n\r\n").expect("a vector takes all");
    head
}
