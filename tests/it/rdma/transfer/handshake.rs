//! Connection requests that no correct peer sends, and those of peers that died afterwards.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use mcctl::engine::base::HostPort;
use mcctl::engine::transfer::OpKind;
use mcctl::engine::wire::json::{ConnectionMessage, HandshakeFrame, HandshakeKind};

use crate::rdma::transfer::{LIMIT, engine, memory, op, poll, resources, target};

/// Sends the connection request `json` to the handshake port at `to` and returns the answer.
pub(super) fn ask(to: &HostPort, json: &str) -> ConnectionMessage {
    let mut stream = TcpStream::connect((to.host.as_str(), to.port)).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    stream.write_all(&HandshakeFrame::Typed(HandshakeKind::Connection, json.as_bytes()).encode()).unwrap();
    let mut header = [0; 8];
    stream.read_exact(&mut header).unwrap();
    let mut payload = vec![0; u64::from_le_bytes(header) as usize];
    stream.read_exact(&mut payload).unwrap();
    ConnectionMessage::from_json(HandshakeFrame::split(&payload).json()).unwrap()
}

pub(super) fn request(own: &str, peer: &str, numbers: &str, gid: &str) -> String {
    format!(
        r#"{{"local_gid":"{gid}","local_lid":0,"local_nic_path":"{own}","payload":"","peer_nic_path":"{peer}","qp_num":{numbers},"ready_ack":false,"reply_msg":""}}"#
    )
}

pub(super) const GID: &str = "00:00:00:00:00:00:00:00:00:00:ff:ff:c0:a8:64:02";

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs two RDMA devices: tests/rdma-vm/run-tests"]
async fn malformed_requests_are_refused_and_leave_nothing_behind() {
    let ((theirs, there), ours) = (target(&["rxe0"], 1 << 20).await, engine(&["rxe1"]).await);
    let to = theirs.handshake().clone();
    let me = format!("{}@rxe0", theirs.segment_name());
    let before = resources(["qp"]);
    let cases = [
        (request("x:1@rxe1", "", "[1,2]", GID), "Invalid peer_nic_path in handshake"),
        (request("x:1@rxe1", "nobody@nope", "[1,2]", GID), "Local RDMA context not found for handshake NIC: nope"),
        (request("nonsense", &me, "[1,2]", GID), "Parse peer nic path failed: nonsense"),
        (request("x:1@rxe1", "other:1@rxe0", "[1,2]", GID), "peer nic path inconsistency"),
        (request("x:1@rxe1", &me, "[1]", GID), "QP count mismatch"),
        (request("x:1@rxe1", &me, "[]", GID), "QP count mismatch"),
        (request("x:1@rxe1", &me, "[1,2]", "zz"), "Invalid peer GID: zz"),
        (request("x:1@rxe1", &me, "[1,2]", "00:00:00:00:00:00:00:00:00:00:00:00:00:00:00:00"), "Invalid peer GID"),
        (request("127.0.0.1:1@rxe1", &me, "[1,2]", ""), "Peer nic not found in that server: 127.0.0.1:1@rxe1"),
        (request("x:1@rxe1", &me, "[4294967296,2]", GID), "qp_num"),
        (request("x:1@rxe1", &me, "\"many\"", GID), "qp_num is not an array"),
        ("{}".to_owned(), "Invalid peer_nic_path in handshake"),
    ];
    let answers =
        tokio::task::spawn_blocking(move || cases.map(|(text, expected)| (ask(&to, &text).reply_msg, expected, text)));
    for (reply, expected, text) in answers.await.unwrap() {
        assert!(reply.contains(expected), "{text}: '{reply}' does not contain '{expected}'");
    }
    assert_eq!(resources(["qp"]), before);
    let buffer = memory(1000, 3);
    let ops = vec![op(OpKind::Write, &buffer, 0, 1000, there.address())];
    ours.transfer(theirs.segment_name(), ops, LIMIT).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs two RDMA devices: tests/rdma-vm/run-tests"]
async fn endpoints_of_vanished_peers_are_destroyed() {
    let (theirs, _) = target(&["rxe0"], 1 << 20).await;
    let to = theirs.handshake().clone();
    let me = format!("{}@rxe0", theirs.segment_name());
    let [before] = resources(["qp"]);
    let reply = tokio::task::spawn_blocking(move || ask(&to, &request("127.0.0.1:1@rxe1", &me, "[77,78]", GID))).await;
    let reply = reply.unwrap();
    assert_eq!((reply.reply_msg.as_str(), reply.qp_num.len(), reply.ready_ack), ("", 2, Some(false)));
    assert_eq!(resources(["qp"]), [before + 2]);
    poll("its queue pairs are destroyed", || resources(["qp"]) == [before]).await;
}
