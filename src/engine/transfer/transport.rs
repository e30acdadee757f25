//! What a transport is: something that registers memory, describes itself in the segment document, and carries batches of
//! one-sided operations to a peer.

use std::sync::Arc;
use std::time::Duration;

use crate::engine::base::Mono;
use crate::engine::sys::{Memory, Slice};
use crate::engine::transfer::TransferError;
use crate::engine::transfer::counters::TargetFigures;
use crate::engine::wire::json::{Buffer, SegmentDescriptor};

/// An address in a peer's process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RemoteAddr(pub u64);

/// Which way the bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpKind {
    /// From the peer's memory to ours.
    Read,
    /// From our memory to the peer's.
    Write,
}

/// A one-sided operation: as many bytes as `local` is long.
#[derive(Clone, Debug)]
pub struct Op {
    /// Which way.
    pub kind: OpKind,
    /// Our bytes. The slice keeps them alive until the operation is over.
    pub local: Slice,
    /// Where the peer's bytes begin.
    pub remote: RemoteAddr,
}

/// When a batch's time is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deadline {
    /// The moment.
    pub until: Mono,
    /// The time it had in all, for errors.
    pub allowed: Duration,
}

impl Deadline {
    /// `allowed` from `now`.
    pub fn after(now: Mono, allowed: Duration) -> Deadline {
        Deadline { until: now + allowed, allowed }
    }

    /// What is left at `now`.
    pub fn left(&self, now: Mono) -> Duration {
        self.until.since(now)
    }
}

/// A transport: how one protocol registers memory, describes itself, and reaches peers.
pub trait Transport: Send + Sync {
    /// Upstream's word for the protocol, as in a descriptor's `protocol`.
    fn protocol(&self) -> &'static str;

    /// Make `memory` usable by this transport; gives the keys that go into the segment document (none for TCP). The engine holds
    /// on to the memory until it calls [`deregister`](Transport::deregister).
    ///
    /// # Errors
    /// The device refuses.
    fn register(&self, memory: &Arc<Memory>) -> Result<Keys, TransferError>;

    /// Undo [`register`](Transport::register).
    fn deregister(&self, memory: &Arc<Memory>);

    /// Fill in what this transport has to say about itself.
    fn describe(&self, document: &mut SegmentDescriptor);

    /// The peer that `descriptor` describes. Opens nothing yet.
    ///
    /// # Errors
    /// The descriptor is not enough to reach it.
    fn peer(&self, descriptor: &SegmentDescriptor) -> Result<Arc<dyn Peer>, TransferError>;

    /// What peers did to our memory so far. Zeros for a transport whose hardware does not tell.
    fn figures(&self) -> TargetFigures;

    /// Stop serving peers and close what is open.
    fn shutdown(&self);
}

/// Keys of a registered memory, one per device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Keys {
    /// For peers.
    pub remote: Vec<u32>,
    /// For this process.
    pub local: Vec<u32>,
}

impl Keys {
    /// The buffer of a segment document that stands for `memory`.
    pub fn buffer(&self, name: &str, memory: &Memory) -> Buffer {
        Buffer {
            name: name.to_owned(),
            address: memory.address(),
            length: memory.len() as u64,
            rkey: self.remote.clone(),
            lkey: self.local.clone(),
        }
    }
}

/// A process that can be read and written.
pub trait Peer: Send + Sync {
    /// Begin `ops`; they end when the ticket does. A transport whose callers do the work (TCP) begins nothing before the ticket
    /// is waited for; one with hardware to do it (RDMA) posts them here.
    fn submit(self: Arc<Self>, ops: Vec<Op>, deadline: Deadline) -> Box<dyn Ticket>;

    /// Is this still how to reach what `descriptor` describes?
    fn reaches(&self, descriptor: &SegmentDescriptor) -> bool;

    /// Does the peer answer on the data plane? Moves at most one byte.
    ///
    /// # Errors
    /// No, and why.
    fn probe(&self, descriptor: &SegmentDescriptor, deadline: Deadline) -> Result<(), TransferError>;

    /// Forget connections that are not in use.
    fn forget(&self);
}

/// Operations under way.
pub trait Ticket: Send {
    /// Block until every operation is over, well or badly; no byte of theirs moves after this. In the order of submission.
    fn wait(self: Box<Self>) -> Vec<Done>;
}

/// An operation that is over.
#[derive(Debug)]
pub struct Done {
    /// The operation.
    pub op: Op,
    /// How it ended.
    pub result: Result<(), Fault>,
}

/// Why an operation did not succeed, and what that says about the peer.
#[derive(Clone, Debug)]
pub struct Fault {
    /// The error.
    pub error: TransferError,
    /// What to make of it.
    pub meaning: Meaning,
}

impl Fault {
    /// What to report when a second try ended with this fault, and an earlier one with `first`: that bytes may still land must not
    /// be forgotten over it. (Where the peer refuses them they do not.)
    pub fn after(self, first: Option<Fault>) -> Fault {
        let told = self.meaning == Meaning::Refused || self.error.may_still_land();
        first.filter(|first| !told && first.error.may_still_land()).unwrap_or(self)
    }
}

/// What a fault says about the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Meaning {
    /// The connection was an old one and the peer had closed it; nothing came back for this operation. Another connection may
    /// well work.
    Stale,
    /// Nothing answers there, or what answered broke off. The peer may be gone, or elsewhere.
    Gone,
    /// Nothing moved for too long. Asking again would take as long.
    Hung,
    /// The batch's time was over before its bytes had moved, though they were moving.
    Late,
    /// The peer answered, and the answer is no.
    Refused,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::transfer::Step;
    use std::io;

    #[test]
    fn that_bytes_may_still_land_is_told_whatever_the_second_try_says() {
        let lost = |step| Fault {
            error: TransferError::Lost {
                peer: "a:1".into(),
                step,
                source: Arc::new(io::ErrorKind::ConnectionReset.into()),
            },
            meaning: Meaning::Gone,
        };
        let step = |fault: &Fault| match fault.error {
            TransferError::Lost { step, .. } => step,
            _ => unreachable!("made above"),
        };
        assert_eq!(step(&lost(Step::Connect).after(Some(lost(Step::Status)))), Step::Status);
        assert_eq!(step(&lost(Step::Body).after(Some(lost(Step::Status)))), Step::Body);
        assert_eq!(step(&lost(Step::Connect).after(Some(lost(Step::Resolve)))), Step::Connect);
        assert_eq!(step(&lost(Step::Connect).after(None)), Step::Connect);
        let refused = Fault { meaning: Meaning::Refused, ..lost(Step::Connect) };
        assert_eq!(refused.after(Some(lost(Step::Status))).meaning, Meaning::Refused);
    }
}
