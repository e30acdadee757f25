//! Background work, one slice at a time: expiring clients and grace periods, dropping unfinished
//! writes, ending soft pins, evicting objects, and cleaning up the records that refer to removed
//! segments.

use std::time::Duration;

use crate::effect::{Effects, StateEffect, UnmountReason};
use crate::record::MasterRecord;
use crate::record::clock::ChangeTimes;
use crate::slots::ObjectSlot;
use crate::state::MasterState;
use mcctl_base::Mono;
use mcctl_wire::types::SegmentStatus;

/// Work limits per slice. The state is locked once per slice.
const CLIENTS_PER_SLICE: u32 = 8;
const SEGMENTS_PER_SLICE: u32 = 32;
const WRITES_PER_SLICE: u32 = 64;
const PINS_PER_SLICE: u32 = 64;
const SWEEP_SLOTS_PER_SLICE: u32 = 4096;
const SWEEP_ERASURES_PER_SLICE: u32 = 128;

/// The longest pause between two ticks. Upstream's monitor runs once a second.
const SLEEP_MAX: Duration = Duration::from_secs(1);
/// Minimum number of ticks within a client's time to live. The interval between two ticks
/// determines how precisely a stall of the master is measured (see
/// [`MasterState::extend_client_deadlines`]).
const TICKS_PER_CLIENT_TTL: u32 = 8;
/// Pause when a client's deadline has passed but its ping may still be unread.
const UNREAD_PING_PAUSE: Duration = Duration::from_millis(100);

/// The events that [`MasterState::tick`] waits for.
#[derive(Clone, Copy, Debug)]
enum Timer {
    ClientExpiry,
    GraceEnd,
    QuarantineEnd,
    AbandonedWrite,
    SoftPinEnd,
    Eviction,
    Sweep,
    /// Restored segments that no client has confirmed are dropped.
    UnconfirmedEnd,
    /// Restored segments accept new objects.
    RestoredOpen,
    /// Segments that were mounted again accept new objects.
    HoldEnd,
}

impl Timer {
    const ALL: [Timer; 10] = [
        Timer::ClientExpiry,
        Timer::GraceEnd,
        Timer::QuarantineEnd,
        Timer::AbandonedWrite,
        Timer::SoftPinEnd,
        Timer::Eviction,
        Timer::Sweep,
        Timer::UnconfirmedEnd,
        Timer::RestoredOpen,
        Timer::HoldEnd,
    ];
}

impl MasterState {
    /// Performs one slice of the work that is due at `now`. Returns true if more is due. The caller
    /// should then let other callers proceed and call again.
    ///
    /// All calls that arrived before `answered_until` have been answered. Pass `now` if no call can
    /// be unread. A client whose deadline is later than `answered_until` stays alive, because its
    /// ping may still be unread.
    pub fn tick(&mut self, now: Mono, answered_until: Mono, out: &mut Effects) -> bool {
        let mut more = self.expire_slice(now.min(answered_until), out);
        if !more {
            more = self.drop_unconfirmed_slice(now.min(answered_until), out);
        }
        self.open_restored(now);
        more |= self.end_holds_slice(now);
        more |= self.retire_slice(now, out);
        more |= self.reclaim_slice();
        let released = self.release_slice(now);
        more |= released == u64::from(WRITES_PER_SLICE);
        more |= self.unpin_slice(now);
        // This precedes eviction, because a round that evicts only lost records frees nothing.
        // Another round would then be necessary, but could not start until the pause is over.
        more |= self.sweep_slice();
        more |= self.evict_slice(now, released, out);
        if let Some(client) = self.restarted.take_report(now) {
            out.list.push(StateEffect::SuspiciousEnd { client, total: self.counters.suspicious_put_ends });
        }
        self.report_missing_clients(now, out);
        out.list.extend(self.failed_puts.take_report(now).map(StateEffect::MemoryShortage));
        more
    }

    /// When `tick` should next be called. A time in the past means immediately. `answered_until`
    /// has the same meaning as in [`tick`](Self::tick).
    pub fn next_wakeup(&self, now: Mono, answered_until: Mono) -> Mono {
        let sleep = SLEEP_MAX.min(self.policy.client_ttl / TICKS_PER_CLIENT_TTL);
        let due = Timer::ALL.into_iter().filter_map(|timer| match (timer, self.due(timer)?) {
            (Timer::ClientExpiry | Timer::UnconfirmedEnd, at) if answered_until < at && at <= now => {
                Some(now + UNREAD_PING_PAUSE)
            }
            (_, at) => Some(at),
        });
        due.fold(now + sleep, Mono::min)
    }

    /// When the timer fires, or `None` if it is not set.
    fn due(&self, timer: Timer) -> Option<Mono> {
        match timer {
            Timer::ClientExpiry => self.clients.first_deadline().map(|(at, _)| at),
            Timer::GraceEnd => self.grace.first().map(|(at, _)| *at),
            Timer::QuarantineEnd => self.discards.first(),
            Timer::AbandonedWrite => self
                .order
                .first_writing()
                .and_then(|at| self.objects[at].eviction.write_start())
                .map(|start| start + self.policy.put_release_after),
            Timer::SoftPinEnd => self.order.first_pin_end(),
            Timer::Eviction => self.eviction_due(),
            Timer::Sweep => self.is_work_left().then_some(Mono::ZERO),
            Timer::UnconfirmedEnd => self.confirm_until,
            Timer::RestoredOpen => self.open_at,
            Timer::HoldEnd => self.holds.first().map(|(at, _)| *at),
        }
    }

    /// Extends all clients' deadlines. For use after a stall (a stopped process, a migrated host),
    /// during which no ping was read. The caller computes the extension from the length of the
    /// stall.
    pub fn extend_client_deadlines(&mut self, longer: Duration) {
        self.clients.postpone(longer);
        self.confirm_until = self.confirm_until.map(|until| until + longer);
    }

    /// When work that a call may have caused is due, so that `tick` does not wait until its planned
    /// time.
    pub fn urgent(&self) -> Option<Mono> {
        if self.is_work_left() {
            return Some(Mono::ZERO);
        }
        [self.eviction_due(), self.due(Timer::GraceEnd)].into_iter().flatten().min()
    }

    fn is_work_left(&self) -> bool {
        self.sweep_left > 0 || !self.condemned.is_empty() || self.freed.is_any_durable()
    }

    /// Expires clients whose deadline is not later than `answered_until`.
    fn expire_slice(&mut self, answered_until: Mono, out: &mut Effects) -> bool {
        for _ in 0..CLIENTS_PER_SLICE {
            match self.clients.first_deadline() {
                Some((deadline, client)) if deadline <= answered_until => self.expire(client, out),
                _ => break,
            }
        }
        self.clients.first_deadline().is_some_and(|(deadline, _)| deadline <= answered_until)
    }

    /// Retires segments of expired clients, and segments whose grace period has ended.
    fn retire_slice(&mut self, now: Mono, out: &mut Effects) -> bool {
        for _ in 0..SEGMENTS_PER_SLICE {
            if let Some(slot) = self.condemned.pop_front() {
                // The segment may have been unmounted in the meantime, and its slot may now contain
                // another segment.
                if self.segments.get(slot).is_some_and(|mounted| mounted.status == SegmentStatus::UNMOUNTING) {
                    self.retire(slot, UnmountReason::ClientExpired, out);
                }
            } else if let Some((_, segment)) = self.grace.first().copied().filter(|(at, _)| *at <= now) {
                match self.segments.find(segment) {
                    Some((slot, _)) => self.retire(slot, UnmountReason::GraceElapsed, out),
                    None => drop(self.grace.pop_first()),
                }
            } else {
                break;
            }
        }
        !self.condemned.is_empty()
    }

    /// Releases the memory of unfinished writes that have timed out. Returns how many were
    /// released.
    fn release_slice(&mut self, now: Mono) -> u64 {
        let mut released = 0;
        for _ in 0..WRITES_PER_SLICE {
            if let Some(replica_id) = self.discards.first_due(now) {
                self.commit(ChangeTimes::Untimed, &MasterRecord::DiscardReleased { replica_id });
            } else {
                let Some(at) = self.order.first_writing() else { break };
                let start = self.objects[at].eviction.write_start();
                if start.is_none_or(|start| now < start + self.policy.put_release_after) {
                    break;
                }
                self.abandon(at, now);
            }
            released += 1;
        }
        self.counters.put_start_releases += released;
        released
    }

    /// Ends soft pins that have expired. Returns true if more may be due.
    fn unpin_slice(&mut self, now: Mono) -> bool {
        (0..PINS_PER_SLICE).all(|_| self.order.expire_pin(&mut self.objects, now))
    }

    /// Checks some records for replicas on removed segments. Returns true if there are more records
    /// to check.
    pub(super) fn sweep_slice(&mut self) -> bool {
        let mut erased = 0;
        for _ in 0..SWEEP_SLOTS_PER_SLICE {
            if self.sweep_left == 0 || erased == SWEEP_ERASURES_PER_SLICE {
                break;
            }
            self.sweep_left -= 1;
            if self.sweep_at >= self.objects.slots() {
                self.sweep_at = 0;
            }
            let at = ObjectSlot(self.sweep_at);
            self.sweep_at += 1;
            if self.objects.get(at).is_some() && !self.drop_lost_replicas(at) {
                erased += 1;
            }
        }
        self.sweep_left > 0
    }
}
