//! The store's rules (store-rpc reference, section 8), one test each, with a simulated clock.

mod apply;
mod evict;
mod follow;
mod hold;
mod lease;
mod metadata;
mod put;
mod remove;
mod restore;
mod roles;
mod segment;
mod snapshot;
mod tenants;
mod writer;

use std::time::Duration;

use crate::{DirectAccess, Effects, MasterCall, MasterState, StateEffect, StorePolicy};
use mcctl_base::{ClientId, ErrorCode, Mono, SegmentId};
use mcctl_wire::types::SliceLength;
use mcctl_wire::types::Tenant;
use mcctl_wire::types::{
    ObjectMeta, ReplicaDescriptor, ReplicaLocation, ReplicaStatus, ReplicaType, ReplicateConfig, Segment, SoftPinAction,
};
use mcctl_wire::{Expected, MasterApi, Text, TextBuf};

pub(crate) const MIB: u64 = 1 << 20;
pub(crate) const A: ClientId = ClientId(1, 1);
pub(crate) const B: ClientId = ClientId(2, 2);
pub(crate) const T: Tenant<'static> = Tenant::DEFAULT;

/// A master with a simulated clock.
pub(crate) struct Master {
    pub state: MasterState,
    pub now: Mono,
    pub effects: Effects,
}

impl Master {
    /// A master with upstream's default settings, whose clock starts at 1,000 s.
    fn new() -> Master {
        Master::with(|_| {})
    }

    fn with(change: impl FnOnce(&mut StorePolicy)) -> Master {
        let mut policy = StorePolicy { seed: 7, ..StorePolicy::default() };
        change(&mut policy);
        Master { state: MasterState::new(policy), now: Mono::from_ms(1_000_000), effects: Effects::default() }
    }

    /// A master with one segment of `bytes` bytes, mounted by `A`.
    fn of(bytes: u64) -> Master {
        let mut master = Master::new();
        master.mount(A, segment(1, "a:1", bytes));
        master
    }

    fn call(&mut self) -> MasterCall<DirectAccess<'_>> {
        MasterCall(DirectAccess { state: &mut self.state, now: self.now, effects: &mut self.effects })
    }

    /// Advances the clock and performs the work that is due.
    fn pass(&mut self, time: Duration) {
        self.now = self.now + time;
        self.settle();
    }

    fn pass_ms(&mut self, ms: u64) {
        self.pass(Duration::from_millis(ms));
    }

    /// Performs the work that is due. Returns the number of slices.
    fn settle(&mut self) -> usize {
        let mut slices = 1;
        while self.state.tick(self.now, self.now, &mut self.effects) {
            slices += 1;
        }
        slices
    }

    #[track_caller]
    fn mount(&mut self, client: ClientId, segment: Segment) {
        assert_eq!(self.call().mount_segment(segment, client), Ok(()));
    }

    fn start(&mut self, client: ClientId, key: &str, bytes: u64) -> Expected<Vec<ReplicaDescriptor>> {
        self.start_with(client, key, bytes, ReplicateConfig::default())
    }

    fn start_with(
        &mut self,
        client: ClientId,
        key: &str,
        bytes: u64,
        config: ReplicateConfig,
    ) -> Expected<Vec<ReplicaDescriptor>> {
        self.call().put_start(client, key.into(), SliceLength(bytes), config, T)
    }

    fn end(&mut self, client: ClientId, key: &str) -> Expected<()> {
        self.call().put_end(client, meta(key), ReplicaType::ALL, T)
    }

    fn revoke(&mut self, client: ClientId, key: &str) -> Expected<()> {
        self.call().put_revoke(client, key.into(), ReplicaType::ALL, T)
    }

    fn upsert(&mut self, client: ClientId, key: &str, bytes: u64) -> Expected<Vec<ReplicaDescriptor>> {
        self.call().upsert_start(client, key.into(), SliceLength(bytes), ReplicateConfig::default(), T)
    }

    /// Starts and ends a put as `A`.
    #[track_caller]
    fn put(&mut self, key: &str, bytes: u64) -> ReplicaDescriptor {
        self.put_with(key, bytes, ReplicateConfig::default())
    }

    #[track_caller]
    fn put_with(&mut self, key: &str, bytes: u64, config: ReplicateConfig) -> ReplicaDescriptor {
        let replicas = self.start_with(A, key, bytes, config).expect("the put starts");
        assert_eq!(self.end(A, key), Ok(()));
        replicas[0].clone()
    }

    fn exists(&mut self, key: &str) -> bool {
        self.call().exist_key(key.into(), T) == Ok(true)
    }

    /// Returns true if the key has a complete object. Grants no lease.
    fn has_object(&self, key: &str) -> bool {
        self.state.peek(key.as_bytes()).is_ok()
    }

    /// Number of keys that have a complete object.
    fn count_existing(&self, keys: impl IntoIterator<Item = String>) -> usize {
        keys.into_iter().filter(|key| self.has_object(key)).count()
    }

    fn get(&mut self, key: &str) -> Expected<Vec<ReplicaDescriptor>> {
        self.call().get_replica_list(key.into(), T).map(|list| list.replicas)
    }

    fn remove(&mut self, key: &str, force: bool) -> Expected<()> {
        self.call().remove(key.into(), force, T)
    }

    fn effects(&mut self) -> Vec<StateEffect> {
        std::mem::take(&mut self.effects.list)
    }

    fn ratio(&self) -> f64 {
        self.state.used_ratio()
    }
}

/// The put of `key`, without a checksum.
pub(crate) fn meta(key: &str) -> ObjectMeta<'_> {
    ObjectMeta { key: key.into(), object_checksum: None }
}

/// A segment whose endpoint is also `name`. Segments with different ids do not overlap.
pub(crate) fn segment(id: u64, name: &str, size: u64) -> Segment {
    Segment {
        id: SegmentId(id, id),
        name: name.into(),
        base: id << 40,
        size,
        te_endpoint: name.into(),
        protocol: "tcp".into(),
        host_id: TextBuf::default(),
    }
}

pub(crate) fn pinned(ttl_ms: Option<u64>) -> ReplicateConfig {
    ReplicateConfig { soft_pin_action: SoftPinAction::ENABLE, soft_pin_ttl_ms: ttl_ms, ..ReplicateConfig::default() }
}

pub(crate) fn hard_pinned() -> ReplicateConfig {
    ReplicateConfig { with_hard_pin: true, ..ReplicateConfig::default() }
}

pub(crate) fn grouped(group: &str) -> ReplicateConfig {
    ReplicateConfig { group_ids: Some(vec![group.into()]), ..ReplicateConfig::default() }
}

fn copies(replica_num: u64) -> ReplicateConfig {
    ReplicateConfig { replica_num, ..ReplicateConfig::default() }
}

/// The address of a replica in memory.
pub(crate) fn address(replica: &ReplicaDescriptor) -> u64 {
    match &replica.location {
        ReplicaLocation::Memory(buffer) => buffer.buffer_address,
        other => panic!("not in memory: {other:?}"),
    }
}

fn endpoint(replica: &ReplicaDescriptor) -> String {
    match &replica.location {
        ReplicaLocation::Memory(buffer) => buffer.transport_endpoint.to_string(),
        other => panic!("not in memory: {other:?}"),
    }
}

fn keys(range: std::ops::Range<u64>) -> Vec<String> {
    range.map(|i| format!("key-{i}")).collect()
}

pub(crate) const NOT_FOUND: ErrorCode = ErrorCode::OBJECT_NOT_FOUND;
pub(crate) const NOT_READY: ErrorCode = ErrorCode::REPLICA_IS_NOT_READY;
pub(crate) const EXISTS: ErrorCode = ErrorCode::OBJECT_ALREADY_EXISTS;
pub(crate) const LEASED: ErrorCode = ErrorCode::OBJECT_HAS_LEASE;
pub(crate) const BAD: ErrorCode = ErrorCode::INVALID_PARAMS;
pub(crate) const NO_SPACE: ErrorCode = ErrorCode::NO_AVAILABLE_HANDLE;
pub(crate) const STRANGER: ErrorCode = ErrorCode::ILLEGAL_CLIENT;
pub(crate) const NO_WRITE: ErrorCode = ErrorCode::INVALID_WRITE;
pub(crate) const PROCESSING: ReplicaStatus = ReplicaStatus::PROCESSING;
pub(crate) const COMPLETE: ReplicaStatus = ReplicaStatus::COMPLETE;
