//! A standby: whose changes it follows, what it has promised, and when it stands for election.

use std::time::Duration;

use crate::engine::base::Mono;
use crate::engine::ha::action::{DiscardReason, HaAction, HaMessage};
use crate::engine::ha::config::{AckMode, NotInSyncPolicy};
use crate::engine::ha::followership::CandidateStep;
use crate::engine::ha::leadership::Leader;
use crate::engine::ha::member::MemberId;
use crate::engine::ha::planted::{HaMistake, is_planted};
use crate::engine::ha::record::{ElectionTxn, Observation, SyncRecord, TxnOutcome};
use crate::engine::ha::state::{HaCore, OwnLease, REQUEST_TIMEOUT, RoleState};

/// A leader may create its own expired key again in this time, before its standby does.
const OWN_RECREATION: Duration = Duration::from_millis(100);
/// The key of an earlier process with this copy's ID, at another address, expires within this time. After it, another process has that ID.
const SAME_ID_MAX: Duration = Duration::from_secs(5);

impl HaCore {
    /// The stream from `leader` opened.
    pub fn stream_opened(&mut self, leader: MemberId) {
        if let RoleState::Standby(follower) = &mut self.role {
            (follower.stream, follower.acknowledged) = (Some(leader), 0);
            // The stamps of another leader are times on another clock.
            (follower.echo, follower.key_seen_there) = (None, None);
        }
    }

    /// The copy has received all changes of the leader up to `last`, and applies them before it does anything else. Returns the
    /// acknowledgement to send.
    pub fn acknowledge(&mut self, last: u64) -> Option<HaMessage> {
        let RoleState::Standby(follower) = &mut self.role else { return None };
        follower.stream?;
        follower.acknowledged = last;
        Some(HaMessage::Ack { applied: last, echo: follower.echo, key_seen: follower.key_seen_there })
    }

    /// The stream from the leader ended. `process_gone`: it was reset, and the leader's RPC port refuses connections, so its process has
    /// ended.
    pub fn stream_closed(&mut self, now: Mono, process_gone: bool) {
        let RoleState::Standby(follower) = &mut self.role else { return };
        let Some(leader) = follower.stream.take() else { return };
        if process_gone && self.config.ack == AckMode::Sync && self.is_electable() {
            let key = self.seen.as_ref().and_then(|seen| seen.leader.as_ref());
            let sync = self.seen.as_ref().and_then(|seen| seen.sync.as_ref());
            // Without this standby's acknowledgements, the leader could not have acknowledged a change, even if it were alive.
            if let (Some(key), Some((sync, _))) = (key, sync)
                && sync.leader == leader
                && sync.rpc == key.address
            {
                // A key that this standby keeps for the leader is deleted once it is not bound to it any more.
                if Some(key.lease) != self.lease.id {
                    self.actions.push(HaAction::RevokeLease(key.lease));
                }
                if let RoleState::Standby(follower) = &mut self.role {
                    follower.promised_until = Mono::ZERO;
                }
            }
        }
        self.request_observation(now);
        self.tick_follower(now);
    }

    /// The copy contains all changes of the leader up to `last`.
    pub fn applied(&mut self, now: Mono, last: u64) {
        let RoleState::Standby(follower) = &mut self.role else { return };
        follower.applied = last;
        let (leader, is_taking_over) = (follower.stream, follower.take_over.is_some());
        if let Some(leader) = leader
            && follower.acknowledged != last
            && let Some(ack) = self.acknowledge(last)
        {
            self.actions.push(HaAction::Send(leader, ack));
        }
        if is_taking_over {
            self.tick_follower(now);
        }
    }

    /// This process is about to end: tells the leader not to wait for it.
    /// Returns false if it does not follow one.
    pub fn leave(&mut self) -> bool {
        let RoleState::Standby(follower) = &self.role else { return false };
        let Some(leader) = follower.stream else { return false };
        self.actions.push(HaAction::Send(leader, HaMessage::Leave));
        true
    }

    /// The copy is damaged.
    pub fn copy_damaged(&mut self) {
        if let RoleState::Standby(_) = &self.role {
            self.discard(DiscardReason::Damaged);
        }
    }

    /// Whether the sync record, as last read, permits this master's election without loss.
    fn is_electable(&self) -> bool {
        let sync = self.seen.as_ref().and_then(|seen| seen.sync.as_ref());
        sync.is_none_or(|(sync, _)| sync.includes(self.me.id))
    }

    /// What this master does while it is not in sync: the later promotion of its own policy and the leader's.
    pub(super) fn not_in_sync_policy(&self) -> NotInSyncPolicy {
        let (own, seen) = (self.config.not_in_sync, self.seen.as_ref().and_then(|seen| seen.sync.as_ref()));
        seen.and_then(|(sync, _)| sync.when_not_in_sync).map_or(own, |leader| own.later(leader))
    }

    /// Whether the only copy in the sync record was that of an earlier process at this master's address, which has ended.
    fn is_last_copy_gone(&self) -> bool {
        let sync = self.seen.as_ref().and_then(|seen| seen.sync.as_ref());
        sync.is_some_and(|(sync, _)| {
            sync.in_sync.is_empty() && sync.leader != self.me.id && sync.rpc == self.me.rpc.to_string()
        })
    }

    pub(super) fn follower_received(&mut self, now: Mono, from: MemberId, message: HaMessage) {
        let sync = self.seen.as_ref().and_then(|seen| seen.sync.as_ref());
        let is_leader = sync.is_none_or(|(sync, _)| sync.leader == from);
        let RoleState::Standby(follower) = &mut self.role else { return };
        if follower.stream != Some(from) {
            return;
        }
        match message {
            HaMessage::Ping { stamp, promise, .. } => {
                follower.echo = None;
                if is_leader && !promise.is_zero() && matches!(follower.step, CandidateStep::None) {
                    follower.promised_until = follower.promised_until.max(now + promise);
                    follower.echo = Some(stamp);
                }
                // The ping was sent before now.
                let age = |seen: Mono| u64::try_from(now.since(seen).as_nanos()).unwrap_or(u64::MAX);
                follower.key_seen_there = follower.key_seen.map(|seen| stamp.saturating_sub(age(seen)));
                let (echo, key_seen) = (follower.echo, follower.key_seen_there);
                let ack = HaMessage::Ack { applied: follower.applied, echo, key_seen };
                self.actions.push(HaAction::Send(from, ack));
            }
            HaMessage::TakeOver { last } => follower.take_over = Some(last),
            HaMessage::Released => {
                // The leader does not answer any more.
                follower.promised_until = Mono::ZERO;
                self.request_observation(now);
            }
            HaMessage::Cancel => follower.take_over = None,
            HaMessage::Ack { .. } | HaMessage::Ready | HaMessage::Recreated { .. } | HaMessage::Leave => {}
        }
        self.tick_follower(now);
    }

    pub(super) fn follower_observed(&mut self, now: Mono, sent: Mono) {
        let (me, address) = (self.me.id, self.me.rpc.to_string());
        let (RoleState::Standby(follower), Some(seen)) = (&mut self.role, &self.seen) else { return };
        let sync = seen.sync.as_ref().map(|(sync, _)| sync);
        let is_absent = seen.leader.is_none();
        follower.absent_since = is_absent.then(|| follower.absent_since.unwrap_or(now));
        let is_consistent =
            |sync: &&SyncRecord| seen.leader.as_ref().is_none_or(|key| key.address == sync.rpc || key.is_foreign());
        let leader = sync.filter(|sync| sync.leader != me).filter(is_consistent).and_then(SyncRecord::leader_info);
        if leader != follower.following {
            follower.following.clone_from(&leader);
            follower.stream = None;
            (follower.key_seen, follower.key_seen_there) = (None, None);
            self.actions.push(HaAction::Follow(leader));
        }
        if seen.leader.is_some() && follower.following.is_some() {
            follower.key_seen = Some(sent);
        }
        let has_same_id = sync.is_some_and(|sync| sync.leader == me)
            && seen.leader.as_ref().is_some_and(|key| key.names_a_master() && key.address != address);
        follower.same_id_since = has_same_id.then(|| follower.same_id_since.unwrap_or(now));
        if let (Some(key), Some(sync)) = (&seen.leader, sync)
            && key.names_a_master()
            && key.address != sync.rpc
            && sync.includes(me)
        {
            // A master that does not know the sync record leads, so this copy does not have everything any more.
            return self.discard(DiscardReason::UnknownLeader);
        }
        // The result of an election may be unknown.
        let RoleState::Standby(follower) = &mut self.role else { return };
        if !matches!(follower.step, CandidateStep::Electing { .. }) {
            if sync.is_some_and(|sync| sync.leader == me) {
                // This master led before it was started again, and a leader makes no promise.
                follower.promised_until = Mono::ZERO;
            }
            if let (Some(key), Some((sync, _))) = (&seen.leader, &seen.sync)
                && (sync.leader, &key.address) == (me, &address)
                && Some(key.lease) != self.lease.id
                && follower.recreating.is_none_or(|at| now.since(at) >= REQUEST_TIMEOUT)
            {
                // It is the key of an earlier process of this master, which has ended: two cannot use one data directory.
                follower.recreating = Some(now);
                self.actions.push(HaAction::RevokeLease(key.lease));
            }
            return;
        }
        match (&seen.leader, &seen.sync) {
            (Some(key), Some((sync, _))) if sync.leader == me && key.address == address => {
                let (view, lease) = (key.view, key.lease);
                follower.candidate_list.clone_from(&sync.in_sync);
                self.become_leader(now, view, lease);
            }
            (Some(_), _) => {
                if let CandidateStep::Electing { lossy, expected_sync, .. } = follower.step {
                    follower.step = CandidateStep::Prepared { lossy, expected_sync };
                }
            }
            (None, _) => {}
        }
    }

    /// Deletes the key that this standby has kept for a leader that is gone. If the leader has bound the key to its own lease meanwhile, the
    /// key stays.
    fn delete_kept_key(&mut self, now: Mono) {
        let (RoleState::Standby(follower), Some(seen)) = (&mut self.role, &self.seen) else { return };
        if let Some(key) = seen.leader.as_ref().filter(|_| now >= follower.promised_until)
            && Some(key.lease) == self.lease.id
            && key.address != self.me.rpc.to_string()
            && follower.recreating.is_none_or(|at| now.since(at) >= REQUEST_TIMEOUT)
        {
            follower.recreating = Some(now);
            self.actions.push(HaAction::RevokeLease(key.lease));
            self.lease = OwnLease::default();
            self.tick_lease(now);
        }
    }

    pub(super) fn tick_follower(&mut self, now: Mono) {
        self.delete_kept_key(now);
        let is_electable = self.is_electable();
        let is_last_copy_gone = self.is_last_copy_gone();
        let policy = self.not_in_sync_policy();
        let RoleState::Standby(follower) = &mut self.role else { return };
        let Some(seen) = &self.seen else { return };
        if follower.same_id_since.is_some_and(|since| now.since(since) >= SAME_ID_MAX) {
            return self.discard(DiscardReason::SameId);
        }
        let is_bound = now < follower.promised_until;
        let is_led = follower.stream.is_some() && is_bound;
        let is_permitted =
            |lossy: bool, expected_sync: u64| is_electable || lossy && seen.sync_revision() == expected_sync;
        match follower.step {
            CandidateStep::None => {
                let is_taking_over = follower.take_over.is_some_and(|last| follower.applied >= last);
                let is_overwriting = is_planted(HaMistake::KeyOverwritten) && follower.promised_until != Mono::ZERO;
                let absent = follower.absent_since.or(is_overwriting.then_some(now));
                if is_taking_over && is_electable {
                    self.prepare(false);
                } else if let Some(since) = absent {
                    if is_electable && is_led {
                        self.recreate(now, since);
                    } else if is_electable && !is_bound {
                        self.prepare(false);
                    } else if let NotInSyncPolicy::PromoteAfter(pause) = policy
                        && (now.since(since) >= pause || is_last_copy_gone)
                        && !is_led
                    {
                        self.prepare(true);
                    }
                }
            }
            CandidateStep::Preparing { .. } => {}
            CandidateStep::Prepared { lossy, expected_sync } => {
                let is_absent = follower.absent_since.is_some() || is_planted(HaMistake::KeyOverwritten);
                if !is_permitted(lossy, expected_sync) {
                    self.discard(DiscardReason::Outdated);
                } else if is_absent && !is_bound {
                    self.elect(now, lossy);
                }
            }
            CandidateStep::Electing { lossy, sent, expected_sync } => {
                if follower.absent_since.is_none() || now.since(sent) < REQUEST_TIMEOUT {
                    return;
                }
                if is_permitted(lossy, expected_sync) {
                    self.elect(now, lossy);
                } else {
                    self.discard(DiscardReason::Outdated);
                }
            }
        }
    }

    fn prepare(&mut self, lossy: bool) {
        if let RoleState::Standby(follower) = &mut self.role {
            follower.step = CandidateStep::Preparing { lossy };
            self.actions.push(HaAction::Prepare { lossy });
        }
    }

    /// The copy is ready to serve (`true`), or cannot be used.
    pub fn prepared(&mut self, now: Mono, ready: bool) {
        let RoleState::Standby(follower) = &mut self.role else { return };
        let CandidateStep::Preparing { lossy } = follower.step else { return };
        if !ready {
            return self.discard(DiscardReason::Damaged);
        }
        let expected_sync = self.seen.as_ref().map_or(0, Observation::sync_revision);
        follower.step = CandidateStep::Prepared { lossy, expected_sync };
        if let (Some(_), Some(leader)) = (follower.take_over, follower.stream) {
            self.actions.push(HaAction::Send(leader, HaMessage::Ready));
        }
        self.tick(now);
    }

    fn elect(&mut self, now: Mono, lossy: bool) {
        let Some(lease) = self.lease.id else { return };
        let expected_sync = self.seen.as_ref().map_or(0, Observation::sync_revision);
        let RoleState::Standby(follower) = &mut self.role else { return };
        follower.step = CandidateStep::Electing { lossy, sent: now, expected_sync };
        let when_not_in_sync = Some(self.config.not_in_sync);
        let mut sync = SyncRecord { when_not_in_sync, ..SyncRecord::alone(&self.me, follower.applied) };
        if let Some((before, _)) = self.seen.as_ref().and_then(|seen| seen.sync.as_ref()).filter(|_| !lossy) {
            // The other standbys still have everything. Changes wait for them until they follow, or are removed from the record.
            sync.in_sync = before.in_sync.iter().copied().filter(|id| *id != self.me.id).collect();
            sync.alone_since = sync.alone_since.filter(|_| sync.in_sync.is_empty());
        }
        follower.candidate_list.clone_from(&sync.in_sync);
        self.actions.push(HaAction::Elect(ElectionTxn {
            address: self.me.rpc.to_string(),
            lease,
            expected_sync,
            sync,
        }));
    }

    /// Creates the expired key of a leader that is alive, but cut off from etcd.
    fn recreate(&mut self, now: Mono, absent_since: Mono) {
        let (RoleState::Standby(follower), Some(seen), Some(lease)) = (&mut self.role, &self.seen, self.lease.id)
        else {
            return;
        };
        let Some((sync, revision)) = &seen.sync else { return };
        let is_waiting = follower.recreating.is_some_and(|at| now.since(at) < REQUEST_TIMEOUT);
        if is_waiting || now.since(absent_since) < OWN_RECREATION || follower.stream != Some(sync.leader) {
            return;
        }
        follower.recreating = Some(now);
        let (address, expected_sync) = (sync.rpc.clone(), *revision);
        self.actions.push(HaAction::Elect(ElectionTxn { address, lease, expected_sync, sync: sync.clone() }));
    }

    pub(super) fn follower_elected(&mut self, now: Mono, txn: &ElectionTxn, outcome: &TxnOutcome) {
        let RoleState::Standby(follower) = &mut self.role else { return };
        if txn.sync.leader == self.me.id && matches!(follower.step, CandidateStep::Electing { .. }) {
            match outcome {
                TxnOutcome::Done(view) => {
                    follower.candidate_list.clone_from(&txn.sync.in_sync);
                    self.become_leader(now, *view, txn.lease);
                }
                // An earlier attempt whose result is unknown may have succeeded, so what etcd contains decides.
                TxnOutcome::Refused | TxnOutcome::Unknown => self.request_observation(now),
            }
            return;
        }
        if let TxnOutcome::Done(revision) = outcome
            && txn.address != self.me.rpc.to_string()
        {
            follower.recreating = None;
            if follower.stream == Some(txn.sync.leader) {
                let message = HaMessage::Recreated { revision: *revision };
                self.actions.push(HaAction::Send(txn.sync.leader, message));
            }
        }
        self.request_observation(now);
    }

    fn become_leader(&mut self, now: Mono, view: u64, lease: i64) {
        let RoleState::Standby(follower) = &mut self.role else { return };
        let listed = std::mem::take(&mut follower.candidate_list);
        let mut leader = Leader::new(now, view, lease, follower.applied, self.config.ack);
        leader.require_all(now, listed);
        self.role = RoleState::Leader(leader);
        self.actions.push(HaAction::Follow(None));
        self.actions.push(HaAction::Serve { view });
    }

    fn discard(&mut self, why: DiscardReason) {
        self.role = RoleState::Resetting;
        self.actions.push(HaAction::Discard(why));
    }
}
