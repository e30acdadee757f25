//! Answers the RPC methods: arguments in, [`MasterState`] asked, figures counted, results out.
//!
//! A call holds the state once; a batch once per [`KEYS_PER_HOLD`] keys, and walks over all objects once per slice, so that others
//! get in between. Tenants are accepted and ignored, as upstream does without multi-tenancy.

use bytes::Bytes;

use crate::engine::base::{ClientId, ErrorCode, Mono, SegmentId, TaskId};
use crate::engine::master::absent::Absent;
use crate::engine::master::code::Refusal;
use crate::engine::master::effect::Effects;
use crate::engine::master::metrics::{BatchCount, Counters};
use crate::engine::master::pattern::{self, Pattern};
use crate::engine::master::put::{Wish, check_put};
use crate::engine::master::state::MasterState;
use crate::engine::wire::types::{
    CopyStartResponse, GetReplicaListResponse, GetStorageConfigResponse, MoveStartResponse, NofSegment,
    NofSegmentOwner, ObjectMeta, PingResponse, Place, PromotionAllocStartResponse, QueryTaskResponse,
    ReplicaDescriptor, ReplicaType, ReplicateConfig, Segment, SegmentStatus, StorageObjectMetadata, TaskAssignment,
    TaskCompleteRequest, TierTaskItem,
};
use crate::engine::wire::{Expected, Map, MasterApi, Method, Text, TextBuf};

/// The protocol version that every client insists on.
const PROTOCOL_VERSION: &str = "2.0.0";

/// Keys of a batch that are answered while the state is held once.
const KEYS_PER_HOLD: usize = 64;

/// Holds of one batch after which others go first.
const HOLDS_IN_A_ROW: usize = 16;

/// Who has the state, and the time.
pub trait Hold {
    /// Hold the state for as long as `work` takes.
    fn hold<R>(&mut self, work: impl FnOnce(&mut MasterState, Mono, &mut Effects) -> R) -> R;
    /// Between two holds of one call: let others go first, if some wait.
    fn step_aside(&mut self) {}
}

/// The state at hand, at one time: for tests and simulations.
#[derive(Debug)]
pub struct Direct<'a> {
    /// The state.
    pub state: &'a mut MasterState,
    /// When all calls happen.
    pub now: Mono,
    /// What they want to happen outside.
    pub effects: &'a mut Effects,
}

impl Hold for Direct<'_> {
    fn hold<R>(&mut self, work: impl FnOnce(&mut MasterState, Mono, &mut Effects) -> R) -> R {
        work(self.state, self.now, self.effects)
    }
}

/// Answers calls.
#[derive(Debug)]
pub struct Call<H>(
    /// Where the state comes from.
    pub H,
);

/// An item of a batch that may be about an object.
trait Keyed {
    /// The object's key.
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

impl<H: Hold> Call<H> {
    /// Answer a batch item by item, in holds of [`KEYS_PER_HOLD`].
    fn batch<T: Keyed, R>(
        &mut self,
        items: &[T],
        tally: Option<fn(&mut Counters) -> &mut BatchCount>,
        mut each: impl FnMut(&mut MasterState, Mono, &T, usize) -> Result<R, Refusal>,
    ) -> Vec<Expected<R>> {
        let mut answers = Vec::with_capacity(items.len());
        let mut failed = 0;
        loop {
            let begin = answers.len();
            let end = items.len().min(begin + KEYS_PER_HOLD);
            self.0.hold(|state, now, _| {
                state.warm(items[begin..end].iter().filter_map(Keyed::key));
                for (nth, item) in items.iter().enumerate().take(end).skip(begin) {
                    let answer = each(state, now, item, nth);
                    failed += usize::from(answer.is_err());
                    answers.push(answer.map_err(Refusal::code));
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
            // Two or three holds in a row keep nobody waiting long; sleeping would keep the connection's neighbours.
            if end.is_multiple_of(HOLDS_IN_A_ROW * KEYS_PER_HOLD) {
                self.0.step_aside();
            }
        }
    }

    fn start_batch(
        &mut self,
        client: ClientId,
        keys: &[Text<'_>],
        lengths: &[u64],
        config: &ReplicateConfig,
        tally: Option<fn(&mut Counters) -> &mut BatchCount>,
        start: Start,
    ) -> Vec<Expected<Vec<ReplicaDescriptor>>> {
        let wish = self.0.hold(|state, _, _| Wish::of(config, keys.len(), state.policy()));
        // A batch that does not fit itself is refused before anything else that is wrong with it.
        let groups = config.group_ids.as_ref().map_or(keys.len(), Vec::len);
        let fits = keys.len() == lengths.len() && keys.len() == groups;
        let wish = if fits { wish } else { Err(Refusal::BadArguments) };
        let mut wish = match wish {
            Ok(wish) => wish,
            Err(refusal) => {
                return self.batch(keys, tally, |_, _, key, nth| {
                    // no length may be there for this key, and then the refusal is that already
                    lengths.get(nth).map_or(Ok(()), |length| check_put(key.0, *length))?;
                    Err(refusal)
                });
            }
        };
        self.batch(keys, tally, |state, now, key, nth| {
            let answer = start(state, now, client, key.0, lengths[nth], &wish, nth);
            if nth == 0
                && config.prefer_alloc_in_same_node
                && let Ok(replicas) = &answer
                && let Some(endpoint) = endpoint(replicas)
            {
                // Upstream takes the first replica's endpoint for a segment name; in P2P mode it is none, and has no effect.
                wish.prefer(endpoint);
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
        start: Start,
    ) -> Expected<Vec<ReplicaDescriptor>> {
        self.0.hold(|state, now, _| {
            let wish = check_put(key.0, length).and_then(|()| Wish::of(config, 1, state.policy()));
            let answer = wish.and_then(|wish| start(state, now, client, key.0, length, &wish, 0));
            state.counters.put_start.add(answer.is_ok());
            answer.map_err(Refusal::code)
        })
    }

    fn end(&mut self, client: ClientId, object: &ObjectMeta<'_>, kind: ReplicaType) -> Expected<()> {
        self.0.hold(|state, now, _| {
            let answer = state.put_end(now, client, object.key.0, object.object_checksum, kind);
            state.counters.put_end.add(answer.is_ok());
            answer.map_err(Refusal::code)
        })
    }

    fn revoke(&mut self, client: ClientId, key: Text<'_>, kind: ReplicaType) -> Expected<()> {
        self.0.hold(|state, _, _| {
            let answer = state.put_revoke(client, key.0, kind);
            state.counters.put_revoke.add(answer.is_ok());
            answer.map_err(Refusal::code)
        })
    }

    /// Walk over all keys in which the expression is found; `each` gets those of a slice at a time, the state held.
    ///
    /// # Errors
    /// `BadRegex` when the search is too hard or takes too long. What `each` did until then stays done.
    fn matching(
        &mut self,
        pattern: &Pattern,
        mut each: impl FnMut(&mut MasterState, Mono, &[u8]),
    ) -> Result<(), Refusal> {
        let (mut walk, end) = self.0.hold(|state, now, _| {
            let walk = state.walk();
            (walk, now + pattern::budget(walk.slots()))
        });
        let (mut bytes, mut ends) = (Vec::new(), Vec::new());
        while !walk.is_done() {
            bytes.clear();
            ends.clear();
            let now = self.0.hold(|state, now, _| {
                state.key_slice(&mut walk, &mut |key| {
                    bytes.extend_from_slice(key);
                    ends.push(bytes.len());
                });
                now
            });
            if now > end {
                return Err(Refusal::BadRegex);
            }
            let mut from = 0;
            let mut found = Vec::new();
            for &end in &ends {
                let key = &bytes[from..end];
                from = end;
                if pattern.is_in(key) {
                    found.push(key);
                }
                if pattern.is_too_hard() {
                    return Err(Refusal::BadRegex);
                }
            }
            for chunk in found.chunks(KEYS_PER_HOLD) {
                self.0.hold(|state, now, _| chunk.iter().for_each(|key| each(state, now, key)));
            }
            self.0.step_aside();
        }
        Ok(())
    }

    /// What a method whose feature is not here answers.
    fn absent(&mut self, method: Method, key: Option<Text<'_>>) -> (Absent, bool) {
        let absent = Absent::of(method);
        let is_there = match key {
            Some(key) if absent.asks_for_key() => self.0.hold(|state, _, _| state.is_known(key.0)),
            _ => true,
        };
        (absent, is_there)
    }

    fn absent_answer<T: Default>(&mut self, method: Method, key: Option<Text<'_>>) -> Expected<T> {
        let (absent, is_there) = self.absent(method, key);
        absent.answer(is_there)
    }

    fn absent_refusal<T>(&mut self, method: Method, key: Option<Text<'_>>) -> Expected<T> {
        let (absent, is_there) = self.absent(method, key);
        Err(absent.refusal(is_there).unwrap_or(ErrorCode::NOT_SUPPORTED))
    }

    fn count(&mut self, add: impl FnOnce(&mut Counters)) {
        self.0.hold(|state, _, _| add(&mut state.counters));
    }
}

/// `put_start` or `upsert_start`.
type Start =
    fn(&mut MasterState, Mono, ClientId, &[u8], u64, &Wish<'_>, usize) -> Result<Vec<ReplicaDescriptor>, Refusal>;

fn endpoint(replicas: &[ReplicaDescriptor]) -> Option<Bytes> {
    match &replicas.first()?.place {
        Place::Memory(buffer) => Some(buffer.transport_endpoint.0.clone()),
        _ => None,
    }
}

impl<H: Hold> MasterApi for Call<H> {
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
        self.0.hold(|state, now, _| {
            state.counters.ping.add(true);
            Ok(PingResponse { view_version_id: 0, client_status: state.ping(now, client_id) })
        })
    }

    fn exist_key<'a>(&mut self, key: Text<'a>, _tenant: Text<'a>) -> Expected<bool> {
        self.0.hold(|state, now, _| {
            state.counters.exist_key.add(true);
            Ok(state.exist(now, key.0))
        })
    }

    fn batch_exist_key<'a>(&mut self, keys: Vec<Text<'a>>, _tenant: Text<'a>) -> Vec<Expected<bool>> {
        self.batch(&keys, Some(|c| &mut c.batch_exist_key), |state, now, key, _| Ok(state.exist(now, key.0)))
    }

    fn get_replica_list<'a>(&mut self, key: Text<'a>, _tenant: Text<'a>) -> Expected<GetReplicaListResponse> {
        self.0.hold(|state, now, _| {
            let answer = state.replica_list(now, key.0);
            state.counters.get_replica_list.add(answer.is_ok());
            answer.map_err(Refusal::code)
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
        let pattern = Pattern::new(regex.0);
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
        let tally: fn(&mut Counters) -> &mut BatchCount = |c| &mut c.batch_put_start;
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
        self.0.hold(|state, now, _| {
            let answer = state.remove(now, key.0, force);
            state.counters.remove.add(answer.is_ok());
            answer.map_err(Refusal::code)
        })
    }

    fn batch_remove<'a>(&mut self, keys: Vec<Text<'a>>, force: bool, _tenant: Text<'a>) -> Vec<Expected<()>> {
        self.batch(&keys, None, |state, now, key, _| state.remove(now, key.0, force))
    }

    fn remove_by_regex<'a>(&mut self, regex: Text<'a>, force: bool, _tenant: Text<'a>) -> Expected<i64> {
        let pattern = Pattern::new(regex.0);
        self.count(|c| c.remove_by_regex.add(pattern.is_ok()));
        let mut removed = 0;
        self.matching(&pattern?, |state, now, key| removed += i64::from(state.remove(now, key, force).is_ok()))?;
        Ok(removed)
    }

    fn remove_all<'a>(&mut self, force: bool, _tenant: Text<'a>) -> i64 {
        let mut walk = self.0.hold(|state, _, _| {
            state.counters.remove_all.add(true);
            state.walk()
        });
        let mut removed = 0;
        while !walk.is_done() {
            removed += self.0.hold(|state, now, _| state.remove_slice(now, &mut walk, force));
            self.0.step_aside();
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
        // A key that is passed over is no failure of the call; upstream counts it as one all the same.
        self.batch(&keys, Some(|c| &mut c.batch_replica_clear), |state, now, key, _| {
            if state.clear_replicas(now, key.0, client_id, segment_name.0) {
                cleared.push(key.to_buf());
                Ok(())
            } else {
                Err(Refusal::NoObject)
            }
        });
        Ok(cleared)
    }

    fn mount_segment<'a>(&mut self, segment: Segment, client_id: ClientId) -> Expected<()> {
        self.0.hold(|state, now, effects| {
            let answer = state.mount(now, segment, client_id, effects);
            state.counters.mount_segment.add(answer.is_ok());
            answer.map_err(Refusal::code)
        })
    }

    fn remount_segment<'a>(&mut self, segments: Vec<Segment>, client_id: ClientId) -> Expected<()> {
        self.0.hold(|state, now, effects| {
            let answer = state.remount(now, segments, client_id, effects);
            state.counters.remount_segment.add(answer.is_ok());
            answer.map_err(Refusal::code)
        })
    }

    fn unmount_segment<'a>(&mut self, segment_id: SegmentId, _client_id: ClientId) -> Expected<()> {
        self.0.hold(|state, _, effects| {
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
        self.0.hold(|state, now, _| {
            state.unmount_gracefully(now, segment_id, client_id, grace_period_ms).map_err(Refusal::code)
        })
    }

    fn query_segment_status<'a>(&mut self, segment_name: Text<'a>) -> Expected<SegmentStatus> {
        self.0.hold(|state, _, _| state.segment_status(segment_name.0).ok_or(Refusal::NoSegment.code()))
    }

    fn query_segment_status_by_id<'a>(&mut self, segment_id: SegmentId) -> Expected<SegmentStatus> {
        self.0.hold(|state, _, _| state.segment_status_by_id(segment_id).ok_or(Refusal::NoSegment.code()))
    }

    fn batch_query_ip<'a>(&mut self, client_ids: Vec<ClientId>) -> Expected<Map<ClientId, Vec<TextBuf>>> {
        let mut found = Map::default();
        self.batch(&client_ids, Some(|c| &mut c.batch_query_ip), |state, _, client, _| {
            let hosts = state.client_hosts(*client).ok_or(Refusal::NoSegment)?;
            if !found.0.iter().any(|(known, _)| known == client) {
                found.0.push((*client, hosts));
            }
            Ok(())
        });
        Ok(found)
    }

    fn fetch_tasks<'a>(&mut self, _client_id: ClientId, _batch_size: u64) -> Expected<Vec<TaskAssignment>> {
        self.count(|c| c.fetch_tasks.add(true));
        self.absent_answer(Method::FetchTasks, None)
    }

    fn mark_task_to_complete<'a>(&mut self, _client_id: ClientId, _result: TaskCompleteRequest) -> Expected<()> {
        self.count(|c| c.update_task.add(false));
        self.absent_answer(Method::MarkTaskToComplete, None)
    }

    fn query_task<'a>(&mut self, _task_id: TaskId) -> Expected<QueryTaskResponse> {
        self.count(|c| c.query_task.add(false));
        self.absent_refusal(Method::QueryTask, None)
    }

    fn create_copy_task<'a>(&mut self, key: Text<'a>, _tenant: Text<'a>, _targets: Vec<Text<'a>>) -> Expected<TaskId> {
        self.count(|c| c.create_copy_task.add(false));
        self.absent_refusal(Method::CreateCopyTask, Some(key))
    }

    fn create_move_task<'a>(
        &mut self,
        key: Text<'a>,
        _tenant: Text<'a>,
        _source: Text<'a>,
        _target: Text<'a>,
    ) -> Expected<TaskId> {
        self.count(|c| c.create_move_task.add(false));
        self.absent_refusal(Method::CreateMoveTask, Some(key))
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
        self.absent_refusal(Method::CopyStart, Some(key))
    }

    fn copy_end<'a>(&mut self, _client_id: ClientId, key: Text<'a>, _tenant: Text<'a>) -> Expected<()> {
        self.count(|c| c.copy_end.add(false));
        self.absent_answer(Method::CopyEnd, Some(key))
    }

    fn copy_revoke<'a>(&mut self, _client_id: ClientId, key: Text<'a>, _tenant: Text<'a>) -> Expected<()> {
        self.count(|c| c.copy_revoke.add(false));
        self.absent_answer(Method::CopyRevoke, Some(key))
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
        self.absent_refusal(Method::MoveStart, Some(key))
    }

    fn move_end<'a>(&mut self, _client_id: ClientId, key: Text<'a>, _tenant: Text<'a>) -> Expected<()> {
        self.count(|c| c.move_end.add(false));
        self.absent_answer(Method::MoveEnd, Some(key))
    }

    fn move_revoke<'a>(&mut self, _client_id: ClientId, key: Text<'a>, _tenant: Text<'a>) -> Expected<()> {
        self.count(|c| c.move_revoke.add(false));
        self.absent_answer(Method::MoveRevoke, Some(key))
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
        self.absent_refusal(Method::DynamicReplicaCopyStart, Some(key))
    }

    fn dynamic_replica_copy_end<'a>(
        &mut self,
        _client_id: ClientId,
        key: Text<'a>,
        _tenant: Text<'a>,
        _lease_id: ClientId,
        _version_epoch: u64,
    ) -> Expected<()> {
        self.absent_answer(Method::DynamicReplicaCopyEnd, Some(key))
    }

    fn dynamic_replica_copy_revoke<'a>(
        &mut self,
        _client_id: ClientId,
        key: Text<'a>,
        _tenant: Text<'a>,
        _lease_id: ClientId,
        _version_epoch: u64,
    ) -> Expected<()> {
        self.absent_answer(Method::DynamicReplicaCopyRevoke, Some(key))
    }

    fn mount_local_disk_segment<'a>(&mut self, _client_id: ClientId, _enable_offloading: bool) -> Expected<()> {
        self.absent_answer(Method::MountLocalDiskSegment, None)
    }

    fn unmount_local_disk_segment<'a>(&mut self, _client_id: ClientId) -> Expected<()> {
        self.absent_answer(Method::UnmountLocalDiskSegment, None)
    }

    fn offload_object_heartbeat<'a>(
        &mut self,
        _client_id: ClientId,
        _enable_offloading: bool,
    ) -> Expected<Vec<TierTaskItem>> {
        self.absent_answer(Method::OffloadObjectHeartbeat, None)
    }

    fn notify_offload_success<'a>(
        &mut self,
        _client_id: ClientId,
        _items: Vec<TierTaskItem>,
        _metadata: Vec<StorageObjectMetadata>,
    ) -> Expected<()> {
        self.absent_answer(Method::NotifyOffloadSuccess, None)
    }

    fn report_ssd_capacity<'a>(&mut self, _client_id: ClientId, _bytes: i64) -> Expected<()> {
        self.absent_answer(Method::ReportSsdCapacity, None)
    }

    fn poll_remove_all<'a>(&mut self, _client_id: ClientId) -> Expected<bool> {
        self.absent_answer(Method::PollRemoveAll, None)
    }

    fn evict_disk_replica<'a>(
        &mut self,
        _client_id: ClientId,
        key: Text<'a>,
        _tenant: Text<'a>,
        replica_type: ReplicaType,
    ) -> Expected<()> {
        let answer = self.absent_answer(Method::EvictDiskReplica, Some(key)).and_then(|()| check_disk(replica_type));
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
        let absent = Absent::of(Method::BatchEvictDiskReplica);
        let there = self.batch(&keys, None, |state, _, key, _| Ok(state.is_known(key.0)));
        let answers =
            there.into_iter().map(|is_there| absent.answer(is_there?).and_then(|()| check_disk(replica_type)));
        answers.collect()
    }

    fn promotion_object_heartbeat<'a>(&mut self, _client_id: ClientId) -> Expected<Vec<TierTaskItem>> {
        self.absent_answer(Method::PromotionObjectHeartbeat, None)
    }

    fn promotion_alloc_start<'a>(
        &mut self,
        _client_id: ClientId,
        key: Text<'a>,
        _tenant: Text<'a>,
        _size: u64,
        _preferred_segments: Vec<Text<'a>>,
    ) -> Expected<PromotionAllocStartResponse> {
        self.absent_refusal(Method::PromotionAllocStart, Some(key))
    }

    fn notify_promotion_success<'a>(&mut self, _client_id: ClientId, key: Text<'a>, _tenant: Text<'a>) -> Expected<()> {
        self.absent_answer(Method::NotifyPromotionSuccess, Some(key))
    }

    fn notify_promotion_failure<'a>(&mut self, _client_id: ClientId, key: Text<'a>, _tenant: Text<'a>) -> Expected<()> {
        self.absent_answer(Method::NotifyPromotionFailure, Some(key))
    }

    fn mount_nof_segment<'a>(&mut self, _segment: NofSegment, _client_id: ClientId) -> Expected<()> {
        self.absent_answer(Method::MountNoFSegment, None)
    }

    fn remount_nof_segment<'a>(&mut self, _segments: Vec<NofSegment>, _client_id: ClientId) -> Expected<()> {
        self.absent_answer(Method::ReMountNoFSegment, None)
    }

    fn unmount_nof_segment<'a>(&mut self, _segment_id: SegmentId, _client_id: ClientId) -> Expected<()> {
        self.absent_answer(Method::UnmountNoFSegment, None)
    }

    fn get_all_nof_segments<'a>(&mut self) -> Expected<Vec<NofSegment>> {
        self.absent_answer(Method::GetAllNoFSegments, None)
    }

    fn get_nof_segments_by_name<'a>(&mut self, _name: Text<'a>) -> Expected<Vec<NofSegmentOwner>> {
        self.absent_answer(Method::GetNoFSegmentsByName, None)
    }
}

/// Only these are kept on disk.
fn check_disk(kind: ReplicaType) -> Expected<()> {
    if kind == ReplicaType::DISK || kind == ReplicaType::LOCAL_DISK { Ok(()) } else { Err(ErrorCode::INVALID_PARAMS) }
}
