//! The store node's REST API: objects for programs that use neither the RPC protocol nor the transfer engine.
//!
//! Routes, messages and status codes match `mooncake_store_service` 0.3.13 (captured in `fixtures/http/rest.txt`) for
//! put, get, exist, remove, and the routes that mount and unmount memory ([`rest_segments`]). Differences:
//!
//! * Keys may contain `/`, percent-encoded or plain.
//! * A call that waits for the master does not delay other calls, and has a time limit.
//! * Error responses include a `reason`.
//! * There are additional routes: `/health` (with the same response as upstream's client HTTP server), `/metrics` and `/transport`.
//!
//! [`rest_segments`]: crate::engine::store::rest_segments

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::engine::base::{ErrorCode, HostPort, ObjectKey, SegmentId};
use crate::engine::env::{Env, deadline};
use crate::engine::http::{
    self, BindError, Handler, HttpLimits, HttpRequest, HttpServer, Method, OTHER_ROUTE, Requests, Response, StatusCode,
    answer, decode,
};
use crate::engine::store::rest_segments;
use crate::engine::store::transport_stats::TransportStats;

/// The operations behind the REST API. Implemented by the node, and by a fake in tests.
pub trait ObjectStore: Send + Sync + 'static {
    /// Stores `value` under `key`. If an object already exists, it is left unchanged and no error is returned.
    fn put(&self, key: ObjectKey, value: Bytes) -> impl Future<Output = Result<(), StoreRefusal>> + Send;

    /// Returns the object's bytes, which are read once `budget` has granted memory for them.
    fn get(
        &self,
        key: ObjectKey,
        budget: ReadBudget,
    ) -> impl Future<Output = Result<(Bytes, ReadPermit), StoreRefusal>> + Send;

    /// Returns true if a readable object exists.
    fn exists(&self, key: ObjectKey) -> impl Future<Output = Result<bool, StoreRefusal>> + Send;

    /// Removes a single object by key.
    fn remove(&self, key: ObjectKey) -> impl Future<Output = Result<(), StoreRefusal>> + Send;

    /// Removes every removable object. Returns the number of removed objects.
    fn remove_all(&self) -> impl Future<Output = Result<u64, StoreRefusal>> + Send;

    /// Mounts at least `bytes` bytes of additional memory. Returns the new segment and its size in bytes.
    fn mount(&self, bytes: u64) -> impl Future<Output = Result<(SegmentId, u64), StoreRefusal>> + Send;

    /// Unmounts a segment that was created by [`mount`](ObjectStore::mount). Its objects remain readable for `grace`.
    fn unmount(&self, segment: SegmentId, grace: Duration) -> impl Future<Output = Result<(), StoreRefusal>> + Send;

    /// Returns the node's health, without contacting another process.
    fn health(&self) -> NodeHealth;

    /// Returns the node's current metrics.
    fn metrics(&self) -> NodeMetrics;

    /// Returns additional families for `/metrics`, in the Prometheus text format.
    fn extra_metrics(&self) -> String {
        String::new()
    }
}

/// Memory budget for objects that are being read. An object counts against the budget from just before it is read until
/// its last byte has been sent. Cheap to clone.
#[derive(Clone, Debug)]
pub struct ReadBudget(Arc<Semaphore>);

/// A share of a [`ReadBudget`], released on drop.
#[derive(Debug)]
pub struct ReadPermit {
    _permit: Option<OwnedSemaphorePermit>,
}

impl ReadBudget {
    fn new(bytes: usize) -> ReadBudget {
        ReadBudget(Arc::new(Semaphore::new(bytes.div_ceil(BUDGET_UNIT))))
    }

    /// Waits until `bytes` bytes are granted. An object larger than the budget is granted the entire budget.
    pub async fn acquire(&self, bytes: u64) -> ReadPermit {
        let units = bytes.div_ceil(BUDGET_UNIT as u64).clamp(1, (READING_BYTES_MAX / BUDGET_UNIT) as u64);
        let permit = self.0.clone().acquire_many_owned(u32::try_from(units).unwrap_or(u32::MAX)).await;
        // The semaphore is never closed.
        ReadPermit { _permit: permit.ok() }
    }
}

/// An object's bytes, together with their share of the budget.
struct BudgetedBytes {
    bytes: Bytes,
    _permit: ReadPermit,
}

impl AsRef<[u8]> for BudgetedBytes {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// Why an operation failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreRefusal {
    pub code: ErrorCode,
    pub reason: String,
}

/// A node's health.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeHealth {
    /// The node's memory is mounted, and the master responded to the last heartbeat.
    Healthy,
    /// The node's memory is not mounted yet.
    NotInitialized,
    /// The master did not respond to the last heartbeat.
    MasterUnreachable,
}

/// A node's transfer and memory metrics.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeMetrics {
    /// Bytes that peers read from this node's memory.
    pub served_read_bytes: u64,
    pub served_reads: u64,
    /// Bytes that peers wrote to this node's memory.
    pub served_write_bytes: u64,
    pub served_writes: u64,
    /// Requests from peers that were rejected (unregistered memory, invalid frames).
    pub served_refusals: u64,
    /// Bytes read by this node's own client.
    pub client_read_bytes: u64,
    /// Bytes written by this node's own client.
    pub client_write_bytes: u64,
    /// Total size of the mounted segments in bytes.
    pub segment_bytes: u64,
    /// Open connections from peers.
    pub connections: u64,
    /// Transport statistics by peer and device.
    pub transport: TransportStats,
}

/// Serves `store` on `at`. Port 0 selects a free port.
///
/// # Errors
/// [`BindError`] if the address is not available.
pub async fn start<E: Env, S: ObjectStore>(env: E, at: &HostPort, store: Arc<S>) -> Result<HttpServer, BindError> {
    let (storing, budget) = (Semaphore::new(STORING_MAX), ReadBudget::new(READING_BYTES_MAX));
    let rest = RestApi { env: env.clone(), store, storing, budget, requests: Requests::default() };
    http::start(env, at, LIMITS, Arc::new(rest)).await
}

struct RestApi<E, S> {
    env: E,
    store: Arc<S>,
    /// Limits concurrent puts, because each object is held in memory in full.
    storing: Semaphore,
    /// Memory budget for objects being read.
    budget: ReadBudget,
    requests: Requests,
}

impl<E: Env, S: ObjectStore> Handler for RestApi<E, S> {
    fn requests(&self) -> Option<&Requests> {
        Some(&self.requests)
    }

    fn route(&self, path: &str) -> &'static str {
        let fixed = ["/api/put", "/api/remove_all", "/health", "/metrics", "/transport"];
        fixed.into_iter().find(|route| *route == path).unwrap_or_else(|| {
            let of_key = VERBS.iter().find(|(prefix, _)| path.starts_with(prefix));
            of_key.map_or(OTHER_ROUTE, |(prefix, _)| prefix)
        })
    }

    async fn handle(&self, request: HttpRequest) -> Response {
        match deadline(&self.env, OPERATION_LIMIT, self.route(request)).await {
            Ok(response) => response,
            Err(late) => failure(StatusCode::GATEWAY_TIMEOUT, "Operation timed out", Some(&late.to_string())),
        }
    }
}

impl<E: Env, S: ObjectStore> RestApi<E, S> {
    async fn route(&self, request: HttpRequest) -> Response {
        let read = matches!(request.method, Method::GET | Method::HEAD);
        let deleting = request.method == Method::DELETE;
        match request.path() {
            "/api/put" if request.method == Method::PUT => self.put(request.body).await,
            "/api/put" => other_method("PUT"),
            "/api/remove_all" if deleting => self.remove_all().await,
            "/api/remove_all" => other_method("DELETE"),
            "/health" if read => self.health(),
            "/metrics" if read => {
                let own = metrics(&self.store.metrics());
                let text = own + &self.requests.exposition() + &self.store.extra_metrics();
                answer(StatusCode::OK, METRICS_TEXT, text)
            }
            "/transport" if read => json(StatusCode::OK, &self.store.metrics().transport),
            path if rest_segments::is_route(path) => match request.method {
                Method::POST => rest_segments::answer(&*self.store, path, &request.body).await,
                _ => other_method("POST"),
            },
            path => match VERBS.iter().find_map(|(prefix, verb)| Some((*verb, key_after(path, prefix)?))) {
                Some((Verb::Get, key)) if read => self.get(key).await,
                Some((Verb::Exist, key)) if read => self.exists(key).await,
                Some((Verb::Remove, key)) if deleting => self.remove(key).await,
                Some((Verb::Remove, _)) => other_method("DELETE"),
                Some((Verb::Get | Verb::Exist, _)) => other_method("GET,HEAD"),
                None => answer(StatusCode::NOT_FOUND, PLAIN_TEXT, "404: Not Found"),
            },
        }
    }

    async fn put(&self, body: Bytes) -> Response {
        let Ok(_turn) = self.storing.acquire().await else { return failure(BROKEN, "PUT operation failed", None) };
        let parsed = if body.len() > PARSE_INLINE_MAX {
            // Parsing a large body on this thread would block its other connections.
            match tokio::task::spawn_blocking(move || parse(&body)).await {
                Ok(parsed) => parsed,
                Err(_) => return failure(BROKEN, "PUT operation failed", None),
            }
        } else {
            parse(&body)
        };
        let (key, value) = match parsed {
            Ok(pair) => pair,
            Err(bad) => return failure(bad.status, bad.error, bad.reason.as_deref()),
        };
        if value.is_empty() {
            return failure(BROKEN, "PUT operation failed", None);
        }
        match self.store.put(key, value).await {
            Ok(()) => json(StatusCode::OK, &StatusBody { status: "success" }),
            Err(refusal) if refusal.code == ErrorCode::OBJECT_ALREADY_EXISTS => {
                json(StatusCode::OK, &StatusBody { status: "success" })
            }
            Err(refusal) => failure(BROKEN, "PUT operation failed", Some(&refusal.reason)),
        }
    }

    async fn get(&self, key: ObjectKey) -> Response {
        match self.store.get(key, self.budget.clone()).await {
            // The budget is released together with the last reference to the bytes: when the client has received them or disconnected.
            Ok((bytes, permit)) => {
                let read = Bytes::from_owner(BudgetedBytes { bytes, _permit: permit });
                answer(StatusCode::OK, "application/octet-stream", read)
            }
            Err(refusal) if ABSENT.contains(&refusal.code) => failure(StatusCode::NOT_FOUND, "Key not found", None),
            Err(refusal) if UNREACHABLE.contains(&refusal.code) => {
                failure(BROKEN, "Exist check failed", Some(&refusal.reason))
            }
            Err(refusal) => failure(BROKEN, "GET operation failed", Some(&refusal.reason)),
        }
    }

    async fn exists(&self, key: ObjectKey) -> Response {
        match self.store.exists(key).await {
            Ok(exists) => json(StatusCode::OK, &ExistsBody { exists }),
            Err(refusal) => failure(BROKEN, "Exist check failed", Some(&refusal.reason)),
        }
    }

    async fn remove(&self, key: ObjectKey) -> Response {
        match self.store.remove(key).await {
            Ok(()) => json(StatusCode::OK, &StatusBody { status: "success" }),
            Err(refusal) if refusal.code == ErrorCode::OBJECT_NOT_FOUND => {
                failure(BROKEN, "Remove operation failed", None)
            }
            Err(refusal) => failure(BROKEN, "Remove operation failed", Some(&refusal.reason)),
        }
    }

    async fn remove_all(&self) -> Response {
        match self.store.remove_all().await {
            Ok(count) => json(StatusCode::OK, &StatusBody { status: &format!("success removed {count} keys") }),
            Err(refusal) => failure(BROKEN, "Remove operation failed", Some(&refusal.reason)),
        }
    }

    fn health(&self) -> Response {
        let (status, word, code) = match self.store.health() {
            NodeHealth::Healthy => (StatusCode::OK, "healthy", 0),
            NodeHealth::NotInitialized => (StatusCode::SERVICE_UNAVAILABLE, "not_initialized", 1),
            NodeHealth::MasterUnreachable => (StatusCode::SERVICE_UNAVAILABLE, "master_unreachable", 2),
        };
        json(status, &NodeHealthBody { status: word, code })
    }
}

#[derive(Clone, Copy)]
enum Verb {
    Get,
    Exist,
    Remove,
}

const VERBS: [(&str, Verb); 3] =
    [("/api/get/", Verb::Get), ("/api/exist/", Verb::Exist), ("/api/remove/", Verb::Remove)];

/// Returns the decoded key after `prefix`, or `None` if it is empty.
fn key_after(path: &str, prefix: &str) -> Option<ObjectKey> {
    let key = path.strip_prefix(prefix).filter(|key| !key.is_empty())?;
    Some(ObjectKey::from(&*decode(key)))
}

/// The response to an invalid put body.
struct InvalidPut {
    status: StatusCode,
    error: &'static str,
    reason: Option<String>,
}

/// Parses the key and the value from the body of a put.
fn parse(body: &[u8]) -> Result<(ObjectKey, Bytes), InvalidPut> {
    #[derive(Deserialize)]
    struct PutBody {
        key: Option<String>,
        value: Option<String>,
    }
    let bad = |status, error, reason| Err(InvalidPut { status, error, reason });
    match serde_json::from_slice::<PutBody>(body) {
        Ok(PutBody { key: Some(key), value: Some(value) }) if !key.is_empty() => {
            Ok((ObjectKey::from(key.as_str()), Bytes::from(value)))
        }
        Ok(_) => bad(StatusCode::BAD_REQUEST, "Missing key or value", None),
        Err(error) if error.is_data() => {
            bad(StatusCode::BAD_REQUEST, "key and value must be strings", Some(error.to_string()))
        }
        // If the body does not start like JSON, upstream returns its JSON parser's message with this status.
        Err(_) if !body.starts_with(b"{") => bad(BROKEN, NO_JSON, None),
        Err(error) => bad(BROKEN, "invalid JSON body", Some(error.to_string())),
    }
}

fn metrics(f: &NodeMetrics) -> String {
    use std::fmt::Write;
    let families = [
        ("mcctl_node_served_read_bytes_total", "counter", "Bytes that peers read from this node", f.served_read_bytes),
        ("mcctl_node_served_reads_total", "counter", "Reads by peers from this node", f.served_reads),
        ("mcctl_node_served_write_bytes_total", "counter", "Bytes that peers wrote to this node", f.served_write_bytes),
        ("mcctl_node_served_writes_total", "counter", "Writes by peers to this node", f.served_writes),
        ("mcctl_node_served_refusals_total", "counter", "Rejected requests from peers", f.served_refusals),
        ("mooncake_transfer_read_bytes", "counter", "Bytes read by this node's own client", f.client_read_bytes),
        ("mooncake_transfer_write_bytes", "counter", "Bytes written by this node's own client", f.client_write_bytes),
        ("mcctl_node_segment_bytes", "gauge", "Size of the mounted memory, in bytes", f.segment_bytes),
        ("mcctl_node_connections", "gauge", "Open connections from peers", f.connections),
    ];
    let mut text = String::new();
    for (name, kind, help, value) in families {
        let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}\n{name} {value}");
    }
    text + &f.transport.metrics()
}

pub(in crate::engine::store) fn failure(status: StatusCode, error: &str, reason: Option<&str>) -> Response {
    json(status, &FailureAnswer { error, reason })
}

/// Serializes JSON like Python, with a space after `:` and `,`. Scripts may depend on this.
pub(in crate::engine::store) fn json(status: StatusCode, body: &impl Serialize) -> Response {
    let mut text = Vec::new();
    body.serialize(&mut serde_json::Serializer::with_formatter(&mut text, PythonFormatter))
        .expect("structs and strings can always be serialized as JSON");
    answer(status, JSON, Bytes::from(text))
}

fn other_method(allowed: &'static str) -> Response {
    let mut response = answer(StatusCode::METHOD_NOT_ALLOWED, PLAIN_TEXT, "405: Method Not Allowed");
    response.headers_mut().insert("allow", hyper::header::HeaderValue::from_static(allowed));
    response
}

struct PythonFormatter;

impl serde_json::ser::Formatter for PythonFormatter {
    fn begin_array_value<W: ?Sized + std::io::Write>(&mut self, writer: &mut W, first: bool) -> std::io::Result<()> {
        writer.write_all(if first { b"" } else { b", " })
    }

    fn begin_object_key<W: ?Sized + std::io::Write>(&mut self, writer: &mut W, first: bool) -> std::io::Result<()> {
        writer.write_all(if first { b"" } else { b", " })
    }

    fn begin_object_value<W: ?Sized + std::io::Write>(&mut self, writer: &mut W) -> std::io::Result<()> {
        writer.write_all(b": ")
    }
}

#[derive(Serialize)]
struct StatusBody<'a> {
    status: &'a str,
}

#[derive(Serialize)]
struct ExistsBody {
    exists: bool,
}

#[derive(Serialize)]
struct NodeHealthBody<'a> {
    status: &'a str,
    code: u8,
}

#[derive(Serialize)]
struct FailureAnswer<'a> {
    error: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'a str>,
}

const JSON: &str = "application/json; charset=utf-8";
const PLAIN_TEXT: &str = "text/plain; charset=utf-8";
const METRICS_TEXT: &str = "text/plain; version=0.0.4";
/// The message from upstream's JSON parser for a body that does not start with a value.
pub(in crate::engine::store) const NO_JSON: &str = "Expecting value: line 1 column 1 (char 0)";
pub(in crate::engine::store) const BROKEN: StatusCode = StatusCode::INTERNAL_SERVER_ERROR;

/// Codes reported to readers as "not found". They include the code for an object that is still being written.
const ABSENT: [ErrorCode; 2] = [ErrorCode::OBJECT_NOT_FOUND, ErrorCode::REPLICA_IS_NOT_READY];
const UNREACHABLE: [ErrorCode; 2] = [ErrorCode::RPC_FAIL, ErrorCode::RPC_TIMEOUT];

/// Time limit for one operation, including its transfer.
const OPERATION_LIMIT: Duration = Duration::from_secs(30);
/// Maximum number of concurrent puts.
const STORING_MAX: usize = 32;
/// Maximum total size of the objects that are being read or sent in response to `GET /api/get`. An object counts until
/// its client has received it. Further reads wait. An object larger than this is read alone.
pub const READING_BYTES_MAX: usize = 256 << 20;
/// Granularity of the read budget in bytes.
const BUDGET_UNIT: usize = 64 << 10;
/// JSON bodies up to this size are parsed on the connection's thread.
const PARSE_INLINE_MAX: usize = 1 << 20;

/// Upstream limits a body to 100 MiB.
const LIMITS: HttpLimits = HttpLimits {
    body_bytes_max: 100 << 20,
    bodies_bytes_max: 400 << 20,
    body: Duration::from_secs(60),
    answer: Duration::from_secs(60),
    ..HttpLimits::SMALL
};
