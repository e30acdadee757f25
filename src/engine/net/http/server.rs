//! Accepts connections and serves them until the server is stopped.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::fmt::Display;
use std::net::SocketAddr;
use std::path::Path;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::{Body as _, Incoming};
use hyper::header::{AUTHORIZATION, HeaderValue, WWW_AUTHENTICATE};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{Semaphore, SemaphorePermit, watch};
use tokio::task::{JoinHandle, JoinSet};
use tokio_rustls::TlsAcceptor;
use tracing::Level;

use crate::http::access::{Caller, HttpAccess};
use crate::http::body::{self, BodyError};
use crate::http::connection_slot::{ConnectionSlot, ConnectionSlots};
use crate::http::stall_limit::StallLimitedStream;
use crate::http::tls_mistake::TlsMistake;
use crate::http::{BindError, Handler, HttpLimits, HttpRequest, Response, StatusCode, answer};
use mcctl_base::HostPort;
use mcctl_sys::env::{Env, Listener, Net, SocketFileListener, deadline};

/// A running server. Dropping it stops the server; [`HttpServer::stop`] also waits until the server
/// has stopped.
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

    /// Stops accepting connections, lets responses in progress complete within
    /// [`HttpLimits::drain`], and closes the remaining connections.
    pub async fn stop(self) {
        let _ = self.stop.send(true);
        // A panic in the accept loop is a bug; the panic message has already reported it.
        let _ = self.task.await;
    }
}

/// Listens on `at` and serves `handler` to all clients until the returned value is stopped or
/// dropped. Port 0 selects a free port.
///
/// # Errors
/// [`BindError`] if the address is not available.
pub async fn start<E: Env, H: Handler>(
    env: E,
    at: &HostPort,
    limits: HttpLimits,
    handler: Arc<H>,
) -> Result<HttpServer, BindError> {
    start_with(env, at, limits, HttpAccess::default(), handler).await
}

/// Like [`start`], but serves only the requests that `access` allows, and listens on its Unix
/// socket, too, if it has one.
///
/// # Errors
/// [`BindError`] if the address or the socket is not available.
pub async fn start_with<E: Env, H: Handler>(
    env: E,
    at: &HostPort,
    limits: HttpLimits,
    access: HttpAccess,
    handler: Arc<H>,
) -> Result<HttpServer, BindError> {
    let unavailable =
        |source, socket: Option<&Path>| BindError { at: at.clone(), socket: socket.map(Path::to_owned), source };
    let listener = env.net().listen(at).await.map_err(|source| unavailable(source, None))?;
    let socket = access.socket().map(SocketFileListener::bind).transpose();
    let socket = socket.map_err(|source| unavailable(source, access.socket()))?;
    let at = HostPort::new(at.host.clone(), listener.port());
    let (stop, stopped) = watch::channel(false);
    // All clients that can open the socket may do everything.
    let local = socket.map(|socket| {
        let server = ServerShared::new(env.clone(), limits, HttpAccess::default(), handler.clone());
        accept(Arc::new(server), socket, stopped.clone())
    });
    let server = Arc::new(ServerShared::new(env, limits, access, handler));
    let task = tokio::spawn(async move {
        match local {
            Some(local) => drop(tokio::join!(accept(server, listener, stopped), local)),
            None => accept(server, listener, stopped).await,
        }
    });
    Ok(HttpServer { at, stop, task })
}

/// State shared by the connections of one server.
struct ServerShared<E, H> {
    env: E,
    limits: HttpLimits,
    access: HttpAccess,
    handler: Arc<H>,
    /// Budget for bodies, in units of [`BODY_UNIT`].
    bodies: Semaphore,
    /// Number of requests and TLS handshakes that were refused, by reason. There are about twenty
    /// reasons.
    refused: Mutex<BTreeMap<String, u64>>,
}

async fn accept<E: Env, H: Handler, L: Listener<Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static>>(
    server: Arc<ServerShared<E, H>>,
    mut listener: L,
    mut stopped: watch::Receiver<bool>,
) {
    let mut connections = JoinSet::new();
    let mut slots = ConnectionSlots::default();
    let limit = server.limits.connections_max;
    let mut failed = 0u64;
    // An accepted connection that is waiting for a free slot.
    let mut waiting: Option<(L::Stream, String)> = None;
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
                // Out of file descriptors, or the connection is already gone. The pause prevents
                // spinning in the first case.
                Err(error) => {
                    failed += 1;
                    if failed.is_power_of_two() {
                        tracing::warn!(port = listener.port(), %error, failed, "cannot accept an HTTP connection");
                    }
                    server.env.sleep(ACCEPT_PAUSE).await;
                }
            },
            // All connections have a request in progress. One may become idle without being closed,
            // so check again.
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
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    peer: String,
    mut stopped: watch::Receiver<bool>,
    slot: Arc<ConnectionSlot>,
) {
    let limits = server.limits;
    let stream = StallLimitedStream::new(stream, server.env.clone(), slot.clone(), &limits);
    let tls = server.access.rules().tls.clone();
    let Some(tls) = tls else {
        let peer = HttpPeer::new(peer, false);
        return serve(server, stream, peer, stopped, slot).await;
    };
    let handshake = deadline(&server.env, limits.header, TlsAcceptor::from(tls).accept(stream));
    let accepted = tokio::select! {
        accepted = handshake => accepted,
        () = stop_requested(&mut stopped) => return,
    };
    match accepted {
        Ok(Ok(stream)) => {
            let has_certificate = stream.get_ref().1.peer_certificates().is_some();
            serve(server, stream, HttpPeer::new(peer, has_certificate), stopped, slot).await;
        }
        Ok(Err(error)) => match TlsMistake::of_server(&error) {
            Some(mistake) => server.note_tls_mistake(&peer, &mistake, "TLS handshake failed"),
            None => server.note_refusal(&peer, &error, "TLS handshake failed"),
        },
        Err(late) => server.note_refusal(&peer, &late, "TLS handshake failed"),
    }
}

/// The other end of a connection.
struct HttpPeer {
    /// The address, for the log.
    at: String,
    is_local: bool,
    has_certificate: bool,
}

impl HttpPeer {
    fn new(at: String, has_certificate: bool) -> Arc<HttpPeer> {
        let is_local = at.parse::<SocketAddr>().is_ok_and(|at| at.ip().to_canonical().is_loopback());
        Arc::new(HttpPeer { at, is_local, has_certificate })
    }
}

/// Serves the requests on a connection whose TLS handshake, if any, is complete.
async fn serve<E: Env, H: Handler>(
    server: Arc<ServerShared<E, H>>,
    stream: impl AsyncRead + AsyncWrite + Unpin + Send,
    peer: Arc<HttpPeer>,
    mut stopped: watch::Receiver<bool>,
    slot: Arc<ConnectionSlot>,
) {
    let limits = server.limits;
    let shared = server.clone();
    let from = peer.clone();
    let service = service_fn(move |request| {
        let server = server.clone();
        let slot = slot.clone();
        let peer = peer.clone();
        async move {
            slot.set_busy(true);
            let answer = server.answer_and_log(request, &peer).await;
            slot.touch(server.env.now());
            slot.set_busy(false);
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
        ended = connection.as_mut() => {
            // The first byte of a TLS handshake is not a character of an HTTP method.
            if ended.is_err_and(|error| error.is_parse() && error.to_string().contains("HTTP method")) {
                shared.note_tls_mistake(&from.at, &TlsMistake::ClientUsesTls, "request not readable");
            }
            return;
        }
        () = stop_requested(&mut stopped) => connection.as_mut().graceful_shutdown(),
    }
    let _ = connection.await;
}

/// Completes when the server is stopped or dropped.
async fn stop_requested(stopped: &mut watch::Receiver<bool>) {
    let _ = stopped.wait_for(|stop| *stop).await;
}

impl<E: Env, H: Handler> ServerShared<E, H> {
    fn new(env: E, limits: HttpLimits, access: HttpAccess, handler: Arc<H>) -> ServerShared<E, H> {
        let units = limits.bodies_bytes_max.max(limits.body_bytes_max).div_ceil(BODY_UNIT);
        ServerShared { env, limits, access, handler, bodies: Semaphore::new(units), refused: Mutex::default() }
    }

    /// Responds to a request, counts it, and logs it at debug level.
    async fn answer_and_log(&self, request: hyper::Request<Incoming>, peer: &HttpPeer) -> Response {
        let began = self.env.now();
        let method = request.method().clone();
        let route = self.handler.route(request.uri().path());
        // Only path and query: in the absolute form, the authority may contain a password.
        let uri = tracing::enabled!(Level::DEBUG).then(|| request.uri().path_and_query().cloned()).flatten();
        let response = match self.refusal(&request, peer) {
            Some(refusal) => refusal,
            None => self.answer(request).await,
        };
        let took = self.env.now().since(began);
        if let Some(requests) = self.handler.requests() {
            requests.record(route, &method, response.status(), took);
        }
        if let Some(uri) = uri {
            let us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
            let code = response.status().as_u16();
            tracing::debug!(%method, %uri, peer = peer.at, code, us, "HTTP");
        }
        response
    }

    /// The response to a request that is not allowed. Its body is not read.
    fn refusal(&self, request: &hyper::Request<Incoming>, peer: &HttpPeer) -> Option<Response> {
        let method = request.method();
        let path = request.uri().path();
        let caller = Caller {
            authorization: request.headers().get(AUTHORIZATION).and_then(|value| value.to_str().ok()),
            has_certificate: peer.has_certificate,
            is_local: peer.is_local,
        };
        let decision = self.access.rules().policy.decide(self.handler.route_class(method, path), caller);
        let (status, text) = decision.refusal()?;
        self.note_refusal(&peer.at, &text.trim_end(), "HTTP request refused");
        let mut response = answer(status, TEXT, text);
        if status == StatusCode::UNAUTHORIZED {
            response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer realm=\"mcctl\""));
        }
        Some(response)
    }

    /// Counts a connection that fails because of a mistake with TLS.
    fn note_tls_mistake(&self, peer: &str, mistake: &TlsMistake, what: &'static str) {
        self.note_refusal(peer, &format_args!("{mistake}; {}", mistake.remedy()), what);
    }

    /// Counts a refusal, and logs the first, second, fourth and so on with this reason.
    fn note_refusal(&self, peer: &str, reason: &dyn Display, what: &'static str) {
        let refused = {
            let mut counts = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
            let count = counts.entry(reason.to_string()).or_default();
            *count += 1;
            *count
        };
        if refused.is_power_of_two() {
            tracing::warn!(peer, refused, "{what}: {reason}");
        }
    }

    async fn answer(&self, request: hyper::Request<Incoming>) -> Response {
        let (mut head, mut incoming) = request.into_parts();
        if let Some(authorization) = head.headers.get_mut(AUTHORIZATION) {
            authorization.set_sensitive(true);
        }
        let (body, _room) = if incoming.is_end_stream() {
            (Bytes::new(), None)
        } else {
            match self.body(&mut incoming).await {
                Ok(read) => read,
                Err(refusal) => return refusal,
            }
        };
        let request = HttpRequest { method: head.method, target: head.uri, headers: head.headers, body };
        match deadline(&self.env, self.limits.answer, self.handler.handle(request)).await {
            Ok(response) => response,
            Err(_) => answer(StatusCode::GATEWAY_TIMEOUT, TEXT, "request timed out"),
        }
    }

    /// Reads the request body. The permit reserves the body's size in the budget until the response
    /// is complete.
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

const TEXT: &str = "text/plain; charset=utf-8";
/// Bodies up to this size do not count toward the budget. Larger bodies are counted in units of
/// this size.
const BODY_UNIT: usize = 64 << 10;
/// Pause between two searches for an idle connection while all connections are busy.
const FULL_PAUSE: Duration = Duration::from_millis(50);
/// Pause after a failed accept.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_loopback_addresses_are_local() {
        let is_local = |at: &str| HttpPeer::new(at.to_owned(), false).is_local;
        for at in ["127.0.0.1:1", "127.8.8.8:1", "[::1]:1", "[::ffff:127.0.0.1]:1"] {
            assert!(is_local(at), "{at}");
        }
        for at in ["10.0.0.1:1", "[::ffff:10.0.0.1]:1", "[fe80::1%2]:1", "localhost:1", "", "127.0.0.1"] {
            assert!(!is_local(at), "{at}");
        }
    }
}
