//! Eviction rounds: when objects are evicted, and how many.
//!
//! The number of objects to evict is computed as in upstream, but they are evicted in slices. A
//! round starts when usage exceeds the watermark or an allocation has failed. Its goal is to evict
//! a fraction of the objects: first unpinned objects in the order of the policy, then soft-pinned
//! objects if too few have been evicted. Each slice evicts at most [`VICTIMS_PER_SLICE`] objects,
//! so the state is never locked for long.
//!
//! A put during a round evicts some objects itself ([`VICTIMS_PER_PUT`]). Memory is therefore freed
//! as fast as it is allocated, even if the ticker's thread gets little processor time.

use std::time::Duration;

use crate::effect::{Effects, StateEffect};
use crate::object::ObjectRecord;
use crate::slots::ObjectSlot;
use crate::state::MasterState;
use mcctl_base::Mono;

/// Objects evicted per slice. The state is locked once per slice.
const VICTIMS_PER_SLICE: u64 = 64;
/// Maximum number of objects inspected per victim: members of protected groups are inspected but
/// not evicted.
const INSPECTED_PER_VICTIM: u64 = 4;
/// Objects evicted by each put during a round.
const VICTIMS_PER_PUT: u64 = 2;
/// Maximum number of group members evicted together. A larger group is evicted in several steps.
const GROUP_MEMBERS_MAX: u64 = 1024;
/// Pause between two rounds. Upstream checks at this interval whether eviction is needed.
const PAUSE: Duration = Duration::from_millis(10);

/// Progress of the eviction.
#[derive(Debug, Default)]
pub(crate) struct EvictionProgress {
    /// An allocation has failed since the last round started.
    pub requested: bool,
    /// The round in progress.
    round: Option<EvictionRound>,
    /// No round starts before this time.
    not_before: Mono,
}

#[derive(Clone, Copy, Debug)]
struct EvictionRound {
    /// Number of unpinned objects to evict.
    target: u64,
    /// Soft-pinned objects are evicted as well until this number is reached.
    lower_bound: u64,
    evicted: u64,
    freed_bytes: u64,
    /// Number of unfinished writes released during the round. They count as evicted.
    released: u64,
    /// The round is in its second pass, which evicts soft-pinned objects.
    soft: bool,
    /// No work is left. The ticker will end the round.
    done: bool,
}

impl MasterState {
    /// When the next round may start; `None` if no round is needed.
    pub(crate) fn eviction_due(&self) -> Option<Mono> {
        if self.eviction.round.is_some() {
            return Some(Mono::ZERO);
        }
        let used = self.used_ratio();
        let needed = used > self.policy.watermark || self.eviction.requested && used > 0.0;
        (needed && self.evictable > 0).then_some(self.eviction.not_before)
    }

    /// Evicts one slice, if needed. Returns true if the caller should continue immediately.
    pub(crate) fn evict_slice(&mut self, now: Mono, released: u64, out: &mut Effects) -> bool {
        if self.eviction.round.is_none() {
            match self.eviction_due() {
                Some(due) if due <= now => self.begin_round(),
                _ => {
                    // If no object is evictable, the request for a round is dropped.
                    self.eviction.requested &= self.evictable > 0;
                    return false;
                }
            }
        }
        let Some(mut round) = self.eviction.round.take() else { return false };
        round.released += released;
        self.advance(&mut round, now, VICTIMS_PER_SLICE);
        if !round.done {
            self.eviction.round = Some(round);
            return true;
        }
        self.eviction.not_before = now + PAUSE;
        if round.evicted > 0 {
            self.counters.evictions += 1;
            out.list.push(StateEffect::Evicted { objects: round.evicted, bytes: round.freed_bytes });
        }
        false
    }

    /// Evicts some objects on behalf of a put, if a round is in progress.
    #[inline]
    pub(crate) fn evict_for_put(&mut self, now: Mono) {
        if let Some(mut round) = self.eviction.round.take() {
            self.advance(&mut round, now, VICTIMS_PER_PUT);
            self.eviction.round = Some(round);
        }
    }

    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "fractions of a count, at most the count"
    )]
    fn begin_round(&mut self) {
        self.eviction.requested = false;
        self.counters.eviction_attempts += 1;
        let over = self.used_ratio() - self.policy.watermark;
        let target = self.policy.eviction_ratio.max(over + self.policy.eviction_ratio);
        let lower_bound = (target * 0.5).max(over);
        let share = |ratio: f64| ((self.evictable as f64 * ratio).ceil().max(0.0) as u64).min(self.evictable);
        self.eviction.round = Some(EvictionRound {
            target: share(target),
            lower_bound: share(lower_bound),
            evicted: 0,
            freed_bytes: 0,
            released: 0,
            soft: false,
            done: false,
        });
    }

    /// Continues a round until about `victims` more objects have been evicted.
    fn advance(&mut self, round: &mut EvictionRound, now: Mono, victims: u64) {
        let stop_at = round.evicted + victims;
        for _ in 0..victims * INSPECTED_PER_VICTIM {
            if round.done || round.evicted >= stop_at {
                return;
            }
            let (goal, next) = if round.soft {
                (round.lower_bound.saturating_sub(round.released), self.order.pinned_victim(now))
            } else {
                (round.target, self.order.victim(&self.objects, now))
            };
            match next.filter(|_| round.evicted < goal) {
                Some(at) => self.evict_with_group(round, at, now),
                None => {
                    let short = round.evicted + round.released < round.lower_bound;
                    round.done = round.soft || !short || !self.policy.evict_soft_pinned;
                    round.soft = true;
                }
            }
        }
    }

    /// Evicts an object together with its group, or postpones it if the group is protected.
    fn evict_with_group(&mut self, round: &mut EvictionRound, at: ObjectSlot, now: Mono) {
        if !self.drop_lost_replicas(at) {
            return;
        }
        let Some(group) = self.objects[at].group() else { return self.evict(round, at) };
        let lease = self.order.lease_end(self.groups.lease_until(group));
        if lease > now {
            // A member was read, so its lease protects the whole group.
            self.order.postpone(&mut self.objects, at, lease);
            return;
        }
        let mut member = self.groups.first(group);
        for _ in 0..GROUP_MEMBERS_MAX {
            if member == ObjectSlot::NIL {
                break;
            }
            let object = &self.objects[member];
            let next = object.extra.as_ref().and_then(|extra| extra.group).map_or(ObjectSlot::NIL, |group| group.next);
            if object.eviction.is_candidate(round.soft) {
                self.evict(round, member);
            }
            member = next;
        }
        // In a large group, the object may not be among the first members. It is the next victim,
        // so it is evicted in any case.
        let is_left = |object: &ObjectRecord| object.group() == Some(group) && !object.eviction.is_unlisted();
        if self.objects.get(at).is_some_and(is_left) {
            self.evict(round, at);
        }
    }

    fn evict(&mut self, round: &mut EvictionRound, at: ObjectSlot) {
        let object = &self.objects[at];
        let bytes = object.size * object.replicas().count() as u64;
        self.note_removal();
        self.erase(at);
        round.evicted += 1;
        round.freed_bytes += bytes;
        self.counters.evicted_keys += 1;
        self.counters.evicted_bytes += bytes;
    }
}
