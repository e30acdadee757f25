//! The table of the master's RPC methods in release 0.3.13. Only this file lists the methods.
//!
//! Each line generates the method's name, id and type hashes, its function in the server trait
//! [`MasterApi`], its arm in [`dispatch`], and the client call in [`MasterCalls`]. A server that
//! lacks a method does not compile.
//!
//! Upstream: `mooncake-store/include/rpc_service.h`, class `WrappedMasterService`. `since` is the
//! release in which the method reached its present form. The hashes in every line were checked
//! against the 0.3.13.post1 wheel (`src/engine/wire/tests/wire.rs`).

use std::future::Future;
use std::sync::OnceLock;

use bytes::Bytes;

use crate::pack::{self, DecodeError, Expected, Map, Text, TextBuf, TypeInfo, TypeLiteral, Wire, md5_u32};
use crate::types::{
    CopyStartResponse, GetReplicaListResponse, GetStorageConfigResponse, MoveStartResponse, NofSegment,
    NofSegmentOwner, ObjectMeta, PingResponse, PromotionAllocStartResponse, QueryTaskResponse, ReplicaDescriptor,
    ReplicaType, ReplicateConfig, Segment, SegmentStatus, StorageObjectMetadata, TaskAssignment, TaskCompleteRequest,
    TierTaskItem,
};
use mcctl_base::{ClientId, SegmentId, TaskId};

/// A connection to the master that carries encoded requests and responses.
pub trait Channel {
    /// Why a call failed.
    type Error: From<DecodeError>;
    /// Sends the request `body` for `method` and waits for the response body.
    fn call(&self, method: Method, body: Vec<u8>) -> impl Future<Output = Result<Bytes, Self::Error>> + Send;
}

/// The client side of the master's methods, over a [`Channel`].
#[derive(Clone, Debug)]
pub struct MasterCalls<C>(pub C);

macro_rules! rpc_methods {
    ($($(#[$doc:meta])* $name:ident $since:literal fn $call:ident($($arg:ident: $ty:ty),*) -> $ret:ty;)*) => {
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

            /// The release in which the method reached its present form.
            pub fn since(self) -> &'static str {
                match self { $(Method::$name => $since),* }
            }

            fn describe(self) -> MethodDescription {
                match self { $(Method::$name => describe_call::<$ret>(self, &{
                    #[allow(clippy::extra_unused_lifetimes, reason = "not every method borrows")]
                    fn literals<'a>() -> Vec<fn(&mut TypeLiteral)> {
                        vec![$(<$ty as Wire<'a>>::literal),*]
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
        /// `out`. The response contains its type literal if the request had one or had no body. A
        /// real peer therefore receives exactly the bytes that a real master would send.
        ///
        /// # Errors
        /// The body cannot be decoded as the method's arguments. In this case, `api` was not
        /// called.
        pub fn dispatch<'a>(api: &mut impl MasterApi, method: Method, body: &'a [u8], out: &mut Vec<u8>) -> Result<(), DecodeError> {
            match method {
                $(Method::$name => {
                    #[allow(unused_mut, unused_variables, reason = "a method without arguments has no body")]
                    let mut reader = open_request(method, body)?;
                    $(let $arg = <$ty as Wire<'a>>::get(&mut reader).map_err(|e| e.within(stringify!($arg)))?;)*
                    let answer = api.$call($($arg),*);
                    pack::encode(out, method.response_type(), requires_literal(body), answer.longest(), |packer| answer.put(packer));
                })*
            }
            Ok(())
        }

        #[allow(clippy::too_many_arguments, reason = "the arguments match upstream")]
        impl<C: Channel> MasterCalls<C> {
            $($(#[$doc])*
            ///
            /// # Errors
            /// Outer: no response, or one that cannot be decoded. Inner: the master's error code.
            #[allow(clippy::extra_unused_lifetimes, clippy::needless_lifetimes, reason = "not every method borrows")]
            pub async fn $call<'a>(&self, $($arg: $ty),*) -> Result<$ret, C::Error> {
                let longest = 0usize;
                $(let longest = longest.max(Wire::longest(&$arg));)*
                #[allow(unused_mut, reason = "a method without arguments has no body")]
                let mut body = Vec::new();
                encode_request(&mut body, Method::$name, longest, |_packer| { $(Wire::put(&$arg, _packer);)* });
                let answer = self.0.call(Method::$name, body).await?;
                Ok(pack::decode(&answer, Method::$name.response_type())?)
            })*
        }

        /// Summarizes a call for a log line, from the bytes of its request and response.
        #[allow(clippy::needless_borrow, reason = "the borrow selects the trait whose function is called: see `Outlined`")]
        pub mod outline {
            use super::*;

            /// Returns the number of keys in a request; 0 if it cannot be decoded.
            pub fn keys<'a>(method: Method, body: &'a [u8]) -> usize {
                let count = || -> Result<usize, DecodeError> {
                    #[allow(unused_mut, reason = "a method without arguments contains no keys")]
                    let mut keys = 0;
                    match method {
                        $(Method::$name => {
                            #[allow(unused_mut, unused_variables, reason = "a method without arguments has no body")]
                            let mut reader = open_request(method, body)?;
                            $(
                                let $arg = <$ty as Wire<'a>>::get(&mut reader)?;
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
            pub fn result(method: Method, body: &[u8]) -> String {
                match method {
                    $(Method::$name => match pack::decode::<$ret>(body, method.response_type()) {
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
            pub fn request<'a>(method: Method, body: &'a [u8], literal: bool) -> Result<(String, Vec<u8>), DecodeError> {
                match method {
                    $(Method::$name => {
                        #[allow(unused_mut, unused_variables, reason = "a method without arguments has no body")]
                        let mut reader = open_request(method, body)?;
                        $(let $arg = <$ty as Wire<'a>>::get(&mut reader).map_err(|e| e.within(stringify!($arg)))?;)*
                        let longest = 0usize;
                        $(let longest = longest.max(Wire::longest(&$arg));)*
                        #[allow(unused_mut, reason = "a method without arguments has no body")]
                        let mut out = Vec::new();
                        if let Some(info) = method.request_type() {
                            pack::encode(&mut out, info, literal, longest, |_packer| { $(Wire::put(&$arg, _packer);)* });
                        }
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
            pub fn response(method: Method, body: &[u8], literal: bool) -> Result<(String, Vec<u8>), DecodeError> {
                match method {
                    $(Method::$name => {
                        let answer = pack::decode::<$ret>(body, method.response_type())?;
                        let mut out = Vec::new();
                        pack::encode(&mut out, method.response_type(), literal, answer.longest(), |packer| answer.put(packer));
                        Ok((format!("{answer:?}"), out))
                    })*
                }
            }
        }
    };
}

rpc_methods! {
    /// Returns the protocol version if the service is up. Clients require their own version,
    /// `2.0.0`.
    ServiceReady "0.3.8" fn service_ready() -> Expected<TextBuf>;
    /// Returns the location of the legacy file tier.
    GetStorageConfig "0.3.8" fn get_storage_config() -> Expected<GetStorageConfigResponse>;
    /// Returns the location of the legacy file tier; older version of `GetStorageConfig`.
    GetFsdir "0.3.6" fn get_fsdir() -> Expected<TextBuf>;
    /// Client heartbeat. The response shows whether the client's segments are registered.
    Ping "0.3.6" fn ping(client_id: ClientId) -> Expected<PingResponse>;

    /// Returns true if the key has a complete replica, and grants a read lease on it.
    ExistKey "0.3.12" fn exist_key(key: Text<'a>, tenant: Text<'a>) -> Expected<bool>;
    /// `ExistKey`, for many keys.
    BatchExistKey "0.3.12" fn batch_exist_key(keys: Vec<Text<'a>>, tenant: Text<'a>) -> Vec<Expected<bool>>;
    /// Returns the replicas of an object and grants a read lease.
    GetReplicaList "0.3.13" fn get_replica_list(key: Text<'a>, tenant: Text<'a>) -> Expected<GetReplicaListResponse>;
    /// `GetReplicaList`, for many keys.
    BatchGetReplicaList "0.3.13"
        fn batch_get_replica_list(keys: Vec<Text<'a>>, tenant: Text<'a>) -> Vec<Expected<GetReplicaListResponse>>;
    /// `GetReplicaList`, for every key that matches the expression.
    GetReplicaListByRegex "0.3.13"
        fn get_replica_list_by_regex(regex: Text<'a>, tenant: Text<'a>) -> Expected<Map<TextBuf, Vec<ReplicaDescriptor>>>;

    /// Allocates memory for a new object.
    PutStart "0.3.13" fn put_start(client_id: ClientId, key: Text<'a>, slice_length: u64, config: ReplicateConfig, tenant: Text<'a>)
        -> Expected<Vec<ReplicaDescriptor>>;
    /// Completes the put: the bytes have been written.
    PutEnd "0.3.13" fn put_end(client_id: ClientId, object: ObjectMeta<'a>, replica_type: ReplicaType, tenant: Text<'a>)
        -> Expected<()>;
    /// Revokes the put: the bytes could not be written.
    PutRevoke "0.3.12" fn put_revoke(client_id: ClientId, key: Text<'a>, replica_type: ReplicaType, tenant: Text<'a>)
        -> Expected<()>;
    /// `PutStart`, for many keys.
    BatchPutStart "0.3.13" fn batch_put_start(
        client_id: ClientId, keys: Vec<Text<'a>>, slice_lengths: Vec<u64>, config: ReplicateConfig, tenant: Text<'a>
    ) -> Vec<Expected<Vec<ReplicaDescriptor>>>;
    /// `PutEnd`, for many keys.
    BatchPutEnd "0.3.13"
        fn batch_put_end(client_id: ClientId, objects: Vec<ObjectMeta<'a>>, replica_type: ReplicaType, tenant: Text<'a>)
        -> Vec<Expected<()>>;
    /// `PutRevoke`, for many keys.
    BatchPutRevoke "0.3.12"
        fn batch_put_revoke(client_id: ClientId, keys: Vec<Text<'a>>, replica_type: ReplicaType, tenant: Text<'a>)
        -> Vec<Expected<()>>;

    /// Allocates memory for an object that may already exist.
    UpsertStart "0.3.13"
        fn upsert_start(client_id: ClientId, key: Text<'a>, slice_length: u64, config: ReplicateConfig, tenant: Text<'a>)
        -> Expected<Vec<ReplicaDescriptor>>;
    /// Completes the upsert: the bytes have been written.
    UpsertEnd "0.3.13" fn upsert_end(client_id: ClientId, object: ObjectMeta<'a>, replica_type: ReplicaType, tenant: Text<'a>)
        -> Expected<()>;
    /// Revokes the upsert: the bytes could not be written.
    UpsertRevoke "0.3.12" fn upsert_revoke(client_id: ClientId, key: Text<'a>, replica_type: ReplicaType, tenant: Text<'a>)
        -> Expected<()>;
    /// `UpsertStart`, for many keys.
    BatchUpsertStart "0.3.13" fn batch_upsert_start(
        client_id: ClientId, keys: Vec<Text<'a>>, slice_lengths: Vec<u64>, config: ReplicateConfig, tenant: Text<'a>
    ) -> Vec<Expected<Vec<ReplicaDescriptor>>>;
    /// `UpsertEnd`, for many keys.
    BatchUpsertEnd "0.3.13" fn batch_upsert_end(client_id: ClientId, objects: Vec<ObjectMeta<'a>>, tenant: Text<'a>)
        -> Vec<Expected<()>>;
    /// `UpsertRevoke`, for many keys.
    BatchUpsertRevoke "0.3.12" fn batch_upsert_revoke(client_id: ClientId, keys: Vec<Text<'a>>, tenant: Text<'a>)
        -> Vec<Expected<()>>;

    /// Removes an object; with `force`, even a leased one.
    Remove "0.3.12" fn remove(key: Text<'a>, force: bool, tenant: Text<'a>) -> Expected<()>;
    /// `Remove`, for many keys.
    BatchRemove "0.3.12" fn batch_remove(keys: Vec<Text<'a>>, force: bool, tenant: Text<'a>) -> Vec<Expected<()>>;
    /// `Remove`, for every key that matches the expression. Returns the number of removed objects.
    RemoveByRegex "0.3.12" fn remove_by_regex(regex: Text<'a>, force: bool, tenant: Text<'a>) -> Expected<i64>;
    /// `Remove`, for every key. Returns the number of removed objects.
    RemoveAll "0.3.12" fn remove_all(force: bool, tenant: Text<'a>) -> i64;
    /// Drops the replicas of a client's objects on one segment, or on all segments if the name is
    /// empty. Returns the cleared keys.
    BatchReplicaClear "0.3.8"
        fn batch_replica_clear(keys: Vec<Text<'a>>, client_id: ClientId, segment_name: Text<'a>) -> Expected<Vec<TextBuf>>;

    MountSegment "0.3.12" fn mount_segment(segment: Segment, client_id: ClientId) -> Expected<()>;
    /// Mounts all segments of a client, in response to `NEED_REMOUNT`.
    ReMountSegment "0.3.12" fn remount_segment(segments: Vec<Segment>, client_id: ClientId) -> Expected<()>;
    UnmountSegment "0.3.6" fn unmount_segment(segment_id: SegmentId, client_id: ClientId) -> Expected<()>;
    /// Unmounts a segment after a grace period during which it remains readable.
    GracefulUnmountSegment "0.3.11"
        fn graceful_unmount_segment(segment_id: SegmentId, client_id: ClientId, grace_period_ms: u64) -> Expected<()>;
    /// Returns the status of the segment with this name.
    QuerySegmentStatus "0.3.11" fn query_segment_status(segment_name: Text<'a>) -> Expected<SegmentStatus>;
    /// Returns the status of the segment with this id.
    QuerySegmentStatusById "0.3.11" fn query_segment_status_by_id(segment_id: SegmentId) -> Expected<SegmentStatus>;
    /// Returns the clients' addresses.
    BatchQueryIp "0.3.8" fn batch_query_ip(client_ids: Vec<ClientId>) -> Expected<Map<ClientId, Vec<TextBuf>>>;

    /// Returns tasks for this client.
    FetchTasks "0.3.10" fn fetch_tasks(client_id: ClientId, batch_size: u64) -> Expected<Vec<TaskAssignment>>;
    /// Reports the result of a task.
    MarkTaskToComplete "0.3.8" fn mark_task_to_complete(client_id: ClientId, result: TaskCompleteRequest) -> Expected<()>;
    /// Returns the state of a task.
    QueryTask "0.3.8" fn query_task(task_id: TaskId) -> Expected<QueryTaskResponse>;
    /// Creates a task that copies a replica.
    CreateCopyTask "0.3.12" fn create_copy_task(key: Text<'a>, tenant: Text<'a>, targets: Vec<Text<'a>>) -> Expected<TaskId>;
    /// Creates a task that moves a replica.
    CreateMoveTask "0.3.12" fn create_move_task(key: Text<'a>, tenant: Text<'a>, source: Text<'a>, target: Text<'a>)
        -> Expected<TaskId>;
    CopyStart "0.3.13"
        fn copy_start(client_id: ClientId, key: Text<'a>, tenant: Text<'a>, source: Text<'a>, targets: Vec<Text<'a>>)
        -> Expected<CopyStartResponse>;
    /// Completes the copy: the bytes have been written.
    CopyEnd "0.3.12" fn copy_end(client_id: ClientId, key: Text<'a>, tenant: Text<'a>) -> Expected<()>;
    CopyRevoke "0.3.12" fn copy_revoke(client_id: ClientId, key: Text<'a>, tenant: Text<'a>) -> Expected<()>;
    MoveStart "0.3.13" fn move_start(client_id: ClientId, key: Text<'a>, tenant: Text<'a>, source: Text<'a>, target: Text<'a>)
        -> Expected<MoveStartResponse>;
    /// Completes the move: the bytes have been written.
    MoveEnd "0.3.12" fn move_end(client_id: ClientId, key: Text<'a>, tenant: Text<'a>) -> Expected<()>;
    MoveRevoke "0.3.12" fn move_revoke(client_id: ClientId, key: Text<'a>, tenant: Text<'a>) -> Expected<()>;
    /// Starts a copy requested by the master because the object is hot.
    DynamicReplicaCopyStart "0.3.13" fn dynamic_replica_copy_start(
        client_id: ClientId, key: Text<'a>, tenant: Text<'a>, source: Text<'a>, targets: Vec<Text<'a>>,
        lease_id: ClientId, version_epoch: u64
    ) -> Expected<CopyStartResponse>;
    /// Completes a dynamic copy: the bytes have been written.
    DynamicReplicaCopyEnd "0.3.13" fn dynamic_replica_copy_end(
        client_id: ClientId, key: Text<'a>, tenant: Text<'a>, lease_id: ClientId, version_epoch: u64
    ) -> Expected<()>;
    DynamicReplicaCopyRevoke "0.3.13" fn dynamic_replica_copy_revoke(
        client_id: ClientId, key: Text<'a>, tenant: Text<'a>, lease_id: ClientId, version_epoch: u64
    ) -> Expected<()>;

    MountLocalDiskSegment "0.3.8" fn mount_local_disk_segment(client_id: ClientId, enable_offloading: bool) -> Expected<()>;
    UnmountLocalDiskSegment "0.3.13" fn unmount_local_disk_segment(client_id: ClientId) -> Expected<()>;
    /// Returns the objects to write to disk.
    OffloadObjectHeartbeat "0.3.12"
        fn offload_object_heartbeat(client_id: ClientId, enable_offloading: bool) -> Expected<Vec<TierTaskItem>>;
    /// Reports objects that are now on disk.
    NotifyOffloadSuccess "0.3.12" fn notify_offload_success(
        client_id: ClientId, items: Vec<TierTaskItem>, metadata: Vec<StorageObjectMetadata>
    ) -> Expected<()>;
    /// Reports the capacity of a node's disk.
    ReportSsdCapacity "0.3.11" fn report_ssd_capacity(client_id: ClientId, bytes: i64) -> Expected<()>;
    /// Returns true if all objects have been removed since the last call.
    PollRemoveAll "0.3.12.post1" fn poll_remove_all(client_id: ClientId) -> Expected<bool>;
    /// Reports an object that was removed from this client's disk.
    EvictDiskReplica "0.3.12"
        fn evict_disk_replica(client_id: ClientId, key: Text<'a>, tenant: Text<'a>, replica_type: ReplicaType) -> Expected<()>;
    /// `EvictDiskReplica`, for many keys.
    BatchEvictDiskReplica "0.3.12" fn batch_evict_disk_replica(
        client_id: ClientId, keys: Vec<Text<'a>>, tenant: Text<'a>, replica_type: ReplicaType
    ) -> Vec<Expected<()>>;
    /// Returns the objects to load from disk into memory.
    PromotionObjectHeartbeat "0.3.12" fn promotion_object_heartbeat(client_id: ClientId) -> Expected<Vec<TierTaskItem>>;
    /// Allocates memory for an object that is being loaded from disk.
    PromotionAllocStart "0.3.13" fn promotion_alloc_start(
        client_id: ClientId, key: Text<'a>, tenant: Text<'a>, size: u64, preferred_segments: Vec<Text<'a>>
    ) -> Expected<PromotionAllocStartResponse>;
    NotifyPromotionSuccess "0.3.12"
        fn notify_promotion_success(client_id: ClientId, key: Text<'a>, tenant: Text<'a>) -> Expected<()>;
    /// Reports an object that could not be loaded from disk.
    NotifyPromotionFailure "0.3.12"
        fn notify_promotion_failure(client_id: ClientId, key: Text<'a>, tenant: Text<'a>) -> Expected<()>;

    MountNoFSegment "0.3.11" fn mount_nof_segment(segment: NofSegment, client_id: ClientId) -> Expected<()>;
    /// Mounts all NVMe-oF segments of a client.
    ReMountNoFSegment "0.3.11" fn remount_nof_segment(segments: Vec<NofSegment>, client_id: ClientId) -> Expected<()>;
    /// Unmounts an NVMe-oF segment.
    UnmountNoFSegment "0.3.11" fn unmount_nof_segment(segment_id: SegmentId, client_id: ClientId) -> Expected<()>;
    GetAllNoFSegments "0.3.11" fn get_all_nof_segments() -> Expected<Vec<NofSegment>>;
    GetNoFSegmentsByName "0.3.11" fn get_nof_segments_by_name(name: Text<'a>) -> Expected<Vec<NofSegmentOwner>>;
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

/// The class whose member functions upstream registers. It is part of every method id.
const CLASS: &str = "mooncake::WrappedMasterService::";

/// Values computed once per method.
struct MethodDescription {
    id: u32,
    request: Option<TypeInfo>,
    /// The type as a tuple: a peer may wrap a single argument in a tuple.
    request_wrapped: Option<TypeInfo>,
    response: TypeInfo,
}

fn describe_call<R: for<'a> Wire<'a>>(method: Method, arguments: &[fn(&mut TypeLiteral)]) -> MethodDescription {
    let request = (!arguments.is_empty()).then(|| TypeInfo::from_parts(arguments));
    MethodDescription {
        id: md5_u32(format!("{CLASS}{}", method.name()).as_bytes()),
        request_wrapped: request.as_ref().filter(|_| arguments.len() == 1).map(TypeInfo::wrapped),
        request,
        response: TypeInfo::of::<R>(),
    }
}

fn descriptions() -> &'static [MethodDescription] {
    static ALL: OnceLock<Vec<MethodDescription>> = OnceLock::new();
    ALL.get_or_init(|| Method::ALL.iter().map(|method| method.describe()).collect())
}

impl Method {
    fn description(self) -> &'static MethodDescription {
        &descriptions()[self as usize]
    }

    /// The method's id in requests: derived from the MD5 of its qualified name.
    pub fn id(self) -> u32 {
        self.description().id
    }

    /// Returns the method with this id.
    pub fn from_id(id: u32) -> Option<Method> {
        static BY_ID: OnceLock<Vec<(u32, Method)>> = OnceLock::new();
        let by_id = BY_ID.get_or_init(|| {
            let mut pairs: Vec<_> = Method::ALL.iter().map(|method| (method.id(), *method)).collect();
            pairs.sort_unstable();
            pairs
        });
        by_id.binary_search_by_key(&id, |(id, _)| *id).ok().map(|at| by_id[at].1)
    }

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

    /// The type of the request body; `None` for a method without arguments, which has no body.
    pub fn request_type(self) -> Option<&'static TypeInfo> {
        self.description().request.as_ref()
    }

    /// The type of the response body.
    pub fn response_type(self) -> &'static TypeInfo {
        &self.description().response
    }
}

/// Opens a reader for the request's arguments. For a method without arguments, any body is ignored,
/// as in upstream.
fn open_request(method: Method, body: &[u8]) -> Result<pack::PayloadReader<'_>, DecodeError> {
    let description = method.description();
    let Some(info) = &description.request else {
        return Ok(pack::PayloadReader::new(&[], pack::LengthWidth::W1));
    };
    pack::open(body, info).or_else(|error| match &description.request_wrapped {
        Some(wrapped) => pack::open(body, wrapped).map_err(|_| error),
        None => Err(error),
    })
}

/// Returns true if the response to this request must contain its type literal.
fn requires_literal(body: &[u8]) -> bool {
    body.is_empty() || pack::carries_literal(body)
}

fn encode_request(out: &mut Vec<u8>, method: Method, longest: usize, put: impl FnOnce(&mut pack::PayloadWriter<'_>)) {
    if let Some(info) = method.request_type() {
        pack::encode(out, info, false, longest, put);
    }
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
        encode_request(&mut body, Method::BatchExistKey, longest, |packer| {
            keys.put(packer);
            Text::from("t").put(packer);
        });
        assert_eq!(outline::keys(Method::BatchExistKey, &body), 3);
        assert_eq!(outline::keys(Method::ServiceReady, &[]), 0);
        assert_eq!(outline::keys(Method::ExistKey, b"nonsense"), 0);
        let result = |answer: Vec<Expected<bool>>| {
            let mut out = Vec::new();
            let info = Method::BatchExistKey.response_type();
            pack::encode(&mut out, info, false, answer.longest(), |packer| answer.put(packer));
            outline::result(Method::BatchExistKey, &out)
        };
        assert_eq!(result(vec![Ok(true), Ok(false)]), "ok");
        let missing = ErrorCode::OBJECT_NOT_FOUND;
        assert_eq!(result(vec![Ok(true), Err(missing), Err(missing)]), format!("2 of 3 failed, first {missing}"));
        let mut out = Vec::new();
        let (info, answer) = (Method::ExistKey.response_type(), Expected::<bool>::Err(missing));
        pack::encode(&mut out, info, false, answer.longest(), |packer| answer.put(packer));
        assert_eq!(outline::result(Method::ExistKey, &out), missing.to_string());
    }
}
