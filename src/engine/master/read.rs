//! Lookups. Every read grants the object a lease that protects it.
//!
//! Like upstream, the lease end also determines the eviction order.

use crate::refusal::MasterRefusal;
use crate::slots::{ObjectSlot, SegmentSlot};
use crate::state::MasterState;
use crate::view::{HeartbeatView, ReplicaView, SegmentView};
use mcctl_base::{ErrorCode, Mono};
use mcctl_wire::types::{GetReplicaListResponse, ReplicaDescriptor, ReplicaLocation};

impl MasterState {
    /// Returns true if a complete object with this key exists, and grants it a lease.
    pub fn exist(&mut self, now: Mono, key: &[u8]) -> bool {
        match self.find_readable(key) {
            Some(at) if !self.objects[at].eviction.is_writing() => {
                self.counters.exist_hits += 1;
                self.grant_lease(at, now);
                true
            }
            _ => false,
        }
    }

    /// Returns the object's replicas and grants it a lease.
    ///
    /// # Errors
    /// `NoObject`, `NotReady`.
    pub fn replica_list(&mut self, now: Mono, key: &[u8]) -> Result<GetReplicaListResponse, MasterRefusal> {
        self.counters.total_gets += 1;
        let at = self.find_readable(key).ok_or(MasterRefusal::NoObject)?;
        let object = &self.objects[at];
        if object.eviction.is_writing() {
            return Err(MasterRefusal::NotReady);
        }
        self.counters.mem_hits += 1;
        self.counters.mem_hit_bytes += object.size;
        self.counters.valid_gets += 1;
        let object_checksum = object.eviction.checksum();
        self.grant_lease(at, now);
        let lease_ttl_ms = u64::try_from(self.policy.lease_ttl.as_millis()).unwrap_or(u64::MAX);
        Ok(GetReplicaListResponse { replicas: self.describe(at), lease_ttl_ms, object_checksum })
    }

    /// Returns a complete object's replicas and grants it a lease. For lookups by regular
    /// expression, which upstream does not count as reads.
    pub fn lease_replicas(&mut self, now: Mono, key: &[u8]) -> Option<Vec<ReplicaDescriptor>> {
        let at = self.find_readable(key).filter(|at| !self.objects[*at].eviction.is_writing())?;
        self.grant_lease(at, now);
        Some(self.describe(at))
    }

    /// Returns true if an object with this key exists, complete or not. Grants no lease.
    pub fn contains_key(&mut self, key: &[u8]) -> bool {
        self.find_readable(key).is_some()
    }

    /// Returns the object's replicas without granting a lease, for the admin API.
    ///
    /// # Errors
    /// `NoObject`, `NotReady`.
    pub fn peek(&self, key: &[u8]) -> Result<Vec<ReplicaView>, MasterRefusal> {
        let at = self.objects.find(self.objects.hash(key)).ok_or(MasterRefusal::NoObject)?;
        let object = &self.objects[at];
        if !self.has_readable_replica(at) {
            return Err(MasterRefusal::NoObject);
        }
        if object.eviction.is_writing() {
            return Err(MasterRefusal::NotReady);
        }
        let views = self.describe(at).into_iter().filter_map(|replica| match replica.location {
            ReplicaLocation::Memory(buffer) => Some(ReplicaView {
                bytes: buffer.size,
                address: buffer.buffer_address,
                protocol: buffer.protocol.to_string_lossy().into_owned(),
                endpoint: buffer.transport_endpoint.to_string_lossy().into_owned(),
            }),
            _ => None,
        });
        Ok(views.collect())
    }

    /// Extends the lease on the object and its group to `now` + TTL.
    pub(super) fn grant_lease(&mut self, at: ObjectSlot, now: Mono) {
        let lease = now + self.policy.lease_ttl;
        self.order.touch(&mut self.objects, at, lease);
        if let Some(group) = self.objects[at].group() {
            self.groups.extend_lease(&self.order, group, lease);
        }
    }

    /// Scans up to `limit` segment slots, starting at `cursor`, and passes each mounted segment to
    /// `visit`. Returns the next cursor, or `None` at the end.
    pub fn view_segments(
        &self,
        now: Mono,
        cursor: u64,
        limit: usize,
        visit: &mut dyn FnMut(SegmentView<'_>),
    ) -> Option<u64> {
        let slots = u64::from(self.segments.slots());
        let end = slots.min(cursor.saturating_add(limit.max(1) as u64));
        for slot in (cursor..end).filter_map(|slot| u32::try_from(slot).ok().map(SegmentSlot)) {
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
                host: &segment.host_id.to_string_lossy(),
                status: mounted.status.0,
                held_for: self.hold_left(now, mounted),
                unconfirmed: self.unconfirmed(now, slot),
            });
        }
        (end < slots).then_some(end)
    }

    /// Scans up to `limit` segment slots, starting at `cursor`, and passes the last call of each
    /// mounted segment's client to `visit`. Leaves out the clients that have not called since a
    /// restore. Returns the next cursor, or `None` at the end.
    pub fn view_heartbeats(
        &self,
        now: Mono,
        cursor: u64,
        limit: usize,
        visit: &mut dyn FnMut(HeartbeatView),
    ) -> Option<u64> {
        let slots = u64::from(self.segments.slots());
        let end = slots.min(cursor.saturating_add(limit.max(1) as u64));
        for slot in (cursor..end).filter_map(|slot| u32::try_from(slot).ok().map(SegmentSlot)) {
            let Some(mounted) = self.segments.get(slot) else { continue };
            let client = mounted.client;
            let Some(record) = self.clients.get(client).filter(|record| !record.restored) else { continue };
            let Some(deadline) = self.clients.deadline(client) else { continue };
            let next_deadline = now + self.policy.client_ttl;
            // A later deadline than that of a call at `now` is the one for all clients of a new
            // leader: this client has not called it.
            let age = match record.called_before.filter(|_| deadline > next_deadline) {
                Some(last) => now.since(last),
                None => next_deadline.since(deadline),
            };
            visit(HeartbeatView { client, age, expires_in: deadline.since(now) });
        }
        (end < slots).then_some(end)
    }

    /// Scans up to `limit` object slots, starting at `cursor`, and passes the key of each complete
    /// object to `visit`. Returns the next cursor, or `None` at the end. An object that exists
    /// during the whole scan is visited exactly once.
    pub fn keys(&self, cursor: u64, limit: usize, visit: &mut dyn FnMut(&[u8])) -> Option<u64> {
        let end = u64::from(self.objects.slots()).min(cursor.saturating_add(limit.max(1) as u64));
        for at in (cursor..end).filter_map(|at| u32::try_from(at).ok().map(ObjectSlot)) {
            let Some(object) = self.objects.get(at) else { continue };
            if !object.eviction.is_writing() && self.has_readable_replica(at) {
                visit(self.objects.key(at));
            }
        }
        (end < u64::from(self.objects.slots())).then_some(end)
    }
}

impl From<MasterRefusal> for ErrorCode {
    fn from(refusal: MasterRefusal) -> ErrorCode {
        refusal.code()
    }
}
