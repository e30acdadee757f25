//! A leader: its standbys, their acknowledgements and promises, and its pings.

use std::time::Duration;

use crate::ha::action::{HaAction, HaMessage, HandOverProblem, StandbyAck, StopReason};
use crate::ha::leadership::HandOverStep;
use crate::ha::member::MemberId;
use crate::ha::planted::{HaMistake, is_planted};
use crate::ha::replica_set::Replica;
use crate::ha::state::{HaCore, RoleState};
use mcctl_base::Mono;

impl HaCore {
    pub(super) fn connect_standby(&mut self, now: Mono, id: MemberId, applied: u64) {
        let RoleState::Leader(leader) = &mut self.role else { return };
        leader.replicas.connect(now, id, applied.min(leader.appended));
        leader.next_ping = now;
    }

    pub(super) fn disconnect_standby(&mut self, id: MemberId) {
        if let RoleState::Leader(leader) = &mut self.role {
            leader.replicas.disconnect(id);
        }
    }

    pub(super) fn settle_leader(&mut self, now: Mono) {
        self.ping_standbys(now);
        let RoleState::Leader(leader) = &mut self.role else { return };
        // The copy of a standby that takes over no longer changes. An earlier call that was
        // admitted may still add a change.
        let successor = leader.hand_over.map(|hand_over| hand_over.to);
        leader.replicas.expire(now, self.config.standby_timeout, leader.appended, successor);
        if leader.writing.is_none() && !leader.must_write {
            leader.replicas.release_unlisted(&leader.listed);
        }
        self.advance_hand_over(now);
        self.write_sync_record(now);
        self.create_key_again(now);
    }

    fn ping_standbys(&mut self, now: Mono) {
        let counts_until = self.promises_count_until();
        let promise = if now + self.config.promise <= counts_until { self.config.promise } else { Duration::ZERO };
        let RoleState::Leader(leader) = &mut self.role else { return };
        if now < leader.next_ping || leader.has_released() {
            return;
        }
        leader.next_ping = now + self.config.ping_every;
        let ping = HaMessage::Ping { stamp: now.0, promise, last: leader.appended };
        let connected = leader.replicas.iter().filter(|(_, replica)| replica.is_connected);
        self.actions.extend(connected.map(|(id, _)| HaAction::Send(id, ping)));
    }

    /// Handles the acknowledgement of changes by a standby.
    pub(super) fn note_ack(&mut self, now: Mono, from: MemberId, ack: StandbyAck) {
        let RoleState::Leader(leader) = &mut self.role else { return };
        leader.key_seen = leader.key_seen.max(Mono(ack.key_seen.unwrap_or(0)).min(now));
        // No write of a record without it is in progress.
        let is_listed = leader.writing.is_none() && !leader.must_write && leader.listed.contains(&from);
        let before = leader.replicas.get(from).map_or(0, |replica| replica.acked);
        leader.replicas.ack(now, from, ack.applied.min(leader.appended), leader.appended, is_listed);
        let has_more = leader.replicas.get(from).is_some_and(|replica| replica.acked > before);
        if let Some(hand_over) = &mut leader.hand_over {
            let is_progress = match hand_over.step {
                HandOverStep::Preparing => hand_over.to == from && (ack.is_preparing || has_more),
                // The other standbys in the record receive the last change.
                HandOverStep::Ready => has_more,
                _ => false,
            };
            if is_progress {
                hand_over.since = now;
            }
        }
        if let Some(stamp) = ack.echo {
            let sent = if is_planted(HaMistake::MeasuredFromReceipt) { now } else { Mono(stamp).min(now) };
            leader.replicas.promise(from, sent + self.config.promise);
        }
        if !leader.lists_wanted() {
            self.write_sync_record(now);
        }
        self.delete_key(now);
    }

    pub(super) fn take_standbys_message(&mut self, now: Mono, from: MemberId, message: HaMessage) {
        let RoleState::Leader(leader) = &mut self.role else { return };
        match message {
            HaMessage::Recreated { revision } => {
                let is_in_sync = leader.replicas.get(from).is_some_and(Replica::is_in_sync);
                if is_in_sync && revision > leader.sync_revision {
                    leader.view = revision;
                    leader.sync_revision = revision;
                    leader.written_at = now;
                    leader.key_lease = 0;
                    leader.is_key_gone = false;
                    leader.must_write = true;
                }
            }
            HaMessage::Leave => leader.replicas.leave(from),
            HaMessage::Ready => self.note_ready(now, from),
            HaMessage::Ack(_)
            | HaMessage::Ping { .. }
            | HaMessage::TakeOver { .. }
            | HaMessage::Released
            | HaMessage::Cancel => {}
        }
    }

    /// Stops leading, because another master was elected.
    pub(super) fn give_way(&mut self, successor: Option<MemberId>) {
        let RoleState::Leader(leader) = &mut self.role else { return };
        match (&mut leader.hand_over, successor) {
            (Some(hand_over), Some(successor)) => {
                if hand_over.step != HandOverStep::Done {
                    hand_over.step = HandOverStep::Done;
                    self.actions.push(HaAction::Forward(successor));
                }
            }
            (hand_over, _) => {
                if hand_over.is_some() {
                    self.actions.push(HaAction::ReportHandOver(HandOverProblem::OtherElected));
                }
                self.role = RoleState::Resetting;
                self.actions.push(HaAction::StopServing(StopReason::Superseded));
            }
        }
    }
}
