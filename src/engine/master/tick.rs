//! What happens by itself as time passes, a slice at a time: clients and grace periods end, unfinished writes are dropped, pins run
//! out, room is made, records of gone segments are swept.

use std::time::Duration;

use crate::engine::base::Mono;
use crate::engine::master::effect::{Departure, Effects};
use crate::engine::master::state::MasterState;
use crate::engine::wire::types::SegmentStatus;

/// Of each kind of work, what is done while the state is held once.
const CLIENTS_PER_SLICE: u32 = 8;
const SEGMENTS_PER_SLICE: u32 = 32;
const WRITES_PER_SLICE: u32 = 64;
const PINS_PER_SLICE: u32 = 64;
const SWEEP_SLOTS_PER_SLICE: u32 = 4096;
const SWEEP_ERASURES_PER_SLICE: u32 = 128;

/// Clients are looked after at least so often (upstream's monitor does once a second), and so many times in a client's life: the time
/// between two looks is how exactly a standstill of the master is known (see [`MasterState::resume`]).
const SLEEP_MAX: Duration = Duration::from_secs(1);
const LOOKS_PER_CLIENT_TTL: u32 = 8;
/// How long to wait when a client's time is up, but its ping may lie unread.
const UNHEARD_PAUSE: Duration = Duration::from_millis(100);

impl MasterState {
    /// Do a slice of what is due at `now`. True: more is due, let others have their turn and call again.
    ///
    /// All calls that arrived before `heard` have been answered; `now` where none can lie unread. Until that has passed a client's
    /// deadline its ping may wait to be read, and the client lives on.
    pub fn tick(&mut self, now: Mono, heard: Mono, out: &mut Effects) -> bool {
        let mut more = self.expire_slice(now.min(heard), out);
        more |= self.retire_slice(now, out);
        let released = self.release_slice(now);
        more |= released == u64::from(WRITES_PER_SLICE);
        more |= self.unpin_slice(now);
        // Before eviction: a round over records that are gone anyway would give up nothing, and a needed one would wait for its pause.
        more |= self.sweep_slice();
        more |= self.evict_slice(now, released, out);
        more
    }

    /// When `tick` has something to do next, if all calls are answered that arrived before `heard`; a time that has passed means at
    /// once.
    pub fn next_wakeup(&self, now: Mono, heard: Mono) -> Mono {
        let unheard = |at: Mono| if heard < at && at <= now { now + UNHEARD_PAUSE } else { at };
        let times = [
            self.clients.first_deadline().map(|(at, _)| unheard(at)),
            self.grace.first().map(|(at, _)| *at),
            self.discards.first(),
            self.order.first_writing().map(|at| self.objects[at].put_start + self.policy.put_release_after),
            self.order.first_pin_end().map(|(at, _)| at),
            self.eviction_due(),
            self.is_work_left().then_some(Mono::ZERO),
        ];
        let sleep = SLEEP_MAX.min(self.policy.client_ttl / LOOKS_PER_CLIENT_TTL);
        times.into_iter().flatten().fold(now + sleep, Mono::min)
    }

    /// The master stood still until now (its process was stopped, its host moved) and heard nobody meanwhile, though their pings may
    /// wait to be read: all clients live so much `longer`. How much of a standstill that is, is the caller's to say.
    pub fn resume(&mut self, longer: Duration) {
        self.clients.postpone(longer);
    }

    /// When something is due that a call may have brought about, so that `tick` should not wait for its turn.
    pub fn urgent(&self) -> Option<Mono> {
        if self.is_work_left() {
            return Some(Mono::ZERO);
        }
        let grace = self.grace.first().map(|(at, _)| *at);
        [self.eviction_due(), grace].into_iter().flatten().min()
    }

    fn is_work_left(&self) -> bool {
        self.sweep_left > 0 || !self.condemned.is_empty()
    }

    /// Clients whose time was up at `heard`.
    fn expire_slice(&mut self, heard: Mono, out: &mut Effects) -> bool {
        for _ in 0..CLIENTS_PER_SLICE {
            match self.clients.first_deadline() {
                Some((deadline, client)) if deadline <= heard => self.expire(client, out),
                _ => break,
            }
        }
        self.clients.first_deadline().is_some_and(|(deadline, _)| deadline <= heard)
    }

    /// Segments of gone clients, and those whose grace period is over.
    fn retire_slice(&mut self, now: Mono, out: &mut Effects) -> bool {
        for _ in 0..SEGMENTS_PER_SLICE {
            if let Some(slot) = self.condemned.pop_front() {
                // An unmount may have come first, and the slot may be another segment's by now.
                if self.segments.get(slot).is_some_and(|mounted| mounted.status == SegmentStatus::UNMOUNTING) {
                    self.retire(slot, Departure::Expired, out);
                }
            } else if let Some((_, segment)) = self.grace.first().copied().filter(|(at, _)| *at <= now) {
                match self.segments.find(segment) {
                    Some((slot, _)) => self.retire(slot, Departure::GraceOver, out),
                    None => drop(self.grace.pop_first()),
                }
            } else {
                break;
            }
        }
        !self.condemned.is_empty()
    }

    /// Unfinished writes whose memory may be used again; how many were released.
    fn release_slice(&mut self, now: Mono) -> u64 {
        let mut released = 0;
        for _ in 0..WRITES_PER_SLICE {
            if let Some((replica, bytes)) = self.discards.pop_due(now) {
                self.segments.free(&replica, bytes);
            } else {
                match self.order.first_writing() {
                    Some(at) if self.objects[at].put_start + self.policy.put_release_after <= now => self.erase(at),
                    _ => break,
                }
            }
            released += 1;
        }
        self.counters.put_start_releases += released;
        released
    }

    fn unpin_slice(&mut self, now: Mono) -> bool {
        for _ in 0..PINS_PER_SLICE {
            match self.order.first_pin_end() {
                Some((end, at)) if end <= now => self.order.file(&mut self.objects, at, now),
                _ => return false,
            }
        }
        true
    }

    /// Look at some records for replicas of gone segments. True: there are more to look at.
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
            let at = self.sweep_at;
            self.sweep_at += 1;
            if self.objects.get(at).is_some() && !self.settle(at) {
                erased += 1;
            }
        }
        self.sweep_left > 0
    }
}
