//! Forgetting objects on demand. A lease holds a removal off unless it is forced; a write under way always does.

use crate::engine::base::{ClientId, Mono};
use crate::engine::master::code::Refusal;
use crate::engine::master::state::MasterState;

/// Slots that a slice of `remove_all` looks at, and objects that it removes: some tens of microseconds.
const SLOTS_PER_SLICE: u32 = 4096;
const REMOVALS_PER_SLICE: u32 = 128;

/// Where a walk over all objects stands. Objects that come up meanwhile may or may not be met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Walk {
    at: u32,
    end: u32,
}

impl Walk {
    /// Slots that are left to look at.
    pub fn slots(self) -> u32 {
        self.end.saturating_sub(self.at)
    }

    /// Is it over?
    pub fn is_done(self) -> bool {
        self.at >= self.end
    }
}

impl MasterState {
    /// Forget an object.
    ///
    /// # Errors
    /// `NoObject`, `Leased` (unless `force`), `NotReady`.
    pub fn remove(&mut self, now: Mono, key: &[u8], force: bool) -> Result<(), Refusal> {
        let at = self.find(key).ok_or(Refusal::NoObject)?;
        self.check_removable(at, now, force)?;
        self.erase(at);
        Ok(())
    }

    fn check_removable(&self, at: u32, now: Mono, force: bool) -> Result<(), Refusal> {
        if !force && now < self.lease_until(at) {
            return Err(Refusal::Leased);
        }
        if self.objects[at].processing {
            return Err(Refusal::NotReady);
        }
        Ok(())
    }

    /// Begin a walk over all objects that are here now.
    pub fn walk(&self) -> Walk {
        Walk { at: 0, end: self.objects.slots() }
    }

    /// Remove what can be removed of the next slice of the walk; how many went.
    pub fn remove_slice(&mut self, now: Mono, walk: &mut Walk, force: bool) -> u64 {
        let (mut looked, mut removed) = (0, 0);
        while !walk.is_done() && looked < SLOTS_PER_SLICE && removed < REMOVALS_PER_SLICE {
            let at = walk.at;
            walk.at += 1;
            looked += 1;
            if self.objects.get(at).is_none() || !self.settle(at) {
                continue;
            }
            if self.check_removable(at, now, force).is_ok() {
                self.erase(at);
                removed += 1;
            }
        }
        u64::from(removed)
    }

    /// Give the keys of the next slice of the walk to `visit`, which only copies: they are matched after the state was let go.
    pub fn key_slice(&self, walk: &mut Walk, visit: &mut dyn FnMut(&[u8])) {
        let end = walk.end.min(walk.at.saturating_add(KEYS_PER_SLICE));
        for at in walk.at..end {
            if self.objects.get(at).is_some() {
                visit(self.objects.key(at));
            }
        }
        walk.at = end;
    }

    /// Forget those of a client's objects' replicas that lie on segments of the name (all, if it is empty). Whether the key was
    /// done; it is passed over when it is not there, another's, leased, being written, or not on such a segment.
    pub fn clear_replicas(&mut self, now: Mono, key: &[u8], client: ClientId, segment_name: &[u8]) -> bool {
        let Some(at) = self.find(key) else { return false };
        let object = &self.objects[at];
        if self.owners.id(object.owner) != client || object.processing || now < self.lease_until(at) {
            return false;
        }
        if segment_name.is_empty() {
            self.erase(at);
            return true;
        }
        let segments = &self.segments;
        let lies_there = |slot: u32| segments.get(slot).is_some_and(|mounted| mounted.segment.name.0 == segment_name);
        let (all, there) = object
            .replicas()
            .fold((0, 0), |(all, there), replica| (all + 1, there + usize::from(lies_there(replica.segment))));
        if there == 0 {
            return false;
        }
        if there == all {
            self.erase(at);
        } else {
            self.keep_replicas(at, |segments, replica| {
                segments.get(replica.segment).is_none_or(|mounted| mounted.segment.name.0 != segment_name)
            });
        }
        true
    }
}

/// Keys that are copied out at a time.
const KEYS_PER_SLICE: u32 = 256;
