//! Devices and peers that fail.

use std::process::Command;
use std::time::Instant;

use mcctl::engine::transfer::{OpKind, TransferError};

use crate::rdma::transfer::{Duration, LIMIT, NOTICED, config, engine, memory, op, target};

fn ip(words: &[&str]) {
    assert!(Command::new("ip").args(words).status().unwrap().success(), "ip {words:?}");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs two RDMA devices: tests/rdma-vm/run-tests"]
async fn a_stopped_peer_is_detected_in_time_and_named() {
    let ((theirs, there), ours) = (target(&["rxe0"], 1 << 20).await, engine(&["rxe1"]).await);
    let buffer = memory(300_000, 3);
    let ops = || vec![op(OpKind::Write, &buffer, 0, 300_000, there.address())];
    ours.transfer(theirs.segment_name(), ops(), LIMIT).await.unwrap();
    let segment = theirs.segment_name().to_owned();
    theirs.shutdown().await.unwrap();
    let begun = Instant::now();
    let error = ours.transfer(&segment, ops(), LIMIT).await.unwrap_err();
    assert!(begun.elapsed() < NOTICED, "{:?}", begun.elapsed());
    assert!(error.is_retryable(), "{error:?}");
    assert!(error.to_string().contains(&segment), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs two RDMA devices: tests/rdma-vm/run-tests"]
async fn deregistered_memory_is_refused_and_the_rest_accessible() {
    let (theirs, there) = target(&["rxe0"], 1 << 20).await;
    let ours = engine(&["rxe1"]).await;
    let second = memory(1 << 20, 5);
    let registration = theirs.register(&second, mcctl::engine::transfer::Access::Remote).await.unwrap();
    let buffer = memory(500_000, 3);
    let to_first = || vec![op(OpKind::Write, &buffer, 0, 500_000, there.address())];
    let to_second = || vec![op(OpKind::Write, &buffer, 0, 500_000, second.address())];
    ours.transfer(theirs.segment_name(), to_first(), LIMIT).await.unwrap();
    ours.transfer(theirs.segment_name(), to_second(), LIMIT).await.unwrap();
    theirs.deregister(registration).await.unwrap();
    second.fill(0, second.len(), 9).unwrap();
    let error = ours.transfer(theirs.segment_name(), to_second(), LIMIT).await.unwrap_err();
    assert!(!error.is_retryable(), "{error:?}");
    assert!(second.whole().to_vec().iter().all(|byte| *byte == 9), "no byte was written");
    ours.transfer(theirs.segment_name(), to_first(), LIMIT).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs two RDMA devices: tests/rdma-vm/run-tests"]
async fn a_down_link_is_reported_and_used_again_when_up() {
    let ((theirs, there), ours) = (target(&["rxe0"], 1 << 20).await, engine(&["rxe1"]).await);
    let buffer = memory(100_000, 3);
    let ops = || vec![op(OpKind::Write, &buffer, 0, 100_000, there.address())];
    ours.transfer(theirs.segment_name(), ops(), LIMIT).await.unwrap();
    ip(&["link", "set", "eth1", "down"]);
    let begun = Instant::now();
    let error = ours.transfer(theirs.segment_name(), ops(), Duration::from_secs(15)).await;
    let took = begun.elapsed();
    ip(&["link", "set", "eth1", "up"]);
    let error = error.unwrap_err();
    assert!(took < NOTICED && error.to_string().contains("rxe1"), "{error} after {took:?}");
    let end = Instant::now() + LIMIT;
    while let Err(error) = ours.transfer(theirs.segment_name(), ops(), Duration::from_secs(15)).await {
        assert!(Instant::now() < end, "{error}");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs two RDMA devices: tests/rdma-vm/run-tests"]
async fn a_batch_ends_at_its_deadline_and_the_next_succeeds() {
    let ((theirs, there), ours) = (target(&["rxe0"], 16 << 20).await, engine(&["rxe1"]).await);
    let buffer = memory(16 << 20, 3);
    let small = || vec![op(OpKind::Write, &buffer, 0, 1000, there.address())];
    ours.transfer(theirs.segment_name(), small(), LIMIT).await.unwrap();
    let all = vec![op(OpKind::Write, &buffer, 0, 16 << 20, there.address())];
    let begun = Instant::now();
    let error = ours.transfer(theirs.segment_name(), all, Duration::from_millis(100)).await.unwrap_err();
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    assert!(matches!(error, TransferError::Timeout { .. }), "{error:?}");
    let end = Instant::now() + LIMIT;
    while let Err(error) = ours.transfer(theirs.segment_name(), small(), LIMIT).await {
        assert!(Instant::now() < end, "{error}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs two RDMA devices: tests/rdma-vm/run-tests"]
async fn missing_gid_indices_and_devices_are_named() {
    let mut wrong = config(&["rxe0"]);
    wrong.settings.transports.rdma.choice.gid_index = Some(("MC_GID_INDEX", 77));
    for (config, words) in [(wrong, "MC_GID_INDEX selects GID index 77"), (config(&["mlx5_9"]), "mlx5_9")] {
        let error = mcctl::engine::transfer::TransferEngine::start(config, mcctl::engine::env::RealEnv::new()).await;
        let error = error.err().unwrap().to_string();
        assert!(error.contains(words), "{error}");
    }
}
