//! Engines on the same host, whose memory is in memfds.

use super::*;

use mcctl::engine::sys::{MemoryPolicy, MemorySource};
use mcctl::engine::transfer::{SharedMemorySettings, WriteRetry};

fn shareable(len: usize, seed: u8) -> Arc<Memory> {
    let memory = MemorySource::new(MemoryPolicy::default()).buffer(len as u64).unwrap();
    memory.write_at(0, &pattern(len, seed)).unwrap();
    Arc::new(memory)
}

async fn sharing_target(len: usize, settings: SharedMemorySettings) -> (TransferEngine, Arc<Memory>) {
    let engine = sharing(settings).await;
    let memory = shareable(len, 0);
    engine.register(&memory, Access::Remote).await.unwrap();
    (engine, memory)
}

async fn sharing(settings: SharedMemorySettings) -> TransferEngine {
    let mut config = config("127.0.0.1");
    config.settings.shared_memory = settings;
    start(config).await
}

fn off() -> SharedMemorySettings {
    SharedMemorySettings { enabled: false, ..SharedMemorySettings::default() }
}

fn transport(engine: &TransferEngine) -> &'static str {
    engine.peers()[0].transport
}

async fn write(
    ours: &TransferEngine,
    theirs: &TransferEngine,
    buffer: &Arc<Memory>,
    to: u64,
) -> Result<(), TransferError> {
    let op = op(OpKind::Write, buffer, 0, buffer.len(), to);
    let submitted = ours.submit(theirs.segment_name(), vec![op], LIMIT).write_retry(WriteRetry::Forbidden);
    submitted.finish().await.remove(0)
}

#[tokio::test(flavor = "multi_thread")]
async fn reads_and_writes_bypass_tcp() {
    let ((theirs, memory), ours) = (sharing_target(6 << 20, SharedMemorySettings::default()).await, engine().await);
    let buffer = shareable(1 << 20, 9);
    write(&ours, &theirs, &buffer, memory.address() + 77).await.unwrap();
    assert_eq!(memory.slice(77, 1 << 20).unwrap().to_vec(), pattern(1 << 20, 9));
    let back = Arc::new(Memory::from_vec(vec![0; 1 << 20]));
    let read = op(OpKind::Read, &back, 0, 1 << 20, memory.address() + 77);
    ours.transfer(theirs.segment_name(), vec![read], LIMIT).await.unwrap();
    assert_eq!(back.whole().to_vec(), pattern(1 << 20, 9));
    let served = theirs.counters().served;
    let issued = ours.counters().issued;
    assert_eq!((transport(&ours), served.written_bytes, issued.read_bytes), ("shared-memory", 1 << 20, 1 << 20));
    // One connection with the regions, and one for writes.
    assert_eq!(theirs.counters().connections_open, 2);
    // Writes from other memory use TCP.
    moves_bytes(&ours, theirs.segment_name(), &memory).await;
    assert!(theirs.counters().connections_open > 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn each_side_can_turn_shared_memory_off() {
    for (node, client) in [(off(), SharedMemorySettings::default()), (SharedMemorySettings::default(), off())] {
        let announced = node.enabled;
        let ((theirs, memory), ours) = (sharing_target(6 << 20, node).await, sharing(client).await);
        assert_eq!(ours.open(theirs.segment_name()).await.unwrap().shared_memory.is_some(), announced);
        write(&ours, &theirs, &shareable(4096, 1), memory.address()).await.unwrap();
        moves_bytes(&ours, theirs.segment_name(), &memory).await;
        assert_eq!(transport(&ours), "tcp");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn memory_outside_a_memfd_is_not_announced() {
    let ((theirs, _memory), ours) = (target(4096).await, engine().await);
    assert_eq!(ours.open(theirs.segment_name()).await.unwrap().shared_memory, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_directory_connects_engines_in_different_containers() {
    let directory = tempfile::tempdir().unwrap();
    let node = SharedMemorySettings { enabled: true, directory: Some(directory.path().to_owned()) };
    let (theirs, memory) = sharing_target(4096, node).await;
    let files = || std::fs::read_dir(directory.path()).unwrap().count();
    assert_eq!(files(), 1);
    // The volume may be mounted at another path.
    let alias = directory.path().with_extension("alias");
    std::os::unix::fs::symlink(directory.path(), &alias).unwrap();
    let client = SharedMemorySettings { enabled: true, directory: Some(alias.clone()) };
    for settings in [client, SharedMemorySettings::default()] {
        let ours = sharing(settings).await;
        write(&ours, &theirs, &shareable(64, 1), memory.address()).await.unwrap();
        assert_eq!(transport(&ours), "shared-memory");
    }
    std::fs::remove_file(alias).unwrap();
    theirs.shutdown().await.unwrap();
    wait_until_async("the socket to be removed", PATIENCE, async || files() == 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn transfers_go_on_after_the_node_has_ended_them() {
    let ((theirs, memory), ours) = (sharing_target(1 << 20, SharedMemorySettings::default()).await, engine().await);
    let buffer = shareable(4096, 3);
    for round in 0..5 {
        write(&ours, &theirs, &buffer, memory.address()).await.unwrap();
        let into = Arc::new(Memory::from_vec(vec![0; 4096]));
        let read = op(OpKind::Read, &into, 0, 4096, memory.address());
        ours.transfer(theirs.segment_name(), vec![read], LIMIT).await.unwrap();
        assert_eq!(into.whole().to_vec(), pattern(4096, 3), "{round}");
        in_time("the end of the transfers", theirs.end_inbound(HOUR)).await.unwrap();
        // The kernel measures the age of TCP connections in ticks.
        tokio::time::sleep(Duration::from_millis(25)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn transfers_submitted_before_the_end_are_not_repeated() {
    let ((theirs, memory), ours) = (sharing_target(1 << 20, SharedMemorySettings::default()).await, engine().await);
    let buffer = shareable(64, 3);
    let into = Arc::new(Memory::from_vec(vec![0; 64]));
    write(&ours, &theirs, &buffer, memory.address() + 100).await.unwrap();
    let submit = |op| ours.submit(theirs.segment_name(), vec![op], LIMIT);
    // The memory outside a memfd would be written over TCP.
    let pending = [
        submit(op(OpKind::Read, &into, 0, 64, memory.address() + 100)),
        submit(op(OpKind::Write, &buffer, 0, 64, memory.address())),
        submit(op(OpKind::Write, &into, 0, 64, memory.address())).write_retry(WriteRetry::Allowed),
    ];
    in_time("the end of the transfers", theirs.end_inbound(HOUR)).await.unwrap();
    memory.fill(0, 1 << 20, 7).unwrap();
    for pending in pending {
        let error = pending.finish().await.remove(0).unwrap_err();
        assert!(error.is_ended() && error.is_retryable() && !error.may_still_land(), "{error}");
    }
    assert_eq!((into.whole().to_vec(), ours.peers()[0].down), (vec![0; 64], false));
    assert_eq!(memory.slice(0, 200).unwrap().to_vec(), [7; 200]);
    // The kernel measures the age of TCP connections in ticks.
    tokio::time::sleep(Duration::from_millis(25)).await;
    write(&ours, &theirs, &buffer, memory.address()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_starts_to_share_memory_later_is_upgraded() {
    let (theirs, plain) = target(4096).await;
    let mut config = config("127.0.0.1");
    config.settings.descriptor_age_max = Some(Duration::ZERO);
    let ours = start(config).await;
    let buffer = shareable(64, 3);
    write(&ours, &theirs, &buffer, plain.address()).await.unwrap();
    assert_eq!(transport(&ours), "tcp");
    let memory = shareable(4096, 0);
    theirs.register(&memory, Access::Remote).await.unwrap();
    write(&ours, &theirs, &buffer, memory.address()).await.unwrap();
    assert_eq!((transport(&ours), memory.slice(0, 64).unwrap().to_vec()), ("shared-memory", pattern(64, 3)));
}

#[tokio::test(flavor = "multi_thread")]
async fn deregistered_memory_is_rejected() {
    let theirs = sharing(SharedMemorySettings::default()).await;
    let ours = engine().await;
    let kept = shareable(4096, 0);
    let removed = shareable(4096, 0);
    theirs.register(&kept, Access::Remote).await.unwrap();
    let registration = theirs.register(&removed, Access::Remote).await.unwrap();
    let buffer = shareable(64, 5);
    write(&ours, &theirs, &buffer, removed.address()).await.unwrap();
    theirs.deregister(registration).await.unwrap();
    let read = op(OpKind::Read, &buffer, 0, 64, removed.address());
    let result = ours.transfer(theirs.segment_name(), vec![read], LIMIT).await;
    assert!(is_rejected(&result), "{result:?}");
    assert!(is_rejected(&write(&ours, &theirs, &buffer, removed.address()).await));
    write(&ours, &theirs, &buffer, kept.address()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_ends_is_reported_as_down_and_its_memory_is_released() {
    let ((theirs, memory), ours) = (sharing_target(4096, SharedMemorySettings::default()).await, engine().await);
    let buffer = shareable(64, 5);
    let address = memory.address();
    let name = theirs.segment_name().to_owned();
    write(&ours, &theirs, &buffer, address).await.unwrap();
    assert_eq!(transport(&ours), "shared-memory");
    theirs.shutdown().await.unwrap();
    drop((theirs, memory));
    let read = || op(OpKind::Read, &buffer, 0, 64, address);
    let result = ours.transfer(&name, vec![read()], LIMIT).await;
    assert!(result.is_err_and(|error| error.is_retryable()));
    wait_until_async("the mapping to be released", PATIENCE, async || transport(&ours) == "tcp").await;
    assert!(ours.peers()[0].down);
}
