//! The fence's safe layer on real verbs, the two devices in one process.

use std::net::Ipv4Addr;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mcctl::engine::sys::Memory;
use mcctl::engine::sys::readiness::wait_readable;
use mcctl::engine::sys::verbs::{
    AsyncEvent, Caps, Chain, Completion, Device, Direction, Domain, GidKind, LinkLayer, Mtu, Pair, PairState, Queue,
    Region, Rights, Status, Way, Work, devices,
};

use super::here;

/// For whatever must happen at all; the machine is emulated, and shared.
const PATIENCE: Duration = Duration::from_secs(30);
const CAPS: Caps = Caps { wr: 64, sge: 1, inline: 64 };
const REMOTE: Rights = Rights { remote: true, relaxed: true };

/// A device with memory and a pair.
struct End {
    device: Device,
    domain: Arc<Domain>,
    queue: Arc<Queue>,
    pair: Pair,
    memory: Arc<Memory>,
    region: Region,
}

impl End {
    fn new(device: &str, bytes: usize) -> End {
        End::with(device, bytes, CAPS)
    }

    fn with(device: &str, bytes: usize, caps: Caps) -> End {
        let device = Device::open(device).unwrap();
        let domain = Domain::new(&device).unwrap();
        let queue = Queue::new(&device, 256, 7).unwrap();
        let pair = Pair::new(&domain, &queue, caps).unwrap();
        let memory = Arc::new(Memory::from_vec(vec![0; bytes]));
        let region = Region::register(&domain, &memory.whole(), REMOTE).unwrap();
        End { device, domain, queue, pair, memory, region }
    }

    /// The GID of the row with the IPv4 address, and the row.
    fn gid(&self) -> (u8, [u8; 16]) {
        let row =
            self.device.gids(1).unwrap().into_iter().find(|row| row.gid[..12] == *b"\0\0\0\0\0\0\0\0\0\0\xff\xff");
        let row = row.expect("a row with an IPv4 address");
        (u8::try_from(row.index).unwrap(), row.gid)
    }

    fn way_to(&self, peer: &End) -> Way {
        Way {
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

    /// Post, one after another, what `works` says.
    fn post(&self, works: impl IntoIterator<Item = Work>) {
        let mut chain = Chain::new();
        for work in works {
            chain.push(&self.region, work).unwrap();
        }
        self.pair.post(&mut chain).unwrap();
        assert!(chain.is_empty());
    }

    /// So many completions, as they come.
    fn await_done(&self, count: usize) -> Vec<Completion> {
        let (from, mut done) = (Instant::now(), Vec::new());
        while done.len() < count {
            let mut some = [Completion::EMPTY; 8];
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

/// Two ends that reach each other.
fn connected(bytes: usize) -> (End, End) {
    let (one, other) = (End::new("rxe0", bytes), End::new("rxe1", bytes));
    one.connect(&other);
    other.connect(&one);
    (one, other)
}

fn write(at: &End, to: &End, offset: usize, len: u32, id: u64) -> Work {
    let remote_address = to.region.address() + offset as u64;
    assert!(offset + len as usize <= at.region.len());
    Work { direction: Direction::Write, offset, len, remote_address, rkey: to.region.rkey(), id, signaled: true }
}

fn fill(memory: &Memory, seed: usize) -> Vec<u8> {
    let bytes: Vec<u8> = (0..memory.len()).map(|i| u8::try_from((i * 7 + seed) % 251).unwrap()).collect();
    memory.write_at(0, &bytes).unwrap();
    bytes
}

#[test]
fn devices_ports_and_rows_are_told_as_they_are() {
    if !here("devices of verbs") {
        return;
    }
    let listed = devices().unwrap();
    let names: Vec<&str> = listed.iter().map(|l| l.name.as_str()).collect();
    assert_eq!(names, ["rxe0", "rxe1"]);
    assert_eq!(listed[0].guid, 0x5054_00ff_fe12_3450);
    let device = Device::open("rxe0").unwrap();
    let attributes = device.attributes();
    assert_eq!((attributes.node_guid, attributes.phys_port_cnt), (listed[0].guid, 1));
    assert!(attributes.max_qp > 1000 && attributes.max_mr_size > 1 << 40, "{attributes:?}");
    let port = device.port(1).unwrap();
    assert_eq!((port.active_mtu, port.link_layer, port.lid), (Mtu::MAX, LinkLayer::Ethernet, 0));
    assert!(port.state.is_active(), "{port:?}");
    assert!(device.port(9).unwrap_err().to_string().starts_with("ibv_query_port failed on rxe0 for port 9"));
    let rows = device.gids(1).unwrap();
    assert_eq!(rows[1].gid, Ipv4Addr::new(192, 168, 100, 1).to_ipv6_mapped().octets());
    assert!(rows.iter().all(|row| row.kind == GidKind::RoceV2 && row.netdev_index.is_some()), "{rows:?}");
    let unknown = Device::open("mlx5_9").unwrap_err().to_string();
    assert_eq!(unknown, "there is no RDMA device mlx5_9; libibverbs lists rxe0, rxe1");
}

#[test]
fn bytes_are_written_and_read_between_two_devices() {
    if !here("READs and WRITEs") {
        return;
    }
    let (one, other) = connected(1 << 20);
    let sent = fill(&one.memory, 3);
    one.post((0..16).map(|i| write(&one, &other, i << 16, 1 << 16, i as u64)));
    let done = one.await_done(16);
    assert!(done.iter().all(|c| c.status.is_ok() && c.pair == one.pair.number()), "{done:?}");
    assert_eq!(done.iter().map(|c| c.id).collect::<Vec<_>>(), (0..16).collect::<Vec<_>>());
    assert_eq!(other.memory.whole().to_vec(), sent);
    // a few bytes are taken along at once, and may change right after
    one.memory.write_at(5, b"inline").unwrap();
    one.post([Work { offset: 5, ..write(&one, &other, 77, 6, 99) }]);
    one.memory.write_at(5, b"CHANGE").unwrap();
    assert_eq!(one.await_done(1)[0].id, 99);
    let mut arrived = [0; 6];
    other.memory.read_at(77, &mut arrived).unwrap();
    assert_eq!(&arrived, b"inline");
    // back, at odd offsets, with one completion for the chain
    let there = fill(&other.memory, 5);
    one.post((0..8).map(|i| Work {
        direction: Direction::Read,
        remote_address: other.region.address() + 13 + (i << 12),
        signaled: i == 7,
        ..write(&one, &other, 1 + (usize::try_from(i).unwrap() << 12), 1 << 12, i)
    }));
    let done = one.await_done(1);
    assert_eq!((done[0].id, done[0].status), (7, Status(0)));
    assert_eq!(one.memory.slice(1, 8 << 12).unwrap().to_vec(), there[13..13 + (8 << 12)]);
    // no bytes at all
    one.post([write(&one, &other, 0, 0, 1)]);
    assert!(one.await_done(1)[0].status.is_ok());
}

#[test]
fn a_wrong_key_ends_the_connection_and_nothing_is_written() {
    if !here("a wrong key") {
        return;
    }
    let (one, other) = connected(4096);
    fill(&one.memory, 1);
    let wrong = Work { rkey: other.region.rkey() ^ 0x5500, ..write(&one, &other, 0, 512, 1) };
    one.post([wrong, write(&one, &other, 1024, 512, 2)]);
    let done = one.await_done(2);
    assert!(done[0].status.is_remote_access() && done[1].status.is_flush(), "{done:?}");
    assert_eq!(one.pair.state().unwrap(), PairState::Error);
    assert_eq!(other.memory.whole().to_vec(), vec![0; 4096]);
    // what is posted from now on is flushed, too, until the pair is reset and connected again
    one.pair.fail().unwrap();
    one.post([write(&one, &other, 0, 512, 3)]);
    assert!(one.await_done(1)[0].status.is_flush());
    for end in [&one, &other] {
        end.pair.reset().unwrap();
        assert_eq!(end.pair.state().unwrap(), PairState::Reset);
    }
    one.connect(&other);
    other.connect(&one);
    one.post([write(&one, &other, 0, 512, 4)]);
    assert!(one.await_done(1)[0].status.is_ok());
}

#[test]
fn beyond_the_peers_region_nothing_is_written() {
    if !here("a range outside the peer's region") {
        return;
    }
    let (one, other) = connected(8192);
    fill(&one.memory, 1);
    let half = Region::register(&other.domain, &other.memory.slice(0, 4096).unwrap(), REMOTE).unwrap();
    let across = Work { rkey: half.rkey(), ..write(&one, &other, 4000, 200, 1) };
    one.post([across]);
    let status = one.await_done(1)[0].status;
    assert!(status.is_remote_access(), "{status}");
    assert_eq!(other.memory.slice(4096, 4096).unwrap().to_vec(), vec![0; 4096]);
}

#[test]
fn what_is_under_way_is_flushed_when_a_connection_is_given_up() {
    if !here("flushing") {
        return;
    }
    // the other end is never made ready: nothing is acknowledged
    let (one, other) = (End::new("rxe0", 1 << 16), End::new("rxe1", 1 << 16));
    other.pair.init(1, 0).unwrap();
    one.connect(&other);
    one.post((0..8).map(|i| write(&one, &other, 0, 4096, i)));
    one.pair.fail().unwrap();
    let done = one.await_done(8);
    assert!(done.iter().all(|c| !c.status.is_ok()), "{done:?}");
    assert!(done.iter().skip(1).all(|c| c.status.is_flush()), "{done:?}");
}

#[test]
fn a_region_that_goes_while_it_is_in_use_is_an_error_and_no_harm() {
    if !here("deregistration in flight") {
        return;
    }
    for ours in [true, false] {
        let (mut one, mut other) = connected(1 << 20);
        fill(&one.memory, 1);
        let memory = Arc::new(Memory::from_vec(vec![0xaa; 1 << 20]));
        one.post((0..48).map(|i| write(&one, &other, (i % 16) << 16, 1 << 16, i as u64)));
        // in place of the region, and of its memory, come new ones
        let end = if ours { &mut one } else { &mut other };
        end.region = Region::register(&end.domain, &memory.whole(), REMOTE).unwrap();
        end.memory = Arc::clone(&memory);
        // Soft RoCE of Linux 6.1 may lose such a request, and those behind it, for ever: then giving the pair up brings them back.
        let (from, mut done) = (Instant::now(), Vec::new());
        while done.len() < 48 && from.elapsed() < PATIENCE {
            if from.elapsed() > Duration::from_secs(10) {
                one.pair.fail().unwrap();
            }
            let mut some = [Completion::EMPTY; 16];
            let count = one.queue.poll(&mut some).unwrap();
            done.extend_from_slice(&some[..count]);
        }
        assert_eq!(done.len(), 48, "{done:?}");
        let failed = done.iter().find(|c| !c.status.is_ok());
        eprintln!("ours {ours}, after {:?}: {failed:?}", from.elapsed());
        let expected = |s: Status| s.is_flush() || if ours { s.is_local() } else { s.is_remote_access() };
        assert!(failed.is_none_or(|c| expected(c.status)), "{failed:?}");
        assert_eq!(memory.whole().to_vec(), vec![0xaa; 1 << 20], "the new memory has other keys");
    }
}

#[test]
fn what_is_wrong_here_is_refused_before_it_is_posted() {
    if !here("refusals") {
        return;
    }
    let (one, other) = (End::new("rxe0", 4096), End::new("rxe1", 4096));
    let mut chain = Chain::new();
    let outside = Work { offset: 4000, ..write(&one, &other, 0, 97, 1) };
    assert!(chain.push(&one.region, outside).is_err());
    chain.push(&one.region, write(&one, &other, 0, 96, 1)).unwrap();
    let refused = one.pair.post(&mut chain).unwrap_err();
    assert_eq!((refused.posted, refused.source.raw_os_error(), chain.len()), (0, Some(107), 1));
    // a queue of another device
    assert!(Pair::new(&one.domain, &other.queue, CAPS).is_err());
    // more than the queue holds: so many are taken, the rest stays
    let caps = Caps { wr: 8, ..CAPS };
    let (one, other) = (End::with("rxe0", 4096, caps), End::with("rxe1", 4096, caps));
    one.connect(&other);
    other.connect(&one);
    let mut chain = Chain::new();
    for id in 0..200 {
        chain.push(&one.region, write(&one, &other, 0, 4096, id)).unwrap();
    }
    let (mut ids, mut refusals) = (Vec::new(), 0);
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
fn a_connection_that_cannot_be_made_says_the_step_and_its_values() {
    if !here("a wrong GID row") {
        return;
    }
    let (one, other) = (End::new("rxe0", 4096), End::new("rxe1", 4096));
    one.pair.init(1, 0).unwrap();
    let wrong = Way { sgid_index: 200, ..one.way_to(&other) };
    let error = one.pair.connect(&wrong).unwrap_err();
    let text = error.to_string();
    assert!(text.starts_with("ibv_modify_qp to RTR failed on rxe0 (pair "), "{text}");
    assert!(text.contains("port 1, GID row 200, MTU 4096, to GID ::ffff:192.168.100.2"), "{text}");
    assert!(error.remedy().unwrap().contains("MC_GID_INDEX"), "{error:?}");
    let text = one.pair.connect(&Way { port: 3, ..one.way_to(&other) }).unwrap_err().to_string();
    assert!(text.contains("port 3"), "{text}");
}

#[test]
fn a_channel_tells_of_a_completion() {
    if !here("completion events") {
        return;
    }
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

/// What the kernel counts: protection domains, queues, pairs, regions of both devices.
fn resources() -> String {
    let out = Command::new("rdma").args(["resource", "show"]).output().unwrap();
    String::from_utf8(out.stdout).unwrap()
}

#[test]
fn a_thousand_connections_leave_nothing_behind() {
    if !here("leaks") {
        return;
    }
    let before = resources();
    assert!(before.contains("qp"), "{before}");
    {
        let (one, other) = (End::new("rxe0", 4096), End::new("rxe1", 4096));
        for i in 0..500 {
            let make = |end: &End| {
                let memory = Arc::new(Memory::from_vec(vec![1; 4096]));
                let region = Region::register(&end.domain, &memory.whole(), REMOTE).unwrap();
                let pair = Pair::new(&end.domain, &end.queue, CAPS).unwrap();
                End {
                    pair,
                    memory,
                    region,
                    device: end.device.clone(),
                    domain: end.domain.clone(),
                    queue: end.queue.clone(),
                }
            };
            let (a, b) = (make(&one), make(&other));
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

/// Runs in a process of its own: see the test below.
#[test]
#[ignore = "started by the test of locked memory"]
fn register_four_mebibytes() {
    let device = Device::open("rxe0").unwrap();
    let domain = Domain::new(&device).unwrap();
    let memory = Arc::new(Memory::from_vec(vec![0; 4 << 20]));
    match Region::register(&domain, &memory.whole(), REMOTE) {
        Ok(_) => println!("registered"),
        Err(error) => println!("refused: {error}; {}", error.remedy().unwrap_or("-")),
    }
}

#[test]
fn too_little_lockable_memory_is_said_in_words() {
    if !here("RLIMIT_MEMLOCK") {
        return;
    }
    let run = |limit: &str| {
        let script = format!("ulimit -l {limit}; exec \"$0\" \"$@\"");
        let mut command = Command::new("/bin/sh");
        command.arg("-c").arg(script).arg(std::env::current_exe().unwrap());
        command.args(["--exact", "rdma::verbs::register_four_mebibytes", "--ignored", "--nocapture"]);
        // what has CAP_IPC_LOCK is not limited
        let out = command.uid(65534).gid(65534).output().unwrap();
        String::from_utf8_lossy(&out.stdout).into_owned()
    };
    let text = run("1024");
    assert!(text.contains("refused: ibv_reg_mr failed on rxe0 with 4194304 bytes at 0x"), "{text}");
    assert!(text.contains("Cannot allocate memory") && text.contains("raise RLIMIT_MEMLOCK"), "{text}");
}

#[test]
fn a_device_tells_of_its_port() {
    if !here("events of a device") {
        return;
    }
    let device = Device::open("rxe1").unwrap();
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
    // as it was before, for the tests after this one
    let from = Instant::now();
    while device.gids(1).unwrap().len() < 2 || !Device::open("rxe0").unwrap().port(1).unwrap().state.is_active() {
        assert!(from.elapsed() < PATIENCE, "{:?}", device.gids(1));
        std::thread::sleep(Duration::from_millis(50));
    }
}
