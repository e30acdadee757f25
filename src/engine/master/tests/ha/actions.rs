//! What the nodes of the simulation do: background work, calls, responses, and the actions of their cores.

use super::event::Event;
use super::node::StateCopy;
use super::report::Violation;
use super::request::{PendingReply, Reply, Request};
use super::stream::Packet;
use super::world::World;
use crate::engine::ha::planted::{HaMistake, is_planted};
use crate::engine::ha::{HaAction, HaEvent, HaMessage, HistoryId, MemberId};

impl World {
    pub(super) fn run_background(&mut self, nth: usize) {
        let now = self.nodes[nth].clock(self.now);
        let node = &mut self.nodes[nth];
        let replicated = node.core.replicated(node.applied);
        if let StateCopy::Active(state) = &mut node.copy {
            state.durable(replicated);
            while state.tick(now, now, &mut node.effects) {}
        }
        node.effects.list.clear();
        self.publish(nth);
    }

    /// Closes the change in progress and sends it to the standbys.
    pub(super) fn publish(&mut self, nth: usize) {
        let changes = self.nodes[nth].close_change();
        if changes.is_empty() {
            return;
        }
        self.store(nth);
        let id = self.nodes[nth].id();
        for stream in self.streams_to(nth, id) {
            self.send(stream, false, Packet::Changes(changes.clone()));
        }
    }

    pub(super) fn serve_request(&mut self, nth: usize, client: usize, call: u64, request: &Request) {
        let now = self.nodes[nth].clock(self.now);
        let (reply, needs) = self.nodes[nth].process(now, request);
        self.publish(nth);
        if self.is_crash_planned
            && matches!(request, Request::Start(..) | Request::End(..))
            && self.nodes[nth].is_leader()
        {
            self.is_crash_planned = false;
            let (wait, incarnation) = (self.rng.below(4_000) as u64, self.nodes[nth].incarnation);
            self.after(wait, Event::CrashBusy { node: nth, incarnation });
        }
        if reply == Reply::Refused {
            let delay = self.delay();
            return self.after(delay, Event::Reply { client, call, reply });
        }
        // A call that changes nothing waits for the fence only; one that repeats an earlier one waits for all changes.
        let is_read = matches!(request, Request::Read(_) | Request::Ping(_));
        let seen = self.nodes[nth].applied;
        let needs = if is_read { 0 } else { needs.min(self.nodes[nth].applied) };
        self.nodes[nth].pending.push(PendingReply { client, call, reply, needs, seen });
    }

    /// Sends the responses that may be sent.
    pub(super) fn release(&mut self, nth: usize) {
        let now = self.nodes[nth].clock(self.now);
        let node = &mut self.nodes[nth];
        let is_fenced = now >= node.core.fence() && !is_planted(HaMistake::FenceNotChecked);
        if node.pending.is_empty() || !node.is_leader() || is_fenced {
            return;
        }
        let acked = node.acked();
        // A response waits until the log has all changes that it may show. A fast disk stores them now.
        let stored = if self.plan.slow_disk > 1 { node.stored } else { u64::MAX };
        let (ready, waiting) =
            std::mem::take(&mut node.pending).into_iter().partition(|it| it.needs <= acked && it.seen <= stored);
        node.pending = waiting;
        let ready: Vec<PendingReply> = ready;
        if ready.is_empty() {
            return;
        }
        let id = node.id();
        let election = self.etcd.elected.iter().rposition(|it| *it == id).unwrap_or(0);
        if election < self.answered {
            self.violation = Some(Violation::StaleAnswer { id });
        }
        self.answered = self.answered.max(election);
        for it in ready {
            self.nodes[nth].stored = self.nodes[nth].stored.max(it.seen);
            let delay = self.delay();
            self.after(delay, Event::Reply { client: it.client, call: it.call, reply: it.reply });
        }
    }

    /// Performs the actions of a node's core.
    pub(super) fn perform(&mut self, nth: usize) {
        while let Some(action) = self.nodes[nth].actions.pop_front() {
            self.perform_one(nth, action);
        }
        self.release(nth);
        self.plan_timeout(nth);
    }

    /// Plans the core's next timeout, which may come a little late.
    fn plan_timeout(&mut self, nth: usize) {
        let node = &self.nodes[nth];
        let due = node.time_of(node.core.next_timeout()).max(self.now);
        if node.timeout_due.is_some_and(|planned| planned <= due) {
            return;
        }
        let wait = due - self.now + self.rng.below(20_000) as u64;
        let node = &mut self.nodes[nth];
        node.timeout += 1;
        node.timeout_due = Some(due);
        let timeout = Event::Timeout { node: nth, incarnation: node.incarnation, number: node.timeout };
        self.after(wait, timeout);
    }

    /// A planned timeout has come.
    pub(super) fn time_out(&mut self, nth: usize, number: u64) {
        let node = &mut self.nodes[nth];
        if number != node.timeout {
            return;
        }
        node.timeout_due = None;
        let now = node.clock(self.now);
        if node.core.next_timeout() <= now {
            node.handle(now, HaEvent::Timeout);
            assert!(node.core.next_timeout() > now, "all is done that was due: {:?}", node.core.next_timer());
        }
    }

    pub(super) fn perform_one(&mut self, nth: usize, action: HaAction) {
        let incarnation = self.nodes[nth].incarnation;
        let now = self.nodes[nth].clock(self.now);
        if !matches!(
            action,
            HaAction::Observe
                | HaAction::RenewLease(_)
                | HaAction::Send(_, HaMessage::Ping { .. } | HaMessage::Ack { .. })
        ) {
            self.trace(|| format!("node {nth} {:?} at {}: {action:?}", self.nodes[nth].id(), self.nodes[nth].applied));
        }
        match action {
            HaAction::Follow(leader) => {
                self.close_own_stream(nth);
                let is_new = leader.is_some();
                self.nodes[nth].following = leader;
                if is_new {
                    self.after(500, Event::Connect { node: nth, incarnation });
                }
            }
            HaAction::Send(to, message) => self.send_message(nth, to, Packet::Ha(message)),
            HaAction::Prepare { lossy } => {
                self.nodes[nth].is_preparing = true;
                let took = 1_000 + self.rng.below(250_000) as u64;
                self.after(took, Event::Prepared { node: nth, incarnation, lossy });
            }
            HaAction::Discard(_) | HaAction::StopServing(_) => self.reset(nth),
            HaAction::Serve { .. } => {
                self.next_id += 1;
                let history = HistoryId(self.next_id);
                self.nodes[nth].serve(now, history);
                self.store(nth);
            }
            HaAction::HoldChanges(is_holding) => {
                self.nodes[nth].is_holding = is_holding;
                if is_holding {
                    let took = self.rng.below(3_000) as u64;
                    self.after(took, Event::ChangesHeld { node: nth, incarnation });
                }
            }
            HaAction::Forward(_) => {
                self.totals.hand_overs += 1;
                self.reset(nth);
            }
            action => {
                if let HaAction::RevokeLease(_) = action {
                    self.totals.fast_paths += 1;
                }
                self.send_to_etcd(nth, action);
            }
        }
    }

    /// Discards a node's state.
    pub(super) fn reset(&mut self, nth: usize) {
        let id = self.nodes[nth].id();
        for (number, stream) in self.streams.clone() {
            if stream.leader_id == id || stream.standby_id == id {
                self.drop_stream(number, false);
            }
        }
        self.next_id += 1;
        let now = self.nodes[nth].clock(self.now);
        self.nodes[nth].discard();
        let id = MemberId(self.next_id);
        self.nodes[nth].handle(now, HaEvent::Reset { id });
    }

    pub(super) fn crash(&mut self, nth: usize) {
        self.trace(|| format!("crash of node {nth} {:?} at {}", self.nodes[nth].id(), self.nodes[nth].applied));
        let id = self.nodes[nth].id();
        for (number, stream) in self.streams.clone() {
            if stream.leader_id == id || stream.standby_id == id {
                self.drop_stream(number, !stream.is_cut);
            }
        }
        let node = &mut self.nodes[nth];
        node.is_up = false;
        node.incarnation += 1;
    }

    pub(super) fn start(&mut self, nth: usize) {
        if self.nodes[nth].is_up {
            return;
        }
        self.next_id += 1;
        let (id, old) = (MemberId(self.next_id), &self.nodes[nth]);
        let fresh = if self.plan.has_data {
            // After a loss of power, any of the last changes may be missing; otherwise, only those that no response has
            // shown.
            let is_power_lost = std::mem::take(&mut self.power_lost[nth]);
            let least = if is_power_lost { old.history_from - 1 } else { old.stored };
            let last = least + self.rng.below(usize::try_from(old.applied - least).expect("small") + 1) as u64;
            self.totals.reopened += 1;
            old.reopened(nth, self.now, last, is_power_lost.then_some(id))
        } else {
            old.restarted(nth, id)
        };
        let incarnation = fresh.incarnation;
        self.nodes[nth] = fresh;
        self.after(1000, Event::Tick { node: nth, incarnation });
    }
}
