//! The table of the master's RPC methods. Only this file lists the methods.
//!
//! Each line generates the method's name, id and type hashes, its function in the server trait
//! [`MasterApi`], its arm in [`dispatch`], and the client call in [`MasterCalls`]. A server that
//! lacks a method does not compile. After the name comes the release that added the method. An
//! argument with `[since RELEASE]` is not in older requests, and has its default there.
//!
//! Upstream: `mooncake-store/include/rpc_service.h`, class `WrappedMasterService`. The hashes of
//! every release were checked against its wheel (`src/engine/wire/tests/wire.rs`).

use std::future::Future;

use bytes::Bytes;

use crate::layout::MethodLayout;
use crate::pack::{self, DecodeError, Expected, Map, Text, TextBuf, Wire, WriteLiteral, get_present, if_present};
use crate::types::{
    CopyStartResponse, GetReplicaListResponse, GetStorageConfigResponse, GrantLeasePolicy, MoveStartResponse,
    NofSegment, NofSegmentOwner, ObjectMeta, PingResponse, PromotionAllocStartResponse, QueryTaskResponse,
    ReplicaDescriptor, ReplicaType, ReplicateConfig, Segment, SegmentStatus, ServiceVersion, SliceLength,
    StorageObjectMetadata, TaskAssignment, TaskCompleteRequest, Tenant, TierTaskItem, TierTasks,
};
use mcctl_base::upstream::Release;
use mcctl_base::{ClientId, SegmentId, TaskId};

/// A connection to the master that carries encoded requests and responses.
pub trait Channel {
    /// Why a call failed.
    type Error: From<DecodeError>;
    /// The release of the master's messages, which the channel may have to find out first.
    fn release(&self) -> impl Future<Output = Result<Release, Self::Error>> + Send {
        async { Ok(Release::LATEST) }
    }
    /// Whether a call failed because the master is of another release than
    /// [`release`](Channel::release) returned. Nothing was executed, so it can be sent again.
    fn is_other_release(&self, _error: &Self::Error) -> bool {
        false
    }
    /// Sends the request `body` for `method` and waits for the response body.
    fn call(&self, method: Method, body: Vec<u8>) -> impl Future<Output = Result<Bytes, Self::Error>> + Send;
}

/// The client side of the master's methods, over a [`Channel`].
#[derive(Clone, Debug)]
pub struct MasterCalls<C>(pub C);

macro_rules! rpc_methods {
    ($($(#[$doc:meta])* $name:ident $since:ident
        fn $call:ident($($arg:ident: $ty:ty $([since $arg_since:ident])?),*) -> $ret:ty;)*) => {
        /// A method of the master.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u8)]
        pub enum Method { $($(#[$doc])* $name),* }

        impl Method {
            /// All methods, in table order.
            pub const ALL: &'static [Method] = &[$(Method::$name),*];

            /// Upstream's name for the method, without the class.
            pub fn name(self) -> &'static str {
                match self { $(Method::$name => stringify!($name)),* }
            }

            /// The release that added the method.
            pub fn since(self) -> Release {
                match self { $(Method::$name => Release::$since),* }
            }

            /// The layout of the method in the messages of `release`, which has it.
            pub(crate) fn describe(self, release: Release) -> MethodLayout {
                match self { $(Method::$name => MethodLayout::new::<$ret>(release, &{
                    #[allow(clippy::extra_unused_lifetimes, reason = "not every method borrows")]
                    fn literals<'a>() -> Vec<(Release, WriteLiteral)> {
                        vec![$((argument_since!($($arg_since)?), <$ty as Wire<'a>>::literal)),*]
                    }
                    literals()
                })),* }
            }
        }

        /// The server side of the master's methods, with upstream's semantics.
        #[allow(missing_docs, clippy::too_many_arguments, reason = "documented by the table's lines; the arguments match upstream")]
        pub trait MasterApi {
            $($(#[$doc])*
            #[allow(clippy::extra_unused_lifetimes, clippy::needless_lifetimes, reason = "not every method borrows")]
            fn $call<'a>(&mut self, $($arg: $ty),*) -> $ret;)*
        }

        /// Decodes the request `body` for `method`, calls `api`, and appends the response body to
        /// `out`. `layout` is that of the method in the client's release. The response contains its
        /// type literal if the request had one or had no body. A real peer therefore receives
        /// exactly the bytes that a real master would send.
        ///
        /// # Errors
        /// The body cannot be decoded as the method's arguments. In this case, `api` was not
        /// called.
        pub fn dispatch<'a>(
            api: &mut impl MasterApi, method: Method, layout: &MethodLayout, body: &'a [u8], out: &mut Vec<u8>
        ) -> Result<(), DecodeError> {
            match method {
                $(Method::$name => {
                    #[allow(unused_variables, reason = "a method without arguments has no body")]
                    let reader = &mut layout.open_request(body)?;
                    $(let $arg: $ty = get_present!(reader, $arg $(since $arg_since)?);)*
                    let answer = api.$call($($arg),*);
                    pack::encode(out, layout.response(), requires_literal(body), answer.longest(), |packer| answer.put(packer));
                })*
            }
            Ok(())
        }

        #[allow(clippy::too_many_arguments, reason = "the arguments match upstream")]
        impl<C: Channel> MasterCalls<C> {
            $($(#[$doc])*
            ///
            /// # Errors
            /// Outer: no response, one that cannot be decoded, or the master's release lacks the
            /// method. Inner: the master's error code.
            #[allow(clippy::extra_unused_lifetimes, clippy::needless_lifetimes, reason = "not every method borrows")]
            pub async fn $call<'a>(&self, $($arg: $ty),*) -> Result<$ret, C::Error> {
                let longest = 0usize;
                $(let longest = longest.max(Wire::longest(&$arg));)*
                loop {
                    let layout = Method::$name.require_layout(self.0.release().await?)?;
                    let mut body = Vec::new();
                    layout.encode_request(&mut body, false, longest, |_packer| {
                        $(if_present!(_packer, { Wire::put(&$arg, _packer); } $(since $arg_since)?);)*
                    });
                    let answer = match self.0.call(Method::$name, body).await {
                        Err(error) if self.0.is_other_release(&error) => continue,
                        answer => answer?,
                    };
                    return Ok(pack::decode(&answer, Method::$name.response_type(layout, &answer))?);
                }
            })*
        }

        /// Summarizes a call for a log line, from the bytes of its request and response.
        #[allow(clippy::needless_borrow, reason = "the borrow selects the trait whose function is called: see `Outlined`")]
        pub mod outline {
            use super::*;

            /// Returns the number of keys in a request; 0 if it cannot be decoded.
            pub fn keys<'a>(method: Method, layout: &MethodLayout, body: &'a [u8]) -> usize {
                let count = || -> Result<usize, DecodeError> {
                    #[allow(unused_mut, reason = "a method without arguments contains no keys")]
                    let mut keys = 0;
                    match method {
                        $(Method::$name => {
                            #[allow(unused_variables, reason = "a method without arguments has no body")]
                            let reader = &mut layout.open_request(body)?;
                            $(
                                let $arg: $ty = get_present!(reader, $arg $(since $arg_since)?);
                                if names_keys(stringify!($arg)) {
                                    keys += (&OutlineValue(&$arg)).items();
                                }
                            )*
                        })*
                    }
                    Ok(keys)
                };
                count().unwrap_or(0)
            }

            /// Returns the result of a call: `ok`, an error code, or the number of failed items in
            /// a batch.
            pub fn result(method: Method, layout: &MethodLayout, body: &[u8]) -> String {
                match method {
                    $(Method::$name => match pack::decode::<$ret>(body, layout.response()) {
                        Ok(answer) => (&OutlineValue(&answer)).outcome(),
                        Err(_) => "cannot decode the response".to_owned(),
                    })*
                }
            }
        }

        /// Decodes a request or response of any method and encodes it again, with or without its
        /// type literal. For tests, fuzzers and protocol tools. Also returns the value as text.
        pub mod transcode {
            use super::*;

            /// Transcodes a request body.
            ///
            /// # Errors
            /// It cannot be decoded.
            pub fn request<'a>(
                method: Method, layout: &MethodLayout, body: &'a [u8], literal: bool
            ) -> Result<(String, Vec<u8>), DecodeError> {
                match method {
                    $(Method::$name => {
                        #[allow(unused_variables, reason = "a method without arguments has no body")]
                        let reader = &mut layout.open_request(body)?;
                        $(let $arg: $ty = get_present!(reader, $arg $(since $arg_since)?);)*
                        let longest = 0usize;
                        $(let longest = longest.max(Wire::longest(&$arg));)*
                        let mut out = Vec::new();
                        layout.encode_request(&mut out, literal, longest, |_packer| {
                            $(if_present!(_packer, { Wire::put(&$arg, _packer); } $(since $arg_since)?);)*
                        });
                        #[allow(unused_mut, reason = "a method without arguments has nothing to show")]
                        let mut shown: Vec<String> = Vec::new();
                        $(shown.push(format!("{}: {:?}", stringify!($arg), $arg));)*
                        Ok((shown.join(", "), out))
                    })*
                }
            }

            /// Transcodes a response body.
            ///
            /// # Errors
            /// It cannot be decoded.
            pub fn response(
                method: Method, layout: &MethodLayout, body: &[u8], literal: bool
            ) -> Result<(String, Vec<u8>), DecodeError> {
                match method {
                    $(Method::$name => {
                        let answer = pack::decode::<$ret>(body, layout.response())?;
                        let mut out = Vec::new();
                        pack::encode(&mut out, layout.response(), literal, answer.longest(), |packer| answer.put(packer));
                        Ok((format!("{answer:?}"), out))
                    })*
                }
            }
        }
    };
}

/// The release that added an argument.
macro_rules! argument_since {
    () => {
        Release::FIRST
    };
    ($since:ident) => {
        Release::$since
    };
}

rpc_methods! {
    /// Returns the protocol version if the service is up. Clients require their own version,
    /// `2.0.0`.
    ServiceReady V0_3_7 fn service_ready() -> Expected<ServiceVersion>;
    /// Returns the location of the legacy file tier.
    GetStorageConfig V0_3_8 fn get_storage_config() -> Expected<GetStorageConfigResponse>;
    /// Returns the location of the legacy file tier; older version of `GetStorageConfig`.
    GetFsdir V0_3_6 fn get_fsdir() -> Expected<TextBuf>;
    /// Client heartbeat. The response shows whether the client's segments are registered.
    Ping V0_3_6 fn ping(client_id: ClientId) -> Expected<PingResponse>;

    /// Returns true if the key has a complete replica, and grants a read lease on it.
    ExistKey V0_3_6 fn exist_key(key: Text<'a>, tenant: Tenant<'a> [since V0_3_12]) -> Expected<bool>;
    /// `ExistKey`, for many keys.
    BatchExistKey V0_3_6 fn batch_exist_key(keys: Vec<Text<'a>>, tenant: Tenant<'a> [since V0_3_12]) -> Vec<Expected<bool>>;
    /// `ExistKey` without a read lease.
    ProbeKey V0_3_14 fn probe_key(key: Text<'a>, tenant: Tenant<'a>) -> Expected<bool>;
    /// `BatchExistKey`, with read leases as the policy says.
    BatchProbeKey V0_3_14
        fn batch_probe_key(policy: GrantLeasePolicy, keys: Vec<Text<'a>>, tenant: Tenant<'a>) -> Vec<Expected<bool>>;
    /// Returns the replicas of an object and grants a read lease.
    GetReplicaList V0_3_6 fn get_replica_list(key: Text<'a>, tenant: Tenant<'a> [since V0_3_12]) -> Expected<GetReplicaListResponse>;
    /// `GetReplicaList`, for many keys.
    BatchGetReplicaList V0_3_6
        fn batch_get_replica_list(keys: Vec<Text<'a>>, tenant: Tenant<'a> [since V0_3_12]) -> Vec<Expected<GetReplicaListResponse>>;
    /// `GetReplicaList`, for every key that matches the expression.
    GetReplicaListByRegex V0_3_6
        fn get_replica_list_by_regex(regex: Text<'a>, tenant: Tenant<'a> [since V0_3_12]) -> Expected<Map<TextBuf, Vec<ReplicaDescriptor>>>;

    /// Allocates memory for a new object.
    PutStart V0_3_6 fn put_start(client_id: ClientId [since V0_3_8], key: Text<'a>, slice_length: SliceLength, config: ReplicateConfig, tenant: Tenant<'a> [since V0_3_12])
        -> Expected<Vec<ReplicaDescriptor>>;
    /// Completes the put: the bytes have been written.
    PutEnd V0_3_6 fn put_end(client_id: ClientId [since V0_3_8], object: ObjectMeta<'a>, replica_type: ReplicaType, tenant: Tenant<'a> [since V0_3_12])
        -> Expected<()>;
    /// Revokes the put: the bytes could not be written.
    PutRevoke V0_3_6 fn put_revoke(client_id: ClientId [since V0_3_8], key: Text<'a>, replica_type: ReplicaType, tenant: Tenant<'a> [since V0_3_12])
        -> Expected<()>;
    /// `PutStart`, for many keys.
    BatchPutStart V0_3_6 fn batch_put_start(
        client_id: ClientId [since V0_3_8], keys: Vec<Text<'a>>, slice_lengths: Vec<SliceLength>, config: ReplicateConfig, tenant: Tenant<'a> [since V0_3_12]
    ) -> Vec<Expected<Vec<ReplicaDescriptor>>>;
    /// `PutEnd`, for many keys.
    BatchPutEnd V0_3_6
        fn batch_put_end(client_id: ClientId [since V0_3_8], objects: Vec<ObjectMeta<'a>>, replica_type: ReplicaType [since V0_3_11], tenant: Tenant<'a> [since V0_3_12])
        -> Vec<Expected<()>>;
    /// `PutRevoke`, for many keys.
    BatchPutRevoke V0_3_6
        fn batch_put_revoke(client_id: ClientId [since V0_3_8], keys: Vec<Text<'a>>, replica_type: ReplicaType [since V0_3_11], tenant: Tenant<'a> [since V0_3_12])
        -> Vec<Expected<()>>;

    /// Allocates memory for an object that may already exist.
    UpsertStart V0_3_10_2
        fn upsert_start(client_id: ClientId, key: Text<'a>, slice_length: SliceLength, config: ReplicateConfig, tenant: Tenant<'a> [since V0_3_12])
        -> Expected<Vec<ReplicaDescriptor>>;
    /// Completes the upsert: the bytes have been written.
    UpsertEnd V0_3_10_2 fn upsert_end(client_id: ClientId, object: ObjectMeta<'a>, replica_type: ReplicaType, tenant: Tenant<'a> [since V0_3_12])
        -> Expected<()>;
    /// Revokes the upsert: the bytes could not be written.
    UpsertRevoke V0_3_10_2 fn upsert_revoke(client_id: ClientId, key: Text<'a>, replica_type: ReplicaType, tenant: Tenant<'a> [since V0_3_12])
        -> Expected<()>;
    /// `UpsertStart`, for many keys.
    BatchUpsertStart V0_3_10_2 fn batch_upsert_start(
        client_id: ClientId, keys: Vec<Text<'a>>, slice_lengths: Vec<SliceLength>, config: ReplicateConfig, tenant: Tenant<'a> [since V0_3_12]
    ) -> Vec<Expected<Vec<ReplicaDescriptor>>>;
    /// `UpsertEnd`, for many keys.
    BatchUpsertEnd V0_3_10_2 fn batch_upsert_end(client_id: ClientId, objects: Vec<ObjectMeta<'a>>, tenant: Tenant<'a> [since V0_3_12])
        -> Vec<Expected<()>>;
    /// `UpsertRevoke`, for many keys.
    BatchUpsertRevoke V0_3_10_2 fn batch_upsert_revoke(client_id: ClientId, keys: Vec<Text<'a>>, tenant: Tenant<'a> [since V0_3_12])
        -> Vec<Expected<()>>;

    /// Removes an object; with `force`, even a leased one.
    Remove V0_3_6 fn remove(key: Text<'a>, force: bool [since V0_3_9], tenant: Tenant<'a> [since V0_3_12]) -> Expected<()>;
    /// `Remove`, for many keys.
    BatchRemove V0_3_10_2 fn batch_remove(keys: Vec<Text<'a>>, force: bool, tenant: Tenant<'a> [since V0_3_12]) -> Vec<Expected<()>>;
    /// `Remove`, for every key that matches the expression. Returns the number of removed objects.
    RemoveByRegex V0_3_6 fn remove_by_regex(regex: Text<'a>, force: bool [since V0_3_9], tenant: Tenant<'a> [since V0_3_12]) -> Expected<i64>;
    /// `Remove`, for every key. Returns the number of removed objects.
    RemoveAll V0_3_6 fn remove_all(force: bool [since V0_3_9], tenant: Tenant<'a> [since V0_3_12]) -> i64;
    /// Drops the replicas of a client's objects on one segment, or on all segments if the name is
    /// empty. Returns the cleared keys.
    BatchReplicaClear V0_3_8
        fn batch_replica_clear(
            keys: Vec<Text<'a>>, client_id: ClientId, segment_name: Text<'a>, tenant: Tenant<'a> [since V0_3_14]
        ) -> Expected<Vec<TextBuf>>;

    MountSegment V0_3_6 fn mount_segment(segment: Segment, client_id: ClientId) -> Expected<()>;
    /// Mounts all segments of a client, in response to `NEED_REMOUNT`.
    ReMountSegment V0_3_6 fn remount_segment(segments: Vec<Segment>, client_id: ClientId) -> Expected<()>;
    UnmountSegment V0_3_6 fn unmount_segment(segment_id: SegmentId, client_id: ClientId) -> Expected<()>;
    /// Unmounts a segment after a grace period during which it remains readable.
    GracefulUnmountSegment V0_3_11
        fn graceful_unmount_segment(segment_id: SegmentId, client_id: ClientId, grace_period_ms: u64) -> Expected<()>;
    /// Returns the status of the segment with this name.
    QuerySegmentStatus V0_3_11 fn query_segment_status(segment_name: Text<'a>) -> Expected<SegmentStatus>;
    /// Returns the status of the segment with this id.
    QuerySegmentStatusById V0_3_11 fn query_segment_status_by_id(segment_id: SegmentId) -> Expected<SegmentStatus>;
    /// Returns the clients' addresses.
    BatchQueryIp V0_3_8 fn batch_query_ip(client_ids: Vec<ClientId>) -> Expected<Map<ClientId, Vec<TextBuf>>>;

    /// Returns tasks for this client.
    FetchTasks V0_3_8 fn fetch_tasks(client_id: ClientId, batch_size: u64) -> Expected<Vec<TaskAssignment>>;
    /// Reports the result of a task.
    MarkTaskToComplete V0_3_8 fn mark_task_to_complete(client_id: ClientId, result: TaskCompleteRequest) -> Expected<()>;
    /// Returns the state of a task.
    QueryTask V0_3_8 fn query_task(task_id: TaskId) -> Expected<QueryTaskResponse>;
    /// Creates a task that copies a replica.
    CreateCopyTask V0_3_8 fn create_copy_task(key: Text<'a>, tenant: Tenant<'a> [since V0_3_12], targets: Vec<Text<'a>>) -> Expected<TaskId>;
    /// Creates a task that moves a replica.
    CreateMoveTask V0_3_8 fn create_move_task(key: Text<'a>, tenant: Tenant<'a> [since V0_3_12], source: Text<'a>, target: Text<'a>)
        -> Expected<TaskId>;
    CopyStart V0_3_9
        fn copy_start(client_id: ClientId, key: Text<'a>, tenant: Tenant<'a> [since V0_3_12], source: Text<'a>, targets: Vec<Text<'a>>)
        -> Expected<CopyStartResponse>;
    /// Completes the copy: the bytes have been written.
    CopyEnd V0_3_9 fn copy_end(client_id: ClientId, key: Text<'a>, tenant: Tenant<'a> [since V0_3_12]) -> Expected<()>;
    CopyRevoke V0_3_9 fn copy_revoke(client_id: ClientId, key: Text<'a>, tenant: Tenant<'a> [since V0_3_12]) -> Expected<()>;
    MoveStart V0_3_9 fn move_start(client_id: ClientId, key: Text<'a>, tenant: Tenant<'a> [since V0_3_12], source: Text<'a>, target: Text<'a>)
        -> Expected<MoveStartResponse>;
    /// Completes the move: the bytes have been written.
    MoveEnd V0_3_9 fn move_end(client_id: ClientId, key: Text<'a>, tenant: Tenant<'a> [since V0_3_12]) -> Expected<()>;
    MoveRevoke V0_3_9 fn move_revoke(client_id: ClientId, key: Text<'a>, tenant: Tenant<'a> [since V0_3_12]) -> Expected<()>;
    /// Starts a copy requested by the master because the object is hot.
    DynamicReplicaCopyStart V0_3_13 fn dynamic_replica_copy_start(
        client_id: ClientId, key: Text<'a>, tenant: Tenant<'a> [since V0_3_12], source: Text<'a>, targets: Vec<Text<'a>>,
        lease_id: ClientId, version_epoch: u64
    ) -> Expected<CopyStartResponse>;
    /// Completes a dynamic copy: the bytes have been written.
    DynamicReplicaCopyEnd V0_3_13 fn dynamic_replica_copy_end(
        client_id: ClientId, key: Text<'a>, tenant: Tenant<'a> [since V0_3_12], lease_id: ClientId, version_epoch: u64
    ) -> Expected<()>;
    DynamicReplicaCopyRevoke V0_3_13 fn dynamic_replica_copy_revoke(
        client_id: ClientId, key: Text<'a>, tenant: Tenant<'a> [since V0_3_12], lease_id: ClientId, version_epoch: u64
    ) -> Expected<()>;

    MountLocalDiskSegment V0_3_8 fn mount_local_disk_segment(client_id: ClientId, enable_offloading: bool) -> Expected<()>;
    UnmountLocalDiskSegment V0_3_13 fn unmount_local_disk_segment(client_id: ClientId) -> Expected<()>;
    /// Returns the objects to write to disk.
    OffloadObjectHeartbeat V0_3_8
        fn offload_object_heartbeat(client_id: ClientId, enable_offloading: bool) -> Expected<TierTasks>;
    /// Reports objects that are now on disk.
    NotifyOffloadSuccess V0_3_8 fn notify_offload_success(
        client_id: ClientId, items: Vec<TierTaskItem>, metadata: Vec<StorageObjectMetadata>
    ) -> Expected<()>;
    /// Reports the capacity of a node's disk.
    ReportSsdCapacity V0_3_11 fn report_ssd_capacity(client_id: ClientId, bytes: i64) -> Expected<()>;
    /// Returns true if all objects have been removed since the last call.
    PollRemoveAll V0_3_12 fn poll_remove_all(client_id: ClientId) -> Expected<bool>;
    /// Reports an object that was removed from this client's disk.
    EvictDiskReplica V0_3_10
        fn evict_disk_replica(client_id: ClientId, key: Text<'a>, tenant: Tenant<'a> [since V0_3_12], replica_type: ReplicaType) -> Expected<()>;
    /// `EvictDiskReplica`, for many keys.
    BatchEvictDiskReplica V0_3_10_2 fn batch_evict_disk_replica(
        client_id: ClientId, keys: Vec<Text<'a>>, tenant: Tenant<'a> [since V0_3_12], replica_type: ReplicaType
    ) -> Vec<Expected<()>>;
    /// Returns the objects to load from disk into memory.
    PromotionObjectHeartbeat V0_3_11 fn promotion_object_heartbeat(client_id: ClientId) -> Expected<TierTasks>;
    /// Allocates memory for an object that is being loaded from disk.
    PromotionAllocStart V0_3_11 fn promotion_alloc_start(
        client_id: ClientId, key: Text<'a>, tenant: Tenant<'a> [since V0_3_12], size: u64, preferred_segments: Vec<Text<'a>>
    ) -> Expected<PromotionAllocStartResponse>;
    NotifyPromotionSuccess V0_3_11
        fn notify_promotion_success(client_id: ClientId, key: Text<'a>, tenant: Tenant<'a> [since V0_3_12]) -> Expected<()>;
    /// Reports an object that could not be loaded from disk.
    NotifyPromotionFailure V0_3_11
        fn notify_promotion_failure(client_id: ClientId, key: Text<'a>, tenant: Tenant<'a> [since V0_3_12]) -> Expected<()>;

    MountNoFSegment V0_3_11 fn mount_nof_segment(segment: NofSegment, client_id: ClientId) -> Expected<()>;
    /// Mounts all NVMe-oF segments of a client.
    ReMountNoFSegment V0_3_11 fn remount_nof_segment(segments: Vec<NofSegment>, client_id: ClientId) -> Expected<()>;
    /// Unmounts an NVMe-oF segment.
    UnmountNoFSegment V0_3_11 fn unmount_nof_segment(segment_id: SegmentId, client_id: ClientId) -> Expected<()>;
    GetAllNoFSegments V0_3_11 fn get_all_nof_segments() -> Expected<Vec<NofSegment>>;
    GetNoFSegmentsByName V0_3_11 fn get_nof_segments_by_name(name: Text<'a>) -> Expected<Vec<NofSegmentOwner>>;
}

/// Returns true if the argument `name` contains keys.
fn names_keys(name: &str) -> bool {
    matches!(name, "key" | "keys" | "object" | "objects")
}

/// A value in a request or response. Method lookup tries the value itself before a reference to it,
/// so the functions on [`OutlineList`] and [`OutlineAnswer`] take precedence over those on
/// [`OutlineAny`].
struct OutlineValue<'a, T>(&'a T);

trait OutlineAny {
    fn items(&self) -> usize {
        1
    }

    fn outcome(&self) -> String {
        "ok".to_owned()
    }
}

impl<T> OutlineAny for &OutlineValue<'_, T> {}

trait OutlineList {
    fn items(&self) -> usize;
}

impl<T> OutlineList for OutlineValue<'_, Vec<T>> {
    fn items(&self) -> usize {
        self.0.len()
    }
}

trait OutlineAnswer {
    fn outcome(&self) -> String;
}

impl<T> OutlineAnswer for OutlineValue<'_, Expected<T>> {
    fn outcome(&self) -> String {
        self.0.as_ref().map_or_else(ToString::to_string, |_| "ok".to_owned())
    }
}

impl<T> OutlineAnswer for OutlineValue<'_, Vec<Expected<T>>> {
    fn outcome(&self) -> String {
        let mut failed = self.0.iter().filter_map(|item| item.as_ref().err());
        match failed.next() {
            None => "ok".to_owned(),
            Some(first) => format!("{} of {} failed, first {first}", failed.count() + 1, self.0.len()),
        }
    }
}

impl Method {
    /// Whether a second execution of the same request changes nothing and has the same result:
    /// lookups, heartbeats, mounts of a segment with its ID, and the end of a put. An operation
    /// that another client does in between is not undone by it.
    pub fn is_idempotent(self) -> bool {
        matches!(
            self,
            Method::BatchExistKey
                | Method::BatchGetReplicaList
                | Method::BatchPutEnd
                | Method::ExistKey
                | Method::GetReplicaList
                | Method::MountSegment
                | Method::Ping
                | Method::PutEnd
                | Method::ReMountSegment
                | Method::ServiceReady
        )
    }
}

/// Returns true if the response to this request must contain its type literal.
fn requires_literal(body: &[u8]) -> bool {
    body.is_empty() || pack::carries_literal(body)
}

#[cfg(test)]
mod tests {
    use super::*;
    use mcctl_base::ErrorCode;

    #[test]
    fn an_outline_contains_the_number_of_keys_and_the_result() {
        let keys: Vec<Text<'_>> = ["a", "b", "c"].map(Text::from).to_vec();
        let mut body = Vec::new();
        let longest = keys.longest();
        let layout = |method: Method| method.layout(Release::LATEST).expect("all methods");
        layout(Method::BatchExistKey).encode_request(&mut body, false, longest, |packer| {
            keys.put(packer);
            Text::from("t").put(packer);
        });
        let found = |method, body| outline::keys(method, layout(method), body);
        assert_eq!(found(Method::BatchExistKey, &body), 3);
        assert_eq!(found(Method::ServiceReady, &[]), 0);
        assert_eq!(found(Method::ExistKey, b"nonsense"), 0);
        let result = |answer: Vec<Expected<bool>>| {
            let mut out = Vec::new();
            let layout = layout(Method::BatchExistKey);
            pack::encode(&mut out, layout.response(), false, answer.longest(), |packer| answer.put(packer));
            outline::result(Method::BatchExistKey, layout, &out)
        };
        assert_eq!(result(vec![Ok(true), Ok(false)]), "ok");
        let missing = ErrorCode::OBJECT_NOT_FOUND;
        assert_eq!(result(vec![Ok(true), Err(missing), Err(missing)]), format!("2 of 3 failed, first {missing}"));
        let mut out = Vec::new();
        let (layout, answer) = (layout(Method::ExistKey), Expected::<bool>::Err(missing));
        pack::encode(&mut out, layout.response(), false, answer.longest(), |packer| answer.put(packer));
        assert_eq!(outline::result(Method::ExistKey, layout, &out), missing.to_string());
    }
}
