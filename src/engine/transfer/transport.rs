//! The transport interface. A transport registers memory, describes itself in the segment document, and runs batches of
//! one-sided operations on a peer.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use crate::engine::base::Mono;
use crate::engine::sys::{Memory, Slice};
use crate::engine::transfer::TransferError;
use crate::engine::transfer::counters::{RailCounters, TargetCounters};
use crate::engine::transfer::rdma::path_probe::PathProbes;
use crate::engine::transfer::region::Access;
use crate::engine::wire::json::{ConnectionMessage, RegionDescriptor, SegmentDescriptor};

/// A virtual address in a peer's process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RemoteAddr(pub u64);

/// The direction of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpKind {
    /// From the peer's memory to ours.
    Read,
    /// From our memory to the peer's.
    Write,
}

/// A one-sided operation on `local.len()` bytes.
#[derive(Clone, Debug)]
pub struct Op {
    pub kind: OpKind,
    /// The local bytes. The slice keeps the memory alive until the operation ends.
    pub local: Slice,
    /// Address of the first byte in the peer's memory.
    pub remote: RemoteAddr,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deadline {
    pub until: Mono,
    /// The total time allowed, for error messages.
    pub allowed: Duration,
}

impl Deadline {
    /// Returns the deadline that is `allowed` after `now`.
    pub fn after(now: Mono, allowed: Duration) -> Deadline {
        Deadline { until: now + allowed, allowed }
    }

    /// Returns the time left at `now`.
    pub fn left(&self, now: Mono) -> Duration {
        self.until.since(now)
    }
}

/// A protocol's implementation: registers memory, describes itself, and reaches peers.
pub trait DataTransport: Send + Sync {
    /// Upstream's name for the protocol, as in a descriptor's `protocol` field.
    fn protocol(&self) -> &'static str;

    /// Makes `memory` usable by this transport, and returns its entries for the segment document. Pinning pages can
    /// take a long time, so this is called on a thread that may block. The engine keeps the memory alive until it calls
    /// [`deregister`](DataTransport::deregister).
    ///
    /// # Errors
    /// Fails if a device cannot register the memory.
    fn register(&self, memory: &Arc<Memory>, access: Access) -> Result<RegionKeys, TransferError>;

    /// Deregisters memory that [`register`](DataTransport::register) registered.
    fn deregister(&self, memory: &Arc<Memory>);

    /// Fills in the transport's part of the segment document. The buffers are already filled in. A transport with
    /// devices omits unusable devices and their keys.
    fn describe(&self, document: &mut SegmentDescriptor);

    /// Returns the peer that `descriptor` describes. Does not open a connection yet. A transport that connects through
    /// the handshake port uses `control` to do so. The peer may keep a reference to `control`, but the transport may
    /// not, because `control` has a reference to the transport.
    ///
    /// # Errors
    /// Fails if the descriptor lacks information needed to reach the peer.
    fn peer(
        &self,
        descriptor: &SegmentDescriptor,
        control: &Arc<dyn ControlPlane>,
    ) -> Result<Arc<dyn DataPeer>, TransferError>;

    /// Handles a connection request that arrived at our handshake port, and returns the reply. May block, up to its own
    /// time limit. Meanwhile the port serves other requests, including those from the requester: if that engine is
    /// older than 0.3.11, its addresses must be fetched from it while it waits for this reply. A transport that does
    /// not connect this way returns an empty reply.
    fn accept(&self, _request: ConnectionMessage, _calls: &dyn ControlPlane) -> ConnectionMessage {
        ConnectionMessage::default()
    }

    /// Registers `callback`, which is called from any thread when the result of
    /// [`describe`](DataTransport::describe) changes on its own, for example because a device is lost or its address
    /// changes. A transport that never changes ignores the callback.
    fn on_change(&self, _callback: Box<dyn Fn() + Send + Sync>) {}

    /// Counters for peers' requests to our memory. All zero for a transport whose hardware does not count requests.
    fn counters(&self) -> TargetCounters;

    /// The devices in use, if the transport uses devices.
    fn rails(&self) -> Vec<RailCounters> {
        Vec::new()
    }

    /// Probes every path to the segment that `descriptor` describes. `limit` applies to each response from the peer.
    /// Setting `stop` skips the remaining paths. Blocks. The result is empty for a transport without path selection.
    ///
    /// # Errors
    /// Fails if the descriptor lacks information needed to reach the peer.
    fn probe_paths(
        &self,
        _descriptor: &SegmentDescriptor,
        _calls: &dyn ControlPlane,
        _limit: Duration,
        _stop: &AtomicBool,
    ) -> Result<PathProbes, TransferError> {
        Ok(PathProbes::default())
    }

    /// Stops serving peers and closes all connections.
    fn shutdown(&self);
}

/// A transport's access to peers' handshake ports and to the metadata service. Both methods block for at most `limit`,
/// and must not be called on one of the runtime's own threads.
pub trait ControlPlane: Send + Sync {
    /// Sends a connection request (or a ready ACK) to the engine that owns `segment` and returns its reply, which may
    /// be a refusal.
    ///
    /// # Errors
    /// Fails if the engine cannot be found or reached, or if its reply cannot be parsed.
    fn connect(
        &self,
        segment: &str,
        request: &ConnectionMessage,
        limit: Duration,
    ) -> Result<ConnectionMessage, TransferError>;

    /// Fetches the descriptor of `segment`.
    ///
    /// # Errors
    /// Fails if the segment is unknown or its owner cannot be reached.
    fn find(&self, segment: &str, limit: Duration) -> Result<SegmentDescriptor, TransferError>;
}

/// What the segment document announces about a registered region.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RegionKeys {
    /// Location of the memory (`cpu:0`, `*`), which peers use to choose a device. `None` means the segment's name, as
    /// with TCP.
    pub location: Option<String>,
    /// The pieces in which the region is registered, in order and without gaps. There is more than one if the region
    /// exceeds what a device can register at once. An empty list means one piece without keys.
    pub pieces: Vec<PieceKeys>,
}

/// A piece of a registered region with its memory keys, one per device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PieceKeys {
    /// Offset in the region, in bytes.
    pub offset: usize,
    pub len: usize,
    /// Keys for access by peers (`rkey`), one per device.
    pub remote: Vec<u32>,
    /// Keys for local access (`lkey`), one per device.
    pub local: Vec<u32>,
}

impl RegionKeys {
    /// Returns the entries for `memory` in the document of `segment`.
    pub fn buffers(&self, segment: &str, memory: &Memory) -> Vec<RegionDescriptor> {
        let name = self.location.as_deref().unwrap_or(segment);
        let whole = [PieceKeys { len: memory.len(), ..PieceKeys::default() }];
        let pieces = if self.pieces.is_empty() { &whole[..] } else { &self.pieces };
        let buffer = |piece: &PieceKeys| RegionDescriptor {
            name: name.to_owned(),
            address: memory.address() + piece.offset as u64,
            length: piece.len as u64,
            rkey: piece.remote.clone(),
            lkey: piece.local.clone(),
        };
        pieces.iter().map(buffer).collect()
    }
}

/// A process whose memory this engine can read and write.
pub trait DataPeer: Send + Sync {
    /// Submits `ops`. They have ended when [`PendingOps::wait`] returns. A transport whose callers do the work (TCP)
    /// does not start until `wait` is called. A hardware transport (RDMA) posts them here.
    fn submit(self: Arc<Self>, ops: Vec<Op>, deadline: Deadline) -> Box<dyn PendingOps>;

    /// Whether this peer still matches `descriptor`.
    fn reaches(&self, descriptor: &SegmentDescriptor) -> bool;

    /// Checks that the peer responds on the data plane. Transfers at most one byte.
    ///
    /// # Errors
    /// Fails if the peer does not respond correctly.
    fn probe(&self, descriptor: &SegmentDescriptor, deadline: Deadline) -> Result<(), TransferError>;

    /// Closes the idle connections to this peer.
    fn forget(&self);
}

/// Submitted operations, some of which may not have ended.
pub trait PendingOps: Send {
    /// Blocks until every operation has ended, then returns the results in submission order. No byte moves after that.
    fn wait(self: Box<Self>) -> Vec<OpCompletion>;
}

/// The result of one operation.
#[derive(Debug)]
pub struct OpCompletion {
    pub op: Op,
    pub result: Result<(), TransferFault>,
}

/// Why an operation failed, and what the failure indicates about the peer.
#[derive(Clone, Debug)]
pub struct TransferFault {
    pub error: TransferError,
    pub class: FaultClass,
}

impl TransferFault {
    /// Returns the fault to report if a retry after `first` ended with this one. The result must not hide that bytes
    /// from the first attempt may still arrive. (If the retry was rejected, they cannot.)
    pub fn after(self, first: Option<TransferFault>) -> TransferFault {
        let is_certain = self.class == FaultClass::Refused || self.error.may_still_land();
        first.filter(|first| !is_certain && first.error.may_still_land()).unwrap_or(self)
    }
}

/// What a fault indicates about the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultClass {
    /// The peer had closed this existing connection, and no response to this operation arrived. A new connection may
    /// work.
    Stale,
    /// The peer does not respond, or its response was cut off. It may be down or have moved.
    Gone,
    /// No byte moved for too long. A retry would take just as long.
    Hung,
    /// The batch's deadline passed while bytes were still moving.
    Late,
    /// The peer rejected the request.
    Refused,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::transfer::TransferStep;
    use std::io;

    #[test]
    fn a_retry_does_not_hide_that_bytes_may_still_land() {
        let lost = |step| TransferFault {
            error: TransferError::Lost {
                peer: "a:1".into(),
                step,
                source: Arc::new(io::ErrorKind::ConnectionReset.into()),
            },
            class: FaultClass::Gone,
        };
        let step = |fault: &TransferFault| match fault.error {
            TransferError::Lost { step, .. } => step,
            _ => unreachable!("made above"),
        };
        assert_eq!(step(&lost(TransferStep::Connect).after(Some(lost(TransferStep::Status)))), TransferStep::Status);
        assert_eq!(step(&lost(TransferStep::Body).after(Some(lost(TransferStep::Status)))), TransferStep::Body);
        assert_eq!(step(&lost(TransferStep::Connect).after(Some(lost(TransferStep::Resolve)))), TransferStep::Connect);
        assert_eq!(step(&lost(TransferStep::Connect).after(None)), TransferStep::Connect);
        let refused = TransferFault { class: FaultClass::Refused, ..lost(TransferStep::Connect) };
        assert_eq!(refused.after(Some(lost(TransferStep::Status))).class, FaultClass::Refused);
    }

    #[test]
    fn regions_without_keys_are_one_buffer_and_pieces_several() {
        let memory = Memory::from_vec(vec![0; 100]);
        let plain = RegionKeys::default().buffers("me:1", &memory);
        let whole = RegionDescriptor {
            name: "me:1".into(),
            address: memory.address(),
            length: 100,
            ..RegionDescriptor::default()
        };
        assert_eq!(plain, [whole]);
        let piece = |offset, len, key| PieceKeys { offset, len, remote: vec![key], local: vec![key + 1] };
        let keys = RegionKeys { location: Some("cpu:0".into()), pieces: vec![piece(0, 64, 7), piece(64, 36, 9)] };
        let found = keys.buffers("me:1", &memory);
        let described: Vec<_> =
            found.iter().map(|b| (b.address - memory.address(), b.length, b.rkey[0], b.lkey[0])).collect();
        assert_eq!(described, [(0, 64, 7, 8), (64, 36, 9, 10)]);
        assert!(found.iter().all(|b| b.name == "cpu:0"));
    }
}
