//! The network of the simulation: requests to etcd, and streams between masters.

use super::event::Event;
use super::node::StateCopy;
use super::report::Violation;
use super::stream::{Packet, Stream};
use super::world::World;
use crate::engine::ha::planted::{HaMistake, is_planted};
use crate::engine::ha::{HaAction, HaEvent, MemberId, Observation, TxnOutcome};

impl World {
    pub(super) fn send_to_etcd(&mut self, node: usize, action: HaAction) {
        let (incarnation, sent) = (self.nodes[node].incarnation, self.now);
        let delay = 200 + self.delay() + self.rng.below(self.plan.slow_etcd) as u64;
        let fate = self.rng.below(200);
        // Some requests arrive late, and of some the response is lost.
        let (delay, is_answered) = match fate {
            0 => (delay + 1_500_000, false),
            1 | 2 => (delay, false),
            _ => (delay, true),
        };
        if !is_answered {
            let event = Event::EtcdReply {
                node,
                incarnation,
                action: action.clone(),
                sent,
                outcome: TxnOutcome::Unknown,
                lease: None,
                seen: Box::default(),
            };
            self.after(1_000_000, event);
        }
        self.sync_writes += u64::from(matches!(action, HaAction::WriteSync(_) | HaAction::Elect(_)));
        self.after(delay, Event::Etcd { node, incarnation, action, sent, is_answered });
    }

    pub(super) fn serve_etcd(&mut self, node: usize, incarnation: u64, action: HaAction, sent: u64, is_answered: bool) {
        let reply = |outcome, lease, seen| {
            let action = action.clone();
            Event::EtcdReply { node, incarnation, action, sent, outcome, lease, seen }
        };
        self.sync_writes -= u64::from(matches!(action, HaAction::WriteSync(_) | HaAction::Elect(_)));
        if !self.is_etcd_up || self.cut_etcd.contains(&node) {
            if is_answered {
                self.after(1_000_000, reply(TxnOutcome::Unknown, None, Box::default()));
            }
            return;
        }
        // A lease lasts longer than its TTL by up to 0.6 s.
        let expires = self.now + 2_000_000 + self.rng.below(600_000) as u64;
        let before = self.etcd.observation();
        let (mut outcome, mut lease) = (TxnOutcome::Done(0), None);
        match &action {
            HaAction::GrantLease => lease = Some(self.etcd.grant(expires)),
            HaAction::RenewLease(id) => lease = self.etcd.renew(*id, expires).then_some(*id),
            HaAction::RevokeLease(id) => {
                self.etcd.revoke(*id);
            }
            HaAction::Elect(txn) => {
                outcome = self.etcd.elect(txn);
                let is_other = txn.address != format!("node-{node}:50051");
                if is_other && matches!(outcome, TxnOutcome::Done(_)) {
                    self.totals.recreations += 1;
                }
            }
            HaAction::WriteSync(txn) => outcome = self.etcd.write_sync(txn),
            HaAction::DeleteKey { view, address } => outcome = self.etcd.delete_key(*view, address),
            _ => {}
        }
        if self.etcd.observation() != before {
            self.trace(|| format!("etcd: {:?}", self.etcd.observation()));
            self.notify_watches();
        }
        if is_answered {
            let event = reply(outcome, lease, Box::new(self.etcd.observation()));
            let delay = self.delay() + self.rng.below(self.plan.slow_etcd) as u64;
            self.after(delay, event);
        }
    }

    pub(super) fn notify_watches(&mut self) {
        for node in 0..self.nodes.len() {
            if !self.cut_etcd.contains(&node) {
                let (delay, incarnation) = (self.delay(), self.nodes[node].incarnation);
                self.after(delay, Event::Watch { node, incarnation });
            }
        }
    }

    pub(super) fn etcd_replied(
        &mut self,
        nth: usize,
        action: HaAction,
        sent: u64,
        outcome: TxnOutcome,
        lease: Option<i64>,
        seen: Observation,
    ) {
        let now = self.nodes[nth].clock(self.now);
        let sent = self.nodes[nth].clock(sent);
        let is_unknown = outcome == TxnOutcome::Unknown;
        let event = match action {
            HaAction::GrantLease => HaEvent::LeaseGranted { sent, lease },
            HaAction::RenewLease(id) => {
                let renewed = (!is_unknown).then_some(lease.is_some());
                HaEvent::LeaseRenewed { sent, lease: id, renewed }
            }
            HaAction::Observe if !is_unknown => HaEvent::Observed { sent, seen },
            HaAction::Elect(txn) => HaEvent::Elected { txn, outcome },
            HaAction::WriteSync(txn) => HaEvent::SyncWritten { txn, outcome },
            HaAction::DeleteKey { .. } => HaEvent::KeyDeleted { outcome },
            _ => return,
        };
        self.nodes[nth].handle(now, event);
    }

    pub(super) fn connect(&mut self, nth: usize) {
        let incarnation = self.nodes[nth].incarnation;
        let Some(leader) = self.nodes[nth].following.clone() else { return };
        if self.streams.values().any(|stream| stream.standby == nth) {
            return;
        }
        let found = (0..self.nodes.len()).find(|it| {
            let node = &self.nodes[*it];
            node.is_up && node.is_serving && node.id() == leader.id && node.paused_until <= self.now
        });
        let target = found.filter(|it| !self.cut_nodes.contains(&((*it).min(nth), (*it).max(nth))));
        let Some(at) = target else { return self.after(50_000, Event::Connect { node: nth, incarnation }) };
        if self.nodes[nth].is_preparing || matches!(self.nodes[nth].copy, StateCopy::Active(_)) {
            return self.after(50_000, Event::Connect { node: nth, incarnation });
        }
        let (origin, applied) = (self.nodes[nth].origin, self.nodes[nth].applied);
        let acked =
            self.nodes[at].core.standbys().find(|(id, _)| *id == self.nodes[nth].id()).map_or(0, |(_, it)| it.acked);
        if acked > applied {
            self.violation = Some(Violation::NotStored { id: self.nodes[nth].id() });
            return;
        }
        let behind = self.nodes[at].changes_behind(origin, applied);
        if behind.is_none() && origin.is_some() {
            // The copy must be replaced, so it gets a new ID first. This also connects again.
            return self.reset(nth);
        }
        let leader_now = self.nodes[at].clock(self.now);
        let packet = match behind {
            Some(changes) => Packet::Changes(changes),
            None => {
                self.publish(at);
                let Some((last, chunks)) = self.nodes[at].snapshot(leader_now) else { return };
                self.totals.snapshots += 1;
                Packet::Snapshot { history: self.nodes[at].origin.expect("a leader has a history"), last, chunks }
            }
        };
        let history = self.nodes[at].origin.expect("a leader has a history");
        if matches!(packet, Packet::Changes(_)) {
            self.nodes[nth].continue_history(history);
        }
        self.next_stream += 1;
        let stream = Stream {
            standby: nth,
            leader: at,
            standby_id: self.nodes[nth].id(),
            leader_id: leader.id,
            last: [self.now, self.now],
            held: Vec::new(),
            is_cut: false,
        };
        let standby_id = stream.standby_id;
        self.streams.insert(self.next_stream, stream);
        let now = self.nodes[nth].clock(self.now);
        self.nodes[nth].handle(now, HaEvent::StreamOpened { leader: leader.id });
        self.send(self.next_stream, false, packet);
        self.nodes[at].handle(leader_now, HaEvent::StandbyConnected { id: standby_id, applied });
        self.perform(at);
    }

    pub(super) fn streams_to(&self, nth: usize, id: MemberId) -> Vec<u64> {
        let mut found: Vec<u64> = self
            .streams
            .iter()
            .filter(|(_, stream)| stream.leader == nth && stream.leader_id == id)
            .map(|(number, _)| *number)
            .collect();
        found.sort_unstable();
        found
    }

    pub(super) fn send_message(&mut self, nth: usize, to: MemberId, packet: Packet) {
        let id = self.nodes[nth].id();
        let found = self.streams.iter().find(|(_, stream)| {
            (stream.leader_id, stream.standby_id) == (id, to) || (stream.standby_id, stream.leader_id) == (id, to)
        });
        if let Some((number, to_leader)) = found.map(|(number, stream)| (*number, stream.standby_id == id)) {
            self.send(number, to_leader, packet);
        }
    }

    pub(super) fn send(&mut self, number: u64, to_leader: bool, packet: Packet) {
        let delay = self.delay() + self.rng.below(self.plan.slow_link) as u64;
        let Some(stream) = self.streams.get_mut(&number) else { return };
        let pair = (stream.leader.min(stream.standby), stream.leader.max(stream.standby));
        if self.cut_nodes.contains(&pair) || !stream.held.is_empty() {
            stream.is_cut = true;
            stream.held.push((to_leader, packet));
            return;
        }
        let last = &mut stream.last[usize::from(to_leader)];
        let at = (self.now + delay).max(*last + 1);
        *last = at;
        self.after(at - self.now, Event::Packet { stream: number, to_leader, packet });
    }

    pub(super) fn release_held(&mut self, a: usize, b: usize) {
        let mut numbers: Vec<u64> = self.streams.keys().copied().collect();
        numbers.sort_unstable();
        for number in numbers {
            let Some(stream) = self.streams.get_mut(&number) else { continue };
            if (stream.leader.min(stream.standby), stream.leader.max(stream.standby)) == (a, b) {
                stream.is_cut = false;
                for (to_leader, packet) in std::mem::take(&mut stream.held) {
                    self.send(number, to_leader, packet);
                }
            }
        }
    }

    pub(super) fn end_cut_streams(&mut self, a: usize, b: usize) {
        if !self.cut_nodes.contains(&(a, b)) {
            return;
        }
        for (number, stream) in self.streams.clone() {
            if (stream.leader.min(stream.standby), stream.leader.max(stream.standby)) == (a, b) {
                self.drop_stream(number, false);
            }
        }
    }

    /// Ends a stream. Both sides notice it a little later.
    pub(super) fn drop_stream(&mut self, number: u64, process_gone: bool) {
        let Some(stream) = self.streams.get(&number).cloned() else { return };
        for nth in [stream.standby, stream.leader] {
            let (delay, incarnation) = (self.delay(), self.nodes[nth].incarnation);
            self.after(delay, Event::Closed { node: nth, incarnation, stream: number, process_gone });
        }
        // Packets on their way are lost, and each side learns of the end from its event.
        if let Some(stream) = self.streams.remove(&number) {
            self.ended.insert(number, stream);
        }
    }

    pub(super) fn close_own_stream(&mut self, nth: usize) {
        let own: Vec<u64> =
            self.streams.iter().filter(|(_, stream)| stream.standby == nth).map(|(number, _)| *number).collect();
        own.into_iter().for_each(|number| self.drop_stream(number, false));
    }

    pub(super) fn stream_ended(&mut self, nth: usize, number: u64, process_gone: bool) {
        let now = self.nodes[nth].clock(self.now);
        let Some(stream) = self.ended.get(&number).cloned() else { return };
        let (id, incarnation) = (self.nodes[nth].id(), self.nodes[nth].incarnation);
        if stream.standby == nth && stream.standby_id == id {
            let gone = process_gone && !self.nodes[stream.leader].is_up;
            self.nodes[nth].handle(now, HaEvent::StreamClosed { process_gone: gone });
            self.after(20_000, Event::Connect { node: nth, incarnation });
        } else if stream.leader == nth && stream.leader_id == id {
            let has_another = self.streams.values().any(|it| it.standby_id == stream.standby_id && it.leader_id == id);
            if !has_another {
                self.nodes[nth].handle(now, HaEvent::StandbyDisconnected { id: stream.standby_id });
            }
        }
    }

    /// Writes the changes to the data directory. A standby acknowledges them when the directory has them.
    pub(super) fn store(&mut self, nth: usize) {
        let (now, is_slow) = (self.nodes[nth].clock(self.now), self.plan.slow_disk > 1);
        let delay = if is_slow { self.rng.below(self.plan.slow_disk) as u64 } else { 0 };
        let node = &mut self.nodes[nth];
        let (last, incarnation, copy) = (node.applied, node.incarnation, node.id());
        let is_standby = matches!(node.copy, StateCopy::Standby(_));
        if !is_slow && is_standby {
            node.stored = last;
        }
        if is_standby && (!is_slow || is_planted(HaMistake::AcknowledgedBeforeStored)) {
            node.handle(now, HaEvent::Applied { last });
        }
        if is_slow {
            // A disk stores in order.
            node.disk_busy_until = node.disk_busy_until.max(self.now + delay) + 1;
            let wait = node.disk_busy_until - self.now;
            self.after(wait, Event::Stored { node: nth, incarnation, copy, last });
        }
    }

    pub(super) fn receive_packet(&mut self, nth: usize, number: u64, to_leader: bool, packet: Packet) {
        let now = self.nodes[nth].clock(self.now);
        let Some(stream) = self.streams.get(&number).cloned() else { return };
        let has_data = self.plan.has_data;
        let (own, other) =
            if to_leader { (stream.leader_id, stream.standby_id) } else { (stream.standby_id, stream.leader_id) };
        let node = &mut self.nodes[nth];
        if node.id() != own {
            return;
        }
        match packet {
            Packet::Ha(message) => node.handle(now, HaEvent::Received { from: other, message }),
            Packet::Changes(changes) => {
                let is_following = matches!(node.copy, StateCopy::Standby(_)) && !node.is_preparing;
                let received = changes.last().map_or(0, |change| change.sequence).max(node.applied);
                // Without a data directory, a standby acknowledges before it applies.
                if is_following && !has_data {
                    node.handle(now, HaEvent::ChangesReceived { last: received });
                }
                node.apply(now, &changes);
                if is_following {
                    self.store(nth);
                }
            }
            Packet::Snapshot { history, last, chunks } => {
                node.load(now, history, last, &chunks);
                node.handle(now, HaEvent::Applied { last });
            }
        }
    }
}
