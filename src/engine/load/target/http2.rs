//! Concurrent exchanges over a single HTTP/2 connection.
//!
//! Times are less precise than with HTTP/1.1, because requests and tokens pass through the
//! connection's task. A request counts as written when its last byte is handed to the connection,
//! and a token counts as arrived at the time of the connection's last read. Both times are off by
//! microseconds as long as the generator keeps up.

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

use crate::answer::TokenArrival;
use crate::target::body::{EncodedRequest, ROUTING_KEY};
use crate::target::connection::ExchangeEnd;
use crate::target::http1::{ResponseHead, header_text, is_stream};
use crate::target::response::ResponseAccumulator;
use crate::target::timestamped::StreamTimes;
use crate::target::wire::{ConnectError, WireStream, http2_reason};
use crate::target::{ExchangeOutcome, LoadTarget};
use mcctl_base::Mono;
use mcctl_sys::env::{Env, deadline};

/// Flow-control window for a stream, in bytes.
const STREAM_WINDOW_BYTES: u32 = 1 << 20;
/// Flow-control window for a connection, in bytes.
const CONNECTION_WINDOW_BYTES: u32 = 16 << 20;

/// A shared HTTP/2 connection. Clones use the same connection.
pub(super) struct Http2Connection<E: Env> {
    env: E,
    sender: http2::SendRequest<RequestBody<E>>,
    stamps: Arc<StreamTimes>,
    streams: Arc<AtomicUsize>,
    used: bool,
}

impl<E: Env> Clone for Http2Connection<E> {
    fn clone(&self) -> Http2Connection<E> {
        Http2Connection {
            env: self.env.clone(),
            sender: self.sender.clone(),
            stamps: Arc::clone(&self.stamps),
            streams: Arc::clone(&self.streams),
            used: self.used,
        }
    }
}

/// Counts a stream as open until dropped.
pub(super) struct StreamGuard(Arc<AtomicUsize>);

impl Drop for StreamGuard {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A request body that records when the connection accepted its last bytes.
struct RequestBody<E> {
    bytes: Bytes,
    env: E,
    fetched_at: Arc<AtomicU64>,
}

impl<E: Env + Unpin> Body for RequestBody<E> {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let this = self.get_mut();
        this.fetched_at.store(this.env.now().0, Ordering::Relaxed);
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

impl<E: Env + Unpin> Http2Connection<E> {
    /// Starts HTTP/2 on `wire`.
    ///
    /// # Errors
    /// The handshake failed or timed out.
    pub(super) async fn open(
        env: &E,
        target: &LoadTarget,
        wire: WireStream<E>,
        stamps: Arc<StreamTimes>,
    ) -> Result<Http2Connection<E>, ConnectError> {
        let mut builder = http2::Builder::new(TokioExecutor::new());
        builder.initial_stream_window_size(STREAM_WINDOW_BYTES).initial_connection_window_size(CONNECTION_WINDOW_BYTES);
        let made = deadline(env, target.limits.connect, builder.handshake(TokioIo::new(wire))).await;
        let (sender, drive) = made??;
        // The task ends with its connection. Exchanges on the connection return their own errors.
        tokio::spawn(async move { drop(drive.await) });
        Ok(Http2Connection { env: env.clone(), sender, stamps, streams: Arc::default(), used: false })
    }

    pub(super) fn is_open(&self) -> bool {
        !self.sender.is_closed()
    }

    /// Number of open streams.
    pub(super) fn streams(&self) -> usize {
        self.streams.load(Ordering::Relaxed)
    }

    pub(super) fn place(&mut self) -> StreamGuard {
        self.used = true;
        self.streams.fetch_add(1, Ordering::Relaxed);
        StreamGuard(Arc::clone(&self.streams))
    }

    /// Performs an exchange, like `Http1Connection::exchange`. `reused` is true if the connection
    /// has carried other exchanges.
    pub(super) async fn exchange<F: FnMut(TokenArrival)>(
        &mut self,
        target: &LoadTarget,
        encoded: EncodedRequest,
        response: &mut ResponseAccumulator<F>,
        reused: bool,
        mut delays: impl FnMut(Duration),
    ) -> ExchangeEnd {
        let fetched_at = Arc::new(AtomicU64::new(self.env.now().0));
        let until = self.env.now() + target.limits.whole;
        let limit = |now: Mono| target.limits.silence.min(until.since(now));
        let sending = RequestBody { bytes: encoded.body, env: self.env.clone(), fetched_at: Arc::clone(&fetched_at) };
        let asked = self.sender.try_send_request(request(target, sending, encoded.routing_key));
        let answer: Response<Incoming> = match deadline(&self.env, limit(self.env.now()), asked).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(mut error)) => {
                if reused && error.take_message().is_some() {
                    return ExchangeEnd::Unsent;
                }
                response.wrote(Mono(fetched_at.load(Ordering::Relaxed)));
                return self.ended(ExchangeOutcome::Broken(http2_reason(error.error())));
            }
            Err(late) => {
                response.wrote(Mono(fetched_at.load(Ordering::Relaxed)));
                return self.ended(ExchangeOutcome::TimedOut(late.0));
            }
        };
        response.wrote(Mono(fetched_at.load(Ordering::Relaxed)));
        let (head, mut body) = answer.into_parts();
        let seconds = head.headers.get(RETRY_AFTER).and_then(|text| text.to_str().ok()?.trim().parse().ok());
        let of = |name| head.headers.get(name).map(HeaderValue::as_bytes);
        response.head(ResponseHead {
            status: head.status.as_u16(),
            keeps: true,
            retry_after: seconds.map(Duration::from_secs),
            location: of(LOCATION).map(header_text),
            kind: of(CONTENT_TYPE).filter(|kind| !is_stream(kind)).map(header_text),
        });
        loop {
            let frame = poll_fn(|cx| Pin::new(&mut body).poll_frame(cx));
            match deadline(&self.env, limit(self.env.now()), frame).await {
                Ok(None) => return ExchangeEnd::Ended(self.stamps.arrived(), ExchangeOutcome::Ok),
                Ok(Some(Ok(frame))) => {
                    // Trailers are ignored.
                    let bytes = frame.into_data().unwrap_or_default();
                    delays(self.env.now().since(self.stamps.arrived()));
                    match response.data(&bytes, self.stamps.arrived()) {
                        Ok(true) => {}
                        Ok(false) => return ExchangeEnd::Ended(self.stamps.arrived(), ExchangeOutcome::Ok),
                        Err(long) => return self.ended(ExchangeOutcome::Broken(long.to_string())),
                    }
                }
                Ok(Some(Err(error))) => return self.ended(ExchangeOutcome::Broken(http2_reason(&error))),
                Err(late) => return self.ended(ExchangeOutcome::TimedOut(late.0)),
            }
        }
    }

    fn ended(&self, outcome: ExchangeOutcome) -> ExchangeEnd {
        ExchangeEnd::Ended(self.env.now(), outcome)
    }
}

fn request<E>(target: &LoadTarget, body: RequestBody<E>, routing_key: Option<HeaderValue>) -> Request<RequestBody<E>> {
    let length = body.bytes.len();
    let mut request = Request::new(body);
    *request.method_mut() = Method::POST;
    let scheme = if target.protocol.tls.is_some() { "https" } else { "http" };
    // The path was validated together with the target.
    let uri = Uri::builder().scheme(scheme).authority(target.authority()).path_and_query(target.path.as_str());
    *request.uri_mut() = uri.build().unwrap_or_default();
    let headers = request.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(ACCEPT, HeaderValue::from_static("text/event-stream, application/json"));
    // The host is part of the URI, and HTTP/2 does not allow connection-specific headers.
    for (name, value) in target.headers.iter().filter(|(name, _)| ![HOST, CONNECTION].contains(*name)) {
        headers.insert(name.clone(), value.clone());
    }
    headers.extend(routing_key.map(|key| (ROUTING_KEY, key)));
    headers.insert(CONTENT_LENGTH, HeaderValue::from(length));
    request
}
