//! `mcctl serve store`: settings, errors, waiting for services, and signals.

use std::net::TcpListener;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use super::serve::master;
use super::service::{Service, get};
use super::{command, mcctl};
use crate::peer::process::{PATIENCE, free_port, wait_until};

fn node_args(rpc: u16, more: &[&str]) -> Vec<String> {
    let mut args = vec!["serve".to_owned(), "store".to_owned(), format!("--master=127.0.0.1:{rpc}")];
    args.extend(["--host=127.0.0.1", "--port=0", "--segment-size=64mb", "--local-buffer-size=0"].map(str::to_owned));
    args.extend(more.iter().map(|arg| (*arg).to_owned()));
    args
}

fn start(args: &[String]) -> Service {
    Service::start(command(&args.iter().map(String::as_str).collect::<Vec<_>>()))
}

#[track_caller]
fn run(args: &[String]) -> super::Run {
    mcctl(&args.iter().map(String::as_str).collect::<Vec<_>>())
}

#[test]
fn a_node_mounts_its_segment_and_unmounts_it_at_the_end() {
    let (mut master, rpc, admin) = master(&[]);
    let mut node = start(&node_args(rpc, &[]));
    let rest = node.port_after("REST API started on port ");
    node.line_with("Store service started successfully on localhost:");
    assert!(get(admin, "/get_segments_detail").1.contains("\"size_bytes\":67108864"));
    // The first heartbeat has been sent.
    wait_until("its first heartbeat is answered", PATIENCE, || get(rest, "/health").0 == 200);
    assert_eq!(node.stop(Signal::SIGTERM), 0);
    assert!(get(admin, "/get_segments_detail").1.contains("\"total_segments\":0"));
    assert_eq!(master.stop(Signal::SIGTERM), 0);
}

#[test]
fn copies_are_on_different_hosts_while_another_host_has_room() {
    let (mut master, rpc, admin) = master(&[]);
    let node = |host: &str| {
        let args = node_args(rpc, &[]);
        let mut start = command(&args.iter().map(String::as_str).collect::<Vec<_>>());
        start.env("MOONCAKE_HOST_ID", host);
        let mut node = Service::start(start);
        node.line_with("Store service started successfully");
        node
    };
    let mut nodes = [node("a"), node("a"), node("b")];
    let master_at = format!("--master=127.0.0.1:{rpc}");
    let admin_at = format!("--admin=127.0.0.1:{admin}");
    let put = |key: &str| {
        let run = mcctl(&["store", "put", key, "--value=x", "--replicas=2", "--json", &master_at, &admin_at]);
        let document: serde_json::Value = serde_json::from_str(run.succeeds()).expect("one JSON document");
        (document["hosts"].clone(), run.stderr)
    };
    for nth in 0..12 {
        let (hosts, stderr) = put(&format!("apart-{nth}"));
        assert_eq!(hosts, serde_json::json!(["a", "b"]));
        assert!(!stderr.contains("warning"), "{stderr}");
    }
    assert_eq!(nodes[2].stop(Signal::SIGTERM), 0);
    let (hosts, stderr) = put("together");
    assert_eq!(hosts, serde_json::json!(["a"]));
    assert!(stderr.contains("on host a"), "{stderr}");
    assert_eq!(master.stop(Signal::SIGTERM), 0);
}

#[test]
fn upstream_file_keys_and_variables_work() {
    let (_master, rpc, admin) = master(&["--enable_http_metadata_server"]);
    let mut master = _master;
    let metadata = master.port_after("metadata http://127.0.0.1:");
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("store.json");
    let text = format!(
        r#"{{"local_hostname": "127.0.0.1", "metadata_server": "http://127.0.0.1:{metadata}/metadata",
            "master_server_address": "127.0.0.1:{rpc}", "global_segment_size": "32mb", "local_buffer_size": 16777216,
            "protocol": "TCP", "device_name": ""}}"#
    );
    std::fs::write(&path, text).expect("written");
    let mut node = Service::start(command(&["serve", "store", "--config", path.to_str().expect("text"), "--port=0"]));
    node.line_with("REST API started on port ");
    assert!(get(admin, "/get_segments_detail").1.contains("\"size_bytes\":33554432"));
    assert_eq!(node.stop(Signal::SIGTERM), 0);
    let mut command = command(&["serve", "store", "--port=0", "-Dlocal_buffer_size=0"]);
    command.envs([
        ("MOONCAKE_MASTER", format!("127.0.0.1:{rpc}")),
        ("MOONCAKE_TE_META_DATA_SERVER", "P2PHANDSHAKE".to_owned()),
        ("MOONCAKE_GLOBAL_SEGMENT_SIZE", "16Mi".to_owned()),
    ]);
    let mut node = Service::start(command);
    node.line_with("contributes 16 MiB");
    assert_eq!(node.stop(Signal::SIGINT), 0);
}

#[test]
fn an_unreachable_master_is_3_after_max_wait_time() {
    let port = free_port();
    let run = run(&node_args(port, &["--max-wait-time=1", "--log-level=off"]));
    let error = run.fails(3);
    assert!(error.contains(&format!("master at 127.0.0.1:{port} within 1 s; ")), "{error}");
    assert!(error.ends_with("--max-wait-time"), "{error}");
}

#[test]
fn sigterm_ends_a_node_that_waits_for_its_master() {
    let mut node = start(&node_args(free_port(), &["--max-wait-time=600"]));
    node.line_with("the master is not responding yet");
    assert_eq!(node.stop(Signal::SIGTERM), 0);
}

/// The status of both records of `name` in a metadata service.
fn records(metadata: u16, name: &str) -> [u16; 2] {
    ["ram", "rpc_meta"].map(|kind| get(metadata, &format!("/metadata?key=mooncake/{kind}/{name}")).0)
}

#[test]
fn a_node_stopped_before_it_finds_its_master_leaves_no_record() {
    let mut service = Service::start(command(&["serve", "metadata", "--host", "127.0.0.1", "--port=0"]));
    let metadata = service.port_after("http://127.0.0.1:");
    let url = format!("--metadata-server=http://127.0.0.1:{metadata}/metadata");
    let mut node = start(&node_args(free_port(), &["--max-wait-time=600", &url, "--local-hostname=127.0.0.1:7777"]));
    node.line_with("the master is not responding yet");
    assert_eq!(records(metadata, "127.0.0.1:7777"), [200, 200]);
    assert_eq!(node.stop(Signal::SIGTERM), 0);
    assert_eq!(records(metadata, "127.0.0.1:7777"), [404, 404]);
}

#[test]
fn a_signal_ends_a_waiting_put_get_and_bench_without_records() {
    let mut service = Service::start(command(&["serve", "metadata", "--host", "127.0.0.1", "--port=0"]));
    let metadata = service.port_after("http://127.0.0.1:");
    let url = format!("http://127.0.0.1:{metadata}/metadata");
    // Accepts connections and never answers.
    let silent = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = silent.local_addr().expect("bound").port();
    let master = format!("--master=127.0.0.1:{port}");
    let dead = format!("{{\"ip_or_host_name\":\"127.0.0.1\",\"rpc_port\":{port}}}");
    let target = format!(
        "{{\"buffers\":[{{\"addr\":4096,\"length\":1073741824,\"name\":\"t\"}}],\"name\":\"t\",\"protocol\":\"tcp\",\
          \"tcp_data_host\":\"127.0.0.1\",\"tcp_data_port\":{port},\"tcp_proto_version\":2}}"
    );
    for (kind, body) in [("ram", target), ("rpc_meta", dead)] {
        super::service::put(metadata, &format!("/metadata?key=mooncake/{kind}/t"), &body);
    }
    for args in [
        &[
            "store",
            "put",
            "k",
            "--value=v",
            "--timeout=60s",
            &master,
            "--metadata-server",
            &url,
            "--local-hostname=ours:7",
        ][..],
        &["store", "get", "k", "--timeout=60s", &master, "--metadata-server", &url, "--local-hostname=ours:7"],
        &[
            "bench",
            "transfer",
            "--segment-id=t",
            "--duration=60",
            "--metadata-server",
            &url,
            "--local-server-name=ours:7",
        ],
    ] {
        let mut command = command(args);
        // A name that is not an address: the engine announces an address of the host's interfaces,
        // and the host may not have one.
        command.env("MC_TCP_BIND_ADDRESS", "127.0.0.1");
        let mut run = Service::start(command);
        wait_until("its records", PATIENCE, || records(metadata, "ours:7") == [200, 200]);
        assert_eq!(run.stop(Signal::SIGINT), 1, "{:#?}", run.all_lines());
        assert_eq!(records(metadata, "ours:7"), [404, 404], "{:#?}", run.all_lines());
        assert!(run.all_lines().iter().any(|line| line.contains("SIGINT: stopped")), "{:#?}", run.all_lines());
    }
}

#[test]
fn a_signal_during_metadata_discovery_ends_a_put() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("value");
    std::fs::write(&file, "v").expect("written");
    // The admin port of a master that accepts connections and never answers.
    let silent = TcpListener::bind("127.0.0.1:0").expect("a port");
    silent.set_nonblocking(true).expect("a socket");
    let at = silent.local_addr().expect("bound").to_string();
    let file = file.display().to_string();
    let words = ["store", "put", "k", &file, "--timeout=60s", "--master", &at, "--admin", &at];
    let mut run = Service::start(command(&words));
    let mut asked = None;
    wait_until("it asks the admin port", PATIENCE, || {
        asked = silent.accept().ok();
        asked.is_some()
    });
    assert_eq!(run.stop(Signal::SIGINT), 1, "{:#?}", run.all_lines());
    assert!(run.all_lines().iter().any(|line| line.contains("SIGINT: stopped")), "{:#?}", run.all_lines());
}

#[test]
fn a_node_waits_for_a_master_that_starts_later() {
    let port = free_port();
    let mut node = start(&node_args(port, &["--max-wait-time=60"]));
    node.line_with("the master is not responding yet");
    let rpc = format!("--rpc_port={port}");
    let mut master = Service::start(command(&["serve", "master", "--rpc_address=127.0.0.1", &rpc, "--metrics_port=0"]));
    master.line_with("segment mounted");
    node.line_with("REST API started on port ");
}

#[test]
fn a_node_waits_for_a_metadata_service_that_starts_later() {
    let (_master, rpc, _) = master(&[]);
    let port = free_port();
    let url = format!("--metadata-server=http://127.0.0.1:{port}/metadata");
    let mut node = start(&node_args(rpc, &["--max-wait-time=60", &url]));
    node.line_with("the metadata service is not responding yet");
    let at = format!("--port={port}");
    let _service = Service::start(command(&["serve", "metadata", "--host=127.0.0.1", &at]));
    node.line_with("REST API started on port ");
    assert_eq!(node.stop(Signal::SIGTERM), 0);
}

#[test]
fn an_unreachable_metadata_service_is_3_and_sigterm_ends_the_wait() {
    let url = format!("--metadata-server=http://127.0.0.1:{}/metadata", free_port());
    let began = Instant::now();
    let refused = run(&node_args(free_port(), &["--max-wait-time=1", "--log-level=off", &url]));
    assert!(began.elapsed() >= Duration::from_secs(1), "{:?}", began.elapsed());
    let error = refused.fails(3);
    assert!(error.contains("metadata service http://127.0.0.1:"), "{error}");
    assert!(error.contains(" within 1 s; ") && error.ends_with("--max-wait-time"), "{error}");
    let mut node = start(&node_args(free_port(), &["--max-wait-time=600", &url]));
    node.line_with("the metadata service is not responding yet");
    assert_eq!(node.stop(Signal::SIGTERM), 0);
}

#[test]
fn a_rest_port_in_use_is_4_and_no_segment_is_mounted() {
    let (_master, rpc, admin) = master(&[]);
    let run = run(&node_args(rpc, &["--log-level=off", &format!("--rest-port={admin}")]));
    let error = run.fails(4);
    assert!(error.starts_with(&format!("error: port {admin} for the REST port")), "{error}");
    assert!(error.contains("by pid ") && error.contains("mcctl serve master"), "{error}");
    assert!(get(admin, "/metrics").1.contains("master_mount_segment_requests_total 0"));
}

#[test]
fn a_segment_larger_than_the_memory_is_4() {
    let run = run(&node_args(free_port(), &["--segment-size=900tb"]));
    let error = run.fails(4);
    assert!(error.contains("a segment of 900 TiB"), "{error}");
    assert!(error.contains("tried: --global-segment-size 900 TiB"), "{error}");
}

#[test]
fn a_local_buffer_larger_than_the_memory_is_4_and_names_its_flag() {
    let run = run(&node_args(free_port(), &["--local-buffer-size=900tb"]));
    let error = run.fails(4);
    assert!(error.contains("a local buffer of 900 TiB"), "{error}");
    assert!(error.ends_with("lower --local-buffer-size"), "{error}");
}

#[test]
fn a_master_whose_name_does_not_resolve_is_3_after_retries() {
    let mut args = vec!["serve", "store", "--master=missing.invalid:50051", "--max-wait-time=1", "--port=0"];
    args.extend(["--host=127.0.0.1", "--segment-size=64mb", "--local-buffer-size=0", "--log-level=off"]);
    let began = Instant::now();
    let run = mcctl(&args);
    let error = run.fails(3);
    assert!(began.elapsed() >= Duration::from_secs(1), "{:?}", began.elapsed());
    assert!(error.contains("resolve") && error.contains("missing.invalid:50051"), "{error}");
    assert!(error.ends_with("--max-wait-time"), "{error}");
    // A node with --local-hostname does not resolve the master's name before it calls the master.
    let run = mcctl(&[&args[..], &["--local-hostname=192.0.2.1"]].concat());
    assert!(run.fails(3).contains("missing.invalid:50051 within 1 s; "), "{run:?}");
    let run = mcctl(&["store", "put", "k", "--value=x", "--master=missing.invalid:50051"]);
    assert!(run.fails(3).contains("missing.invalid:50051"), "{run:?}");
    let mut node = start(&["serve", "store", "--master=missing.invalid:1", "--port=0"].map(str::to_owned));
    node.line_with("; retrying");
    assert_eq!(node.stop(Signal::SIGTERM), 0);
}

#[test]
fn an_unresolvable_node_name_is_a_warning() {
    let (_master, rpc, _) = master(&[]);
    let mut node = start(&node_args(rpc, &["--local-hostname=missing.invalid", "--metadata-server=P2PHANDSHAKE"]));
    node.line_with("node's own name 'missing.invalid'");
    node.line_with("Store service started successfully on missing.invalid:");
    assert_eq!(node.stop(Signal::SIGTERM), 0);
}

#[test]
fn a_second_node_of_one_name_is_refused_with_an_http_service_only() {
    let (mut master, rpc, _) = master(&["--enable_http_metadata_server"]);
    let metadata = master.port_after("metadata http://127.0.0.1:");
    let name = format!("--local-hostname=127.0.0.1:{}", free_port());
    let mut first = start(&node_args(rpc, &[&name, "--metadata-server=P2PHANDSHAKE"]));
    first.line_with("Store service started successfully");
    let mut second = start(&node_args(rpc, &[&name, "--metadata-server=P2PHANDSHAKE"]));
    second.line_with("the port in this node's name is in use");
    second.line_with("Store service started successfully");
    assert_eq!((first.stop(Signal::SIGTERM), second.stop(Signal::SIGTERM)), (0, 0));
    let http = format!("--metadata-server=http://127.0.0.1:{metadata}/metadata");
    let mut first = start(&node_args(rpc, &[&name, &http]));
    first.line_with("Store service started successfully");
    let run = run(&node_args(rpc, &[&name, &http, "--log-level=off"]));
    assert!(run.fails(2).contains("is in use by a running engine at "), "{run:?}");
}

#[test]
fn a_fixed_handshake_port_in_use_is_4_and_names_its_holder() {
    let (mut master, rpc, _) = master(&["--enable_http_metadata_server"]);
    let metadata = master.port_after("metadata http://127.0.0.1:");
    let taken = TcpListener::bind("0.0.0.0:0").expect("a port");
    let port = taken.local_addr().expect("bound").port();
    let http = format!("--metadata-server=http://127.0.0.1:{metadata}/metadata");
    let legacy = |more: &[&str]| {
        let name = format!("--local-hostname=127.0.0.1:{port}");
        let args = node_args(rpc, &[&[&*name, &*http, "--log-level=off"], more].concat());
        let mut command = command(&args.iter().map(String::as_str).collect::<Vec<_>>());
        super::finish(command.env("MC_LEGACY_RPC_PORT_BINDING", "1").output().expect("the program starts"))
    };
    let run = legacy(&[]);
    let error = run.fails(4);
    assert!(error.contains(&port.to_string()) && error.contains("handshake"), "{error}");
    assert!(error.contains(&format!("by pid {} (", std::process::id())), "{error}");
    let run = legacy(&[&format!("--port={port}")]);
    let error = run.fails(2);
    assert!(error.contains("REST port") && error.contains("handshake") && error.contains(&port.to_string()), "{error}");
}

#[test]
fn missing_huge_pages_are_4() {
    let free = std::fs::read_to_string("/sys/kernel/mm/hugepages/hugepages-1048576kB/free_hugepages");
    let free = free.map_or(0, |pages| pages.trim().parse::<u64>().expect("a number"));
    // More than the host has.
    let size = format!("--segment-size={}gb", free + 1);
    let args = node_args(free_port(), &[&size, "--max-wait-time=1", "--log-level=off"]);
    let mut command = command(&args.iter().map(String::as_str).collect::<Vec<_>>());
    command.envs([("MC_STORE_USE_HUGEPAGE", "1"), ("MC_STORE_HUGEPAGE_SIZE", "1GB")]);
    let run = super::finish(command.output().expect("the program starts"));
    let error = run.fails(4);
    assert!(error.contains("huge pages of 1 GiB") && error.contains("MC_STORE_USE_HUGEPAGE"), "{error}");
}

#[test]
fn missing_rdma_is_4_without_a_fallback_to_tcp() {
    let store =
        &["serve", "store", "--master=127.0.0.1:1", "--device-name=none_such", "--segment-size=16mb", "--port=0"];
    let run = mcctl(&[store, &["--protocol=rdma"][..]].concat());
    let error = run.fails(4);
    assert!(error.contains("rdma") && error.contains("--protocol rdma"), "{error}");
}

/// A node with a fixed name and its records at `metadata`.
fn named_node(rpc: u16, metadata: u16, port: u16) -> Service {
    let http = format!("--metadata-server=http://127.0.0.1:{metadata}/metadata");
    let mut node = start(&node_args(rpc, &[&http, &format!("--local-hostname=127.0.0.1:{port}")]));
    node.line_with("Store service started successfully");
    for record in ["ram", "rpc_meta"] {
        assert_eq!(
            get(metadata, &format!("/metadata?key=mooncake%2F{record}%2F127.0.0.1%3A{port}")).0,
            200,
            "{record}"
        );
    }
    node
}

fn records_are_gone(metadata: u16, port: u16) -> bool {
    ["ram", "rpc_meta"]
        .iter()
        .all(|record| get(metadata, &format!("/metadata?key=mooncake%2F{record}%2F127.0.0.1%3A{port}")).0 == 404)
}

#[test]
fn records_of_a_killed_node_are_removed_from_the_embedded_service() {
    let flags = ["--enable_http_metadata_server", "--enable_metadata_cleanup_on_timeout=true", "--client_ttl=2"];
    let (mut master, rpc, _) = master(&flags);
    let metadata = master.port_after("metadata http://127.0.0.1:");
    let port = free_port();
    let mut node = named_node(rpc, metadata, port);
    node.stop(Signal::SIGKILL);
    wait_until("its records are gone", PATIENCE, || records_are_gone(metadata, port));
    master.line_with(&format!(
        "Cleaned up HTTP metadata for segment: 127.0.0.1:{port}, ram_key_removed=true, rpc_key_removed=true"
    ));
}

#[test]
fn records_of_a_killed_node_are_removed_from_a_separate_service() {
    let mut service = Service::start(command(&["serve", "metadata", "--host=127.0.0.1", "--port=0"]));
    let metadata = service.port_after("http://127.0.0.1:");
    let port = free_port();
    let mut command =
        command(&["serve", "master", "--rpc_address=127.0.0.1", "--port=0", "--metrics_port=0", "--client_ttl=2"]);
    command.arg("--enable_metadata_cleanup_on_timeout");
    command.env("MOONCAKE_TE_META_DATA_SERVER", format!("http://127.0.0.1:{metadata}/metadata"));
    let mut master = Service::start(command);
    let rpc = master.port_after("Master service started on port ");
    let mut node = named_node(rpc, metadata, port);
    node.stop(Signal::SIGKILL);
    wait_until("its records are gone", PATIENCE, || records_are_gone(metadata, port));
}

#[test]
fn strict_config_refuses_an_unknown_key_of_a_node() {
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("store.json");
    std::fs::write(&path, r#"{"master_server_adress": "127.0.0.1:1"}"#).expect("written");
    let shown = path.to_str().expect("text");
    let run = mcctl(&["serve", "store", "--strict-config", "--config", shown]);
    assert!(run.fails(2).contains("master_server_address?"), "{run:?}");
    // Without the flag the key is ignored, and the node has no master.
    assert!(mcctl(&["serve", "store", "--config", shown]).fails(2).contains("MOONCAKE_MASTER"));
}

#[test]
fn unknown_keys_of_a_node_are_warnings() {
    let (_master, rpc, _) = master(&[]);
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("store.json");
    let text = format!(
        r#"{{"local_hostname": "127.0.0.1", "metadata_server": "P2PHANDSHAKE", "master_server_address": "127.0.0.1:{rpc}",
            "global_segment_size": "16mb", "local_buffer_size": 0, "numa_nodes": [0, 1], "protocoll": "tcp"}}"#
    );
    std::fs::write(&path, text).expect("written");
    let args =
        ["serve", "store", "--port=0", "--host=127.0.0.1", "-Dcache=1", "--config", path.to_str().expect("text")];
    let mut node = Service::start(command(&args));
    node.line_with("REST API started on port ");
    for key in ["'numa_nodes'", "protocol?", "'cache'"] {
        node.line_with(key);
    }
    assert_eq!(node.stop(Signal::SIGTERM), 0);
}

#[test]
fn the_client_http_server_shows_health_and_transfers() {
    let (mut master, rpc, _) = master(&[]);
    let mut node = start(&node_args(rpc, &["--enable-client-http-server", "--client-http-port=0"]));
    let rest = node.port_after("REST API started on port ");
    let client = node.port_after("client HTTP server started on port ");
    wait_until("its first heartbeat is answered", PATIENCE, || get(client, "/health").0 == 200);
    assert_eq!(get(client, "/health").1, r#"{"status":"healthy","code":0}"#);
    assert!(!get(client, "/metrics").1.contains("mooncake_transfer_"), "no transfer yet");
    let put = crate::peer::process::http(rest, "PUT", "/api/put", r#"{"key":"k","value":"hello"}"#);
    assert_eq!(put.expect("an answer").0, 200);
    assert_eq!(get(rest, "/api/get/k").1, "hello");
    let text = get(client, "/metrics").1;
    for line in [
        "mooncake_transfer_read_bytes{client_mode=\"real\"} 5",
        "mooncake_transfer_write_bytes{client_mode=\"real\"} 5",
        "mooncake_transfer_get_latency_count{client_mode=\"real\"} 1",
        "mooncake_transfer_put_latency_count{client_mode=\"real\"} 1",
        "mooncake_client_rpc_count{client_mode=\"real\",rpc_name=\"MountSegment\"} 1",
        "mooncake_transfer_write_operation_bytes{client_mode=\"real\",op_name=\"put\"} 5",
        "mooncake_transfer_read_operation_count{client_mode=\"real\",op_name=\"get_buffer\"} 1",
    ] {
        assert!(text.lines().any(|l| l == line), "{line}\n{text}");
    }
    let (status, summary) = get(client, "/metrics/summary");
    assert!(status == 200 && summary.contains("Total Read: 5 B\n"), "{summary}");
    assert_eq!(get(client, "/api/exist/k").0, 404);
    master.stop(Signal::SIGTERM);
    wait_until("the master's end is seen", PATIENCE, || get(client, "/health").0 == 503);
    assert_eq!(get(client, "/health").1, r#"{"status":"master_unreachable","code":2}"#);
    assert_eq!(node.stop(Signal::SIGTERM), 0);
}

#[test]
fn without_client_metrics_the_client_http_server_shows_health() {
    let (_master, rpc, _) = master(&[]);
    let args = node_args(rpc, &[]);
    let mut command = command(&args.iter().map(String::as_str).collect::<Vec<_>>());
    command.envs([("MC_STORE_CLIENT_METRIC", "0")]).arg("-Denable_client_http_server=true").arg("-Dclient_http_port=0");
    let mut node = Service::start(command);
    let client = node.port_after("client HTTP server started on port ");
    wait_until("its first heartbeat is answered", PATIENCE, || get(client, "/health").0 == 200);
    for path in ["/metrics", "/metrics/summary"] {
        assert_eq!(get(client, path), (503, "metrics not available".to_owned()), "{path}");
    }
    assert_eq!(node.stop(Signal::SIGTERM), 0);
}

#[test]
fn the_client_http_port_cannot_be_the_rest_port() {
    let args = ["--enable-client-http-server", "--client-http-port=17099", "--port=17099"];
    assert!(run(&node_args(free_port(), &args)).fails(2).contains("17099"));
}
