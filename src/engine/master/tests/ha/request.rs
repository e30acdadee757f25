//! Calls of clients, and responses that wait.

use crate::engine::base::ClientId;
use crate::engine::base::Mono;
use crate::engine::ha::planted::{HaMistake, is_planted};
use crate::engine::master::tests::ha::node::{Node, StateCopy};
use crate::engine::master::tests::{T, address, hard_pinned, meta, segment};
use crate::engine::master::{DirectAccess, MasterCall};
use crate::engine::wire::MasterApi;
use crate::engine::wire::types::{ClientStatus, ReplicaType};

/// Size of a client's segment, in bytes.
pub const SEGMENT: u64 = 24 << 20;
/// Size of every value, in bytes.
pub const VALUE: u64 = 1 << 20;

/// A call of a client to a master.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    Register(u64),
    Ping(u64),
    Start(u64, String),
    End(u64, String),
    Read(String),
    Remove(String),
}

/// A response. `None`: the call failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reply {
    Refused,
    Failed(i32),
    Done,
    /// The client must register.
    Remount,
    /// The address of the value.
    At(u64),
}

/// A response that waits until its change is replicated.
#[derive(Clone, Debug)]
pub struct PendingReply {
    pub client: usize,
    pub call: u64,
    pub reply: Reply,
    pub needs: u64,
    /// The last change when the call was processed.
    pub seen: u64,
}

impl Request {
    fn is_change(&self) -> bool {
        !matches!(self, Request::Read(_) | Request::Ping(_))
    }
}

impl Node {
    /// Processes a call. Returns the response, and the change that it waits for.
    pub(super) fn process(&mut self, now: Mono, request: &Request) -> (Reply, u64) {
        let before = self.applied;
        if !self.is_leader() || self.is_holding && request.is_change() {
            return (Reply::Refused, 0);
        }
        let StateCopy::Active(state) = &mut self.copy else { return (Reply::Refused, 0) };
        let mut call = MasterCall(DirectAccess { state, now, effects: &mut self.effects });
        let own = |nth: u64| segment(nth, &format!("node:{nth}"), SEGMENT);
        let client = |nth: u64| ClientId(nth, nth);
        let reply = match request {
            Request::Register(nth) => call.remount_segment(vec![own(*nth)], client(*nth)).map(|()| Reply::Done),
            Request::Ping(nth) => call.ping(client(*nth)).map(|response| {
                let must = response.client_status == ClientStatus::NEED_REMOUNT;
                if must { Reply::Remount } else { Reply::Done }
            }),
            Request::Start(nth, key) => {
                let started = call.put_start(client(*nth), key.as_str().into(), VALUE, hard_pinned(), T);
                started.map(|replicas| Reply::At(address(&replicas[0])))
            }
            Request::End(nth, key) => call.put_end(client(*nth), meta(key), ReplicaType::ALL, T).map(|()| Reply::Done),
            Request::Read(key) => {
                let found = call.get_replica_list(key.as_str().into(), T);
                found.map(|list| Reply::At(address(&list.replicas[0])))
            }
            Request::Remove(key) => call.remove(key.as_str().into(), false, T).map(|()| Reply::Done),
        };
        self.effects.list.clear();
        let reply = reply.unwrap_or_else(|code| Reply::Failed(code.0));
        let early = match request {
            Request::End(..) => is_planted(HaMistake::EndAnsweredEarly),
            Request::Start(..) | Request::Remove(_) => is_planted(HaMistake::StartAnsweredEarly),
            _ => false,
        };
        // Closed by the caller, as one change.
        (reply, if early { 0 } else { before + 1 })
    }
}
