//! Which freed memory a leader may use again, so that a copy that is not in sync can prove that its
//! objects still have their memory.
//!
//! A copy in the sync record has each change that freed memory before that memory is used again. A
//! copy outside of it may lack such a change: its objects may have other objects' bytes. So when a
//! standby leaves the record, the record states a barrier: no change after it has had an effect
//! that such a copy must know. Before the first such effect, the leader removes the barrier from
//! the record. If the leader is lost earlier, a copy that is not older than the barrier keeps its
//! objects.
//!
//! Only a leader without a standby in sync has a barrier. Such a leader does not serve without
//! etcd, so that it never waits for etcd to remove the barrier while it serves.

use crate::ha::planted::{HaMistake, is_planted};

/// The barrier of a leader.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ReuseBarrier {
    /// The highest change up to which freed memory was given back, or responses were sent.
    passed: u64,
    /// The barrier in the sync record. `None`: the record has none.
    recorded: Option<u64>,
    /// The barrier in a record whose write has no result yet.
    writing: Option<u64>,
    /// Something waits for the removal of the barrier.
    is_awaited: bool,
}

impl ReuseBarrier {
    /// The barrier of a leader whose state contained changes up to `applied` when it was elected.
    /// The memory that they freed is available at once.
    pub(super) fn new(applied: u64) -> ReuseBarrier {
        ReuseBarrier { passed: applied, ..ReuseBarrier::default() }
    }

    /// Memory that a later change freed is not used again, and responses to later changes after
    /// which a client overwrites or misses something are not sent. `None`: no limit.
    pub(super) fn limit(&self) -> Option<u64> {
        let limit = [self.recorded, self.writing].into_iter().flatten().min();
        limit.filter(|_| !is_planted(HaMistake::BarrierWrittenLate))
    }

    /// Changes up to `replicated` may have effects: the required standbys have them. Returns the
    /// last change whose freed memory may be used again.
    pub(super) fn advance(&mut self, replicated: u64) -> u64 {
        let reusable = self.limit().map_or(replicated, |limit| replicated.min(limit));
        self.passed = self.passed.max(reusable);
        reusable
    }

    /// Something waits for the removal of the barrier.
    pub(super) fn await_removal(&mut self) {
        self.is_awaited = self.limit().is_some();
    }

    /// Whether the record must be written to remove the barrier.
    pub(super) fn must_remove(&self) -> bool {
        self.is_awaited
    }

    /// The barrier in the sync record.
    pub(super) fn recorded(&self) -> Option<u64> {
        self.recorded
    }

    /// The barrier of the next record, which lists no standby. `has_left`: the record before lists
    /// one. The required standbys have all changes up to `replicated`.
    pub(super) fn next_alone(&self, has_left: bool, replicated: u64) -> Option<u64> {
        if self.is_awaited {
            None
        } else if has_left {
            Some(self.passed.max(self.limit().map_or(replicated, |limit| replicated.min(limit))))
        } else {
            self.recorded
        }
    }

    /// A record with this barrier is being written.
    pub(super) fn begin_write(&mut self, barrier: Option<u64>) {
        self.writing = [self.writing, barrier].into_iter().flatten().min();
    }

    /// The record that was read has this barrier, and this leader has not written it. An older
    /// barrier than the last one must be removed: etcd has returned to earlier data.
    pub(super) fn adopt(&mut self, barrier: Option<u64>) {
        let is_older = barrier.is_some_and(|barrier| self.recorded.is_none_or(|before| barrier < before));
        self.set_recorded(barrier);
        self.is_awaited |= is_older;
    }

    /// The record has this barrier, and no earlier write can still succeed.
    pub(super) fn set_recorded(&mut self, barrier: Option<u64>) {
        self.recorded = barrier;
        self.writing = None;
        self.is_awaited &= barrier.is_some();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_was_freed_after_the_barrier_is_not_used_until_a_record_without_it_is_written() {
        let mut barrier = ReuseBarrier::new(100);
        assert_eq!((barrier.next_alone(false, 0), barrier.advance(110)), (None, 110), "no standby has left");
        // A standby that has change 120 leaves.
        let left = barrier.next_alone(true, 120);
        assert_eq!(left, Some(120));
        barrier.begin_write(left);
        assert_eq!(barrier.advance(500), 120, "the write may succeed");
        barrier.set_recorded(left);
        assert_eq!((barrier.advance(500), barrier.must_remove()), (120, false));
        barrier.await_removal();
        assert!(barrier.must_remove() && barrier.next_alone(false, 500).is_none());
        barrier.begin_write(None);
        assert_eq!(barrier.advance(500), 120, "the write may have failed");
        barrier.set_recorded(None);
        assert_eq!((barrier.advance(500), barrier.must_remove()), (500, false));
        assert_eq!(barrier.next_alone(true, 400), Some(500), "change 500 has had its effect");
    }

    #[test]
    fn an_older_barrier_that_returns_with_earlier_data_of_etcd_is_removed() {
        for (recorded, returned, is_removed) in [(None, 7, true), (Some(9), 7, true), (Some(7), 7, false)] {
            let mut barrier = ReuseBarrier::new(0);
            barrier.set_recorded(recorded);
            barrier.adopt(Some(returned));
            assert_eq!(barrier.must_remove(), is_removed, "{recorded:?}");
        }
    }

    #[test]
    fn a_barrier_is_not_older_than_a_response_that_another_standby_permitted() {
        let mut barrier = ReuseBarrier::new(900);
        // A removal with number 950 was answered. A standby with changes up to 800 then joins.
        barrier.advance(1000);
        barrier.advance(800);
        assert_eq!(barrier.next_alone(true, 800), Some(1000));
    }

    #[test]
    fn a_new_leader_has_used_the_memory_that_earlier_changes_freed() {
        let barrier = ReuseBarrier::new(100);
        assert_eq!(barrier.next_alone(true, 95), Some(100), "the standby lacks the last changes before the election");
    }

    #[test]
    fn a_barrier_whose_write_has_no_result_holds_until_another_write_succeeds() {
        let mut barrier = ReuseBarrier::new(0);
        barrier.begin_write(Some(7));
        // The standby has returned, so the next record lists it, and has no barrier.
        assert_eq!(barrier.advance(9), 7);
        barrier.await_removal();
        assert!(barrier.must_remove(), "the record must be written again");
        barrier.set_recorded(None);
        assert_eq!(barrier.advance(9), 9);
    }
}
