//! The store node's REST routes: objects in and out for programs that speak neither RPC nor the transfer engine.
//!
//! Routes, texts and status codes are those of the `mooncake_store_service` of 0.3.13 for put, get, exist and remove (captured;
//! `fixtures/http/rest.txt`), and for the routes that mount and unmount memory ([`rest_segments`]). Beyond it: keys may contain `/`, percent-encoded or plain; a call that waits for the master holds no
//! other call up and has a deadline; refusals carry a `reason`; `/health` (as upstream's client HTTP server answers it), `/metrics`
//! and `/transport`.
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
    self, BindError, Handler, Limits, Method, OTHER_ROUTE, Request, Requests, Response, Running, StatusCode, answer,
    decode,
};
use crate::engine::store::rest_segments;
use crate::engine::store::ways::Ways;

/// Where the objects are. The store client is one; tests have another.
pub trait ObjectStore: Send + Sync + 'static {
    /// Store `value` under `key`; an object that is there already stays as it is, which is no failure.
    fn put(&self, key: ObjectKey, value: Bytes) -> impl Future<Output = Result<(), Refusal>> + Send;

    /// The object's bytes, which are read once `room` has room for them.
    fn get(&self, key: ObjectKey, room: Room) -> impl Future<Output = Result<(Bytes, Held), Refusal>> + Send;

    /// Is there a readable object?
    fn exists(&self, key: ObjectKey) -> impl Future<Output = Result<bool, Refusal>> + Send;

    /// Remove one object.
    fn remove(&self, key: ObjectKey) -> impl Future<Output = Result<(), Refusal>> + Send;

    /// Remove every object that can be removed; how many were.
    fn remove_all(&self) -> impl Future<Output = Result<u64, Refusal>> + Send;

    /// Contribute at least `bytes` more memory: the new segment and its bytes.
    fn mount(&self, bytes: u64) -> impl Future<Output = Result<(SegmentId, u64), Refusal>> + Send;

    /// Take a segment back that [`mount`](ObjectStore::mount) made; its objects can be read for `grace`.
    fn unmount(&self, segment: SegmentId, grace: Duration) -> impl Future<Output = Result<(), Refusal>> + Send;

    /// How the node is, as far as it knows without asking anybody.
    fn health(&self) -> NodeHealth;

    /// What has gone through the node.
    fn figures(&self) -> NodeFigures;

    /// Families to append to `/metrics`, as Prometheus text.
    fn more_metrics(&self) -> String {
        String::new()
    }
}

/// Room in memory for objects that are read, from before that until the last byte has left. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Room(Arc<Semaphore>);

/// A part of a [`Room`], until it is dropped.
#[derive(Debug)]
pub struct Held {
    _permit: Option<OwnedSemaphorePermit>,
}

impl Room {
    fn new(bytes: usize) -> Room {
        Room(Arc::new(Semaphore::new(bytes.div_ceil(ROOM_UNIT))))
    }

    /// Wait until there is room for `bytes`. An object that is larger than all of it has the room for itself.
    pub async fn hold(&self, bytes: u64) -> Held {
        let units = bytes.div_ceil(ROOM_UNIT as u64).clamp(1, (READING_BYTES_MAX / ROOM_UNIT) as u64);
        let permit = self.0.clone().acquire_many_owned(u32::try_from(units).unwrap_or(u32::MAX)).await;
        // Nobody closes the semaphore.
        Held { _permit: permit.ok() }
    }
}

/// An object's bytes with the room that they take up.
struct Read {
    bytes: Bytes,
    _held: Held,
}

impl AsRef<[u8]> for Read {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// Why an operation was not done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Upstream's number for it.
    pub code: ErrorCode,
    /// For people.
    pub reason: String,
}

/// How a node is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeHealth {
    /// Its memory is mounted and the master answers.
    Healthy,
    /// Its memory is not mounted yet.
    NotInitialized,
    /// The master did not answer the last heartbeat.
    MasterUnreachable,
}

/// What has gone through a node, and what it lends.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeFigures {
    /// Bytes that peers read from this node's memory.
    pub served_read_bytes: u64,
    /// Reads by peers.
    pub served_reads: u64,
    /// Bytes that peers wrote into this node's memory.
    pub served_write_bytes: u64,
    /// Writes by peers.
    pub served_writes: u64,
    /// Requests of peers that were refused (memory that is not lent, broken frames).
    pub served_refusals: u64,
    /// Bytes that this node's own client read.
    pub client_read_bytes: u64,
    /// Bytes that this node's own client wrote.
    pub client_write_bytes: u64,
    /// Bytes of memory that are mounted.
    pub segment_bytes: u64,
    /// Connections of peers that are open.
    pub connections: u64,
    /// What bytes are moved over, by peer and device.
    pub ways: Ways,
}

/// Serve `store` at `at` (port 0 takes a free one).
///
/// # Errors
/// [`BindError`] when the address cannot be taken.
pub async fn start<E: Env, S: ObjectStore>(env: E, at: &HostPort, store: Arc<S>) -> Result<Running, BindError> {
    let (storing, room) = (Semaphore::new(STORING_MAX), Room::new(READING_BYTES_MAX));
    let rest = Rest { env: env.clone(), store, storing, room, requests: Requests::default() };
    http::start(env, at, LIMITS, Arc::new(rest)).await
}

struct Rest<E, S> {
    env: E,
    store: Arc<S>,
    /// Objects that are stored at once: each is held whole in memory.
    storing: Semaphore,
    /// Memory for objects that are read.
    room: Room,
    requests: Requests,
}

impl<E: Env, S: ObjectStore> Handler for Rest<E, S> {
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

    async fn handle(&self, request: Request) -> Response {
        match deadline(&self.env, OPERATION_LIMIT, self.route(request)).await {
            Ok(response) => response,
            Err(late) => failure(StatusCode::GATEWAY_TIMEOUT, "Operation timed out", Some(&late.to_string())),
        }
    }
}

impl<E: Env, S: ObjectStore> Rest<E, S> {
    async fn route(&self, request: Request) -> Response {
        let reading = matches!(request.method, Method::GET | Method::HEAD);
        let deleting = request.method == Method::DELETE;
        match request.path() {
            "/api/put" if request.method == Method::PUT => self.put(request.body).await,
            "/api/put" => other_method("PUT"),
            "/api/remove_all" if deleting => self.remove_all().await,
            "/api/remove_all" => other_method("DELETE"),
            "/health" if reading => self.health(),
            "/metrics" if reading => {
                let own = metrics(&self.store.figures());
                let text = own + &self.requests.exposition() + &self.store.more_metrics();
                answer(StatusCode::OK, METRICS_TEXT, text)
            }
            "/transport" if reading => json(StatusCode::OK, &self.store.figures().ways),
            path if rest_segments::is_route(path) => match request.method {
                Method::POST => rest_segments::answer(&*self.store, path, &request.body).await,
                _ => other_method("POST"),
            },
            path => match VERBS.iter().find_map(|(prefix, verb)| Some((*verb, key_after(path, prefix)?))) {
                Some((Verb::Get, key)) if reading => self.get(key).await,
                Some((Verb::Exist, key)) if reading => self.exists(key).await,
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
            // A long text would keep this thread from everything else that it serves.
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
            Ok(()) => json(StatusCode::OK, &Status { status: "success" }),
            Err(refusal) if refusal.code == ErrorCode::OBJECT_ALREADY_EXISTS => {
                json(StatusCode::OK, &Status { status: "success" })
            }
            Err(refusal) => failure(BROKEN, "PUT operation failed", Some(&refusal.reason)),
        }
    }

    async fn get(&self, key: ObjectKey) -> Response {
        match self.store.get(key, self.room.clone()).await {
            // The room is given back with the last reference to the bytes, when the peer has taken them or is gone.
            Ok((bytes, held)) => {
                let read = Bytes::from_owner(Read { bytes, _held: held });
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
            Ok(exists) => json(StatusCode::OK, &Exists { exists }),
            Err(refusal) => failure(BROKEN, "Exist check failed", Some(&refusal.reason)),
        }
    }

    async fn remove(&self, key: ObjectKey) -> Response {
        match self.store.remove(key).await {
            Ok(()) => json(StatusCode::OK, &Status { status: "success" }),
            Err(refusal) if refusal.code == ErrorCode::OBJECT_NOT_FOUND => {
                failure(BROKEN, "Remove operation failed", None)
            }
            Err(refusal) => failure(BROKEN, "Remove operation failed", Some(&refusal.reason)),
        }
    }

    async fn remove_all(&self) -> Response {
        match self.store.remove_all().await {
            Ok(count) => json(StatusCode::OK, &Status { status: &format!("success removed {count} keys") }),
            Err(refusal) => failure(BROKEN, "Remove operation failed", Some(&refusal.reason)),
        }
    }

    fn health(&self) -> Response {
        let (status, word, code) = match self.store.health() {
            NodeHealth::Healthy => (StatusCode::OK, "healthy", 0),
            NodeHealth::NotInitialized => (StatusCode::SERVICE_UNAVAILABLE, "not_initialized", 1),
            NodeHealth::MasterUnreachable => (StatusCode::SERVICE_UNAVAILABLE, "master_unreachable", 2),
        };
        json(status, &Health { status: word, code })
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

/// The decoded key in `path` after `prefix`; an empty one is none.
fn key_after(path: &str, prefix: &str) -> Option<ObjectKey> {
    let key = path.strip_prefix(prefix).filter(|key| !key.is_empty())?;
    Some(ObjectKey::from(&*decode(key)))
}

/// What is wrong with the body of a put.
struct BadBody {
    status: StatusCode,
    error: &'static str,
    reason: Option<String>,
}

/// Key and value in the body of a put.
fn parse(body: &[u8]) -> Result<(ObjectKey, Bytes), BadBody> {
    #[derive(Deserialize)]
    struct PutBody {
        key: Option<String>,
        value: Option<String>,
    }
    let bad = |status, error, reason| Err(BadBody { status, error, reason });
    match serde_json::from_slice::<PutBody>(body) {
        Ok(PutBody { key: Some(key), value: Some(value) }) if !key.is_empty() => {
            Ok((ObjectKey::from(key.as_str()), Bytes::from(value)))
        }
        Ok(_) => bad(StatusCode::BAD_REQUEST, "Missing key or value", None),
        Err(error) if error.is_data() => {
            bad(StatusCode::BAD_REQUEST, "key and value must be strings", Some(error.to_string()))
        }
        // Upstream's JSON reader's message for a body that does not begin with a value; and its status.
        Err(_) if !body.starts_with(b"{") => bad(BROKEN, NO_JSON, None),
        Err(error) => bad(BROKEN, "the body is not JSON", Some(error.to_string())),
    }
}

fn metrics(f: &NodeFigures) -> String {
    use std::fmt::Write;
    let families = [
        ("mcctl_node_served_read_bytes_total", "counter", "Bytes that peers read from this node", f.served_read_bytes),
        ("mcctl_node_served_reads_total", "counter", "Reads by peers", f.served_reads),
        ("mcctl_node_served_write_bytes_total", "counter", "Bytes that peers wrote to this node", f.served_write_bytes),
        ("mcctl_node_served_writes_total", "counter", "Writes by peers", f.served_writes),
        ("mcctl_node_served_refusals_total", "counter", "Requests of peers that were refused", f.served_refusals),
        ("mooncake_transfer_read_bytes", "counter", "Bytes that this node's own client read", f.client_read_bytes),
        ("mooncake_transfer_write_bytes", "counter", "Bytes that this node's own client wrote", f.client_write_bytes),
        ("mcctl_node_segment_bytes", "gauge", "Bytes of memory that are mounted", f.segment_bytes),
        ("mcctl_node_connections", "gauge", "Connections of peers that are open", f.connections),
    ];
    let mut text = String::new();
    for (name, kind, help, value) in families {
        let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}\n{name} {value}");
    }
    text + &f.ways.metrics()
}

pub(in crate::engine::store) fn failure(status: StatusCode, error: &str, reason: Option<&str>) -> Response {
    json(status, &Failure { error, reason })
}

/// JSON as Python writes it, with a blank after `:` and `,`, which scripts may have come to match.
pub(in crate::engine::store) fn json(status: StatusCode, body: &impl Serialize) -> Response {
    let mut text = Vec::new();
    body.serialize(&mut serde_json::Serializer::with_formatter(&mut text, Blanks))
        .expect("plain structs and strings always have a JSON form");
    answer(status, JSON, Bytes::from(text))
}

fn other_method(allowed: &'static str) -> Response {
    let mut response = answer(StatusCode::METHOD_NOT_ALLOWED, PLAIN_TEXT, "405: Method Not Allowed");
    response.headers_mut().insert("allow", hyper::header::HeaderValue::from_static(allowed));
    response
}

struct Blanks;

impl serde_json::ser::Formatter for Blanks {
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
struct Status<'a> {
    status: &'a str,
}

#[derive(Serialize)]
struct Exists {
    exists: bool,
}

#[derive(Serialize)]
struct Health<'a> {
    status: &'a str,
    code: u8,
}

#[derive(Serialize)]
struct Failure<'a> {
    error: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'a str>,
}

const JSON: &str = "application/json; charset=utf-8";
const PLAIN_TEXT: &str = "text/plain; charset=utf-8";
const METRICS_TEXT: &str = "text/plain; version=0.0.4";
/// The message of upstream's JSON reader for a body that does not begin with a value.
pub(in crate::engine::store) const NO_JSON: &str = "Expecting value: line 1 column 1 (char 0)";
pub(in crate::engine::store) const BROKEN: StatusCode = StatusCode::INTERNAL_SERVER_ERROR;

/// What a reader sees as "not there": an object that is still being written is not there yet.
const ABSENT: [ErrorCode; 2] = [ErrorCode::OBJECT_NOT_FOUND, ErrorCode::REPLICA_IS_NOT_READY];
const UNREACHABLE: [ErrorCode; 2] = [ErrorCode::RPC_FAIL, ErrorCode::RPC_TIMEOUT];

/// One operation, with its transfer.
const OPERATION_LIMIT: Duration = Duration::from_secs(30);
/// Objects that are stored at once.
const STORING_MAX: usize = 32;
/// Bytes of all objects in answers to `GET /api/get`, from before they are read until their peers have taken them. Further ones wait. A
/// single larger object is answered when no other is.
pub const READING_BYTES_MAX: usize = 256 << 20;
/// What objects are counted in.
const ROOM_UNIT: usize = 64 << 10;
/// JSON texts up to this size are read where they came in.
const PARSE_INLINE_MAX: usize = 1 << 20;

/// Upstream's bound of a body is 100 MiB.
const LIMITS: Limits = Limits {
    body_bytes_max: 100 << 20,
    bodies_bytes_max: 400 << 20,
    body: Duration::from_secs(60),
    answer: Duration::from_secs(60),
    ..Limits::SMALL
};
