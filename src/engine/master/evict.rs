//! Making room: when memory runs short, the objects whose leases ended first are given up.
//!
//! Upstream's arithmetic, in slices. A round begins when use is above the watermark or an allocation failed; it aims at a share of
//! the objects, takes unpinned ones by the end of their lease, and falls back on soft-pinned ones if it got too few. Each slice
//! gives up at most [`VICTIMS_PER_SLICE`] objects, so the state is never held long; the order is kept ready by `Order`.
//!
//! A put that comes while room is being made makes some itself ([`VICTIMS_PER_PUT`]): so room is made as fast as it is taken,
//! whatever the scheduler does with the clockwork's thread.

use std::time::Duration;

use crate::engine::base::Mono;
use crate::engine::master::effect::{Effect, Effects};
use crate::engine::master::object::NIL;
use crate::engine::master::order::Place;
use crate::engine::master::state::MasterState;

/// Objects given up while the state is held once.
const VICTIMS_PER_SLICE: u64 = 64;
/// Objects looked at for one that is given up, at most: those of protected groups come along.
const LOOKS_PER_VICTIM: u64 = 4;
/// Objects given up by each put that comes during a round.
const VICTIMS_PER_PUT: u64 = 2;
/// Members of one group that are given up together at most; a larger group goes in parts.
const GROUP_MEMBERS_MAX: u64 = 1024;
/// Upstream looks every so often whether eviction is needed.
const PAUSE: Duration = Duration::from_millis(10);

/// Where eviction stands.
#[derive(Debug, Default)]
pub(super) struct Eviction {
    /// An allocation failed since the last round began.
    pub wanted: bool,
    /// The round under way.
    round: Option<Round>,
    /// No round before this.
    not_before: Mono,
}

#[derive(Clone, Copy, Debug)]
struct Round {
    /// Unpinned objects to give up.
    target: u64,
    /// Objects to have given up, or soft-pinned ones go, too.
    lower_bound: u64,
    evicted: u64,
    freed_bytes: u64,
    /// Displaced writes whose memory was released meanwhile count as given up.
    released: u64,
    /// The second pass: soft-pinned objects.
    soft: bool,
    /// Nothing is left to do; the clockwork will close it.
    done: bool,
}

impl MasterState {
    /// When the next round may begin, if one is needed.
    pub(super) fn eviction_due(&self) -> Option<Mono> {
        if self.eviction.round.is_some() {
            return Some(Mono::ZERO);
        }
        let used = self.used_ratio();
        let needed = used > self.policy.watermark || self.eviction.wanted && used > 0.0;
        (needed && self.evictable > 0).then_some(self.eviction.not_before)
    }

    /// A slice of eviction, if it is needed. True: go on at once.
    pub(super) fn evict_slice(&mut self, now: Mono, released: u64, out: &mut Effects) -> bool {
        if self.eviction.round.is_none() {
            match self.eviction_due() {
                Some(due) if due <= now => self.begin_round(),
                _ => {
                    // Without anything to give up, the wish is void.
                    self.eviction.wanted &= self.evictable > 0;
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
            out.list.push(Effect::Evicted { objects: round.evicted, bytes: round.freed_bytes });
        }
        false
    }

    /// A put comes: if room is being made, make some.
    #[inline]
    pub(super) fn evict_for_put(&mut self, now: Mono) {
        if let Some(mut round) = self.eviction.round.take() {
            self.advance(&mut round, now, VICTIMS_PER_PUT);
            self.eviction.round = Some(round);
        }
    }

    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "shares of a count, at most the count")]
    fn begin_round(&mut self) {
        self.eviction.wanted = false;
        self.counters.eviction_attempts += 1;
        let over = self.used_ratio() - self.policy.watermark;
        let target = self.policy.eviction_ratio.max(over + self.policy.eviction_ratio);
        let lower_bound = (target * 0.5).max(over);
        let share = |ratio: f64| ((self.evictable as f64 * ratio).ceil().max(0.0) as u64).min(self.evictable);
        self.eviction.round = Some(Round {
            target: share(target),
            lower_bound: share(lower_bound),
            evicted: 0,
            freed_bytes: 0,
            released: 0,
            soft: false,
            done: false,
        });
    }

    /// Go on with a round, for about `victims` objects.
    fn advance(&mut self, round: &mut Round, now: Mono, victims: u64) {
        let stop_at = round.evicted + victims;
        for _ in 0..victims * LOOKS_PER_VICTIM {
            if round.done || round.evicted >= stop_at {
                return;
            }
            let (goal, next) = if round.soft {
                (round.lower_bound.saturating_sub(round.released), self.order.first_pinned())
            } else {
                (round.target, self.order.first_unpinned(&self.objects))
            };
            match next.filter(|(lease, _)| *lease <= now && round.evicted < goal) {
                Some((_, at)) => self.give_up(round, at, now),
                None => {
                    let short = round.evicted + round.released < round.lower_bound;
                    round.done = round.soft || !short || !self.policy.evict_soft_pinned;
                    round.soft = true;
                }
            }
        }
    }

    /// Give up an object, and its group with it; or find that its turn comes later.
    fn give_up(&mut self, round: &mut Round, at: u32, now: Mono) {
        if !self.settle(at) {
            return;
        }
        let Some(group) = self.objects[at].group() else { return self.evict(round, at) };
        let lease = self.groups.lease_until(group);
        if lease > now {
            // A member was read: all of them are protected as long as it is.
            self.order.postpone(&mut self.objects, at, lease);
            return;
        }
        let mut member = self.groups.first(group);
        for _ in 0..GROUP_MEMBERS_MAX {
            if member == NIL {
                break;
            }
            let object = &self.objects[member];
            let next = object.extra.as_ref().and_then(|extra| extra.group).map_or(NIL, |group| group.next);
            let unpinned = matches!(object.place, Place::Written | Place::Read | Place::Odd);
            if unpinned || object.place == Place::Pinned && round.soft {
                self.evict(round, member);
            }
            member = next;
        }
        // Far down a large group: this one's turn came, so it goes.
        if self.objects.get(at).is_some_and(|object| object.group() == Some(group))
            && self.objects[at].place != Place::None
        {
            self.evict(round, at);
        }
    }

    fn evict(&mut self, round: &mut Round, at: u32) {
        let object = &self.objects[at];
        let bytes = object.size * object.replicas().count() as u64;
        self.erase(at);
        round.evicted += 1;
        round.freed_bytes += bytes;
        self.counters.evicted_keys += 1;
        self.counters.evicted_bytes += bytes;
    }
}
