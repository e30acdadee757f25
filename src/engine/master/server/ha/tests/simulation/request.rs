//! A master serves a client's call as its connections do, but without a socket.

use super::env::SimEnv;
use super::event::Event;
use super::operation::{Operation, Reply, Request, process};
use crate::StateAccess;
use crate::object::ReplicaRecord;
use crate::server::ha::leader::gate::GatePhase;
use crate::server::shared::MasterShared;
use crate::slots::ObjectSlot;
use crate::state::MasterState;
use mcctl_net::rpc::{Admitted, Receipt, RpcService};

/// The action of a master on a call.
pub(super) enum ServeOutcome {
    /// It sends a response, as the leader of this view. `None`: it has handed over since it
    /// processed the call, and its successor has the result.
    Answered { reply: Reply, view: Option<u64> },
    /// It passes the connection on to its successor.
    Forwarded(String),
    /// It closes the connection without a response.
    Closed { was_processed: bool },
}

/// Serves a call: waits for its admission, processes it, and waits until its response may be sent.
pub(super) async fn serve(shared: &MasterShared<SimEnv>, request: &Request) -> ServeOutcome {
    let operation = &request.operation;
    let method = operation.method();
    while !shared.admits(method) {
        match shared.admission(method).await {
            Admitted::Proceed => {}
            Admitted::Forward(address) => return ServeOutcome::Forwarded(address.to_string()),
            Admitted::Close => return ServeOutcome::Closed { was_processed: false },
        }
    }
    shared.env.preempt().await;
    let ((reply, view), mut receipt) = shared.call(Some(&format!("client-{}", request.client)), |call| {
        let mut reply = process(call, request);
        if let (Some(key), Reply::Failed(_)) = (operation.lookup(), &reply)
            && call.0.with_state(|state, _, _| !has_complete_object(state, key))
        {
            reply = Reply::Missing;
        }
        if let (Operation::Start(start), Reply::At(at)) = (operation, &reply)
            && call.0.with_state(|state, _, _| at.iter().any(|at| owners(state, *at) != 1))
        {
            shared.env.fabric.post(0, Event::AllocatedTwice { node: shared.env.node, key: start.key.clone() });
        }
        (reply, call.0.with_state(|state, _, _| state.view))
    });
    let was_released = shared.with_guarded(|guarded, _, _| guarded.is_released);
    if matches!(operation, Operation::Start(_) | Operation::End(_)) {
        shared.env.fabric.post(0, Event::Changed { node: shared.env.node });
    }
    if operation.is_answered_early() {
        receipt = Receipt { term: receipt.term, ..Receipt::default() };
    }
    if let Some(wait) = shared.commit(receipt)
        && !wait.await
    {
        return ServeOutcome::Closed { was_processed: true };
    }
    let has_handed_over = matches!(gate_phase(shared), Some(GatePhase::Released | GatePhase::Forwarding));
    ServeOutcome::Answered { reply, view: (was_released || !has_handed_over).then_some(view) }
}

fn gate_phase(shared: &MasterShared<SimEnv>) -> Option<GatePhase> {
    shared.ha.as_ref().map(|ha| ha.gate.phase())
}

/// Whether the state has a complete object with this key, which perhaps cannot be read yet.
fn has_complete_object(state: &MasterState, key: &str) -> bool {
    let found = state.objects.find(state.objects.hash(key.as_bytes()));
    found.is_some_and(|at| !state.objects[at].eviction.is_writing())
}

/// The number of objects, also of those that were displaced, to which the byte at an address
/// belongs.
fn owners(state: &MasterState, at: u64) -> usize {
    let has = |replica: &ReplicaRecord, bytes: u64| {
        let base = state.segments.get(replica.segment).map(|mounted| mounted.segment.base);
        base.is_some_and(|base| (base + replica.offset..base + replica.offset + bytes).contains(&at))
    };
    let slots = (0..state.objects.slots()).filter_map(|slot| state.objects.get(ObjectSlot(slot)));
    let current = slots.filter(|object| object.replicas().any(|replica| has(replica, object.size))).count();
    current + state.discards.iter().filter(|discarded| has(&discarded.replica, discarded.bytes)).count()
}
