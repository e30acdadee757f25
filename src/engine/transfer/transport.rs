//! The transport interface. A transport registers memory, describes itself in the segment document,
//! and runs batches of one-sided operations on a peer.

use std::fmt;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, RwLock};
use std::time::Duration;

use crate::counters::{RailCounters, TargetCounters};
use crate::options::TransportOptions;
use crate::path_probe::PathProbes;
use crate::region::Regions;
use crate::types::{Access, BatchRules, Deadline, Op, RegionKeys};
use crate::variables::VariableReader;
use crate::{MonoClock, RandomSource, TransferError};
use mcctl_base::HostPort;
use mcctl_sys::Memory;
use mcctl_sys::env::AddressFilter;
use mcctl_wire::json::{ConnectionMessage, SegmentDescriptor};

/// A protocol's implementation: registers memory, describes itself, and reaches peers.
pub trait DataTransport: Send + Sync {
    /// Upstream's name for the protocol, as in a descriptor's `protocol` field.
    fn protocol(&self) -> &'static str;

    /// Makes `memory` usable by this transport, and returns its entries for the segment document.
    /// Pinning pages can take a long time, so this is called on a thread that may block. The engine
    /// keeps the memory alive until it calls [`deregister`](DataTransport::deregister).
    ///
    /// # Errors
    /// Fails if a device cannot register the memory.
    fn register(&self, memory: &Arc<Memory>, access: Access) -> Result<RegionKeys, TransferError>;

    /// Deregisters memory that [`register`](DataTransport::register) registered.
    fn deregister(&self, memory: &Arc<Memory>);

    /// Fills in the transport's part of the segment document. The buffers are already filled in. A
    /// transport with devices omits unusable devices and their keys.
    fn describe(&self, document: &mut SegmentDescriptor);

    /// Returns the peer that `descriptor` describes. Does not open a connection yet. A transport
    /// that connects through the handshake port uses `control` to do so. The peer may keep a
    /// reference to `control`, but the transport may not, because `control` has a reference to the
    /// transport.
    ///
    /// # Errors
    /// Fails if the descriptor lacks information needed to reach the peer.
    fn peer(
        &self,
        descriptor: &SegmentDescriptor,
        control: &Arc<dyn ControlPlane>,
    ) -> Result<Arc<dyn DataPeer>, TransferError>;

    /// Handles a connection request that arrived at our handshake port, and returns the reply. May
    /// block, up to its own time limit. Meanwhile the port serves other requests, including those
    /// from the requester: if that engine is older than 0.3.11, its addresses must be fetched from
    /// it while it waits for this reply. A transport that does not connect this way returns an
    /// empty reply.
    fn accept(&self, _request: ConnectionMessage, _calls: &dyn ControlPlane) -> ConnectionMessage {
        ConnectionMessage::default()
    }

    /// Registers `callback`, which is called from any thread when the result of
    /// [`describe`](DataTransport::describe) changes on its own, for example because a device is
    /// lost or its address changes. A transport that never changes ignores the callback.
    fn on_change(&self, _callback: Box<dyn Fn() + Send + Sync>) {}

    /// Ends the connections over which peers have accessed our memory so far. After that, no
    /// request that was sent over one of them accesses it. Connections that are opened afterward
    /// are served. Blocks for at most about `limit`. Returns the number of connections.
    ///
    /// # Errors
    /// [`TransferError::StillInUse`] if a request has not ended within `limit`.
    fn end_inbound(&self, limit: Duration) -> Result<usize, TransferError>;

    /// Counters for peers' requests to our memory. All zero for a transport whose hardware does not
    /// count requests.
    fn counters(&self) -> TargetCounters;

    /// The transport's devices. `None` for a transport without devices.
    fn devices(&self) -> Option<&dyn TransportDevices> {
        None
    }

    /// Stops serving peers and closes all connections.
    fn shutdown(&self);
}

/// How a transport starts. The table in [`transports`](crate::transports) names the types that
/// implement this.
pub trait StartTransport: DataTransport + Sized + 'static {
    /// Upstream's name for the protocol, as in a descriptor's `protocol` field and in `--protocol`.
    const PROTOCOL: &'static str;
    /// Settings read from the environment. `()` for a transport that has none.
    type Settings: Clone + fmt::Debug + Default + PartialEq + Eq;

    /// Reads the transport's variables. Invalid values are ignored with a warning.
    fn read_settings(_read: &mut VariableReader<'_>) -> Self::Settings {
        Self::Settings::default()
    }

    /// Starts the transport.
    ///
    /// # Errors
    /// [`TransferError::Unavailable`] if this host does not support the protocol. Then the engine
    /// falls back to TCP if [`TransportOptions::allow_tcp_fallback`] allows it.
    fn start(start: &TransportStart<'_>, settings: &Self::Settings) -> Result<Self, TransferError>;
}

/// What a transport is given when it starts.
pub struct TransportStart<'a> {
    /// The name of this engine's segment.
    pub segment: &'a str,
    /// The announced address of the handshake port.
    pub handshake: &'a HostPort,
    pub options: &'a TransportOptions,
    /// Range from which ports are chosen.
    pub ports: &'a RangeInclusive<u16>,
    /// The address that ports listen on; `None` if the announced host decides.
    pub listen_on: Option<IpAddr>,
    /// Which peers may connect to ports.
    pub filter: &'a AddressFilter,
    /// Timeout for connecting to a peer.
    pub connect_limit: Duration,
    pub regions: &'a Arc<RwLock<Regions>>,
    pub clock: &'a MonoClock,
    pub random: &'a RandomSource,
}

/// A transport's devices, and the paths from them to the devices of a peer.
pub trait TransportDevices {
    /// Returns the counters for each device in use.
    fn rails(&self) -> Vec<RailCounters>;

    /// Probes every path to the segment that `descriptor` describes. `limit` applies to each
    /// response from the peer. Setting `stop` skips the remaining paths. Blocks.
    ///
    /// # Errors
    /// Fails if the descriptor lacks information needed to reach the peer.
    fn probe_paths(
        &self,
        descriptor: &SegmentDescriptor,
        control: &dyn ControlPlane,
        limit: Duration,
        stop: &AtomicBool,
    ) -> Result<PathProbes, TransferError>;
}

/// A transport's access to peers' handshake ports and to the metadata service. Both methods block
/// for at most `limit`, and must not be called on one of the runtime's own threads.
pub trait ControlPlane: Send + Sync {
    /// Sends a connection request (or a ready ACK) to the engine that owns `segment` and returns
    /// its reply, which may be a refusal.
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

/// A process whose memory this engine can read and write.
pub trait DataPeer: Send + Sync {
    /// Submits `ops`. They have ended when [`PendingOps::wait`] returns. A transport whose callers
    /// do the work (TCP) does not start them until `wait` is called. A hardware transport (RDMA)
    /// posts them here.
    fn submit(self: Arc<Self>, ops: Vec<Op>, rules: BatchRules) -> Box<dyn PendingOps>;

    /// Whether this peer still matches `descriptor`.
    fn reaches(&self, descriptor: &SegmentDescriptor) -> bool;

    /// Checks that the peer responds on the data plane. Transfers at most one byte.
    ///
    /// # Errors
    /// Fails if the peer does not respond correctly.
    fn probe(&self, descriptor: &SegmentDescriptor, deadline: Deadline) -> Result<(), TransferError>;

    /// Closes the idle connections to this peer.
    fn forget(&self);

    /// Returns this peer for operations that are submitted now. They fail with
    /// [`TransferError::Ended`] if the peer ends its transfers before they run. `None` if that
    /// cannot be observed: then they are submitted to the peer itself. Does not block.
    fn bound(self: Arc<Self>) -> Option<Arc<dyn DataPeer>> {
        None
    }

    /// Whether a peer returned by [`bound`](DataPeer::bound) has ended its transfers.
    fn has_ended(&self) -> bool {
        false
    }

    /// The name of the transport in use, if it is not the engine's: `shared-memory`.
    fn transport(&self) -> Option<&'static str> {
        None
    }
}

/// Submitted operations, some of which may not have ended.
pub trait PendingOps: Send {
    /// Blocks until every operation has ended, then returns the results in submission order. No
    /// byte moves after that.
    fn wait(self: Box<Self>) -> Vec<OpCompletion>;
}

/// The result of one operation.
#[derive(Debug)]
pub struct OpCompletion {
    pub op: Op,
    /// Whether the bytes moved through shared memory rather than the engine's transport.
    pub shared: bool,
    pub result: Result<(), TransferFault>,
}

/// Why an operation failed, and what the failure indicates about the peer.
#[derive(Clone, Debug)]
pub struct TransferFault {
    pub error: TransferError,
    pub class: FaultClass,
}

impl TransferFault {
    /// Returns the fault to report if an operation failed with `first`, and its retry with `self`.
    /// The result must not hide that bytes from the first attempt may still arrive. (If the retry
    /// was rejected, they cannot.)
    pub fn after(self, first: Option<TransferFault>) -> TransferFault {
        let is_certain = self.class == FaultClass::Refused || self.error.may_still_land();
        first.filter(|first| !is_certain && first.error.may_still_land()).unwrap_or(self)
    }
}

/// What a fault indicates about the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultClass {
    /// The peer had already closed the reused connection, and no response to this operation
    /// arrived. A new connection may work.
    Stale,
    /// The peer does not respond, or its response was cut off. It may be down or have moved.
    Gone,
    /// The transfer made no progress for too long. A retry would take just as long.
    Hung,
    /// The batch's deadline passed while bytes were still moving.
    Late,
    /// The peer rejected the request.
    Refused,
    /// The peer ended its transfers after the operation was submitted. The operation must not be
    /// sent again, and the peer is not at fault.
    Ended,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TransferStep;
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
}
