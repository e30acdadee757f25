//! `mcctl serve store`: what it takes, what it refuses, how long it waits.

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

/// A port that nobody listens on: it was free a moment ago.
fn nobody() -> u16 {
    TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("bound").port()
}

#[test]
fn a_node_lends_its_memory_and_takes_it_back_at_the_end() {
    let (mut master, rpc, admin) = master(&[]);
    let mut node = start(&node_args(rpc, &[]));
    let rest = node.port_after("REST API started on port ");
    node.line_with("Store service started successfully on localhost:");
    assert!(get(admin, "/get_segments_detail").1.contains("\"size_bytes\":67108864"));
    // The first heartbeat is on its way.
    wait_until("its first heartbeat is answered", PATIENCE, || get(rest, "/health").0 == 200);
    assert_eq!(node.stop(Signal::SIGTERM), 0);
    assert!(get(admin, "/get_segments_detail").1.contains("\"total_segments\":0"));
    assert_eq!(master.stop(Signal::SIGTERM), 0);
}

#[test]
fn the_keys_of_the_originals_file_and_its_environment_work() {
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
    node.line_with("lends 16 MiB");
    assert_eq!(node.stop(Signal::SIGINT), 0);
}

#[test]
fn a_master_that_is_not_there_is_3_within_the_nodes_own_deadline() {
    let port = nobody();
    let began = Instant::now();
    let run = run(&node_args(port, &["--max-wait-time=1", "--log-level=off"]));
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
    assert_eq!(
        run.fails(3),
        format!(
            "error: cannot reach the master at 127.0.0.1:{port} within 1 s; tried: call the master at 127.0.0.1:{port} \
             (--master-server-address 127.0.0.1:{port} (command line)); found: Connection refused (os error 111); next: start \
             the master (mcctl serve master), give the right --master, or wait longer with --max-wait-time"
        )
    );
}

#[test]
fn sigterm_ends_a_node_that_waits_for_its_master() {
    let mut node = start(&node_args(nobody(), &["--max-wait-time=600"]));
    node.line_with("the master does not answer yet");
    let began = Instant::now();
    assert_eq!(node.stop(Signal::SIGTERM), 0);
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
}

/// Both records that a name has in a metadata service.
fn records(metadata: u16, name: &str) -> [u16; 2] {
    ["ram", "rpc_meta"].map(|kind| get(metadata, &format!("/metadata?key=mooncake/{kind}/{name}")).0)
}

#[test]
fn a_signal_before_the_master_is_found_leaves_no_record_of_the_node() {
    let mut service = Service::start(command(&["serve", "metadata", "--host", "127.0.0.1", "--port=0"]));
    let metadata = service.port_after("http://127.0.0.1:");
    let url = format!("--metadata-server=http://127.0.0.1:{metadata}/metadata");
    let mut node = start(&node_args(nobody(), &["--max-wait-time=600", &url, "--local-hostname=127.0.0.1:7777"]));
    node.line_with("the master does not answer yet");
    assert_eq!(records(metadata, "127.0.0.1:7777"), [200, 200]);
    assert_eq!(node.stop(Signal::SIGTERM), 0);
    assert_eq!(records(metadata, "127.0.0.1:7777"), [404, 404]);
}

#[test]
fn a_signal_ends_a_put_and_a_bench_that_wait_and_leaves_no_record_of_them() {
    let mut service = Service::start(command(&["serve", "metadata", "--host", "127.0.0.1", "--port=0"]));
    let metadata = service.port_after("http://127.0.0.1:");
    let url = format!("http://127.0.0.1:{metadata}/metadata");
    // Takes connections, and never answers.
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
        let mut run = Service::start(command(args));
        wait_until("its records are there", PATIENCE, || records(metadata, "ours:7") == [200, 200]);
        let began = Instant::now();
        assert_eq!(run.stop(Signal::SIGINT), 1, "{:#?}", run.all_lines());
        assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
        assert_eq!(records(metadata, "ours:7"), [404, 404], "{:#?}", run.all_lines());
        assert!(run.all_lines().iter().any(|line| line.contains("SIGINT: stopped")), "{:#?}", run.all_lines());
    }
}

#[test]
fn a_signal_during_the_search_for_the_metadata_mode_ends_a_put() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("value");
    std::fs::write(&file, "v").expect("written");
    // The admin port of a master that takes connections and never answers.
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
fn a_node_waits_for_a_master_that_comes_later() {
    let port = nobody();
    let mut node = start(&node_args(port, &["--max-wait-time=60"]));
    node.line_with("the master does not answer yet");
    let rpc = format!("--rpc_port={port}");
    let mut master = Service::start(command(&["serve", "master", "--rpc_address=127.0.0.1", &rpc, "--metrics_port=0"]));
    master.line_with("segment mounted");
    node.line_with("REST API started on port ");
}

#[test]
fn a_node_waits_for_a_metadata_service_that_comes_later() {
    let (_master, rpc, _) = master(&[]);
    let port = nobody();
    let url = format!("--metadata-server=http://127.0.0.1:{port}/metadata");
    let mut node = start(&node_args(rpc, &["--max-wait-time=60", &url]));
    node.line_with("the metadata service does not answer yet");
    let at = format!("--port={port}");
    let _service = Service::start(command(&["serve", "metadata", "--host=127.0.0.1", &at]));
    node.line_with("REST API started on port ");
    assert_eq!(node.stop(Signal::SIGTERM), 0);
}

#[test]
fn a_metadata_service_that_is_not_there_is_3_in_time_and_sigterm_ends_the_wait() {
    let url = format!("--metadata-server=http://127.0.0.1:{}/metadata", nobody());
    let began = Instant::now();
    let refused = run(&node_args(nobody(), &["--max-wait-time=1", "--log-level=off", &url]));
    assert!((1..20).contains(&began.elapsed().as_secs()), "{:?}", began.elapsed());
    let said = refused.fails(3);
    assert!(said.starts_with("error: cannot use the metadata service http://127.0.0.1:"), "{said}");
    assert!(said.contains(" within 1 s; ") && said.ends_with("; or wait longer with --max-wait-time"), "{said}");
    let mut node = start(&node_args(nobody(), &["--max-wait-time=600", &url]));
    node.line_with("the metadata service does not answer yet");
    let began = Instant::now();
    assert_eq!(node.stop(Signal::SIGTERM), 0);
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
}

#[test]
fn a_rest_port_in_use_is_4_and_nothing_was_lent() {
    let (_master, rpc, admin) = master(&[]);
    let run = run(&node_args(rpc, &["--log-level=off", &format!("--port={admin}")]));
    let said = run.fails(4);
    assert!(said.starts_with(&format!("error: port {admin} for the REST port is in use by pid ")), "{said}");
    assert!(said.contains("mcctl serve master"), "{said}");
    assert!(get(admin, "/metrics").1.contains("master_mount_segment_requests_total 0"));
}

#[test]
fn a_segment_larger_than_the_memory_is_4() {
    let run = run(&node_args(nobody(), &["--segment-size=900tb"]));
    let said = run.fails(4);
    assert!(said.starts_with("error: there is no room for a segment of 900 TiB in this host's memory of "), "{said}");
    assert!(said.contains("; tried: --global-segment-size 900 TiB (command line), "), "{said}");
}

#[test]
fn a_local_buffer_larger_than_the_memory_is_4_and_is_what_is_to_be_lowered() {
    let run = run(&node_args(nobody(), &["--local-buffer-size=900tb"]));
    let said = run.fails(4);
    assert!(said.contains(" and a local buffer of 900 TiB "), "{said}");
    assert!(said.ends_with("; next: lower --local-buffer-size"), "{said}");
}

#[test]
fn a_master_whose_name_is_not_known_is_waited_for_and_then_3() {
    let mut args = vec!["serve", "store", "--master=nobody.invalid:50051", "--max-wait-time=1", "--port=0"];
    args.extend(["--host=127.0.0.1", "--segment-size=64mb", "--local-buffer-size=0", "--log-level=off"]);
    let began = Instant::now();
    let run = mcctl(&args);
    let said = run.fails(3);
    assert!((1..20).contains(&began.elapsed().as_secs()), "{:?}", began.elapsed());
    assert!(
        said.starts_with("error: cannot reach the master at nobody.invalid:50051: its name cannot be resolved; tried:"),
        "{said}"
    );
    assert!(said.ends_with(", or wait longer with --max-wait-time"), "{said}");
    // A node that has a name of its own need not resolve the master's before it calls it.
    let run = mcctl(&[&args[..], &["--local-hostname=192.0.2.1"]].concat());
    assert!(run.fails(3).starts_with("error: cannot reach the master at nobody.invalid:50051 within 1 s; "), "{run:?}");
    let run = mcctl(&["store", "put", "k", "--value=x", "--master=nobody.invalid:50051"]);
    assert!(run.fails(3).starts_with("error: cannot reach the master at nobody.invalid:50051"), "{run:?}");
    let mut node = start(&["serve", "store", "--master=nobody.invalid:1", "--port=0"].map(str::to_owned));
    node.line_with("its name cannot be resolved; waiting for it");
    assert_eq!(node.stop(Signal::SIGTERM), 0);
}

#[test]
fn a_name_of_its_own_that_a_node_cannot_resolve_is_warned_of() {
    let (_master, rpc, _) = master(&[]);
    let mut node = start(&node_args(rpc, &["--local-hostname=nobody.invalid", "--metadata-server=P2PHANDSHAKE"]));
    node.line_with("this host cannot resolve the node's own name 'nobody.invalid'");
    node.line_with("Store service started successfully on nobody.invalid:");
    assert_eq!(node.stop(Signal::SIGTERM), 0);
}

#[test]
fn a_second_node_of_one_name_is_warned_of_without_a_metadata_service_and_refused_with_one() {
    let (mut master, rpc, _) = master(&["--enable_http_metadata_server"]);
    let metadata = master.port_after("metadata http://127.0.0.1:");
    let name = format!("--local-hostname=127.0.0.1:{}", free_port());
    let mut first = start(&node_args(rpc, &[&name, "--metadata-server=P2PHANDSHAKE"]));
    first.line_with("Store service started successfully");
    let mut second = start(&node_args(rpc, &[&name, "--metadata-server=P2PHANDSHAKE"]));
    second.line_with("another process of this host has the port of this node's name");
    second.line_with("Store service started successfully");
    assert_eq!((first.stop(Signal::SIGTERM), second.stop(Signal::SIGTERM)), (0, 0));
    let http = format!("--metadata-server=http://127.0.0.1:{metadata}/metadata");
    let mut first = start(&node_args(rpc, &[&name, &http]));
    first.line_with("Store service started successfully");
    let run = run(&node_args(rpc, &[&name, &http, "--log-level=off"]));
    assert!(run.fails(2).contains("is taken by a running engine at "), "{run:?}");
}

#[test]
fn a_handshake_port_that_was_chosen_and_is_taken_is_4_and_names_its_holder() {
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
    let expected =
        format!("error: port {port} for the transfer engine's handshake is in use by pid {} (", std::process::id());
    assert!(run.fails(4).starts_with(&expected), "{run:?}");
    let run = legacy(&[&format!("--port={port}")]);
    let expected = format!("error: the REST port and the transfer engine's handshake are given one port, {port}; ");
    assert!(run.fails(2).starts_with(&expected), "{run:?}");
}

#[test]
fn huge_pages_that_are_not_there_are_4() {
    let pages =
        std::fs::read_to_string("/sys/kernel/mm/hugepages/hugepages-1048576kB/free_hugepages").unwrap_or_default();
    // A machine with gigabyte pages to spare would start the node.
    if pages.trim().parse::<u64>().unwrap_or(0) > 0 {
        return;
    }
    let args = node_args(nobody(), &["--segment-size=1gb", "--max-wait-time=1", "--log-level=off"]);
    let mut command = command(&args.iter().map(String::as_str).collect::<Vec<_>>());
    command.envs([("MC_STORE_USE_HUGEPAGE", "1"), ("MC_STORE_HUGEPAGE_SIZE", "1GB")]);
    let run = super::finish(command.output().expect("the program starts"));
    let said = run.fails(4);
    assert!(said.contains("huge pages of 1 GiB") && said.contains("MC_STORE_USE_HUGEPAGE"), "{said}");
}

#[test]
fn a_name_that_only_this_host_can_call_is_2_for_a_master_elsewhere() {
    let args = ["serve", "store", "--master=192.0.2.1:50051", "--metadata-server=P2PHANDSHAKE", "--port=0"];
    let run = mcctl(&[&args[..], &["--local-hostname=localhost"]].concat());
    let said = run.fails(2);
    assert!(
        said.starts_with("error: other hosts cannot reach this node as 'localhost'; tried: --local-hostname localhost"),
        "{said}"
    );
}

#[test]
fn rdma_that_cannot_be_had_is_4_and_never_tcp_in_disguise() {
    let store =
        &["serve", "store", "--master=127.0.0.1:1", "--device-name=none_such", "--segment-size=16mb", "--port=0"];
    let run = mcctl(&[store, &["--protocol=rdma"][..]].concat());
    let said = run.fails(4);
    assert!(said.contains("rdma cannot be used on this host, and is not replaced by tcp; "), "{said}");
    assert!(said.contains("--protocol rdma"), "{said}");
}

#[test]
fn a_node_without_a_master_to_call_is_2() {
    let run = mcctl(&["serve", "store"]);
    assert_eq!(
        run.fails(2),
        "error: no master is named; tried: --master, master_server_address in the configuration file, and MOONCAKE_MASTER; \
         next: give --master HOST:PORT"
    );
}

/// A node whose name is known, with its records at `metadata`.
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
fn a_killed_nodes_records_leave_the_masters_own_metadata_service() {
    let flags = ["--enable_http_metadata_server", "--enable_metadata_cleanup_on_timeout=true", "--client_ttl=2"];
    let (mut master, rpc, _) = master(&flags);
    let (metadata, port) = (master.port_after("metadata http://127.0.0.1:"), free_port());
    let mut node = named_node(rpc, metadata, port);
    node.stop(Signal::SIGKILL);
    wait_until("its records are gone", PATIENCE, || records_are_gone(metadata, port));
    master.line_with(&format!(
        "Cleaned up HTTP metadata for segment: 127.0.0.1:{port}, ram_key_removed=true, rpc_key_removed=true"
    ));
}

#[test]
fn a_killed_nodes_records_leave_a_metadata_service_elsewhere() {
    let mut service = Service::start(command(&["serve", "metadata", "--host=127.0.0.1", "--port=0"]));
    let (metadata, port) = (service.port_after("http://127.0.0.1:"), free_port());
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
fn strict_config_refuses_an_unknown_key_of_a_nodes_file() {
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("store.json");
    std::fs::write(&path, r#"{"master_server_adress": "127.0.0.1:1"}"#).expect("written");
    let shown = path.to_str().expect("text");
    let run = mcctl(&["serve", "store", "--strict-config", "--config", shown]);
    assert!(run.fails(2).contains("did you mean master_server_address?"), "{run:?}");
    // Without the flag the node goes on, and then has no master.
    assert!(mcctl(&["serve", "store", "--config", shown]).fails(2).contains("error: no master is named"));
}

#[test]
fn a_node_starts_with_unknown_keys_and_names_each_in_a_warning() {
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
    for key in ["'numa_nodes'", "did you mean protocol?", "'cache'"] {
        node.line_with(key);
    }
    assert_eq!(node.stop(Signal::SIGTERM), 0);
}

#[test]
fn the_client_http_server_shows_health_and_what_the_rest_port_did() {
    let (mut master, rpc, _) = master(&[]);
    let mut node = start(&node_args(rpc, &["--enable-client-http-server", "--client-http-port=0"]));
    let rest = node.port_after("REST API started on port ");
    let client = node.port_after("client HTTP server started on port ");
    wait_until("its first heartbeat is answered", PATIENCE, || get(client, "/health").0 == 200);
    assert_eq!(get(client, "/health").1, r#"{"status":"healthy","code":0}"#);
    assert!(!get(client, "/metrics").1.contains("mooncake_transfer_"), "nothing was moved yet");
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
fn without_client_metrics_the_client_http_server_still_shows_health() {
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
    assert!(run(&node_args(nobody(), &args)).fails(2).contains("17099"));
}
