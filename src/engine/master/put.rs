//! Writing: a put takes memory, its writer fills it, the end of the put makes the object readable. In between the object belongs
//! to its writer alone.
//!
//! A writer may die, or be slow. After the *discard* time somebody else may put the same key; the first writer's memory is then
//! kept aside until the *release* time, since it may still be written to.

use bytes::Bytes;

use crate::engine::alloc::placement::{self, Request, Strategy};
use crate::engine::base::id::KEY_BYTES_MAX;
use crate::engine::base::{ClientId, Mono};
use crate::engine::master::code::Refusal;
use crate::engine::master::config::Policy;
use crate::engine::master::object::{Extra, NewObject, OBJECTS_MAX, PendingPin};
use crate::engine::master::state::MasterState;
use crate::engine::wire::TextBuf;
use crate::engine::wire::types::{ReplicaDescriptor, ReplicaType, ReplicateConfig, SoftPinAction};

/// What a writer asks for, checked: a `ReplicateConfig` that makes sense.
#[derive(Clone, Debug)]
pub struct Wish<'a> {
    replicas: u64,
    pin: PendingPin,
    hard_pin: bool,
    preferred: Vec<Bytes>,
    /// Segments of the writer's host come first; its name, or empty for the one that the writer's own memory has.
    near: Option<Bytes>,
    /// One per key, or none at all.
    groups: Option<&'a [TextBuf]>,
}

impl<'a> Wish<'a> {
    /// Check what is asked for `keys` keys.
    ///
    /// # Errors
    /// `BadArguments` for what contradicts itself, `NoSuchTier` for tiers that are not there.
    pub fn of(config: &'a ReplicateConfig, keys: usize, policy: &Policy) -> Result<Wish<'a>, Refusal> {
        let bad = config.replica_num == 0 && config.nof_replica_num == 0 && config.dfs_replica_num == 0
            || config.dfs_replica_num > 1
            || config.dfs_replica_num > 0 && config.replica_num == 0;
        if bad {
            return Err(Refusal::BadArguments);
        }
        // In upstream's order, which the answer shows when several things are wrong at once.
        if config.dfs_replica_num > 0 {
            return Err(Refusal::NoSuchTier);
        }
        if config.nof_replica_num > 0 {
            return Err(Refusal::BadArguments);
        }
        let pin = match (config.soft_pin_action, config.soft_pin_ttl_ms) {
            (SoftPinAction::PRESERVE, None) => PendingPin::Keep,
            (SoftPinAction::DISABLE, None) => PendingPin::Clear,
            (SoftPinAction::ENABLE, ttl_ms) => {
                let ttl_ms = ttl_ms.map_or(policy.soft_pin_ttl.as_millis(), u128::from);
                if ttl_ms > policy.soft_pin_ttl_max.as_millis() {
                    return Err(Refusal::BadArguments);
                }
                PendingPin::Set(u64::try_from(ttl_ms).map_err(|_| Refusal::BadArguments)?)
            }
            _ => return Err(Refusal::BadArguments),
        };
        let groups = config.group_ids.as_deref();
        if groups.is_some_and(|groups| groups.len() != keys) {
            return Err(Refusal::BadArguments);
        }
        let preferred = if config.preferred_segment.is_empty() {
            config.preferred_segments.iter().map(|name| name.0.clone()).filter(|name| !name.is_empty()).collect()
        } else {
            vec![config.preferred_segment.0.clone()]
        };
        let near = policy.strategy == Strategy::LocalFirst || config.prefer_alloc_in_same_node;
        // Upstream: several copies have to lie apart, so the host counts for one only.
        let near = (near && config.replica_num == 1).then(|| config.host_id.0.clone());
        Ok(Wish { replicas: config.replica_num, pin, hard_pin: config.with_hard_pin, preferred, near, groups })
    }

    /// Try this segment name first from now on.
    pub fn prefer(&mut self, name: Bytes) {
        self.preferred = vec![name];
    }

    /// The group of the `nth` key; an empty name is no group.
    fn group(&self, nth: usize) -> Option<&'a [u8]> {
        Some(&self.groups?.get(nth)?.0[..]).filter(|name| !name.is_empty())
    }
}

impl MasterState {
    /// Take memory for a new object; `nth` is the key's place among those of the wish.
    ///
    /// # Errors
    /// `BadArguments`, `ObjectExists`, `NoSpace`.
    pub fn put_start(
        &mut self,
        now: Mono,
        client: ClientId,
        key: &[u8],
        bytes: u64,
        wish: &Wish<'_>,
        nth: usize,
    ) -> Result<Vec<ReplicaDescriptor>, Refusal> {
        check_put(key, bytes)?;
        self.evict_for_put(now);
        if let Some(at) = self.find(key) {
            let object = &self.objects[at];
            if !object.processing || object.put_start + self.policy.put_discard_after >= now {
                return Err(Refusal::ObjectExists);
            }
            let until = object.put_start + self.policy.put_release_after;
            self.counters.put_start_discards += 1;
            self.discard(at, until);
        }
        self.create(now, client, key, bytes, wish, Heritage { group: wish.group(nth), ..Heritage::default() })
    }

    /// Take memory for an object that may exist; if it does and has this size, it is written in place.
    ///
    /// # Errors
    /// `BadArguments`, `NoSpace`; the object is gone then, if its size was another.
    pub fn upsert_start(
        &mut self,
        now: Mono,
        client: ClientId,
        key: &[u8],
        bytes: u64,
        wish: &Wish<'_>,
        nth: usize,
    ) -> Result<Vec<ReplicaDescriptor>, Refusal> {
        check_put(key, bytes)?;
        self.evict_for_put(now);
        let mut heritage = Heritage { group: wish.group(nth), ..Heritage::default() };
        let Some(at) = self.find(key) else {
            return self.create(now, client, key, bytes, wish, heritage);
        };
        let object = &self.objects[at];
        let group = object.group().map(|group| self.groups.name(group));
        if wish.groups.is_some() && group != wish.group(nth) {
            return Err(Refusal::BadArguments);
        }
        let pin = object.soft_pin().filter(|end| *end > now);
        let until = now + self.policy.put_release_after;
        if object.processing {
            // Unlike a put, an upsert displaces an unfinished write at once. Upstream keeps the soft pin here, but not the group.
            heritage.pin = pin;
            self.counters.put_start_discards += 1;
            self.discard(at, until);
            return self.create(now, client, key, bytes, wish, heritage);
        }
        if object.size != bytes {
            let group: Option<Box<[u8]>> = group.map(Into::into);
            heritage.hard_pin = object.hard_pin;
            heritage.pin = pin;
            heritage.group = group.as_deref();
            // Readers may still read what was there, so its memory is not used again for a while.
            self.discard(at, until);
            return self.create(now, client, key, bytes, wish, heritage);
        }
        self.uncount(at);
        let owner = self.owners.hold(client);
        let object = &mut self.objects[at];
        let before = std::mem::replace(&mut object.owner, owner);
        object.put_start = now;
        object.processing = true;
        if wish.pin != PendingPin::Keep || object.extra.is_some() {
            object.extra_mut().pending_pin = wish.pin;
        }
        self.owners.release(before);
        self.order.begin_write(&mut self.objects, at);
        Ok(self.describe(at))
    }

    /// The object's bytes are written: it can be read.
    ///
    /// # Errors
    /// `NoObject`, `NotTheWriter`, `NoWrite`.
    pub fn put_end(
        &mut self,
        now: Mono,
        client: ClientId,
        key: &[u8],
        checksum: Option<u64>,
        kind: ReplicaType,
    ) -> Result<(), Refusal> {
        let at = self.find(key).ok_or(Refusal::NoObject)?;
        if self.owners.id(self.objects[at].owner) != client {
            return Err(Refusal::NotTheWriter);
        }
        let object = &mut self.objects[at];
        if !object.processing {
            // The end of a write is said again when its answer was lost. Nothing is taken over from the repetition.
            return if is_memory(kind) { Ok(()) } else { Err(Refusal::NoWrite) };
        }
        if !is_memory(kind) {
            // The end of a write to a tier where this object has nothing: upstream agrees and waits for the memory's.
            return Ok(());
        }
        object.processing = false;
        if checksum.is_some() || object.extra.is_some() {
            object.extra_mut().checksum = checksum;
        }
        let size = object.size;
        // Out of the list of writes while the record still says what filed it there.
        self.order.leave(&mut self.objects, at);
        let object = &mut self.objects[at];
        object.lease_until = object.lease_until.max(now);
        if let Some(extra) = object.extra.as_mut() {
            match std::mem::take(&mut extra.pending_pin) {
                PendingPin::Keep => {}
                PendingPin::Set(ttl_ms) => extra.soft_pin = Some(now + std::time::Duration::from_millis(ttl_ms)),
                PendingPin::Clear => extra.soft_pin = None,
            }
        }
        self.order.file(&mut self.objects, at, now);
        self.count(at);
        self.counters.value_bytes.record(size);
        Ok(())
    }

    /// The object's bytes could not be written: it is gone.
    ///
    /// # Errors
    /// `NoObject`, `NotTheWriter`, `NoWrite`.
    pub fn put_revoke(&mut self, client: ClientId, key: &[u8], kind: ReplicaType) -> Result<(), Refusal> {
        let at = self.find(key).ok_or(Refusal::NoObject)?;
        let object = &self.objects[at];
        if self.owners.id(object.owner) != client {
            return Err(Refusal::NotTheWriter);
        }
        if !object.processing {
            return Err(Refusal::NoWrite);
        }
        if is_memory(kind) {
            self.erase(at);
        }
        Ok(())
    }

    /// The host of the client's own memory; empty when it has none.
    fn host_of(&self, client: ClientId) -> Bytes {
        let segments = self.clients.get(client).map_or(&[][..], |client| &client.segments);
        let mut hosts = segments.iter().filter_map(|slot| Some(&self.segments.get(*slot)?.segment.host_id.0));
        hosts.find(|host| !host.is_empty()).cloned().unwrap_or_default()
    }

    fn create(
        &mut self,
        now: Mono,
        client: ClientId,
        key: &[u8],
        bytes: u64,
        wish: &Wish<'_>,
        heritage: Heritage<'_>,
    ) -> Result<Vec<ReplicaDescriptor>, Refusal> {
        let mut taken = std::mem::take(&mut self.taken);
        taken.clear();
        if self.objects.len() < OBJECTS_MAX {
            let near = wish.near.as_ref().map(|host| if host.is_empty() { self.host_of(client) } else { host.clone() });
            let near = near.as_deref().filter(|host| !host.is_empty());
            let request = Request { bytes, replicas: wish.replicas, preferred: &wish.preferred, near };
            placement::place(self.policy.strategy, &mut self.segments, &mut self.rng, &request, &mut taken);
        }
        let Some((&replica, more)) = taken.split_first() else {
            self.taken = taken;
            self.counters.put_start_alloc_failures += 1;
            if self.segments.open_names() as u64 >= wish.replicas {
                self.eviction.wanted = true;
            }
            return Err(Refusal::NoSpace);
        };
        if (taken.len() as u64) < wish.replicas {
            self.counters.put_start_partial_allocations += 1;
        }
        let extra = (!more.is_empty() || wish.pin != PendingPin::Keep || heritage.pin.is_some()).then(|| {
            Box::new(Extra {
                replicas: more.to_vec(),
                soft_pin: heritage.pin,
                pending_pin: wish.pin,
                ..Extra::default()
            })
        });
        let new = NewObject {
            owner: self.owners.hold(client),
            size: bytes,
            put_start: now,
            replica,
            extra,
            hard_pin: wish.hard_pin || heritage.hard_pin,
        };
        let at = self.objects.insert(self.objects.hash(key), new);
        if let Some(group) = heritage.group {
            self.groups.join(&mut self.objects, at, group);
        }
        self.order.begin_write(&mut self.objects, at);
        self.taken = taken;
        Ok(self.describe(at))
    }

    /// Forget the object, but keep its memory aside until `until`.
    pub(super) fn discard(&mut self, at: u32, until: Mono) {
        let size = self.objects[at].size;
        let mut taken = std::mem::take(&mut self.taken);
        taken.clear();
        self.erase_keeping_memory(at, &mut taken);
        for replica in taken.drain(..) {
            self.discards.add(replica, size, until);
        }
        self.taken = taken;
    }
}

/// What a new object takes over from the one that had its key.
#[derive(Clone, Copy, Debug, Default)]
struct Heritage<'a> {
    group: Option<&'a [u8]>,
    pin: Option<Mono>,
    hard_pin: bool,
}

pub(crate) fn check_put(key: &[u8], bytes: u64) -> Result<(), Refusal> {
    if key.is_empty() || key.len() > KEY_BYTES_MAX || bytes == 0 {
        return Err(Refusal::BadArguments);
    }
    Ok(())
}

/// Does this kind of replica include those in memory?
fn is_memory(kind: ReplicaType) -> bool {
    kind == ReplicaType::ALL || kind == ReplicaType::MEMORY
}
