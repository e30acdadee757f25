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

    #[test]
    fn a_status_tells_whose_it_is() {
        let of = |status| Blame::of(Status(status));
        assert_eq!((of(4), of(10), of(12), of(9)), (Blame::Device, Blame::Refusal, Blame::Peer, Blame::Peer));
    }

    #[test]
    fn a_fault_names_device_port_address_peer_and_step() {
        let fault = RdmaFault {
            device: "rxe0".into(),
            port: 1,
            gid: "1 ::ffff:192.0.2.1".into(),
            peer: "192.0.2.2:15000@rxe1".into(),
            step: RdmaStep::Rtr,
            problem: "Invalid argument (errno 22)".into(),
            blame: Blame::Device,
            remedy: None,
        };
        let text = "rdma rxe0 port 1 (GID 1 ::ffff:192.0.2.1) to 192.0.2.2:15000@rxe1: Invalid argument (errno 22) while connecting \
                    queue pairs (INIT to RTR)";
        assert_eq!(fault.to_string(), text);
        let bare = RdmaFault { port: 0, gid: String::new(), peer: String::new(), step: RdmaStep::Register, ..fault };
        assert_eq!(bare.to_string(), "rdma rxe0: Invalid argument (errno 22) while registering memory");
    }
}
