//! The master's admin HTTP API for probes, Prometheus, SGLang and operators. Only `POST /api/v1/remove_all` changes the state.
//!
//! Routes, response bodies and status codes match mooncake_master 0.3.13 (captured; `fixtures/http/admin.txt`). Differences:
//!
//! * `/ready` returns 200 only while clients are being served.
//! * `/health` returns 503 while RPC worker threads are stuck; upstream's always returns 200.
//! * `/api/v1/mcctl/discovery` returns the nodes' metadata mode.
//! * Additional routes and methods: `/version`, a list of routes on `/`, and HEAD.
//! * `/query_key` decodes the key and grants no lease.
//! * Long lists are sent page by page, so that the state does not stay locked while a whole list is built.
//!
//! Upstream's routes for drain jobs and tenant quotas are not implemented.

use std::collections::{BTreeMap, HashSet};
use std::fmt::Write;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use serde::Serialize;

use crate::engine::base::{ErrorCode, HostPort};
use crate::engine::env::Env;
use crate::engine::http::{
    self, BindError, Handler, HttpLimits, HttpRequest, HttpServer, Method, OTHER_ROUTE, Requests, Response,
    ResponseBody, StatusCode, answer, decode, no_such_route,
};
use crate::engine::master::announcer::Announcer;
use crate::engine::master::metrics::{SegmentUsage, exposition};
use crate::engine::master::summary::{PERIOD, SummaryBaselines};
use crate::engine::master::view::{AdminView, ReplicaView, SegmentView, segment_status_name};
use crate::engine::metadata::discovery;

/// The admin API of one master.
pub struct AdminApi<E> {
    env: E,
    view: Arc<dyn AdminView>,
    baselines: Mutex<SummaryBaselines>,
    announcer: Option<Announcer<E>>,
    requests: Arc<Requests>,
    more_metrics: OnceLock<fn() -> String>,
}

/// All routes, for the request metrics and the list on `/`.
const ROUTES: &[&str] = &[
    "/",
    "/metrics",
    "/metrics/summary",
    "/health",
    "/ready",
    "/role",
    "/ha_status",
    "/leader",
    "/version",
    "/get_all_keys",
    "/get_all_segments",
    "/get_segments_detail",
    "/query_segment",
    "/query_key",
    "/batch_query_keys",
    "/api/v1/segments/status",
    "/api/v1/remove_all",
    "/kv_events/status",
    discovery::ROUTE,
    CLIENTS_ROUTE,
];

/// Route that returns the last heartbeat of each client with a mounted segment.
pub const CLIENTS_ROUTE: &str = "/api/v1/mcctl/clients";
/// Value of `schema` in the response from [`CLIENTS_ROUTE`].
pub const CLIENTS_SCHEMA: &str = "mcctl.clients/1";

impl<E: Env> AdminApi<E> {
    /// Creates an admin API for `view`.
    pub fn new(env: E, view: Arc<dyn AdminView>) -> Arc<AdminApi<E>> {
        AdminApi::announcing(env, view, None)
    }

    /// Creates an admin API for `view`, with [`discovery::ROUTE`] if an `announcer` is given.
    pub fn announcing(env: E, view: Arc<dyn AdminView>, announcer: Option<Announcer<E>>) -> Arc<AdminApi<E>> {
        let baselines = Mutex::new(SummaryBaselines::starting(env.now()));
        let (requests, more_metrics) = (Arc::default(), OnceLock::new());
        Arc::new(AdminApi { env, view, baselines, announcer, requests, more_metrics })
    }

    /// Appends the output of `more` to `/metrics`. Only the first call has an effect.
    pub fn append_metrics(&self, more: fn() -> String) {
        let _ = self.more_metrics.set(more);
    }

    /// The HTTP request counts. Other servers in the process may share them.
    pub fn http_requests(&self) -> &Arc<Requests> {
        &self.requests
    }

    /// Starts listening on `at`. Port 0 selects a free port.
    ///
    /// # Errors
    /// [`BindError`] if the address is not available.
    pub async fn start(self: &Arc<Self>, at: &HostPort) -> Result<HttpServer, BindError> {
        http::start(self.env.clone(), at, HttpLimits::SMALL, self.clone()).await
    }

    /// Passes the summary line to `report` every ten seconds, as long as the future is polled.
    pub async fn report(&self, mut report: impl FnMut(&str) + Send) {
        loop {
            self.env.sleep(PERIOD).await;
            report(&self.summary());
        }
    }

    /// The current summary line.
    pub fn summary(&self) -> String {
        let (counters, gauges) = self.view.metrics();
        let now = self.env.now();
        let mut baselines = self.baselines.lock().unwrap_or_else(PoisonError::into_inner);
        let line = baselines.line(now, &self.view.service(), &counters, &gauges);
        baselines.keep(now, &counters);
        line
    }
}

impl<E: Env> Handler for AdminApi<E> {
    fn requests(&self) -> Option<&Requests> {
        Some(&self.requests)
    }

    fn route(&self, path: &str) -> &'static str {
        ROUTES.iter().find(|route| **route == path).copied().unwrap_or(OTHER_ROUTE)
    }

    async fn handle(&self, request: HttpRequest) -> Response {
        let service = self.view.service();
        let state = service.state;
        match (&request.method, request.path()) {
            // A HEAD request is handled like GET; the server omits the body.
            (&(Method::GET | Method::HEAD), _) => {}
            (&Method::POST, "/api/v1/remove_all") if state.is_serving() => return self.remove_all(&request).await,
            (&Method::POST, "/api/v1/remove_all") => return not_serving(),
            _ => return no_such_route(),
        }
        let stuck = self.view.stuck_for();
        match request.path() {
            "/metrics" => return text(StatusCode::OK, METRICS_TEXT, self.metrics()),
            "/metrics/summary" => return text(StatusCode::OK, METRICS_TEXT, self.summary()),
            "/health" => {
                // Upstream always returns 200. Most probes check only the status code, so it must also reflect stuck workers.
                let (code, status) = match stuck {
                    None => (StatusCode::OK, "ok"),
                    Some(_) => (StatusCode::SERVICE_UNAVAILABLE, "stuck"),
                };
                return json(
                    code,
                    &HealthBody {
                        status,
                        role: state.role(),
                        ha_state: state.name(),
                        service_ready: state.is_serving() && stuck.is_none(),
                        leader_address: service.leader.as_ref().map(|l| &*l.address),
                        view_version: service.leader.as_ref().map(|l| l.view_version),
                    },
                );
            }
            "/ready" if stuck.is_some() => {
                let seconds = stuck.unwrap_or_default().as_secs();
                let why = format!("not ready: an RPC worker thread has been stuck for {seconds} s");
                return text(StatusCode::SERVICE_UNAVAILABLE, PLAIN_TEXT, why);
            }
            "/ready" if state.is_serving() => return text(StatusCode::OK, PLAIN_TEXT, "ready".into()),
            "/ready" => {
                let why = format!("not ready: the master is {}", state.name());
                return text(StatusCode::SERVICE_UNAVAILABLE, PLAIN_TEXT, why);
            }
            discovery::ROUTE => return self.announcement(),
            "/" => return text(StatusCode::OK, PLAIN_TEXT, ROUTES.join("\n") + "\n"),
            "/version" => {
                let (version, mooncake) = (env!("CARGO_PKG_VERSION"), MOONCAKE_VERSION);
                return json(StatusCode::OK, &VersionBody { version, mooncake });
            }
            "/role" => return text(StatusCode::OK, PLAIN_TEXT, state.role().into()),
            "/ha_status" => return text(StatusCode::OK, PLAIN_TEXT, state.name().into()),
            "/leader" => {
                return json(
                    StatusCode::OK,
                    &LeaderBody {
                        present: service.leader.is_some(),
                        leader_address: service.leader.as_ref().map(|l| &*l.address),
                        view_version: service.leader.as_ref().map(|l| l.view_version),
                    },
                );
            }
            _ => {}
        }
        let route: fn(&Self, &HttpRequest) -> Response = match request.path() {
            "/get_all_keys" => |admin, _| admin.all_keys(),
            "/get_all_segments" => |admin, _| admin.all_segments(),
            "/get_segments_detail" => |admin, _| admin.segments_detail(),
            "/query_segment" => AdminApi::query_segment,
            "/query_key" => AdminApi::query_key,
            "/batch_query_keys" => AdminApi::batch_query_keys,
            "/api/v1/segments/status" => AdminApi::segment_status,
            "/kv_events/status" => |_, _| answer(StatusCode::OK, JSON, NO_KV_EVENTS),
            CLIENTS_ROUTE => |admin, _| admin.clients(),
            _ => return no_such_route(),
        };
        if !state.is_serving() {
            return not_serving();
        }
        route(self, &request)
    }
}

impl<E: Env> AdminApi<E> {
    fn metrics(&self) -> String {
        let (counters, gauges) = self.view.metrics();
        let mut by_name = BTreeMap::<String, SegmentUsage>::new();
        self.each_segment(|segment| add_use(&mut by_name, &segment));
        let mut text = exposition(&counters, &gauges, by_name.iter().map(|(name, usage)| (&**name, usage)));
        text.push_str(&self.requests.exposition());
        if let Some(more) = self.more_metrics.get() {
            text.push_str(&more());
        }
        text
    }

    fn announcement(&self) -> Response {
        let Some(announcer) = &self.announcer else { return no_such_route() };
        // The first page is enough to determine whether nodes use the embedded service.
        let mut nodes = Vec::new();
        self.view.segments(0, SEGMENTS_PER_PAGE, &mut |segment| nodes.push(segment.endpoint.to_owned()));
        json(StatusCode::OK, &announcer.announcement(&nodes))
    }

    fn clients(&self) -> Response {
        let mut heartbeats = BTreeMap::new();
        let mut cursor = Some(0);
        while let Some(at) = cursor {
            cursor = self.view.heartbeats(at, SEGMENTS_PER_PAGE, &mut |client, age| {
                heartbeats.insert(client.to_string(), age);
            });
        }
        let milliseconds = |age: Duration| u64::try_from(age.as_millis()).unwrap_or(u64::MAX);
        let clients = heartbeats
            .into_iter()
            .map(|(client_id, age)| ClientHeartbeatBody { client_id, last_heartbeat_ms: milliseconds(age) })
            .collect();
        json(StatusCode::OK, &ClientHeartbeats { schema: CLIENTS_SCHEMA, clients })
    }

    fn all_keys(&self) -> Response {
        let view = self.view.clone();
        let mut cursor = Some(0);
        let mut page = move || {
            let mut keys = Vec::new();
            cursor = view.keys(cursor?, KEYS_PER_PAGE, &mut |key| {
                keys.extend_from_slice(key);
                keys.push(b'\n');
            });
            Some((Bytes::from(keys), cursor.is_none()))
        };
        let body = match page() {
            Some((first, false)) => {
                let mut first = Some(first);
                ResponseBody::paged(move || first.take().or_else(|| page().map(|(keys, _)| keys)))
            }
            whole => ResponseBody::from(whole.map(|(keys, _)| keys).unwrap_or_default()),
        };
        answer(StatusCode::OK, METRICS_TEXT, body)
    }

    /// Removes all objects. Leased objects are removed only with `?force=true`. All tenants share one store, so `tenant_id` is ignored, as
    /// in upstream without multi-tenancy. The removal continues even if the client disconnects.
    async fn remove_all(&self, request: &HttpRequest) -> Response {
        let (view, force) = (self.view.clone(), request.param("force") == Some("true"));
        let walk = tokio::spawn(async move {
            let (mut removed, mut next) = view.remove_slice(None, force);
            while let Some(walk) = next {
                tokio::task::yield_now().await;
                let (more, rest) = view.remove_slice(Some(walk), force);
                removed += more;
                next = rest;
            }
            tracing::info!(removed, force, "objects removed by /api/v1/remove_all");
            removed
        });
        match walk.await {
            Ok(removed_count) => json(StatusCode::OK, &RemoveAllBody { success: true, removed_count }),
            Err(_) => failure(StatusCode::INTERNAL_SERVER_ERROR, ErrorCode::INTERNAL_ERROR, "INTERNAL_ERROR"),
        }
    }

    fn all_segments(&self) -> Response {
        let mut names = String::new();
        self.each_segment(|segment| {
            names.push_str(segment.name);
            names.push('\n');
        });
        text(StatusCode::OK, METRICS_TEXT, names)
    }

    fn segments_detail(&self) -> Response {
        let mut details = Vec::new();
        let mut by_name = BTreeMap::<String, SegmentUsage>::new();
        self.each_segment(|segment| {
            add_use(&mut by_name, &segment);
            details.push(SegmentDetailBody {
                segment_name: segment.name.to_owned(),
                segment_id: segment.id.to_string(),
                client_id: segment.client.to_string(),
                base_address: format!("{:#x}", segment.base),
                size_bytes: segment.bytes,
                size_human: format!("{} GiB", SixDigits(segment.bytes as f64 / f64::from(1 << 30))),
                te_endpoint: segment.endpoint.to_owned(),
                protocol: segment.protocol.to_owned(),
                status: segment_status_name(segment.status),
                allocator_used_bytes: 0,
                allocator_capacity_bytes: 0,
                allocator_usage_percent: 0.0,
            });
        });
        // As in upstream, usage is reported per name: the same value is returned for all segments with the same name.
        for detail in &mut details {
            let Some(usage) = by_name.get(&detail.segment_name) else { continue };
            detail.allocator_used_bytes = usage.used_bytes;
            detail.allocator_capacity_bytes = usage.capacity_bytes;
            if usage.capacity_bytes > 0 {
                detail.allocator_usage_percent = 100.0 * usage.used_bytes as f64 / usage.capacity_bytes as f64;
            }
        }
        json(StatusCode::OK, &SegmentsDetailBody { total_segments: details.len(), segments: details })
    }

    fn query_segment(&self, request: &HttpRequest) -> Response {
        let name = decode(request.param("segment").unwrap_or_default());
        let mut found = None::<SegmentUsage>;
        self.each_segment(|segment| {
            if segment.name.as_bytes() == &*name {
                let usage = found.get_or_insert_default();
                usage.used_bytes += segment.used_bytes;
                usage.capacity_bytes += segment.bytes;
            }
        });
        let Some(usage) = found else {
            return text(StatusCode::INTERNAL_SERVER_ERROR, METRICS_TEXT, "Failed to query segment".into());
        };
        let name = String::from_utf8_lossy(&name);
        let SegmentUsage { used_bytes, capacity_bytes } = usage;
        let body = format!("{name}\nUsed(bytes): {used_bytes}\nCapacity(bytes) : {capacity_bytes}\n");
        text(StatusCode::OK, METRICS_TEXT, body)
    }

    fn segment_status(&self, request: &HttpRequest) -> Response {
        let Some(name) = request.param("segment").filter(|name| !name.is_empty()) else {
            return failure(StatusCode::BAD_REQUEST, ErrorCode::INVALID_PARAMS, "Missing segment query parameter");
        };
        let name = decode(name);
        let mut found = None;
        self.each_segment(|segment| {
            if segment.name.as_bytes() == &*name {
                found.get_or_insert(segment.status);
            }
        });
        let Some(status) = found else {
            return failure(StatusCode::NOT_FOUND, ErrorCode::SEGMENT_NOT_FOUND, "SEGMENT_NOT_FOUND");
        };
        json(
            StatusCode::OK,
            &SegmentStatusBody {
                success: true,
                segment: &String::from_utf8_lossy(&name),
                status,
                status_name: segment_status_name(status),
                error_code: 0,
                error_message: "",
            },
        )
    }

    fn query_key(&self, request: &HttpRequest) -> Response {
        let key = decode(request.param("key").unwrap_or_default());
        match self.view.replicas(&key) {
            Ok(replicas) => json(
                StatusCode::OK,
                &KeyReplicasBody { success: true, data: replicas.iter().map(ReplicaBody::from).collect() },
            ),
            Err(code) => failure(StatusCode::NOT_FOUND, code, &name_of(code)),
        }
    }

    /// Like upstream, this decodes the query before splitting it at commas. An encoded comma therefore separates keys, too.
    fn batch_query_keys(&self, request: &HttpRequest) -> Response {
        let keys = decode(request.param("keys").unwrap_or_default());
        let mut unique = HashSet::<&[u8]>::new();
        let mut body = String::from("{\"success\":true,\"data\":{");
        for key in keys.split(|byte| *byte == b',').filter(|key| !key.is_empty()) {
            if !unique.insert(key) {
                continue;
            }
            let comma = if unique.len() > 1 { "," } else { "" };
            let found = self.view.replicas(key);
            let values = found.as_ref().ok().map(|found| found.iter().map(ReplicaBody::from).collect::<Vec<_>>());
            let entry = BatchEntryBody {
                ok: found.is_ok(),
                error: found.as_ref().err().map(|code| name_of(*code)),
                values,
                disk_values: None,
                local_disk_values: None,
                nof_values: None,
            };
            let _ = write!(body, "{comma}{}:{}", to_json(&String::from_utf8_lossy(key)), to_json(&entry));
        }
        if unique.is_empty() {
            return answer(StatusCode::BAD_REQUEST, JSON, NO_KEYS);
        }
        body.push_str("}}");
        text(StatusCode::OK, JSON, body)
    }

    /// Visits every mounted segment, one page at a time.
    fn each_segment(&self, mut visit: impl FnMut(SegmentView<'_>)) {
        let mut cursor = Some(0);
        while let Some(at) = cursor {
            cursor = self.view.segments(at, SEGMENTS_PER_PAGE, &mut visit);
        }
    }
}

fn add_use(by_name: &mut BTreeMap<String, SegmentUsage>, segment: &SegmentView<'_>) {
    if !by_name.contains_key(segment.name) {
        by_name.insert(segment.name.to_owned(), SegmentUsage::default());
    }
    if let Some(usage) = by_name.get_mut(segment.name) {
        usage.used_bytes += segment.used_bytes;
        usage.capacity_bytes += segment.bytes;
    }
}

fn text(status: StatusCode, content_type: &'static str, body: String) -> Response {
    answer(status, content_type, body)
}

fn json(status: StatusCode, body: &impl Serialize) -> Response {
    text(status, JSON, to_json(body))
}

fn to_json(value: &(impl Serialize + ?Sized)) -> String {
    serde_json::to_string(value).expect("plain structs and strings can always be serialized as JSON")
}

fn failure(status: StatusCode, code: ErrorCode, message: &str) -> Response {
    json(status, &FailureBody { success: false, error_code: code.0, error_message: message })
}

/// The response for service routes on a master that is not serving.
fn not_serving() -> Response {
    let code = ErrorCode::UNAVAILABLE_IN_CURRENT_MODE;
    failure(StatusCode::SERVICE_UNAVAILABLE, code, "service plane is not active")
}

fn name_of(code: ErrorCode) -> String {
    code.name().map_or_else(|| code.to_string(), str::to_owned)
}

#[derive(Serialize)]
struct HealthBody<'a> {
    status: &'a str,
    role: &'a str,
    ha_state: &'a str,
    service_ready: bool,
    leader_address: Option<&'a str>,
    view_version: Option<u64>,
}

#[derive(Serialize)]
struct VersionBody<'a> {
    version: &'a str,
    mooncake: &'a str,
}

#[derive(Serialize)]
struct LeaderBody<'a> {
    present: bool,
    leader_address: Option<&'a str>,
    view_version: Option<u64>,
}

#[derive(Serialize)]
struct FailureBody<'a> {
    success: bool,
    error_code: i32,
    error_message: &'a str,
}

#[derive(Serialize)]
struct SegmentsDetailBody {
    total_segments: usize,
    segments: Vec<SegmentDetailBody>,
}

#[derive(Serialize)]
struct SegmentDetailBody {
    segment_name: String,
    segment_id: String,
    client_id: String,
    base_address: String,
    size_bytes: u64,
    size_human: String,
    te_endpoint: String,
    protocol: String,
    status: &'static str,
    allocator_used_bytes: u64,
    allocator_capacity_bytes: u64,
    allocator_usage_percent: f64,
}

#[derive(Serialize)]
struct SegmentStatusBody<'a> {
    success: bool,
    segment: &'a str,
    status: i32,
    status_name: &'a str,
    error_code: i32,
    error_message: &'a str,
}

#[derive(Serialize)]
struct ClientHeartbeats {
    schema: &'static str,
    clients: Vec<ClientHeartbeatBody>,
}

#[derive(Serialize)]
struct ClientHeartbeatBody {
    client_id: String,
    last_heartbeat_ms: u64,
}

#[derive(Serialize)]
struct RemoveAllBody {
    success: bool,
    removed_count: u64,
}

#[derive(Serialize)]
struct KeyReplicasBody<'a> {
    success: bool,
    data: Vec<ReplicaBody<'a>>,
}

/// The last three fields are always null: mcctl stores replicas in memory only.
#[derive(Serialize)]
struct BatchEntryBody<'a> {
    ok: bool,
    error: Option<String>,
    values: Option<Vec<ReplicaBody<'a>>>,
    disk_values: Option<()>,
    local_disk_values: Option<()>,
    nof_values: Option<()>,
}

#[derive(Serialize)]
struct ReplicaBody<'a> {
    size_: u64,
    buffer_address_: u64,
    protocol_: &'a str,
    transport_endpoint_: &'a str,
}

impl<'a> From<&'a ReplicaView> for ReplicaBody<'a> {
    fn from(replica: &'a ReplicaView) -> ReplicaBody<'a> {
        ReplicaBody {
            size_: replica.bytes,
            buffer_address_: replica.address,
            protocol_: &replica.protocol,
            transport_endpoint_: &replica.endpoint,
        }
    }
}

/// A number with at most six significant digits and no trailing zeros, as printed by C++ streams.
struct SixDigits(f64);

impl std::fmt::Display for SixDigits {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let scientific = format!("{:.5e}", self.0);
        let rounded: f64 = scientific.parse().unwrap_or(self.0);
        write!(f, "{rounded}")
    }
}

/// The Mooncake release that these routes match.
const MOONCAKE_VERSION: &str = crate::engine::upstream::SERIES;
const JSON: &str = "application/json; charset=utf-8";
const PLAIN_TEXT: &str = "text/plain; charset=utf-8";
/// Upstream uses this content type for all its plain-text responses.
const METRICS_TEXT: &str = "text/plain; version=0.0.4";
const NO_KEYS: &str = "{\"success\":false,\"error\":\"No keys provided. Use ?keys=key1,key2,...\"}";
const NO_KV_EVENTS: &str = "{\"enabled\":false,\"published_batches\":0,\"published_events\":0,\"dropped_events\":0,\"skipped_unparsed_keys\":0}";
/// Number of keys per page. Copying a page of 100-byte keys takes tens of microseconds.
const KEYS_PER_PAGE: usize = 512;
const SEGMENTS_PER_PAGE: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_in_gib_has_at_most_six_digits() {
        for (bytes, text) in
            [(16u64 << 20, "0.015625"), (64 << 20, "0.0625"), (3_355_443_200, "3.125"), (1, "0.000000000931323")]
        {
            assert_eq!(SixDigits(f64::from(1 << 30).recip() * bytes as f64).to_string(), text);
        }
    }
}
