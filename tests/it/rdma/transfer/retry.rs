//! Requests that failed on one connection are sent again on another, up to the retry limit, until
//! every byte has arrived.

use std::time::Duration;

use mcctl::engine::transfer::{OpKind, RailFailures, TransferError};

use crate::rdma::transfer::handshake::{GID, ask, request};
use crate::rdma::transfer::{LIMIT, config, engine, memory, op, poll, sent, start, target};

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs two RDMA devices: tests/rdma-vm/run-tests"]
async fn remote_completion_errors_are_retried_up_to_the_limit() {
    // Packets of 4096 bytes are invalid requests to a queue pair that expects 1024. No memory and
    // no key is the cause.
    let mut narrow = config(&["rxe0"]);
    narrow.settings.transports.rdma.mtu = 1024;
    let theirs = start(narrow).await;
    let there = memory(1 << 20, 0);
    theirs.register(&there, mcctl::engine::transfer::Access::Remote).await.unwrap();
    let mut patient = config(&["rxe1"]);
    patient.settings.transports.rdma.retries = 3;
    let ours = start(patient).await;
    let buffer = memory(65_536, 3);
    let write = |len| vec![op(OpKind::Write, &buffer, 0, len, there.address())];
    ours.transfer(theirs.segment_name(), write(1000), LIMIT).await.unwrap();
    let error = ours.transfer(theirs.segment_name(), write(65_536), LIMIT).await.unwrap_err();
    let rails = ours.rails();
    let failures = RailFailures { peer: 4, ..RailFailures::default() };
    assert_eq!((rails[0].failures, rails[0].connected, rails[0].retired), (failures, 4, 4), "{error}");
    assert!(matches!(error, TransferError::Device(_)), "{error:?}");
    for words in ["REM_INV_REQ_ERR", "rdma rxe1 port 1", "192.168.100.2", theirs.segment_name(), "while transferring"] {
        assert!(error.to_string().contains(words), "{error}");
    }
    // The peer answers, so it must not stay marked as down.
    let end = std::time::Instant::now() + LIMIT;
    while let Err(error) = ours.transfer(theirs.segment_name(), write(1000), LIMIT).await {
        assert!(std::time::Instant::now() < end, "{error}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert!(there.slice(0, 1000).unwrap().to_vec() == buffer.slice(0, 1000).unwrap().to_vec());
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs two RDMA devices: tests/rdma-vm/run-tests"]
async fn a_connection_lost_during_a_batch_is_reestablished() {
    const BYTES: usize = 32 << 20;
    let ((theirs, there), ours) = (target(&["rxe0"], BYTES).await, engine(&["rxe1"]).await);
    let buffer = memory(BYTES, 3);
    let before = sent("rxe1");
    let pending =
        ours.submit(theirs.segment_name(), vec![op(OpKind::Write, &buffer, 0, BYTES, there.address())], LIMIT);
    let waits = tokio::task::spawn_blocking(move || pending.wait());
    poll("bytes are in flight", || sent("rxe1") > before + 256).await;
    // Another process with our name connects again: the queue pairs used by the batch are
    // destroyed.
    let to = theirs.handshake().clone();
    let path = format!("{}@rxe0", theirs.segment_name());
    let forged = request(&format!("{}@rxe1", ours.segment_name()), &path, "[77,78]", GID);
    let reply = tokio::task::spawn_blocking(move || ask(&to, &forged)).await.unwrap();
    assert_eq!(reply.reply_msg, "");
    let done = waits.await.unwrap();
    assert!(done[0].is_ok(), "{done:?}");
    assert!(ours.rails()[0].connected > 1, "{:?}", ours.rails());
    assert!(there.whole().to_vec() == buffer.whole().to_vec());
}
