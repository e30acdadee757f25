//! Exchanges over one connection of HTTP/2, many at once.
//!
//! Less exact than HTTP/1.1, since requests and tokens pass through the task of the connection: a request counts as written when its
//! last byte was handed to the connection, and a token arrived when the connection last read. Both are microseconds beside the truth
//! while the generator keeps up.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::poll_fn;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::client::conn::http2;
use hyper::header::{ACCEPT, CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, HOST, HeaderValue, LOCATION, RETRY_AFTER};
use hyper::{Method, Request, Response, Uri};
use hyper_util::rt::{TokioExecutor, TokioIo};

use crate::engine::base::Mono;
use crate::engine::env::{Env, deadline};
use crate::engine::load::answer::Arrival;
use crate::engine::load::target::body::{Asking, ROUTING_KEY};
use crate::engine::load::target::connection::End;
use crate::engine::load::target::hearing::Hearing;
use crate::engine::load::target::http1::{Head, is_stream, words};
use crate::engine::load::target::stamped::Stamps;
use crate::engine::load::target::wire::Wire;
use crate::engine::load::target::{Outcome, Target};

/// Bytes that a server may send on a stream before it has to wait for us.
const STREAM_WINDOW_BYTES: u32 = 1 << 20;
/// The same of a connection.
const CONNECTION_WINDOW_BYTES: u32 = 16 << 20;

/// A connection. Clones share it.
pub(super) struct Line<E: Env> {
    env: E,
    sender: http2::SendRequest<Sending<E>>,
    stamps: Arc<Stamps>,
    streams: Arc<AtomicUsize>,
    used: bool,
}

impl<E: Env> Clone for Line<E> {
    fn clone(&self) -> Line<E> {
        Line {
            env: self.env.clone(),
            sender: self.sender.clone(),
            stamps: Arc::clone(&self.stamps),
            streams: Arc::clone(&self.streams),
            used: self.used,
        }
    }
}

/// A place on a line, until it is dropped.
pub(super) struct Place(Arc<AtomicUsize>);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A body on its way out, which notes when its end was taken.
struct Sending<E> {
    bytes: Bytes,
    env: E,
    taken: Arc<AtomicU64>,
}

impl<E: Env + Unpin> Body for Sending<E> {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let this = self.get_mut();
        this.taken.store(this.env.now().0, Ordering::Relaxed);
        let bytes = std::mem::take(&mut this.bytes);
        Poll::Ready((!bytes.is_empty()).then(|| Ok(Frame::data(bytes))))
    }

    fn is_end_stream(&self) -> bool {
        self.bytes.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.bytes.len() as u64)
    }
}

impl<E: Env + Unpin> Line<E> {
    /// HTTP/2 over `wire`.
    ///
    /// # Errors
    /// Why not, in words.
    pub(super) async fn open(env: &E, target: &Target, wire: Wire<E>, stamps: Arc<Stamps>) -> Result<Line<E>, String> {
        let mut builder = http2::Builder::new(TokioExecutor::new());
        builder.initial_stream_window_size(STREAM_WINDOW_BYTES).initial_connection_window_size(CONNECTION_WINDOW_BYTES);
        let made = deadline(env, target.limits.connect, builder.handshake(TokioIo::new(wire))).await;
        let (sender, drive) = made.map_err(|late| late.to_string())?.map_err(|error| reason(&error))?;
        // It ends with its connection; those who use it hear of that themselves.
        tokio::spawn(async move { drop(drive.await) });
        Ok(Line { env: env.clone(), sender, stamps, streams: Arc::default(), used: false })
    }

    pub(super) fn is_open(&self) -> bool {
        !self.sender.is_closed()
    }

    /// Streams that are open.
    pub(super) fn streams(&self) -> usize {
        self.streams.load(Ordering::Relaxed)
    }

    /// Take a place on it.
    pub(super) fn place(&mut self) -> Place {
        self.used = true;
        self.streams.fetch_add(1, Ordering::Relaxed);
        Place(Arc::clone(&self.streams))
    }

    /// As the exchange of HTTP/1.1. `reused`: the line has carried others before.
    pub(super) async fn exchange<F: FnMut(Arrival)>(
        &mut self,
        target: &Target,
        asking: Asking,
        hearing: &mut Hearing<F>,
        reused: bool,
        mut delays: impl FnMut(Duration),
    ) -> End {
        let taken = Arc::new(AtomicU64::new(self.env.now().0));
        let until = self.env.now() + target.limits.whole;
        let limit = |now: Mono| target.limits.silence.min(until.since(now));
        let sending = Sending { bytes: asking.body, env: self.env.clone(), taken: Arc::clone(&taken) };
        let asked = self.sender.try_send_request(request(target, sending, asking.routing_key));
        let answer: Response<Incoming> = match deadline(&self.env, limit(self.env.now()), asked).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(mut error)) => {
                if reused && error.take_message().is_some() {
                    return End::Unsent;
                }
                hearing.wrote(Mono(taken.load(Ordering::Relaxed)));
                return self.ended(Outcome::Broken(reason(error.error())));
            }
            Err(late) => {
                hearing.wrote(Mono(taken.load(Ordering::Relaxed)));
                return self.ended(Outcome::TooSlow(late.0));
            }
        };
        hearing.wrote(Mono(taken.load(Ordering::Relaxed)));
        let (head, mut body) = answer.into_parts();
        let seconds = head.headers.get(RETRY_AFTER).and_then(|text| text.to_str().ok()?.trim().parse().ok());
        let of = |name| head.headers.get(name).map(HeaderValue::as_bytes);
        hearing.head(Head {
            status: head.status.as_u16(),
            keeps: true,
            retry_after: seconds.map(Duration::from_secs),
            location: of(LOCATION).map(words),
            kind: of(CONTENT_TYPE).filter(|kind| !is_stream(kind)).map(words),
        });
        loop {
            let frame = poll_fn(|cx| Pin::new(&mut body).poll_frame(cx));
            match deadline(&self.env, limit(self.env.now()), frame).await {
                Ok(None) => return End::Ended(self.stamps.arrived(), Outcome::Ok),
                Ok(Some(Ok(frame))) => {
                    // Trailers carry nothing for us.
                    let bytes = frame.into_data().unwrap_or_default();
                    delays(self.env.now().since(self.stamps.arrived()));
                    match hearing.data(&bytes, self.stamps.arrived()) {
                        Ok(true) => {}
                        Ok(false) => return End::Ended(self.stamps.arrived(), Outcome::Ok),
                        Err(long) => return self.ended(Outcome::Broken(long.to_string())),
                    }
                }
                Ok(Some(Err(error))) => return self.ended(Outcome::Broken(reason(&error))),
                Err(late) => return self.ended(Outcome::TooSlow(late.0)),
            }
        }
    }

    fn ended(&self, outcome: Outcome) -> End {
        End::Ended(self.env.now(), outcome)
    }
}

fn reason(error: &hyper::Error) -> String {
    let cause = std::error::Error::source(error).map(|cause| format!(": {cause}")).unwrap_or_default();
    format!("{error}{cause}")
}

fn request<E>(target: &Target, body: Sending<E>, routing_key: Option<HeaderValue>) -> Request<Sending<E>> {
    let length = body.bytes.len();
    let mut request = Request::new(body);
    *request.method_mut() = Method::POST;
    let scheme = if target.via.tls.is_some() { "https" } else { "http" };
    // The path was checked when the target was made.
    let uri = Uri::builder().scheme(scheme).authority(target.authority()).path_and_query(target.path.as_str());
    *request.uri_mut() = uri.build().unwrap_or_default();
    let headers = request.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(ACCEPT, HeaderValue::from_static("text/event-stream, application/json"));
    // The host is in the address, and connections are not the business of a request here.
    for (name, value) in target.headers.iter().filter(|(name, _)| ![HOST, CONNECTION].contains(*name)) {
        headers.insert(name.clone(), value.clone());
    }
    headers.extend(routing_key.map(|key| (ROUTING_KEY, key)));
    headers.insert(CONTENT_LENGTH, HeaderValue::from(length));
    request
}
