//! Calls of clients, and how a master serves them: as its connections do, without a socket.

use super::env::SimEnv;
use super::event::Event;
use crate::engine::base::ClientId;
use crate::engine::ha::planted::{HaMistake, is_planted};
use crate::engine::master::server::shared::{LockedAccess, MasterShared};
use crate::engine::master::state::MasterState;
use crate::engine::master::tests::{T, address, hard_pinned, meta, segment};
use crate::engine::master::{MasterCall, StateAccess};
use crate::engine::rpc::{Admitted, Receipt, RpcService};
use crate::engine::wire::types::{ClientStatus, ReplicaType};
use crate::engine::wire::{MasterApi, Method};

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
    /// A read: the state has no complete object with this key.
    Missing,
}

/// What a master does with a call.
pub enum ServeOutcome {
    /// It sends a response, as the leader of this view.
    Answered { reply: Reply, view: u64 },
    /// It passes the connection on to its successor.
    Forwarded(String),
    /// It closes the connection without a response.
    Closed { was_processed: bool },
}

impl Request {
    fn method(&self) -> Method {
        match self {
            Request::Register(_) => Method::ReMountSegment,
            Request::Ping(_) => Method::Ping,
            Request::Start(..) => Method::PutStart,
            Request::End(..) => Method::PutEnd,
            Request::Read(_) => Method::GetReplicaList,
            Request::Remove(_) => Method::Remove,
        }
    }

    fn is_answered_early(&self) -> bool {
        match self {
            Request::End(..) => is_planted(HaMistake::EndAnsweredEarly),
            Request::Start(..) | Request::Remove(_) => is_planted(HaMistake::StartAnsweredEarly),
            _ => false,
        }
    }
}

/// Serves a call: waits for its admission, processes it, and waits until its response may be sent.
pub(super) async fn serve(shared: &MasterShared<SimEnv>, request: &Request) -> ServeOutcome {
    let method = request.method();
    while !shared.admits(method) {
        match shared.admission(method).await {
            Admitted::Proceed => {}
            Admitted::Forward(address) => return ServeOutcome::Forwarded(address.to_string()),
            Admitted::Close => return ServeOutcome::Closed { was_processed: false },
        }
    }
    shared.env.preempt().await;
    let ((reply, view), mut receipt) = shared.call(None, |call| {
        let mut reply = process(call, request);
        if let (Request::Read(key), Reply::Failed(_)) = (request, reply)
            && call.0.with_state(|state, _, _| !has_complete_object(state, key))
        {
            reply = Reply::Missing;
        }
        (reply, call.0.with_state(|state, _, _| state.view))
    });
    if matches!(request, Request::Start(..) | Request::End(..)) {
        shared.env.fabric.post(0, Event::Changed { node: shared.env.node });
    }
    if request.is_answered_early() {
        receipt = Receipt { term: receipt.term, ..Receipt::default() };
    }
    if let Some(wait) = shared.commit(receipt)
        && !wait.await
    {
        return ServeOutcome::Closed { was_processed: true };
    }
    ServeOutcome::Answered { reply, view }
}

/// Whether the state has a complete object with this key, which perhaps cannot be read yet.
fn has_complete_object(state: &MasterState, key: &str) -> bool {
    let found = state.objects.find(state.objects.hash(key.as_bytes()));
    found.is_some_and(|at| !state.objects[at].eviction.is_writing())
}

fn process(call: &mut MasterCall<LockedAccess<'_, SimEnv>>, request: &Request) -> Reply {
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
    reply.unwrap_or_else(|code| Reply::Failed(code.0))
}
