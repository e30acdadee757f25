//! The results of probing the paths between our devices and those of a peer.

use std::net::Ipv6Addr;
use std::time::Duration;

use crate::device_fault::DeviceStep;
use crate::topology::gid::Gid;
use mcctl_sys::verbs::{CompletionStatus, LinkLayer, PortState};

/// The result of probing every path to a peer.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PathProbes {
    /// Our devices in use.
    pub ends: Vec<ProbedDevice>,
    /// Our devices that cannot be used.
    pub unused: Vec<UnusedDevice>,
    /// One entry for each combination of one of our devices and one of the peer's.
    pub paths: Vec<ProbedPath>,
}

/// A device that is not used, and the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnusedDevice {
    pub device: String,
    /// The reason, including the device's name.
    pub why: String,
}

/// One of our devices, with the port in use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProbedDevice {
    pub device: String,
    /// Port number. The first port is 1.
    pub port: u8,
    pub layer: LinkLayer,
    /// The port's active MTU, in bytes.
    pub active_mtu: u32,
    /// The path MTU requested for connections, in bytes.
    pub mtu: u32,
    /// Local identifier (LID), 0 on Ethernet.
    pub lid: u16,
    /// The GID in use.
    pub gid: Gid,
    /// The variable that selects that GID, if one is set.
    pub asked: Option<&'static str>,
}

/// A path and its probe results.
#[derive(Clone, Debug, PartialEq)]
pub struct ProbedPath {
    /// Index of our device in [`PathProbes::ends`].
    pub end: usize,
    /// Name of the peer's device.
    pub remote: String,
    pub their_gid: Ipv6Addr,
    /// The probe that used our current GID.
    pub attempt: PathProbe,
    /// Probes with other GIDs, run only for a device's first failure that the GID may have caused.
    /// Empty otherwise.
    pub others: Vec<PathProbe>,
}

/// One probe of a path.
#[derive(Clone, Debug, PartialEq)]
pub struct PathProbe {
    /// Our GID that the probe used.
    pub gid: Gid,
    /// Our port's state after the probe.
    pub port_state: Option<PortState>,
    pub result: Result<ProbeTimings, PathProbeFailure>,
}

impl PathProbe {
    /// Whether the path can transfer bytes in both directions.
    pub fn works(&self) -> bool {
        self.result.as_ref().is_ok_and(|counters| counters.read.as_ref().is_none_or(|read| read.result.is_ok()))
    }
}

/// Measurements of a working path.
#[derive(Clone, Debug, PartialEq)]
pub struct ProbeTimings {
    /// Round-trip times of zero-byte writes, sorted.
    pub writes: Vec<Duration>,
    /// The read, or `None` if the peer exposes no readable memory.
    pub read: Option<ProbeRead>,
}

/// A read of the peer's memory.
#[derive(Clone, Debug, PartialEq)]
pub struct ProbeRead {
    pub bytes: u32,
    pub result: Result<Duration, PathProbeFailure>,
}

/// Why a probe failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathProbeFailure {
    pub step: DeviceStep,
    pub cause: ProbeFailureCause,
    /// The message from the verbs call, the completion, or the peer.
    pub message: String,
}

/// The cause of a probe failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProbeFailureCause {
    /// The verb `call` failed with this error number.
    Verb { call: &'static str, errno: i32 },
    /// A request ended with this status.
    Completion(CompletionStatus),
    /// A request did not complete within this time.
    Silence(Duration),
    /// The peer's handshake port refused the connection request.
    Refused,
    /// The peer's handshake port did not respond.
    Unreachable,
    /// The peer's handshake port responds, but the peer does not use this transport.
    OtherProtocol,
    /// The peer's reply is invalid.
    Answer,
}
