//! The safe verbs layer on real verbs, with both devices in one process.

use std::net::Ipv4Addr;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mcctl::engine::sys::Memory;
use mcctl::engine::sys::readiness::wait_readable;
use mcctl::engine::sys::verbs::{
    AccessFlags, AsyncEvent, CompletionQueue, CompletionStatus, Direction, LinkLayer, MemoryRegion, Mtu,
    PathAttributes, ProtectionDomain, QpCaps, QpState, QueuePair, RdmaDevice, RdmaRequest, VerbsGidKind,
    VerbsUnavailable, WorkCompletion, WorkRequestList, devices,
};

/// Limit for events that must happen. The machine is emulated and shared.
const PATIENCE: Duration = Duration::from_secs(30);
const CAPS: QpCaps = QpCaps { wr: 64, sge: 1, inline: 64 };
const REMOTE: AccessFlags = AccessFlags { remote: true, relaxed: true };

/// A device with memory and a queue pair.
struct End {
    device: RdmaDevice,
    domain: Arc<ProtectionDomain>,
    queue: Arc<CompletionQueue>,
    pair: QueuePair,
    memory: Arc<Memory>,
    region: MemoryRegion,
}

impl End {
    fn new(device: &str, bytes: usize) -> End {
        End::with(device, bytes, CAPS)
    }

    fn with(device: &str, bytes: usize, caps: QpCaps) -> End {
        let device = RdmaDevice::open(device).unwrap();
        let domain = ProtectionDomain::new(&device).unwrap();
        let queue = CompletionQueue::new(&device, 256, 7).unwrap();
        let pair = QueuePair::new(&domain, &queue, caps).unwrap();
        let memory = Arc::new(Memory::from_vec(vec![0; bytes]));
        let region = MemoryRegion::register(&domain, &memory.whole(), REMOTE).unwrap();
        End { device, domain, queue, pair, memory, region }
    }

    /// The index and value of the IPv4 GID.
    fn gid(&self) -> (u8, [u8; 16]) {
        let row =
            self.device.gids(1).unwrap().into_iter().find(|row| row.gid[..12] == *b"\0\0\0\0\0\0\0\0\0\0\xff\xff");
        let row = row.expect("an IPv4 GID");
        (u8::try_from(row.index).unwrap(), row.gid)
    }

    fn way_to(&self, peer: &End) -> PathAttributes {
        PathAttributes {
            port: 1,
            sgid_index: self.gid().0,
            mtu: self.device.port(1).unwrap().active_mtu,
            remote_gid: peer.gid().1,
            remote_lid: 0,
            remote_number: peer.pair.number(),
            hop_limit: 16,
            traffic_class: 0,
            service_level: 0,
        }
    }

    fn connect(&self, peer: &End) {
        self.pair.init(1, 0).unwrap();
        self.pair.connect(&self.way_to(peer)).unwrap();
    }

    /// Posts `works` as one list.
    fn post(&self, works: impl IntoIterator<Item = RdmaRequest>) {
        let mut chain = WorkRequestList::new();
        for work in works {
            chain.push(&self.region, work).unwrap();
        }
        self.pair.post(&mut chain).unwrap();
        assert!(chain.is_empty());
    }

    /// Waits for `count` completions.
    fn await_done(&self, count: usize) -> Vec<WorkCompletion> {
        let from = Instant::now();
        let mut done = Vec::new();
        while done.len() < count {
            let mut some = [WorkCompletion::EMPTY; 8];
            let n = self.queue.poll(&mut some).unwrap();
            done.extend_from_slice(&some[..n]);
            let state = || self.pair.state().unwrap();
            assert!(from.elapsed() < PATIENCE, "{} of {count} completions, {:?}: {done:?}", done.len(), state());
            if n == 0 {
                std::thread::yield_now();
            }
        }
        done
    }
}

/// Two ends with connected queue pairs, one per device.
fn connected(bytes: usize) -> (End, End) {
    let one = End::new("rxe0", bytes);
    let other = End::new("rxe1", bytes);
    one.connect(&other);
    other.connect(&one);
    (one, other)
}

fn write(at: &End, to: &End, offset: usize, len: u32, id: u64) -> RdmaRequest {
    let remote_address = to.region.address() + offset as u64;
    assert!(offset + len as usize <= at.region.len());
    RdmaRequest { direction: Direction::Write, offset, len, remote_address, rkey: to.region.rkey(), id, signaled: true }
}

fn fill(memory: &Memory, seed: usize) -> Vec<u8> {
    let bytes: Vec<u8> = (0..memory.len()).map(|i| u8::try_from((i * 7 + seed) % 251).unwrap()).collect();
    memory.write_at(0, &bytes).unwrap();
    bytes
}

#[test]
#[ignore = "needs two RDMA devices: tests/rdma-vm/run-tests"]
fn devices_ports_and_gids_are_reported() {
    let listed = devices().unwrap();
    let names: Vec<&str> = listed.iter().map(|l| l.name.as_str()).collect();
    assert_eq!(names, ["rxe0", "rxe1"]);
    assert_eq!(listed[0].guid, 0x5054_00ff_fe12_3450);
    let device = RdmaDevice::open("rxe0").unwrap();
    let attributes = device.attributes();
    assert_eq!((attributes.node_guid, attributes.phys_port_cnt), (listed[0].guid, 1));
    assert!(attributes.max_qp > 1000 && attributes.max_mr_size > 1 << 40, "{attributes:?}");
    let port = device.port(1).unwrap();
    assert_eq!((port.active_mtu, port.link_layer, port.lid), (Mtu::MAX, LinkLayer::Ethernet, 0));
    assert!(port.state.is_active(), "{port:?}");
    assert!(device.port(9).is_err());
    let rows = device.gids(1).unwrap();
    assert_eq!(rows[1].gid, Ipv4Addr::new(192, 168, 100, 1).to_ipv6_mapped().octets());
    assert!(rows.iter().all(|row| row.kind == VerbsGidKind::RoceV2 && row.netdev_index.is_some()), "{rows:?}");
    let unknown = RdmaDevice::open("mlx5_9").unwrap_err();
    assert!(matches!(unknown, VerbsUnavailable::NoSuchDevice { listed, .. } if listed == ["rxe0", "rxe1"]));
}

#[test]
#[ignore = "needs two RDMA devices: tests/rdma-vm/run-tests"]
fn bytes_are_written_and_read_between_two_devices() {
    let (one, other) = connected(1 << 20);
    let sent = fill(&one.memory, 3);
    one.post((0..16).map(|i| write(&one, &other, i << 16, 1 << 16, i as u64)));
    let done = one.await_done(16);
    assert!(done.iter().all(|c| c.status.is_ok() && c.qp == one.pair.number()), "{done:?}");
    assert_eq!(done.iter().map(|c| c.id).collect::<Vec<_>>(), (0..16).collect::<Vec<_>>());
    assert_eq!(other.memory.whole().to_vec(), sent);
    // A few bytes are sent inline, and may change right afterwards.
    one.memory.write_at(5, b"inline").unwrap();
    one.post([RdmaRequest { offset: 5, ..write(&one, &other, 77, 6, 99) }]);
    one.memory.write_at(5, b"CHANGE").unwrap();
    assert_eq!(one.await_done(1)[0].id, 99);
    let mut arrived = [0; 6];
    other.memory.read_at(77, &mut arrived).unwrap();
    assert_eq!(&arrived, b"inline");
    // Back, at odd offsets, with one completion for the list.
    let there = fill(&other.memory, 5);
    one.post((0..8).map(|i| RdmaRequest {
        direction: Direction::Read,
        remote_address: other.region.address() + 13 + (i << 12),
        signaled: i == 7,
        ..write(&one, &other, 1 + (usize::try_from(i).unwrap() << 12), 1 << 12, i)
    }));
    let done = one.await_done(1);
    assert_eq!((done[0].id, done[0].status), (7, CompletionStatus(0)));
    assert_eq!(one.memory.slice(1, 8 << 12).unwrap().to_vec(), there[13..13 + (8 << 12)]);
    // Zero bytes.
    one.post([write(&one, &other, 0, 0, 1)]);
    assert!(one.await_done(1)[0].status.is_ok());
}

#[test]
#[ignore = "needs two RDMA devices: tests/rdma-vm/run-tests"]
fn a_wrong_key_ends_the_connection_and_nothing_is_written() {
    let (one, other) = connected(4096);
    fill(&one.memory, 1);
    let wrong = RdmaRequest { rkey: other.region.rkey() ^ 0x5500, ..write(&one, &other, 0, 512, 1) };
    one.post([wrong, write(&one, &other, 1024, 512, 2)]);
    let done = one.await_done(2);
    assert!(done[0].status.is_remote_access() && done[1].status.is_flush(), "{done:?}");
    assert_eq!(one.pair.state().unwrap(), QpState::Error);
    assert_eq!(other.memory.whole().to_vec(), vec![0; 4096]);
    // Everything posted from now on is flushed too, until the queue pair is reset and connected
    // again.
    one.pair.fail().unwrap();
    one.post([write(&one, &other, 0, 512, 3)]);
    assert!(one.await_done(1)[0].status.is_flush());
    for end in [&one, &other] {
        end.pair.reset().unwrap();
        assert_eq!(end.pair.state().unwrap(), QpState::Reset);
    }
    one.connect(&other);
    other.connect(&one);
    one.post([write(&one, &other, 0, 512, 4)]);
    assert!(one.await_done(1)[0].status.is_ok());
}

#[test]
#[ignore = "needs two RDMA devices: tests/rdma-vm/run-tests"]
fn beyond_the_peers_region_nothing_is_written() {
    let (one, other) = connected(8192);
    fill(&one.memory, 1);
    let half = MemoryRegion::register(&other.domain, &other.memory.slice(0, 4096).unwrap(), REMOTE).unwrap();
    let across = RdmaRequest { rkey: half.rkey(), ..write(&one, &other, 4000, 200, 1) };
    one.post([across]);
    let status = one.await_done(1)[0].status;
    assert!(status.is_remote_access(), "{status}");
    assert_eq!(other.memory.slice(4096, 4096).unwrap().to_vec(), vec![0; 4096]);
}

#[test]
#[ignore = "needs two RDMA devices: tests/rdma-vm/run-tests"]
fn outstanding_requests_are_flushed_in_the_error_state() {
    // The other end never becomes ready: nothing is acknowledged.
    let one = End::new("rxe0", 1 << 16);
    let other = End::new("rxe1", 1 << 16);
    other.pair.init(1, 0).unwrap();
    one.connect(&other);
    one.post((0..8).map(|i| write(&one, &other, 0, 4096, i)));
    one.pair.fail().unwrap();
    let done = one.await_done(8);
    assert!(done.iter().all(|c| !c.status.is_ok()), "{done:?}");
    assert!(done.iter().skip(1).all(|c| c.status.is_flush()), "{done:?}");
}

#[test]
#[ignore = "needs two RDMA devices: tests/rdma-vm/run-tests"]
fn deregistering_a_region_in_use_is_an_error_without_harm() {
    for ours in [true, false] {
        let (mut one, mut other) = connected(1 << 20);
        fill(&one.memory, 1);
        let memory = Arc::new(Memory::from_vec(vec![0xaa; 1 << 20]));
        one.post((0..48).map(|i| write(&one, &other, (i % 16) << 16, 1 << 16, i as u64)));
        // Replace the region and its memory by new ones.
        let end = if ours { &mut one } else { &mut other };
        end.region = MemoryRegion::register(&end.domain, &memory.whole(), REMOTE).unwrap();
        end.memory = Arc::clone(&memory);
        // Soft RoCE of Linux 6.1 may lose such a request and those after it for ever. Moving the
        // queue pair to ERR returns them.
        let from = Instant::now();
        let mut done = Vec::new();
        while done.len() < 48 && from.elapsed() < PATIENCE {
            if from.elapsed() > Duration::from_secs(10) {
                one.pair.fail().unwrap();
            }
            let mut some = [WorkCompletion::EMPTY; 16];
            let count = one.queue.poll(&mut some).unwrap();
            done.extend_from_slice(&some[..count]);
        }
        assert_eq!(done.len(), 48, "{done:?}");
        let failed = done.iter().find(|c| !c.status.is_ok());
        eprintln!("ours {ours}, after {:?}: {failed:?}", from.elapsed());
        let expected = |s: CompletionStatus| s.is_flush() || if ours { s.is_local() } else { s.is_remote_access() };
        assert!(failed.is_none_or(|c| expected(c.status)), "{failed:?}");
        assert_eq!(memory.whole().to_vec(), vec![0xaa; 1 << 20], "the new memory has other keys");
    }
}

#[test]
#[ignore = "needs two RDMA devices: tests/rdma-vm/run-tests"]
fn invalid_requests_are_refused_before_posting() {
    let one = End::new("rxe0", 4096);
    let other = End::new("rxe1", 4096);
    let mut chain = WorkRequestList::new();
    let outside = RdmaRequest { offset: 4000, ..write(&one, &other, 0, 97, 1) };
    assert!(chain.push(&one.region, outside).is_err());
    chain.push(&one.region, write(&one, &other, 0, 96, 1)).unwrap();
    let refused = one.pair.post(&mut chain).unwrap_err();
    assert_eq!((refused.posted, refused.source.raw_os_error(), chain.len()), (0, Some(107), 1));
    // A completion queue of another device.
    assert!(QueuePair::new(&one.domain, &other.queue, CAPS).is_err());
    // More requests than the queue holds: some are accepted, and the rest stays in the list.
    let caps = QpCaps { wr: 8, ..CAPS };
    let one = End::with("rxe0", 4096, caps);
    let other = End::with("rxe1", 4096, caps);
    one.connect(&other);
    other.connect(&one);
    let mut chain = WorkRequestList::new();
    for id in 0..200 {
        chain.push(&one.region, write(&one, &other, 0, 4096, id)).unwrap();
    }
    let mut ids = Vec::new();
    let mut refusals = 0;
    while let Err(refused) = one.pair.post(&mut chain) {
        assert_eq!(refused.source.raw_os_error(), Some(12), "{refused}");
        assert_eq!(chain.len() + refused.posted + ids.len(), 200);
        ids.extend(one.await_done(refused.posted).iter().map(|c| c.id));
        refusals += 1;
    }
    let left = 200 - ids.len();
    ids.extend(one.await_done(left).iter().map(|c| c.id));
    assert_eq!((ids, refusals > 2), ((0..200).collect(), true));
}

#[test]
#[ignore = "needs two RDMA devices: tests/rdma-vm/run-tests"]
fn a_failed_connection_names_the_step_and_its_arguments() {
    let one = End::new("rxe0", 4096);
    let other = End::new("rxe1", 4096);
    one.pair.init(1, 0).unwrap();
    let wrong = PathAttributes { sgid_index: 200, ..one.way_to(&other) };
    let error = one.pair.connect(&wrong).unwrap_err();
    let text = error.to_string();
    assert!(error.what == "ibv_modify_qp to RTR" && error.device == "rxe0", "{text}");
    assert!(text.contains("GID index 200") && text.contains("192.168.100.2"), "{text}");
    assert!(error.remedy().unwrap().contains("MC_GID_INDEX"), "{error:?}");
    let text = one.pair.connect(&PathAttributes { port: 3, ..one.way_to(&other) }).unwrap_err().to_string();
    assert!(text.contains("port 3"), "{text}");
}

#[test]
#[ignore = "needs two RDMA devices: tests/rdma-vm/run-tests"]
fn a_completion_generates_a_channel_event() {
    let (one, other) = connected(4096);
    assert_eq!(wait_readable(&[one.queue.fd()], Duration::ZERO).unwrap(), 0);
    for id in 0..3 {
        one.queue.arm().unwrap();
        one.post([write(&one, &other, 0, 128, id)]);
        assert_eq!(wait_readable(&[one.queue.fd()], PATIENCE).unwrap(), 1);
        assert_eq!(one.queue.clear(), 1);
        assert_eq!(one.await_done(1)[0].id, id);
        assert_eq!(one.queue.clear(), 0);
    }
}

/// The kernel's counts of protection domains, queues, queue pairs and regions of both devices.
fn resources() -> String {
    let out = Command::new("rdma").args(["resource", "show"]).output().unwrap();
    String::from_utf8(out.stdout).unwrap()
}

#[test]
#[ignore = "needs two RDMA devices: tests/rdma-vm/run-tests"]
fn a_thousand_connections_leave_nothing_behind() {
    let before = resources();
    assert!(before.contains("qp"), "{before}");
    {
        let one = End::new("rxe0", 4096);
        let other = End::new("rxe1", 4096);
        for i in 0..500 {
            let make = |end: &End| {
                let memory = Arc::new(Memory::from_vec(vec![1; 4096]));
                let region = MemoryRegion::register(&end.domain, &memory.whole(), REMOTE).unwrap();
                let pair = QueuePair::new(&end.domain, &end.queue, CAPS).unwrap();
                End {
                    pair,
                    memory,
                    region,
                    device: end.device.clone(),
                    domain: end.domain.clone(),
                    queue: end.queue.clone(),
                }
            };
            let a = make(&one);
            let b = make(&other);
            a.connect(&b);
            b.connect(&a);
            if u64::is_multiple_of(i, 50) {
                a.post([write(&a, &b, 0, 64, i)]);
                assert!(a.await_done(1)[0].status.is_ok());
            }
        }
    }
    assert_eq!(resources(), before);
}

/// Runs in a separate process: see the next test.
#[test]
#[ignore = "started by out_of_lockable_memory_names_the_limit"]
fn register_four_mebibytes() {
    let device = RdmaDevice::open("rxe0").unwrap();
    let domain = ProtectionDomain::new(&device).unwrap();
    let memory = Arc::new(Memory::from_vec(vec![0; 4 << 20]));
    match MemoryRegion::register(&domain, &memory.whole(), REMOTE) {
        Ok(_) => println!("registered"),
        Err(error) => println!("refused: {error}; {}", error.remedy().unwrap_or("-")),
    }
}

#[test]
#[ignore = "needs two RDMA devices: tests/rdma-vm/run-tests"]
fn out_of_lockable_memory_names_the_limit() {
    let run = |limit: &str| {
        let script = format!("ulimit -l {limit}; exec \"$0\" \"$@\"");
        let mut command = Command::new("/bin/sh");
        command.arg("-c").arg(script).arg(std::env::current_exe().unwrap());
        command.args(["--exact", "rdma::verbs::register_four_mebibytes", "--ignored", "--nocapture"]);
        // A process with CAP_IPC_LOCK is not limited.
        let out = command.uid(65534).gid(65534).output().unwrap();
        String::from_utf8_lossy(&out.stdout).into_owned()
    };
    let text = run("1024");
    assert!(text.contains("refused: ibv_reg_mr") && text.contains("4194304"), "{text}");
    assert!(text.contains("RLIMIT_MEMLOCK") && text.contains("ulimit -l"), "{text}");
}

#[test]
#[ignore = "needs two RDMA devices: tests/rdma-vm/run-tests"]
fn port_changes_generate_device_events() {
    let device = RdmaDevice::open("rxe1").unwrap();
    assert_eq!(device.next_event(Duration::ZERO).unwrap(), None);
    let link = |state: &str| {
        assert!(Command::new("ip").args(["link", "set", "eth1", state]).status().unwrap().success());
    };
    let expect = |wanted: AsyncEvent| {
        let from = Instant::now();
        let mut seen = Vec::new();
        while !seen.contains(&wanted) {
            seen.extend(device.next_event(Duration::from_secs(1)).unwrap());
            assert!(from.elapsed() < PATIENCE, "no {wanted:?}: {seen:?}");
        }
    };
    link("down");
    expect(AsyncEvent::PortDown(1));
    assert_eq!(device.port(1).unwrap().state.name(), "DOWN");
    link("up");
    expect(AsyncEvent::PortActive(1));
    // Restore the state for the following tests.
    let from = Instant::now();
    while device.gids(1).unwrap().len() < 2 || !RdmaDevice::open("rxe0").unwrap().port(1).unwrap().state.is_active() {
        assert!(from.elapsed() < PATIENCE, "{:?}", device.gids(1));
        std::thread::sleep(Duration::from_millis(50));
    }
}
