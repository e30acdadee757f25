//! Implements the RPC methods: calls [`MasterState`] with the arguments, updates the counters and returns the results.
//!
//! A call locks the state once. A batch locks it once per [`KEYS_PER_LOCK`] keys, and a scan of all objects once per slice, so that other
//! callers can proceed in between. Tenants are accepted but ignored, as in upstream without multi-tenancy.

use bytes::Bytes;

use crate::engine::base::{ClientId, ErrorCode, Mono, SegmentId, TaskId};
use crate::engine::master::effect::Effects;
use crate::engine::master::metrics::{BatchCount, MasterCounters};
use crate::engine::master::pattern::{self, KeyPattern};
use crate::engine::master::put::{PutSpec, check_put};
use crate::engine::master::refusal::MasterRefusal;
use crate::engine::master::state::MasterState;
use crate::engine::master::unsupported::UnsupportedResult;
use crate::engine::wire::types::{
    CopyStartResponse, GetReplicaListResponse, GetStorageConfigResponse, MoveStartResponse, NofSegment,
    NofSegmentOwner, ObjectMeta, PingResponse, PromotionAllocStartResponse, QueryTaskResponse, ReplicaDescriptor,
    ReplicaLocation, ReplicaType, ReplicateConfig, Segment, SegmentStatus, StorageObjectMetadata, TaskAssignment,
    TaskCompleteRequest, TierTaskItem,
};
use crate::engine::wire::{Expected, Map, MasterApi, Method, Text, TextBuf};

/// The protocol version that every client requires.
const PROTOCOL_VERSION: &str = crate::engine::upstream::PROTOCOL_VERSION;

/// Number of keys in a batch that are processed per lock acquisition.
const KEYS_PER_LOCK: usize = 64;

/// Number of lock acquisitions after which a batch lets other callers proceed.
const LOCKS_BEFORE_YIELD: usize = 16;

/// Access to the state and the current time.
pub trait StateAccess {
    /// Runs `work` with the state locked.
    fn with_state<R>(&mut self, work: impl FnOnce(&mut MasterState, Mono, &mut Effects) -> R) -> R;
    /// Lets waiting callers proceed. For use between two lock acquisitions within one call.
    fn yield_to_waiters(&mut self) {}
}

/// Direct access to a state at a fixed time, for tests and simulations.
#[derive(Debug)]
pub struct DirectAccess<'a> {
    pub state: &'a mut MasterState,
    /// The fixed time, passed to every call.
    pub now: Mono,
    /// Receives the effects of the calls.
    pub effects: &'a mut Effects,
}

impl StateAccess for DirectAccess<'_> {
    fn with_state<R>(&mut self, work: impl FnOnce(&mut MasterState, Mono, &mut Effects) -> R) -> R {
        work(self.state, self.now, self.effects)
    }
}

/// Implements the RPC methods on a state.
#[derive(Debug)]
pub struct MasterCall<A>(pub A);

/// A batch item that may refer to an object.
trait Keyed {
    /// The key of the object, if the item has one.
    fn key(&self) -> Option<&[u8]>;
}

impl Keyed for Text<'_> {
    fn key(&self) -> Option<&[u8]> {
        Some(self.0)
    }
}

impl Keyed for ObjectMeta<'_> {
    fn key(&self) -> Option<&[u8]> {
        Some(self.key.0)
    }
}

impl Keyed for ClientId {
    fn key(&self) -> Option<&[u8]> {
        None
    }
}

impl<H: StateAccess> MasterCall<H> {
    /// Processes a batch item by item and locks the state once per [`KEYS_PER_LOCK`] items.
    fn batch<T: Keyed, R>(
        &mut self,
        items: &[T],
        tally: Option<fn(&mut MasterCounters) -> &mut BatchCount>,
        mut each: impl FnMut(&mut MasterState, Mono, &T, usize) -> Result<R, MasterRefusal>,
    ) -> Vec<Expected<R>> {
        let mut answers = Vec::with_capacity(items.len());
        let mut failed = 0;
        loop {
            let begin = answers.len();
            let end = items.len().min(begin + KEYS_PER_LOCK);
            self.0.with_state(|state, now, _| {
                state.warm(items[begin..end].iter().filter_map(Keyed::key));
                for (nth, item) in items.iter().enumerate().take(end).skip(begin) {
                    let answer = each(state, now, item, nth);
                    failed += usize::from(answer.is_err());
                    answers.push(answer.map_err(MasterRefusal::code));
                }
                if end == items.len()
                    && let Some(tally) = tally
                {
                    tally(&mut state.counters).add(items.len(), failed);
                }
            });
            if end == items.len() {
                return answers;
            }
            // Two or three lock acquisitions in a row delay other callers only briefly. Sleeping would delay the other connections on this
            // thread.
            if end.is_multiple_of(LOCKS_BEFORE_YIELD * KEYS_PER_LOCK) {
                self.0.yield_to_waiters();
            }
        }
    }

    fn start_batch(
        &mut self,
        client: ClientId,
        keys: &[Text<'_>],
        lengths: &[u64],
        config: &ReplicateConfig,
        tally: Option<fn(&mut MasterCounters) -> &mut BatchCount>,
        start: StartFn,
    ) -> Vec<Expected<Vec<ReplicaDescriptor>>> {
        let spec = self.0.with_state(|state, _, _| PutSpec::new(config, keys.len(), state.policy()));
        // A batch with inconsistent lengths is refused before it is checked for other errors.
        let groups = config.group_ids.as_ref().map_or(keys.len(), Vec::len);
        let fits = keys.len() == lengths.len() && keys.len() == groups;
        let spec = if fits { spec } else { Err(MasterRefusal::BadArguments) };
        let mut spec = match spec {
            Ok(spec) => spec,
            Err(refusal) => {
                return self.batch(keys, tally, |_, _, key, nth| {
                    // If the lengths of the lists differ, there may be no length for this key.
                    lengths.get(nth).map_or(Ok(()), |length| check_put(key.0, *length))?;
                    Err(refusal)
                });
            }
        };
        self.batch(keys, tally, |state, now, key, nth| {
            let answer = start(state, now, client, key.0, lengths[nth], &spec, nth);
            if nth == 0
                && config.prefer_alloc_in_same_node
                && let Ok(replicas) = &answer
                && let Some(endpoint) = endpoint(replicas)
            {
                // Like upstream, use the first replica's endpoint as the preferred segment name. In P2P mode, the endpoint is not a segment
                // name, so the preference is ignored.
                spec.prefer(endpoint);
            }
            answer
        })
    }

    fn start(
        &mut self,
        client: ClientId,
        key: Text<'_>,
        length: u64,
        config: &ReplicateConfig,
        start: StartFn,
    ) -> Expected<Vec<ReplicaDescriptor>> {
        self.0.with_state(|state, now, _| {
            let spec = check_put(key.0, length).and_then(|()| PutSpec::new(config, 1, state.policy()));
            let answer = spec.and_then(|spec| start(state, now, client, key.0, length, &spec, 0));
            state.counters.put_start.add(answer.is_ok());
            answer.map_err(MasterRefusal::code)
        })
    }

    fn end(&mut self, client: ClientId, object: &ObjectMeta<'_>, kind: ReplicaType) -> Expected<()> {
        self.0.with_state(|state, now, _| {
            let answer = state.put_end(now, client, object.key.0, object.object_checksum, kind);
            state.counters.put_end.add(answer.is_ok());
            answer.map_err(MasterRefusal::code)
        })
    }

    fn revoke(&mut self, client: ClientId, key: Text<'_>, kind: ReplicaType) -> Expected<()> {
        self.0.with_state(|state, _, _| {
            let answer = state.put_revoke(client, key.0, kind);
            state.counters.put_revoke.add(answer.is_ok());
            answer.map_err(MasterRefusal::code)
        })
    }

    /// Calls `each`, with the state locked, for all keys that match the expression.
    ///
    /// # Errors
    /// `BadRegex` if the search exceeds its step limit or time budget. Earlier calls to `each` are not undone.
    fn matching(
        &mut self,
        pattern: &KeyPattern,
        mut each: impl FnMut(&mut MasterState, Mono, &[u8]),
    ) -> Result<(), MasterRefusal> {
        let (mut walk, end) = self.0.with_state(|state, now, _| {
            let walk = state.walk();
            (walk, now + pattern::budget(walk.slots()))
        });
        let (mut bytes, mut ends) = (Vec::new(), Vec::new());
        while !walk.is_done() {
            bytes.clear();
            ends.clear();
            let now = self.0.with_state(|state, now, _| {
                state.key_slice(&mut walk, &mut |key| {
                    bytes.extend_from_slice(key);
                    ends.push(bytes.len());
                });
                now
            });
            if now > end {
                return Err(MasterRefusal::BadRegex);
            }
            let mut from = 0;
            let mut found = Vec::new();
            for &end in &ends {
                let key = &bytes[from..end];
                from = end;
                if pattern.matches(key) {
                    found.push(key);
                }
                if pattern.exceeds_hard_keys() {
                    return Err(MasterRefusal::BadRegex);
                }
            }
            for chunk in found.chunks(KEYS_PER_LOCK) {
                self.0.with_state(|state, now, _| chunk.iter().for_each(|key| each(state, now, key)));
            }
            self.0.yield_to_waiters();
        }
        Ok(())
    }

    /// Returns the table entry for an unsupported method, and whether `key` exists.
    fn unsupported(&mut self, method: Method, key: Option<Text<'_>>) -> (UnsupportedResult, bool) {
        let unsupported = UnsupportedResult::of(method);
        let exists = match key {
            Some(key) if unsupported.depends_on_key() => self.0.with_state(|state, _, _| state.contains_key(key.0)),
            _ => true,
        };
        (unsupported, exists)
    }

    fn unsupported_result<T: Default>(&mut self, method: Method, key: Option<Text<'_>>) -> Expected<T> {
        let (unsupported, exists) = self.unsupported(method, key);
        unsupported.result(exists)
    }

    fn unsupported_error<T>(&mut self, method: Method, key: Option<Text<'_>>) -> Expected<T> {
        let (unsupported, exists) = self.unsupported(method, key);
        Err(unsupported.error(exists).unwrap_or(ErrorCode::NOT_SUPPORTED))
    }

    fn count(&mut self, add: impl FnOnce(&mut MasterCounters)) {
        self.0.with_state(|state, _, _| add(&mut state.counters));
    }
}

/// `put_start` or `upsert_start`.
type StartFn = fn(
    &mut MasterState,
    Mono,
    ClientId,
    &[u8],
    u64,
    &PutSpec<'_>,
    usize,
) -> Result<Vec<ReplicaDescriptor>, MasterRefusal>;

fn endpoint(replicas: &[ReplicaDescriptor]) -> Option<Bytes> {
    match &replicas.first()?.location {
        ReplicaLocation::Memory(buffer) => Some(buffer.transport_endpoint.0.clone()),
        _ => None,
    }
}

impl<H: StateAccess> MasterApi for MasterCall<H> {
    fn service_ready<'a>(&mut self) -> Expected<TextBuf> {
        Ok(TextBuf(Bytes::from_static(PROTOCOL_VERSION.as_bytes())))
    }

    fn get_storage_config<'a>(&mut self) -> Expected<GetStorageConfigResponse> {
        Ok(GetStorageConfigResponse { fsdir: TextBuf::default(), enable_disk_eviction: true, quota_bytes: 0 })
    }

    fn get_fsdir<'a>(&mut self) -> Expected<TextBuf> {
        Ok(TextBuf::default())
    }

    fn ping<'a>(&mut self, client_id: ClientId) -> Expected<PingResponse> {
        self.0.with_state(|state, now, _| {
            state.counters.ping.add(true);
            Ok(PingResponse { view_version_id: 0, client_status: state.ping(now, client_id) })
        })
    }

    fn exist_key<'a>(&mut self, key: Text<'a>, _tenant: Text<'a>) -> Expected<bool> {
        self.0.with_state(|state, now, _| {
            state.counters.exist_key.add(true);
            Ok(state.exist(now, key.0))
        })
    }

    fn batch_exist_key<'a>(&mut self, keys: Vec<Text<'a>>, _tenant: Text<'a>) -> Vec<Expected<bool>> {
        self.batch(&keys, Some(|c| &mut c.batch_exist_key), |state, now, key, _| Ok(state.exist(now, key.0)))
    }

    fn get_replica_list<'a>(&mut self, key: Text<'a>, _tenant: Text<'a>) -> Expected<GetReplicaListResponse> {
        self.0.with_state(|state, now, _| {
            let answer = state.replica_list(now, key.0);
            state.counters.get_replica_list.add(answer.is_ok());
            answer.map_err(MasterRefusal::code)
        })
    }

    fn batch_get_replica_list<'a>(
        &mut self,
        keys: Vec<Text<'a>>,
        _tenant: Text<'a>,
    ) -> Vec<Expected<GetReplicaListResponse>> {
        self.batch(&keys, Some(|c| &mut c.batch_get_replica_list), |state, now, key, _| state.replica_list(now, key.0))
    }

    fn get_replica_list_by_regex<'a>(
        &mut self,
        regex: Text<'a>,
        _tenant: Text<'a>,
    ) -> Expected<Map<TextBuf, Vec<ReplicaDescriptor>>> {
        let pattern = KeyPattern::new(regex.0);
        self.count(|c| c.get_replica_list_by_regex.add(pattern.is_ok()));
        let mut found = Vec::new();
        self.matching(&pattern?, |state, now, key| {
            if let Some(replicas) = state.lease_replicas(now, key) {
                found.push((Text(key).to_buf(), replicas));
            }
        })?;
        Ok(Map(found))
    }

    fn put_start<'a>(
        &mut self,
        client_id: ClientId,
        key: Text<'a>,
        slice_length: u64,
        config: ReplicateConfig,
        _tenant: Text<'a>,
    ) -> Expected<Vec<ReplicaDescriptor>> {
        self.start(client_id, key, slice_length, &config, MasterState::put_start)
    }

    fn put_end<'a>(
        &mut self,
        client_id: ClientId,
        object: ObjectMeta<'a>,
        replica_type: ReplicaType,
        _tenant: Text<'a>,
    ) -> Expected<()> {
        self.end(client_id, &object, replica_type)
    }

    fn put_revoke<'a>(
        &mut self,
        client_id: ClientId,
        key: Text<'a>,
        replica_type: ReplicaType,
        _tenant: Text<'a>,
    ) -> Expected<()> {
        self.revoke(client_id, key, replica_type)
    }

    fn batch_put_start<'a>(
        &mut self,
        client_id: ClientId,
        keys: Vec<Text<'a>>,
        slice_lengths: Vec<u64>,
        config: ReplicateConfig,
        _tenant: Text<'a>,
    ) -> Vec<Expected<Vec<ReplicaDescriptor>>> {
        let tally: fn(&mut MasterCounters) -> &mut BatchCount = |c| &mut c.batch_put_start;
        self.start_batch(client_id, &keys, &slice_lengths, &config, Some(tally), MasterState::put_start)
    }

    fn batch_put_end<'a>(
        &mut self,
        client_id: ClientId,
        objects: Vec<ObjectMeta<'a>>,
        replica_type: ReplicaType,
        _tenant: Text<'a>,
    ) -> Vec<Expected<()>> {
        self.batch(&objects, Some(|c| &mut c.batch_put_end), |state, now, object, _| {
            state.put_end(now, client_id, object.key.0, object.object_checksum, replica_type)
        })
    }

    fn batch_put_revoke<'a>(
        &mut self,
        client_id: ClientId,
        keys: Vec<Text<'a>>,
        replica_type: ReplicaType,
        _tenant: Text<'a>,
    ) -> Vec<Expected<()>> {
        self.batch(&keys, Some(|c| &mut c.batch_put_revoke), |state, _, key, _| {
            state.put_revoke(client_id, key.0, replica_type)
        })
    }

    fn upsert_start<'a>(
        &mut self,
        client_id: ClientId,
        key: Text<'a>,
        slice_length: u64,
        config: ReplicateConfig,
        _tenant: Text<'a>,
    ) -> Expected<Vec<ReplicaDescriptor>> {
        self.start(client_id, key, slice_length, &config, MasterState::upsert_start)
    }

    fn upsert_end<'a>(
        &mut self,
        client_id: ClientId,
        object: ObjectMeta<'a>,
        replica_type: ReplicaType,
        _tenant: Text<'a>,
    ) -> Expected<()> {
        self.end(client_id, &object, replica_type)
    }

    fn upsert_revoke<'a>(
        &mut self,
        client_id: ClientId,
        key: Text<'a>,
        replica_type: ReplicaType,
        _tenant: Text<'a>,
    ) -> Expected<()> {
        self.revoke(client_id, key, replica_type)
    }

    fn batch_upsert_start<'a>(
        &mut self,
        client_id: ClientId,
        keys: Vec<Text<'a>>,
        slice_lengths: Vec<u64>,
        config: ReplicateConfig,
        _tenant: Text<'a>,
    ) -> Vec<Expected<Vec<ReplicaDescriptor>>> {
        self.start_batch(client_id, &keys, &slice_lengths, &config, None, MasterState::upsert_start)
    }

    fn batch_upsert_end<'a>(
        &mut self,
        client_id: ClientId,
        objects: Vec<ObjectMeta<'a>>,
        _tenant: Text<'a>,
    ) -> Vec<Expected<()>> {
        self.batch(&objects, None, |state, now, object, _| {
            state.put_end(now, client_id, object.key.0, object.object_checksum, ReplicaType::ALL)
        })
    }

    fn batch_upsert_revoke<'a>(
        &mut self,
        client_id: ClientId,
        keys: Vec<Text<'a>>,
        _tenant: Text<'a>,
    ) -> Vec<Expected<()>> {
        self.batch(&keys, None, |state, _, key, _| state.put_revoke(client_id, key.0, ReplicaType::ALL))
    }

    fn remove<'a>(&mut self, key: Text<'a>, force: bool, _tenant: Text<'a>) -> Expected<()> {
        self.0.with_state(|state, now, _| {
            let answer = state.remove(now, key.0, force);
            state.counters.remove.add(answer.is_ok());
            answer.map_err(MasterRefusal::code)
        })
    }

    fn batch_remove<'a>(&mut self, keys: Vec<Text<'a>>, force: bool, _tenant: Text<'a>) -> Vec<Expected<()>> {
        self.batch(&keys, None, |state, now, key, _| state.remove(now, key.0, force))
    }

    fn remove_by_regex<'a>(&mut self, regex: Text<'a>, force: bool, _tenant: Text<'a>) -> Expected<i64> {
        let pattern = KeyPattern::new(regex.0);
        self.count(|c| c.remove_by_regex.add(pattern.is_ok()));
        let mut removed = 0;
        self.matching(&pattern?, |state, now, key| removed += i64::from(state.remove(now, key, force).is_ok()))?;
        Ok(removed)
    }

    fn remove_all<'a>(&mut self, force: bool, _tenant: Text<'a>) -> i64 {
        let mut walk = self.0.with_state(|state, _, _| {
            state.counters.remove_all.add(true);
            state.walk()
        });
        let mut removed = 0;
        while !walk.is_done() {
            removed += self.0.with_state(|state, now, _| state.remove_slice(now, &mut walk, force));
            self.0.yield_to_waiters();
        }
        i64::try_from(removed).unwrap_or(i64::MAX)
    }

    fn batch_replica_clear<'a>(
        &mut self,
        keys: Vec<Text<'a>>,
        client_id: ClientId,
        segment_name: Text<'a>,
    ) -> Expected<Vec<TextBuf>> {
        let mut cleared = Vec::new();
        // Skipping a key is not a failure of the call, but upstream counts it as one.
        self.batch(&keys, Some(|c| &mut c.batch_replica_clear), |state, now, key, _| {
            if state.clear_replicas(now, key.0, client_id, segment_name.0) {
                cleared.push(key.to_buf());
                Ok(())
            } else {
                Err(MasterRefusal::NoObject)
            }
        });
        Ok(cleared)
    }

    fn mount_segment<'a>(&mut self, segment: Segment, client_id: ClientId) -> Expected<()> {
        self.0.with_state(|state, now, effects| {
            let answer = state.mount(now, segment, client_id, effects);
            state.counters.mount_segment.add(answer.is_ok());
            answer.map_err(MasterRefusal::code)
        })
    }

    fn remount_segment<'a>(&mut self, segments: Vec<Segment>, client_id: ClientId) -> Expected<()> {
        self.0.with_state(|state, now, effects| {
            let answer = state.remount(now, segments, client_id, effects);
            state.counters.remount_segment.add(answer.is_ok());
            answer.map_err(MasterRefusal::code)
        })
    }

    fn unmount_segment<'a>(&mut self, segment_id: SegmentId, _client_id: ClientId) -> Expected<()> {
        self.0.with_state(|state, _, effects| {
            state.unmount(segment_id, effects);
            state.counters.unmount_segment.add(true);
            Ok(())
        })
    }

    fn graceful_unmount_segment<'a>(
        &mut self,
        segment_id: SegmentId,
        client_id: ClientId,
        grace_period_ms: u64,
    ) -> Expected<()> {
        self.0.with_state(|state, now, _| {
            state.unmount_gracefully(now, segment_id, client_id, grace_period_ms).map_err(MasterRefusal::code)
        })
    }

    fn query_segment_status<'a>(&mut self, segment_name: Text<'a>) -> Expected<SegmentStatus> {
        self.0.with_state(|state, _, _| state.segment_status(segment_name.0).ok_or(MasterRefusal::NoSegment.code()))
    }

    fn query_segment_status_by_id<'a>(&mut self, segment_id: SegmentId) -> Expected<SegmentStatus> {
        self.0.with_state(|state, _, _| state.segment_status_by_id(segment_id).ok_or(MasterRefusal::NoSegment.code()))
    }

    fn batch_query_ip<'a>(&mut self, client_ids: Vec<ClientId>) -> Expected<Map<ClientId, Vec<TextBuf>>> {
        let mut found = Map::default();
        self.batch(&client_ids, Some(|c| &mut c.batch_query_ip), |state, _, client, _| {
            let hosts = state.client_hosts(*client).ok_or(MasterRefusal::NoSegment)?;
            if !found.0.iter().any(|(known, _)| known == client) {
                found.0.push((*client, hosts));
            }
            Ok(())
        });
        Ok(found)
    }

    fn fetch_tasks<'a>(&mut self, _client_id: ClientId, _batch_size: u64) -> Expected<Vec<TaskAssignment>> {
        self.count(|c| c.fetch_tasks.add(true));
        self.unsupported_result(Method::FetchTasks, None)
    }

    fn mark_task_to_complete<'a>(&mut self, _client_id: ClientId, _result: TaskCompleteRequest) -> Expected<()> {
        self.count(|c| c.update_task.add(false));
        self.unsupported_result(Method::MarkTaskToComplete, None)
    }

    fn query_task<'a>(&mut self, _task_id: TaskId) -> Expected<QueryTaskResponse> {
        self.count(|c| c.query_task.add(false));
        self.unsupported_error(Method::QueryTask, None)
    }

    fn create_copy_task<'a>(&mut self, key: Text<'a>, _tenant: Text<'a>, _targets: Vec<Text<'a>>) -> Expected<TaskId> {
        self.count(|c| c.create_copy_task.add(false));
        self.unsupported_error(Method::CreateCopyTask, Some(key))
    }

    fn create_move_task<'a>(
        &mut self,
        key: Text<'a>,
        _tenant: Text<'a>,
        _source: Text<'a>,
        _target: Text<'a>,
    ) -> Expected<TaskId> {
        self.count(|c| c.create_move_task.add(false));
        self.unsupported_error(Method::CreateMoveTask, Some(key))
    }

    fn copy_start<'a>(
        &mut self,
        _client_id: ClientId,
        key: Text<'a>,
        _tenant: Text<'a>,
        _source: Text<'a>,
        _targets: Vec<Text<'a>>,
    ) -> Expected<CopyStartResponse> {
        self.count(|c| c.copy_start.add(false));
        self.unsupported_error(Method::CopyStart, Some(key))
    }

    fn copy_end<'a>(&mut self, _client_id: ClientId, key: Text<'a>, _tenant: Text<'a>) -> Expected<()> {
        self.count(|c| c.copy_end.add(false));
        self.unsupported_result(Method::CopyEnd, Some(key))
    }

    fn copy_revoke<'a>(&mut self, _client_id: ClientId, key: Text<'a>, _tenant: Text<'a>) -> Expected<()> {
        self.count(|c| c.copy_revoke.add(false));
        self.unsupported_result(Method::CopyRevoke, Some(key))
    }

    fn move_start<'a>(
        &mut self,
        _client_id: ClientId,
        key: Text<'a>,
        _tenant: Text<'a>,
        _source: Text<'a>,
        _target: Text<'a>,
    ) -> Expected<MoveStartResponse> {
        self.count(|c| c.move_start.add(false));
        self.unsupported_error(Method::MoveStart, Some(key))
    }

    fn move_end<'a>(&mut self, _client_id: ClientId, key: Text<'a>, _tenant: Text<'a>) -> Expected<()> {
        self.count(|c| c.move_end.add(false));
        self.unsupported_result(Method::MoveEnd, Some(key))
    }

    fn move_revoke<'a>(&mut self, _client_id: ClientId, key: Text<'a>, _tenant: Text<'a>) -> Expected<()> {
        self.count(|c| c.move_revoke.add(false));
        self.unsupported_result(Method::MoveRevoke, Some(key))
    }

    fn dynamic_replica_copy_start<'a>(
        &mut self,
        _client_id: ClientId,
        key: Text<'a>,
        _tenant: Text<'a>,
        _source: Text<'a>,
        _targets: Vec<Text<'a>>,
        _lease_id: ClientId,
        _version_epoch: u64,
    ) -> Expected<CopyStartResponse> {
        self.unsupported_error(Method::DynamicReplicaCopyStart, Some(key))
    }

    fn dynamic_replica_copy_end<'a>(
        &mut self,
        _client_id: ClientId,
        key: Text<'a>,
        _tenant: Text<'a>,
        _lease_id: ClientId,
        _version_epoch: u64,
    ) -> Expected<()> {
        self.unsupported_result(Method::DynamicReplicaCopyEnd, Some(key))
    }

    fn dynamic_replica_copy_revoke<'a>(
        &mut self,
        _client_id: ClientId,
        key: Text<'a>,
        _tenant: Text<'a>,
        _lease_id: ClientId,
        _version_epoch: u64,
    ) -> Expected<()> {
        self.unsupported_result(Method::DynamicReplicaCopyRevoke, Some(key))
    }

    fn mount_local_disk_segment<'a>(&mut self, _client_id: ClientId, _enable_offloading: bool) -> Expected<()> {
        self.unsupported_result(Method::MountLocalDiskSegment, None)
    }

    fn unmount_local_disk_segment<'a>(&mut self, _client_id: ClientId) -> Expected<()> {
        self.unsupported_result(Method::UnmountLocalDiskSegment, None)
    }

    fn offload_object_heartbeat<'a>(
        &mut self,
        _client_id: ClientId,
        _enable_offloading: bool,
    ) -> Expected<Vec<TierTaskItem>> {
        self.unsupported_result(Method::OffloadObjectHeartbeat, None)
    }

    fn notify_offload_success<'a>(
        &mut self,
        _client_id: ClientId,
        _items: Vec<TierTaskItem>,
        _metadata: Vec<StorageObjectMetadata>,
    ) -> Expected<()> {
        self.unsupported_result(Method::NotifyOffloadSuccess, None)
    }

    fn report_ssd_capacity<'a>(&mut self, _client_id: ClientId, _bytes: i64) -> Expected<()> {
        self.unsupported_result(Method::ReportSsdCapacity, None)
    }

    fn poll_remove_all<'a>(&mut self, _client_id: ClientId) -> Expected<bool> {
        self.unsupported_result(Method::PollRemoveAll, None)
    }

    fn evict_disk_replica<'a>(
        &mut self,
        _client_id: ClientId,
        key: Text<'a>,
        _tenant: Text<'a>,
        replica_type: ReplicaType,
    ) -> Expected<()> {
        let answer =
            self.unsupported_result(Method::EvictDiskReplica, Some(key)).and_then(|()| check_disk(replica_type));
        self.count(|c| c.evict_disk_replica.add(answer.is_ok()));
        answer
    }

    fn batch_evict_disk_replica<'a>(
        &mut self,
        _client_id: ClientId,
        keys: Vec<Text<'a>>,
        _tenant: Text<'a>,
        replica_type: ReplicaType,
    ) -> Vec<Expected<()>> {
        let unsupported = UnsupportedResult::of(Method::BatchEvictDiskReplica);
        let exist = self.batch(&keys, None, |state, _, key, _| Ok(state.contains_key(key.0)));
        let answers =
            exist.into_iter().map(|exists| unsupported.result(exists?).and_then(|()| check_disk(replica_type)));
        answers.collect()
    }

    fn promotion_object_heartbeat<'a>(&mut self, _client_id: ClientId) -> Expected<Vec<TierTaskItem>> {
        self.unsupported_result(Method::PromotionObjectHeartbeat, None)
    }

    fn promotion_alloc_start<'a>(
        &mut self,
        _client_id: ClientId,
        key: Text<'a>,
        _tenant: Text<'a>,
        _size: u64,
        _preferred_segments: Vec<Text<'a>>,
    ) -> Expected<PromotionAllocStartResponse> {
        self.unsupported_error(Method::PromotionAllocStart, Some(key))
    }

    fn notify_promotion_success<'a>(&mut self, _client_id: ClientId, key: Text<'a>, _tenant: Text<'a>) -> Expected<()> {
        self.unsupported_result(Method::NotifyPromotionSuccess, Some(key))
    }

    fn notify_promotion_failure<'a>(&mut self, _client_id: ClientId, key: Text<'a>, _tenant: Text<'a>) -> Expected<()> {
        self.unsupported_result(Method::NotifyPromotionFailure, Some(key))
    }

    fn mount_nof_segment<'a>(&mut self, _segment: NofSegment, _client_id: ClientId) -> Expected<()> {
        self.unsupported_result(Method::MountNoFSegment, None)
    }

    fn remount_nof_segment<'a>(&mut self, _segments: Vec<NofSegment>, _client_id: ClientId) -> Expected<()> {
        self.unsupported_result(Method::ReMountNoFSegment, None)
    }

    fn unmount_nof_segment<'a>(&mut self, _segment_id: SegmentId, _client_id: ClientId) -> Expected<()> {
        self.unsupported_result(Method::UnmountNoFSegment, None)
    }

    fn get_all_nof_segments<'a>(&mut self) -> Expected<Vec<NofSegment>> {
        self.unsupported_result(Method::GetAllNoFSegments, None)
    }

    fn get_nof_segments_by_name<'a>(&mut self, _name: Text<'a>) -> Expected<Vec<NofSegmentOwner>> {
        self.unsupported_result(Method::GetNoFSegmentsByName, None)
    }
}

/// Returns an error unless replicas of this type are stored on disk.
fn check_disk(kind: ReplicaType) -> Expected<()> {
    if kind == ReplicaType::DISK || kind == ReplicaType::LOCAL_DISK { Ok(()) } else { Err(ErrorCode::INVALID_PARAMS) }
}
