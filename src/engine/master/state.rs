//! The master's state: everything it knows, and the steps that keep it whole.
//!
//! Pure: the time comes in with each call, what must happen outside goes out as `Effects`. No call holds it long: work that
//! grows with the store (eviction, the records of a segment that went, a client's thousand segments, remove-all) is done in
//! slices by [`MasterState::tick`] or through a cursor.
//!
//! Here are the parts and the few operations on records that all others use; the calls are in `read`, `put`, `remove` and
//! `mount`, the slow work in `evict` and `tick`. Upstream: `mooncake-store/src/master_service.cpp`.

use std::collections::{BTreeSet, VecDeque};

use crate::engine::alloc::placement::Rng;
use crate::engine::base::{Mono, SegmentId};
use crate::engine::master::client::Clients;
use crate::engine::master::config::Policy;
use crate::engine::master::discard::Discards;
use crate::engine::master::evict::Eviction;
use crate::engine::master::group::Groups;
use crate::engine::master::metrics::{Counters, Gauges};
use crate::engine::master::object::{Objects, Replica};
use crate::engine::master::order::Order;
use crate::engine::master::owner::Owners;
use crate::engine::master::segment::Segments;
use crate::engine::wire::types::{BufferDescriptor, Place, ReplicaDescriptor, ReplicaStatus};

/// Everything the master knows.
#[derive(Debug)]
pub struct MasterState {
    pub(super) policy: Policy,
    pub(super) objects: Objects,
    pub(super) order: Order,
    pub(super) owners: Owners,
    pub(super) groups: Groups,
    pub(super) segments: Segments,
    pub(super) clients: Clients,
    pub(super) discards: Discards,
    pub(super) eviction: Eviction,
    /// Segments whose grace period runs, by its end.
    pub(super) grace: BTreeSet<(Mono, SegmentId)>,
    /// Slots of condemned segments that are not retired yet.
    pub(super) condemned: VecDeque<u32>,
    /// Slots of the object table that are still to be looked at for records of gone segments, and where to go on.
    pub(super) sweep_left: u32,
    pub(super) sweep_at: u32,
    pub(super) rng: Rng,
    /// Complete objects without a hard pin: the base of the eviction ratio.
    pub(super) evictable: u64,
    /// Complete replicas.
    pub(super) mem_replicas: u64,
    /// Replicas of the object that is being put; kept for its allocation.
    pub(super) taken: Vec<Replica>,
    /// The figures.
    pub counters: Counters,
}

impl MasterState {
    /// An empty store.
    pub fn new(policy: Policy) -> MasterState {
        let seed = policy.seed;
        MasterState {
            objects: Objects::new(seed),
            order: Order::new(),
            owners: Owners::new(seed),
            groups: Groups::new(seed),
            segments: Segments::new(seed),
            clients: Clients::new(seed),
            discards: Discards::default(),
            eviction: Eviction::default(),
            grace: BTreeSet::new(),
            condemned: VecDeque::new(),
            sweep_left: 0,
            sweep_at: 0,
            rng: Rng::new(seed),
            evictable: 0,
            mem_replicas: 0,
            taken: Vec::new(),
            counters: Counters::default(),
            policy,
        }
    }

    /// The rules.
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// What stands now.
    pub fn gauges(&self) -> Gauges {
        Gauges {
            allocated_bytes: self.segments.used(),
            capacity_bytes: self.segments.capacity(),
            keys: u64::from(self.objects.len()),
            soft_pinned_keys: self.order.pinned() as u64,
            clients: self.clients.len() as u64,
            mem_replicas: self.mem_replicas,
            discarded_staging_bytes: self.discards.bytes(),
        }
    }

    /// Bytes in use over bytes in all; 0 without memory.
    pub fn used_ratio(&self) -> f64 {
        match self.segments.capacity() {
            0 => 0.0,
            capacity => self.segments.used() as f64 / capacity as f64,
        }
    }

    /// A batch about these keys comes: see [`Objects::warm`].
    pub(super) fn warm<'a>(&self, keys: impl Iterator<Item = &'a [u8]>) {
        self.objects.warm(keys);
    }

    /// The object with this key, rid of replicas whose segment is gone; an object that has no other is gone, too.
    #[inline]
    pub(super) fn find(&mut self, key: &[u8]) -> Option<u32> {
        let at = self.objects.find(self.objects.hash(key))?;
        let object = &self.objects[at];
        if object.extra.is_none() && self.segments.is_readable(object.replica.segment) || self.settle(at) {
            Some(at)
        } else {
            None
        }
    }

    /// Rid the object of replicas whose segment is gone. False: it had no other and is gone.
    pub(super) fn settle(&mut self, at: u32) -> bool {
        let segments = &self.segments;
        let readable = |replica: &Replica| segments.is_readable(replica.segment);
        if self.objects[at].replicas().all(readable) {
            return true;
        }
        if !self.objects[at].replicas().any(readable) {
            self.erase(at);
            return false;
        }
        self.keep_replicas(at, |segments, replica| segments.is_readable(replica.segment));
        true
    }

    /// Free the replicas that `keep` does not want. At least one must stay.
    pub(super) fn keep_replicas(&mut self, at: u32, keep: impl Fn(&Segments, &Replica) -> bool) {
        let (size, processing) = (self.objects[at].size, self.objects[at].processing);
        let all: Vec<Replica> = self.objects[at].replicas().copied().collect();
        let (kept, lost): (Vec<Replica>, Vec<Replica>) =
            all.into_iter().partition(|replica| keep(&self.segments, replica));
        for replica in &lost {
            self.segments.free(replica, size);
        }
        if !processing {
            self.mem_replicas -= lost.len() as u64;
        }
        let object = &mut self.objects[at];
        let (first, rest) = kept.split_first().expect("the caller made sure that one stays");
        object.replica = *first;
        if let Some(extra) = object.extra.as_mut() {
            extra.replicas = rest.to_vec();
        }
    }

    /// Forget an object and free its memory.
    pub(super) fn erase(&mut self, at: u32) {
        let size = self.objects[at].size;
        let mut taken = std::mem::take(&mut self.taken);
        taken.clear();
        self.erase_keeping_memory(at, &mut taken);
        for replica in taken.drain(..) {
            self.segments.free(&replica, size);
        }
        self.taken = taken;
    }

    /// Forget an object; its replicas go to `replicas`, their memory still taken.
    pub(super) fn erase_keeping_memory(&mut self, at: u32, replicas: &mut Vec<Replica>) {
        self.order.leave(&mut self.objects, at);
        let object = &self.objects[at];
        replicas.extend(object.replicas());
        if !object.processing {
            self.uncount(at);
        }
        let removed = self.objects.remove(at);
        self.owners.release(removed.owner);
        if let Some(membership) = removed.extra.and_then(|extra| extra.group) {
            self.groups.left(&mut self.objects, membership);
        }
    }

    /// The object became complete.
    pub(super) fn count(&mut self, at: u32) {
        let object = &self.objects[at];
        self.mem_replicas += object.replicas().count() as u64;
        self.evictable += u64::from(!object.hard_pin);
    }

    /// The object is no longer complete.
    pub(super) fn uncount(&mut self, at: u32) {
        let object = &self.objects[at];
        self.mem_replicas -= object.replicas().count() as u64;
        self.evictable -= u64::from(!object.hard_pin);
    }

    /// Until when the object is protected: by its own lease or its group's.
    pub(super) fn lease_until(&self, at: u32) -> Mono {
        let object = &self.objects[at];
        match object.group() {
            Some(group) => object.lease_until.max(self.groups.lease_until(group)),
            None => object.lease_until,
        }
    }

    /// What clients are told of the object's replicas.
    pub(super) fn describe(&self, at: u32) -> Vec<ReplicaDescriptor> {
        let object = &self.objects[at];
        let status = if object.processing { ReplicaStatus::PROCESSING } else { ReplicaStatus::COMPLETE };
        object.replicas().filter_map(|replica| self.describe_replica(replica, object.size, status)).collect()
    }

    fn describe_replica(&self, replica: &Replica, size: u64, status: ReplicaStatus) -> Option<ReplicaDescriptor> {
        let segment = &self.segments.get(replica.segment)?.segment;
        Some(ReplicaDescriptor {
            id: replica.id,
            place: Place::Memory(BufferDescriptor {
                size,
                buffer_address: segment.base + replica.offset,
                protocol: segment.protocol.clone(),
                transport_endpoint: segment.te_endpoint.clone(),
            }),
            status,
        })
    }
}
