//! A node on this host as a peer for operations that were submitted in one of its generations.

use std::sync::Arc;

use crate::TransferError;
use crate::shared_memory::SharedMemoryPeer;
use crate::shared_memory::link::MemoryLink;
use crate::transport::{DataPeer, OpCompletion, PendingOps};
use crate::types::{BatchRules, Deadline, Op};
use mcctl_wire::json::SegmentDescriptor;

/// The peer while the generation of `link` is current. Operations that have not run by the end of
/// the generation fail, also those that use the transport.
pub(super) struct BoundPeer {
    pub(super) peer: Arc<SharedMemoryPeer>,
    pub(super) link: Arc<MemoryLink>,
}

impl DataPeer for BoundPeer {
    fn submit(self: Arc<Self>, ops: Vec<Op>, rules: BatchRules) -> Box<dyn PendingOps> {
        let peer = Arc::clone(&self.peer);
        let link = Arc::clone(&self.link);
        match link.is_current() {
            true => peer.submit_over(link, ops, rules),
            false => Box::new(EndedOps { peer, ops }),
        }
    }

    fn reaches(&self, descriptor: &SegmentDescriptor) -> bool {
        self.peer.reaches(descriptor)
    }

    fn probe(&self, descriptor: &SegmentDescriptor, deadline: Deadline) -> Result<(), TransferError> {
        self.peer.probe(descriptor, deadline)
    }

    fn forget(&self) {
        self.peer.forget();
    }

    fn transport(&self) -> Option<&'static str> {
        self.peer.transport()
    }

    fn has_ended(&self) -> bool {
        !self.link.is_current()
    }
}

/// Operations whose generation ended before they ran.
struct EndedOps {
    peer: Arc<SharedMemoryPeer>,
    ops: Vec<Op>,
}

impl PendingOps for EndedOps {
    fn wait(self: Box<Self>) -> Vec<OpCompletion> {
        self.ops.into_iter().map(|op| OpCompletion { op, shared: true, result: Err(self.peer.ended()) }).collect()
    }
}
