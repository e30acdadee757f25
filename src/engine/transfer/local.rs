//! Access to our own segment by copying memory.

use std::sync::{Arc, PoisonError, RwLock};

use crate::engine::transfer::TransferError;
use crate::engine::transfer::region::Regions;
use crate::engine::transfer::transport::{DataPeer, FaultClass, OpCompletion, PendingOps, TransferFault};
use crate::engine::transfer::types::{Deadline, Op, OpKind};
use crate::engine::wire::json::SegmentDescriptor;

/// This process as a peer of itself. It can access all registered memory, even memory that other processes cannot access.
pub struct LocalPeer {
    segment: String,
    regions: Arc<RwLock<Regions>>,
}

impl LocalPeer {
    /// Creates the local peer for `segment`, which serves the memory in `regions`.
    pub fn new(segment: String, regions: Arc<RwLock<Regions>>) -> Arc<LocalPeer> {
        Arc::new(LocalPeer { segment, regions })
    }

    fn carry(&self, op: &Op) -> Result<(), TransferFault> {
        if op.local.is_empty() {
            return Ok(());
        }
        let (address, length) = (op.remote.0, op.local.len() as u64);
        let found = self.regions.read().unwrap_or_else(PoisonError::into_inner).reach_locally(address, length);
        let copied = found.map(|there| match op.kind {
            OpKind::Read => op.local.copy_from(&there),
            OpKind::Write => there.copy_from(&op.local),
        });
        match copied {
            Some(Ok(())) => Ok(()),
            _ => Err(TransferFault {
                error: TransferError::Rejected { segment: self.segment.clone(), address, length, code: 0 },
                class: FaultClass::Refused,
            }),
        }
    }
}

impl DataPeer for LocalPeer {
    fn submit(self: Arc<Self>, ops: Vec<Op>, _: Deadline) -> Box<dyn PendingOps> {
        Box::new(LocalPendingOps { peer: self, ops })
    }

    fn reaches(&self, descriptor: &SegmentDescriptor) -> bool {
        descriptor.name == self.segment
    }

    fn probe(&self, _: &SegmentDescriptor, _: Deadline) -> Result<(), TransferError> {
        Ok(())
    }

    fn forget(&self) {}
}

struct LocalPendingOps {
    peer: Arc<LocalPeer>,
    ops: Vec<Op>,
}

impl PendingOps for LocalPendingOps {
    fn wait(self: Box<Self>) -> Vec<OpCompletion> {
        let LocalPendingOps { peer, ops } = *self;
        ops.into_iter().map(|op| OpCompletion { result: peer.carry(&op), op }).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::base::Mono;
    use crate::engine::sys::Memory;
    use crate::engine::transfer::types::Access;
    use crate::engine::transfer::types::{RegionKeys, RemoteAddr};
    use std::time::Duration;

    #[test]
    fn local_copies_stay_within_registered_memory() {
        let segment = Arc::new(Memory::from_vec(vec![1; 100]));
        let regions = Arc::new(RwLock::new(Regions::default()));
        regions.write().unwrap().insert(Arc::clone(&segment), Access::Remote, RegionKeys::default()).unwrap();
        let peer = LocalPeer::new("me".into(), regions);
        let buffer = Arc::new(Memory::from_vec(vec![2; 20]));
        let op = |kind, offset, len, remote| Op {
            kind,
            local: buffer.slice(offset, len).unwrap(),
            remote: RemoteAddr(segment.address() + remote),
        };
        let ops = vec![op(OpKind::Write, 0, 10, 90), op(OpKind::Read, 10, 5, 0), op(OpKind::Read, 0, 10, 91)];
        let done = peer.submit(ops, Deadline::after(Mono::ZERO, Duration::ZERO)).wait();
        assert_eq!(done.iter().map(|d| d.result.is_ok()).collect::<Vec<_>>(), [true, true, false]);
        assert_eq!(segment.slice(90, 10).unwrap().to_vec(), [2; 10]);
        assert_eq!(buffer.slice(9, 7).unwrap().to_vec(), [2, 1, 1, 1, 1, 1, 2]);
    }
}
