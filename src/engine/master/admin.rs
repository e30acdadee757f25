//! The master behind the admin HTTP API: the responses, built from its state.
//!
//! Long lists are sent page by page, so that the state does not stay locked while a whole list is
//! built. Only the removal of all objects changes the state.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use bytes::Bytes;

use crate::announcer::Announcer;
use crate::data_metrics::data_exposition;
use crate::ha_report::{ha_exposition, ha_status};
use crate::metrics::{SegmentUsage, exposition, heartbeat_exposition, latency_exposition, tenant_exposition};
use crate::metrics_line::{LINE_INTERVAL, metrics_line};
use crate::release_report::{release_exposition, release_report};
use crate::summary::SummaryBaselines;
use crate::tenant::TenantKeys;
use crate::view::{AdminView, HeartbeatView, LeaderView, ReplicaView, RunState, SegmentView, segment_status_name};
use mcctl_base::{ErrorCode, HostPort};
use mcctl_election::ha::HandOverProblem;
use mcctl_metadata::admin::AdminService;
use mcctl_metadata::admin::server;
use mcctl_metadata::admin::types::{
    Announcement, ClientHeartbeat, ClientHeartbeats, HaStatusReport, MasterHealth, MasterLeader, MasterVersion,
    MemoryReplica, MemoryUsage, NamedSegmentStatus, SegmentDetail, SegmentsDetail, SteppedDown,
};
use mcctl_net::http::{BindError, HttpAccess, HttpServer, Requests, ResponseBody};
use mcctl_net::rpc::CommitWait;
use mcctl_sys::env::Env;
use mcctl_wire::Text;
use mcctl_wire::types::Tenant;

/// The admin API of one master.
pub struct AdminApi<E> {
    env: E,
    view: Arc<dyn AdminView>,
    baselines: Mutex<SummaryBaselines>,
    announcer: Option<Announcer<E>>,
    requests: Arc<Requests>,
    more_metrics: OnceLock<fn() -> String>,
}

impl<E: Env> AdminApi<E> {
    /// Creates an admin API for `view`.
    pub fn new(env: E, view: Arc<dyn AdminView>) -> Arc<AdminApi<E>> {
        AdminApi::announcing(env, view, None)
    }

    /// Creates an admin API for `view`, with
    /// [`routes::DISCOVERY`](mcctl_metadata::admin::routes::DISCOVERY) if an `announcer` is given.
    pub fn announcing(env: E, view: Arc<dyn AdminView>, announcer: Option<Announcer<E>>) -> Arc<AdminApi<E>> {
        let baselines = Mutex::new(SummaryBaselines::starting(env.now()));
        let requests = Arc::default();
        let more_metrics = OnceLock::new();
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
        self.start_with(at, HttpAccess::default()).await
    }

    /// Starts listening on `at`, for the requests that `access` allows. Port 0 selects a free port.
    ///
    /// # Errors
    /// [`BindError`] if the address is not available.
    pub async fn start_with(self: &Arc<Self>, at: &HostPort, access: HttpAccess) -> Result<HttpServer, BindError> {
        server::start(self.env.clone(), at, access, self.clone()).await
    }

    /// Passes a line about the last ten seconds to `report`, every ten seconds, as long as the
    /// future is polled.
    pub async fn report(&self, mut report: impl FnMut(&str) + Send) {
        let (mut then, (mut before, _)) = (self.env.now(), self.view.metrics());
        loop {
            self.env.sleep(LINE_INTERVAL).await;
            let (at, (counters, gauges)) = (self.env.now(), self.view.metrics());
            let seconds = at.since(then).as_secs_f64();
            report(&metrics_line(self.view.ha().as_ref(), &gauges, &before, &counters, seconds));
            then = at;
            before = counters;
        }
    }

    /// Visits every mounted segment, one page at a time.
    fn each_segment(&self, mut visit: impl FnMut(SegmentView<'_>)) {
        let mut cursor = Some(0);
        while let Some(at) = cursor {
            cursor = self.view.segments(at, SEGMENTS_PER_PAGE, &mut visit);
        }
    }

    /// Visits the last heartbeat of every mounted segment's client, one page at a time.
    fn each_heartbeat(&self, mut visit: impl FnMut(HeartbeatView)) {
        let mut cursor = Some(0);
        while let Some(at) = cursor {
            cursor = self.view.heartbeats(at, SEGMENTS_PER_PAGE, &mut visit);
        }
    }

    /// The longest time since a heartbeat. Zero on a standby, which receives none.
    fn heartbeat_age_max(&self) -> Duration {
        let mut age_max = Duration::ZERO;
        if self.view.service().state == RunState::Serving {
            self.each_heartbeat(|heartbeat| age_max = age_max.max(heartbeat.age));
        }
        age_max
    }
}

impl<E: Env> AdminService for AdminApi<E> {
    fn requests(&self) -> &Requests {
        &self.requests
    }

    fn health(&self) -> MasterHealth {
        let service = self.view.service();
        let is_stuck = self.view.stuck_for().is_some();
        let MasterLeader { leader_address, view_version, .. } = leader_body(service.leader.as_ref());
        MasterHealth {
            status: if is_stuck { "stuck" } else { "ok" }.to_owned(),
            role: service.state.role().to_owned(),
            ha_state: service.state.name().to_owned(),
            service_ready: service.state.is_serving() && !is_stuck,
            leader_address,
            view_version,
        }
    }

    fn is_serving(&self) -> bool {
        self.view.service().state.is_serving()
    }

    fn not_ready(&self) -> Option<String> {
        let state = self.view.service().state;
        match self.view.stuck_for() {
            Some(stuck) => Some(format!("an RPC worker thread has been stuck for {} s", stuck.as_secs())),
            None if state.is_serving() => {
                let stalled = self.view.data()?.stalled_for?;
                Some(format!(
                    "the disk of the data directory has not completed an operation for {} s, and changes wait for it",
                    stalled.as_secs()
                ))
            }
            None if state == RunState::LeaderWarmup => Some(
                "this leader cannot prove that it leads, so all calls wait until etcd responds, or another master is elected"
                    .to_owned(),
            ),
            None => {
                let why = self.view.ha().and_then(|ha| ha.not_promotable);
                Some(format!("the master is {}{}", state.name(), why.map_or(String::new(), |why| format!("; {why}"))))
            }
        }
    }

    fn ha_status(&self) -> Option<HaStatusReport> {
        let free = self.view.data().and_then(|data| data.space).map(|space| space.free);
        Some(HaStatusReport { data_dir_free_bytes: free, ..ha_status(self.view.ha()?) })
    }

    async fn step_down(&self) -> SteppedDown {
        let why = match self.view.step_down().await {
            Ok(()) => return SteppedDown { success: true, error_message: None },
            Err(_) if self.view.ha().is_none() => "high availability is off".to_owned(),
            Err(
                problem @ (HandOverProblem::StandbyGone
                | HandOverProblem::NoProgress(_)
                | HandOverProblem::KeyCreatedAgain),
            ) => {
                format!("{problem}; this master keeps leading")
            }
            Err(problem) => problem.to_string(),
        };
        SteppedDown { success: false, error_message: Some(why) }
    }

    fn leader(&self) -> MasterLeader {
        leader_body(self.view.service().leader.as_ref())
    }

    fn version(&self) -> MasterVersion {
        MasterVersion { version: env!("CARGO_PKG_VERSION").to_owned(), mooncake: MOONCAKE_VERSION.to_owned() }
    }

    fn metrics(&self) -> String {
        let (counters, gauges) = self.view.metrics();
        let mut by_name = BTreeMap::<String, SegmentUsage>::new();
        self.each_segment(|segment| add_use(&mut by_name, &segment));
        let mut text = exposition(&counters, &gauges, by_name.iter().map(|(name, usage)| (&**name, usage)));
        text.push_str(&heartbeat_exposition(self.heartbeat_age_max()));
        text.push_str(&latency_exposition(&self.view.rpc_latency()));
        if let Some(releases) = self.view.client_releases() {
            text.push_str(&release_exposition(releases, self.env.now()));
        }
        text.push_str(&tenant_exposition(&self.view.tenants()));
        if let Some(data) = self.view.data() {
            text.push_str(&data_exposition(&data));
        }
        if let Some(ha) = self.view.ha() {
            text.push_str(&ha_exposition(&ha));
        }
        text.push_str(&self.requests.exposition());
        if let Some(more) = self.more_metrics.get() {
            text.push_str(&more());
        }
        text
    }

    fn summary(&self) -> String {
        let (counters, gauges) = self.view.metrics();
        let now = self.env.now();
        let mut baselines = self.baselines.lock().unwrap_or_else(PoisonError::into_inner);
        let line = baselines.line(now, &self.view.service(), self.view.ha().as_ref(), &counters, &gauges);
        baselines.keep(now, &counters);
        line
    }

    fn announcement(&self) -> Option<Announcement> {
        let announcer = self.announcer.as_ref()?;
        // The first page is enough to determine whether nodes use the embedded service.
        let mut nodes = Vec::new();
        self.view.segments(0, SEGMENTS_PER_PAGE, &mut |segment| nodes.push(segment.endpoint.to_owned()));
        Some(announcer.announcement(&nodes))
    }

    fn heartbeats(&self) -> ClientHeartbeats {
        let mut heartbeats = BTreeMap::new();
        self.each_heartbeat(|heartbeat| {
            heartbeats.insert(heartbeat.client.to_string(), heartbeat);
        });
        let clients = heartbeats
            .into_iter()
            .map(|(client_id, heartbeat)| ClientHeartbeat {
                client_id,
                last_heartbeat_ms: milliseconds(heartbeat.age),
                expires_ms: Some(milliseconds(heartbeat.expires_in)),
            })
            .collect();
        let (hosts, unknown_requests) =
            self.view.client_releases().map(|releases| release_report(releases, self.env.now())).unwrap_or_default();
        ClientHeartbeats { schema: ClientHeartbeats::SCHEMA.to_owned(), clients, hosts, unknown_requests }
    }

    fn keys(&self, tenant: &[u8]) -> ResponseBody {
        let view = self.view.clone();
        let tenant = tenant.to_vec();
        // An invalid tenant has no objects.
        let mut cursor = TenantKeys::of(Tenant(Text(&tenant))).ok().map(|_| 0);
        let mut page = move || {
            let mut keys = Vec::new();
            let tenant = TenantKeys::of(Tenant(Text(&tenant))).ok()?;
            cursor = view.keys(cursor?, KEYS_PER_PAGE, &mut |name| {
                if let Some(key) = tenant.key(name) {
                    keys.extend_from_slice(key);
                    keys.push(b'\n');
                }
            });
            Some((Bytes::from(keys), cursor.is_none()))
        };
        match page() {
            Some((first, false)) => {
                let mut first = Some(first);
                ResponseBody::paged(move || first.take().or_else(|| page().map(|(keys, _)| keys)))
            }
            whole => ResponseBody::from(whole.map(|(keys, _)| keys).unwrap_or_default()),
        }
    }

    fn segment_names(&self) -> String {
        let mut names = String::new();
        self.each_segment(|segment| {
            names.push_str(segment.name);
            names.push('\n');
        });
        names
    }

    fn segments(&self) -> SegmentsDetail {
        let mut segments = Vec::new();
        let mut by_name = BTreeMap::<String, SegmentUsage>::new();
        self.each_segment(|segment| {
            add_use(&mut by_name, &segment);
            segments.push(SegmentDetail {
                segment_name: segment.name.to_owned(),
                segment_id: segment.id.to_string(),
                client_id: segment.client.to_string(),
                base_address: format!("{:#x}", segment.base),
                size_bytes: segment.bytes,
                size_human: format!("{} GiB", SixDigits(segment.bytes as f64 / f64::from(1 << 30))),
                te_endpoint: segment.endpoint.to_owned(),
                protocol: segment.protocol.to_owned(),
                host_id: segment.host.to_owned(),
                status: segment_status_name(segment.status).to_owned(),
                used_bytes: Some(segment.used_bytes),
                held_ms: segment.held_for.map(milliseconds),
                unconfirmed_ms: segment.unconfirmed.map(|unconfirmed| milliseconds(unconfirmed.dropped_in)),
                unconfirmed_replicas: segment.unconfirmed.map(|unconfirmed| unconfirmed.replicas),
                ..SegmentDetail::default()
            });
        });
        // As in upstream, usage is reported per name: the same value is returned for all segments
        // with the same name.
        let shared = shared_names(&segments);
        for detail in &mut segments {
            detail.used_bytes = detail.used_bytes.filter(|_| shared.contains(&detail.segment_name));
            let Some(usage) = by_name.get(&detail.segment_name) else { continue };
            detail.allocator_used_bytes = usage.used_bytes;
            detail.allocator_capacity_bytes = usage.capacity_bytes;
            if usage.capacity_bytes > 0 {
                detail.allocator_usage_percent = 100.0 * usage.used_bytes as f64 / usage.capacity_bytes as f64;
            }
        }
        SegmentsDetail { total_segments: segments.len(), segments }
    }

    fn segment_usage(&self, name: &[u8]) -> Option<MemoryUsage> {
        let mut found = None::<MemoryUsage>;
        self.each_segment(|segment| {
            if segment.name.as_bytes() == name {
                let usage = found.get_or_insert_default();
                usage.used += segment.used_bytes;
                usage.capacity += segment.bytes;
            }
        });
        found
    }

    fn segment_status(&self, name: &[u8]) -> Option<NamedSegmentStatus> {
        let mut found = None;
        self.each_segment(|segment| {
            if segment.name.as_bytes() == name {
                found.get_or_insert(segment.status);
            }
        });
        let status = found?;
        Some(NamedSegmentStatus {
            success: true,
            segment: String::from_utf8_lossy(name).into_owned(),
            status,
            status_name: segment_status_name(status),
            error_code: 0,
            error_message: "",
        })
    }

    fn replicas(&self, tenant: &[u8], key: &[u8]) -> Result<Vec<MemoryReplica>, ErrorCode> {
        let tenant = TenantKeys::of(Tenant(Text(tenant))).map_err(|_| ErrorCode::INVALID_PARAMS)?;
        Ok(self.view.replicas(&tenant.name(Text(key)))?.into_iter().map(MemoryReplica::from).collect())
    }

    /// The removal continues even if the client disconnects.
    async fn remove_all(&self, force: bool, tenant: Option<&[u8]>) -> Option<u64> {
        let view = self.view.clone();
        let tenant = tenant.map(<[u8]>::to_vec);
        let removal = tokio::spawn(async move {
            let mut removed = 0;
            let mut walk = None;
            let mut commits = Vec::new();
            loop {
                let slice = view.remove_slice(walk, force, tenant.as_deref());
                removed += slice.removed;
                // Each slice has its own commit, so that standbys get its changes at once.
                commits.extend(view.commit(slice.receipt));
                if (slice.rest.is_none() || commits.len() >= COMMITS_MAX) && !are_stored(&mut commits).await {
                    return None;
                }
                walk = slice.rest;
                if walk.is_none() {
                    break;
                }
                tokio::task::yield_now().await;
            }
            tracing::info!(removed, force, "objects removed by /api/v1/remove_all");
            Some(removed)
        });
        removal.await.ok().flatten()
    }
}

/// Waits for commits. Returns false if one of them fails.
async fn are_stored(commits: &mut Vec<CommitWait<'_>>) -> bool {
    for stored in commits.drain(..) {
        if !stored.await {
            return false;
        }
    }
    true
}

fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// The names that several clients have, such as the processes of a node that has restarted.
fn shared_names(segments: &[SegmentDetail]) -> BTreeSet<String> {
    let mut client_of: BTreeMap<&str, &str> = BTreeMap::new();
    let mut shared = BTreeSet::new();
    for segment in segments {
        let first = *client_of.entry(&segment.segment_name).or_insert(&segment.client_id);
        if first != segment.client_id {
            shared.insert(segment.segment_name.clone());
        }
    }
    shared
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

fn leader_body(leader: Option<&LeaderView>) -> MasterLeader {
    MasterLeader {
        present: leader.is_some(),
        leader_address: leader.map(|leader| leader.address.clone()),
        view_version: leader.map(|leader| i64::try_from(leader.view_version).unwrap_or(i64::MAX)),
    }
}

impl From<ReplicaView> for MemoryReplica {
    fn from(replica: ReplicaView) -> MemoryReplica {
        let ReplicaView { bytes, address, protocol, endpoint } = replica;
        MemoryReplica { bytes, address, protocol, endpoint }
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

/// The Mooncake release that the responses match.
const MOONCAKE_VERSION: &str = mcctl_base::upstream::SERIES;
/// Number of keys per page. Copying a page of 100-byte keys takes tens of microseconds.
const KEYS_PER_PAGE: usize = 512;
const SEGMENTS_PER_PAGE: usize = 256;
/// Number of slices of a removal that are committed together.
const COMMITS_MAX: usize = 256;

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
