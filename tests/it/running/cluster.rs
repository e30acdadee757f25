//! The checks of a cluster.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use mcctl::engine::base::{ByteSize, HostPort};
use mcctl::engine::check::{Report, Severity, Status};
use mcctl::engine::doctor::cluster::{CHECKS, Etcd, MasterAt, Question, run};
use mcctl::engine::env::RealEnv;
use mcctl::engine::metadata::MetadataUri;
use mcctl::engine::rpc::{RpcServer, ServerConfig, Timeouts};
use mcctl::engine::store::{ClientConfig, NodeConfig, name};
use mcctl::engine::sys::pages::MemoryPolicy;
use mcctl::engine::transfer::{RdmaOptions, TransferConfig, TransferProtocol, TransferSettings};
use serde_json::json;

use super::{Recorded, block_on, found, is_readable, is_well, of, passed};
use crate::peer::cluster::{Cluster, Make, Master, Metadata};
use crate::peer::process::{Process, free_port, http, http_get, wait_until};
use crate::peer::wheel::wheel;

const MIB: u64 = 1 << 20;
const LIMIT: Duration = Duration::from_secs(5);

fn here(port: u16) -> HostPort {
    HostPort::new("127.0.0.1", port)
}

/// How a client on this host asks a cluster whose master is at `rpc`.
fn question(rpc: u16, admins: &[u16], metadata: MetadataUri) -> Question {
    let node = NodeConfig {
        local_hostname: "127.0.0.1".to_owned(),
        name_ports: name::PORTS,
        segment_bytes: ByteSize(0),
        local_buffer_bytes: ByteSize(0),
        memory: MemoryPolicy::default(),
        engine: TransferConfig {
            local_server_name: String::new(),
            metadata: metadata.clone(),
            protocol: TransferProtocol::Tcp,
            announce_host: Some("127.0.0.1".to_owned()),
            rdma: RdmaOptions::default(),
            settings: TransferSettings::default(),
        },
        client: ClientConfig {
            timeouts: Timeouts { connect: Duration::from_secs(2), call: LIMIT },
            ..ClientConfig::new(here(rpc))
        },
        max_wait: Duration::ZERO,
    };
    Question {
        master: MasterAt::Address(here(rpc)),
        admins: admins.iter().map(|port| here(*port)).collect(),
        metadata,
        is_metadata_assumed: false,
        metadata_cluster: None,
        node: Ok(node),
        planned: Vec::new(),
        expected: None,
        probe_bytes: MIB,
        limit: LIMIT,
        stop: Arc::default(),
    }
}

fn of_cluster(cluster: &Cluster) -> Question {
    let metadata = cluster.master.metadata(cluster.how).parse().unwrap();
    question(cluster.master.rpc, &[cluster.master.admin], metadata)
}

fn examine(question: &Question) -> Vec<Report> {
    let reports = block_on(run(&RealEnv::new(), question, &|_| true));
    assert_eq!(reports.len(), CHECKS.len());
    is_readable(&reports);
    reports
}

/// No object of the check is left.
#[track_caller]
fn is_clean(master: &Master) {
    let (_, keys) = http_get(master.admin, "/get_all_keys").unwrap();
    assert!(!keys.contains("mcctl-doctor"), "{keys}");
}

fn healthy(master: Make, node: Make, how: Metadata) -> Vec<Report> {
    let cluster = Cluster::start(master, node, how, 2, 64 * MIB);
    let question = Question { expected: Some(ByteSize(128 * MIB)), ..of_cluster(&cluster) };
    let reports = examine(&question);
    is_well(&reports);
    for id in ["master-reached", "master-health", "master-release", "segments-mounted", "one-protocol", "nodes-answer"]
    {
        passed(&reports, id);
    }
    assert!(passed(&reports, "round-trip").starts_with("2 nodes over tcp"));
    passed(&reports, "counters-move");
    passed(&reports, "lookup-latency");
    passed(&reports, "silent-tcp");
    passed(&reports, "clients-alive");
    if how == Metadata::P2p {
        // With a service it is the host's LAN address that is called, whatever the name.
        found(&reports, "segment-endpoints", Severity::Info, "over loopback");
    }
    is_clean(&cluster.master);
    reports
}

#[test]
fn a_healthy_store_of_ours_is_well() {
    healthy(Make::Ours, Make::Ours, Metadata::P2p);
}

#[test]
fn who_is_stopped_puts_no_object_and_says_so() {
    let cluster = Cluster::start(Make::Ours, Make::Ours, Metadata::P2p, 1, 64 * MIB);
    let question = of_cluster(&cluster);
    question.stop.store(true, Ordering::Relaxed);
    let reports = examine(&question);
    let status = &reports.iter().find(|report| report.check.id == "round-trip").expect("it is reported").status;
    assert!(matches!(status, Status::Skipped(why) if why.contains("it was stopped")), "{status:?}");
    is_clean(&cluster.master);
}

#[test]
fn a_healthy_store_of_ours_with_a_metadata_service_has_all_its_records() {
    let reports = healthy(Make::Ours, Make::Ours, Metadata::Http);
    passed(&reports, "metadata-records");
}

#[test]
fn a_healthy_real_store_is_well_too() {
    healthy(Make::Real, Make::Real, Metadata::P2p);
}

#[test]
fn a_healthy_real_store_with_its_metadata_service_is_well_too() {
    let reports = healthy(Make::Real, Make::Real, Metadata::Http);
    passed(&reports, "metadata-records");
}

#[test]
fn a_node_that_stands_still_and_one_that_was_killed_are_told_apart() {
    let mut cluster = Cluster::with_flags(Make::Ours, Make::Ours, Metadata::P2p, 3, 64 * MIB, &["--client_ttl=60"]);
    cluster.nodes[0].process.suspend();
    cluster.nodes[1].process.kill();
    let reports = examine(&of_cluster(&cluster));
    found(&reports, "nodes-answer", Severity::Error, "1 node is standing still");
    found(&reports, "nodes-answer", Severity::Error, "1 node is listed by the master and dead");
    let text = passed(&reports, "round-trip");
    assert!(text.starts_with("1 node over tcp") && text.contains("not tried"), "{text}");
    is_clean(&cluster.master);
    cluster.nodes[0].process.resume();
}

#[test]
fn a_real_node_that_stands_still_is_found_too() {
    let cluster = Cluster::with_flags(Make::Real, Make::Real, Metadata::Http, 2, 64 * MIB, &["--client_ttl=60"]);
    cluster.nodes[0].process.suspend();
    let reports = examine(&of_cluster(&cluster));
    found(&reports, "nodes-answer", Severity::Error, "1 node is standing still");
    is_clean(&cluster.master);
    cluster.nodes[0].process.resume();
}

#[test]
fn a_master_that_is_away_one_that_stands_still_and_a_port_of_something_else_are_told_apart() {
    let away = examine(&question(free_port(), &[free_port()], MetadataUri::P2p));
    found(&away, "master-reached", Severity::Error, "nobody listens");
    found(&away, "master-health", Severity::Error, "does not answer");
    assert!(matches!(of(&away, "round-trip"), Status::Skipped(_)));
    let mut unnamed = question(1, &[], MetadataUri::P2p);
    unnamed.master = MasterAt::Address(HostPort::new("no-such-host.invalid", 50_051));
    found(&examine(&unnamed), "master-reached", Severity::Error, "has no address");
    let cluster = Cluster::start(Make::Ours, Make::Ours, Metadata::P2p, 0, MIB);
    let admin = cluster.master.admin;
    let foreign = examine(&question(admin, &[admin], MetadataUri::P2p));
    assert!(matches!(of(&foreign, "master-reached"), Status::Found(_)));
    let empty = examine(&of_cluster(&cluster));
    found(&empty, "segments-mounted", Severity::Error, "no memory is mounted");
    cluster.master.process.suspend();
    let still = Question { limit: Duration::from_secs(1), ..of_cluster(&cluster) };
    let reports = examine(&still);
    found(&reports, "master-reached", Severity::Error, "does not answer");
    cluster.master.process.resume();
}

#[test]
fn records_that_are_gone_and_stale_ones_are_found_in_a_metadata_service() {
    let cluster = Cluster::start(Make::Ours, Make::Ours, Metadata::Http, 2, 64 * MIB);
    let name = cluster.master.segments()[0].clone();
    let mut question = of_cluster(&cluster);
    let stale = "127.0.0.1:12345";
    question.planned = vec![stale.to_owned(), name.clone(), "127.0.0.1:12346".to_owned()];
    let key = |kind: &str, name: &str| {
        format!("/metadata?key={}", mcctl::engine::metadata::escape(&format!("mooncake/{kind}/{name}")))
    };
    let dead = json!({"ip_or_host_name": "127.0.0.1", "rpc_port": free_port()}).to_string();
    let metadata = cluster.master.metadata;
    assert_eq!(http(metadata, "PUT", &key("rpc_meta", stale), &dead).unwrap().0, 200);
    let reports = examine(&question);
    passed(&reports, "metadata-records");
    found(&reports, "planned-names", Severity::Error, "Duplicate rpc_meta key");
    found(&reports, "planned-names", Severity::Warning, "in use by a running process");
    for kind in ["ram", "rpc_meta"] {
        assert_eq!(http(metadata, "DELETE", &key(kind, &name), "").unwrap().0, 200);
    }
    let lost = examine(&question);
    let finding = found(&lost, "metadata-records", Severity::Error, "has lost records");
    assert!(finding.evidence.contains(&name), "{finding:?}");
    let nobody =
        Question { metadata: format!("http://127.0.0.1:{}/metadata", free_port()).parse().unwrap(), ..question };
    let nobody = Question { node: Err("not here".to_owned()), ..nobody };
    found(&examine(&nobody), "metadata-records", Severity::Error, "does not answer");
}

#[test]
fn nodes_with_peer_handshakes_under_a_client_with_a_metadata_service_are_found() {
    let cluster = Cluster::start(Make::Ours, Make::Ours, Metadata::P2p, 1, 64 * MIB);
    let metadata = cluster.master.metadata(Metadata::Http).parse().unwrap();
    let reports = examine(&question(cluster.master.rpc, &[cluster.master.admin], metadata));
    found(&reports, "metadata-records", Severity::Error, "use P2PHANDSHAKE while");
}

#[test]
fn a_master_that_refuses_puts_is_of_another_release_though_its_version_is_right() {
    let reports = block_on(async {
        let config = ServerConfig { listen: here(0), threads: 1, idle_timeout: None };
        let service = Arc::new(crate::rpc::Ready("2.0.0"));
        let server = RpcServer::start(config, RealEnv::new(), service).await.unwrap();
        // What a 0.3.12.post1 master answers on its admin port.
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
        let question = question(server.port(), &[admin.at().port], MetadataUri::P2p);
        let with_admin = run(&RealEnv::new(), &question, &|_| true).await;
        // Without a list of segments an object goes wherever the master likes.
        let blind = Question { admins: Vec::new(), ..question };
        let without = run(&RealEnv::new(), &blind, &|_| true).await;
        server.stop().await;
        (with_admin, without)
    });
    found(&reports.0, "puts-arrive", Severity::Error, "store nothing");
    found(&reports.1, "master-release", Severity::Error, "another release than 0.3.13");
}

/// A master's admin HTTP with these segments, and the judgement of them.
fn listed(segments: serde_json::Value, master: &str) -> Vec<Report> {
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
        let mut question = question(1, &[admin.at().port], MetadataUri::P2p);
        question.master = MasterAt::Address(HostPort::new(master, 1));
        question.limit = Duration::from_millis(500);
        run(&RealEnv::new(), &question, &|id| id != "master-reached").await
    })
}

#[test]
fn loopback_endpoints_mixed_protocols_and_shared_names_are_seen_in_the_list() {
    let segment = |name: &str, endpoint: &str, protocol: &str, client: &str| {
        json!({"segment_name": name, "segment_id": "1-1", "client_id": client, "base_address": "0x1", "size_bytes": 1 << 30,
            "te_endpoint": endpoint, "protocol": protocol, "status": "OK"})
    };
    let bad = json!([segment("a:1", "localhost:1", "tcp", "1-1"), segment("a:1", "127.0.0.1:2", "rdma", "2-2")]);
    let reports = listed(bad.clone(), "192.0.2.1");
    found(&reports, "segment-endpoints", Severity::Error, "only their own host can call");
    found(&reports, "one-protocol", Severity::Error, "different transports");
    found(&reports, "segment-names", Severity::Error, "under one name");
    found(&reports, "nodes-answer", Severity::Error, "dead");
    let here = listed(bad, "127.0.0.1");
    found(&here, "segment-endpoints", Severity::Info, "on one host");
}

#[test]
fn a_master_is_found_through_etcd_and_another_cluster_id_is_seen_there() {
    let cluster = Cluster::start(Make::Ours, Make::Ours, Metadata::P2p, 1, 64 * MIB);
    let leader = cluster.master.address();
    // "mooncake-store/mooncake_cluster/master_view", and the value as etcd's gateway carries it.
    let key = "bW9vbmNha2Utc3RvcmUvbW9vbmNha2VfY2x1c3Rlci9tYXN0ZXJfdmlldw==";
    let value = base64(leader.as_bytes());
    let body = json!({"header": {"revision": "2"}, "kvs": [{"key": key, "value": value, "create_revision": "2"}], "count": "1"});
    block_on(async {
        let (gateway, asked) = Recorded::start(&[("/v3/kv/range", body.to_string())]).await;
        let at = |cluster: &str| MasterAt::Etcd(Etcd::parse(&gateway.at().to_string(), cluster).unwrap());
        let usual = question(1, &[cluster.master.admin], MetadataUri::P2p);
        let found_it = Question { master: at("mooncake_cluster"), ..usual.clone() };
        let reports = run(&RealEnv::new(), &found_it, &|_| true).await;
        is_well(&reports);
        assert!(passed(&reports, "leader-record").contains(&leader) && asked.was_asked("/v3/kv/range"));
        assert!(passed(&reports, "round-trip").starts_with("1 node"));
        let other = Question { master: at("blue"), ..usual };
        let reports = run(&RealEnv::new(), &other, &|_| true).await;
        found(&reports, "leader-record", Severity::Error, "another cluster id");
        found(&reports, "master-reached", Severity::Error, "through etcd");
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
fn two_masters_that_both_serve_are_found() {
    let first = Cluster::start(Make::Ours, Make::Ours, Metadata::P2p, 1, 64 * MIB);
    let second = Cluster::start(Make::Ours, Make::Ours, Metadata::P2p, 0, 0);
    let both = question(first.master.rpc, &[first.master.admin, second.master.admin], MetadataUri::P2p);
    found(&examine(&both), "master-health", Severity::Error, "more than one master serves");
    // The counters of a master that did not take the objects do not move.
    let wrong = question(second.master.rpc, &[first.master.admin], MetadataUri::P2p);
    let reports = examine(&wrong);
    assert!(matches!(of(&reports, "round-trip"), Status::Found(_)), "{:?}", of(&reports, "round-trip"));
}

#[test]
fn only_what_is_wanted_is_asked_for() {
    let cluster = Cluster::start(Make::Ours, Make::Ours, Metadata::P2p, 1, 64 * MIB);
    let question = of_cluster(&cluster);
    let reports = block_on(run(&RealEnv::new(), &question, &|id| id == "nodes-answer"));
    assert_eq!(reports.len(), 1);
    assert_eq!(cluster.master.metric("master_batch_put_start_items_total"), 0.0, "nothing was put");
    assert!(block_on(run(&RealEnv::new(), &question, &|_| false)).is_empty());
}

#[test]
fn an_object_that_would_evict_others_is_not_put() {
    let cluster = Cluster::start(Make::Ours, Make::Ours, Metadata::P2p, 1, 64 * MIB);
    let large = Question { probe_bytes: 100 * MIB, ..of_cluster(&cluster) };
    let reports = examine(&large);
    let Status::Skipped(why) = of(&reports, "round-trip") else { panic!("{:?}", of(&reports, "round-trip")) };
    assert!(why.contains("could evict keys"), "{why}");
    assert_eq!(cluster.master.metric("master_put_start_requests_total"), 0.0);
    assert_eq!(cluster.master.metric("master_batch_put_start_items_total"), 0.0);
    is_clean(&cluster.master);
}

/// A real store service that was told to use RDMA on a host without any device.
#[test]
fn a_real_node_that_fell_back_to_tcp_is_found() {
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
    wait_until("the node to be mounted", Duration::from_secs(30), || cluster.master.segments().len() == 1);
    let reports = examine(&of_cluster(&cluster));
    found(&reports, "silent-tcp", Severity::Error, "move their bytes over TCP");
    assert!(passed(&reports, "round-trip").starts_with("1 node over tcp"));
    is_clean(&cluster.master);
}
