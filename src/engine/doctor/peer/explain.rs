//! Explains why an RDMA path does not transfer data, from the failed step, the errno and the
//! attributes of both endpoints. Pure.

use std::net::Ipv6Addr;

use nix::errno::Errno;

use mcctl_base::time::RoundedDuration;
use mcctl_sys::verbs::{CompletionStatus, LinkLayer};
use mcctl_transfer::DeviceStep;
use mcctl_transfer::path_probe::{PathProbe, PathProbeFailure, ProbeFailureCause, ProbedDevice, ProbedPath};
use mcctl_transfer::topology::gid::{Gid, GidType};

/// A problem with a path, and its remedy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnosis {
    /// The failed step and the attribute that caused the failure.
    pub what: String,
    pub next: String,
}

/// The address family of a GID. Endpoints of different families cannot reach each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AddressFamily {
    Ipv4,
    LinkLocal,
    Ipv6,
}

impl AddressFamily {
    fn of(gid: &Ipv6Addr) -> AddressFamily {
        match gid {
            gid if gid.to_ipv4_mapped().is_some() => AddressFamily::Ipv4,
            gid if gid.segments()[0] & 0xffc0 == 0xfe80 => AddressFamily::LinkLocal,
            _ => AddressFamily::Ipv6,
        }
    }

    const fn name(self) -> &'static str {
        match self {
            AddressFamily::Ipv4 => "an IPv4 address",
            AddressFamily::LinkLocal => "a link-local address",
            AddressFamily::Ipv6 => "an IPv6 address",
        }
    }
}

const MEMLOCK: &str = "registered memory is locked: raise RLIMIT_MEMLOCK (ulimit -l unlimited, LimitMEMLOCK=infinity), or grant CAP_IPC_LOCK";
const PEERS_ADDRESS: &str =
    "run mcctl devices on both hosts and compare: both need GIDs of the same type (MC_GID_INDEX) in connected networks";

/// The step as a stable identifier for programs.
pub fn word(step: DeviceStep) -> &'static str {
    match step {
        DeviceStep::Open => "open",
        DeviceStep::Register => "register",
        DeviceStep::Route => "route",
        DeviceStep::Dial => "dial",
        DeviceStep::Init => "init",
        DeviceStep::Rtr => "rtr",
        DeviceStep::Rts => "rts",
        DeviceStep::Ready => "ready",
        DeviceStep::Post => "post",
        DeviceStep::Move => "move",
    }
}

/// Formats a GID with its index: `GID 3 192.0.2.1 (RoCE v2, eth0)`.
pub fn row(gid: &Gid) -> String {
    let netdev = gid.netdev.as_deref().map(|name| format!(", {name}")).unwrap_or_default();
    format!("GID {} {} ({}{netdev})", gid.index, address(&gid.gid), gid.kind.name())
}

/// Formats a GID; an IPv4-mapped one as IPv4.
pub fn address(gid: &Ipv6Addr) -> String {
    gid.to_ipv4_mapped().map_or_else(|| gid.to_string(), |ip| ip.to_string())
}

/// Explains the `failure` of `path`, which starts at this host's device `end`.
pub fn why(end: &ProbedDevice, path: &ProbedPath, failure: &PathProbeFailure) -> Diagnosis {
    let Diagnosis { what, mut next } = cause(end, path, failure);
    if let Some(other) = path.others.iter().find(|other| other.works()) {
        next = format!(
            "set MC_GID_INDEX={} on this host: the path works with {} (tested)",
            other.gid.index,
            row(&other.gid)
        );
    } else if !path.others.is_empty() {
        let rows: Vec<String> = path.others.iter().map(|other| other.gid.index.to_string()).collect();
        next = format!("{next}; the path also fails with this host's GID {} (tested)", rows.join(" and "));
    }
    Diagnosis { what, next }
}

fn cause(end: &ProbedDevice, path: &ProbedPath, failure: &PathProbeFailure) -> Diagnosis {
    let why = |what: &str, next: &str| Diagnosis { what: what.to_owned(), next: next.to_owned() };
    let is_down = path.attempt.port_state.is_some_and(|state| !state.is_active());
    match (failure.step, failure.cause) {
        (DeviceStep::Register, ProbeFailureCause::Verb { errno, .. }) if is(errno, &[Errno::ENOMEM]) => {
            why("memory cannot be registered: the locked-memory limit is too low", MEMLOCK)
        }
        (DeviceStep::Open | DeviceStep::Register | DeviceStep::Route, _) => why(
            "the device cannot register memory or create a completion queue",
            "run mcctl doctor --only host --protocol rdma, and check dmesg",
        ),
        (_, ProbeFailureCause::Verb { .. }) if is_down => down(end),
        (DeviceStep::Init, ProbeFailureCause::Verb { call: "ibv_create_qp", errno }) if is(errno, &[Errno::ENOMEM]) => {
            why("a queue pair cannot be created: out of locked memory or queue pairs", MEMLOCK)
        }
        (DeviceStep::Init, ProbeFailureCause::Verb { call: "ibv_create_qp", .. }) => why(
            "a queue pair cannot be created: the requested capacity exceeds the device's limits",
            "lower MC_MAX_SGE or MC_MAX_INLINE to the device's limits (mcctl devices)",
        ),
        (DeviceStep::Init, _) => why(
            "RESET to INIT fails: the port (MC_IB_PORT) or the P_Key index (MC_PKEY_INDEX) is invalid",
            "set MC_IB_PORT and MC_PKEY_INDEX to a port and index of the device (mcctl devices)",
        ),
        (DeviceStep::Dial | DeviceStep::Ready, ProbeFailureCause::Refused) => refused(end, path, &failure.message),
        (DeviceStep::Dial, ProbeFailureCause::OtherProtocol) => why(
            "the peer's handshake port responds, but not with RDMA",
            "another process now uses that port: use the peer's current name (mcctl status)",
        ),
        (DeviceStep::Dial, ProbeFailureCause::Unreachable) => why(
            "connection requests to the peer's announced name get no response",
            "open TCP ports 15000-17000 (MC_MIN_RPC_PORT to MC_MAX_RPC_PORT) between the hosts, and start the peer under a name that this host can reach (MOONCAKE_LOCAL_HOSTNAME)",
        ),
        (DeviceStep::Dial, _) => why(
            "the peer's reply to the connection request is invalid",
            "check that the peer is a Mooncake engine of release 0.3.6 or later, and check its log",
        ),
        (DeviceStep::Ready, _) => why(
            "the peer does not accept the ready message after both queue pairs are connected",
            "check the peer's log: it may have just restarted",
        ),
        (DeviceStep::Rtr, ProbeFailureCause::Verb { errno, .. }) => rtr(end, path, errno),
        (DeviceStep::Rts, _) => why(
            "RTR to RTS fails: the device rejects the timeout, the retry count or the number of outstanding reads",
            "an eRDMA device requires its driver's compatibility mode; otherwise check dmesg and the driver version",
        ),
        (DeviceStep::Post, _) => {
            why("the device rejects work requests", "check dmesg: the device or its port may have failed")
        }
        (DeviceStep::Move, ProbeFailureCause::Silence(_)) => lost(end, path, is_down),
        (DeviceStep::Move, ProbeFailureCause::Completion(status)) if status.is_unanswered() => lost(end, path, is_down),
        (DeviceStep::Move, ProbeFailureCause::Completion(status)) => Diagnosis {
            what: format!("queue pairs are connected, but the transfer fails: {}", status.name()),
            next: mismatch(status).to_owned(),
        },
        (DeviceStep::Rtr | DeviceStep::Move, _) => {
            why("the device failed", "check dmesg: it may have been reset or removed")
        }
    }
}

fn mismatch(status: CompletionStatus) -> &'static str {
    match status.is_remote_access() {
        true => "the peer has just unregistered its memory or restarted: try again",
        false => "set the same MC_MTU on both hosts, and check dmesg on both",
    }
}

fn down(end: &ProbedDevice) -> Diagnosis {
    Diagnosis {
        what: "this host's port went down".to_owned(),
        next: format!(
            "check that the link of {} is up (ip link, cable, switch port); mcctl devices shows its state",
            end.device
        ),
    }
}

/// Explains a refusal by the peer.
fn refused(end: &ProbedDevice, path: &ProbedPath, words: &str) -> Diagnosis {
    let why = |what: String, next: &str| Diagnosis { what, next: next.to_owned() };
    if words.contains("RTR") || words.contains("RTS") {
        let transition = if words.contains("to RTS") { "RTR to RTS" } else { "INIT to RTR" };
        let gid = row(&path.attempt.gid);
        let kinds = kinds(&path.attempt.gid, path);
        return why(format!("{transition} fails at the peer for this host's {gid}: {kinds}"), PEERS_ADDRESS);
    }
    if words.contains("QP count") {
        let what = "the two hosts use different numbers of queue pairs per connection (MC_NUM_QP_PER_EP)";
        return why(what.to_owned(), "set the same MC_NUM_QP_PER_EP on both hosts (Mooncake's default is 2)");
    }
    if words.contains("GID") || words.contains("Peer nic not found") {
        let what = format!("the peer cannot use the address of {} {}", end.device, row(&path.attempt.gid));
        return why(
            what,
            "a peer older than release 0.3.11 requests the address from this host: also open handshake ports 15000-17000 on this host",
        );
    }
    if words.contains("nic path") || words.contains("context not found") {
        let what = "the peer does not recognize the name or device that its segment announces";
        return why(
            what.to_owned(),
            "the peer's metadata record is stale, or the peer no longer uses the device: check its log, or restart it",
        );
    }
    why("the peer refuses the connection".to_owned(), "check the peer's log")
}

/// Compares the address families of both GIDs.
fn kinds(gid: &Gid, path: &ProbedPath) -> String {
    let local = AddressFamily::of(&gid.gid);
    let remote = AddressFamily::of(&path.their_gid);
    match local == remote {
        true => format!("the peer's GID, the route between the networks, or the MTU: both GIDs are {}", local.name()),
        false => format!("the GID index: this host's GID is {}, but the peer's GID is {}", local.name(), remote.name()),
    }
}

fn rtr(end: &ProbedDevice, path: &ProbedPath, errno: i32) -> Diagnosis {
    let gid = &path.attempt.gid;
    let remote = address(&path.their_gid);
    let name = Errno::from_raw(errno);
    let local = row(gid);
    let asked = end.asked.map(|variable| format!(" (set by {variable})")).unwrap_or_default();
    let netdev = gid.netdev.as_deref().unwrap_or("the interface");
    let families = (AddressFamily::of(&gid.gid), AddressFamily::of(&path.their_gid));
    if is_roce(end) && families.0 != families.1 {
        return Diagnosis {
            what: format!(
                "INIT to RTR fails ({name:?}): the GID index: {local}{asked} is {}, but the peer's {remote} is {}",
                families.0.name(),
                families.1.name()
            ),
            next: "select a GID of the peer's type with MC_GID_INDEX (mcctl devices lists them), on both hosts"
                .to_owned(),
        };
    }
    if is(errno, &[Errno::ENODATA, Errno::ENOENT]) {
        return Diagnosis {
            what: format!("INIT to RTR fails ({name:?}): the GID index: entry {}{asked} is now empty", gid.index),
            next: "the address was removed from the interface: add it again, or select another entry with MC_GID_INDEX"
                .to_owned(),
        };
    }
    let unreachable = [
        Errno::ETIMEDOUT,
        Errno::EHOSTUNREACH,
        Errno::ENETUNREACH,
        Errno::EADDRNOTAVAIL,
        Errno::ENETDOWN,
        Errno::ENODEV,
    ];
    if is(errno, &unreachable) {
        return Diagnosis {
            what: format!("INIT to RTR fails ({name:?}): the peer's GID: no route from {local} to {remote}"),
            next: format!(
                "check that both are in the same network or that a route exists: ip route get {remote} and ping -I {netdev} {remote}"
            ),
        };
    }
    let mtu = match end.mtu > end.active_mtu {
        true => format!("the MTU: {} exceeds the port's {}", end.mtu, end.active_mtu),
        false => format!(
            "the cause is the GID index {}, the path MTU {} (the port's is {}) or the peer's GID {remote}",
            gid.index, end.mtu, end.active_mtu
        ),
    };
    Diagnosis {
        what: format!("INIT to RTR fails ({name:?}): {mtu}"),
        next: format!(
            "check that this host can reach the peer (ping -I {netdev} {remote}), set MC_GID_INDEX or MC_MTU, and check dmesg"
        ),
    }
}

/// Explains why no packet returns although both queue pairs are connected.
fn lost(end: &ProbedDevice, path: &ProbedPath, is_down: bool) -> Diagnosis {
    if is_down {
        return down(end);
    }
    let gid = &path.attempt.gid;
    let local = row(gid);
    let remote = address(&path.their_gid);
    let families = (AddressFamily::of(&gid.gid), AddressFamily::of(&path.their_gid));
    let what = |detail: String| format!("both queue pairs are in RTS, but no packet returns: {detail}");
    if !is_roce(end) {
        return Diagnosis {
            what: what(format!("LID {} and {remote} may be in different partitions or subnets", end.lid)),
            next: "run ibping or ibtracert between the two hosts; check the subnet manager's log, and that MC_PKEY_INDEX selects the same partition on both hosts"
                .to_owned(),
        };
    }
    if gid.kind == GidType::RoceV1 {
        return Diagnosis {
            what: what(format!(
                "the GID index: {local} is RoCE v1, which reaches only RoCE v1 GIDs in the same Ethernet segment"
            )),
            next: "select a RoCE v2 GID with MC_GID_INDEX (mcctl devices lists them), on both hosts".to_owned(),
        };
    }
    if families.0 != families.1 {
        return Diagnosis {
            what: what(format!(
                "the GID index: {local} is {}, but the peer's {remote} is {}",
                families.0.name(),
                families.1.name()
            )),
            next: "select a GID of the peer's type with MC_GID_INDEX (mcctl devices lists them), on both hosts"
                .to_owned(),
        };
    }
    let netdev = gid.netdev.as_deref().map(|name| format!("-I {name} ")).unwrap_or_default();
    Diagnosis {
        what: what(format!(
            "a firewall, a missing route or a link failure between {local} and {remote}, or a different RoCE version at the peer"
        )),
        next: format!(
            "allow UDP port 4791 on both hosts and between them, run ping {netdev}{remote}, and check with mcctl devices on the peer that its GID is RoCE v2"
        ),
    }
}

/// Explains why small requests succeed but a read of several packets fails.
pub fn packets(end: &ProbedDevice, bytes: u32, failure: &PathProbeFailure) -> Diagnosis {
    match failure.cause {
        ProbeFailureCause::Completion(status) if status.is_remote_access() => Diagnosis {
            what: "the peer's memory cannot be read with the key that it announces".to_owned(),
            next: mismatch(status).to_owned(),
        },
        _ => Diagnosis {
            what: format!(
                "a 0-byte write succeeds, but a {bytes}-byte read fails because of the MTU: packets of {} bytes are too large for the path, or the peer \
                 uses a different MTU",
                end.mtu
            ),
            next: format!(
                "configure all switches and interfaces for frames of at least {} bytes, or set MC_MTU=1024 on both hosts",
                end.mtu + OVERHEAD
            ),
        },
    }
}

/// Ethernet, IP, UDP and InfiniBand headers around a packet's payload, in bytes, rounded up.
const OVERHEAD: u32 = 104;

/// Formats the measurements of a working path.
pub fn figures(attempt: &PathProbe) -> Option<String> {
    let figures = attempt.result.as_ref().ok()?;
    let middle = figures.writes.get(figures.writes.len() / 2)?;
    let read = match figures.read.as_ref().map(|read| (read.bytes, &read.result)) {
        Some((bytes, Ok(time))) => format!(", read of {bytes} bytes {}", RoundedDuration(*time)),
        Some((bytes, Err(_))) => format!(", read of {bytes} bytes fails"),
        None => String::new(),
    };
    Some(format!("round trip {}{read}", RoundedDuration(*middle)))
}

fn is_roce(end: &ProbedDevice) -> bool {
    end.layer != LinkLayer::InfiniBand
}

fn is(errno: i32, any: &[Errno]) -> bool {
    any.contains(&Errno::from_raw(errno))
}
