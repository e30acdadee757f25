//! Puts that fail because no memory can be allocated: the cause.

use crate::memory_shortage::{MemoryShortage, ShortageCause};
use crate::state::MasterState;
use mcctl_base::Mono;

impl MasterState {
    /// Keeps that a put of `bytes` bytes failed for lack of memory, with the figures at this time.
    pub(super) fn note_failed_put(&mut self, now: Mono, bytes: u64) {
        let shortage = MemoryShortage {
            cause: self.shortage_cause(now, bytes),
            puts: 1,
            bytes,
            used_bytes: self.segments.used(),
            capacity_bytes: self.segments.capacity(),
            hard_pinned_bytes: self.hard_pinned_bytes,
            soft_pinned_keys: self.order.pinned() as u64,
        };
        self.failed_puts.add(shortage);
    }

    fn shortage_cause(&mut self, now: Mono, bytes: u64) -> ShortageCause {
        let capacity = self.segments.capacity();
        let used = self.segments.used();
        let soft_victim = self.order.pinned_victim(now).filter(|_| self.policy.evict_soft_pinned);
        if capacity == 0 {
            ShortageCause::NoSegment
        } else if self.segments.open_names() == 0 {
            ShortageCause::NoOpenSegment
        } else if capacity.saturating_sub(self.hard_pinned_bytes) < bytes {
            ShortageCause::HardPins
        } else if self.order.victim(&self.objects, now).or(soft_victim).is_some() {
            ShortageCause::Evicting
        } else if capacity - used >= bytes {
            ShortageCause::NoFittingRegion
        } else {
            ShortageCause::NothingEvictable
        }
    }
}
