//! Faults of network devices: what failed, on which device, with which peer, and at which step.

use std::fmt;

use mcctl_sys::verbs::CompletionStatus;

/// The step that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceStep {
    /// Opening the device and reading its port and address.
    Open,
    /// Registering memory with the device.
    Register,
    /// Choosing a path to the peer.
    Route,
    /// Exchanging queue pair numbers with the peer.
    Dial,
    /// Creating queue pairs and moving them from RESET to INIT.
    Init,
    /// Moving a queue pair from INIT to RTR. The first step that uses the peer's address and QP
    /// number.
    Rtr,
    /// Moving a queue pair from RTR to RTS.
    Rts,
    /// Waiting for the peer to be ready.
    Ready,
    Post,
    /// Transferring the bytes, after the request was posted.
    Move,
}

impl fmt::Display for DeviceStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            DeviceStep::Open => "opening the device",
            DeviceStep::Register => "registering memory",
            DeviceStep::Route => "choosing a path to the peer",
            DeviceStep::Dial => "exchanging queue pair numbers with the peer",
            DeviceStep::Init => "initializing queue pairs (RESET to INIT)",
            DeviceStep::Rtr => "connecting queue pairs (INIT to RTR)",
            DeviceStep::Rts => "connecting queue pairs (RTR to RTS)",
            DeviceStep::Ready => "waiting for the peer to be ready",
            DeviceStep::Post => "posting work requests",
            DeviceStep::Move => "transferring the bytes",
        })
    }
}

/// Which side caused a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blame {
    /// Our device, or the arguments passed to it.
    Device,
    /// The peer or the path to it: the peer does not respond, or its response was cut off.
    Peer,
    /// The peer deliberately refused the request.
    Refusal,
}

impl Blame {
    /// Returns the side that caused a failed work completion.
    pub fn of(status: CompletionStatus) -> Blame {
        match status {
            status if status.is_local() => Blame::Device,
            status if status.is_remote_access() => Blame::Refusal,
            // This includes unknown statuses and those that only report a broken connection:
            // another connection may work.
            _ => Blame::Peer,
        }
    }
}

/// A fault: what failed, on which device, with which peer, and at which step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceFault {
    /// Upstream's name for the transport's protocol.
    pub protocol: &'static str,
    pub device: String,
    /// Port number, or 0 if no port is involved.
    pub port: u8,
    /// Our GID index and GID, such as `1 ::ffff:192.0.2.1`; empty if no GID is involved.
    pub gid: String,
    /// The path of the peer's endpoint (`server@device`), or the peer's segment; empty if no peer
    /// is involved.
    pub peer: String,
    pub step: DeviceStep,
    /// The message from the verbs call, the completion, or the peer.
    pub problem: String,
    pub blame: Blame,
    /// How to fix the problem, if known.
    pub remedy: Option<&'static str>,
}

impl DeviceFault {
    /// Whether a retry may succeed if nothing has changed at the peer. `paths` is the number of
    /// paths to the peer.
    pub fn may_pass(&self, paths: usize) -> bool {
        match (self.blame, self.step) {
            // The peer would reject the same keys again.
            (Blame::Refusal, DeviceStep::Move) => false,
            // A peer has one handshake port for all of its devices.
            (Blame::Peer, DeviceStep::Dial) => false,
            // A request that failed on one queue pair may succeed on a new one, whatever the cause.
            (Blame::Peer, _) | (Blame::Device, DeviceStep::Move) => true,
            (Blame::Refusal | Blame::Device, _) => paths > 1,
        }
    }
}

impl fmt::Display for DeviceFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.protocol)?;
        if !self.device.is_empty() {
            write!(f, " {}", self.device)?;
        }
        if self.port != 0 {
            write!(f, " port {}", self.port)?;
        }
        if !self.gid.is_empty() {
            write!(f, " (GID {})", self.gid)?;
        }
        if !self.peer.is_empty() {
            write!(f, " to {}", self.peer)?;
        }
        write!(f, ": {} while {}", self.problem, self.step)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(step: DeviceStep, blame: Blame) -> DeviceFault {
        let device = "rxe0".into();
        let gid = "1 ::ffff:192.0.2.1".into();
        let peer = "192.0.2.2:15000@rxe1".into();
        DeviceFault {
            protocol: "rdma",
            device,
            port: 1,
            gid,
            peer,
            step,
            problem: "Invalid argument (errno 22)".into(),
            blame,
            remedy: None,
        }
    }

    #[test]
    fn failed_completions_are_retried_unless_the_key_is_refused() {
        let ours = [1, 2, 4, 6, 8];
        for status in (1..30).map(CompletionStatus).filter(|status| !status.is_flush()) {
            let blame = Blame::of(status);
            let expected = match status.0 {
                10 => Blame::Refusal,
                number if ours.contains(&number) => Blame::Device,
                _ => Blame::Peer,
            };
            assert_eq!(blame, expected, "{status}");
            assert_eq!(fault(DeviceStep::Move, blame).may_pass(1), status.0 != 10, "{status}");
        }
    }

    #[test]
    fn setup_faults_are_retried_only_on_other_paths() {
        for step in [DeviceStep::Register, DeviceStep::Init, DeviceStep::Rtr, DeviceStep::Post] {
            let fault = fault(step, Blame::Device);
            assert!(!fault.may_pass(1) && fault.may_pass(2), "{step}");
        }
        let refused = fault(DeviceStep::Dial, Blame::Refusal);
        assert!(!refused.may_pass(1) && refused.may_pass(2));
        assert!(!fault(DeviceStep::Dial, Blame::Peer).may_pass(2));
        assert!(fault(DeviceStep::Ready, Blame::Peer).may_pass(1));
    }

    #[test]
    fn a_status_determines_the_blame() {
        let of = |status| Blame::of(CompletionStatus(status));
        assert_eq!((of(4), of(10), of(12), of(9)), (Blame::Device, Blame::Refusal, Blame::Peer, Blame::Peer));
    }

    #[test]
    fn a_fault_names_device_port_address_peer_and_step() {
        let fault = fault(DeviceStep::Rtr, Blame::Device);
        let text = fault.to_string();
        for part in ["rxe0 port 1", "(GID 1 ::ffff:192.0.2.1)", "192.0.2.2:15000@rxe1", "errno 22", "INIT to RTR"] {
            assert!(text.contains(part), "{part}: {text}");
        }
        let bare =
            DeviceFault { port: 0, gid: String::new(), peer: String::new(), step: DeviceStep::Register, ..fault };
        let text = bare.to_string();
        assert!(text.starts_with("rdma rxe0: ") && !text.contains("port") && !text.contains("GID"), "{text}");
    }
}
