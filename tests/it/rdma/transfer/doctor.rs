//! `mcctl doctor --rdma-peer`: every path to another engine, and the diagnosis of failing ones.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::thread;

use mcctl::engine::transfer::Access;
use mcctl::engine::wire::json::{
    ConnectionMessage, DeviceDescriptor, HandshakeFrame, HandshakeKind, SegmentDescriptor,
};
use serde_json::{Value, json};

use crate::cli::{Run, command, finish};
use crate::rdma::transfer::{config, memory, start, target};

/// GID index 1 of rxe0 and rxe1 is IPv4, index 0 is link-local.
const GID: &str = "00:00:00:00:00:00:00:00:00:00:ff:ff:c0:a8:64:01";

async fn doctor(
    segment: &str,
    variables: &'static [(&'static str, &'static str)],
    more: &'static [&'static str],
) -> Run {
    let segment = segment.to_owned();
    let run = move || {
        let args = ["doctor", "--only", "peer", "--timeout", "20s", "--rdma-peer", &segment];
        finish(command(&[&args, more].concat()).envs(variables.iter().copied()).output().unwrap())
    };
    tokio::task::spawn_blocking(run).await.unwrap()
}

fn document(run: &Run) -> Value {
    serde_json::from_str(&run.stdout).unwrap_or_else(|error| panic!("{error}: {run:?}"))
}

/// The texts of the only finding.
#[track_caller]
fn found<'a>(document: &'a Value, id: &str) -> [&'a str; 3] {
    let findings = document["findings"].as_array().unwrap();
    let [finding] = &findings[..] else { panic!("{document:#}") };
    assert_eq!(finding["id"], id, "{document:#}");
    ["finding", "evidence", "remedy"].map(|key| finding[key].as_str().unwrap())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs two RDMA devices: tests/rdma-vm/run-tests"]
async fn every_path_to_a_peer_is_tested_and_timed() {
    let (theirs, _) = target(&["rxe0", "rxe1"], 1 << 20).await;
    let run = doctor(theirs.segment_name(), &[], &["--json"]).await;
    run.succeeds();
    let document = document(&run);
    let peer = &document["rdma_peers"][0];
    let ways = peer["ways"].as_array().unwrap();
    let names: Vec<String> = ways.iter().map(|way| format!("{}-{}", way["from"], way["to"]).replace('"', "")).collect();
    assert_eq!(names, ["rxe0-rxe0", "rxe0-rxe1", "rxe1-rxe0", "rxe1-rxe1"]);
    for way in ways {
        assert_eq!((&way["ok"], &way["gid_index"], &way["port_state"]), (&json!(true), &json!(1), &json!("ACTIVE")));
        assert!(way["write_us"]["median"].as_f64().unwrap() >= way["write_us"]["min"].as_f64().unwrap(), "{way}");
        assert!(way["read"]["bytes"] == 16_384 && way["read"]["us"].as_f64().unwrap() > 0.0, "{way}");
    }
    assert_eq!((&peer["own_devices"][1]["mtu"], &peer["devices"][0]["name"]), (&json!(4096), &json!("rxe0")));
    let run = doctor(theirs.segment_name(), &[], &["--device-name", "rxe1"]).await;
    let text = run.succeeds();
    assert!(text.starts_with(&format!("RDMA to {}\n", theirs.segment_name())), "{text}");
    assert!(text.contains("rxe1 port 1") && text.contains("GID 1 192.168.100.2 (RoCE v2,"), "{text}");
    assert!(text.contains("ok: ") && text.contains("4 checks: 4 passed"), "{text}");
    theirs.shutdown().await.unwrap();
    let run = doctor(theirs.segment_name(), &[], &["--json"]).await;
    assert_eq!(run.code, 1);
    let document = self::document(&run);
    let [what, evidence, remedy] = found(&document, "peer-found");
    assert!(what.contains(theirs.segment_name()) && evidence.contains("refused"), "{what}: {evidence}");
    assert!(remedy.contains("mcctl bench transfer --mode target"), "{remedy}");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs two RDMA devices: tests/rdma-vm/run-tests"]
async fn an_unsuitable_gid_is_reported_with_a_working_one() {
    // A peer without a fixed index would select a suitable GID.
    let mut fixed = config(&["rxe0"]);
    fixed.settings.transports.rdma.choice.gid_index = Some(("MC_GID_INDEX", 1));
    let theirs = start(fixed).await;
    theirs.register(&memory(1 << 20, 0), Access::Remote).await.unwrap();
    let devices = &["--device-name", "rxe1", "--json"];
    let run = doctor(theirs.segment_name(), &[("MC_GID_INDEX", "77")], devices).await;
    let document = document(&run);
    assert_eq!(run.code, 1);
    let [_, evidence, _] = found(&document, "peer-connected");
    assert!(evidence.contains("rxe1") && evidence.contains("MC_GID_INDEX"), "{evidence}");
    // A link-local GID cannot be reached from the peer's IPv4 GID.
    let run = doctor(theirs.segment_name(), &[("MC_GID_INDEX", "0")], devices).await;
    let document = self::document(&run);
    assert_eq!(run.code, 1);
    let [what, evidence, remedy] = found(&document, "peer-connected");
    assert!(what.contains("at the peer for this host's GID 0 fe80::"), "{what}");
    assert!(what.ends_with("the peer's GID is an IPv4 address"), "{what}");
    assert!(evidence.contains("ibv_modify_qp to RTR failed on rxe0") && evidence.contains("error 22"), "{evidence}");
    let works = "set MC_GID_INDEX=1 on this host: the path works with GID 1 192.168.100.2 (RoCE v2, eth1) (tested)";
    assert_eq!(remedy, works);
    let way = &document["rdma_peers"][0]["ways"][0];
    assert_eq!((&way["failure"]["step"], &way["failure"]["cause"]), (&json!("dial"), &json!("refused")), "{way}");
    assert_eq!((&way["others"][0]["gid_index"], &way["others"][0]["ok"]), (&json!(1), &json!(true)), "{way}");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs two RDMA devices: tests/rdma-vm/run-tests"]
async fn a_link_that_is_down_is_reported() {
    let (theirs, _) = target(&["rxe0"], 1 << 20).await;
    let ip = |state: &str| assert!(Command::new("ip").args(["link", "set", "eth1", state]).status().unwrap().success());
    ip("down");
    let run = doctor(theirs.segment_name(), &[], &["--device-name", "rxe1", "--json"]).await;
    ip("up");
    let document = document(&run);
    assert_eq!(run.code, 1);
    let [_, evidence, remedy] = found(&document, "peer-connected");
    assert!(evidence.contains("rxe1: port 1 is DOWN") && remedy.contains("mcctl devices"), "{evidence}: {remedy}");
}

/// Starts a fake engine whose queue pairs do not exist, and returns its name.
fn pretender() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let name = listener.local_addr().unwrap().to_string();
    let own = name.clone();
    let answer = move |mut stream: TcpStream| -> std::io::Result<()> {
        let mut header = [0; 8];
        stream.read_exact(&mut header)?;
        let mut payload = vec![0; u64::from_le_bytes(header) as usize];
        stream.read_exact(&mut payload)?;
        let HandshakeFrame::Typed(kind, json) = HandshakeFrame::split(&payload) else { return Ok(()) };
        let text = match kind {
            HandshakeKind::Metadata => {
                let devices = vec![DeviceDescriptor { name: "rxe0".into(), lid: 0, gid: GID.into() }];
                let name = own.clone();
                let protocol = "rdma".to_owned();
                SegmentDescriptor { name, protocol, devices, ..SegmentDescriptor::default() }.to_json()
            }
            _ => match ConnectionMessage::from_json(json) {
                Ok(request) if request.ready_ack == Some(false) => ConnectionMessage {
                    local_nic_path: request.peer_nic_path,
                    peer_nic_path: request.local_nic_path,
                    qp_num: vec![770, 771],
                    local_gid: GID.into(),
                    ready_ack: Some(false),
                    ..ConnectionMessage::default()
                }
                .to_json(),
                _ => ConnectionMessage::default().to_json(),
            },
        };
        stream.write_all(&HandshakeFrame::Typed(kind, text.as_bytes()).encode())
    };
    let run = move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let _ = answer(stream);
        }
    };
    thread::spawn(run);
    name
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs two RDMA devices: tests/rdma-vm/run-tests"]
async fn lost_packets_are_distinguished_from_failed_connections() {
    let run = doctor(&pretender(), &[], &["--device-name", "rxe1", "--json"]).await;
    let document = document(&run);
    assert_eq!(run.code, 1);
    let [what, evidence, remedy] = found(&document, "peer-answers");
    assert!(what.contains("no packet returns"), "{what}");
    assert!(evidence.contains("GID 1 192.168.100.2") && evidence.contains("192.168.100.1"), "{evidence}");
    assert!(remedy.contains("UDP port 4791"), "{remedy}");
    let way = &document["rdma_peers"][0]["ways"][0];
    assert_eq!((&way["ok"], &way["failure"]["step"]), (&json!(false), &json!("move")), "{way}");
    assert_eq!(way["others"][0]["gid_index"], 0, "{way}");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs two RDMA devices: tests/rdma-vm/run-tests"]
async fn different_settings_of_the_peers_are_reported() {
    let mut four = config(&["rxe0"]);
    four.settings.transports.rdma.pairs_per_endpoint = 4;
    let theirs = start(four).await;
    let run = doctor(theirs.segment_name(), &[], &["--device-name", "rxe1", "--json"]).await;
    let document = document(&run);
    let [what, ..] = found(&document, "peer-connected");
    assert!(what.contains("MC_NUM_QP_PER_EP"), "{what}");
    assert_eq!(document["rdma_peers"][0]["ways"][0]["failure"]["cause"], "refused");
    let mut small = config(&["rxe0"]);
    small.settings.transports.rdma.mtu = 1024;
    let theirs = start(small).await;
    theirs.register(&memory(1 << 20, 0), Access::Remote).await.unwrap();
    let run = doctor(theirs.segment_name(), &[], &["--device-name", "rxe1", "--json"]).await;
    let document = self::document(&run);
    let [what, _, remedy] = found(&document, "peer-packets");
    assert!(what.contains("the MTU: packets of 4096") && remedy.contains("MC_MTU=1024"), "{what}: {remedy}");
}
