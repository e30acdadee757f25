//! The master's state and the basic operations that keep it consistent.
//!
//! Pure: each call receives the time, and returns the actions for its environment as `Effects`. No
//! call locks the state for long. Work that grows with the store (eviction, the records that refer
//! to a removed segment, the segments of a client that has a thousand of them, remove-all) is done
//! in slices by [`MasterState::tick`] or through a cursor.
//!
//! This file contains the state's data and the record operations that all other files use. The
//! calls are in `read`, `put`, `remove` and `mount`, the background work in `eviction` and `tick`.
//! Upstream: `mooncake-store/src/master_service.cpp`.
//!
//! The counters aside, the state changes only in these functions of [`MasterState`]:
//!
//! * writes: `put_start`, `upsert_start`, `put_end`, `put_revoke`
//! * removal: `remove`, `remove_slice`, `clear_replicas`, `withdraw`
//! * leases: `exist`, `replica_list`, `lease_replicas`
//! * segments and clients: `mount`, `remount`, `unmount`, `unmount_gracefully`, `ping`,
//!   `extend_client_deadlines`
//! * the passage of time: `tick`
//! * the metadata service's records: `change_metadata`
//! * records and snapshots: those in `recording`, `restore` and `snapshot`
//!
//! Several of them, and `contains_key`, also drop the replicas that they find on removed segments
//! (`find`).
//!
//! What a record of an object describes changes only in `apply_record` (`object_records`), which a
//! leader calls through `commit`. The changes of segments and clients are recorded next to the
//! change (`record`). Leases, the eviction order and the end of a soft pin are not recorded.

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use crate::alloc::placement::Rng;
use crate::client::ClientTable;
use crate::config::StorePolicy;
use crate::discard::Discards;
use crate::ended_writes::EndedWrites;
use crate::eviction::index::EvictionIndex;
use crate::eviction::round::EvictionProgress;
use crate::freed::FreedRanges;
use crate::group::GroupTable;
use crate::memory_shortage::FailedPuts;
use crate::metrics::{MasterCounters, MasterGauges};
use crate::missing_clients::MissingReport;
use crate::object::{ObjectTable, ReplicaRecord};
use crate::owner::OwnerTable;
use crate::record::buffer::RecordBuffer;
use crate::record::clock::ChangeTimes;
use crate::record::{MasterRecord, ReplicaList, remaining_ms};
use crate::restarted_writes::RestartedWrites;
use crate::segment::SegmentTable;
use crate::slots::{ObjectSlot, SegmentSlot};
use crate::snapshot_walk::SnapshotWalk;
use crate::tenant::{TenantUsage, TenantUsages};
use mcctl_base::{Mono, SegmentId};
use mcctl_election::ha::planted::{HaMistake, is_planted};
use mcctl_metadata::records::SharedTable;
use mcctl_wire::types::{BufferDescriptor, ReplicaDescriptor, ReplicaLocation, ReplicaStatus};

/// The complete state of a master.
#[derive(Debug)]
pub struct MasterState {
    pub(super) policy: StorePolicy,
    pub(super) objects: ObjectTable,
    pub(super) order: EvictionIndex,
    pub(super) owners: OwnerTable,
    pub(super) ended: EndedWrites,
    pub(super) restarted: RestartedWrites,
    pub(super) failed_puts: FailedPuts,
    pub(super) missing_report: MissingReport,
    pub(super) groups: GroupTable,
    pub(super) tenants: TenantUsages,
    pub(super) segments: SegmentTable,
    pub(super) clients: ClientTable,
    pub(super) discards: Discards,
    /// The records of the metadata service. Other threads may read them at any time.
    pub(super) metadata: SharedTable,
    pub(super) eviction: EvictionProgress,
    /// Segments in their grace period, ordered by its end.
    pub(super) grace: BTreeSet<(Mono, SegmentId)>,
    /// Segments that accept no new objects because they were mounted again, ordered by the end of
    /// their hold.
    pub(super) holds: BTreeSet<(Mono, SegmentId)>,
    /// Slots of expired clients' segments that have not been retired yet.
    pub(super) condemned: VecDeque<SegmentSlot>,
    /// State of the search for records that refer to removed segments: the number of object slots
    /// left to inspect, and the next slot.
    pub(super) sweep_left: u32,
    pub(super) sweep_at: u32,
    pub(super) rng: Rng,
    /// Number of complete objects without a hard pin. The eviction ratio refers to this number.
    pub(super) evictable: u64,
    /// Size of the replicas of complete objects with a hard pin, in bytes.
    pub(super) hard_pinned_bytes: u64,
    pub(super) mem_replicas: u64,
    /// Scratch buffer for the replicas of a new object; kept to reuse its allocation.
    pub(super) scratch: Vec<ReplicaRecord>,
    /// The records of the change in progress. `None`: changes are not recorded.
    pub(super) records: Option<RecordBuffer>,
    /// Freed memory whose change is not durable. It counts as free. Empty if changes are not
    /// recorded.
    pub(super) freed: FreedRanges,
    /// A put has failed because freed memory waits.
    pub(super) is_freed_awaited: bool,
    /// The barrier of the cluster's sync record, if there is one.
    pub(super) barrier: Option<u64>,
    /// The snapshot in progress.
    pub(super) walk: Option<Box<SnapshotWalk>>,
    /// When restored segments that their clients have not confirmed are dropped; `None` without
    /// such segments.
    pub(super) confirm_until: Option<Mono>,
    /// When confirmed segments of the restore accept new objects, if they do not yet.
    pub(super) open_at: Option<Mono>,
    /// The longest lease that earlier processes granted, and when the last of these leases ends at
    /// the latest.
    pub(super) earlier_lease: Duration,
    pub(super) earlier_leases_until: Mono,
    /// The durable records contain everything that was acknowledged
    /// ([`MasterRecord::ProcessTerms`]).
    pub(super) complete_records: bool,
    /// The view of the leader, for the responses to pings; 0 without high availability.
    pub view: u64,
    pub counters: MasterCounters,
}

impl MasterState {
    /// Creates the state of an empty store.
    pub fn new(policy: StorePolicy) -> MasterState {
        let seed = policy.seed;
        MasterState {
            objects: ObjectTable::new(seed),
            order: EvictionIndex::new(policy.eviction_policy),
            owners: OwnerTable::new(seed),
            ended: EndedWrites::default(),
            restarted: RestartedWrites::default(),
            failed_puts: FailedPuts::default(),
            missing_report: MissingReport::default(),
            groups: GroupTable::new(seed),
            tenants: TenantUsages::default(),
            segments: SegmentTable::new(seed),
            clients: ClientTable::new(seed),
            discards: Discards::default(),
            metadata: SharedTable::default(),
            eviction: EvictionProgress::default(),
            grace: BTreeSet::new(),
            holds: BTreeSet::new(),
            condemned: VecDeque::new(),
            sweep_left: 0,
            sweep_at: 0,
            rng: Rng::new(seed),
            evictable: 0,
            hard_pinned_bytes: 0,
            mem_replicas: 0,
            scratch: Vec::new(),
            records: None,
            freed: FreedRanges::default(),
            is_freed_awaited: false,
            barrier: None,
            walk: None,
            confirm_until: None,
            open_at: None,
            earlier_lease: Duration::ZERO,
            earlier_leases_until: Mono::ZERO,
            complete_records: true,
            view: 0,
            counters: MasterCounters::default(),
            policy,
        }
    }

    /// Returns the policy of the store.
    pub fn policy(&self) -> &StorePolicy {
        &self.policy
    }

    /// The objects of each tenant but the default one, in the order of their names.
    pub fn tenants(&self) -> impl Iterator<Item = (&[u8], TenantUsage)> {
        self.tenants.iter()
    }

    /// The current gauge values.
    pub fn gauges(&self) -> MasterGauges {
        MasterGauges {
            allocated_bytes: self.segments.used(),
            capacity_bytes: self.segments.capacity(),
            keys: u64::from(self.objects.len()),
            soft_pinned_keys: self.order.pinned() as u64,
            clients: self.clients.len() as u64,
            mem_replicas: self.mem_replicas,
            discarded_staging_bytes: self.discards.bytes(),
        }
    }

    /// Used bytes divided by capacity; 0 if there is no capacity.
    pub fn used_ratio(&self) -> f64 {
        match self.segments.capacity() {
            0 => 0.0,
            capacity => self.segments.used() as f64 / capacity as f64,
        }
    }

    /// Prefetches the records of a batch of keys. See [`ObjectTable::warm`].
    pub(super) fn warm<'a>(&self, keys: impl Iterator<Item = &'a [u8]>) {
        self.objects.warm(keys);
    }

    /// Returns the object with this key, after dropping its lost replicas. An object whose replicas
    /// are all lost is removed. The object may be on segments that are not readable yet; a read
    /// uses [`find_readable`](Self::find_readable).
    #[inline]
    pub(super) fn find(&mut self, key: &[u8]) -> Option<ObjectSlot> {
        let at = self.objects.find(self.objects.hash(key))?;
        let object = &self.objects[at];
        if object.extra.is_none() && self.segments.is_kept(object.replica.segment) || self.drop_lost_replicas(at) {
            Some(at)
        } else {
            None
        }
    }

    /// Like [`find`](Self::find), for reads: also returns `None` if no replica is on a readable
    /// segment.
    #[inline]
    pub(super) fn find_readable(&mut self, key: &[u8]) -> Option<ObjectSlot> {
        let at = self.objects.find(self.objects.hash(key))?;
        let object = &self.objects[at];
        if object.extra.is_none() && self.segments.is_readable(object.replica.segment) {
            return Some(at);
        }
        (self.drop_lost_replicas(at) && self.has_readable_replica(at)).then_some(at)
    }

    /// Returns true if a replica of the object is on a readable segment.
    pub(super) fn has_readable_replica(&self, at: ObjectSlot) -> bool {
        self.objects[at].replicas().any(|replica| self.segments.is_readable(replica.segment))
    }

    /// Drops the replicas whose segment has been removed. Returns false if none was left and the
    /// object was removed.
    pub(super) fn drop_lost_replicas(&mut self, at: ObjectSlot) -> bool {
        let segments = &self.segments;
        let kept = |replica: &ReplicaRecord| segments.is_kept(replica.segment);
        if self.objects[at].replicas().all(kept) {
            return true;
        }
        if !self.objects[at].replicas().any(kept) {
            let unconfirmed = |replica: &ReplicaRecord| segments.is_unconfirmed(replica.segment);
            self.counters.unconfirmed_keys += u64::from(self.objects[at].replicas().any(unconfirmed));
            self.erase(at);
            return false;
        }
        self.keep_replicas(at, |segments, replica| segments.is_kept(replica.segment));
        true
    }

    /// Frees the replicas for which `keep` returns false. At least one must remain.
    pub(super) fn keep_replicas(&mut self, at: ObjectSlot, keep: impl Fn(&SegmentTable, &ReplicaRecord) -> bool) {
        let all = self.objects[at].replicas();
        let kept: Vec<ReplicaRecord> = all.filter(|replica| keep(&self.segments, replica)).copied().collect();
        let (first, rest) = kept.split_first().expect("the caller checked that at least one remains");
        let kept = ReplicaList::Records { first, rest };
        self.commit(ChangeTimes::Untimed, &MasterRecord::ReplicasDropped { slot: at, kept });
    }

    /// Removes an object and frees its memory.
    pub(super) fn erase(&mut self, at: ObjectSlot) {
        self.commit(ChangeTimes::Untimed, &MasterRecord::ObjectErased { slot: at });
    }

    /// Removes an object at `now` and quarantines its memory until `until`.
    pub(super) fn discard(&mut self, at: ObjectSlot, now: Mono, until: Mono) {
        let until = if is_planted(HaMistake::QuarantineSkipped) { now } else { until };
        let record = MasterRecord::ObjectDiscarded { slot: at, remaining_ms: remaining_ms(now, until) };
        self.commit(ChangeTimes::Until { now, end: until }, &record);
    }

    /// Removes an unfinished write. If the write replaces a value in place, readers may still read
    /// the memory under the lease on that value, so the memory is quarantined until the lease ends.
    pub(super) fn abandon(&mut self, at: ObjectSlot, now: Mono) {
        let lease = self.order.lease_end(self.objects[at].eviction.lease_until());
        if now < lease { self.discard(at, now, lease) } else { self.erase(at) }
    }

    /// The time until which the object is protected by its own lease or its group's.
    pub(super) fn lease_until(&self, at: ObjectSlot) -> Mono {
        let object = &self.objects[at];
        let own = self.order.lease_end(object.eviction.lease_until());
        match object.group() {
            Some(group) => own.max(self.order.lease_end(self.groups.lease_until(group))),
            None => own,
        }
    }

    /// Returns the object's replicas in the form sent to clients.
    pub(super) fn describe(&self, at: ObjectSlot) -> Vec<ReplicaDescriptor> {
        let object = &self.objects[at];
        let status = if object.eviction.is_writing() { ReplicaStatus::PROCESSING } else { ReplicaStatus::COMPLETE };
        object.replicas().filter_map(|replica| self.describe_replica(replica, object.size, status)).collect()
    }

    fn describe_replica(&self, replica: &ReplicaRecord, size: u64, status: ReplicaStatus) -> Option<ReplicaDescriptor> {
        let segment = &self.segments.get(replica.segment).filter(|mounted| mounted.confirmed)?.segment;
        Some(ReplicaDescriptor {
            id: replica.id,
            location: ReplicaLocation::Memory(BufferDescriptor {
                size,
                buffer_address: segment.base + replica.offset,
                protocol: segment.protocol.clone(),
                transport_endpoint: segment.te_endpoint.clone(),
            }),
            status,
        })
    }
}
