//! A standby's candidacy: when it makes its copy ready, stands for election, or keeps the key for
//! its leader.

use crate::ha::action::{DiscardReason, HaAction, HaMessage, RevokeReason};
use crate::ha::config::NotInSyncPolicy;
use crate::ha::followership::CandidateStep;
use crate::ha::leadership::Leader;
use crate::ha::member::{HistoryId, MemberId};
use crate::ha::planted::{HaMistake, is_planted};
use crate::ha::record::{ElectionTxn, Observation, SyncRecord, TxnOutcome};
use crate::ha::state::{HaCore, OwnLease, REQUEST_TIMEOUT, RoleState};
use crate::ha::timers::{NO_RECORD_PAUSE, OWN_RECREATION, SAME_ID_MAX};
use mcctl_base::Mono;

impl HaCore {
    pub(super) fn settle_follower(&mut self, now: Mono) {
        self.delete_kept_key(now);
        let RoleState::Standby(follower) = &self.role else { return };
        if self.seen.is_none() {
            return;
        }
        if follower.same_id_since.is_some_and(|since| now.since(since) >= SAME_ID_MAX) {
            return self.discard(DiscardReason::SameId);
        }
        match follower.step {
            CandidateStep::None => self.become_candidate(now),
            CandidateStep::Preparing { .. } => {}
            CandidateStep::Prepared { lossy, expected_sync } => {
                let is_absent = follower.absent_since.is_some() || is_planted(HaMistake::KeyOverwritten);
                let is_led = !is_absent && follower.take_over.is_none() && follower.following.is_some();
                if !self.is_permitted(lossy, expected_sync) || is_led {
                    self.give_up();
                } else if is_absent && now >= follower.promised_until {
                    self.stand(now, lossy);
                }
            }
            CandidateStep::Electing { lossy, sent, expected_sync } => {
                if follower.absent_since.is_none() || now.since(sent) < REQUEST_TIMEOUT {
                    return;
                }
                if self.is_permitted(lossy, expected_sync) {
                    self.stand(now, lossy);
                } else {
                    self.give_up();
                }
            }
        }
    }

    /// Makes the copy ready, or keeps the key for a leader that is alive, if it is time.
    fn become_candidate(&mut self, now: Mono) {
        let is_electable = self.is_electable();
        let RoleState::Standby(follower) = &self.role else { return };
        let is_bound = now < follower.promised_until;
        let is_led = follower.stream.is_some() && is_bound && !follower.is_replacing;
        let is_taking_over = follower.take_over.is_some_and(|last| follower.applied >= last);
        if is_taking_over && is_electable {
            return self.prepare(now, false);
        }
        let is_overwriting = is_planted(HaMistake::KeyOverwritten) && follower.promised_until != Mono::ZERO;
        let Some(since) = follower.absent_since.or(is_overwriting.then_some(now)) else { return };
        let has_handed_over = self.sync_record().is_some_and(|sync| sync.handed_over);
        if is_electable && is_led && !has_handed_over {
            self.recreate(now, since);
        } else if is_electable && !is_bound && !self.is_record_awaited(now) {
            self.prepare(now, !self.is_complete() || is_planted(HaMistake::CompleteCopyDropped));
        } else if let NotInSyncPolicy::PromoteAfter(pause) = self.not_in_sync_policy()
            // A standby that is cut off from etcd cannot determine whether a master leads.
            && (self.seen_at.since(since) >= pause || self.is_last_copy_gone())
            && !is_led
        {
            self.prepare(now, true);
        }
    }

    /// Stands for election with a copy that is ready. If the leader ended before a hand-over was
    /// completed, or the records were deleted, the copy may lack changes by now.
    fn stand(&mut self, now: Mono, lossy: bool) {
        if self.is_record_awaited(now) {
            return;
        }
        if !lossy && !self.is_complete() {
            self.prepare(now, true);
        } else if lossy || self.is_first_choice(now) {
            self.elect(now, lossy);
        }
    }

    /// Whether a leader may be alive that will create its records again after etcd has lost them.
    fn is_record_awaited(&self, now: Mono) -> bool {
        let RoleState::Standby(follower) = &self.role else { return false };
        let is_absence_short = follower.absent_since.is_some_and(|since| now.since(since) < NO_RECORD_PAUSE);
        self.sync_record().is_none() && is_absence_short && !is_planted(HaMistake::KeyOverwritten)
    }

    /// Follows another master that was elected. A copy that may lack changes cannot be used for
    /// that.
    fn give_up(&mut self) {
        let RoleState::Standby(follower) = &self.role else { return };
        match follower.step {
            CandidateStep::Prepared { lossy: true, .. } | CandidateStep::Electing { lossy: true, .. } => {
                self.discard(DiscardReason::Outdated);
            }
            _ => self.resume(),
        }
    }

    /// Continues to follow with the copy that was to be made ready, if it lacks no changes.
    /// Connects to the leader again: until then, the leader does not wait for a standby whose
    /// hand-over it has cancelled.
    pub(super) fn resume(&mut self) {
        let RoleState::Standby(follower) = &mut self.role else { return };
        if !follower.step.is_lossy() {
            follower.step = CandidateStep::None;
            self.actions.push(HaAction::Resume);
        }
    }

    /// Whether a copy that is ready may be elected.
    fn is_permitted(&self, lossy: bool, expected_sync: u64) -> bool {
        let sync_revision = self.seen.as_ref().map_or(0, Observation::sync_revision);
        self.is_electable() || lossy && sync_revision == expected_sync
    }

    fn prepare(&mut self, now: Mono, lossy: bool) {
        // A copy that may lack changes is elected only if no master has led since.
        let expected_sync = self.seen.as_ref().map_or(0, Observation::sync_revision);
        if let RoleState::Standby(follower) = &mut self.role {
            follower.step = CandidateStep::Preparing { lossy, expected_sync };
            follower.offers = None;
            follower.progress_at = now;
            self.actions.push(HaAction::Prepare { lossy });
        }
    }

    /// Handles the result of making the copy ready: it can serve, or cannot be used.
    pub(super) fn note_preparation(&mut self, ready: bool, id: MemberId, history: HistoryId) {
        let RoleState::Standby(follower) = &mut self.role else { return };
        let CandidateStep::Preparing { lossy, expected_sync } = follower.step else { return };
        if !ready {
            return self.discard(DiscardReason::Damaged);
        }
        self.me.id = id;
        follower.next_history = history;
        follower.step = CandidateStep::Prepared { lossy, expected_sync };
        if let (Some(_), Some(leader)) = (follower.take_over, follower.stream) {
            self.actions.push(HaAction::Send(leader, HaMessage::Ready));
        }
    }

    fn elect(&mut self, now: Mono, lossy: bool) {
        let Some(lease) = self.lease.id else { return };
        let expected_sync = self.seen.as_ref().map_or(0, Observation::sync_revision);
        let RoleState::Standby(follower) = &self.role else { return };
        let mut sync = self.own_record(follower.applied, follower.next_history);
        let RoleState::Standby(follower) = &mut self.role else { return };
        follower.step = CandidateStep::Electing { lossy, sent: now, expected_sync };
        if let Some((before, _)) = self.seen.as_ref().and_then(|seen| seen.sync.as_ref()).filter(|_| !lossy) {
            // The other standbys still have everything. Changes wait for them until they follow, or
            // are removed from the record.
            sync.in_sync = before.in_sync.iter().copied().filter(|id| *id != self.me.id).collect();
            sync.alone_since = sync.alone_since.filter(|_| sync.in_sync.is_empty());
        }
        follower.candidate_list.clone_from(&sync.in_sync);
        let address = self.me.rpc.to_string();
        self.actions.push(HaAction::Elect(ElectionTxn { address, lease, expected_sync, sync }));
    }

    /// Creates the expired key of a leader that is alive but cut off from etcd.
    fn recreate(&mut self, now: Mono, absent_since: Mono) {
        let Some(lease) = self.lease.id else { return };
        let (RoleState::Standby(follower), Some(seen)) = (&mut self.role, &self.seen) else { return };
        let Some((sync, revision)) = &seen.sync else { return };
        let is_waiting = follower.recreating.is_some_and(|at| now.since(at) < REQUEST_TIMEOUT);
        if is_waiting || now.since(absent_since) < OWN_RECREATION || follower.stream != Some(sync.leader) {
            return;
        }
        follower.recreating = Some(now);
        let address = sync.rpc.clone();
        let sync = SyncRecord { handed_over: false, ..sync.clone() };
        self.actions.push(HaAction::Elect(ElectionTxn { address, lease, expected_sync: *revision, sync }));
    }

    /// Deletes the key that this standby has kept for a leader that has ended. If the leader has
    /// bound the key to its own lease meanwhile, the key stays.
    fn delete_kept_key(&mut self, now: Mono) {
        let (RoleState::Standby(follower), Some(seen)) = (&mut self.role, &self.seen) else { return };
        if let Some(key) = seen.leader.as_ref().filter(|_| now >= follower.promised_until)
            && Some(key.lease) == self.lease.id
            && key.address != self.me.rpc.to_string()
            && follower.recreating.is_none_or(|at| now.since(at) >= REQUEST_TIMEOUT)
        {
            follower.recreating = Some(now);
            self.actions.push(HaAction::RevokeLease(key.lease, RevokeReason::KeptKey));
            self.lease = OwnLease::default();
            self.keep_lease(now);
        }
    }

    /// Handles the result of the transaction with which this standby stands for election, or keeps
    /// the key for its leader.
    pub(super) fn note_candidacy(&mut self, now: Mono, txn: &ElectionTxn, outcome: &TxnOutcome) {
        let RoleState::Standby(follower) = &mut self.role else { return };
        if txn.sync.leader == self.me.id && matches!(follower.step, CandidateStep::Electing { .. }) {
            match outcome {
                TxnOutcome::Done(view) => {
                    follower.candidate_list.clone_from(&txn.sync.in_sync);
                    self.become_leader(now, *view, txn.lease);
                }
                // An earlier attempt whose result is unknown may have succeeded, so the contents of
                // etcd decide.
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

    /// Compares the records that were read with an election whose result may be unknown.
    pub(super) fn compare_election(&mut self, now: Mono) {
        let (RoleState::Standby(follower), Some(seen)) = (&mut self.role, &self.seen) else { return };
        let Some(key) = &seen.leader else { return };
        if let Some((sync, _)) = &seen.sync
            && sync.leader == self.me.id
            && key.address == self.me.rpc.to_string()
        {
            follower.candidate_list.clone_from(&sync.in_sync);
            let view = key.view;
            let lease = key.lease;
            self.become_leader(now, view, lease);
        } else if let CandidateStep::Electing { lossy, expected_sync, .. } = follower.step {
            follower.step = CandidateStep::Prepared { lossy, expected_sync };
        }
    }

    fn become_leader(&mut self, now: Mono, view: u64, lease: i64) {
        let RoleState::Standby(follower) = &mut self.role else { return };
        let listed = std::mem::take(&mut follower.candidate_list);
        let mut leader = Leader::new(now, view, lease, follower.applied, follower.next_history, self.config.ack);
        leader.require_all(now, listed);
        self.role = RoleState::Leader(leader);
        self.actions.push(HaAction::Follow(None));
        self.actions.push(HaAction::Serve { view });
    }

    pub(super) fn discard(&mut self, why: DiscardReason) {
        self.role = RoleState::Resetting;
        self.actions.push(HaAction::Discard(why));
    }
}
