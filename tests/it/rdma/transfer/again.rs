//! What failed on one connection is sent again on another: as often as it may be, and until every byte is there.

use std::time::Duration;

use mcctl::engine::transfer::{OpKind, RailFailures, TransferError};

use crate::rdma::transfer::handshake::{GID, ask, request};
use crate::rdma::transfer::{LIMIT, config, engine, memory, needs_vm, op, poll, sent, start, target};

#[tokio::test(flavor = "multi_thread")]
async fn a_completion_that_blames_the_peers_device_is_followed_by_as_many_new_connections_as_are_allowed() {
    needs_vm!();
    // Packets of 4096 bytes are invalid requests to a queue pair that expects 1024: no memory or key is to blame.
    let mut narrow = config(&["rxe0"]);
    narrow.settings.rdma.mtu = 1024;
    let theirs = start(narrow).await;
    let there = memory(1 << 20, 0);
    theirs.register(&there, mcctl::engine::transfer::Access::Remote).await.unwrap();
    let mut patient = config(&["rxe1"]);
    patient.settings.rdma.retries = 3;
    let ours = start(patient).await;
    let buffer = memory(65_536, 3);
    let write = |len| vec![op(OpKind::Write, &buffer, 0, len, there.address())];
    ours.transfer(theirs.segment_name(), write(1000), LIMIT).await.unwrap();
    let error = ours.transfer(theirs.segment_name(), write(65_536), LIMIT).await.unwrap_err();
    let rails = ours.rails();
    let failures = RailFailures { peer: 4, ..RailFailures::default() };
    assert_eq!((rails[0].failures, rails[0].connected, rails[0].retired), (failures, 4, 4), "{error}");
    assert!(matches!(error, TransferError::Rdma(_)), "{error:?}");
    for words in ["REM_INV_REQ_ERR", "rdma rxe1 port 1", "192.168.100.2", theirs.segment_name(), "while moving"] {
        assert!(error.to_string().contains(words), "{error}");
    }
    // The peer answers; it is not taken for dead for long.
    let end = std::time::Instant::now() + LIMIT;
    while let Err(error) = ours.transfer(theirs.segment_name(), write(1000), LIMIT).await {
        assert!(std::time::Instant::now() < end, "{error}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert!(there.slice(0, 1000).unwrap().to_vec() == buffer.slice(0, 1000).unwrap().to_vec());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_the_peer_gives_up_amid_a_batch_is_made_anew_and_every_byte_arrives() {
    needs_vm!();
    const BYTES: usize = 32 << 20;
    let ((theirs, there), ours) = (target(&["rxe0"], BYTES).await, engine(&["rxe1"]).await);
    let buffer = memory(BYTES, 3);
    let before = sent("rxe1");
    let pending =
        ours.submit(theirs.segment_name(), vec![op(OpKind::Write, &buffer, 0, BYTES, there.address())], LIMIT);
    let waits = tokio::task::spawn_blocking(move || pending.wait());
    poll("bytes are on their way", || sent("rxe1") > before + 256).await;
    // Somebody who has our name connects anew: the queue pairs that the batch goes to are no more.
    let (to, path) = (theirs.handshake().clone(), format!("{}@rxe0", theirs.segment_name()));
    let forged = request(&format!("{}@rxe1", ours.segment_name()), &path, "[77,78]", GID);
    let reply = tokio::task::spawn_blocking(move || ask(&to, &forged)).await.unwrap();
    assert_eq!(reply.reply_msg, "");
    let done = waits.await.unwrap();
    assert!(done[0].is_ok(), "{done:?}");
    assert!(ours.rails()[0].connected > 1, "{:?}", ours.rails());
    assert!(there.whole().to_vec() == buffer.whole().to_vec());
}
