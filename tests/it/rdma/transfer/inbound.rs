//! The end of inbound transfers, before memory is used for something else.

use mcctl::engine::transfer::OpKind;

use crate::rdma::transfer::{LIMIT, engine, memory, op, poll, sent, target};

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs two RDMA devices: tests/rdma-vm/run-tests"]
async fn connections_of_peers_end_and_are_established_again() {
    let ((theirs, there), ours) = (target(&["rxe0"], 100_000).await, engine(&["rxe1"]).await);
    let buffer = memory(100_000, 3);
    let write = || vec![op(OpKind::Write, &buffer, 0, 100_000, there.address())];
    ours.transfer(theirs.segment_name(), write(), LIMIT).await.unwrap();
    let before = ours.rails()[0].connected;
    assert_eq!(theirs.end_inbound(LIMIT).await.unwrap(), 1);
    assert_eq!(theirs.rails()[0].endpoints, 0);
    there.fill(0, there.len(), 0).unwrap();
    ours.transfer(theirs.segment_name(), write(), LIMIT).await.unwrap();
    assert!(there.whole().to_vec() == buffer.whole().to_vec());
    assert!(ours.rails()[0].connected > before);
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs two RDMA devices: tests/rdma-vm/run-tests"]
async fn a_process_that_ends_inbound_transfers_completes_its_own() {
    const BYTES: usize = 32 << 20;
    let ((theirs, there), (ours, _)) = (target(&["rxe0"], BYTES).await, target(&["rxe1"], 1000).await);
    let buffer = memory(BYTES, 3);
    let before = sent("rxe1");
    let pending =
        ours.submit(theirs.segment_name(), vec![op(OpKind::Write, &buffer, 0, BYTES, there.address())], LIMIT);
    let waits = tokio::task::spawn_blocking(move || pending.wait());
    poll("bytes are in flight", || sent("rxe1") > before + 256).await;
    assert_eq!(ours.end_inbound(LIMIT).await.unwrap(), 1);
    let done = waits.await.unwrap();
    assert!(done[0].is_ok(), "{done:?}");
    assert!(there.whole().to_vec() == buffer.whole().to_vec());
}
