//! The actions that the core requires.

use std::time::Duration;

use crate::server::ha::driver::HaDriver;
use crate::server::ha::leader::gate::{GatePhase, NOT_SERVING};
use crate::server::ha::standby::leader_stream::FollowedLeader;
use crate::server::ha::stream::StreamMessage;
use crate::state::MasterState;
use mcctl_election::ElectionBackend;
use mcctl_election::ha::{HaAction, HaEvent, HaMessage, HandOverProblem, MemberId, MemberInfo, StopReason};
use mcctl_sys::env::Env;

/// Time for which new connections are forwarded after a hand-over. Connections that are already
/// forwarded stay so.
const FORWARD_FOR: Duration = Duration::from_secs(10);

impl<E: Env, B: ElectionBackend> HaDriver<E, B> {
    /// Performs an action. Never waits. Further events of the core are handled afterwards.
    pub(super) fn perform(&mut self, action: HaAction) {
        match action {
            HaAction::GrantLease => self.grant_lease(),
            HaAction::RenewLease(lease) => self.renew_lease(lease),
            HaAction::RevokeLease(lease, reason) => self.revoke_lease(lease, reason),
            HaAction::Observe => self.observe(),
            HaAction::Elect(txn) => self.elect(txn),
            HaAction::Offer(txn) => self.offer(txn),
            HaAction::WriteSync(txn) => self.write_sync(txn),
            HaAction::DeleteKey(txn) => self.delete_key(txn),
            HaAction::Follow(leader) => self.follow(leader),
            HaAction::Send(to, message) => self.send(to, message),
            HaAction::Prepare { lossy } => self.prepare(lossy),
            HaAction::Discard(why) => {
                let objects = self.copy.objects();
                match objects {
                    0 => tracing::info!(%why, "this standby starts again with an empty copy"),
                    _ => tracing::warn!(
                        %why,
                        "this standby discards its copy of {objects} objects. Until it has a new one from the leader, it cannot take over"
                    ),
                }
                self.discard(GatePhase::Closed);
            }
            HaAction::StopServing(StopReason::Superseded) => {
                let leader = self.core.observed_leader().unwrap_or_else(|| "another master".to_owned());
                tracing::warn!(
                    "{leader} was elected while this master could not prove that it leads: this master stops serving. It replaces its state by \
                     that of {leader}, and becomes a standby. Clients use {leader} from now on"
                );
                self.demotions += 1;
                self.discard(GatePhase::Closed);
            }
            HaAction::Serve { view } => self.serve(view),
            HaAction::HoldChanges(true) => self.hold_changes(),
            HaAction::HoldChanges(false) => {
                self.context.shared.with_guarded(|guarded, _, _| guarded.is_released = false);
                self.context.hub.gate.set_phase(GatePhase::Open);
            }
            HaAction::Forward(successor) => self.forward(successor),
            HaAction::ReportHandOver(problem) => self.end_hand_over(Err(problem)),
            HaAction::Resume => self.resume(),
        }
    }

    /// Follows this leader from now on, or none.
    fn follow(&mut self, leader: Option<MemberInfo>) {
        let load = self.copy.cancel_load();
        self.context.drop_elsewhere(load);
        let leader_id = leader.as_ref().map(|leader| leader.id);
        let leader = leader.filter(|_| !self.context.hub.is_ending());
        self.replacement = None;
        self.context.hub.keep_leader_metadata(leader_id);
        self.followed = leader.map(|leader| FollowedLeader::new(leader, self.context.env.now()));
    }

    /// Queues a message for a standby or for the leader. A message to the leader is sent before
    /// anything else is received.
    fn send(&mut self, to: MemberId, message: HaMessage) {
        let followed = self.followed.as_mut().filter(|followed| followed.leader.id == to);
        match followed.and_then(FollowedLeader::stream) {
            Some(stream) => stream.put(message),
            None => {
                let slow = self.standbys.send(to, StreamMessage::Control(message));
                self.end_slow_standbys(slow);
            }
        }
    }

    fn hold_changes(&mut self) {
        let hub = self.context.hub.clone();
        hub.gate.set_phase(GatePhase::ChangesHeld);
        // A call that has the state locked ends first. A call that has passed the gate may still
        // lock the state afterwards. Its response is sent only if the standby has acknowledged its
        // change.
        let last = self.context.shared.with_guarded(|_, _, _| hub.tail.appended());
        let last = last.max(hub.tail.appended());
        self.send_clients();
        hub.tail.notify();
        self.events.push_back(HaEvent::ChangesHeld { last });
    }

    /// Informs the callers of the hand-over.
    fn end_hand_over(&mut self, result: Result<(), HandOverProblem>) {
        if let Err(problem) = &result
            && *problem != HandOverProblem::NotLeading
            && !self.hand_over_requests.is_empty()
        {
            tracing::warn!(%problem, "this master has not handed over");
        }
        for request in self.hand_over_requests.drain(..) {
            // An error means that this caller no longer waits.
            let _ = request.send(result);
        }
    }

    fn forward(&mut self, successor: MemberId) {
        let metadata = self.known.get(&successor).and_then(|known| known.metadata.clone());
        let address = self.core.leader_address();
        let shown = address.as_ref().map_or_else(|| format!("the standby with ID {successor}"), ToString::to_string);
        tracing::info!("handed over: {shown} leads now");
        self.end_hand_over(Ok(()));
        match address {
            Some(address) => {
                let until = self.context.env.boottime() + FORWARD_FOR;
                self.context.hub.gate.forward_to(address, until);
                self.discard(GatePhase::Forwarding);
            }
            None => self.discard(GatePhase::Closed),
        }
        self.context.hub.set_leader_metadata(successor, metadata);
    }

    /// Makes the records of the copy those that the metadata service reads.
    pub(super) fn publish_metadata(&mut self) {
        if let Some(standby) = self.copy.following() {
            self.context.shared.set_metadata_table(standby.metadata().clone());
        }
    }

    /// Discards the state and the copy, and takes a new ID.
    pub(super) fn discard(&mut self, phase: GatePhase) {
        let hub = self.context.hub.clone();
        if hub.gate.term() % 2 == 1 {
            hub.gate.next_term();
        }
        if phase == GatePhase::Closed {
            hub.gate.set_phase(phase);
        }
        let before = self.context.shared.with_guarded(|guarded, _, _| {
            let mut empty = MasterState::new(guarded.state.policy().clone());
            empty.counters = std::mem::take(&mut guarded.state.counters);
            guarded.term = NOT_SERVING;
            guarded.is_released = false;
            guarded.log = None;
            std::mem::replace(&mut guarded.state, empty)
        });
        self.context.drop_elsewhere(before);
        if let Some(disk) = &hub.disk {
            disk.discard();
        }
        let before = self.copy.discard();
        self.context.drop_elsewhere(before);
        self.publish_metadata();
        hub.tail.restart(1);
        hub.tail.notify_always();
        self.copy_next = None;
        self.replacement = None;
        self.standbys.clear();
        self.known.clear();
        self.no_standby_report_at = None;
        self.followed = None;
        let id = MemberId(self.context.env.rng());
        self.events.push_back(HaEvent::Reset { id });
    }
}
