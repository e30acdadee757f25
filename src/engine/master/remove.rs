//! Removal on request. A lease blocks a removal unless `force` is set; a write in progress always
//! blocks it.

use crate::refusal::MasterRefusal;
use crate::slots::{ObjectSlot, SegmentSlot};
use crate::state::MasterState;
use crate::tenant::TenantKeys;
use mcctl_base::Mono;

/// Limits for one slice of `remove_all`: slots inspected and objects removed. A slice takes tens of
/// microseconds.
const SLOTS_PER_SLICE: u32 = 4096;
const REMOVALS_PER_SLICE: u32 = 128;

/// The position of a scan of all objects. Objects created during the scan may or may not be
/// visited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ObjectWalk {
    at: u32,
    end: u32,
}

impl ObjectWalk {
    /// Number of slots left to visit.
    pub fn slots(self) -> u32 {
        self.end.saturating_sub(self.at)
    }

    /// Returns true if the scan is complete.
    pub fn is_done(self) -> bool {
        self.at >= self.end
    }
}

impl MasterState {
    /// Removes an object.
    ///
    /// # Errors
    /// `NoObject`, `Leased` (unless `force`), `NotReady`.
    pub fn remove(&mut self, now: Mono, key: &[u8], force: bool) -> Result<(), MasterRefusal> {
        let at = self.find(key).ok_or(MasterRefusal::NoObject)?;
        self.check_removable(at, now, force)?;
        self.note_removal();
        self.erase(at);
        Ok(())
    }

    fn check_removable(&self, at: ObjectSlot, now: Mono, force: bool) -> Result<(), MasterRefusal> {
        if !force && now < self.lease_until(at) {
            return Err(MasterRefusal::Leased);
        }
        if self.objects[at].eviction.is_writing() {
            return Err(MasterRefusal::NotReady);
        }
        Ok(())
    }

    /// Starts a scan of all objects that exist now.
    pub fn walk(&self) -> ObjectWalk {
        ObjectWalk { at: 0, end: self.objects.slots() }
    }

    /// Scans the next slice and removes all removable objects of the tenant in it; `None` stands
    /// for all tenants. Returns how many were removed.
    pub(crate) fn remove_slice(
        &mut self,
        now: Mono,
        walk: &mut ObjectWalk,
        force: bool,
        tenant: Option<TenantKeys<'_>>,
    ) -> u64 {
        let mut visited = 0;
        let mut removed = 0;
        while !walk.is_done() && visited < SLOTS_PER_SLICE && removed < REMOVALS_PER_SLICE {
            let at = ObjectSlot(walk.at);
            walk.at += 1;
            visited += 1;
            let is_wanted =
                |state: &MasterState| tenant.is_none_or(|tenant| tenant.key(state.objects.key(at)).is_some());
            if self.objects.get(at).is_none() || !is_wanted(self) || !self.drop_lost_replicas(at) {
                continue;
            }
            if self.check_removable(at, now, force).is_ok() {
                self.note_removal();
                self.erase(at);
                removed += 1;
            }
        }
        u64::from(removed)
    }

    /// Scans the next slice and passes each key to `visit`, which runs with the state locked and
    /// should therefore only copy the key.
    pub fn key_slice(&self, walk: &mut ObjectWalk, visit: &mut dyn FnMut(&[u8])) {
        let end = walk.end.min(walk.at.saturating_add(KEYS_PER_SLICE));
        for at in (walk.at..end).map(ObjectSlot) {
            if self.objects.get(at).is_some() {
                visit(self.objects.key(at));
            }
        }
        walk.at = end;
    }

    /// Removes the object's replicas on segments with this name, or the whole object if the name is
    /// empty. Returns false and changes nothing if the object is missing, leased, being written, or
    /// not on such a segment. Upstream also compares the object's writer, which is not known here:
    /// any client may remove any object.
    pub fn clear_replicas(&mut self, now: Mono, key: &[u8], segment_name: &[u8]) -> bool {
        let Some(at) = self.find(key) else { return false };
        let object = &self.objects[at];
        if object.eviction.is_writing() || now < self.lease_until(at) {
            return false;
        }
        if segment_name.is_empty() {
            self.note_removal();
            self.erase(at);
            return true;
        }
        let segments = &self.segments;
        let on_segment =
            |slot: SegmentSlot| segments.get(slot).is_some_and(|mounted| mounted.segment.name.0 == segment_name);
        let (all, matching) = object
            .replicas()
            .fold((0, 0), |(all, matching), replica| (all + 1, matching + usize::from(on_segment(replica.segment))));
        if matching == 0 {
            return false;
        }
        self.note_removal();
        if matching == all {
            self.erase(at);
        } else {
            self.keep_replicas(at, |segments, replica| {
                segments.get(replica.segment).is_none_or(|mounted| mounted.segment.name.0 != segment_name)
            });
        }
        true
    }
}

/// Keys copied per slice.
const KEYS_PER_SLICE: u32 = 256;
