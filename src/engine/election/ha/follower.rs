//! A standby: its leader, its acknowledgements and its promise.

use crate::ha::action::{DiscardReason, HaAction, HaMessage, RevokeReason};
use crate::ha::config::AckMode;
use crate::ha::followership::CandidateStep;
use crate::ha::member::MemberId;
use crate::ha::record::SyncRecord;
use crate::ha::state::{HaCore, REQUEST_TIMEOUT, RoleState};
use mcctl_base::Mono;

impl HaCore {
    pub(super) fn open_stream(&mut self, leader: MemberId, is_replacing: bool) {
        if let RoleState::Standby(follower) = &mut self.role {
            follower.stream = Some(leader);
            follower.ended_leader = None;
            follower.is_replacing = is_replacing;
            follower.is_original = false;
            follower.take_over = None;
            follower.acknowledged = 0;
            // The stamps of another leader come from another clock.
            follower.echo = None;
            follower.key_seen_there = None;
        }
    }

    /// Handles the replacement of the copy by a snapshot. The changes in it are acknowledged once
    /// it is stored.
    pub(super) fn replace_copy(&mut self, id: MemberId) {
        if let RoleState::Standby(follower) = &mut self.role {
            self.me.id = id;
            follower.applied = 0;
            follower.is_replacing = false;
        }
    }

    pub(super) fn close_stream(&mut self, now: Mono, process_gone: bool) {
        let RoleState::Standby(follower) = &mut self.role else { return };
        let Some(leader) = follower.stream.take() else { return };
        follower.take_over = None;
        follower.is_replacing = false;
        let view = self.seen.as_ref().and_then(|seen| seen.leader.as_ref()).map_or(0, |key| key.view);
        follower.ended_leader = process_gone.then_some((leader, view));
        self.revoke_ended_leader();
        self.request_observation(now);
    }

    /// Handles the end of the leader's process, once the records show that this copy is in sync.
    /// Without this standby's acknowledgements, the leader could not have acknowledged a change,
    /// even if it were alive.
    fn revoke_ended_leader(&mut self) {
        let RoleState::Standby(follower) = &self.role else { return };
        let ended = follower.ended_leader.filter(|_| self.config.ack == AckMode::Sync);
        let Some((leader, view)) = ended else { return };
        if !self.is_electable() {
            return;
        }
        let key = self.seen.as_ref().and_then(|seen| seen.leader.as_ref());
        let Some(sync) = self.sync_record().filter(|sync| sync.leader == leader) else { return };
        match key {
            // Its next process may lead with the same copy.
            Some(key) if key.address != sync.rpc || key.view != view => return,
            // A key that this standby keeps for the leader is deleted once the standby is no longer
            // bound to the leader.
            Some(key) if Some(key.lease) != self.lease.id => {
                self.actions.push(HaAction::RevokeLease(key.lease, RevokeReason::LeaderEnded));
            }
            // Another standby may have revoked the lease already.
            Some(_) | None => {}
        }
        if let RoleState::Standby(follower) = &mut self.role {
            follower.promised_until = Mono::ZERO;
            follower.ended_leader = None;
        }
    }

    /// Acknowledges all changes up to `last`, which are applied before anything else happens.
    pub(super) fn acknowledge(&mut self, now: Mono, last: u64) {
        let RoleState::Standby(follower) = &mut self.role else { return };
        let Some(leader) = follower.stream else { return };
        follower.acknowledged = last;
        let ack = follower.ack(now, last);
        self.actions.push(HaAction::Send(leader, ack));
    }

    /// Records progress in making the copy ready to serve.
    pub(super) fn note_progress(&mut self, now: Mono) {
        if let RoleState::Standby(follower) = &mut self.role {
            follower.progress_at = now;
        }
    }

    /// Records that the copy contains all changes up to `last`.
    pub(super) fn note_applied(&mut self, now: Mono, last: u64) {
        let RoleState::Standby(follower) = &mut self.role else { return };
        follower.applied = last;
        let is_taking_over = follower.take_over.is_some();
        if follower.acknowledged != last {
            self.acknowledge(now, last);
        }
        if is_taking_over {
            self.settle_follower(now);
        }
    }

    /// Notifies the leader that this process is about to end.
    pub(super) fn leave(&mut self) {
        let RoleState::Standby(follower) = &self.role else { return };
        let Some(leader) = follower.stream else { return };
        self.actions.push(HaAction::Send(leader, HaMessage::Leave));
    }

    pub(super) fn discard_damaged(&mut self, now: Mono) {
        if let RoleState::Standby(_) = &self.role {
            self.request_observation(now);
            self.discard(DiscardReason::Damaged);
        }
    }

    pub(super) fn take_leaders_message(&mut self, now: Mono, from: MemberId, message: HaMessage) {
        let is_leader = self.sync_record().is_none_or(|sync| sync.leader == from);
        let RoleState::Standby(follower) = &mut self.role else { return };
        if follower.stream != Some(from) {
            return;
        }
        match message {
            HaMessage::Ping { stamp, promise, .. } => {
                follower.echo = None;
                let may_promise = matches!(follower.step, CandidateStep::None) && !follower.is_replacing;
                if is_leader && !promise.is_zero() && may_promise {
                    follower.promised_until = follower.promised_until.max(now + promise);
                    follower.echo = Some(stamp);
                }
                // The ping was sent before now.
                let age = |seen: Mono| u64::try_from(now.since(seen).as_nanos()).unwrap_or(u64::MAX);
                follower.key_seen_there = follower.key_seen.map(|seen| stamp.saturating_sub(age(seen)));
                let ack = follower.ack(now, follower.applied);
                self.actions.push(HaAction::Send(from, ack));
            }
            HaMessage::TakeOver { last } => follower.take_over = Some(last),
            HaMessage::Released => {
                // The leader no longer answers requests.
                follower.promised_until = Mono::ZERO;
                self.request_observation(now);
            }
            HaMessage::Cancel => {
                follower.take_over = None;
                // The transaction may still succeed. The contents of etcd decide.
                if !matches!(follower.step, CandidateStep::Electing { .. }) {
                    self.resume();
                }
            }
            HaMessage::Ack(_) | HaMessage::Ready | HaMessage::Recreated { .. } | HaMessage::Leave => {}
        }
    }

    /// Handles the records that were read with a request sent at `sent`.
    pub(super) fn compare_followed_records(&mut self, now: Mono, sent: Mono) {
        self.choose_leader(sent);
        self.note_absence(now);
        self.revoke_ended_leader();
        if self.is_leader_unknown() {
            return self.discard(DiscardReason::UnknownLeader);
        }
        let RoleState::Standby(follower) = &self.role else { return };
        // The result of an election may be unknown.
        match follower.step {
            CandidateStep::Electing { .. } => self.compare_election(now),
            _ if self.holds_key() => self.settle_own_key(now),
            _ => self.revoke_earlier_process(now),
        }
    }

    /// Whether the leader's key has this master's address and lease.
    fn holds_key(&self) -> bool {
        let key = self.seen.as_ref().and_then(|seen| seen.leader.as_ref());
        key.is_some_and(|key| key.address == self.me.rpc.to_string() && Some(key.lease) == self.lease.id)
    }

    /// Handles an election of this master whose result it no longer waited for. It leads if its
    /// copy is ready, and otherwise deletes the key.
    fn settle_own_key(&mut self, now: Mono) {
        let RoleState::Standby(follower) = &self.role else { return };
        let is_ready = matches!(follower.step, CandidateStep::Prepared { .. });
        if is_ready && self.sync_record().is_some_and(|sync| sync.leader == self.me.id) {
            return self.compare_election(now);
        }
        if let Some(lease) = std::mem::take(&mut self.lease).id {
            self.actions.push(HaAction::RevokeLease(lease, RevokeReason::Own));
        }
        self.keep_lease(now);
    }

    /// Follows the leader that the records name, if they name one.
    fn choose_leader(&mut self, sent: Mono) {
        let (RoleState::Standby(follower), Some(seen)) = (&mut self.role, &self.seen) else { return };
        let is_consistent =
            |sync: &&SyncRecord| seen.leader.as_ref().is_none_or(|key| key.address == sync.rpc || key.is_foreign());
        let other = seen.sync.as_ref().map(|(sync, _)| sync).filter(|sync| sync.leader != self.me.id);
        let leader = other.filter(is_consistent).and_then(SyncRecord::leader_info);
        if leader != follower.following {
            follower.following.clone_from(&leader);
            follower.stream = None;
            follower.is_replacing = false;
            follower.take_over = None;
            follower.key_seen = None;
            follower.key_seen_there = None;
            self.actions.push(HaAction::Follow(leader));
        }
        if seen.leader.is_some() && follower.following.is_some() {
            follower.key_seen = Some(sent);
        }
    }

    /// Records the times from which on no master has led, and another one has led with this copy's
    /// ID.
    fn note_absence(&mut self, now: Mono) {
        let (RoleState::Standby(follower), Some(seen)) = (&mut self.role, &self.seen) else { return };
        // Each creation of the key changes the sync record. So while the record is the same, the
        // key did not exist.
        let revision = seen.sync_revision();
        let before = follower.absent_since.filter(|_| follower.absent_revision == revision);
        follower.absent_since = seen.leader.is_none().then(|| before.unwrap_or(now));
        follower.absent_revision = revision;
        let address = self.me.rpc.to_string();
        let has_same_id = seen.sync.as_ref().is_some_and(|(sync, _)| sync.leader == self.me.id)
            && seen.leader.as_ref().is_some_and(|key| key.names_a_master() && key.address != address);
        follower.same_id_since = has_same_id.then(|| follower.same_id_since.unwrap_or(now));
    }

    /// Whether a master leads that does not support the sync record, so that this copy, which is in
    /// it, may lack changes.
    fn is_leader_unknown(&self) -> bool {
        let key = self.seen.as_ref().and_then(|seen| seen.leader.as_ref());
        let (Some(key), Some(sync)) = (key, self.sync_record()) else { return false };
        key.names_a_master() && key.address != sync.rpc && sync.includes(self.me.id)
    }

    /// An earlier process of this master may have led. A leader makes no promise, and its key can
    /// be deleted.
    fn revoke_earlier_process(&mut self, now: Mono) {
        let (RoleState::Standby(follower), Some(seen)) = (&mut self.role, &self.seen) else { return };
        if seen.sync.as_ref().is_none_or(|(sync, _)| sync.leader != self.me.id) {
            return;
        }
        follower.promised_until = Mono::ZERO;
        if let Some(key) = &seen.leader
            && key.address == self.me.rpc.to_string()
            && Some(key.lease) != self.lease.id
            && follower.recreating.is_none_or(|at| now.since(at) >= REQUEST_TIMEOUT)
        {
            // That process has ended: two cannot use one data directory.
            follower.recreating = Some(now);
            self.actions.push(HaAction::RevokeLease(key.lease, RevokeReason::EarlierProcess));
        }
    }
}
