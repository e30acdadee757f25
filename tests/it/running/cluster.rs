//! Tests of the cluster checks against running clusters.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use mcctl::engine::base::{ByteSize, HostPort};
use mcctl::engine::check::{CheckReport, CheckStatus, Severity};
use mcctl::engine::doctor::cluster::{CHECKS, ClusterQuery, Etcd, MasterAt, run};
use mcctl::engine::env::RealEnv;
use mcctl::engine::http::HttpCredentials;
use mcctl::engine::metadata::MetadataUri;
use mcctl::engine::rpc::{RpcServer, ServerConfig, Timeouts};
use mcctl::engine::store::StoreClient;
use serde_json::json;

use super::{Recorded, block_on, found, is_readable, is_well, of, passed};
use crate::peer::cluster::{Cluster, Make, Master, Metadata};
use crate::peer::process::{PATIENCE, Process, free_port, http, http_get, wait_until};
use crate::peer::wheel::wheel;
use mcctl::engine::wire::Release;

const MIB: u64 = 1 << 20;
/// Time limit of a call to a service that answers.
const LIMIT: Duration = PATIENCE;
/// Time limit of a call to a service that hangs.
const SHORT: Duration = Duration::from_secs(5);

fn here(port: u16) -> HostPort {
    HostPort::new("127.0.0.1", port)
}

/// A query from this host to a cluster with its master at port `rpc`.
fn query(rpc: u16, admins: &[u16], metadata: MetadataUri) -> ClusterQuery {
    let mut client = StoreClient::builder(here(rpc))
        .local_hostname("127.0.0.1")
        .metadata(metadata.clone())
        .timeouts(Timeouts { connect: Duration::from_secs(2), call: LIMIT })
        .config();
    client.engine.announce_host = Some("127.0.0.1".to_owned());
    ClusterQuery {
        master: MasterAt::Address(here(rpc)),
        admins: admins.iter().map(|port| here(*port)).collect(),
        credentials: HttpCredentials::default(),
        metadata,
        is_metadata_assumed: false,
        metadata_cluster: None,
        client: Ok(client),
        nodes: Vec::new(),
        planned: Vec::new(),
        expected: None,
        probe_bytes: MIB,
        limit: LIMIT,
        stop: Arc::default(),
    }
}

fn of_cluster(cluster: &Cluster) -> ClusterQuery {
    let metadata = cluster.master.metadata(cluster.how).parse().unwrap();
    query(cluster.master.rpc, &[cluster.master.admin], metadata)
}

fn examine(query: &ClusterQuery) -> Vec<CheckReport> {
    let reports = block_on(run(&RealEnv::new(), query, &|_| true));
    assert_eq!(reports.len(), CHECKS.len());
    is_readable(&reports);
    reports
}

/// Asserts that no probe object is left.
#[track_caller]
fn is_clean(master: &Master) {
    let (_, keys) = http_get(master.admin, "/get_all_keys").unwrap();
    assert!(!keys.contains("mcctl-doctor"), "{keys}");
}

fn healthy(master: Make, node: Make, how: Metadata) -> Vec<CheckReport> {
    let cluster = Cluster::start(master, node, how, 2, 64 * MIB);
    let query = ClusterQuery { expected: Some(ByteSize(128 * MIB)), ..of_cluster(&cluster) };
    // A client is active after its second heartbeat.
    wait_until("both nodes to be active", PATIENCE, || cluster.master.metric("master_active_clients") >= 2.0);
    let mut reports = examine(&query);
    // Lookups may be slow on a busy machine.
    assert!(!matches!(of(&reports, "lookup-latency"), CheckStatus::Skipped(_)));
    reports.retain(|report| report.check.id != "lookup-latency");
    is_well(&reports);
    for id in ["master-reached", "master-health", "master-release", "segments-mounted", "one-protocol", "nodes-answer"]
    {
        passed(&reports, id);
    }
    assert!(passed(&reports, "round-trip").starts_with("2 nodes over tcp"));
    passed(&reports, "counters-move");
    passed(&reports, "silent-tcp");
    passed(&reports, "clients-alive");
    if how == Metadata::P2p {
        // With a metadata service, clients use the host's LAN address instead of the name.
        found(&reports, "segment-endpoints", Severity::Info, "loopback endpoints");
    }
    is_clean(&cluster.master);
    reports
}

#[test]
fn a_healthy_mcctl_store_passes() {
    healthy(Make::Ours, Make::Ours, Metadata::P2p);
}

#[test]
fn a_stopped_check_puts_no_object() {
    let cluster = Cluster::start(Make::Ours, Make::Ours, Metadata::P2p, 1, 64 * MIB);
    let query = of_cluster(&cluster);
    query.stop.store(true, Ordering::Relaxed);
    let reports = examine(&query);
    let status = &reports.iter().find(|report| report.check.id == "round-trip").expect("it is reported").status;
    assert!(matches!(status, CheckStatus::Skipped(why) if why.contains("stopped by a signal")), "{status:?}");
    is_clean(&cluster.master);
}

#[test]
fn a_healthy_mcctl_store_with_metadata_service_passes() {
    let reports = healthy(Make::Ours, Make::Ours, Metadata::Http);
    passed(&reports, "metadata-records");
}

#[test]
#[cfg_attr(peers_off, ignore = "needs the Mooncake wheel")]
fn a_healthy_upstream_store_passes() {
    healthy(Make::Real, Make::Real, Metadata::P2p);
}

#[test]
#[cfg_attr(peers_off, ignore = "needs the Mooncake wheel")]
fn a_healthy_upstream_store_with_metadata_service_passes() {
    let reports = healthy(Make::Real, Make::Real, Metadata::Http);
    passed(&reports, "metadata-records");
}

#[test]
fn stalled_and_killed_nodes_are_distinguished() {
    let mut cluster = Cluster::with_flags(Make::Ours, Make::Ours, Metadata::P2p, 3, 64 * MIB, &["--client_ttl=60"]);
    cluster.nodes[0].process.suspend();
    cluster.nodes[1].process.kill();
    let reports = examine(&ClusterQuery { limit: SHORT, ..of_cluster(&cluster) });
    found(&reports, "nodes-answer", Severity::Error, "1 node is stalled");
    found(&reports, "nodes-answer", Severity::Error, "listed by the master but dead");
    let text = passed(&reports, "round-trip");
    assert!(text.starts_with("1 node over tcp") && text.contains("not probed"), "{text}");
    is_clean(&cluster.master);
    cluster.nodes[0].process.resume();
}

#[test]
#[cfg_attr(peers_off, ignore = "needs the Mooncake wheel")]
fn a_stalled_upstream_node_is_found() {
    let cluster = Cluster::with_flags(Make::Real, Make::Real, Metadata::Http, 2, 64 * MIB, &["--client_ttl=60"]);
    cluster.nodes[0].process.suspend();
    let reports = examine(&ClusterQuery { limit: SHORT, ..of_cluster(&cluster) });
    found(&reports, "nodes-answer", Severity::Error, "1 node is stalled");
    is_clean(&cluster.master);
    cluster.nodes[0].process.resume();
}

#[test]
fn unreachable_stalled_and_foreign_masters_are_distinguished() {
    let away = examine(&query(free_port(), &[free_port()], MetadataUri::P2p));
    found(&away, "master-reached", Severity::Error, "no process is listening");
    found(&away, "master-health", Severity::Error, "is not responding");
    assert!(matches!(of(&away, "round-trip"), CheckStatus::Skipped(_)));
    let mut unnamed = query(1, &[], MetadataUri::P2p);
    unnamed.master = MasterAt::Address(HostPort::new("no-such-host.invalid", 50_051));
    found(&examine(&unnamed), "master-reached", Severity::Error, "does not resolve");
    let cluster = Cluster::start(Make::Ours, Make::Ours, Metadata::P2p, 0, MIB);
    let admin = cluster.master.admin;
    let foreign = examine(&query(admin, &[admin], MetadataUri::P2p));
    assert!(matches!(of(&foreign, "master-reached"), CheckStatus::Found(_)));
    let empty = examine(&of_cluster(&cluster));
    found(&empty, "segments-mounted", Severity::Error, "no memory is mounted");
    cluster.master.process.suspend();
    let still = ClusterQuery { limit: Duration::from_secs(1), ..of_cluster(&cluster) };
    let reports = examine(&still);
    found(&reports, "master-reached", Severity::Error, "does not respond");
    cluster.master.process.resume();
}

#[test]
fn missing_and_stale_metadata_records_are_found() {
    let cluster = Cluster::start(Make::Ours, Make::Ours, Metadata::Http, 2, 64 * MIB);
    let name = cluster.master.segments()[0].clone();
    let mut query = of_cluster(&cluster);
    let stale = "127.0.0.1:12345";
    query.planned = vec![stale.to_owned(), name.clone(), "127.0.0.1:12346".to_owned()];
    let key = |kind: &str, name: &str| {
        format!("/metadata?key={}", mcctl::engine::http::escape(&format!("mooncake/{kind}/{name}")))
    };
    let dead = json!({"ip_or_host_name": "127.0.0.1", "rpc_port": free_port()}).to_string();
    let metadata = cluster.master.metadata;
    assert_eq!(http(metadata, "PUT", &key("rpc_meta", stale), &dead).unwrap().0, 200);
    let reports = examine(&query);
    passed(&reports, "metadata-records");
    found(&reports, "planned-names", Severity::Error, "Duplicate rpc_meta key");
    found(&reports, "planned-names", Severity::Warning, "in use by a running process");
    for kind in ["ram", "rpc_meta"] {
        assert_eq!(http(metadata, "DELETE", &key(kind, &name), "").unwrap().0, 200);
    }
    let lost = examine(&query);
    let finding = found(&lost, "metadata-records", Severity::Error, "lost records");
    assert!(finding.evidence.contains(&name), "{finding:?}");
    let nobody =
        ClusterQuery { metadata: format!("http://127.0.0.1:{}/metadata", free_port()).parse().unwrap(), ..query };
    let nobody = ClusterQuery { client: Err("not here".into()), ..nobody };
    found(&examine(&nobody), "metadata-records", Severity::Error, "is not responding");
}

#[test]
fn p2p_nodes_are_found_if_the_client_has_a_metadata_service() {
    let cluster = Cluster::start(Make::Ours, Make::Ours, Metadata::P2p, 1, 64 * MIB);
    let metadata = cluster.master.metadata(Metadata::Http).parse().unwrap();
    let reports = examine(&query(cluster.master.rpc, &[cluster.master.admin], metadata));
    found(&reports, "metadata-records", Severity::Error, "use P2PHANDSHAKE, but");
}

#[test]
fn a_master_that_refuses_puts_has_another_release() {
    let reports = block_on(async {
        let config = ServerConfig { listen: here(0), threads: 1, idle_timeout: None, client_release: Release::LATEST };
        let service = Arc::new(crate::rpc::Ready("2.0.0"));
        let server = RpcServer::start(config, RealEnv::new(), service).await.unwrap();
        // Responses of a 0.3.12.post1 master on its admin port.
        let segments = json!({"total_segments": 0, "segments": []}).to_string();
        let health =
            json!({"status": "ok", "role": "leader", "ha_state": "serving", "service_ready": true}).to_string();
        let (admin, _) = Recorded::start(&[
            ("/health", health),
            ("/role", "leader".to_owned()),
            ("/get_segments_detail", segments),
            ("/metrics", "master_active_clients 0\nmaster_batch_exist_key_items_total 4000\n".to_owned()),
        ])
        .await;
        let query = query(server.port(), &[admin.at().port], MetadataUri::P2p);
        let with_admin = run(&RealEnv::new(), &query, &|_| true).await;
        // Without a list of segments the master chooses the segment of the probe object.
        let blind = ClusterQuery { admins: Vec::new(), ..query };
        let without = run(&RealEnv::new(), &blind, &|_| true).await;
        server.stop().await;
        (with_admin, without)
    });
    found(&reports.0, "puts-arrive", Severity::Error, "store nothing");
    found(&reports.1, "master-release", Severity::Error, "the master's release");
}

/// The reports for a master whose admin HTTP lists these segments.
fn listed(segments: serde_json::Value, master: &str) -> Vec<CheckReport> {
    block_on(async {
        let health =
            json!({"status": "ok", "role": "leader", "ha_state": "serving", "service_ready": true}).to_string();
        let (admin, _) = Recorded::start(&[
            ("/health", health),
            ("/role", "leader".to_owned()),
            ("/get_segments_detail", json!({"segments": segments}).to_string()),
            ("/metrics", "master_active_clients 2\n".to_owned()),
        ])
        .await;
        let mut query = query(1, &[admin.at().port], MetadataUri::P2p);
        query.master = MasterAt::Address(HostPort::new(master, 1));
        query.limit = Duration::from_millis(500);
        run(&RealEnv::new(), &query, &|id| id != "master-reached").await
    })
}

#[test]
fn problems_in_the_list_of_segments_are_found() {
    let segment = |name: &str, endpoint: &str, protocol: &str, client: &str| {
        json!({"segment_name": name, "segment_id": "1-1", "client_id": client, "base_address": "0x1", "size_bytes": 1 << 30,
            "te_endpoint": endpoint, "protocol": protocol, "status": "OK"})
    };
    let bad = json!([segment("a:1", "localhost:1", "tcp", "1-1"), segment("a:1", "127.0.0.1:2", "rdma", "2-2")]);
    let reports = listed(bad.clone(), "192.0.2.1");
    found(&reports, "segment-endpoints", Severity::Error, "only from their own host");
    found(&reports, "one-protocol", Severity::Error, "different transports");
    found(&reports, "segment-names", Severity::Error, "under the same name");
    found(&reports, "nodes-answer", Severity::Error, "dead");
    let here = listed(bad, "127.0.0.1");
    found(&here, "segment-endpoints", Severity::Info, "single-host");
}

#[test]
fn nodes_on_one_host_are_reported_by_their_reported_host_or_their_name() {
    let segment = |name: &str, host: &str| {
        json!({"segment_name": name, "segment_id": "1-1", "client_id": name, "base_address": "0x1", "size_bytes": 1 << 30,
            "te_endpoint": name, "protocol": "tcp", "host_id": host, "status": "OK"})
    };
    let of = |segments: serde_json::Value| listed(segments, "192.0.2.1");
    let one = of(json!([segment("192.0.2.3:1", "a"), segment("192.0.2.4:1", "a")]));
    found(&one, "copy-hosts", Severity::Info, "on one host");
    let by_name = of(json!([segment("192.0.2.3:1", ""), segment("192.0.2.3:2", "")]));
    found(&by_name, "copy-hosts", Severity::Info, "on one host");
    assert_eq!(passed(&of(json!([segment("192.0.2.3:1", "a"), segment("192.0.2.3:2", "b")])), "copy-hosts"), "2 hosts");
    passed(&of(json!([segment("192.0.2.3:1", "")])), "copy-hosts");
}

#[test]
fn a_master_is_found_through_etcd_by_its_cluster_id() {
    let cluster = Cluster::start(Make::Ours, Make::Ours, Metadata::P2p, 1, 64 * MIB);
    wait_until("the node to be active", PATIENCE, || cluster.master.metric("master_active_clients") >= 1.0);
    let leader = cluster.master.address();
    // "mooncake-store/mooncake_cluster/master_view" and its value, as encoded by etcd's gateway.
    let key = "bW9vbmNha2Utc3RvcmUvbW9vbmNha2VfY2x1c3Rlci9tYXN0ZXJfdmlldw==";
    let value = base64(leader.as_bytes());
    let body = json!({"header": {"revision": "2"}, "kvs": [{"key": key, "value": value, "create_revision": "2", "mod_revision": "2"}], "count": "1"});
    block_on(async {
        let (gateway, asked) = Recorded::start(&[("/v3/kv/range", body.to_string())]).await;
        let at = |cluster: &str| {
            MasterAt::Etcd(Etcd::parse(&gateway.at().to_string(), cluster, Duration::from_secs(5)).unwrap())
        };
        let usual = query(1, &[cluster.master.admin], MetadataUri::P2p);
        let found_it = ClusterQuery { master: at("mooncake_cluster"), ..usual.clone() };
        // Lookups may be slow on a busy machine.
        let reports = run(&RealEnv::new(), &found_it, &|id| id != "lookup-latency").await;
        is_well(&reports);
        assert!(passed(&reports, "leader-record").contains(&leader) && asked.queried("/v3/kv/range"));
        assert!(passed(&reports, "round-trip").starts_with("1 node"));
        let other = ClusterQuery { master: at("blue"), ..usual };
        let reports = run(&RealEnv::new(), &other, &|_| true).await;
        found(&reports, "leader-record", Severity::Error, "another cluster id");
        found(&reports, "master-reached", Severity::Error, "in etcd");
    });
}

fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let bits: String = bytes.iter().map(|byte| format!("{byte:08b}")).collect();
    let digits = bits.as_bytes().chunks(6).map(|six| {
        let six = format!("{:0<6}", std::str::from_utf8(six).unwrap());
        DIGITS[usize::from_str_radix(&six, 2).unwrap()] as char
    });
    let text: String = digits.collect();
    let padding = (4 - text.len() % 4) % 4;
    text + &"=".repeat(padding)
}

#[test]
fn two_serving_masters_are_an_error() {
    let first = Cluster::start(Make::Ours, Make::Ours, Metadata::P2p, 1, 64 * MIB);
    let second = Cluster::start(Make::Ours, Make::Ours, Metadata::P2p, 0, 0);
    let both = query(first.master.rpc, &[first.master.admin, second.master.admin], MetadataUri::P2p);
    found(&examine(&both), "master-health", Severity::Error, "more than one master is serving");
    // The counters of a master that did not accept the objects do not increase.
    let wrong = query(second.master.rpc, &[first.master.admin], MetadataUri::P2p);
    let reports = examine(&wrong);
    assert!(matches!(of(&reports, "round-trip"), CheckStatus::Found(_)), "{:?}", of(&reports, "round-trip"));
}

#[test]
fn only_the_facts_of_selected_checks_are_gathered() {
    let cluster = Cluster::start(Make::Ours, Make::Ours, Metadata::P2p, 1, 64 * MIB);
    let query = of_cluster(&cluster);
    let reports = block_on(run(&RealEnv::new(), &query, &|id| id == "nodes-answer"));
    assert_eq!(reports.len(), 1);
    assert_eq!(cluster.master.metric("master_batch_put_start_items_total"), 0.0, "no put is expected");
    assert!(block_on(run(&RealEnv::new(), &query, &|_| false)).is_empty());
}

#[test]
fn a_probe_object_never_evicts_others() {
    let cluster = Cluster::start(Make::Ours, Make::Ours, Metadata::P2p, 1, 64 * MIB);
    let large = ClusterQuery { probe_bytes: 100 * MIB, ..of_cluster(&cluster) };
    let reports = examine(&large);
    let CheckStatus::Skipped(why) = of(&reports, "round-trip") else { panic!("{:?}", of(&reports, "round-trip")) };
    assert!(why.contains("could evict keys"), "{why}");
    assert_eq!(cluster.master.metric("master_put_start_requests_total"), 0.0);
    assert_eq!(cluster.master.metric("master_batch_put_start_items_total"), 0.0);
    is_clean(&cluster.master);
}

/// An upstream store service configured for RDMA on a host without devices.
#[test]
#[cfg_attr(peers_off, ignore = "needs the Mooncake wheel")]
fn an_upstream_node_that_fell_back_to_tcp_is_found() {
    let cluster = Cluster::start(Make::Real, Make::Real, Metadata::P2p, 0, 0);
    let config = cluster.dir.path().join("rdma.json");
    let text = json!({
        "local_hostname": "127.0.0.1", "metadata_server": "P2PHANDSHAKE", "master_server_address": cluster.master.address(),
        "global_segment_size": 64 * MIB, "local_buffer_size": 0, "protocol": "rdma", "device_name": "",
    });
    std::fs::write(&config, text.to_string()).unwrap();
    let mut command = wheel().python();
    command
        .args(["-m", "mooncake.mooncake_store_service", "--port", &free_port().to_string(), "--config"])
        .arg(&config);
    let _node = Process::start("rdma", command, cluster.dir.path());
    wait_until("the node to be mounted", PATIENCE, || cluster.master.segments().len() == 1);
    let reports = examine(&of_cluster(&cluster));
    found(&reports, "silent-tcp", Severity::Error, "use TCP");
    assert!(passed(&reports, "round-trip").starts_with("1 node over tcp"));
    is_clean(&cluster.master);
}
