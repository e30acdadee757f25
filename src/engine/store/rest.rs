//! The store node's REST API: objects for programs that use neither the RPC protocol nor the
//! transfer engine.
//!
//! Routes, messages and status codes match `mooncake_store_service` 0.3.13 (captured in
//! `fixtures/http/rest.txt`) for put, get, exist, remove, and the routes that mount and unmount
//! memory ([`rest_segments`]). Differences:
//!
//! * Keys may contain `/`, percent-encoded or plain.
//! * A call that waits for the master does not delay other calls, and has a time limit.
//! * Error responses include a `reason`.
//! * There are additional routes: `/health` (with the same response as upstream's client HTTP
//!   server), `/metrics` and `/transport`.
//!
//! [`rest_segments`]: crate::rest_segments

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tokio::sync::Semaphore;

use crate::object_store::{NodeHealth, NodeMetrics, ObjectStore, READING_BYTES_MAX, ReadBudget, ReadPermit};
use crate::rest_response::{BROKEN, NO_JSON, failure, json};
use crate::rest_segments;
use mcctl_base::{ErrorCode, HostPort, ObjectKey};
use mcctl_net::http::{
    self, BindError, Handler, HttpAccess, HttpLimits, HttpRequest, HttpServer, Method, OTHER_ROUTE, Requests, Response,
    StatusCode, answer, decode,
};
use mcctl_sys::env::{Env, deadline};

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

/// Serves `store` on `at`, for the requests that `access` allows. Port 0 selects a free port.
///
/// # Errors
/// [`BindError`] if the address is not available.
pub async fn start<E: Env, S: ObjectStore>(
    env: E,
    at: &HostPort,
    access: HttpAccess,
    store: Arc<S>,
) -> Result<HttpServer, BindError> {
    let storing = Semaphore::new(STORING_MAX);
    let budget = ReadBudget::new(READING_BYTES_MAX);
    let rest = RestApi { env: env.clone(), store, storing, budget, requests: Requests::default() };
    http::start_with(env, at, LIMITS, access, Arc::new(rest)).await
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
            // The budget is released together with the last reference to the bytes: when the client
            // has received them or disconnected.
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
        // If the body does not start like JSON, upstream returns its JSON parser's message with
        // this status.
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

fn other_method(allowed: &'static str) -> Response {
    let mut response = answer(StatusCode::METHOD_NOT_ALLOWED, PLAIN_TEXT, "405: Method Not Allowed");
    response.headers_mut().insert("allow", hyper::header::HeaderValue::from_static(allowed));
    response
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

const PLAIN_TEXT: &str = "text/plain; charset=utf-8";
const METRICS_TEXT: &str = "text/plain; version=0.0.4";
/// Codes reported to readers as "not found". They include the code for an object that is still
/// being written.
const ABSENT: [ErrorCode; 2] = [ErrorCode::OBJECT_NOT_FOUND, ErrorCode::REPLICA_IS_NOT_READY];
const UNREACHABLE: [ErrorCode; 2] = [ErrorCode::RPC_FAIL, ErrorCode::RPC_TIMEOUT];

/// Time limit for one operation, including its transfer.
const OPERATION_LIMIT: Duration = Duration::from_secs(30);
/// Maximum number of concurrent puts.
const STORING_MAX: usize = 32;
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
