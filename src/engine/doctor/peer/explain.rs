//! Why a way over RDMA does not carry bytes, from the step that failed, the system's number and the attributes of both ends. Pure.

use std::net::Ipv6Addr;
use std::time::Duration;

use nix::errno::Errno;

use crate::engine::sys::verbs::{CompletionStatus, LinkLayer};
use crate::engine::topology::gid::{Gid, GidKind};
use crate::engine::transfer::rdma::RdmaStep;
use crate::engine::transfer::rdma::path_probe::{PathProbe, ProbeFailure, ProbeFailureCause, ProbedDevice, ProbedPath};

/// What is wrong with a way, and what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Why {
    /// Which step failed, and which attribute of it.
    pub what: String,
    pub next: String,
}

/// What kind of address a GID is. An end of one kind does not reach one of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Family {
    Ipv4,
    LinkLocal,
    Ipv6,
}

impl Family {
    fn of(gid: &Ipv6Addr) -> Family {
        match gid {
            gid if gid.to_ipv4_mapped().is_some() => Family::Ipv4,
            gid if gid.segments()[0] & 0xffc0 == 0xfe80 => Family::LinkLocal,
            _ => Family::Ipv6,
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Family::Ipv4 => "an IPv4 address",
            Family::LinkLocal => "a link-local address",
            Family::Ipv6 => "an IPv6 address",
        }
    }
}

const MEMLOCK: &str = "registered memory is locked: raise RLIMIT_MEMLOCK (ulimit -l unlimited, LimitMEMLOCK=infinity), or give CAP_IPC_LOCK";
const PEERS_ADDRESS: &str = "run mcctl devices there and compare: both ends need rows of one kind (MC_GID_INDEX) in networks that reach each other";

/// The step in one word: stable, for programs.
pub fn word(step: RdmaStep) -> &'static str {
    match step {
        RdmaStep::Open => "open",
        RdmaStep::Register => "register",
        RdmaStep::Route => "route",
        RdmaStep::Dial => "dial",
        RdmaStep::Init => "init",
        RdmaStep::Rtr => "rtr",
        RdmaStep::Rts => "rts",
        RdmaStep::Ready => "ready",
        RdmaStep::Post => "post",
        RdmaStep::Move => "move",
    }
}

/// A row as people read it: `GID 3 192.0.2.1 (RoCE v2, eth0)`.
pub fn row(gid: &Gid) -> String {
    let netdev = gid.netdev.as_deref().map(|name| format!(", {name}")).unwrap_or_default();
    format!("GID {} {} ({}{netdev})", gid.index, address(&gid.gid), gid.kind.name())
}

/// A GID as people read it.
pub fn address(gid: &Ipv6Addr) -> String {
    gid.to_ipv4_mapped().map_or_else(|| gid.to_string(), |ip| ip.to_string())
}

/// Why `tried`, which leads from `end`, failed as `failure` says.
pub fn why(end: &ProbedDevice, tried: &ProbedPath, failure: &ProbeFailure) -> Why {
    let Why { what, mut next } = cause(end, tried, failure);
    if let Some(other) = tried.others.iter().find(|other| other.works()) {
        next = format!(
            "set MC_GID_INDEX={} on this host: with its {} this way works (tried)",
            other.gid.index,
            row(&other.gid)
        );
    } else if !tried.others.is_empty() {
        let rows: Vec<String> = tried.others.iter().map(|other| other.gid.index.to_string()).collect();
        next = format!("{next}; with GID {} of this host it fails, too (tried)", rows.join(" and "));
    }
    Why { what, next }
}

fn cause(end: &ProbedDevice, tried: &ProbedPath, failure: &ProbeFailure) -> Why {
    let why = |what: &str, next: &str| Why { what: what.to_owned(), next: next.to_owned() };
    let is_down = tried.attempt.port_state.is_some_and(|state| !state.is_active());
    match (failure.step, failure.cause) {
        (RdmaStep::Register, ProbeFailureCause::Verb { errno, .. }) if is(errno, &[Errno::ENOMEM]) => {
            why("memory cannot be registered: the limit of locked memory is too low", MEMLOCK)
        }
        (RdmaStep::Open | RdmaStep::Register | RdmaStep::Route, _) => why(
            "the device takes no memory or makes no completion queue",
            "mcctl doctor --only host --protocol rdma; dmesg",
        ),
        (_, ProbeFailureCause::Verb { .. }) if is_down => down(end),
        (RdmaStep::Init, ProbeFailureCause::Verb { call: "ibv_create_qp", errno }) if is(errno, &[Errno::ENOMEM]) => {
            why("no queue pair can be made: out of locked memory, or of queue pairs", MEMLOCK)
        }
        (RdmaStep::Init, ProbeFailureCause::Verb { call: "ibv_create_qp", .. }) => why(
            "no queue pair can be made: it is to hold more than the device can",
            "lower MC_MAX_SGE or MC_MAX_INLINE to what mcctl devices shows as the device's limits",
        ),
        (RdmaStep::Init, _) => why(
            "RESET to INIT fails: the port (MC_IB_PORT) or the row of its P_Key table (MC_PKEY_INDEX)",
            "set MC_IB_PORT and MC_PKEY_INDEX to a port and row that the device has (mcctl devices)",
        ),
        (RdmaStep::Dial | RdmaStep::Ready, ProbeFailureCause::Refused) => refused(end, tried, &failure.message),
        (RdmaStep::Dial, ProbeFailureCause::NoRdma) => why(
            "the peer's handshake port answers, and there is no RDMA behind it",
            "another process has that port by now: name the peer as it is called now (mcctl status)",
        ),
        (RdmaStep::Dial, ProbeFailureCause::Unreachable) => why(
            "connection requests to the name that the peer announces get no answer",
            "open the ports 15000-17000 (MC_MIN_RPC_PORT to MC_MAX_RPC_PORT) between the hosts, and start the peer with a name that this host reaches (MOONCAKE_LOCAL_HOSTNAME)",
        ),
        (RdmaStep::Dial, _) => why(
            "the peer's reply to the connection request cannot be used",
            "see that the peer is a Mooncake engine of release 0.3.6 or later, and look into its log",
        ),
        (RdmaStep::Ready, _) => why(
            "the peer does not take the ready message after both ends are connected",
            "look into the peer's log: it may have been restarted at this moment",
        ),
        (RdmaStep::Rtr, ProbeFailureCause::Verb { errno, .. }) => rtr(end, tried, errno),
        (RdmaStep::Rts, _) => why(
            "RTR to RTS fails: timeout, retries or the number of reads at a time are not taken",
            "an eRDMA device needs its driver's compatibility mode; else see dmesg and the driver's release",
        ),
        (RdmaStep::Post, _) => {
            why("the device takes no work request", "see dmesg: the device or its port may have failed")
        }
        (RdmaStep::Move, ProbeFailureCause::Silence(_)) => lost(end, tried, is_down),
        (RdmaStep::Move, ProbeFailureCause::Completion(status)) if status.is_unanswered() => lost(end, tried, is_down),
        (RdmaStep::Move, ProbeFailureCause::Completion(status)) => Why {
            what: format!("queue pairs are connected, and the devices do not understand each other: {}", status.name()),
            next: mismatch(status).to_owned(),
        },
        (RdmaStep::Rtr | RdmaStep::Move, _) => why("the device failed", "see dmesg: it may have been reset or removed"),
    }
}

fn mismatch(status: CompletionStatus) -> &'static str {
    match status.is_remote_access() {
        true => "the peer took its memory back at this moment, or was restarted: try again",
        false => "set the same MC_MTU at both ends, and see dmesg at both",
    }
}

fn down(end: &ProbedDevice) -> Why {
    Why {
        what: "the port of this host went down".to_owned(),
        next: format!(
            "see that the link of {} is up (ip link, cable, switch port); mcctl devices shows its state",
            end.device
        ),
    }
}

/// The peer says no.
fn refused(end: &ProbedDevice, tried: &ProbedPath, words: &str) -> Why {
    let why = |what: String, next: &str| Why { what, next: next.to_owned() };
    if words.contains("RTR") || words.contains("RTS") {
        let transition = if words.contains("to RTS") { "RTR to RTS" } else { "INIT to RTR" };
        let (gid, kinds) = (row(&tried.attempt.gid), kinds(&tried.attempt.gid, tried));
        return why(format!("{transition} fails at the peer, towards {gid} of this host: {kinds}"), PEERS_ADDRESS);
    }
    if words.contains("QP count") {
        let what = "the two ends have another number of queue pairs to a connection (MC_NUM_QP_PER_EP)";
        return why(what.to_owned(), "set the same MC_NUM_QP_PER_EP at both ends (Mooncake's default is 2)");
    }
    if words.contains("GID") || words.contains("Peer nic not found") {
        let what = format!("the peer cannot use the address of {} {}", end.device, row(&tried.attempt.gid));
        return why(
            what,
            "a peer before release 0.3.11 asks this host for it: open the handshake ports 15000-17000 of this host, too",
        );
    }
    if words.contains("nic path") || words.contains("context not found") {
        let what = "the peer does not know itself by the name or the device that its segment announces";
        return why(
            what.to_owned(),
            "its record is one of an earlier life, or the device is no longer in use there: look into its log, or restart it",
        );
    }
    why("the peer refuses the connection".to_owned(), "look into the peer's log")
}

/// How the two addresses stand to each other.
fn kinds(gid: &Gid, tried: &ProbedPath) -> String {
    let (ours, theirs) = (Family::of(&gid.gid), Family::of(&tried.their_gid));
    match ours == theirs {
        true => format!("the peer's row, the way between two networks, or the MTU: both are {}", ours.name()),
        false => format!("the GID index: that is {}, and the peer's is {}", ours.name(), theirs.name()),
    }
}

fn rtr(end: &ProbedDevice, tried: &ProbedPath, errno: i32) -> Why {
    let (gid, theirs) = (&tried.attempt.gid, address(&tried.their_gid));
    let (name, ours) = (Errno::from_raw(errno), row(gid));
    let asked = end.asked.map(|variable| format!(" ({variable} asks for it)")).unwrap_or_default();
    let netdev = gid.netdev.as_deref().unwrap_or("the interface");
    let families = (Family::of(&gid.gid), Family::of(&tried.their_gid));
    if is_roce(end) && families.0 != families.1 {
        return Why {
            what: format!(
                "INIT to RTR fails ({name:?}): the GID index: {ours}{asked} is {}, and the peer's {theirs} is {}",
                families.0.name(),
                families.1.name()
            ),
            next: "choose a row of the peer's kind with MC_GID_INDEX (mcctl devices lists them), at both ends"
                .to_owned(),
        };
    }
    if is(errno, &[Errno::ENODATA, Errno::ENOENT]) {
        return Why {
            what: format!("INIT to RTR fails ({name:?}): the GID index: row {}{asked} is empty by now", gid.index),
            next: "the address was taken from the interface: give it back, or choose another row with MC_GID_INDEX"
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
        return Why {
            what: format!("INIT to RTR fails ({name:?}): the peer's GID: nothing leads from {ours} to {theirs}"),
            next: format!(
                "see that they are in one network or routed: ip route get {theirs} and ping -I {netdev} {theirs}"
            ),
        };
    }
    let mtu = match end.mtu > end.active_mtu {
        true => format!("the MTU: {} is more than the port's {}", end.mtu, end.active_mtu),
        false => format!(
            "one of GID index {}, path MTU {} (the port's is {}), the peer's GID {theirs}",
            gid.index, end.mtu, end.active_mtu
        ),
    };
    Why {
        what: format!("INIT to RTR fails ({name:?}): {mtu}"),
        next: format!(
            "see whether this host reaches the peer from there (ping -I {netdev} {theirs}), set MC_GID_INDEX or MC_MTU, and see dmesg"
        ),
    }
}

/// Both ends are connected, and no packet comes back.
fn lost(end: &ProbedDevice, tried: &ProbedPath, is_down: bool) -> Why {
    if is_down {
        return down(end);
    }
    let gid = &tried.attempt.gid;
    let (ours, theirs) = (row(gid), address(&tried.their_gid));
    let families = (Family::of(&gid.gid), Family::of(&tried.their_gid));
    let what = |detail: String| format!("both ends are at RTS, and no packet comes back: {detail}");
    if !is_roce(end) {
        return Why {
            what: what(format!("LID {} and {theirs} may be in different partitions or subnets", end.lid)),
            next: "ibping or ibtracert between the two; see the subnet manager's log, and that MC_PKEY_INDEX means one partition at both"
                .to_owned(),
        };
    }
    if gid.kind == GidKind::RoceV1 {
        return Why {
            what: what(format!(
                "the GID index: {ours} is RoCE v1, which reaches only a v1 row in the same Ethernet segment"
            )),
            next: "choose a RoCE v2 row with MC_GID_INDEX (mcctl devices lists them), at both ends".to_owned(),
        };
    }
    if families.0 != families.1 {
        return Why {
            what: what(format!(
                "the GID index: {ours} is {}, and the peer's {theirs} is {}",
                families.0.name(),
                families.1.name()
            )),
            next: "choose a row of the peer's kind with MC_GID_INDEX (mcctl devices lists them), at both ends"
                .to_owned(),
        };
    }
    let netdev = gid.netdev.as_deref().map(|name| format!("-I {name} ")).unwrap_or_default();
    Why {
        what: what(format!(
            "a firewall, a missing route, the other RoCE version at the peer, or its link, between {ours} and {theirs}"
        )),
        next: format!(
            "let UDP port 4791 pass at both hosts and between them, ping {netdev}{theirs}, and see with mcctl devices there that its row is RoCE v2"
        ),
    }
}

/// Small requests come through and a read of several packets does not.
pub fn packets(end: &ProbedDevice, bytes: u32, failure: &ProbeFailure) -> Why {
    match failure.cause {
        ProbeFailureCause::Completion(status) if status.is_remote_access() => Why {
            what: "the peer's memory cannot be read under the key that it announces".to_owned(),
            next: mismatch(status).to_owned(),
        },
        _ => Why {
            what: format!(
                "a write of no bytes comes through and a read of {bytes} does not: the MTU: packets of {} are too large for the way, or the peer \
                 sends others",
                end.mtu
            ),
            next: format!(
                "let every switch and interface pass frames of {} bytes and more, or set MC_MTU=1024 at both ends",
                end.mtu + OVERHEAD
            ),
        },
    }
}

/// Bytes of Ethernet, IP, UDP and InfiniBand headers around the bytes of a packet, rounded up.
const OVERHEAD: u32 = 104;

/// What was measured on a way that works.
pub fn figures(attempt: &PathProbe) -> Option<String> {
    let figures = attempt.result.as_ref().ok()?;
    let middle = figures.writes.get(figures.writes.len() / 2)?;
    let read = match figures.read.as_ref().map(|read| (read.bytes, &read.result)) {
        Some((bytes, Ok(time))) => format!(", a read of {bytes} bytes {}", time_text(*time)),
        Some((bytes, Err(_))) => format!(", a read of {bytes} bytes fails"),
        None => String::new(),
    };
    Some(format!("{} there and back{read}", time_text(*middle)))
}

/// A time as people read it: `12.3 us`, `1.2 ms`.
fn time_text(time: Duration) -> String {
    match time.as_secs_f64() {
        s if s < 1e-3 => format!("{:.1} us", s * 1e6),
        s => format!("{:.1} ms", s * 1e3),
    }
}

fn is_roce(end: &ProbedDevice) -> bool {
    end.layer != LinkLayer::InfiniBand
}

fn is(errno: i32, any: &[Errno]) -> bool {
    any.contains(&Errno::from_raw(errno))
}
