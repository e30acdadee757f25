//! One function per RPC method.

use bytes::Bytes;

use crate::call::MasterCall;
use crate::call::access::StateAccess;
use crate::call::write::WriteFamily;
use crate::pattern::KeyPattern;
use crate::refusal::MasterRefusal;
use crate::tenant::TenantKeys;
use crate::unsupported::UnsupportedResult;
use mcctl_base::{ClientId, ErrorCode, SegmentId, TaskId};
use mcctl_wire::types::{
    CopyStartResponse, GetReplicaListResponse, GetStorageConfigResponse, GrantLeasePolicy, LeaseMode,
    MoveStartResponse, NofSegment, NofSegmentOwner, ObjectMeta, PingResponse, PromotionAllocStartResponse,
    QueryTaskResponse, ReplicaDescriptor, ReplicaType, ReplicateConfig, Segment, SegmentStatus, ServiceVersion,
    SliceLength, StorageObjectMetadata, TaskAssignment, TaskCompleteRequest, Tenant, TierTaskItem, TierTasks,
};
use mcctl_wire::withdrawal::ReplicaWithdrawal;
use mcctl_wire::{Expected, Map, MasterApi, Method, Text, TextBuf};

/// The protocol version that every client requires.
const PROTOCOL_VERSION: &str = mcctl_base::upstream::PROTOCOL_VERSION;

/// Defines the methods of a write family whose arguments are the same in both families.
macro_rules! write_methods {
    ($family:ident: $start:ident, $end:ident, $revoke:ident, $batch_start:ident) => {
        fn $start<'a>(
            &mut self,
            client_id: ClientId,
            key: Text<'a>,
            slice_length: SliceLength,
            config: ReplicateConfig,
            tenant: Tenant<'a>,
        ) -> Expected<Vec<ReplicaDescriptor>> {
            let name = write_tenant(tenant)?.name(key);
            self.start(WriteFamily::$family, client_id, Text(&name), slice_length.0, &config)
        }

        fn $end<'a>(
            &mut self,
            client_id: ClientId,
            object: ObjectMeta<'a>,
            replica_type: ReplicaType,
            tenant: Tenant<'a>,
        ) -> Expected<()> {
            let name = write_tenant(tenant)?.name(object.key);
            let object = ObjectMeta { key: Text(&name), ..object };
            self.end(client_id, &object, replica_type)
        }

        fn $revoke<'a>(
            &mut self,
            client_id: ClientId,
            key: Text<'a>,
            replica_type: ReplicaType,
            tenant: Tenant<'a>,
        ) -> Expected<()> {
            let name = write_tenant(tenant)?.name(key);
            self.revoke(client_id, Text(&name), replica_type)
        }

        fn $batch_start<'a>(
            &mut self,
            client_id: ClientId,
            keys: Vec<Text<'a>>,
            slice_lengths: Vec<SliceLength>,
            config: ReplicateConfig,
            tenant: Tenant<'a>,
        ) -> Vec<Expected<Vec<ReplicaDescriptor>>> {
            with_names(tenant, &keys, |names| {
                self.start_batch(WriteFamily::$family, client_id, names, &slice_lengths, &config)
            })
        }
    };
}

/// Defines methods that respond from the table in `unsupported.rs`.
///
/// `unsupported_result` is for a method that may return an empty value, `unsupported_error` for one
/// that cannot. The expression at the end is the key on which the response may depend. A name in
/// brackets is the method's counter.
macro_rules! unsupported_methods {
    ($($response:ident $method:ident $([$counter:ident])? fn $call:ident($($arg:ident: $ty:ty),*) -> $ret:ty, $key:expr;)*) => {$(
        fn $call<'a>(&mut self, $($arg: $ty),*) -> Expected<$ret> {
            let answer = self.$response(Method::$method, $key);
            $(self.count(|counters| counters.$counter.add(answer.is_ok()));)?
            answer
        }
    )*};
}

/// The keys of the tenant of a lookup or removal.
fn read_tenant(tenant: Tenant<'_>) -> Expected<TenantKeys<'_>> {
    TenantKeys::of(tenant).map_err(|_| MasterRefusal::BadArguments.code())
}

/// The keys of the tenant of a write.
fn write_tenant(tenant: Tenant<'_>) -> Expected<TenantKeys<'_>> {
    TenantKeys::of(tenant).map_err(MasterRefusal::code)
}

/// Calls `work` with the names of a tenant's keys, in a batch of writes.
fn with_names<R: Clone>(
    tenant: Tenant<'_>,
    keys: &[Text<'_>],
    work: impl FnOnce(&[Text<'_>]) -> Vec<Expected<R>>,
) -> Vec<Expected<R>> {
    match write_tenant(tenant) {
        Ok(tenant) => tenant.with_names(keys, work),
        Err(code) => vec![Err(code); keys.len()],
    }
}

/// Calls `work` with a tenant's objects under their names, in a batch of writes.
fn with_objects(
    tenant: Tenant<'_>,
    objects: Vec<ObjectMeta<'_>>,
    work: impl FnOnce(&[ObjectMeta<'_>]) -> Vec<Expected<()>>,
) -> Vec<Expected<()>> {
    match write_tenant(tenant) {
        Ok(tenant) => tenant.with_objects(objects, work),
        Err(code) => vec![Err(code); objects.len()],
    }
}

impl<A: StateAccess> MasterApi for MasterCall<A> {
    fn service_ready<'a>(&mut self) -> Expected<ServiceVersion> {
        Ok(ServiceVersion(TextBuf(Bytes::from_static(PROTOCOL_VERSION.as_bytes()))))
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
            Ok(PingResponse { view_version_id: state.view.cast_signed(), client_status: state.ping(now, client_id) })
        })
    }

    fn exist_key<'a>(&mut self, key: Text<'a>, tenant: Tenant<'a>) -> Expected<bool> {
        let name = read_tenant(tenant)?.name(key);
        self.0.with_state(|state, now, _| {
            state.counters.exist_key.add(true);
            Ok(state.exist(now, &name))
        })
    }

    fn batch_exist_key<'a>(&mut self, keys: Vec<Text<'a>>, tenant: Tenant<'a>) -> Vec<Expected<bool>> {
        self.batch_of(tenant, &keys, Some(|c| &mut c.batch_exist_key), |state, now, key, _| Ok(state.exist(now, key.0)))
    }

    fn probe_key<'a>(&mut self, key: Text<'a>, tenant: Tenant<'a>) -> Expected<bool> {
        let name = read_tenant(tenant)?.name(key);
        self.0.with_state(|state, _, _| Ok(state.contains_key(&name)))
    }

    fn batch_probe_key<'a>(
        &mut self,
        policy: GrantLeasePolicy,
        keys: Vec<Text<'a>>,
        tenant: Tenant<'a>,
    ) -> Vec<Expected<bool>> {
        self.batch_of(tenant, &keys, Some(|c| &mut c.batch_exist_key), |state, now, key, _| {
            // A lease for every object that exists protects at least what the client asks for.
            Ok(match policy.lease_mode {
                LeaseMode::NONE => state.contains_key(key.0),
                _ => state.exist(now, key.0),
            })
        })
    }

    fn get_replica_list<'a>(&mut self, key: Text<'a>, tenant: Tenant<'a>) -> Expected<GetReplicaListResponse> {
        let name = read_tenant(tenant)?.name(key);
        self.counted(|counters| &mut counters.get_replica_list, |state, now, _| state.replica_list(now, &name))
    }

    fn batch_get_replica_list<'a>(
        &mut self,
        keys: Vec<Text<'a>>,
        tenant: Tenant<'a>,
    ) -> Vec<Expected<GetReplicaListResponse>> {
        self.batch_of(tenant, &keys, Some(|c| &mut c.batch_get_replica_list), |state, now, key, _| {
            state.replica_list(now, key.0)
        })
    }

    fn get_replica_list_by_regex<'a>(
        &mut self,
        regex: Text<'a>,
        tenant: Tenant<'a>,
    ) -> Expected<Map<TextBuf, Vec<ReplicaDescriptor>>> {
        let tenant = read_tenant(tenant)?;
        let pattern = KeyPattern::new(regex.0);
        self.count(|c| c.get_replica_list_by_regex.add(pattern.is_ok()));
        let mut found = Vec::new();
        self.matching(tenant, &pattern?, |state, now, name| {
            if let Some(replicas) = state.lease_replicas(now, name) {
                let key = tenant.key(name).unwrap_or_default();
                found.push((Text(key).to_buf(), replicas));
            }
        })?;
        Ok(Map(found))
    }

    write_methods!(Put: put_start, put_end, put_revoke, batch_put_start);

    fn batch_put_end<'a>(
        &mut self,
        client_id: ClientId,
        objects: Vec<ObjectMeta<'a>>,
        replica_type: ReplicaType,
        tenant: Tenant<'a>,
    ) -> Vec<Expected<()>> {
        with_objects(tenant, objects, |named| self.end_batch(WriteFamily::Put, client_id, named, replica_type))
    }

    fn batch_put_revoke<'a>(
        &mut self,
        client_id: ClientId,
        keys: Vec<Text<'a>>,
        replica_type: ReplicaType,
        tenant: Tenant<'a>,
    ) -> Vec<Expected<()>> {
        with_names(tenant, &keys, |names| self.revoke_batch(WriteFamily::Put, client_id, names, replica_type))
    }

    write_methods!(Upsert: upsert_start, upsert_end, upsert_revoke, batch_upsert_start);

    fn batch_upsert_end<'a>(
        &mut self,
        client_id: ClientId,
        objects: Vec<ObjectMeta<'a>>,
        tenant: Tenant<'a>,
    ) -> Vec<Expected<()>> {
        with_objects(tenant, objects, |named| self.end_batch(WriteFamily::Upsert, client_id, named, ReplicaType::ALL))
    }

    fn batch_upsert_revoke<'a>(
        &mut self,
        client_id: ClientId,
        keys: Vec<Text<'a>>,
        tenant: Tenant<'a>,
    ) -> Vec<Expected<()>> {
        with_names(tenant, &keys, |names| self.revoke_batch(WriteFamily::Upsert, client_id, names, ReplicaType::ALL))
    }

    fn remove<'a>(&mut self, key: Text<'a>, force: bool, tenant: Tenant<'a>) -> Expected<()> {
        let name = read_tenant(tenant)?.name(key);
        self.counted(|counters| &mut counters.remove, |state, now, _| state.remove(now, &name, force))
    }

    fn batch_remove<'a>(&mut self, keys: Vec<Text<'a>>, force: bool, tenant: Tenant<'a>) -> Vec<Expected<()>> {
        self.batch_of(tenant, &keys, None, |state, now, key, _| state.remove(now, key.0, force))
    }

    fn remove_by_regex<'a>(&mut self, regex: Text<'a>, force: bool, tenant: Tenant<'a>) -> Expected<i64> {
        let tenant = read_tenant(tenant)?;
        let pattern = KeyPattern::new(regex.0);
        self.count(|c| c.remove_by_regex.add(pattern.is_ok()));
        let mut removed = 0;
        self.matching(tenant, &pattern?, |state, now, name| {
            removed += i64::from(state.remove(now, name, force).is_ok())
        })?;
        Ok(removed)
    }

    fn remove_all<'a>(&mut self, force: bool, tenant: Tenant<'a>) -> i64 {
        let Ok(tenant) = TenantKeys::of(tenant) else { return 0 };
        let mut walk = self.0.with_state(|state, _, _| {
            state.counters.remove_all.add(true);
            state.walk()
        });
        let mut removed = 0;
        while !walk.is_done() {
            removed += self.0.with_state(|state, now, _| state.remove_slice(now, &mut walk, force, Some(tenant)));
            self.0.yield_to_waiters();
        }
        i64::try_from(removed).unwrap_or(i64::MAX)
    }

    fn batch_replica_clear<'a>(
        &mut self,
        keys: Vec<Text<'a>>,
        _client_id: ClientId,
        segment_name: Text<'a>,
        tenant: Tenant<'a>,
    ) -> Expected<Vec<TextBuf>> {
        let mut cleared = Vec::new();
        let damaged = ReplicaWithdrawal::parse(segment_name.0);
        // Skipping a key is not a failure of the call, but upstream counts it as one.
        read_tenant(tenant)?;
        self.batch_of(tenant, &keys, Some(|c| &mut c.batch_replica_clear), |state, now, name, nth| {
            let is_cleared = match damaged {
                Some(damaged) => state.withdraw(now, name.0, damaged),
                None => state.clear_replicas(now, name.0, segment_name.0),
            };
            if is_cleared {
                cleared.push(keys[nth].to_buf());
                Ok(())
            } else {
                Err(MasterRefusal::NoObject)
            }
        });
        Ok(cleared)
    }

    fn mount_segment<'a>(&mut self, segment: Segment, client_id: ClientId) -> Expected<()> {
        self.counted(
            |counters| &mut counters.mount_segment,
            |state, now, effects| state.mount(now, segment, client_id, effects),
        )
    }

    fn remount_segment<'a>(&mut self, segments: Vec<Segment>, client_id: ClientId) -> Expected<()> {
        self.counted(
            |counters| &mut counters.remount_segment,
            |state, now, effects| state.remount(now, segments, client_id, effects),
        )
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

    fn evict_disk_replica<'a>(
        &mut self,
        _client_id: ClientId,
        key: Text<'a>,
        tenant: Tenant<'a>,
        replica_type: ReplicaType,
    ) -> Expected<()> {
        let answer = self
            .unsupported_result(Method::EvictDiskReplica, Some((tenant, key)))
            .and_then(|()| check_disk(replica_type));
        self.count(|c| c.evict_disk_replica.add(answer.is_ok()));
        answer
    }

    fn batch_evict_disk_replica<'a>(
        &mut self,
        _client_id: ClientId,
        keys: Vec<Text<'a>>,
        tenant: Tenant<'a>,
        replica_type: ReplicaType,
    ) -> Vec<Expected<()>> {
        let unsupported = UnsupportedResult::of(Method::BatchEvictDiskReplica);
        let exist = self.batch_of(tenant, &keys, None, |state, _, key, _| Ok(state.contains_key(key.0)));
        let answers =
            exist.into_iter().map(|exists| unsupported.result(exists?).and_then(|()| check_disk(replica_type)));
        answers.collect()
    }

    unsupported_methods! {
        unsupported_result FetchTasks [fetch_tasks] fn fetch_tasks(_client_id: ClientId, _batch_size: u64) -> Vec<TaskAssignment>, None;
        unsupported_result MarkTaskToComplete [update_task] fn mark_task_to_complete(
            _client_id: ClientId, _result: TaskCompleteRequest
        ) -> (), None;
        unsupported_error QueryTask [query_task] fn query_task(_task_id: TaskId) -> QueryTaskResponse, None;
        unsupported_error CreateCopyTask [create_copy_task] fn create_copy_task(
            key: Text<'a>, tenant: Tenant<'a>, _targets: Vec<Text<'a>>
        ) -> TaskId, Some((tenant, key));
        unsupported_error CreateMoveTask [create_move_task] fn create_move_task(
            key: Text<'a>, tenant: Tenant<'a>, _source: Text<'a>, _target: Text<'a>
        ) -> TaskId, Some((tenant, key));
        unsupported_error CopyStart [copy_start] fn copy_start(
            _client_id: ClientId, key: Text<'a>, tenant: Tenant<'a>, _source: Text<'a>, _targets: Vec<Text<'a>>
        ) -> CopyStartResponse, Some((tenant, key));
        unsupported_result CopyEnd [copy_end] fn copy_end(_client_id: ClientId, key: Text<'a>, tenant: Tenant<'a>) -> (), Some((tenant, key));
        unsupported_result CopyRevoke [copy_revoke] fn copy_revoke(_client_id: ClientId, key: Text<'a>, tenant: Tenant<'a>) -> (), Some((tenant, key));
        unsupported_error MoveStart [move_start] fn move_start(
            _client_id: ClientId, key: Text<'a>, tenant: Tenant<'a>, _source: Text<'a>, _target: Text<'a>
        ) -> MoveStartResponse, Some((tenant, key));
        unsupported_result MoveEnd [move_end] fn move_end(_client_id: ClientId, key: Text<'a>, tenant: Tenant<'a>) -> (), Some((tenant, key));
        unsupported_result MoveRevoke [move_revoke] fn move_revoke(_client_id: ClientId, key: Text<'a>, tenant: Tenant<'a>) -> (), Some((tenant, key));
        unsupported_error DynamicReplicaCopyStart fn dynamic_replica_copy_start(
            _client_id: ClientId, key: Text<'a>, tenant: Tenant<'a>, _source: Text<'a>, _targets: Vec<Text<'a>>,
            _lease_id: ClientId, _version_epoch: u64
        ) -> CopyStartResponse, Some((tenant, key));
        unsupported_result DynamicReplicaCopyEnd fn dynamic_replica_copy_end(
            _client_id: ClientId, key: Text<'a>, tenant: Tenant<'a>, _lease_id: ClientId, _version_epoch: u64
        ) -> (), Some((tenant, key));
        unsupported_result DynamicReplicaCopyRevoke fn dynamic_replica_copy_revoke(
            _client_id: ClientId, key: Text<'a>, tenant: Tenant<'a>, _lease_id: ClientId, _version_epoch: u64
        ) -> (), Some((tenant, key));
        unsupported_result MountLocalDiskSegment fn mount_local_disk_segment(_client_id: ClientId, _enable_offloading: bool) -> (), None;
        unsupported_result UnmountLocalDiskSegment fn unmount_local_disk_segment(_client_id: ClientId) -> (), None;
        unsupported_result OffloadObjectHeartbeat fn offload_object_heartbeat(
            _client_id: ClientId, _enable_offloading: bool
        ) -> TierTasks, None;
        unsupported_result NotifyOffloadSuccess fn notify_offload_success(
            _client_id: ClientId, _items: Vec<TierTaskItem>, _metadata: Vec<StorageObjectMetadata>
        ) -> (), None;
        unsupported_result ReportSsdCapacity fn report_ssd_capacity(_client_id: ClientId, _bytes: i64) -> (), None;
        unsupported_result PollRemoveAll fn poll_remove_all(_client_id: ClientId) -> bool, None;
        unsupported_result PromotionObjectHeartbeat fn promotion_object_heartbeat(_client_id: ClientId) -> TierTasks, None;
        unsupported_error PromotionAllocStart fn promotion_alloc_start(
            _client_id: ClientId, key: Text<'a>, tenant: Tenant<'a>, _size: u64, _preferred_segments: Vec<Text<'a>>
        ) -> PromotionAllocStartResponse, Some((tenant, key));
        unsupported_result NotifyPromotionSuccess fn notify_promotion_success(
            _client_id: ClientId, key: Text<'a>, tenant: Tenant<'a>
        ) -> (), Some((tenant, key));
        unsupported_result NotifyPromotionFailure fn notify_promotion_failure(
            _client_id: ClientId, key: Text<'a>, tenant: Tenant<'a>
        ) -> (), Some((tenant, key));
        unsupported_result MountNoFSegment fn mount_nof_segment(_segment: NofSegment, _client_id: ClientId) -> (), None;
        unsupported_result ReMountNoFSegment fn remount_nof_segment(_segments: Vec<NofSegment>, _client_id: ClientId) -> (), None;
        unsupported_result UnmountNoFSegment fn unmount_nof_segment(_segment_id: SegmentId, _client_id: ClientId) -> (), None;
        unsupported_result GetAllNoFSegments fn get_all_nof_segments() -> Vec<NofSegment>, None;
        unsupported_result GetNoFSegmentsByName fn get_nof_segments_by_name(_name: Text<'a>) -> Vec<NofSegmentOwner>, None;
    }
}

/// Returns an error unless replicas of this type are stored on disk.
fn check_disk(kind: ReplicaType) -> Expected<()> {
    if kind == ReplicaType::DISK || kind == ReplicaType::LOCAL_DISK { Ok(()) } else { Err(ErrorCode::INVALID_PARAMS) }
}
