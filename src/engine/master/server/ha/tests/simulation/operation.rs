//! The operations of clients, and their processing by a master. A new operation is added here;
//! `client.rs` chooses it, and interprets its result.

use std::sync::Arc;

use super::env::SimEnv;
use crate::MasterCall;
use crate::server::shared::LockedAccess;
use crate::unit_tests::{T, address, meta, segment};
use mcctl_base::{ClientId, SegmentId};
use mcctl_election::ha::planted::{HaMistake, is_planted};
use mcctl_wire::types::SliceLength;
use mcctl_wire::types::{ClientStatus, ReplicaType, ReplicateConfig};
use mcctl_wire::{MasterApi, Method};

/// Size of every value, in bytes.
pub(super) const VALUE: u64 = 1 << 20;

/// An operation of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Operation {
    /// Mounts the client's segment for the first time.
    Mount,
    /// Registers the client and its segment again, because the master requires it.
    Register,
    Ping,
    /// Unmounts the client's segment. The client then mounts another one.
    Unmount,
    Start(WriteStart),
    End(WriteEnd),
    Revoke(WriteEnd),
    Read(String),
    Exist(String),
    Remove(String),
}

/// The start of a put or an upsert.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct WriteStart {
    pub key: String,
    pub is_upsert: bool,
    /// The object is not evicted.
    pub is_pinned: bool,
    pub replicas: u64,
    /// The ID of the write.
    pub writer: u64,
}

/// The end of a write, or its revocation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct WriteEnd {
    pub key: String,
    pub is_upsert: bool,
    pub writer: u64,
}

/// An operation, and the client that sends it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Request {
    /// The number of the client's process, which is also its ID. Each write has its own ID.
    pub client: u64,
    /// The number of its segment, and the segment's size in bytes.
    pub segment: u64,
    pub segment_bytes: u64,
    pub operation: Operation,
    /// Shows that a copy of the request is on its way or being processed.
    pub token: Arc<()>,
}

/// The answer of a master to an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Reply {
    /// The call was not processed.
    Refused,
    Failed(i32),
    Done,
    /// The client must register.
    Remount,
    /// The addresses of the replicas.
    At(Vec<u64>),
    /// The key has a complete object.
    Exists,
    /// The key has no complete object.
    Missing,
}

impl Operation {
    pub(super) fn method(&self) -> Method {
        match self {
            Operation::Mount => Method::MountSegment,
            Operation::Register => Method::ReMountSegment,
            Operation::Ping => Method::Ping,
            Operation::Unmount => Method::UnmountSegment,
            Operation::Start(start) if start.is_upsert => Method::UpsertStart,
            Operation::Start(_) => Method::PutStart,
            Operation::End(end) if end.is_upsert => Method::UpsertEnd,
            Operation::End(_) => Method::PutEnd,
            Operation::Revoke(end) if end.is_upsert => Method::UpsertRevoke,
            Operation::Revoke(_) => Method::PutRevoke,
            Operation::Read(_) => Method::GetReplicaList,
            Operation::Exist(_) => Method::ExistKey,
            Operation::Remove(_) => Method::Remove,
        }
    }

    /// Whether another copy of the request may arrive after its response.
    pub(super) fn may_arrive_twice(&self) -> bool {
        matches!(self, Operation::End(_)) || self.method().is_idempotent()
    }

    /// The key of a lookup.
    pub(super) fn lookup(&self) -> Option<&str> {
        match self {
            Operation::Read(key) | Operation::Exist(key) => Some(key),
            _ => None,
        }
    }

    pub(super) fn is_answered_early(&self) -> bool {
        match self {
            Operation::End(_) => is_planted(HaMistake::EndAnsweredEarly),
            Operation::Start(_) | Operation::Remove(_) => is_planted(HaMistake::StartAnsweredEarly),
            _ => false,
        }
    }
}

/// The ID that the master sees of a write.
fn writer_id(request: &Request, writer: u64) -> ClientId {
    let number = if is_planted(HaMistake::WriterIdReused) { request.client } else { writer };
    ClientId(number, u64::MAX)
}

/// Processes a request at a master whose state is locked for each call.
pub(super) fn process(call: &mut MasterCall<LockedAccess<'_, SimEnv>>, request: &Request) -> Reply {
    let client = ClientId(request.client, request.client);
    let number = request.segment;
    let own = || segment(number, &format!("node:{number}"), request.segment_bytes);
    let reply = match &request.operation {
        Operation::Mount => call.mount_segment(own(), client).map(|()| Reply::Done),
        Operation::Register => call.remount_segment(vec![own()], client).map(|()| Reply::Done),
        Operation::Ping => call.ping(client).map(|response| {
            let must_remount = response.client_status == ClientStatus::NEED_REMOUNT;
            if must_remount { Reply::Remount } else { Reply::Done }
        }),
        Operation::Unmount => call.unmount_segment(SegmentId(number, number), client).map(|()| Reply::Done),
        Operation::Start(start) => {
            let key = start.key.as_str().into();
            let config = ReplicateConfig {
                with_hard_pin: start.is_pinned,
                replica_num: start.replicas,
                ..ReplicateConfig::default()
            };
            let writer = writer_id(request, start.writer);
            let started = if start.is_upsert {
                call.upsert_start(writer, key, SliceLength(VALUE), config, T)
            } else {
                call.put_start(writer, key, SliceLength(VALUE), config, T)
            };
            started.map(|replicas| Reply::At(replicas.iter().map(address).collect()))
        }
        Operation::End(WriteEnd { key, is_upsert, writer }) => {
            let writer = writer_id(request, *writer);
            let meta = meta(key);
            let ended = match is_upsert {
                true => call.upsert_end(writer, meta, ReplicaType::ALL, T),
                false => call.put_end(writer, meta, ReplicaType::ALL, T),
            };
            ended.map(|()| Reply::Done)
        }
        Operation::Revoke(WriteEnd { key, is_upsert, writer }) => {
            let writer = writer_id(request, *writer);
            let key = key.as_str().into();
            let revoked = match is_upsert {
                true => call.upsert_revoke(writer, key, ReplicaType::ALL, T),
                false => call.put_revoke(writer, key, ReplicaType::ALL, T),
            };
            revoked.map(|()| Reply::Done)
        }
        Operation::Read(key) => {
            let found = call.get_replica_list(key.as_str().into(), T);
            found.map(|list| Reply::At(list.replicas.iter().map(address).collect()))
        }
        // The object may be complete on a segment that is not readable: `serve` decides.
        Operation::Exist(key) => {
            call.exist_key(key.as_str().into(), T).map(|exists| if exists { Reply::Exists } else { Reply::Failed(0) })
        }
        Operation::Remove(key) => call.remove(key.as_str().into(), false, T).map(|()| Reply::Done),
    };
    reply.unwrap_or_else(|code| Reply::Failed(code.0))
}
