//! Access to our own segment by copying memory.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use crate::TransferError;
use crate::region::Regions;
use crate::transport::{DataPeer, FaultClass, OpCompletion, PendingOps, TransferFault};
use crate::types::{BatchRules, Deadline, Op, OpKind};
use mcctl_sys::Slice;
use mcctl_wire::json::SegmentDescriptor;

/// The times between the ends of inbound transfers ([`DataTransport::end_inbound`]), which end the
/// local ones too. An operation belongs to the era in which it was submitted, and is rejected in a
/// later one.
///
/// [`DataTransport::end_inbound`]: crate::transport::DataTransport::end_inbound
#[derive(Debug, Default)]
pub struct TransferEra {
    current: AtomicU64,
    /// Read-locked while an operation copies bytes.
    copying: RwLock<()>,
}

impl TransferEra {
    /// The number of the current era.
    pub fn current(&self) -> u64 {
        self.current.load(Ordering::Acquire)
    }

    /// Begins the next era, and waits for the operations that are copying bytes.
    pub fn end(&self) {
        // The lock is released by the last of them, and later ones see the new number.
        self.current.fetch_add(1, Ordering::AcqRel);
        drop(self.copying.write().unwrap_or_else(PoisonError::into_inner));
    }

    /// Runs `copy` if `era` is the current one.
    pub(crate) fn run<T>(&self, era: u64, copy: impl FnOnce() -> T) -> Option<T> {
        let _copying = self.copying.read().unwrap_or_else(PoisonError::into_inner);
        (self.current() == era).then(copy)
    }
}

/// This process as a peer of itself. It can access all registered memory, even memory that other
/// processes cannot access.
#[derive(Clone)]
pub struct LocalPeer {
    segment: String,
    regions: Arc<RwLock<Regions>>,
    eras: Arc<TransferEra>,
    /// The era in which the operations were submitted.
    era: u64,
}

impl LocalPeer {
    /// Creates the local peer for `segment`, which serves the memory in `regions`.
    pub fn new(segment: String, regions: Arc<RwLock<Regions>>, eras: Arc<TransferEra>) -> LocalPeer {
        let era = eras.current();
        LocalPeer { segment, regions, eras, era }
    }

    /// Returns the peer for operations that were submitted in `era`.
    pub fn in_era(&self, era: u64) -> Arc<LocalPeer> {
        Arc::new(LocalPeer { era, ..self.clone() })
    }

    fn carry(&self, op: &Op) -> Result<(), TransferFault> {
        if op.local.is_empty() {
            return Ok(());
        }
        let address = op.remote.0;
        let length = op.local.len() as u64;
        let found = self.regions.read().unwrap_or_else(PoisonError::into_inner).reach_locally(address, length);
        let copy = |there: Slice| match op.kind {
            OpKind::Read => op.local.copy_from(&there),
            OpKind::Write => there.copy_from(&op.local),
        };
        let copied = found.and_then(|there| self.eras.run(self.era, || copy(there)));
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
    fn submit(self: Arc<Self>, ops: Vec<Op>, _: BatchRules) -> Box<dyn PendingOps> {
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
        ops.into_iter().map(|op| OpCompletion { result: peer.carry(&op), shared: false, op }).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::Access;
    use crate::types::{RegionKeys, RemoteAddr};
    use mcctl_base::Mono;
    use mcctl_sys::Memory;
    use std::time::Duration;

    #[test]
    fn local_copies_stay_within_registered_memory_and_their_era() {
        let segment = Arc::new(Memory::from_vec(vec![1; 100]));
        let regions = Arc::new(RwLock::new(Regions::default()));
        regions.write().unwrap().insert(Arc::clone(&segment), Access::Remote, RegionKeys::default()).unwrap();
        let eras = Arc::new(TransferEra::default());
        let peer = LocalPeer::new("me".into(), regions, Arc::clone(&eras));
        let buffer = Arc::new(Memory::from_vec(vec![2; 20]));
        let op = |kind, offset, len, remote| Op {
            kind,
            local: buffer.slice(offset, len).unwrap(),
            remote: RemoteAddr(segment.address() + remote),
        };
        let ops = vec![op(OpKind::Write, 0, 10, 90), op(OpKind::Read, 10, 5, 0), op(OpKind::Read, 0, 10, 91)];
        let rules = BatchRules::until(Deadline::after(Mono::ZERO, Duration::ZERO));
        let done = peer.in_era(0).submit(ops, rules).wait();
        assert_eq!(done.iter().map(|d| d.result.is_ok()).collect::<Vec<_>>(), [true, true, false]);
        assert_eq!(segment.slice(90, 10).unwrap().to_vec(), [2; 10]);
        assert_eq!(buffer.slice(9, 7).unwrap().to_vec(), [2, 1, 1, 1, 1, 1, 2]);
        let submitted = |era| peer.in_era(era).submit(vec![op(OpKind::Write, 0, 10, 0)], rules);
        let pending = submitted(eras.current());
        eras.end();
        assert!(pending.wait()[0].result.is_err(), "submitted before the end of the era");
        assert_eq!(segment.slice(0, 10).unwrap().to_vec(), [1; 10]);
        assert!(submitted(eras.current()).wait()[0].result.is_ok());
    }
}
