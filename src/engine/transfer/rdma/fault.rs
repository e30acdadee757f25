//! What failed, where, towards whom, at which step.

use std::fmt;

use crate::engine::sys::verbs::Status;

/// What was being done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RdmaStep {
    /// Opening the device, its port and its address.
    Open,
    /// Registering memory with it.
    Register,
    /// Finding a way to the peer.
    Route,
    /// Asking the peer for its queue pairs.
    Dial,
    /// Creating queue pairs, and RESET to INIT.
    Init,
    /// INIT to RTR: where the peer's address and numbers are used for the first time.
    Rtr,
    /// RTR to RTS.
    Rts,
    /// Waiting for each other to be ready.
    Ready,
    /// Handing work requests to the device.
    Post,
    /// Moving the bytes.
    Move,
}

impl fmt::Display for RdmaStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            RdmaStep::Open => "opening the device",
            RdmaStep::Register => "registering memory",
            RdmaStep::Route => "finding a way to the peer",
            RdmaStep::Dial => "asking the peer for its queue pairs",
            RdmaStep::Init => "setting queue pairs up (INIT)",
            RdmaStep::Rtr => "connecting queue pairs (INIT to RTR)",
            RdmaStep::Rts => "connecting queue pairs (RTR to RTS)",
            RdmaStep::Ready => "waiting for the peer to be ready",
            RdmaStep::Post => "posting work requests",
            RdmaStep::Move => "moving the bytes",
        })
    }
}

/// Whose it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blame {
    /// Our device, or what it was given.
    Device,
    /// The peer, or the way to it: nothing answers, or what answered broke off.
    Peer,
    /// The peer's, on purpose: it answered, and the answer is no.
    Refusal,
}

impl Blame {
    /// Whose a work completion is that did not end well.
    pub fn of(status: Status) -> Blame {
        match status {
            status if status.is_local() => Blame::Device,
            status if status.is_remote_access() => Blame::Refusal,
            // Also what only says that this connection is of no more use, or nothing that is known here: another one may be.
            _ => Blame::Peer,
        }
    }
}

/// What failed, where, towards whom, at which step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RdmaFault {
    /// Our device.
    pub device: String,
    /// Its port; 0 where that does not matter.
    pub port: u8,
    /// Our address there, with its row of the table, such as `1 ::ffff:192.0.2.1`; empty where that does not matter.
    pub gid: String,
    /// The peer's end (`server@device`), or its segment; empty where there is none.
    pub peer: String,
    /// What was being done.
    pub step: RdmaStep,
    /// What went wrong, in words: what verbs, the completion or the peer say.
    pub problem: String,
    /// Whose it is.
    pub blame: Blame,
    /// What to do about it, where that is known here.
    pub remedy: Option<&'static str>,
}

impl RdmaFault {
    /// May it help to send the same again, where nothing has changed at the peer? `ways` is how many there are to it.
    pub fn may_pass(&self, ways: usize) -> bool {
        match (self.blame, self.step) {
            // The same keys would be refused again.
            (Blame::Refusal, RdmaStep::Move) => false,
            // Its handshake port is one for all its devices.
            (Blame::Peer, RdmaStep::Dial) => false,
            // What a queue pair came to grief with may go well on a new one, whoever is to blame.
            (Blame::Peer, _) | (Blame::Device, RdmaStep::Move) => true,
            (Blame::Refusal | Blame::Device, _) => ways > 1,
        }
    }
}

impl fmt::Display for RdmaFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("rdma")?;
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

    fn fault(step: RdmaStep, blame: Blame) -> RdmaFault {
        let (device, gid, peer) = ("rxe0".into(), "1 ::ffff:192.0.2.1".into(), "192.0.2.2:15000@rxe1".into());
        RdmaFault {
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
    fn a_completion_is_sent_again_on_a_new_connection_unless_the_key_is_refused() {
        let ours = [1, 2, 4, 6, 8];
        for status in (1..30).map(Status).filter(|status| !status.is_flush()) {
            let blame = Blame::of(status);
            let expected = match status.0 {
                10 => Blame::Refusal,
                number if ours.contains(&number) => Blame::Device,
                _ => Blame::Peer,
            };
            assert_eq!(blame, expected, "{status}");
            assert_eq!(fault(RdmaStep::Move, blame).may_pass(1), status.0 != 10, "{status}");
        }
    }

    #[test]
    fn what_is_not_a_matter_of_the_connection_is_tried_on_other_ways_only() {
        for step in [RdmaStep::Register, RdmaStep::Init, RdmaStep::Rtr, RdmaStep::Post] {
            let fault = fault(step, Blame::Device);
            assert!(!fault.may_pass(1) && fault.may_pass(2), "{step}");
        }
        let refused = fault(RdmaStep::Dial, Blame::Refusal);
        assert!(!refused.may_pass(1) && refused.may_pass(2));
        assert!(!fault(RdmaStep::Dial, Blame::Peer).may_pass(2));
        assert!(fault(RdmaStep::Ready, Blame::Peer).may_pass(1));
    }

    #[test]
    fn a_status_tells_whose_it_is() {
        let of = |status| Blame::of(Status(status));
        assert_eq!((of(4), of(10), of(12), of(9)), (Blame::Device, Blame::Refusal, Blame::Peer, Blame::Peer));
    }

    #[test]
    fn a_fault_names_device_port_address_peer_and_step() {
        let fault = fault(RdmaStep::Rtr, Blame::Device);
        let text = "rdma rxe0 port 1 (GID 1 ::ffff:192.0.2.1) to 192.0.2.2:15000@rxe1: Invalid argument (errno 22) while connecting \
                    queue pairs (INIT to RTR)";
        assert_eq!(fault.to_string(), text);
        let bare = RdmaFault { port: 0, gid: String::new(), peer: String::new(), step: RdmaStep::Register, ..fault };
        assert_eq!(bare.to_string(), "rdma rxe0: Invalid argument (errno 22) while registering memory");
    }
}
