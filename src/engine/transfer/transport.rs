//! What a transport is: something that registers memory, describes itself in the segment document, and carries batches of
//! one-sided operations to a peer.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use crate::engine::base::Mono;
use crate::engine::sys::{Memory, Slice};
use crate::engine::transfer::TransferError;
use crate::engine::transfer::counters::{RailFigures, TargetFigures};
use crate::engine::transfer::rdma::trial::Trials;
use crate::engine::transfer::region::Access;
use crate::engine::wire::json::{Buffer, Connection, SegmentDescriptor};

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

    /// Make `memory` usable by this transport; gives what the segment document says of it. May take long (pages are pinned), and is
    /// called where that does no harm. The engine holds on to the memory until it calls [`deregister`](Transport::deregister).
    ///
    /// # Errors
    /// The device refuses.
    fn register(&self, memory: &Arc<Memory>, access: Access) -> Result<Keys, TransferError>;

    /// Undo [`register`](Transport::register).
    fn deregister(&self, memory: &Arc<Memory>);

    /// Fill in what this transport has to say about itself. The buffers are there; one with devices leaves out those that cannot be
    /// used, and their keys.
    fn describe(&self, document: &mut SegmentDescriptor);

    /// The peer that `descriptor` describes. Opens nothing yet. A transport that connects by way of the handshake port does so
    /// through `calls`, which the peer may keep; the transport itself may not, since they lead back to it.
    ///
    /// # Errors
    /// The descriptor is not enough to reach it.
    fn peer(&self, descriptor: &SegmentDescriptor, calls: &Arc<dyn Calls>) -> Result<Arc<dyn Peer>, TransferError>;

    /// Answer a connection request that came to our handshake port. May block, within a bound of its own; meanwhile the port answers
    /// others, the requester among them: an engine before 0.3.11 has to be asked for its addresses while it waits. The answer of a
    /// transport that connects in other ways is empty.
    fn accept(&self, _request: Connection, _calls: &dyn Calls) -> Connection {
        Connection::default()
    }

    /// Have `tell` called, from any thread, whenever [`describe`](Transport::describe) would say something else than before by itself:
    /// a device is gone, or has another address. A transport that never changes does not.
    fn on_change(&self, _tell: Box<dyn Fn() + Send + Sync>) {}

    /// What peers did to our memory so far. Zeros for a transport whose hardware does not tell.
    fn figures(&self) -> TargetFigures;

    /// The devices that it uses, if it uses any.
    fn rails(&self) -> Vec<RailFigures> {
        Vec::new()
    }

    /// Try every way to the segment of `descriptor` by itself: `limit` for each answer of the peer; those that are left when `stop` is
    /// set are not tried. Blocks. None is tried where the transport does not choose between ways.
    ///
    /// # Errors
    /// The descriptor is not enough to reach it.
    fn try_ways(
        &self,
        _descriptor: &SegmentDescriptor,
        _calls: &dyn Calls,
        _limit: Duration,
        _stop: &AtomicBool,
    ) -> Result<Trials, TransferError> {
        Ok(Trials::default())
    }

    /// Stop serving peers and close what is open.
    fn shutdown(&self);
}

/// What a transport asks of others' handshake ports and of the metadata service. Both block, no longer than `limit`; they are for
/// threads that may, not for a runtime's own.
pub trait Calls: Send + Sync {
    /// Send a connection request (or a ready ACK) to the engine of `segment`; its reply, which may be a refusal.
    ///
    /// # Errors
    /// It cannot be found or reached, or its answer cannot be read.
    fn connect(&self, segment: &str, request: &Connection, limit: Duration) -> Result<Connection, TransferError>;

    /// The descriptor of `segment`, asked for anew.
    ///
    /// # Errors
    /// It is not known, or its owner cannot be reached.
    fn find(&self, segment: &str, limit: Duration) -> Result<SegmentDescriptor, TransferError>;
}

/// What the segment document says of a registered memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Keys {
    /// Where the memory is (`cpu:0`, `*`), for peers that choose a device by it; `None` = the segment's name, as TCP has it.
    pub location: Option<String>,
    /// The parts that it is registered in, in order and without gaps: more than one where it is larger than a device can register
    /// at once. None at all = one part without keys.
    pub pieces: Vec<PieceKeys>,
}

/// A part of a registered memory, and its keys, one per device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PieceKeys {
    /// Where it begins in the memory, bytes.
    pub offset: usize,
    /// Its length, bytes.
    pub len: usize,
    /// For peers.
    pub remote: Vec<u32>,
    /// For this process.
    pub local: Vec<u32>,
}

impl Keys {
    /// The buffers of the document of `segment` that stand for `memory`.
    pub fn buffers(&self, segment: &str, memory: &Memory) -> Vec<Buffer> {
        let name = self.location.as_deref().unwrap_or(segment);
        let whole = [PieceKeys { len: memory.len(), ..PieceKeys::default() }];
        let pieces = if self.pieces.is_empty() { &whole[..] } else { &self.pieces };
        let buffer = |piece: &PieceKeys| Buffer {
            name: name.to_owned(),
            address: memory.address() + piece.offset as u64,
            length: piece.len as u64,
            rkey: piece.remote.clone(),
            lkey: piece.local.clone(),
        };
        pieces.iter().map(buffer).collect()
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

    #[test]
    fn memory_without_keys_is_one_buffer_of_the_segments_name_and_a_large_one_several() {
        let memory = Memory::from_vec(vec![0; 100]);
        let plain = Keys::default().buffers("me:1", &memory);
        let whole = Buffer { name: "me:1".into(), address: memory.address(), length: 100, ..Buffer::default() };
        assert_eq!(plain, [whole]);
        let piece = |offset, len, key| PieceKeys { offset, len, remote: vec![key], local: vec![key + 1] };
        let keys = Keys { location: Some("cpu:0".into()), pieces: vec![piece(0, 64, 7), piece(64, 36, 9)] };
        let found = keys.buffers("me:1", &memory);
        let told: Vec<_> =
            found.iter().map(|b| (b.address - memory.address(), b.length, b.rkey[0], b.lkey[0])).collect();
        assert_eq!(told, [(0, 64, 7, 8), (64, 36, 9, 10)]);
        assert!(found.iter().all(|b| b.name == "cpu:0"));
    }
}
