//! The master's admin API over a fake state: the captured answers of the real master, and the
//! additional ones.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex};
use std::time::Duration;

use mcctl::engine::admin::{AdminClient, AdminErrorKind};
use mcctl::engine::base::{ClientId, ErrorCode, HostPort, SegmentId};
use mcctl::engine::env::RealEnv;
use mcctl::engine::http::{FetchError, HttpServer};
use mcctl::engine::journal::DiskSpace;
use mcctl::engine::master::admin::AdminApi;
use mcctl::engine::master::metrics::{MasterCounters, MasterGauges};
use mcctl::engine::master::view::{
    AdminView, DataView, HaView, HeartbeatView, RemovedSlice, ReplicaView, RunState, SegmentView, ServiceView,
};
use mcctl::engine::master::{MasterState, ObjectWalk, StorePolicy};
use mcctl::engine::rpc::ClientReleases;
use mcctl::engine::rpc::{CommitWait, Receipt};
use mcctl::engine::wire::Release;

use crate::http::{Connection, replay};

/// A state of fixed segments and keys.
#[derive(Default)]
struct Fixed {
    standby: AtomicBool,
    segments: Vec<(SegmentId, u64, u64, u64)>,
    keys: Vec<Vec<u8>>,
    stuck: AtomicBool,
    /// The slices of the last removal: whether each was forced.
    removals: Mutex<Vec<bool>>,
    /// The last change of each committed receipt.
    commits: Mutex<Vec<u64>>,
    /// The commit of the slice with this number fails.
    fails_at: Option<u64>,
    /// Maximum number of keys per hold of the state.
    keys_per_hold_max: AtomicUsize,
    /// Times since the last heartbeats of clients.
    heartbeats: Vec<Duration>,
    /// Whether the master has a data directory and takes part in an election.
    is_elected: bool,
}

impl AdminView for Fixed {
    fn service(&self) -> ServiceView {
        let standby = self.standby.load(Ordering::Relaxed);
        ServiceView { state: if standby { RunState::Standby } else { RunState::Serving }, leader: None }
    }

    fn stuck_for(&self) -> Option<Duration> {
        self.stuck.load(Ordering::Relaxed).then_some(Duration::from_secs(7))
    }

    fn client_releases(&self) -> Option<&ClientReleases> {
        static RELEASES: LazyLock<ClientReleases> = LazyLock::new(|| ClientReleases::new(Release::LATEST));
        Some(&RELEASES)
    }

    fn metrics(&self) -> (MasterCounters, MasterGauges) {
        let mut counters = MasterCounters::default();
        counters.exist_key.add(true);
        counters.completed_with_checksum = 3;
        counters.completed_without_checksum = 4;
        counters.suspicious_put_ends = 5;
        (counters, MasterGauges { keys: self.keys.len() as u64, ..MasterGauges::default() })
    }

    fn segments(&self, cursor: u64, limit: usize, visit: &mut dyn FnMut(SegmentView<'_>)) -> Option<u64> {
        let from = usize::try_from(cursor).unwrap();
        for (id, base, bytes, used_bytes) in self.segments.iter().skip(from).take(limit) {
            visit(SegmentView {
                id: *id,
                client: ClientId(1388180453129254863, 16676372840130863288),
                name: "localhost:12805",
                base: *base,
                bytes: *bytes,
                used_bytes: *used_bytes,
                endpoint: "localhost:12805",
                protocol: "tcp",
                host: "",
                status: 1,
                held_for: None,
                unconfirmed: None,
            });
        }
        (from + limit < self.segments.len()).then_some(cursor + limit as u64)
    }

    fn heartbeats(&self, _cursor: u64, _limit: usize, visit: &mut dyn FnMut(HeartbeatView)) -> Option<u64> {
        let heartbeat =
            |age: &Duration| HeartbeatView { client: ClientId(1, 2), age: *age, expires_in: Duration::ZERO };
        self.heartbeats.iter().map(heartbeat).for_each(visit);
        None
    }

    fn data(&self) -> Option<DataView> {
        let space = Some(DiskSpace { free: 7, size: 9 });
        self.is_elected.then(|| DataView { space, ..DataView::default() })
    }

    fn ha(&self) -> Option<HaView> {
        self.is_elected.then(HaView::default)
    }

    /// Every other slot is empty, as in a table from which keys were removed.
    fn keys(&self, cursor: u64, limit: usize, visit: &mut dyn FnMut(&[u8])) -> Option<u64> {
        let slots = self.keys.len() * 2;
        let from = usize::try_from(cursor).unwrap();
        let end = slots.min(from + limit);
        let mut passed = 0;
        for slot in (from..end).filter(|slot| slot % 2 == 1) {
            visit(&self.keys[slot / 2]);
            passed += 1;
        }
        self.keys_per_hold_max.fetch_max(passed, Ordering::Relaxed);
        (end < slots).then_some(end as u64)
    }

    /// Three slices of ten objects, of which seven can be removed without force. Each is a change.
    fn remove_slice(&self, walk: Option<ObjectWalk>, force: bool, _: Option<&[u8]>) -> RemovedSlice {
        let mut removals = self.removals.lock().unwrap();
        if walk.is_none() {
            removals.clear();
            self.commits.lock().unwrap().clear();
        }
        removals.push(force);
        let done = removals.len() == 3;
        RemovedSlice {
            removed: if force { 10 } else { 7 },
            rest: (!done).then(|| walk.unwrap_or_else(|| MasterState::new(StorePolicy::default()).walk())),
            receipt: Receipt { last: removals.len() as u64, ..Receipt::default() },
        }
    }

    fn commit(&self, receipt: Receipt) -> Option<CommitWait<'_>> {
        self.commits.lock().unwrap().push(receipt.last);
        Some(Box::pin(std::future::ready(self.fails_at != Some(receipt.last))))
    }

    fn replicas(&self, key: &[u8]) -> Result<Vec<ReplicaView>, ErrorCode> {
        match key {
            b"being written" => Err(ErrorCode::REPLICA_IS_NOT_READY),
            key if self.keys.iter().any(|k| k == key) => Ok(vec![ReplicaView {
                bytes: 5,
                address: 140_380_586_639_360,
                protocol: "tcp".into(),
                endpoint: "localhost:12805".into(),
            }]),
            _ => Err(ErrorCode::OBJECT_NOT_FOUND),
        }
    }
}

/// The state of the captured master.
fn captured() -> Fixed {
    Fixed {
        segments: vec![
            (SegmentId(670254314961306261, 17141126343891214216), 0x7fac_d600_0000, 16 << 20, 4),
            (SegmentId(6577959271062748606, 11713050387513858747), 0x7fac_e700_0000, 64 << 20, 6),
        ],
        keys: vec![b"kk/1 a".to_vec(), b"kq".to_vec()],
        ..Fixed::default()
    }
}

async fn serve(state: Fixed) -> (Arc<Fixed>, HttpServer, Connection) {
    let state = Arc::new(state);
    let admin = AdminApi::new(RealEnv::new(), state.clone());
    let running = admin.start(&HostPort::new("127.0.0.1", 0)).await.unwrap();
    let connection = Connection::to(running.at().port).await;
    (state, running, connection)
}

#[tokio::test]
async fn captured_requests_get_the_real_masters_answers() {
    let (_state, running, _) = serve(captured()).await;
    replay("admin.txt", running.at().port).await;
}

#[tokio::test]
async fn head_is_answered_like_get_without_a_body() {
    let (_state, _running, mut connection) = serve(captured()).await;
    for target in ["/health", "/metrics", "/ready", "/get_all_keys"] {
        let head = connection.ask("HEAD", target, b"").await;
        let get = connection.ask("GET", target, b"").await;
        assert_eq!((head.status, &head.content_type, head.text()), (get.status, &get.content_type, ""), "{target}");
    }
    assert_eq!(connection.ask("HEAD", "/nothing", b"").await.status, 404);
}

#[tokio::test]
async fn metric_families_are_the_real_masters_in_order_then_ours() {
    let (_state, _running, mut connection) = serve(captured()).await;
    let answer = connection.ask("GET", "/metrics", b"").await;
    assert_eq!(answer.content_type, "text/plain; version=0.0.4");
    let families: Vec<_> = answer.text().lines().filter_map(|l| l.strip_prefix("# TYPE ")).collect();
    let captured = include_str!("../../fixtures/http/master-metrics-families.txt");
    let captured: Vec<_> = captured.lines().filter(|l| !l.starts_with('#')).collect();
    assert_eq!(families[..captured.len()], captured);
    assert!(families[captured.len()..].iter().all(|f| f.starts_with("mcctl_")), "{families:?}");
    for line in [
        "master_key_count 2",
        "master_exist_key_requests_total 1",
        "segment_allocated_bytes{segment=\"localhost:12805\"} 10",
        "segment_total_capacity_bytes{segment=\"localhost:12805\"} 83886080",
        "mcctl_master_completed_writes_total{checksum=\"present\"} 3",
        "mcctl_master_completed_writes_total{checksum=\"absent\"} 4",
        "mcctl_master_suspicious_put_ends_total 5",
    ] {
        assert!(answer.text().lines().any(|l| l == line), "{line}");
    }
    // Each sample belongs to the family above it.
    let mut family = "";
    for line in answer.text().lines() {
        match line.strip_prefix("# TYPE ") {
            Some(named) => family = named.split(' ').next().unwrap(),
            None => assert!(line.starts_with("# HELP ") || line.starts_with(family), "{line}"),
        }
    }
}

/// The metrics of a master in a cluster, with a data directory and one segment.
pub async fn metrics_of_an_elected_master() -> String {
    let (_state, _running, mut connection) = serve(Fixed { is_elected: true, ..captured() }).await;
    connection.ask("GET", "/metrics", b"").await.text().to_owned()
}

#[tokio::test]
async fn ha_status_has_the_free_space_of_the_data_directory() {
    let (_state, _running, mut connection) = serve(Fixed { is_elected: true, ..captured() }).await;
    let status = connection.ask("GET", "/ha_status?format=json", b"").await;
    let status: serde_json::Value = serde_json::from_str(status.text()).unwrap();
    assert_eq!(status["data_dir_free_bytes"], 7);
}

#[tokio::test]
async fn the_oldest_heartbeat_is_exported_unless_the_master_is_a_standby() {
    let heartbeats = vec![Duration::from_millis(250), Duration::from_millis(1_500)];
    let (state, _running, mut connection) = serve(Fixed { heartbeats, ..captured() }).await;
    for (standby, line) in
        [(false, "mcctl_master_heartbeat_age_max_seconds 1.5"), (true, "mcctl_master_heartbeat_age_max_seconds 0")]
    {
        state.standby.store(standby, Ordering::Relaxed);
        let metrics = connection.ask("GET", "/metrics", b"").await;
        assert!(metrics.text().lines().any(|found| found == line), "{line}");
    }
}

#[tokio::test]
async fn a_standby_master_is_healthy_but_not_ready() {
    let (state, _running, mut connection) = serve(captured()).await;
    assert_eq!(connection.ask("GET", "/ready", b"").await.status, 200);
    state.standby.store(true, Ordering::Relaxed);
    let ready = connection.ask("GET", "/ready", b"").await;
    assert_eq!((ready.status, ready.text()), (503, "not ready: the master is standby"));
    assert_eq!(connection.ask("GET", "/health", b"").await.status, 200);
    for route in ["/get_all_keys", "/query_key?key=kq", "/get_segments_detail", "/query_segment?segment=x"] {
        let answer = connection.ask("GET", route, b"").await;
        let refusal = r#"{"success":false,"error_code":-1011,"error_message":"service plane is not active"}"#;
        assert_eq!((answer.status, answer.text()), (503, refusal), "{route}");
    }
    assert_eq!(connection.ask("GET", "/metrics", b"").await.status, 200);
}

#[tokio::test]
async fn health_returns_503_while_rpc_workers_are_stuck() {
    let (state, _running, mut connection) = serve(captured()).await;
    state.stuck.store(true, Ordering::Relaxed);
    for route in ["/health", "/ready"] {
        assert_eq!(connection.ask("GET", route, b"").await.status, 503, "{route}");
    }
    let health: serde_json::Value = serde_json::from_slice(&connection.ask("GET", "/health", b"").await.body).unwrap();
    assert_eq!((&health["service_ready"], &health["status"]), (&false.into(), &"stuck".into()));
    state.stuck.store(false, Ordering::Relaxed);
    assert_eq!(connection.ask("GET", "/health", b"").await.status, 200);
}

#[tokio::test]
async fn remove_all_works_in_slices_and_is_forced_only_by_true() {
    let (state, _running, mut connection) = serve(captured()).await;
    for (query, forced, removed) in
        [("", false, 21), ("?force=true", true, 30), ("?force=1", false, 21), ("?tenant_id=x&force=true", true, 30)]
    {
        let answer = connection.ask("POST", &format!("/api/v1/remove_all{query}"), b"").await;
        let expected = format!("{{\"success\":true,\"removed_count\":{removed}}}");
        assert_eq!((answer.status, answer.text()), (200, expected.as_str()), "{query}");
        assert_eq!(*state.removals.lock().unwrap(), [forced; 3], "{query}");
        assert_eq!(*state.commits.lock().unwrap(), [1, 2, 3], "each slice is committed");
    }
    for method in ["GET", "DELETE"] {
        assert_eq!(connection.ask(method, "/api/v1/remove_all", b"").await.status, 404, "{method}");
    }
    state.standby.store(true, Ordering::Relaxed);
    assert_eq!(connection.ask("POST", "/api/v1/remove_all", b"").await.status, 503);
}

#[tokio::test]
async fn remove_all_fails_if_a_slice_is_not_stored() {
    for slice in 1..=3 {
        let (_state, _running, mut connection) = serve(Fixed { fails_at: Some(slice), ..captured() }).await;
        let answer = connection.ask("POST", "/api/v1/remove_all", b"").await;
        assert_ne!(answer.status, 200, "slice {slice}");
    }
}

#[tokio::test]
async fn a_key_is_decoded_and_an_unfinished_object_is_reported() {
    let (_state, _running, mut connection) = serve(captured()).await;
    assert_eq!(connection.ask("GET", "/query_key?key=kk%2F1%20a", b"").await.status, 200);
    let writing = connection.ask("GET", "/query_key?key=being%20written", b"").await;
    assert!(writing.text().contains("\"error_message\":\"REPLICA_IS_NOT_READY\""), "{}", writing.text());
    // Encoded commas also separate keys, and a repeated key appears once.
    let batch = connection.ask("GET", "/batch_query_keys?keys=kq%2Ckk%2F1%20a,kq,%22", b"").await;
    let value: serde_json::Value = serde_json::from_str(batch.text()).unwrap();
    let data = value["data"].as_object().unwrap();
    assert_eq!(data.len(), 3);
    assert_eq!((&data["kk/1 a"]["ok"], &data["\""]["ok"]), (&true.into(), &false.into()));
}

#[tokio::test]
async fn a_long_key_list_is_complete_and_sent_in_pages() {
    let keys: Vec<_> = (0..100_000).map(|n| format!("model/block/{n:032}").into_bytes()).collect();
    let expected: Vec<u8> = keys.iter().flat_map(|key| [key.as_slice(), b"\n"].concat()).collect();
    let (state, _running, mut connection) = serve(Fixed { keys, ..Fixed::default() }).await;
    let answer = connection.ask("GET", "/get_all_keys", b"").await;
    assert!(answer.body == expected, "{} of {} bytes", answer.body.len(), expected.len());
    assert!(state.keys_per_hold_max.load(Ordering::Relaxed) <= 1000);
    // The connection can be used for the next request.
    assert_eq!(connection.ask("GET", "/role", b"").await.text(), "leader");
}

#[tokio::test]
async fn an_empty_master_has_empty_lists() {
    let (_state, _running, mut connection) = serve(Fixed::default()).await;
    for route in ["/get_all_keys", "/get_all_segments"] {
        let answer = connection.ask("GET", route, b"").await;
        assert_eq!((answer.status, answer.text()), (200, ""), "{route}");
    }
    let detail = connection.ask("GET", "/get_segments_detail", b"").await;
    assert_eq!(detail.text(), r#"{"total_segments":0,"segments":[]}"#);
}

fn client(running: &HttpServer) -> AdminClient {
    AdminClient::new(running.at().clone(), Duration::from_secs(10)).unwrap()
}

#[tokio::test]
async fn the_client_reads_what_the_server_writes() {
    let (state, running, _) = serve(captured()).await;
    let admin = client(&running);
    let health = admin.health().await.unwrap();
    assert_eq!((&*health.role, &*health.ha_state, health.service_ready), ("leader", "serving", true));
    assert_eq!((admin.ready().await, admin.role().await), (Ok(Some(true)), Ok(Some("leader".to_owned()))));
    assert_eq!(admin.leader().await.unwrap().leader_address, None);
    assert_eq!(admin.announcement().await, Ok(None));
    assert_eq!(admin.heartbeats().await.map(|found| found.map(|found| found.clients)), Ok(Some(Vec::new())));
    let segments = admin.segments().await.unwrap();
    assert_eq!((segments.len(), segments[0].size_bytes, &*segments[0].te_endpoint), (2, 16 << 20, "localhost:12805"));
    assert_eq!(admin.segment_names().await.unwrap(), ["localhost:12805"; 2]);
    assert_eq!(admin.metrics().await.unwrap().sum("master_key_count"), Some(2.0));
    assert!(admin.summary().await.unwrap().starts_with("role=leader"));
    let keys = ["kq", "none", "kk/1 a", "kq"].map(str::to_owned);
    let found = admin.replicas(&keys).await.unwrap();
    let sizes: Vec<_> = found.iter().map(|replicas| replicas.as_ref().map(|all| all[0].bytes)).collect();
    assert_eq!(sizes, [Some(5), None, Some(5), Some(5)]);
    state.stuck.store(true, Ordering::Relaxed);
    assert_eq!(admin.health().await.unwrap().status, "stuck");
    assert_eq!(admin.ready().await, Ok(Some(false)));
}

#[tokio::test]
async fn the_client_lists_all_keys_of_a_master() {
    let keys: Vec<_> = (0..10_000).map(|n| format!("model/block/{n:032}").into_bytes()).collect();
    let (_state, running, _) = serve(Fixed { keys: keys.clone(), ..Fixed::default() }).await;
    let mut list = client(&running).keys().await.unwrap();
    let mut found = Vec::new();
    while let Some(key) = list.next().await.unwrap() {
        found.push(key.into_bytes());
    }
    assert_eq!(found, keys);
}

#[tokio::test]
async fn the_client_reports_the_address_the_route_and_the_cause() {
    let (state, running, _) = serve(captured()).await;
    state.standby.store(true, Ordering::Relaxed);
    let at = running.at().clone();
    let refused = client(&running).segments().await.unwrap_err();
    assert_eq!((&refused.at, refused.route), (&at, "/get_segments_detail"));
    let is_unavailable = |kind: &AdminErrorKind| matches!(kind, AdminErrorKind::Status { status: 503, .. });
    assert!(is_unavailable(&refused.kind), "{refused}");
    assert!(is_unavailable(&client(&running).keys().await.unwrap_err().kind));
    let admin = client(&running);
    drop(running);
    let gone = admin.health().await.unwrap_err();
    assert!(matches!(gone.kind, AdminErrorKind::Fetch(FetchError::Unreachable(_))), "{gone}");
    assert!(gone.to_string().starts_with(&format!("GET http://{at}/health: ")), "{gone}");
}
