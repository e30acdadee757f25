//! The RPC client: one connection with any number of concurrent calls. It reconnects after a
//! failure.
//!
//! If the response to a call is lost, the call's outcome is *unknown*, not failed. A client of a
//! fixed server never resends a call. Callers retry the calls that are safe to repeat under
//! upstream's contract.
//!
//! A client of the leader among several servers connects to the new one when it changes. Within a
//! call's timeout, it resends a call that was not sent, or that is
//! [idempotent](Method::is_idempotent).

use std::io;
use std::pin::pin;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::{Either, select};
use tokio::sync::oneshot;

use crate::rpc::client_connection::{CallGuard, ClientConnection, ConnectionError, RpcAnswer};
use crate::rpc::server_address::ServerAddress;
use mcctl_base::time::RoundedDuration;
use mcctl_base::{ErrorCode, HostPort};
use mcctl_sys::env::{Env, Net, deadline};
use mcctl_wire::frame::{self, REQUEST_HEADER_BYTES, RequestHeader, RpcErrc};
use mcctl_wire::method::Channel;
use mcctl_wire::{DecodeError, MasterCalls, Method, Release, ReleaseProbe};

/// How long a call waits for its response after another server leads. The former leader forwards
/// calls to the new one.
const FORMER_LEADER_MAX: Duration = Duration::from_millis(250);
/// Pause before a call to the same leader is repeated.
const RETRY_PAUSE: Duration = Duration::from_millis(100);

/// Time limits of a client for connecting, and for each call.
#[derive(Clone, Copy, Debug)]
pub struct Timeouts {
    pub connect: Duration,
    pub call: Duration,
}

impl Timeouts {
    /// Timeouts for a caller that waits at most `limit` for a response.
    pub fn within(limit: Duration) -> Timeouts {
        Timeouts { connect: limit.min(Timeouts::default().connect), call: limit }
    }
}

impl Default for Timeouts {
    /// 3 s to connect and 10 s per call. Upstream waits 30 s for each, and retries a failed
    /// connection attempt for 4 s.
    fn default() -> Timeouts {
        Timeouts { connect: Duration::from_secs(3), call: Duration::from_secs(10) }
    }
}

/// Returns the calls of the master at `at`, for a caller that waits at most `limit` for each
/// response. Must be called within an async runtime.
pub fn master_calls<E: Env>(env: E, at: impl Into<ServerAddress>, limit: Duration) -> MasterCalls<RpcClient<E>> {
    MasterCalls(RpcClient::new(env, at, Timeouts::within(limit)))
}

/// Why a call failed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum CallError {
    /// Connecting failed; the call was not sent.
    #[error("cannot connect to {address}: {source}")]
    Connect { address: HostPort, source: Arc<io::Error> },
    /// The connection was not established in time; the call was not sent.
    #[error("cannot connect to {address} within {}", RoundedDuration(*limit))]
    ConnectTimeout { address: HostPort, limit: Duration },
    /// No server leads; the call was not sent.
    #[error("no master leads; waited {}", RoundedDuration(*limit))]
    NoLeader { limit: Duration },
    /// No response in time; whether the call was executed is unknown.
    #[error("no response from {address} to {} within {}", method.name(), RoundedDuration(*limit))]
    Timeout { address: HostPort, method: Method, limit: Duration },
    /// The connection broke; whether the call was executed is unknown.
    #[error("connection to {address} lost during {}: {why}", method.name())]
    Closed { address: HostPort, method: Method, why: ConnectionError },
    #[error("request of {bytes} bytes for {} exceeds the limit of {} bytes", method.name(), frame::REQUEST_BODY_BYTES_MAX)]
    TooLarge { method: Method, bytes: usize },
    /// The server returned an RPC error instead of a result.
    #[error("{server} refused {}: {error:?} ({message}); it may be running a different release", method.name())]
    Remote { server: String, method: Method, error: RpcErrc, message: String },
    /// The response does not have the method's result type.
    #[error("cannot decode the response: {0}")]
    Decode(#[from] DecodeError),
}

impl CallError {
    /// Whether the call was not sent.
    pub fn is_unsent(&self) -> bool {
        match self {
            CallError::Connect { .. } | CallError::ConnectTimeout { .. } | CallError::NoLeader { .. } => true,
            CallError::Closed { why, .. } => matches!(why, ConnectionError::ClosedBeforeWrite),
            _ => false,
        }
    }

    /// Returns the error code that upstream's clients return for this error.
    pub fn code(&self) -> ErrorCode {
        match self {
            CallError::Timeout { .. } => ErrorCode::RPC_TIMEOUT,
            _ => ErrorCode::RPC_FAIL,
        }
    }
}

/// A client for one server. Clones share the connection.
#[derive(Clone)]
pub struct RpcClient<E: Env>(Arc<RpcClientInner<E>>);

struct RpcClientInner<E: Env> {
    env: E,
    server: ServerAddress,
    timeouts: Timeouts,
    /// The newest connection. It may have broken. All earlier ones count as broken.
    connection: Mutex<Option<Arc<ClientConnection<E>>>>,
    /// Locked while a connection is being established.
    connecting: tokio::sync::Mutex<()>,
    /// Number of connections that broke.
    losses: Arc<AtomicU64>,
    release: KnownRelease<E>,
    /// Locked while the server's release is being found out.
    finding: tokio::sync::Mutex<()>,
}

/// The release of the server, and the connection on which it was found out.
struct KnownRelease<E: Env> {
    /// The release's number plus one; 0: not known.
    number: AtomicU8,
    connection: Mutex<Weak<ClientConnection<E>>>,
}

impl<E: Env> KnownRelease<E> {
    fn new() -> KnownRelease<E> {
        KnownRelease { number: AtomicU8::new(0), connection: Mutex::new(Weak::new()) }
    }

    fn get(&self) -> Option<Release> {
        let number = self.number.load(Ordering::Acquire).checked_sub(1)?;
        Release::ALL.get(usize::from(number)).copied()
    }

    fn set(&self, release: Release, connection: Option<&Arc<ClientConnection<E>>>) {
        let connection = connection.map_or_else(Weak::new, Arc::downgrade);
        *self.connection.lock().unwrap_or_else(PoisonError::into_inner) = connection;
        self.number.store(release as u8 + 1, Ordering::Release);
    }

    /// Forgets the release if it was found out on another connection than `connection`.
    fn forget(&self, connection: Option<&Arc<ClientConnection<E>>>) -> bool {
        let found_on = self.connection.lock().unwrap_or_else(PoisonError::into_inner).upgrade();
        let is_other = match (found_on, connection) {
            (Some(found_on), Some(connection)) => !Arc::ptr_eq(&found_on, connection),
            (None, Some(_)) => true,
            (_, None) => false,
        };
        if is_other {
            self.number.store(0, Ordering::Release);
        }
        is_other
    }
}

impl<E: Env> RpcClient<E> {
    /// Creates a client for the server at `address`. It connects on first use.
    pub fn new(env: E, address: impl Into<ServerAddress>, timeouts: Timeouts) -> RpcClient<E> {
        RpcClient(Arc::new(RpcClientInner {
            env,
            server: address.into(),
            timeouts,
            connection: Mutex::new(None),
            connecting: tokio::sync::Mutex::new(()),
            losses: Arc::default(),
            release: KnownRelease::new(),
            finding: tokio::sync::Mutex::new(()),
        }))
    }

    /// Number of connections that broke. If it is the same before a call and after a later
    /// [`check_connection`](RpcClient::check_connection), the server that answered the call has not
    /// closed its connection in between.
    pub fn losses(&self) -> u64 {
        self.0.losses.load(Ordering::Acquire)
    }

    /// Counts the connection as broken if the server has closed or reset it, even if the runtime
    /// has not run since. Later calls then open a new connection. Calls whose responses were
    /// received before the close still return them. Costs at most one system call.
    pub fn check_connection(&self) {
        if let Some(newest) = self.newest_connection() {
            newest.check();
        }
    }

    fn lock_connection(&self) -> MutexGuard<'_, Option<Arc<ClientConnection<E>>>> {
        self.0.connection.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn newest_connection(&self) -> Option<Arc<ClientConnection<E>>> {
        self.lock_connection().clone()
    }

    /// Returns the newest connection if a call can use it.
    fn usable_connection(&self) -> Option<Arc<ClientConnection<E>>> {
        let newest = self.newest_connection().filter(|newest| !newest.waiting.is_broken())?;
        if self.0.server.is_still(&newest.address) {
            return Some(newest);
        }
        newest.waiting.set_broken();
        None
    }

    /// Returns the connection to the present leader, establishing it if necessary. Concurrent
    /// callers wait for the same attempt, each for at most the connect timeout or `limit`.
    async fn connection(&self, limit: Duration) -> Result<Arc<ClientConnection<E>>, CallError> {
        let inner = &*self.0;
        let limit = inner.timeouts.connect.min(limit);
        let connected = async {
            if let Some(usable) = self.usable_connection() {
                return Ok(usable);
            }
            let _connecting = inner.connecting.lock().await;
            // Another caller may have connected in the meantime.
            if let Some(usable) = self.usable_connection() {
                return Ok(usable);
            }
            loop {
                let address = inner.server.leading().await;
                let stream =
                    match select(pin!(inner.env.net().connect(&address)), pin!(inner.server.changed(&address))).await {
                        Either::Left((stream, _)) => stream,
                        Either::Right(_) => continue,
                    };
                let stream =
                    stream.map_err(|source| CallError::Connect { address: address.clone(), source: source.into() })?;
                let connection = Arc::new(ClientConnection::over(stream, address, inner.losses.clone()));
                // The previous one is dropped after the lock is released.
                let _previous = self.lock_connection().replace(connection.clone());
                return Ok(connection);
            }
        };
        deadline(&inner.env, limit, connected).await.unwrap_or_else(|_| {
            Err(match inner.server.now() {
                Some(address) => CallError::ConnectTimeout { address, limit },
                None => CallError::NoLeader { limit },
            })
        })
    }

    /// Sends a call once, and waits at most `limit` for its response.
    async fn exchange(&self, method: Method, body: &[u8], limit: Duration) -> Result<RpcAnswer, CallError> {
        let length = u32::try_from(body.len()).ok().filter(|length| *length <= frame::REQUEST_BODY_BYTES_MAX);
        let length = length.ok_or(CallError::TooLarge { method, bytes: body.len() })?;
        let connection = self.connection(limit).await?;
        let address = || connection.address.clone();
        let seq = connection.seq.fetch_add(1, Ordering::Relaxed);
        let mut request = Vec::with_capacity(REQUEST_HEADER_BYTES + body.len());
        request.extend_from_slice(&RequestHeader { seq, function_id: method.id(), length, attachment: 0 }.encode());
        request.extend_from_slice(body);
        let (answered, answer) = oneshot::channel();
        connection.waiting.lock().insert(seq, answered);
        let _guard = CallGuard { waiting: &connection.waiting, seq };
        let answered = async {
            if connection.waiting.is_broken() || connection.requests.send(request).await.is_err() {
                return Err(ConnectionError::ClosedBeforeWrite);
            }
            answer.await.unwrap_or(Err(ConnectionError::Closed))
        };
        let superseded = async {
            self.0.server.changed(&connection.address).await;
            self.0.env.sleep(FORMER_LEADER_MAX).await;
        };
        let answered = async {
            match select(pin!(answered), pin!(superseded)).await {
                Either::Left((answered, _)) => answered,
                Either::Right(_) => {
                    connection.waiting.set_broken();
                    Err(ConnectionError::LeaderChanged)
                }
            }
        };
        match deadline(&self.0.env, limit, answered).await {
            Ok(answer) => answer.map_err(|why| CallError::Closed { address: address(), method, why }),
            Err(_) => {
                // The connection may be dead without having been closed, so the next call uses a
                // new one. Other calls waiting on this connection still get their responses.
                connection.waiting.set_broken();
                Err(CallError::Timeout { address: address(), method, limit })
            }
        }
    }

    /// Sends a call to the leader, again after a failure if that is safe, within the call timeout.
    async fn exchange_with_leader(
        &self,
        method: Method,
        body: &[u8],
        is_idempotent: bool,
    ) -> Result<RpcAnswer, CallError> {
        let RpcClientInner { env, server, timeouts, .. } = &*self.0;
        let end = env.now() + timeouts.call;
        loop {
            let leader = server.now();
            let error = match self.exchange(method, body, end.since(env.now())).await {
                Err(error @ (CallError::TooLarge { .. } | CallError::Timeout { .. })) => return Err(error),
                Err(error) if error.is_unsent() || is_idempotent => error,
                done => return done,
            };
            let left = end.since(env.now());
            if left.is_zero() {
                return Err(error);
            }
            if server.now() == leader {
                env.sleep(RETRY_PAUSE.min(left)).await;
            }
        }
    }
}

impl<E: Env> RpcClient<E> {
    /// Sends a call, and returns the response or RPC error.
    async fn answer(&self, method: Method, body: &[u8], is_idempotent: bool) -> Result<RpcAnswer, CallError> {
        match self.0.server.changes() {
            true => self.exchange_with_leader(method, body, is_idempotent).await,
            false => self.exchange(method, body, self.0.timeouts.call).await,
        }
    }

    /// Finds out the release of the server.
    async fn find_release(&self) -> Result<Release, CallError> {
        let mut probe = ReleaseProbe::default();
        while let Some((method, body)) = probe.request()? {
            // The calls change nothing.
            let (error, answer) = self.answer(method, &body, true).await?;
            match error {
                RpcErrc::OK => probe.answer(method, &answer),
                RpcErrc::INVALID_RPC_ARGUMENTS | RpcErrc::FUNCTION_NOT_REGISTERED => probe.refuse(method),
                error => return Err(self.remote_error(method, error, &answer)),
            }
        }
        let server = self.0.server.to_string();
        tracing::debug!(server, releases = %probe.possible(), "release of the master");
        // With a master of an unknown release, the caller gets the error of its own call.
        Ok(probe.possible().newest().unwrap_or(Release::LATEST))
    }

    fn remote_error(&self, method: Method, error: RpcErrc, body: &[u8]) -> CallError {
        let message = frame::error_message(body).map_or_else(|e| e.to_string(), |text| text.to_string());
        CallError::Remote { server: self.0.server.to_string(), method, error, message }
    }
}

impl<E: Env> Channel for RpcClient<E> {
    type Error = CallError;

    /// The release of the server, which is found out before the first call. After a reconnect, the
    /// server is assumed to be of the same release until it refuses a call.
    async fn release(&self) -> Result<Release, CallError> {
        if let Some(release) = self.0.release.get() {
            return Ok(release);
        }
        let _finding = self.0.finding.lock().await;
        if let Some(release) = self.0.release.get() {
            return Ok(release);
        }
        let found = self.find_release().await?;
        self.0.release.set(found, self.newest_connection().as_ref());
        Ok(found)
    }

    /// Whether the server refused the call because it is of another release than the one before
    /// the last reconnect.
    fn is_other_release(&self, error: &CallError) -> bool {
        let refusals = [RpcErrc::INVALID_RPC_ARGUMENTS, RpcErrc::FUNCTION_NOT_REGISTERED];
        matches!(error, CallError::Remote { error, .. } if refusals.contains(error))
            && self.0.release.forget(self.newest_connection().as_ref())
    }

    async fn call(&self, method: Method, body: Vec<u8>) -> Result<Bytes, CallError> {
        let (error, body) = self.answer(method, &body, method.is_idempotent()).await?;
        if error == RpcErrc::OK { Ok(body) } else { Err(self.remote_error(method, error, &body)) }
    }
}
