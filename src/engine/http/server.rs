//! Accepts connections and serves them until the server is stopped.

use std::collections::HashMap;
use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::{Body as _, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::{Semaphore, SemaphorePermit, watch};
use tokio::task::{self, AbortHandle, JoinHandle, JoinSet};
use tracing::Level;

use crate::engine::base::{HostPort, Mono};
use crate::engine::env::{Env, Listener, Net, deadline};
use crate::engine::http::body::{self, BodyError};
use crate::engine::http::{BindError, Handler, HttpLimits, HttpRequest, Response, StatusCode, answer};

/// A running server. Dropping it stops the server; [`HttpServer::stop`] also waits until the server has stopped.
#[derive(Debug)]
pub struct HttpServer {
    at: HostPort,
    stop: watch::Sender<bool>,
    task: JoinHandle<()>,
}

impl HttpServer {
    /// The listen address: the configured host and the actual port.
    pub fn at(&self) -> &HostPort {
        &self.at
    }

    /// Stops accepting connections, lets responses in progress complete within [`HttpLimits::drain`], and closes the remaining
    /// connections.
    pub async fn stop(self) {
        let _ = self.stop.send(true);
        // A panic in the accept loop is a bug; the panic message has already reported it.
        let _ = self.task.await;
    }
}

/// Listens on `at` and serves `handler` until the returned value is stopped or dropped. Port 0 selects a free port.
///
/// # Errors
/// [`BindError`] if the address is not available.
pub async fn start<E: Env, H: Handler>(
    env: E,
    at: &HostPort,
    limits: HttpLimits,
    handler: Arc<H>,
) -> Result<HttpServer, BindError> {
    let listener = env.net().listen(at).await.map_err(|source| BindError { at: at.clone(), source })?;
    let at = HostPort::new(at.host.clone(), listener.port());
    let (stop, stopped) = watch::channel(false);
    let units = limits.bodies_bytes_max.max(limits.body_bytes_max).div_ceil(BODY_UNIT);
    let server = ServerShared { env, limits, handler, bodies: Semaphore::new(units) };
    let task = tokio::spawn(accept(Arc::new(server), listener, stopped));
    Ok(HttpServer { at, stop, task })
}

/// State shared by the connections of one server.
struct ServerShared<E, H> {
    env: E,
    limits: HttpLimits,
    handler: Arc<H>,
    /// Budget for bodies, in units of [`BODY_UNIT`].
    bodies: Semaphore,
}

async fn accept<E: Env, H: Handler>(
    server: Arc<ServerShared<E, H>>,
    mut listener: <E::Net as Net>::Listener,
    mut stopped: watch::Receiver<bool>,
) {
    let mut connections = JoinSet::new();
    let mut slots = ConnectionSlots::default();
    let limit = server.limits.connections_max;
    let mut failed = 0u64;
    // An accepted connection that is waiting for a free slot.
    let mut waiting: Option<(<E::Net as Net>::Stream, String)> = None;
    loop {
        if let Some((stream, peer)) = waiting.take() {
            if slots.open.len() < limit || slots.close_idle_longest(listener.port(), &peer, limit) {
                let slot = Arc::new(ConnectionSlot::new(server.env.now()));
                let task = connections.spawn(connection(server.clone(), stream, peer, stopped.clone(), slot.clone()));
                slots.open.insert(task.id(), (task, slot));
            } else {
                waiting = Some((stream, peer));
            }
        }
        tokio::select! {
            biased;
            () = stop_requested(&mut stopped) => break,
            Some(ended) = connections.join_next_with_id(), if !connections.is_empty() => {
                let id = ended.map_or_else(|error| error.id(), |(id, ())| id);
                slots.open.remove(&id);
            }
            accepted = listener.accept(), if waiting.is_none() => match accepted {
                Ok(accepted) => waiting = Some(accepted),
                // Out of file descriptors, or the connection is already gone. The pause prevents spinning in the first case.
                Err(error) => {
                    failed += 1;
                    if failed.is_power_of_two() {
                        tracing::warn!(port = listener.port(), %error, failed, "cannot accept an HTTP connection");
                    }
                    server.env.sleep(ACCEPT_PAUSE).await;
                }
            },
            // All connections have a request in progress. One may become idle without being closed, so check again.
            () = server.env.sleep(FULL_PAUSE), if waiting.is_some() => {}
        }
    }
    drop(listener);
    let drained = async { while connections.join_next().await.is_some() {} };
    if deadline(&server.env, server.limits.drain, drained).await.is_err() {
        connections.shutdown().await;
    }
}

async fn connection<E: Env, H: Handler>(
    server: Arc<ServerShared<E, H>>,
    stream: <E::Net as Net>::Stream,
    peer: String,
    mut stopped: watch::Receiver<bool>,
    slot: Arc<ConnectionSlot>,
) {
    let limits = server.limits;
    let stream = StallLimitedStream {
        stream,
        env: server.env.clone(),
        slot: slot.clone(),
        limit: limits.stall,
        least: least_in(limits.stall, limits.least_rate),
        period: None,
        moved: 0,
    };
    let peer: Arc<str> = peer.into();
    let service = service_fn(move |request| {
        let (server, slot, peer) = (server.clone(), slot.clone(), peer.clone());
        async move {
            slot.busy.store(true, Ordering::Relaxed);
            let answer = server.answer_and_log(request, &peer).await;
            slot.touch(server.env.now());
            slot.busy.store(false, Ordering::Relaxed);
            Ok::<_, Infallible>(answer)
        }
    });
    let mut connection = pin!(
        http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(limits.header)
            .max_buf_size(limits.header_bytes_max)
            .serve_connection(TokioIo::new(stream), service)
    );
    // An error affects only this connection, and nothing could be reported to the client.
    tokio::select! {
        _ = connection.as_mut() => return,
        () = stop_requested(&mut stopped) => connection.as_mut().graceful_shutdown(),
    }
    let _ = connection.await;
}

/// Returns how many bytes a client must read in each `period`, at least one.
fn least_in(period: Duration, rate: u64) -> u64 {
    let ms = u64::try_from(period.as_millis()).unwrap_or(u64::MAX);
    (ms.saturating_mul(rate) / 1000).max(1)
}

/// Completes when the server is stopped or dropped.
async fn stop_requested(stopped: &mut watch::Receiver<bool>) {
    let _ = stopped.wait_for(|stop| *stop).await;
}

impl<E: Env, H: Handler> ServerShared<E, H> {
    /// Responds to a request, counts it, and logs it at debug level.
    async fn answer_and_log(&self, request: hyper::Request<Incoming>, peer: &str) -> Response {
        let began = self.env.now();
        let method = request.method().clone();
        let route = self.handler.route(request.uri().path());
        let uri = tracing::enabled!(Level::DEBUG).then(|| request.uri().clone());
        let response = self.answer(request).await;
        let took = self.env.now().since(began);
        if let Some(requests) = self.handler.requests() {
            requests.record(route, &method, response.status(), took);
        }
        if let Some(uri) = uri {
            let us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
            let code = response.status().as_u16();
            tracing::debug!(%method, %uri, peer, code, us, "HTTP");
        }
        response
    }

    async fn answer(&self, request: hyper::Request<Incoming>) -> Response {
        let (head, mut incoming) = request.into_parts();
        let (body, _room) = if incoming.is_end_stream() {
            (Bytes::new(), None)
        } else {
            match self.body(&mut incoming).await {
                Ok(read) => read,
                Err(refusal) => return refusal,
            }
        };
        let request = HttpRequest { method: head.method, target: head.uri, body };
        match deadline(&self.env, self.limits.answer, self.handler.handle(request)).await {
            Ok(response) => response,
            Err(_) => answer(StatusCode::GATEWAY_TIMEOUT, TEXT, "request timed out"),
        }
    }

    /// Reads the request body. The permit reserves the body's size in the budget until the response is complete.
    async fn body(&self, incoming: &mut Incoming) -> Result<(Bytes, Option<SemaphorePermit<'_>>), Response> {
        let limit = self.limits.body_bytes_max;
        let hint = incoming.size_hint();
        if hint.lower() > limit as u64 {
            return Err(too_long(limit));
        }
        // A body without a length may have any size up to the limit.
        let bytes = hint.exact().and_then(|n| usize::try_from(n).ok()).unwrap_or(limit);
        let units = u32::try_from(bytes.div_ceil(BODY_UNIT)).unwrap_or(u32::MAX);
        let read = async {
            let permit = if bytes <= BODY_UNIT { None } else { self.bodies.acquire_many(units).await.ok() };
            body::read(incoming, limit).await.map(|body| (body, permit))
        };
        match deadline(&self.env, self.limits.body, read).await {
            Ok(Ok(read)) => Ok(read),
            Ok(Err(BodyError::TooLong)) => Err(too_long(limit)),
            Ok(Err(BodyError::Broken)) => Err(answer(StatusCode::BAD_REQUEST, TEXT, "invalid request body")),
            Err(_) => Err(answer(StatusCode::REQUEST_TIMEOUT, TEXT, "timed out reading the request body")),
        }
    }
}

fn too_long(limit: usize) -> Response {
    answer(StatusCode::PAYLOAD_TOO_LARGE, TEXT, format!("request body exceeds {limit} bytes"))
}

/// State of an open connection, as seen by the accept loop.
struct ConnectionSlot {
    /// Time of the last activity: the connection was accepted, a request was completed, or bytes of a response were sent. Received bytes do
    /// not count, so a client that sends headers byte by byte is considered idle.
    since: AtomicU64,
    /// A request is being processed.
    busy: AtomicBool,
}

impl ConnectionSlot {
    fn new(now: Mono) -> ConnectionSlot {
        ConnectionSlot { since: AtomicU64::new(now.0), busy: AtomicBool::new(false) }
    }

    fn touch(&self, now: Mono) {
        self.since.store(now.0, Ordering::Relaxed);
    }
}

#[derive(Default)]
struct ConnectionSlots {
    open: HashMap<task::Id, (AbortHandle, Arc<ConnectionSlot>)>,
    /// Number of connections closed to make room.
    closed: u64,
}

impl ConnectionSlots {
    fn idle_longest(&self) -> Option<task::Id> {
        let idle = self.open.iter().filter(|(_, (_, slot))| !slot.busy.load(Ordering::Relaxed));
        idle.min_by_key(|(_, (_, slot))| slot.since.load(Ordering::Relaxed)).map(|(id, _)| *id)
    }

    /// Closes the connection that has been idle longest, to make room for `peer`. Returns false if none is idle.
    fn close_idle_longest(&mut self, port: u16, peer: &str, limit: usize) -> bool {
        let Some((task, _)) = self.idle_longest().and_then(|id| self.open.remove(&id)) else { return false };
        task.abort();
        self.closed += 1;
        if self.closed.is_power_of_two() {
            let closed = self.closed;
            tracing::warn!(port, limit, closed, %peer, "connection limit reached: closed the connection that was idle longest");
        }
        true
    }
}

/// A stream whose peer must read at least `least` bytes in each period of `limit` while bytes are waiting to be sent.
struct StallLimitedStream<E, S> {
    stream: S,
    env: E,
    slot: Arc<ConnectionSlot>,
    limit: Duration,
    least: u64,
    /// End of the current period. `None` until a byte has to wait.
    period: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
    /// Number of bytes that the peer has read in this period.
    moved: u64,
}

impl<E: Env, S> StallLimitedStream<E, S> {
    /// Returns `progress` unchanged if it is ready. Otherwise, fails if a period ended in which the peer read too few bytes.
    fn watch(&mut self, cx: &mut Context<'_>, progress: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        if let Poll::Ready(taken) = progress {
            if let Ok(bytes) = taken {
                self.moved += bytes as u64;
                self.slot.touch(self.env.now());
            }
            return Poll::Ready(taken);
        }
        loop {
            let period = self.period.get_or_insert_with(|| {
                self.moved = 0;
                let (env, limit) = (self.env.clone(), self.limit);
                Box::pin(async move { env.sleep(limit).await })
            });
            ready!(period.as_mut().poll(cx));
            if self.moved < self.least {
                return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
            }
            self.period = None;
        }
    }
}

// No field is structurally pinned.
impl<E, S: Unpin> Unpin for StallLimitedStream<E, S> {}

impl<E: Env, S: AsyncRead + Unpin> AsyncRead for StallLimitedStream<E, S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl<E: Env, S: AsyncWrite + Unpin> AsyncWrite for StallLimitedStream<E, S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let progress = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.watch(cx, progress)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        // The head and body of a short response are copied into one buffer, because copying costs less than a vectored write.
        let total = bufs.iter().map(|buf| buf.len()).sum::<usize>();
        let mut joined = [0; JOIN_BYTES_MAX];
        let progress = match joined.get_mut(..total) {
            Some(joined) => {
                let mut rest = &mut *joined;
                for buf in bufs {
                    let (piece, after) = rest.split_at_mut(buf.len());
                    piece.copy_from_slice(buf);
                    rest = after;
                }
                Pin::new(&mut self.stream).poll_write(cx, joined)
            }
            None => Pin::new(&mut self.stream).poll_write_vectored(cx, bufs),
        };
        self.watch(cx, progress)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // No more bytes are waiting for the peer.
        self.period = None;
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

const TEXT: &str = "text/plain; charset=utf-8";
/// Bodies up to this size do not count toward the budget. Larger bodies are counted in units of this size.
const BODY_UNIT: usize = 64 << 10;
/// Responses up to this size are written in one piece.
const JOIN_BYTES_MAX: usize = 2 << 10;
/// Pause between two searches for an idle connection while all connections are busy.
const FULL_PAUSE: Duration = Duration::from_millis(50);
/// Pause after a failed accept.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
