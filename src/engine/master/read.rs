//! Calls that find objects and, by finding them, protect them: every read grants a lease.
//!
//! The lease's end doubles as the clock of the eviction order, as upstream has it.

use crate::engine::base::{ErrorCode, Mono};
use crate::engine::master::code::Refusal;
use crate::engine::master::state::MasterState;
use crate::engine::master::view::{ReplicaView, SegmentView};
use crate::engine::wire::types::{GetReplicaListResponse, Place, ReplicaDescriptor};

impl MasterState {
    /// Is there a complete object with this key? It is leased then.
    pub fn exist(&mut self, now: Mono, key: &[u8]) -> bool {
        match self.find(key) {
            Some(at) if !self.objects[at].processing => {
                self.grant_lease(at, now);
                true
            }
            _ => false,
        }
    }

    /// Where the object is. It is leased then.
    ///
    /// # Errors
    /// `NoObject`, `NotReady`.
    pub fn replica_list(&mut self, now: Mono, key: &[u8]) -> Result<GetReplicaListResponse, Refusal> {
        self.counters.total_gets += 1;
        let at = self.find(key).ok_or(Refusal::NoObject)?;
        let object = &self.objects[at];
        if object.processing {
            return Err(Refusal::NotReady);
        }
        self.counters.mem_hits += 1;
        self.counters.mem_hit_bytes += object.size;
        self.counters.valid_gets += 1;
        let object_checksum = object.extra.as_ref().and_then(|extra| extra.checksum);
        self.grant_lease(at, now);
        let lease_ttl_ms = u64::try_from(self.policy.lease_ttl.as_millis()).unwrap_or(u64::MAX);
        Ok(GetReplicaListResponse { replicas: self.describe(at), lease_ttl_ms, object_checksum })
    }

    /// Where the object is, if it is complete; it is leased then. For lookups by expression, which upstream does not count as reads.
    pub fn lease_replicas(&mut self, now: Mono, key: &[u8]) -> Option<Vec<ReplicaDescriptor>> {
        let at = self.find(key).filter(|at| !self.objects[*at].processing)?;
        self.grant_lease(at, now);
        Some(self.describe(at))
    }

    /// Is there an object with this key, complete or not? Grants nothing.
    pub fn is_known(&mut self, key: &[u8]) -> bool {
        self.find(key).is_some()
    }

    /// Where the object is, without a lease: for people who look, not for readers.
    ///
    /// # Errors
    /// `NoObject`, `NotReady`.
    pub fn peek(&self, key: &[u8]) -> Result<Vec<ReplicaView>, Refusal> {
        let at = self.objects.find(self.objects.hash(key)).ok_or(Refusal::NoObject)?;
        let object = &self.objects[at];
        if !object.replicas().any(|replica| self.segments.is_readable(replica.segment)) {
            return Err(Refusal::NoObject);
        }
        if object.processing {
            return Err(Refusal::NotReady);
        }
        let views = self.describe(at).into_iter().filter_map(|replica| match replica.place {
            Place::Memory(buffer) => Some(ReplicaView {
                bytes: buffer.size,
                address: buffer.buffer_address,
                protocol: buffer.protocol.to_string_lossy().into_owned(),
                endpoint: buffer.transport_endpoint.to_string_lossy().into_owned(),
            }),
            _ => None,
        });
        Ok(views.collect())
    }

    /// Extend the object's lease, and its group's, to `now` + TTL.
    pub(super) fn grant_lease(&mut self, at: u32, now: Mono) {
        let lease = now + self.policy.lease_ttl;
        self.order.touch(&mut self.objects, at, lease);
        if let Some(group) = self.objects[at].group() {
            self.groups.touch(group, lease);
        }
    }

    /// Up to `limit` slots from `cursor` on are looked at; the mounted segments in them are given to `visit`. Where to go on, or
    /// `None` at the end.
    pub fn view_segments(&self, cursor: u64, limit: usize, visit: &mut dyn FnMut(SegmentView<'_>)) -> Option<u64> {
        let slots = u64::from(self.segments.slots());
        let end = slots.min(cursor.saturating_add(limit.max(1) as u64));
        for slot in (cursor..end).filter_map(|slot| u32::try_from(slot).ok()) {
            let Some(mounted) = self.segments.get(slot) else { continue };
            let segment = &mounted.segment;
            visit(SegmentView {
                id: segment.id,
                client: mounted.client,
                name: &segment.name.to_string_lossy(),
                base: segment.base,
                bytes: segment.size,
                used_bytes: mounted.used,
                endpoint: &segment.te_endpoint.to_string_lossy(),
                protocol: &segment.protocol.to_string_lossy(),
                status: mounted.status.0,
            });
        }
        (end < slots).then_some(end)
    }

    /// Up to `limit` slots from `cursor` on are looked at; the keys of complete objects in them are given to `visit`. Where to go
    /// on, or `None` at the end. An object that exists all the while is seen exactly once.
    pub fn keys(&self, cursor: u64, limit: usize, visit: &mut dyn FnMut(&[u8])) -> Option<u64> {
        let end = u64::from(self.objects.slots()).min(cursor.saturating_add(limit.max(1) as u64));
        for at in (cursor..end).filter_map(|at| u32::try_from(at).ok()) {
            let Some(object) = self.objects.get(at) else { continue };
            if !object.processing && object.replicas().any(|replica| self.segments.is_readable(replica.segment)) {
                visit(self.objects.key(at));
            }
        }
        (end < u64::from(self.objects.slots())).then_some(end)
    }
}

impl From<Refusal> for ErrorCode {
    fn from(refusal: Refusal) -> ErrorCode {
        refusal.code()
    }
}
