//! Reading and writing our own segment: a copy in memory.

use std::sync::{Arc, PoisonError, RwLock};

use crate::engine::transfer::TransferError;
use crate::engine::transfer::region::Regions;
use crate::engine::transfer::transport::{Deadline, Done, Fault, Meaning, Op, OpKind, Peer, Ticket};
use crate::engine::wire::json::SegmentDescriptor;

/// This process, as a peer of itself. Reaches all registered memory, for peers or not.
pub struct LocalPeer {
    segment: String,
    regions: Arc<RwLock<Regions>>,
}

impl LocalPeer {
    /// Memory that is registered in `regions`, as `segment`.
    pub fn new(segment: String, regions: Arc<RwLock<Regions>>) -> Arc<LocalPeer> {
        Arc::new(LocalPeer { segment, regions })
    }

    fn carry(&self, op: &Op) -> Result<(), Fault> {
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
            _ => Err(Fault {
                error: TransferError::Rejected { segment: self.segment.clone(), address, length, code: 0 },
                meaning: Meaning::Refused,
            }),
        }
    }
}

impl Peer for LocalPeer {
    fn submit(self: Arc<Self>, ops: Vec<Op>, _: Deadline) -> Box<dyn Ticket> {
        Box::new(LocalTicket { peer: self, ops })
    }

    fn reaches(&self, descriptor: &SegmentDescriptor) -> bool {
        descriptor.name == self.segment
    }

    fn probe(&self, _: &SegmentDescriptor, _: Deadline) -> Result<(), TransferError> {
        Ok(())
    }

    fn forget(&self) {}
}

struct LocalTicket {
    peer: Arc<LocalPeer>,
    ops: Vec<Op>,
}

impl Ticket for LocalTicket {
    fn wait(self: Box<Self>) -> Vec<Done> {
        let LocalTicket { peer, ops } = *self;
        ops.into_iter().map(|op| Done { result: peer.carry(&op), op }).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::base::Mono;
    use crate::engine::sys::Memory;
    use crate::engine::transfer::region::Access;
    use crate::engine::transfer::transport::{Keys, RemoteAddr};
    use std::time::Duration;

    #[test]
    fn bytes_are_copied_both_ways_and_only_within_registered_memory() {
        let segment = Arc::new(Memory::from_vec(vec![1; 100]));
        let regions = Arc::new(RwLock::new(Regions::default()));
        regions.write().unwrap().insert(Arc::clone(&segment), Access::Remote, Keys::default()).unwrap();
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
