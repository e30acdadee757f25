//! A leader's records in etcd: it keeps the sync record up to date, and creates its key again after
//! it has expired.

use crate::ha::action::{HaAction, HandOverProblem};
use crate::ha::hand_over::{HAND_OVER_TIMEOUT, RELEASED_TIMEOUT};
use crate::ha::leadership::{HandOverStep, Leader, SyncWrite};
use crate::ha::member::{HistoryId, MemberId};
use crate::ha::planted::{HaMistake, is_planted};
use crate::ha::record::{ElectionTxn, SyncRecord, SyncTxn, TxnOutcome};
use crate::ha::state::{HaCore, REQUEST_TIMEOUT, RETRY_PAUSE, RoleState};
use mcctl_base::Mono;

impl HaCore {
    /// The record of this master as a leader without standbys, whose last change is number `last`.
    pub(super) fn own_record(&self, last: u64, history: HistoryId) -> SyncRecord {
        let when_not_in_sync = Some(self.config.not_in_sync);
        let history = Some(history);
        SyncRecord { when_not_in_sync, ack: Some(self.config.ack), history, ..SyncRecord::alone(&self.me, last) }
    }

    /// The record of this leader with these standbys in sync and this barrier.
    pub(super) fn record(&self, leader: &Leader, in_sync: Vec<MemberId>, barrier: Option<u64>) -> SyncRecord {
        let alone_since = in_sync.is_empty().then(|| leader.alone_since.unwrap_or(leader.appended));
        SyncRecord { in_sync, alone_since, not_reused_since: barrier, ..self.own_record(0, leader.history) }
    }

    /// The record as it is, with the standbys that it lists.
    pub(super) fn same_record(&self, leader: &Leader) -> SyncRecord {
        self.record(leader, leader.listed.clone(), leader.barrier.recorded())
    }

    /// Something waits for the removal of the barrier.
    pub(super) fn remove_barrier(&mut self) {
        if let RoleState::Leader(leader) = &mut self.role {
            leader.barrier.await_removal();
        }
    }

    /// Writes the sync record, if it must change and can be written now.
    pub(super) fn write_sync_record(&mut self, now: Mono) {
        let RoleState::Leader(leader) = &self.role else { return };
        let is_writing = leader.writing.is_some_and(|write| now.since(write.sent) < REQUEST_TIMEOUT);
        // A standby has created the key again. If it is removed from the record, its promises no
        // longer count.
        let lease = self.live_lease(now).filter(|id| leader.key_lease != 0 && leader.key_lease != *id);
        let is_needed = leader.must_write || !leader.lists_wanted() || lease.is_some() || leader.barrier.must_remove();
        if is_writing || !is_needed || now < leader.retry_at || leader.is_key_gone || leader.has_released() {
            return;
        }
        let in_sync: Vec<MemberId> = leader.replicas.wanted().collect();
        let barrier = leader.next_barrier(&in_sync);
        let txn = SyncTxn {
            view: leader.view,
            address: self.me.rpc.to_string(),
            expected_sync: leader.sync_revision,
            sync: self.record(leader, in_sync, barrier),
            lease,
        };
        self.actions.push(HaAction::WriteSync(txn));
        if let RoleState::Leader(leader) = &mut self.role {
            leader.writing = Some(SyncWrite { sent: now, expected_sync: leader.sync_revision });
            leader.barrier.begin_write(barrier);
        }
    }

    /// Returns this master's lease, if it has certainly not expired.
    fn live_lease(&self, now: Mono) -> Option<i64> {
        self.lease.id.filter(|_| now < self.lease.confirmed + self.config.lease_ttl - self.config.margin)
    }

    pub(super) fn note_sync_write(&mut self, now: Mono, txn: &SyncTxn, outcome: &TxnOutcome) {
        let RoleState::Leader(leader) = &mut self.role else { return };
        if leader.writing.is_some_and(|write| write.expected_sync == txn.expected_sync) {
            leader.writing = None;
        }
        if txn.expected_sync != leader.sync_revision {
            // The record was changed before it, or has been read since.
            return;
        }
        if !matches!(outcome, TxnOutcome::Done(_)) {
            leader.retry_at = now + RETRY_PAUSE;
        }
        match outcome {
            TxnOutcome::Done(revision) => {
                leader.sync_revision = *revision;
                leader.written_at = now;
                leader.listed.clone_from(&txn.sync.in_sync);
                leader.alone_since = txn.sync.alone_since;
                leader.barrier.set_recorded(txn.sync.not_reused_since);
                leader.must_write = false;
                leader.key_lease = txn.lease.unwrap_or(leader.key_lease);
                leader.replicas.list(&leader.listed);
            }
            TxnOutcome::Refused => self.request_observation(now),
            TxnOutcome::Unknown => {
                leader.must_write = true;
                self.request_observation(now);
            }
        }
    }

    /// Handles a key that has expired, or whose lease was revoked. No other master was elected,
    /// because the sync record is unchanged.
    pub(super) fn create_key_again(&mut self, now: Mono) {
        let RoleState::Leader(leader) = &self.role else { return };
        let Some(lease) = self.lease.id else { return };
        let is_electing = leader.electing.is_some_and(|at| now.since(at) < REQUEST_TIMEOUT);
        let is_left = leader.hand_over.is_some_and(|hand_over| match hand_over.step {
            HandOverStep::Holding | HandOverStep::Preparing | HandOverStep::Ready => false,
            HandOverStep::Released => {
                let is_connected = leader.replicas.get(hand_over.to).is_some_and(|replica| replica.is_connected);
                let limit = if is_connected { RELEASED_TIMEOUT } else { HAND_OVER_TIMEOUT };
                hand_over.is_final || now.since(hand_over.since) < limit
            }
            HandOverStep::Releasing | HandOverStep::Done => true,
        });
        let is_left = is_left || is_planted(HaMistake::KeyNotCreatedAgain);
        if !leader.is_key_gone || is_electing || is_left || now < leader.retry_at {
            return;
        }
        let txn = ElectionTxn {
            address: self.me.rpc.to_string(),
            lease,
            expected_sync: leader.sync_revision,
            sync: self.same_record(leader),
        };
        self.actions.push(HaAction::Elect(txn));
        if let RoleState::Leader(leader) = &mut self.role {
            leader.electing = Some(now);
        }
    }

    /// Handles the result of the transaction with which this leader creates its key again.
    pub(super) fn note_recreation(&mut self, now: Mono, txn: &ElectionTxn, outcome: &TxnOutcome) {
        let RoleState::Leader(leader) = &mut self.role else { return };
        leader.electing = None;
        if !matches!(outcome, TxnOutcome::Done(_)) {
            leader.retry_at = now + RETRY_PAUSE;
        }
        if let TxnOutcome::Done(revision) = *outcome
            && revision > leader.sync_revision
        {
            leader.view = revision;
            leader.sync_revision = revision;
            leader.is_key_gone = false;
            leader.key_lease = txn.lease;
            leader.written_at = now;
            if leader.hand_over.is_some_and(|hand_over| !hand_over.is_final) {
                self.cancel_hand_over(now, HandOverProblem::KeyCreatedAgain);
            }
        }
        // Confirms which lease the key has.
        self.request_observation(now);
    }

    /// Handles the records that were read with a request sent at `sent`.
    pub(super) fn compare_own_records(&mut self, now: Mono, sent: Mono) {
        let me = self.me.id;
        let address = self.me.rpc.to_string();
        let (RoleState::Leader(leader), Some(seen)) = (&mut self.role, &self.seen) else { return };
        if seen.revision < leader.sync_revision && sent <= leader.written_at {
            return;
        }
        let is_other = seen.leader.as_ref().is_some_and(|key| key.address != address && !key.is_foreign());
        let successor = seen.sync.as_ref().map(|(sync, _)| sync.leader).filter(|id| *id != me);
        if is_other || successor.is_some() {
            return self.give_way(successor);
        }
        match &seen.sync {
            Some((sync, revision)) if *revision != leader.sync_revision => {
                // A standby wrote it for this leader, or a write whose result was unknown has
                // succeeded.
                leader.sync_revision = *revision;
                leader.listed.clone_from(&sync.in_sync);
                leader.barrier.adopt(sync.not_reused_since);
                leader.must_write = true;
                sync.in_sync.iter().for_each(|id| leader.replicas.require(now, *id));
            }
            Some(_) => {}
            None => {
                leader.sync_revision = 0;
                leader.must_write = true;
            }
        }
        let before = leader.view;
        match &seen.leader {
            Some(key) => {
                leader.view = key.view;
                leader.key_lease = key.lease;
                leader.is_key_gone = false;
                leader.key_seen = leader.key_seen.max(sent);
            }
            None => {
                leader.key_lease = 0;
                leader.is_key_gone = true;
            }
        }
        self.compare_hand_over(now, before);
    }
}
