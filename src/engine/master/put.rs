//! Writes. A put allocates memory, its writer fills that memory, and the end of the put makes the
//! object readable. Until then, only the writer can complete or revoke the object.
//!
//! A writer may crash or be slow. After `put_discard_after`, another client may put the same key.
//! The first writer's memory is then quarantined until `put_release_after`, because the first
//! writer may still write to it.

use bytes::Bytes;

use crate::alloc::placement::{self, PlacementRequest, Strategy};
use crate::config::StorePolicy;
use crate::eviction::index::PendingPin;
use crate::object::OBJECTS_MAX;
use crate::owner::is_unnamed;
use crate::record::buffer::RepeatedCall;
use crate::record::clock::ChangeTimes;
use crate::record::{MasterRecord, ObjectContent, ReplicaList, remaining_ms};
use crate::refusal::MasterRefusal;
use crate::restarted_writes::Caller;
use crate::slots::ObjectSlot;
use crate::state::MasterState;
use mcctl_base::id::KEY_BYTES_MAX;
use mcctl_base::{ClientId, Mono};
use mcctl_election::ha::planted::{HaMistake, is_planted};
use mcctl_wire::TextBuf;
use mcctl_wire::types::{ReplicaDescriptor, ReplicaType, ReplicateConfig, SoftPinAction};

/// The validated options of a put call, from its `ReplicateConfig`. They apply to all keys of a
/// batch.
#[derive(Clone, Debug)]
pub struct PutOptions<'a> {
    replicas: u64,
    pin: PendingPin,
    hard_pin: bool,
    preferred: Vec<Bytes>,
    /// Host whose segments are preferred. An empty name stands for the host of the writer's own
    /// segments. `None` means no preference.
    near: Option<Bytes>,
    /// One group name per key; `None` if the put sets no groups.
    groups: Option<&'a [TextBuf]>,
}

impl<'a> PutOptions<'a> {
    /// Validates the options for a put of `keys` keys.
    ///
    /// # Errors
    /// `BadArguments` for contradictory options, `NoSuchTier` for storage tiers that this master
    /// does not support.
    pub fn new(
        config: &'a ReplicateConfig,
        keys: usize,
        policy: &StorePolicy,
    ) -> Result<PutOptions<'a>, MasterRefusal> {
        let bad = config.replica_num == 0 && config.nof_replica_num == 0 && config.dfs_replica_num == 0
            || config.dfs_replica_num > 1
            || config.dfs_replica_num > 0 && config.replica_num == 0;
        if bad {
            return Err(MasterRefusal::BadArguments);
        }
        // Upstream checks in this order, which determines the error code when several options are
        // invalid.
        if config.dfs_replica_num > 0 {
            return Err(MasterRefusal::NoSuchTier);
        }
        if config.nof_replica_num > 0 {
            return Err(MasterRefusal::BadArguments);
        }
        let pin = match (config.soft_pin_action, config.soft_pin_ttl_ms) {
            (SoftPinAction::PRESERVE, None) => PendingPin::Keep,
            (SoftPinAction::DISABLE, None) => PendingPin::Clear,
            (SoftPinAction::ENABLE, ttl_ms) => {
                let ttl_ms = ttl_ms.map_or(policy.soft_pin_ttl.as_millis(), u128::from);
                if ttl_ms > policy.soft_pin_ttl_max.as_millis() {
                    return Err(MasterRefusal::BadArguments);
                }
                PendingPin::Set(u64::try_from(ttl_ms).map_err(|_| MasterRefusal::BadArguments)?)
            }
            _ => return Err(MasterRefusal::BadArguments),
        };
        let groups = config.group_ids.as_deref();
        if groups.is_some_and(|groups| groups.len() != keys) {
            return Err(MasterRefusal::BadArguments);
        }
        let preferred = if config.preferred_segment.is_empty() {
            config.preferred_segments.iter().map(|name| name.0.clone()).filter(|name| !name.is_empty()).collect()
        } else {
            vec![config.preferred_segment.0.clone()]
        };
        let near = policy.strategy == Strategy::LocalFirst || config.prefer_alloc_in_same_node;
        // As in upstream, the host preference applies only to single copies, because several copies
        // must be on different hosts.
        let near = (near && config.replica_num == 1).then(|| config.host_id.0.clone());
        Ok(PutOptions { replicas: config.replica_num, pin, hard_pin: config.with_hard_pin, preferred, near, groups })
    }

    /// Sets the segment name to try first from now on.
    pub fn prefer(&mut self, name: Bytes) {
        self.preferred = vec![name];
    }

    /// The group of the `nth` key. An empty name means "no group".
    fn group(&self, nth: usize) -> Option<&'a [u8]> {
        Some(&self.groups?.get(nth)?.0[..]).filter(|name| !name.is_empty())
    }
}

/// The replicas that a writer fills, or why the write cannot start.
pub(crate) type PutStartResult = Result<Vec<ReplicaDescriptor>, MasterRefusal>;

/// A validated put of one key.
#[derive(Clone, Copy, Debug)]
pub struct PutSpec<'a> {
    key: &'a [u8],
    /// Size of the value in bytes.
    bytes: u64,
    /// The key's group; `None` if the put sets none.
    group: Option<&'a [u8]>,
    options: &'a PutOptions<'a>,
}

impl<'a> PutSpec<'a> {
    /// Validates the `nth` key of a call and its size. `options` are the call's validated options,
    /// or why they are invalid.
    ///
    /// # Errors
    /// `BadArguments` if the key's length is invalid or the size is 0; otherwise the error of the
    /// options. Upstream checks in this order.
    pub fn new(
        key: &'a [u8],
        bytes: u64,
        options: Result<&'a PutOptions<'a>, &MasterRefusal>,
        nth: usize,
    ) -> Result<PutSpec<'a>, MasterRefusal> {
        if key.is_empty() || key.len() > KEY_BYTES_MAX || bytes == 0 {
            return Err(MasterRefusal::BadArguments);
        }
        let options = options.map_err(|refusal| *refusal)?;
        let group = options.group(nth);
        if group.is_some_and(|group| group.len() > KEY_BYTES_MAX) {
            return Err(MasterRefusal::BadArguments);
        }
        Ok(PutSpec { key, bytes, group, options })
    }
}

impl MasterState {
    /// Allocates memory for a new object.
    ///
    /// # Errors
    /// `ObjectExists`, `NoSpace`.
    pub fn put_start(&mut self, now: Mono, by: Caller, spec: &PutSpec<'_>) -> PutStartResult {
        self.evict_for_put(now);
        let mut inherited = InheritedAttributes { group: spec.group, ..InheritedAttributes::default() };
        if let Some(at) = self.find(spec.key) {
            let object = &self.objects[at];
            let Some(started) = object.eviction.write_start() else {
                // Clients regard the value as stored.
                self.repeat(RepeatedCall { needs_sync: false, needs_standby: false });
                return Err(MasterRefusal::ObjectExists);
            };
            // Of two clients without ids, one could end the write of the other. Upstream's masters
            // for these clients do not discard writes either.
            let is_named = !is_unnamed(self.owners.id(object.owner));
            if !is_named || started + self.policy.put_discard_after >= now {
                return Err(MasterRefusal::ObjectExists);
            }
            inherited.restarts = self.owners.id(object.owner) == by.client;
            self.counters.put_start_discards += 1;
            self.discard(at, now, started + self.policy.put_release_after);
        }
        self.create(now, by, spec, inherited)
    }

    /// Allocates memory for a new or existing object. An existing object of the same size is
    /// overwritten in place.
    ///
    /// # Errors
    /// `BadArguments`, `NoSpace`. After `NoSpace`, an existing object of a different size has been
    /// removed.
    pub fn upsert_start(&mut self, now: Mono, by: Caller, spec: &PutSpec<'_>) -> PutStartResult {
        self.evict_for_put(now);
        let mut inherited = InheritedAttributes { group: spec.group, ..InheritedAttributes::default() };
        let Some(at) = self.find(spec.key) else {
            return self.create(now, by, spec, inherited);
        };
        let object = &self.objects[at];
        let group = object.group().map(|group| self.groups.name(group));
        if spec.options.groups.is_some() && group != spec.group {
            return Err(MasterRefusal::BadArguments);
        }
        let pin = object.soft_pin().filter(|end| *end > now);
        let until = now + self.policy.put_release_after;
        if object.eviction.is_writing() {
            // Unlike a put, an upsert displaces an unfinished write immediately. Upstream keeps the
            // soft pin here, but not the group.
            inherited.pin = pin;
            inherited.restarts = self.owners.id(object.owner) == by.client;
            self.counters.put_start_discards += 1;
            self.discard(at, now, until);
            return self.create(now, by, spec, inherited);
        }
        // A replica that its segment's client has not confirmed cannot be overwritten, so the
        // object is replaced as a whole.
        let is_confirmed = object.replicas().all(|replica| self.segments.is_readable(replica.segment));
        if object.size != spec.bytes || !is_confirmed {
            let group: Option<Box<[u8]>> = group.map(Into::into);
            inherited.hard_pin = object.eviction.hard_pin();
            inherited.pin = pin;
            inherited.group = group.as_deref();
            self.note_removal();
            // Readers may still be reading the old bytes, so the memory that contains them is
            // quarantined.
            self.discard(at, now, until);
            return self.create(now, by, spec, inherited);
        }
        let record = MasterRecord::ObjectRewritten { slot: at, client: by.client, pending: spec.options.pin };
        self.commit(ChangeTimes::At(now), &record);
        Ok(self.describe(at))
    }

    /// Completes the object: its bytes have been written, and it becomes readable.
    ///
    /// The repeated end of a write succeeds, unless its writer is no longer known.
    ///
    /// # Errors
    /// `NoObject`, `NotTheWriter`, `NoWrite`.
    pub fn put_end(
        &mut self,
        now: Mono,
        by: Caller,
        key: &[u8],
        checksum: Option<u64>,
        kind: ReplicaType,
    ) -> Result<(), MasterRefusal> {
        let at = self.find(key).ok_or(MasterRefusal::NoObject)?;
        if !self.is_writer(at, by.client) && !is_planted(HaMistake::WriterNotCompared) {
            return Err(MasterRefusal::NotTheWriter);
        }
        let object = &self.objects[at];
        if !object.eviction.is_writing() {
            // A client resends the end of a write if the response was lost. Processing it again
            // changes nothing.
            if !is_memory(kind) {
                return Err(MasterRefusal::NoWrite);
            }
            self.repeat(RepeatedCall { needs_sync: false, needs_standby: false });
            return Ok(());
        }
        if !is_memory(kind) {
            // The object has no replica in this tier. Like upstream, return success without
            // completing the memory write.
            return Ok(());
        }
        let bytes = object.size;
        self.counters.suspicious_put_ends += u64::from(self.restarted.end(object.replica.id, by));
        self.commit(ChangeTimes::At(now), &MasterRecord::ObjectCompleted { slot: at, checksum });
        self.counters.value_bytes.record(bytes);
        match checksum {
            Some(_) => self.counters.completed_with_checksum += 1,
            None => self.counters.completed_without_checksum += 1,
        }
        Ok(())
    }

    /// Removes the object: its bytes could not be written. If the write was an upsert in place, its
    /// memory is quarantined while readers of the previous value have leases.
    ///
    /// # Errors
    /// `NoObject`, `NotTheWriter`, `NoWrite`.
    pub fn put_revoke(
        &mut self,
        now: Mono,
        client: ClientId,
        key: &[u8],
        kind: ReplicaType,
    ) -> Result<(), MasterRefusal> {
        let at = self.find(key).ok_or(MasterRefusal::NoObject)?;
        if !self.is_writer(at, client) {
            return Err(MasterRefusal::NotTheWriter);
        }
        if !self.objects[at].eviction.is_writing() {
            return Err(MasterRefusal::NoWrite);
        }
        if is_memory(kind) {
            self.abandon(at, now);
        }
        Ok(())
    }

    /// Whether this client writes the object. For a complete object: whether it is known to have
    /// written it.
    fn is_writer(&self, at: ObjectSlot, client: ClientId) -> bool {
        let object = &self.objects[at];
        match object.eviction.is_writing() {
            true => self.owners.id(object.owner) == client,
            false => self.ended.is_writer(at, object.replica.id, client),
        }
    }

    /// The host of the client's own segments, or an empty name if it has none.
    fn host_of(&self, client: ClientId) -> Bytes {
        let segments = self.clients.get(client).map_or(&[][..], |client| &client.segments);
        let mut hosts = segments.iter().filter_map(|slot| Some(&self.segments.get(*slot)?.segment.host_id.0));
        hosts.find(|host| !host.is_empty()).cloned().unwrap_or_default()
    }

    fn create(
        &mut self,
        now: Mono,
        by: Caller,
        spec: &PutSpec<'_>,
        inherited: InheritedAttributes<'_>,
    ) -> PutStartResult {
        let PutSpec { key, bytes, options, .. } = *spec;
        let mut scratch = std::mem::take(&mut self.scratch);
        scratch.clear();
        if self.objects.len() < OBJECTS_MAX {
            let near =
                options.near.as_ref().map(|host| if host.is_empty() { self.host_of(by.client) } else { host.clone() });
            let near = near.as_deref().filter(|host| !host.is_empty());
            let request = PlacementRequest { bytes, replicas: options.replicas, preferred: &options.preferred, near };
            placement::place(self.policy.strategy, &mut self.segments, &mut self.rng, &request, &mut scratch);
        }
        let Some((&replica, more)) = scratch.split_first() else {
            self.scratch = scratch;
            self.counters.put_start_alloc_failures += 1;
            self.note_failed_put(now, bytes);
            // Memory will become available without evictions: freed memory waits for its change to
            // be durable, or restored segments will accept new objects.
            self.is_freed_awaited = self.freed.bytes() > 0;
            let awaited = self.freed.bytes() >= bytes.saturating_mul(options.replicas) || self.open_at.is_some();
            if self.segments.open_names() as u64 >= options.replicas && !awaited {
                self.eviction.requested = true;
            }
            return Err(MasterRefusal::NoSpace);
        };
        if (scratch.len() as u64) < options.replicas {
            self.counters.put_start_partial_allocations += 1;
        }
        let slot = self.objects.next_slot();
        let times = inherited.pin.map_or(ChangeTimes::At(now), |end| ChangeTimes::Until { now, end });
        let record = MasterRecord::ObjectStarted(ObjectContent {
            slot,
            key,
            client: by.client,
            size: bytes,
            replicas: ReplicaList::Records { first: &replica, rest: more },
            hard_pin: options.hard_pin || inherited.hard_pin,
            group: inherited.group,
            pin_ms: inherited.pin.map(|end| remaining_ms(now, end)),
            pending: options.pin,
        });
        self.commit(times, &record);
        if inherited.restarts {
            self.restarted.add(replica.id, by.connection);
        }
        self.scratch = scratch;
        Ok(self.describe(slot))
    }
}

/// What a new object inherits from the object it replaces.
#[derive(Clone, Copy, Debug, Default)]
struct InheritedAttributes<'a> {
    group: Option<&'a [u8]>,
    pin: Option<Mono>,
    hard_pin: bool,
    /// It replaces an unfinished write of the same client.
    restarts: bool,
}

/// Returns true if this replica type includes memory replicas.
fn is_memory(kind: ReplicaType) -> bool {
    kind == ReplicaType::ALL || kind == ReplicaType::MEMORY
}
