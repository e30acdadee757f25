//! The server of the admin HTTP API: routes, statuses and content types, over an [`AdminService`].
//!
//! They match mooncake_master 0.3.13 (captured; `fixtures/http/admin.txt`). Differences:
//!
//! * `/ready` returns 200 only while clients are being served.
//! * `/health` returns 503 while RPC worker threads are stuck; upstream's always returns 200.
//! * `/api/v1/mcctl/discovery` returns the nodes' metadata mode.
//! * Additional routes and methods: `/version`, a list of routes on `/`, and HEAD.
//! * `/query_key` decodes the key and grants no lease.
//!
//! Upstream's routes for drain jobs and tenant quotas are not implemented.

use std::collections::HashSet;
use std::future::Future;
use std::sync::Arc;

use serde::Serialize;

use crate::admin::routes;
use crate::admin::types::{
    AdminFailure, Announcement, ClientHeartbeats, HaStatusReport, KeyBatch, KeyEntries, KeyEntry, KeyReplicas,
    MasterHealth, MasterLeader, MasterVersion, MemoryReplica, MemoryUsage, NamedSegmentStatus, ObjectsRemoved,
    SegmentsDetail, SteppedDown,
};
use mcctl_base::{ErrorCode, HostPort};
use mcctl_net::http::{
    self, BindError, Handler, HttpAccess, HttpLimits, HttpRequest, HttpServer, Method, OTHER_ROUTE, Requests, Response,
    ResponseBody, StatusCode, answer, decode, no_such_route,
};
use mcctl_sys::env::Env;

/// A master behind the admin HTTP API. The methods run on the server's task, so they must not wait.
pub trait AdminService: Send + Sync + 'static {
    /// The counters of the HTTP requests.
    fn requests(&self) -> &Requests;

    /// The role and state of the master.
    fn health(&self) -> MasterHealth;

    /// Whether the master serves clients. If not, the routes about segments and objects respond
    /// with status 503.
    fn is_serving(&self) -> bool;

    /// Why the master is not ready, even if it serves clients; `None` if it is ready.
    fn not_ready(&self) -> Option<String>;

    /// The master's part in its cluster; `None` without high availability.
    fn ha_status(&self) -> Option<HaStatusReport> {
        None
    }

    /// Hands over to a standby.
    fn step_down(&self) -> impl Future<Output = SteppedDown> + Send;

    /// The leader of the HA cluster.
    fn leader(&self) -> MasterLeader;

    /// The releases of the master.
    fn version(&self) -> MasterVersion;

    /// The metrics in the Prometheus text format.
    fn metrics(&self) -> String;

    /// One line that summarizes the metrics.
    fn summary(&self) -> String;

    /// The announcement of the nodes' metadata mode, if the master makes one.
    fn announcement(&self) -> Option<Announcement>;

    /// The last heartbeat of each client with a mounted segment.
    fn heartbeats(&self) -> ClientHeartbeats;

    /// All keys of a tenant, one per line; an empty name is the default tenant.
    fn keys(&self, tenant: &[u8]) -> ResponseBody;

    /// The names of all mounted segments, one per line.
    fn segment_names(&self) -> String;

    /// Returns all mounted segments.
    fn segments(&self) -> SegmentsDetail;

    /// The usage of all segments with this name, if there are any.
    fn segment_usage(&self, name: &[u8]) -> Option<MemoryUsage>;

    /// The status of the first segment with this name.
    fn segment_status(&self, name: &[u8]) -> Option<NamedSegmentStatus>;

    /// The complete memory replicas of `key` of a tenant.
    ///
    /// # Errors
    /// `OBJECT_NOT_FOUND`, or `REPLICA_IS_NOT_READY` while the object is being written.
    fn replicas(&self, tenant: &[u8], key: &[u8]) -> Result<Vec<MemoryReplica>, ErrorCode>;

    /// Removes all objects of a tenant, or of all tenants; with `force`, also leased ones. Returns
    /// their number, or `None` after an internal error.
    fn remove_all(&self, force: bool, tenant: Option<&[u8]>) -> impl Future<Output = Option<u64>> + Send;
}

/// Starts an admin HTTP server for `service` on `at`, for the requests that `access` allows. Port
/// 0 selects a free port.
///
/// # Errors
/// [`BindError`] if the address is not available.
pub async fn start<E: Env>(
    env: E,
    at: &HostPort,
    access: HttpAccess,
    service: Arc<impl AdminService>,
) -> Result<HttpServer, BindError> {
    http::start_with(env, at, HttpLimits::SMALL, access, Arc::new(AdminRoutes(service))).await
}

/// Passes requests to an [`AdminService`].
struct AdminRoutes<S>(Arc<S>);

impl<S: AdminService> Handler for AdminRoutes<S> {
    fn requests(&self) -> Option<&Requests> {
        Some(self.0.requests())
    }

    fn route(&self, path: &str) -> &'static str {
        routes::ALL.iter().find(|route| **route == path).copied().unwrap_or(OTHER_ROUTE)
    }

    async fn handle(&self, request: HttpRequest) -> Response {
        let service = &*self.0;
        match (&request.method, request.path()) {
            // A HEAD request is handled like GET; the server omits the body.
            (&(Method::GET | Method::HEAD), _) => {}
            (&Method::POST, routes::REMOVE_ALL) if service.is_serving() => return remove_all(service, &request).await,
            (&Method::POST, routes::REMOVE_ALL) => return not_serving(),
            (&Method::POST, routes::STEP_DOWN) => return step_down(service).await,
            _ => return no_such_route(),
        }
        let about_objects: fn(&S, &HttpRequest) -> Response = match request.path() {
            routes::ALL_KEYS => |service, request| answer(StatusCode::OK, METRICS_TEXT, service.keys(&tenant(request))),
            routes::ALL_SEGMENTS => |service, _| text(StatusCode::OK, METRICS_TEXT, service.segment_names()),
            routes::SEGMENTS_DETAIL => |service, _| json(StatusCode::OK, &service.segments()),
            routes::QUERY_SEGMENT => query_segment,
            routes::QUERY_KEY => query_key,
            routes::BATCH_QUERY_KEYS => batch_query_keys,
            routes::SEGMENT_STATUS => segment_status,
            routes::KV_EVENTS => |_, _| answer(StatusCode::OK, JSON, NO_KV_EVENTS),
            routes::CLIENTS => |service, _| json(StatusCode::OK, &service.heartbeats()),
            routes::HA_STATUS if request.param("format") == Some("json") => {
                return service.ha_status().map_or_else(no_such_route, |status| json(StatusCode::OK, &status));
            }
            path => return about_master(service, path),
        };
        match service.is_serving() {
            true => about_objects(service, &request),
            false => not_serving(),
        }
    }
}

/// The routes that a standby serves, too.
fn about_master(service: &impl AdminService, path: &str) -> Response {
    match path {
        routes::INDEX => text(StatusCode::OK, PLAIN_TEXT, routes::ALL.join("\n") + "\n"),
        routes::METRICS => text(StatusCode::OK, METRICS_TEXT, service.metrics()),
        routes::SUMMARY => text(StatusCode::OK, METRICS_TEXT, service.summary()),
        routes::HEALTH => {
            let health = service.health();
            // Upstream always returns 200. Most probes check only the status code, so it must also
            // reflect stuck workers.
            let code = if health.status == "ok" { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
            json(code, &health)
        }
        routes::READY => match service.not_ready() {
            None => text(StatusCode::OK, PLAIN_TEXT, "ready".into()),
            Some(why) => text(StatusCode::SERVICE_UNAVAILABLE, PLAIN_TEXT, format!("not ready: {why}")),
        },
        routes::ROLE => text(StatusCode::OK, PLAIN_TEXT, service.health().role),
        routes::HA_STATUS => text(StatusCode::OK, PLAIN_TEXT, service.health().ha_state),
        routes::LEADER => json(StatusCode::OK, &service.leader()),
        routes::VERSION => json(StatusCode::OK, &service.version()),
        routes::DISCOVERY => service.announcement().map_or_else(no_such_route, |found| json(StatusCode::OK, &found)),
        _ => no_such_route(),
    }
}

/// Hands over to a standby. 409 if there is none, or if this master does not lead.
async fn step_down(service: &impl AdminService) -> Response {
    let done = service.step_down().await;
    json(if done.success { StatusCode::OK } else { StatusCode::CONFLICT }, &done)
}

/// Removes all objects. Leased objects are removed only with `?force=true`. With `tenant_id`, only
/// those of this tenant are removed.
async fn remove_all(service: &impl AdminService, request: &HttpRequest) -> Response {
    let tenant = request.param("tenant_id").map(decode);
    match service.remove_all(request.param("force") == Some("true"), tenant.as_deref()).await {
        Some(removed_count) => json(StatusCode::OK, &ObjectsRemoved { success: true, removed_count }),
        None => failure(StatusCode::INTERNAL_SERVER_ERROR, ErrorCode::INTERNAL_ERROR, "INTERNAL_ERROR"),
    }
}

fn query_segment(service: &impl AdminService, request: &HttpRequest) -> Response {
    let name = decode(request.param("segment").unwrap_or_default());
    let Some(MemoryUsage { used, capacity }) = service.segment_usage(&name) else {
        return text(StatusCode::INTERNAL_SERVER_ERROR, METRICS_TEXT, "Failed to query segment".into());
    };
    let name = String::from_utf8_lossy(&name);
    text(StatusCode::OK, METRICS_TEXT, format!("{name}\nUsed(bytes): {used}\nCapacity(bytes) : {capacity}\n"))
}

fn segment_status(service: &impl AdminService, request: &HttpRequest) -> Response {
    let Some(name) = request.param("segment").filter(|name| !name.is_empty()) else {
        return failure(StatusCode::BAD_REQUEST, ErrorCode::INVALID_PARAMS, "Missing segment query parameter");
    };
    match service.segment_status(&decode(name)) {
        Some(found) => json(StatusCode::OK, &found),
        None => failure(StatusCode::NOT_FOUND, ErrorCode::SEGMENT_NOT_FOUND, "SEGMENT_NOT_FOUND"),
    }
}

/// The tenant that a request names; empty for the default tenant.
fn tenant(request: &HttpRequest) -> std::borrow::Cow<'_, [u8]> {
    decode(request.param("tenant_id").unwrap_or_default())
}

fn query_key(service: &impl AdminService, request: &HttpRequest) -> Response {
    let key = decode(request.param("key").unwrap_or_default());
    match service.replicas(&tenant(request), &key) {
        Ok(data) => json(StatusCode::OK, &KeyReplicas { success: true, data }),
        Err(code) => failure(StatusCode::NOT_FOUND, code, &name_of(code)),
    }
}

/// Like upstream, this decodes the query before splitting it at commas. An encoded comma therefore
/// separates keys, too.
fn batch_query_keys(service: &impl AdminService, request: &HttpRequest) -> Response {
    let keys = decode(request.param("keys").unwrap_or_default());
    let mut unique = HashSet::<&[u8]>::new();
    let mut entries = Vec::new();
    for key in keys.split(|byte| *byte == b',').filter(|key| !key.is_empty()) {
        if !unique.insert(key) {
            continue;
        }
        let found = service.replicas(&tenant(request), key);
        let entry = KeyEntry {
            ok: found.is_ok(),
            error: found.as_ref().err().map(|code| name_of(*code)),
            values: found.ok(),
            ..KeyEntry::default()
        };
        entries.push((String::from_utf8_lossy(key).into_owned(), entry));
    }
    match entries.is_empty() {
        true => answer(StatusCode::BAD_REQUEST, JSON, NO_KEYS),
        false => json(StatusCode::OK, &KeyBatch { success: true, data: KeyEntries(entries) }),
    }
}

fn text(status: StatusCode, content_type: &'static str, body: String) -> Response {
    answer(status, content_type, body)
}

fn json(status: StatusCode, body: &impl Serialize) -> Response {
    let body = serde_json::to_string(body).expect("plain structs and strings can always be serialized as JSON");
    text(status, JSON, body)
}

fn failure(status: StatusCode, code: ErrorCode, message: &str) -> Response {
    json(status, &AdminFailure { success: false, error_code: code.0, error_message: message })
}

/// The response for routes about objects on a master that is not serving.
fn not_serving() -> Response {
    let code = ErrorCode::UNAVAILABLE_IN_CURRENT_MODE;
    failure(StatusCode::SERVICE_UNAVAILABLE, code, "service plane is not active")
}

fn name_of(code: ErrorCode) -> String {
    code.name().map_or_else(|| code.to_string(), str::to_owned)
}

const JSON: &str = "application/json; charset=utf-8";
const PLAIN_TEXT: &str = "text/plain; charset=utf-8";
/// Upstream uses this content type for all its plain-text responses.
const METRICS_TEXT: &str = "text/plain; version=0.0.4";
const NO_KEYS: &str = "{\"success\":false,\"error\":\"No keys provided. Use ?keys=key1,key2,...\"}";
const NO_KV_EVENTS: &str = "{\"enabled\":false,\"published_batches\":0,\"published_events\":0,\"dropped_events\":0,\"skipped_unparsed_keys\":0}";
