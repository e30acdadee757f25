//! The table of the master's RPC methods, release 0.3.13: the one place that knows them.
//!
//! From each line come the method's name, id and type hashes, its function in the server's trait [`MasterApi`], its arm in
//! [`dispatch`], and the client's call in [`MasterCalls`]. A server that lacks one does not compile.
//!
//! Upstream: `mooncake-store/include/rpc_service.h`, class `WrappedMasterService`. `since` is the release in which the line got
//! its present form; every line was checked against the 0.3.13.post1 wheel by its hashes (`tests/it/wire.rs`).

use std::future::Future;
use std::sync::OnceLock;

use bytes::Bytes;

use crate::engine::base::{ClientId, SegmentId, TaskId};
use crate::engine::wire::pack::{self, DecodeError, Expected, Literal, Map, Text, TextBuf, TypeInfo, Wire, md5_u32};
use crate::engine::wire::types::{
    CopyStartResponse, GetReplicaListResponse, GetStorageConfigResponse, MoveStartResponse, NofSegment,
    NofSegmentOwner, ObjectMeta, PingResponse, PromotionAllocStartResponse, QueryTaskResponse, ReplicaDescriptor,
    ReplicaType, ReplicateConfig, Segment, SegmentStatus, StorageObjectMetadata, TaskAssignment, TaskCompleteRequest,
    TierTaskItem,
};

/// What a client sends to the master and gets back: bytes over some connection.
pub trait Channel {
    /// Why there is no answer.
    type Error: From<DecodeError>;
    /// Send the request `body` of `method` and wait for the answer's body.
    fn call(&self, method: Method, body: Vec<u8>) -> impl Future<Output = Result<Bytes, Self::Error>> + Send;
}

/// The master's methods, called over a [`Channel`].
#[derive(Clone, Debug)]
pub struct MasterCalls<C>(
    /// Where the requests go.
    pub C,
);

macro_rules! rpc_methods {
    ($($(#[$doc:meta])* $name:ident $since:literal fn $call:ident($($arg:ident: $ty:ty),*) -> $ret:ty;)*) => {
        /// A method of the master.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u8)]
        pub enum Method { $($(#[$doc])* $name),* }

        impl Method {
            /// All of them, in the table's order.
            pub const ALL: &'static [Method] = &[$(Method::$name),*];

            /// Upstream's name, without the class.
            pub fn name(self) -> &'static str {
                match self { $(Method::$name => stringify!($name)),* }
            }

            /// The release in which the method got its present form.
            pub fn since(self) -> &'static str {
                match self { $(Method::$name => $since),* }
            }

            fn describe(self) -> Description {
                match self { $(Method::$name => describe_call::<$ret>(self, &{
                    #[allow(clippy::extra_unused_lifetimes, reason = "not every method borrows")]
                    fn literals<'a>() -> Vec<fn(&mut Literal)> {
                        vec![$(<$ty as Wire<'a>>::literal),*]
                    }
                    literals()
                })),* }
            }
        }

        /// What a master does, a function per method. The answers' meaning is upstream's.
        #[allow(missing_docs, clippy::too_many_arguments, reason = "the table's lines document them; their arguments are upstream's")]
        pub trait MasterApi {
            $($(#[$doc])*
            #[allow(clippy::extra_unused_lifetimes, clippy::needless_lifetimes, reason = "not every method borrows")]
            fn $call<'a>(&mut self, $($arg: $ty),*) -> $ret;)*
        }

        /// Decode the request `body` of `method`, let `api` answer it, and append the answer's body to `out`. The answer carries
        /// its type literal if the request did or had no body: a real peer then gets byte for byte what a real master sends.
        ///
        /// # Errors
        /// The body does not decode as the method's arguments; nothing was called then.
        pub fn dispatch<'a>(api: &mut impl MasterApi, method: Method, body: &'a [u8], out: &mut Vec<u8>) -> Result<(), DecodeError> {
            match method {
                $(Method::$name => {
                    #[allow(unused_mut, unused_variables, reason = "a method without arguments has no body")]
                    let mut reader = open_request(method, body)?;
                    $(let $arg = <$ty as Wire<'a>>::get(&mut reader).map_err(|e| e.within(stringify!($arg)))?;)*
                    let answer = api.$call($($arg),*);
                    pack::encode(out, method.response_type(), wants_literal(body), answer.longest(), |packer| answer.put(packer));
                })*
            }
            Ok(())
        }

        #[allow(clippy::too_many_arguments, reason = "as many as upstream has")]
        impl<C: Channel> MasterCalls<C> {
            $($(#[$doc])*
            ///
            /// # Errors
            /// The outer error: no answer, or not one that decodes. The inner one: the master's refusal.
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

        /// What a log line reports of a call, from the bytes of its request and answer.
        #[allow(clippy::needless_borrow, reason = "the borrow decides which trait's function is called: see `Outlined`")]
        pub mod outline {
            use super::*;

            /// The keys that a request names; 0 where it does not decode.
            pub fn keys<'a>(method: Method, body: &'a [u8]) -> usize {
                let count = || -> Result<usize, DecodeError> {
                    #[allow(unused_mut, reason = "a method without arguments names no key")]
                    let mut keys = 0;
                    match method {
                        $(Method::$name => {
                            #[allow(unused_mut, unused_variables, reason = "a method without arguments has no body")]
                            let mut reader = open_request(method, body)?;
                            $(
                                let $arg = <$ty as Wire<'a>>::get(&mut reader)?;
                                if names_keys(stringify!($arg)) {
                                    keys += (&Outlined(&$arg)).items();
                                }
                            )*
                        })*
                    }
                    Ok(keys)
                };
                count().unwrap_or(0)
            }

            /// How the master answered: `ok`, an error's name and number, or of a batch how many items failed.
            pub fn result(method: Method, body: &[u8]) -> String {
                match method {
                    $(Method::$name => match pack::decode::<$ret>(body, method.response_type()) {
                        Ok(answer) => (&Outlined(&answer)).outcome(),
                        Err(_) => "the answer does not decode".to_owned(),
                    })*
                }
            }
        }

        /// Decode a request or response of any method and write it again, with its type literal or without: what tests, fuzzers
        /// and protocol tools need. Gives the value as text, too.
        pub mod transcode {
            use super::*;

            /// A request body.
            ///
            /// # Errors
            /// It does not decode.
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

            /// A response body.
            ///
            /// # Errors
            /// It does not decode.
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
    /// Is the service up, and which protocol version does it speak? Clients insist on their own, `2.0.0`.
    ServiceReady "0.3.8" fn service_ready() -> Expected<TextBuf>;
    /// Where is the legacy file tier?
    GetStorageConfig "0.3.8" fn get_storage_config() -> Expected<GetStorageConfigResponse>;
    /// Where is the legacy file tier? The older form.
    GetFsdir "0.3.6" fn get_fsdir() -> Expected<TextBuf>;
    /// I am alive; do you know my segments?
    Ping "0.3.6" fn ping(client_id: ClientId) -> Expected<PingResponse>;

    /// Does the key have a complete replica? Grants a read lease if so.
    ExistKey "0.3.12" fn exist_key(key: Text<'a>, tenant: Text<'a>) -> Expected<bool>;
    /// `ExistKey`, for many keys.
    BatchExistKey "0.3.12" fn batch_exist_key(keys: Vec<Text<'a>>, tenant: Text<'a>) -> Vec<Expected<bool>>;
    /// Where is the object? Grants a read lease.
    GetReplicaList "0.3.13" fn get_replica_list(key: Text<'a>, tenant: Text<'a>) -> Expected<GetReplicaListResponse>;
    /// `GetReplicaList`, for many keys.
    BatchGetReplicaList "0.3.13"
        fn batch_get_replica_list(keys: Vec<Text<'a>>, tenant: Text<'a>) -> Vec<Expected<GetReplicaListResponse>>;
    /// `GetReplicaList`, for every key in which the expression is found.
    GetReplicaListByRegex "0.3.13"
        fn get_replica_list_by_regex(regex: Text<'a>, tenant: Text<'a>) -> Expected<Map<TextBuf, Vec<ReplicaDescriptor>>>;

    /// Allocate room for a new object.
    PutStart "0.3.13" fn put_start(client_id: ClientId, key: Text<'a>, slice_length: u64, config: ReplicateConfig, tenant: Text<'a>)
        -> Expected<Vec<ReplicaDescriptor>>;
    /// Its bytes are written.
    PutEnd "0.3.13" fn put_end(client_id: ClientId, object: ObjectMeta<'a>, replica_type: ReplicaType, tenant: Text<'a>)
        -> Expected<()>;
    /// Its bytes could not be written.
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

    /// Allocate room for an object that may exist.
    UpsertStart "0.3.13"
        fn upsert_start(client_id: ClientId, key: Text<'a>, slice_length: u64, config: ReplicateConfig, tenant: Text<'a>)
        -> Expected<Vec<ReplicaDescriptor>>;
    /// Its bytes are written.
    UpsertEnd "0.3.13" fn upsert_end(client_id: ClientId, object: ObjectMeta<'a>, replica_type: ReplicaType, tenant: Text<'a>)
        -> Expected<()>;
    /// Its bytes could not be written.
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

    /// Forget an object; `force` even under a lease.
    Remove "0.3.12" fn remove(key: Text<'a>, force: bool, tenant: Text<'a>) -> Expected<()>;
    /// `Remove`, for many keys.
    BatchRemove "0.3.12" fn batch_remove(keys: Vec<Text<'a>>, force: bool, tenant: Text<'a>) -> Vec<Expected<()>>;
    /// `Remove`, for every key in which the expression is found; answers how many went.
    RemoveByRegex "0.3.12" fn remove_by_regex(regex: Text<'a>, force: bool, tenant: Text<'a>) -> Expected<i64>;
    /// `Remove`, for every key; answers how many went.
    RemoveAll "0.3.12" fn remove_all(force: bool, tenant: Text<'a>) -> i64;
    /// Drop the replicas on one segment (or on all, if its name is empty) of a client's objects; answers which keys were done.
    BatchReplicaClear "0.3.8"
        fn batch_replica_clear(keys: Vec<Text<'a>>, client_id: ClientId, segment_name: Text<'a>) -> Expected<Vec<TextBuf>>;

    /// Lend memory.
    MountSegment "0.3.12" fn mount_segment(segment: Segment, client_id: ClientId) -> Expected<()>;
    /// Lend all this memory; the answer to `NEED_REMOUNT`.
    ReMountSegment "0.3.12" fn remount_segment(segments: Vec<Segment>, client_id: ClientId) -> Expected<()>;
    /// Take memory back.
    UnmountSegment "0.3.6" fn unmount_segment(segment_id: SegmentId, client_id: ClientId) -> Expected<()>;
    /// Take memory back after a grace period in which it stays readable.
    GracefulUnmountSegment "0.3.11"
        fn graceful_unmount_segment(segment_id: SegmentId, client_id: ClientId, grace_period_ms: u64) -> Expected<()>;
    /// Where is the segment in its life?
    QuerySegmentStatus "0.3.11" fn query_segment_status(segment_name: Text<'a>) -> Expected<SegmentStatus>;
    /// Where is the segment in its life?
    QuerySegmentStatusById "0.3.11" fn query_segment_status_by_id(segment_id: SegmentId) -> Expected<SegmentStatus>;
    /// The addresses of these clients.
    BatchQueryIp "0.3.8" fn batch_query_ip(client_ids: Vec<ClientId>) -> Expected<Map<ClientId, Vec<TextBuf>>>;

    /// Tasks for this client.
    FetchTasks "0.3.10" fn fetch_tasks(client_id: ClientId, batch_size: u64) -> Expected<Vec<TaskAssignment>>;
    /// A task is done.
    MarkTaskToComplete "0.3.8" fn mark_task_to_complete(client_id: ClientId, result: TaskCompleteRequest) -> Expected<()>;
    /// What became of a task?
    QueryTask "0.3.8" fn query_task(task_id: TaskId) -> Expected<QueryTaskResponse>;
    /// Have a replica copied.
    CreateCopyTask "0.3.12" fn create_copy_task(key: Text<'a>, tenant: Text<'a>, targets: Vec<Text<'a>>) -> Expected<TaskId>;
    /// Have a replica moved.
    CreateMoveTask "0.3.12" fn create_move_task(key: Text<'a>, tenant: Text<'a>, source: Text<'a>, target: Text<'a>)
        -> Expected<TaskId>;
    /// Begin a copy.
    CopyStart "0.3.13"
        fn copy_start(client_id: ClientId, key: Text<'a>, tenant: Text<'a>, source: Text<'a>, targets: Vec<Text<'a>>)
        -> Expected<CopyStartResponse>;
    /// The copy is written.
    CopyEnd "0.3.12" fn copy_end(client_id: ClientId, key: Text<'a>, tenant: Text<'a>) -> Expected<()>;
    /// The copy failed.
    CopyRevoke "0.3.12" fn copy_revoke(client_id: ClientId, key: Text<'a>, tenant: Text<'a>) -> Expected<()>;
    /// Begin a move.
    MoveStart "0.3.13" fn move_start(client_id: ClientId, key: Text<'a>, tenant: Text<'a>, source: Text<'a>, target: Text<'a>)
        -> Expected<MoveStartResponse>;
    /// The move is written.
    MoveEnd "0.3.12" fn move_end(client_id: ClientId, key: Text<'a>, tenant: Text<'a>) -> Expected<()>;
    /// The move failed.
    MoveRevoke "0.3.12" fn move_revoke(client_id: ClientId, key: Text<'a>, tenant: Text<'a>) -> Expected<()>;
    /// Begin a copy that the master asked for because the object is hot.
    DynamicReplicaCopyStart "0.3.13" fn dynamic_replica_copy_start(
        client_id: ClientId, key: Text<'a>, tenant: Text<'a>, source: Text<'a>, targets: Vec<Text<'a>>,
        lease_id: ClientId, version_epoch: u64
    ) -> Expected<CopyStartResponse>;
    /// That copy is written.
    DynamicReplicaCopyEnd "0.3.13" fn dynamic_replica_copy_end(
        client_id: ClientId, key: Text<'a>, tenant: Text<'a>, lease_id: ClientId, version_epoch: u64
    ) -> Expected<()>;
    /// That copy failed.
    DynamicReplicaCopyRevoke "0.3.13" fn dynamic_replica_copy_revoke(
        client_id: ClientId, key: Text<'a>, tenant: Text<'a>, lease_id: ClientId, version_epoch: u64
    ) -> Expected<()>;

    /// Lend disk.
    MountLocalDiskSegment "0.3.8" fn mount_local_disk_segment(client_id: ClientId, enable_offloading: bool) -> Expected<()>;
    /// Take disk back.
    UnmountLocalDiskSegment "0.3.13" fn unmount_local_disk_segment(client_id: ClientId) -> Expected<()>;
    /// Which objects should go to disk?
    OffloadObjectHeartbeat "0.3.12"
        fn offload_object_heartbeat(client_id: ClientId, enable_offloading: bool) -> Expected<Vec<TierTaskItem>>;
    /// These are on disk.
    NotifyOffloadSuccess "0.3.12" fn notify_offload_success(
        client_id: ClientId, items: Vec<TierTaskItem>, metadata: Vec<StorageObjectMetadata>
    ) -> Expected<()>;
    /// My disk holds this much.
    ReportSsdCapacity "0.3.11" fn report_ssd_capacity(client_id: ClientId, bytes: i64) -> Expected<()>;
    /// Was everything removed since I asked last?
    PollRemoveAll "0.3.12.post1" fn poll_remove_all(client_id: ClientId) -> Expected<bool>;
    /// An object left this client's disk.
    EvictDiskReplica "0.3.12"
        fn evict_disk_replica(client_id: ClientId, key: Text<'a>, tenant: Text<'a>, replica_type: ReplicaType) -> Expected<()>;
    /// `EvictDiskReplica`, for many keys.
    BatchEvictDiskReplica "0.3.12" fn batch_evict_disk_replica(
        client_id: ClientId, keys: Vec<Text<'a>>, tenant: Text<'a>, replica_type: ReplicaType
    ) -> Vec<Expected<()>>;
    /// Which objects should come back from disk?
    PromotionObjectHeartbeat "0.3.12" fn promotion_object_heartbeat(client_id: ClientId) -> Expected<Vec<TierTaskItem>>;
    /// Allocate room for one that does.
    PromotionAllocStart "0.3.13" fn promotion_alloc_start(
        client_id: ClientId, key: Text<'a>, tenant: Text<'a>, size: u64, preferred_segments: Vec<Text<'a>>
    ) -> Expected<PromotionAllocStartResponse>;
    /// It is back.
    NotifyPromotionSuccess "0.3.12"
        fn notify_promotion_success(client_id: ClientId, key: Text<'a>, tenant: Text<'a>) -> Expected<()>;
    /// It could not be brought back.
    NotifyPromotionFailure "0.3.12"
        fn notify_promotion_failure(client_id: ClientId, key: Text<'a>, tenant: Text<'a>) -> Expected<()>;

    /// Lend NVMe-oF storage.
    MountNoFSegment "0.3.11" fn mount_nof_segment(segment: NofSegment, client_id: ClientId) -> Expected<()>;
    /// Lend all this NVMe-oF storage.
    ReMountNoFSegment "0.3.11" fn remount_nof_segment(segments: Vec<NofSegment>, client_id: ClientId) -> Expected<()>;
    /// Take NVMe-oF storage back.
    UnmountNoFSegment "0.3.11" fn unmount_nof_segment(segment_id: SegmentId, client_id: ClientId) -> Expected<()>;
    /// All NVMe-oF storage.
    GetAllNoFSegments "0.3.11" fn get_all_nof_segments() -> Expected<Vec<NofSegment>>;
    /// Who lends it.
    GetNoFSegmentsByName "0.3.11" fn get_nof_segments_by_name(name: Text<'a>) -> Expected<Vec<NofSegmentOwner>>;
}

/// Is the argument called `name` one or more keys?
fn names_keys(name: &str) -> bool {
    matches!(name, "key" | "keys" | "object" | "objects")
}

/// A value of a request or an answer. A function of [`OfList`] or [`OfAnswer`] goes before one of [`OfAny`], since calls look for
/// functions of the value itself first.
struct Outlined<'a, T>(&'a T);

trait OfAny {
    fn items(&self) -> usize {
        1
    }

    fn outcome(&self) -> String {
        "ok".to_owned()
    }
}

impl<T> OfAny for &Outlined<'_, T> {}

trait OfList {
    fn items(&self) -> usize;
}

impl<T> OfList for Outlined<'_, Vec<T>> {
    fn items(&self) -> usize {
        self.0.len()
    }
}

trait OfAnswer {
    fn outcome(&self) -> String;
}

impl<T> OfAnswer for Outlined<'_, Expected<T>> {
    fn outcome(&self) -> String {
        self.0.as_ref().map_or_else(ToString::to_string, |_| "ok".to_owned())
    }
}

impl<T> OfAnswer for Outlined<'_, Vec<Expected<T>>> {
    fn outcome(&self) -> String {
        let mut failed = self.0.iter().filter_map(|item| item.as_ref().err());
        match failed.next() {
            None => "ok".to_owned(),
            Some(first) => format!("{} of {} failed, first {first}", failed.count() + 1, self.0.len()),
        }
    }
}

/// The class whose member functions upstream registers; part of each method's id.
const CLASS: &str = "mooncake::WrappedMasterService::";

/// What is computed once per method.
struct Description {
    id: u32,
    request: Option<TypeInfo>,
    /// A single argument may come wrapped in a tuple.
    request_wrapped: Option<TypeInfo>,
    response: TypeInfo,
}

fn describe_call<R: for<'a> Wire<'a>>(method: Method, arguments: &[fn(&mut Literal)]) -> Description {
    let request = (!arguments.is_empty()).then(|| TypeInfo::from_parts(arguments));
    Description {
        id: md5_u32(format!("{CLASS}{}", method.name()).as_bytes()),
        request_wrapped: request.as_ref().filter(|_| arguments.len() == 1).map(TypeInfo::wrapped),
        request,
        response: TypeInfo::of::<R>(),
    }
}

fn descriptions() -> &'static [Description] {
    static ALL: OnceLock<Vec<Description>> = OnceLock::new();
    ALL.get_or_init(|| Method::ALL.iter().map(|method| method.describe()).collect())
}

impl Method {
    fn description(self) -> &'static Description {
        &descriptions()[self as usize]
    }

    /// The number by which requests name the method: the MD5 of its qualified name.
    pub fn id(self) -> u32 {
        self.description().id
    }

    /// The method with this number.
    pub fn from_id(id: u32) -> Option<Method> {
        static BY_ID: OnceLock<Vec<(u32, Method)>> = OnceLock::new();
        let by_id = BY_ID.get_or_init(|| {
            let mut pairs: Vec<_> = Method::ALL.iter().map(|method| (method.id(), *method)).collect();
            pairs.sort_unstable();
            pairs
        });
        by_id.binary_search_by_key(&id, |(id, _)| *id).ok().map(|at| by_id[at].1)
    }

    /// The type of the request's body; `None` when the method has no arguments and so no body.
    pub fn request_type(self) -> Option<&'static TypeInfo> {
        self.description().request.as_ref()
    }

    /// The type of the response's body.
    pub fn response_type(self) -> &'static TypeInfo {
        &self.description().response
    }
}

/// A reader of the request's arguments. A method without any has no body, and one that is there is ignored, as upstream does.
fn open_request(method: Method, body: &[u8]) -> Result<pack::Reader<'_>, DecodeError> {
    let description = method.description();
    let Some(info) = &description.request else {
        return Ok(pack::Reader::new(&[], pack::Width::W1));
    };
    pack::open(body, info).or_else(|error| match &description.request_wrapped {
        Some(wrapped) => pack::open(body, wrapped).map_err(|_| error),
        None => Err(error),
    })
}

/// Does the peer that sent this request exchange type literals?
fn wants_literal(body: &[u8]) -> bool {
    body.is_empty() || pack::carries_literal(body)
}

fn encode_request(out: &mut Vec<u8>, method: Method, longest: usize, put: impl FnOnce(&mut pack::Packer<'_>)) {
    if let Some(info) = method.request_type() {
        pack::encode(out, info, false, longest, put);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::base::ErrorCode;

    #[test]
    fn an_outline_has_the_number_of_keys_and_the_result() {
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
