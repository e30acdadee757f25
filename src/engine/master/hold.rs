//! Segments that are mounted again: they accept no new objects for a while, because transfers to
//! their memory may still be in progress.
//!
//! A new process sends `MountSegment`, and then `ReMountSegment` when it registers. The second call
//! finds the segments mounted. If it does not, the segments were mounted at a master that lost its
//! records, or they were removed here: their client expired, or another client's mount replaced
//! them. Their memory may have contained objects until then. A reader may have a lease on one of
//! them, and a writer may be in the middle of a put. Both have the memory's address, and the node
//! cannot distinguish their transfers from those of new objects.
//!
//! So such a segment is held: it accepts no new objects. The hold lasts as long as the longer of
//! these periods:
//!
//! * a lease: clients discard bytes that arrive after their lease;
//! * the discard time of puts, after which a put counts as abandoned. Its default is 30 s. A
//!   transfer of mcctl's client ends within 30 s, and one of upstream's 0.3.13 client ends after
//!   30 s without progress.
//!
//! A node of this project also ends the transfers of its peers before it mounts its memory again.
//! Upstream's nodes do not: observed with 0.3.13.post1, a connection that stops in the middle of a
//! write stays open. The calls of both are equal, so the hold applies to both. At an upstream node,
//! a write that makes progress for longer than the hold, or whose process was stopped for longer,
//! can still reach the memory of a new object.
//!
//! A hold is recorded. As with other quarantines, it counts in full again after a restart.

use std::time::Duration;

use crate::planted::{PlantedMistake, is_planted};
use crate::record::{MasterRecord, remaining_ms};
use crate::segment::MountedSegment;
use crate::slots::SegmentSlot;
use crate::state::MasterState;
use mcctl_base::Mono;
use mcctl_wire::types::SegmentStatus;

/// Maximum number of holds that end per slice.
const HOLDS_PER_SLICE: usize = 32;

impl MasterState {
    /// How long a segment that is mounted again at `now` accepts no new objects.
    pub(super) fn remount_hold(&self, now: Mono) -> Duration {
        if is_planted(PlantedMistake::RemountWithoutHold) {
            return Duration::ZERO;
        }
        self.longest_lease(now).max(self.policy.put_discard_after)
    }

    /// The longest lease that a reader may have at `now`, granted by this process or an earlier
    /// one.
    pub(super) fn longest_lease(&self, now: Mono) -> Duration {
        let own = self.policy.lease_ttl;
        if now < self.earlier_leases_until { own.max(self.earlier_lease) } else { own }
    }

    /// Closes a segment to new objects until `until`.
    pub(super) fn hold(&mut self, now: Mono, slot: SegmentSlot, until: Mono) {
        self.set_hold(slot, until);
        self.record(&MasterRecord::SegmentHeld { slot, remaining_ms: remaining_ms(now, until) });
    }

    /// Like [`hold`](Self::hold), without a record. Replaces an earlier hold.
    pub(super) fn set_hold(&mut self, slot: SegmentSlot, until: Mono) {
        let Some(id) = self.segments.get(slot).map(|mounted| mounted.segment.id) else { return };
        self.clear_hold(slot);
        self.segments.hold(slot, until);
        self.holds.insert((until, id));
    }

    /// Ends a segment's hold without opening the segment.
    pub(super) fn clear_hold(&mut self, slot: SegmentSlot) {
        let Some(mounted) = self.segments.get(slot) else { return };
        if let Some(before) = mounted.held_until {
            self.holds.remove(&(before, mounted.segment.id));
            self.segments.end_hold(slot);
        }
    }

    /// Time from `now` for which a confirmed segment accepts no new objects; `None` if it does, or
    /// is being unmounted.
    pub(super) fn hold_left(&self, now: Mono, mounted: &MountedSegment) -> Option<Duration> {
        if !mounted.confirmed || mounted.is_open() || mounted.status != SegmentStatus::OK {
            return None;
        }
        Some(mounted.held_until.max(self.open_at)?.since(now))
    }

    /// Opens the segments whose hold has ended for new objects. Returns true if there may be more.
    pub(super) fn end_holds_slice(&mut self, now: Mono) -> bool {
        // A copy without the removal of the segment would show what its memory contained before.
        if self.barrier.is_some_and(|barrier| self.last_barrier_change() > barrier) {
            return false;
        }
        for _ in 0..HOLDS_PER_SLICE {
            let Some((_, id)) = self.holds.first().copied().filter(|(until, _)| *until <= now) else { return false };
            let Some((slot, _)) = self.segments.find(id) else {
                self.holds.pop_first();
                continue;
            };
            self.clear_hold(slot);
            self.record(&MasterRecord::SegmentHoldEnded { slot });
            if self.open_at.is_none() {
                self.segments.open_confirmed(slot);
            }
        }
        true
    }
}
