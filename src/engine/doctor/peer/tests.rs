//! Tests of the diagnosis of failed RDMA paths.

use super::explain;
use super::*;
use mcctl_base::check::{CheckStatus, Severity};
use mcctl_sys::verbs::{CompletionStatus, LinkLayer, PortState};
use mcctl_transfer::DeviceStep;
use mcctl_transfer::path_probe::{
    PathProbe, PathProbeFailure, ProbeFailureCause, ProbeRead, ProbeTimings, ProbedDevice, ProbedPath, UnusedDevice,
};
use mcctl_transfer::topology::gid::{Gid, GidType};
use mcctl_wire::json::DeviceDescriptor;

const HERE: &str = "::ffff:192.0.2.1";
const THERE: &str = "::ffff:192.0.2.2";
const LINK_LOCAL: &str = "fe80::5054:ff:fe12:3450";
const THERE_TEXT: &str = "00:00:00:00:00:00:00:00:00:00:ff:ff:c0:00:02:02";

fn row(index: u32, gid: &str, kind: GidType) -> Gid {
    Gid::new(index, gid.parse().unwrap(), kind, Some("eth0".into())).unwrap()
}

fn end(device: &str, gid: Gid) -> ProbedDevice {
    ProbedDevice {
        device: device.into(),
        port: 1,
        layer: LinkLayer::Ethernet,
        active_mtu: 4096,
        mtu: 4096,
        lid: 0,
        gid,
        asked: None,
    }
}

fn failure(step: DeviceStep, cause: ProbeFailureCause, words: &str) -> PathProbeFailure {
    PathProbeFailure { step, cause, message: words.into() }
}

fn rtr(errno: i32) -> PathProbeFailure {
    let call = "ibv_modify_qp to RTR";
    failure(
        DeviceStep::Rtr,
        ProbeFailureCause::Verb { call, errno },
        "ibv_modify_qp to RTR failed on rxe0 (pair 17): (os error)",
    )
}

fn silence() -> PathProbeFailure {
    let limit = Duration::from_secs(5);
    failure(DeviceStep::Move, ProbeFailureCause::Silence(limit), "no completion within 5s")
}

fn figures() -> ProbeTimings {
    let us = Duration::from_micros;
    ProbeTimings { writes: vec![us(9), us(10), us(30)], read: Some(ProbeRead { bytes: 16_384, result: Ok(us(40)) }) }
}

fn attempt(gid: Gid, result: Result<ProbeTimings, PathProbeFailure>) -> PathProbe {
    PathProbe { gid, port_state: Some(PortState(4)), result }
}

fn probed(gid: Gid, result: Result<ProbeTimings, PathProbeFailure>) -> ProbedPath {
    let attempt = attempt(gid, result);
    ProbedPath { end: 0, remote: "mlx5_0".into(), their_gid: THERE.parse().unwrap(), attempt, others: Vec::new() }
}

fn v2() -> Gid {
    row(3, HERE, GidType::RoceV2)
}

fn descriptor() -> SegmentDescriptor {
    SegmentDescriptor {
        name: "192.0.2.2:15000".into(),
        protocol: "rdma".into(),
        devices: vec![DeviceDescriptor { name: "mlx5_0".into(), lid: 0, gid: THERE_TEXT.into() }],
        ..SegmentDescriptor::default()
    }
}

fn peer(probes: PathProbes) -> PeerProbe {
    PeerProbe { segment: "192.0.2.2:15000".into(), found: Ok(descriptor()), probes, took: Duration::from_millis(3) }
}

/// Facts with one path from one device.
fn one(end: ProbedDevice, path: ProbedPath) -> PeerFacts {
    PeerFacts {
        no_start: None,
        peers: vec![peer(PathProbes { ends: vec![end], unused: Vec::new(), paths: vec![path] })],
    }
}

fn status(facts: &PeerFacts, id: &str) -> CheckStatus {
    judge(facts, &|wanted| wanted == id).pop().unwrap().status
}

#[track_caller]
fn found(facts: &PeerFacts, id: &str) -> (Severity, String, String, String) {
    match status(facts, id) {
        CheckStatus::Found(mut findings) if findings.len() == 1 => {
            let one = findings.remove(0);
            for text in [&one.finding, &one.evidence, &one.remedy] {
                assert!(!text.is_empty() && !text.ends_with('.') && !text.contains('\n'), "{text}");
            }
            (one.severity, one.finding, one.evidence, one.remedy)
        }
        other => panic!("{id}: {other:?}"),
    }
}

#[test]
fn a_working_path_passes_every_check_with_its_times() {
    let facts = one(end("mlx5_0", v2()), probed(v2(), Ok(figures())));
    for check in CHECKS {
        let CheckStatus::Passed(seen) = status(&facts, check.id) else { panic!("{}", check.id) };
        if check.id == "peer-found" {
            assert_eq!(seen, "192.0.2.2:15000: mlx5_0 192.0.2.2");
        } else {
            let path = "1 path: mlx5_0 to 192.0.2.2:15000@mlx5_0 (round trip 10 us, read of 16384 bytes 40 us)";
            assert_eq!(seen, path);
        }
    }
}

#[test]
fn every_check_has_a_failing_case() {
    let mut gone = one(end("mlx5_0", v2()), probed(v2(), Ok(figures())));
    gone.peers[0].found = Err("lost 192.0.2.2:15000 while connecting: Connection refused (os error 111)".into());
    gone.peers[0].probes = PathProbes::default();
    let connected = one(end("mlx5_0", v2()), probed(v2(), Err(rtr(libc::ENETUNREACH))));
    let answers = one(end("mlx5_0", v2()), probed(v2(), Err(silence())));
    let small = ProbeTimings { read: Some(ProbeRead { bytes: 16_384, result: Err(silence()) }), ..figures() };
    let packets = one(end("mlx5_0", v2()), probed(v2(), Ok(small)));
    let by: [(&str, &PeerFacts); 4] =
        [("peer-found", &gone), ("peer-connected", &connected), ("peer-answers", &answers), ("peer-packets", &packets)];
    assert!(by.iter().map(|(id, _)| *id).eq(CHECKS.iter().map(|check| check.id)));
    for (id, facts) in by {
        assert_eq!(found(facts, id).0, Severity::Error, "{id}");
        // Only the failed step is reported. Earlier steps passed, and later steps were not reached.
        let at = CHECKS.iter().position(|check| check.id == id).unwrap();
        for (other, check) in CHECKS.iter().enumerate().filter(|(other, _)| *other != at) {
            let status = status(facts, check.id);
            let is_so = if other < at {
                matches!(status, CheckStatus::Passed(_))
            } else {
                matches!(status, CheckStatus::Skipped(_))
            };
            assert!(is_so, "{id}, then {}: {status:?}", check.id);
        }
    }
}

#[test]
fn the_announced_descriptor_is_checked_before_any_path() {
    let facts = |change: &dyn Fn(&mut SegmentDescriptor)| {
        let mut peer = peer(PathProbes::default());
        peer.found.as_mut().map(change).unwrap();
        PeerFacts { no_start: None, peers: vec![peer] }
    };
    let tcp = found(&facts(&|d| d.protocol = "tcp".into()), "peer-found");
    assert!(tcp.1.ends_with("does not use rdma") && tcp.3.contains("--protocol rdma"), "{tcp:?}");
    let none = found(&facts(&|d| d.devices.clear()), "peer-found");
    assert_eq!(none.2, "its descriptor lists no device");
    let null = |d: &mut SegmentDescriptor| {
        d.devices.push(DeviceDescriptor { name: "mlx5_1".into(), lid: 0, gid: ["00"; 16].join(":") });
    };
    let half = found(&facts(&null), "peer-found");
    assert_eq!((half.0, half.2.as_str()), (Severity::Warning, "mlx5_1 without a usable GID"));
}

#[test]
fn without_an_own_engine_the_reason_is_reported_and_nothing_passes() {
    let facts = PeerFacts {
        no_start: Some("rdma cannot be used on this host: there is no RDMA device".into()),
        peers: Vec::new(),
    };
    let (severity, _, evidence, remedy) = found(&facts, "peer-connected");
    assert_eq!(severity, Severity::Error);
    assert!(evidence.contains("there is no RDMA device") && remedy.contains("mcctl devices"), "{evidence} {remedy}");
    for id in ["peer-found", "peer-answers", "peer-packets"] {
        assert!(matches!(status(&facts, id), CheckStatus::Skipped(_)), "{id}");
    }
}

/// Step, cause, the peer's message, this host's GID, expected parts of the problem, and an expected
/// part of the remedy.
type Case = (DeviceStep, ProbeFailureCause, &'static str, Gid, &'static [&'static str], &'static str);

#[test]
fn step_errno_and_addresses_determine_the_attribute() {
    let verb = |call, errno| ProbeFailureCause::Verb { call, errno };
    let to_rtr = |errno| verb("ibv_modify_qp to RTR", errno);
    let local = || row(0, LINK_LOCAL, GidType::RoceV2);
    let v1 = || row(2, HERE, GidType::RoceV1);
    let quiet = ProbeFailureCause::Silence(Duration::from_secs(5));
    let cases: Vec<Case> = vec![
        (DeviceStep::Register, verb("ibv_reg_mr", libc::ENOMEM), "", v2(), &["locked"], "RLIMIT_MEMLOCK"),
        (
            DeviceStep::Init,
            verb("ibv_create_qp", libc::EINVAL),
            "",
            v2(),
            &["a queue pair cannot be created"],
            "MC_MAX_SGE",
        ),
        (DeviceStep::Init, verb("ibv_create_qp", libc::ENOMEM), "", v2(), &["locked"], "RLIMIT_MEMLOCK"),
        (
            DeviceStep::Init,
            verb("ibv_modify_qp to INIT", libc::EINVAL),
            "",
            v2(),
            &["RESET to INIT", "P_Key"],
            "MC_PKEY_INDEX",
        ),
        (DeviceStep::Dial, ProbeFailureCause::Unreachable, "", v2(), &["get no response"], "15000-17000"),
        (DeviceStep::Dial, ProbeFailureCause::OtherProtocol, "", v2(), &["not with RDMA"], "another process"),
        (DeviceStep::Dial, ProbeFailureCause::Answer, "", v2(), &["is invalid"], "log"),
        (
            DeviceStep::Dial,
            ProbeFailureCause::Refused,
            "Failed to modify QP to RTR, check mtu, gid, peer lid, peer qp num: 22",
            local(),
            &["INIT to RTR fails at the peer", "GID 0", "the GID index", "a link-local address", "an IPv4 address"],
            "mcctl devices on both hosts",
        ),
        (
            DeviceStep::Dial,
            ProbeFailureCause::Refused,
            "QP count mismatch in peer",
            v2(),
            &["MC_NUM_QP_PER_EP"],
            "MC_NUM_QP_PER_EP",
        ),
        (
            DeviceStep::Dial,
            ProbeFailureCause::Refused,
            "Invalid peer GID: zz",
            v2(),
            &["cannot use the address", "GID 3"],
            "0.3.11",
        ),
        (
            DeviceStep::Dial,
            ProbeFailureCause::Refused,
            "peer nic path inconsistency",
            v2(),
            &["does not recognize"],
            "stale",
        ),
        (DeviceStep::Dial, ProbeFailureCause::Refused, "no", v2(), &["refuses the connection"], "log"),
        (DeviceStep::Ready, ProbeFailureCause::Unreachable, "", v2(), &["ready message"], "log"),
        (
            DeviceStep::Rtr,
            to_rtr(libc::EINVAL),
            "",
            local(),
            &["INIT to RTR", "EINVAL", "the GID index: GID 0", "a link-local address", "192.0.2.2 is an IPv4 address"],
            "MC_GID_INDEX",
        ),
        (DeviceStep::Rtr, to_rtr(libc::ENOENT), "", v2(), &["ENOENT", "entry 3", "now empty"], "MC_GID_INDEX"),
        (
            DeviceStep::Rtr,
            to_rtr(libc::ETIMEDOUT),
            "",
            v2(),
            &["ETIMEDOUT", "the peer's GID", "192.0.2.1"],
            "ip route get 192.0.2.2",
        ),
        (
            DeviceStep::Rtr,
            to_rtr(libc::EHOSTUNREACH),
            "",
            v2(),
            &["EHOSTUNREACH", "no route"],
            "ping -I eth0 192.0.2.2",
        ),
        (
            DeviceStep::Rtr,
            to_rtr(libc::EINVAL),
            "",
            v2(),
            &["EINVAL", "GID index 3", "path MTU 4096", "192.0.2.2"],
            "MC_MTU",
        ),
        (DeviceStep::Rts, verb("ibv_modify_qp to RTS", libc::EINVAL), "", v2(), &["RTR to RTS"], "compatibility mode"),
        (DeviceStep::Post, verb("ibv_post_send", libc::ENOMEM), "", v2(), &["rejects work requests"], "dmesg"),
        (DeviceStep::Move, quiet, "", v1(), &["RTS", "no packet returns", "RoCE v1"], "RoCE v2 GID"),
        (DeviceStep::Move, quiet, "", local(), &["no packet returns", "a link-local address"], "MC_GID_INDEX"),
        (
            DeviceStep::Move,
            ProbeFailureCause::Completion(CompletionStatus(12)),
            "",
            v2(),
            &["no packet returns", "a firewall"],
            "UDP port 4791",
        ),
        (
            DeviceStep::Move,
            ProbeFailureCause::Completion(CompletionStatus(9)),
            "",
            v2(),
            &["REM_INV_REQ_ERR"],
            "MC_MTU",
        ),
    ];
    for (step, cause, words, gid, parts, next) in cases {
        let why = explain::why(&end("mlx5_0", gid.clone()), &probed(gid, Ok(figures())), &failure(step, cause, words));
        for part in parts {
            assert!(why.what.contains(part), "{step:?} {cause:?}: '{part}' is not in {why:?}");
        }
        assert!(why.next.contains(next), "{step:?} {cause:?}: '{next}' is not in {why:?}");
    }
}

#[test]
fn the_variable_behind_a_gid_and_a_working_gid_are_named() {
    let local = row(0, LINK_LOCAL, GidType::RoceV2);
    let mut path = probed(local.clone(), Err(rtr(libc::EINVAL)));
    let asked = ProbedDevice { asked: Some("MC_GID_INDEX"), ..end("mlx5_0", local) };
    path.others = vec![attempt(row(1, HERE, GidType::RoceV1), Err(silence())), attempt(v2(), Ok(figures()))];
    let (_, what, evidence, next) = found(&one(asked.clone(), path.clone()), "peer-connected");
    assert!(what.contains("INIT to RTR fails (EINVAL)"), "{what}");
    assert!(what.contains("(set by MC_GID_INDEX)"), "{what}");
    assert!(evidence.starts_with("mlx5_0 port 1 ACTIVE, GID 0 fe80::5054"), "{evidence}");
    assert!(next.starts_with("set MC_GID_INDEX=3"), "{next}");
    path.others.pop();
    let (.., next) = found(&one(asked, path), "peer-connected");
    assert!(next.contains("also fails with this host's GID"), "{next}");
}

#[test]
fn a_port_that_went_down_is_reported_for_any_step() {
    for failure in [rtr(libc::EINVAL), silence()] {
        let mut path = probed(v2(), Err(failure.clone()));
        path.attempt.port_state = Some(PortState(1));
        assert_eq!(explain::why(&end("mlx5_0", v2()), &path, &failure).what, "this host's port went down");
    }
}

#[test]
fn the_mtu_is_named_if_only_large_packets_fail() {
    let figures = ProbeTimings { read: Some(ProbeRead { bytes: 16_384, result: Err(silence()) }), ..figures() };
    let (_, what, _, next) = found(&one(end("mlx5_0", v2()), probed(v2(), Ok(figures))), "peer-packets");
    assert!(
        what.contains("the MTU: packets of 4096") && next.contains("MC_MTU=1024") && next.contains("4200"),
        "{what}; {next}"
    );
    let taken = failure(
        DeviceStep::Move,
        ProbeFailureCause::Completion(CompletionStatus(10)),
        "work completion REM_ACCESS_ERR",
    );
    assert!(explain::packets(&end("mlx5_0", v2()), 16_384, &taken).what.contains("cannot be read"));
}

#[test]
fn equal_failures_are_one_finding_and_a_warning_if_others_work() {
    let two = |result: &dyn Fn(usize, usize) -> Result<ProbeTimings, PathProbeFailure>| {
        let ends = vec![end("mlx5_0", v2()), end("mlx5_1", v2())];
        let path = |(from, to): (usize, usize)| ProbedPath {
            end: from,
            remote: format!("mlx5_{to}"),
            ..probed(v2(), result(from, to))
        };
        let paths = [(0, 0), (0, 1), (1, 0), (1, 1)].map(path).to_vec();
        PeerFacts { no_start: None, peers: vec![peer(PathProbes { ends, unused: Vec::new(), paths })] }
    };
    let facts = two(&|from, _| if from == 0 { Ok(figures()) } else { Err(silence()) });
    let (severity, what, evidence, next) = found(&facts, "peer-answers");
    assert!(severity == Severity::Warning && what.starts_with("2 paths to "), "{what}");
    assert!(evidence.contains("@mlx5_0") && evidence.contains("@mlx5_1") && next.contains("4791"), "{evidence} {next}");
    let rails = two(&|from, to| if from == to { Ok(figures()) } else { Err(silence()) });
    assert!(found(&rails, "peer-answers").3.contains("MC_ENABLE_DEST_DEVICE_AFFINITY=1"));
}

#[test]
fn an_unused_device_of_this_host_is_reported() {
    let mut facts = one(end("mlx5_0", v2()), probed(v2(), Ok(figures())));
    let why = "mlx5_1: port 1 is DOWN, not ACTIVE: is the link up?";
    facts.peers[0].probes.unused.push(UnusedDevice { device: "mlx5_1".into(), why: why.into() });
    let (severity, what, evidence, _) = found(&facts, "peer-connected");
    assert_eq!((severity, what.as_str(), evidence.as_str()), (Severity::Info, "mlx5_1 on this host is not used", why));
}

#[test]
fn infiniband_is_not_judged_by_address_family() {
    let gid = row(0, LINK_LOCAL, GidType::Ib);
    let ib = ProbedDevice { layer: LinkLayer::InfiniBand, lid: 7, ..end("mlx5_0", gid.clone()) };
    let why = explain::why(&ib, &probed(gid.clone(), Err(silence())), &silence());
    assert!(why.what.contains("LID 7") && why.next.contains("MC_PKEY_INDEX"), "{why:?}");
    let why = explain::why(&ib, &probed(gid, Err(rtr(22))), &rtr(22));
    assert!(why.what.contains("path MTU"), "{why:?}");
}
