//! A leader: until when it may answer, which standbys are in sync, and how it hands over.

use std::time::Duration;

use crate::engine::base::Mono;
use crate::engine::ha::action::{HaAction, HaMessage, StopReason};
use crate::engine::ha::config::{AckMode, NotInSyncPolicy};
use crate::engine::ha::hand_over::HAND_OVER_TIMEOUT;
use crate::engine::ha::leadership::{HandOverStep, Leader};
use crate::engine::ha::member::MemberId;
use crate::engine::ha::planted::{HaMistake, is_planted};
use crate::engine::ha::record::{ElectionTxn, SyncRecord, SyncTxn, TxnOutcome};
use crate::engine::ha::replica_set::Replica;
use crate::engine::ha::state::{HaCore, REQUEST_TIMEOUT, RETRY_PAUSE, RoleState};

impl HaCore {
    /// The fence: this master may send responses before this time.
    pub fn fence(&self) -> Mono {
        let RoleState::Leader(leader) = &self.role else { return Mono::ZERO };
        if leader.has_released() {
            return Mono::ZERO;
        }
        let holds_key = self.lease.id == Some(leader.key_lease) && !leader.is_key_gone;
        let lease = if holds_key { self.lease.confirmed + self.config.lease_ttl } else { Mono::ZERO };
        let promises = leader.replicas.promised_until().unwrap_or(Mono::ZERO).min(self.promises_count_until());
        lease.max(promises) - self.config.margin
    }

    /// Promises bind only standbys in sync. If others may be promoted without a leader's key for some time, promises count only for that
    /// time after the key is known to have existed: after the last renewal of the lease, or after this master or a standby has seen it.
    fn promises_count_until(&self) -> Mono {
        match self.config.not_in_sync {
            NotInSyncPolicy::Wait => Mono(u64::MAX),
            // Clocks may differ by 5 % in their rate.
            NotInSyncPolicy::PromoteAfter(pause) => {
                let RoleState::Leader(leader) = &self.role else { return Mono::ZERO };
                let renewed = if self.lease.id == Some(leader.key_lease) { self.lease.confirmed } else { Mono::ZERO };
                renewed.max(leader.key_seen) + (pause - pause / 20)
            }
        }
    }

    /// The last change whose response may be sent. 0 unless this master leads.
    pub fn acked(&self) -> u64 {
        if let RoleState::Leader(leader) = &self.role { leader.acked() } else { 0 }
    }

    /// The last change whose freed memory may be used again: all required standbys have it.
    pub fn replicated(&self) -> u64 {
        if let RoleState::Leader(leader) = &self.role { leader.replicas.acked(leader.appended) } else { 0 }
    }

    /// The state's last change is number `last`.
    pub fn appended(&mut self, last: u64) {
        if let RoleState::Leader(leader) = &mut self.role {
            leader.appended = leader.appended.max(last);
        }
    }

    /// All threads that send responses wait for the standbys that this core requires. Changes up to `last` may have been answered before.
    /// Call it after each other method, when [`acked`](HaCore::acked) has been made visible to those threads.
    pub fn required_since(&mut self, last: u64) {
        if let RoleState::Leader(leader) = &mut self.role {
            leader.replicas.require_from(last);
        }
    }

    /// Whether responses to changes wait for a standby.
    pub fn waits_for_standby(&self) -> bool {
        let RoleState::Leader(leader) = &self.role else { return false };
        leader.ack == AckMode::Sync && leader.replicas.iter().any(|(_, replica)| replica.is_required())
    }

    /// Whether this master has stopped processing requests in order to hand over.
    pub fn has_released(&self) -> bool {
        matches!(&self.role, RoleState::Leader(leader) if leader.has_released())
    }

    /// A standby connected. It has all changes up to `applied`, or 0 if it gets a snapshot first.
    pub fn standby_connected(&mut self, now: Mono, id: MemberId, applied: u64) {
        let RoleState::Leader(leader) = &mut self.role else { return };
        leader.replicas.connect(now, id, applied.min(leader.appended));
        leader.next_ping = now;
        self.tick_leader(now);
    }

    /// The stream from a standby ended.
    pub fn standby_disconnected(&mut self, now: Mono, id: MemberId) {
        let RoleState::Leader(leader) = &mut self.role else { return };
        leader.replicas.disconnect(id);
        if leader.hand_over.is_some_and(|hand_over| hand_over.to == id) {
            self.tick_leader(now);
        }
    }

    pub(super) fn tick_leader(&mut self, now: Mono) {
        let config = self.config;
        let counts_until = self.promises_count_until();
        let RoleState::Leader(leader) = &mut self.role else { return };
        if now >= leader.next_ping && !leader.has_released() {
            leader.next_ping = now + config.ping_every;
            let promise = if now + config.promise <= counts_until { config.promise } else { Duration::ZERO };
            let ping = HaMessage::Ping { stamp: now.0, promise, last: leader.appended };
            let connected = leader.replicas.iter().filter(|(_, replica)| replica.is_connected);
            self.actions.extend(connected.map(|(id, _)| HaAction::Send(id, ping)));
        }
        leader.replicas.expire(now, config.standby_timeout);
        if leader.writing.is_none() && !leader.must_write {
            leader.replicas.release_unlisted(&leader.listed);
        }
        self.advance_hand_over(now);
        self.write_sync_record(now);
        self.create_key_again(now);
    }

    fn record(&self, leader: &Leader, in_sync: Vec<MemberId>) -> SyncRecord {
        let alone_since = in_sync.is_empty().then(|| leader.alone_since.unwrap_or(leader.appended));
        let when_not_in_sync = Some(self.config.not_in_sync);
        SyncRecord { in_sync, alone_since, when_not_in_sync, ..SyncRecord::alone(&self.me, 0) }
    }

    fn write_sync_record(&mut self, now: Mono) {
        let RoleState::Leader(leader) = &self.role else { return };
        let is_writing = leader.writing.is_some_and(|at| now.since(at) < REQUEST_TIMEOUT);
        let wanted = leader.replicas.wanted();
        // A standby has created the key again. If it leaves the record, its promises do not count any more.
        let lease = self.live_lease(now).filter(|id| leader.key_lease != 0 && leader.key_lease != *id);
        let is_needed = leader.must_write || wanted != leader.listed || lease.is_some();
        if is_writing || !is_needed || now < leader.retry_at || leader.is_key_gone || leader.hand_over.is_some() {
            return;
        }
        let sync = self.record(leader, wanted);
        let (view, expected_sync) = (leader.view, leader.sync_revision);
        let txn = SyncTxn { view, address: self.me.rpc.to_string(), expected_sync, sync, lease };
        self.actions.push(HaAction::WriteSync(txn));
        if let RoleState::Leader(leader) = &mut self.role {
            leader.writing = Some(now);
        }
    }

    /// This master's lease, if it has certainly not expired.
    fn live_lease(&self, now: Mono) -> Option<i64> {
        self.lease.id.filter(|_| now < self.lease.confirmed + self.config.lease_ttl - self.config.margin)
    }

    /// The key expired, or its lease was revoked. No other master was elected, because the sync record is unchanged.
    fn create_key_again(&mut self, now: Mono) {
        let (RoleState::Leader(leader), Some(lease)) = (&self.role, self.lease.id) else { return };
        let is_electing = leader.electing.is_some_and(|at| now.since(at) < REQUEST_TIMEOUT);
        let step = leader.hand_over.map(|hand_over| hand_over.step);
        let is_left = matches!(step, Some(HandOverStep::Releasing | HandOverStep::Done))
            || step == Some(HandOverStep::Released)
                && leader.hand_over.is_some_and(|hand_over| now.since(hand_over.since) < HAND_OVER_TIMEOUT);
        if !leader.is_key_gone || is_electing || is_left || now < leader.retry_at {
            return;
        }
        let sync = self.record(leader, leader.listed.clone());
        let expected_sync = leader.sync_revision;
        self.actions.push(HaAction::Elect(ElectionTxn {
            address: self.me.rpc.to_string(),
            lease,
            expected_sync,
            sync,
        }));
        if let RoleState::Leader(leader) = &mut self.role {
            leader.electing = Some(now);
        }
    }

    pub(super) fn leader_observed(&mut self, now: Mono, sent: Mono) {
        let (me, address) = (self.me.id, self.me.rpc.to_string());
        let (RoleState::Leader(leader), Some(seen)) = (&mut self.role, &self.seen) else { return };
        if seen.revision < leader.sync_revision && sent <= leader.written_at {
            return;
        }
        let is_other = seen.leader.as_ref().is_some_and(|key| key.address != address && !key.is_foreign());
        let successor = seen.sync.as_ref().map(|(sync, _)| sync.leader).filter(|id| *id != me);
        if is_other || successor.is_some() {
            return self.superseded(successor);
        }
        match &seen.sync {
            Some((sync, revision)) if *revision != leader.sync_revision => {
                // A standby wrote it for this leader, or a write whose result was unknown has succeeded.
                leader.sync_revision = *revision;
                leader.listed.clone_from(&sync.in_sync);
                leader.must_write = true;
                sync.in_sync.iter().for_each(|id| leader.replicas.require(now, *id));
            }
            Some(_) => {}
            None => (leader.sync_revision, leader.must_write) = (0, true),
        }
        let before = leader.view;
        match &seen.leader {
            Some(key) => {
                (leader.view, leader.key_lease, leader.is_key_gone) = (key.view, key.lease, false);
                leader.key_seen = leader.key_seen.max(sent);
            }
            None => (leader.key_lease, leader.is_key_gone) = (0, true),
        }
        if let Some(hand_over) = leader.hand_over.filter(|it| it.step == HandOverStep::Released)
            && leader.view > before
        {
            // The successor did not create the key, and this master has.
            leader.hand_over = None;
            return self.cancel_hand_over(now, hand_over.to);
        }
        match &mut leader.hand_over {
            Some(hand_over) if hand_over.step == HandOverStep::Releasing => {
                if leader.is_key_gone {
                    self.released(now);
                } else {
                    let (view, address) = (leader.view, address);
                    self.actions.push(HaAction::DeleteKey { view, address });
                }
            }
            _ => {}
        }
    }

    fn superseded(&mut self, successor: Option<MemberId>) {
        let RoleState::Leader(leader) = &mut self.role else { return };
        match (&mut leader.hand_over, successor) {
            (Some(hand_over), Some(successor)) => {
                if hand_over.step != HandOverStep::Done {
                    hand_over.step = HandOverStep::Done;
                    self.actions.push(HaAction::Forward(successor));
                }
            }
            _ => {
                self.role = RoleState::Resetting;
                self.actions.push(HaAction::StopServing(StopReason::Superseded));
            }
        }
    }

    /// An [`HaAction::WriteSync`] with this transaction ended.
    pub fn sync_written(&mut self, now: Mono, txn: &SyncTxn, outcome: &TxnOutcome) {
        let RoleState::Leader(leader) = &mut self.role else { return };
        if txn.expected_sync != leader.sync_revision {
            return;
        }
        leader.writing = None;
        if !matches!(outcome, TxnOutcome::Done(_)) {
            leader.retry_at = now + RETRY_PAUSE;
        }
        match outcome {
            TxnOutcome::Done(revision) => {
                (leader.sync_revision, leader.written_at) = (*revision, now);
                leader.listed.clone_from(&txn.sync.in_sync);
                leader.alone_since = txn.sync.alone_since;
                leader.must_write = false;
                leader.key_lease = txn.lease.unwrap_or(leader.key_lease);
                leader.replicas.listed(&leader.listed);
            }
            TxnOutcome::Refused => self.request_observation(now),
            TxnOutcome::Unknown => {
                leader.must_write = true;
                self.request_observation(now);
            }
        }
        self.tick(now);
    }

    pub(super) fn leader_reelected(&mut self, now: Mono, txn: &ElectionTxn, outcome: &TxnOutcome) {
        let RoleState::Leader(leader) = &mut self.role else { return };
        leader.electing = None;
        if !matches!(outcome, TxnOutcome::Done(_)) {
            leader.retry_at = now + RETRY_PAUSE;
        }
        if let TxnOutcome::Done(revision) = *outcome
            && revision > leader.sync_revision
        {
            (leader.view, leader.sync_revision, leader.is_key_gone) = (revision, revision, false);
            (leader.key_lease, leader.written_at) = (txn.lease, now);
            if let Some(hand_over) = leader.hand_over.take() {
                self.cancel_hand_over(now, hand_over.to);
            }
        }
        // Confirms which lease the key has.
        self.request_observation(now);
    }

    pub(super) fn leader_received(&mut self, now: Mono, from: MemberId, message: HaMessage) {
        let promise = self.config.promise;
        let RoleState::Leader(leader) = &mut self.role else { return };
        match message {
            HaMessage::Ack { applied, echo, key_seen } => {
                leader.key_seen = leader.key_seen.max(Mono(key_seen.unwrap_or(0)).min(now));
                leader.replicas.ack(now, from, applied.min(leader.appended), leader.appended);
                if let Some(stamp) = echo {
                    let sent = if is_planted(HaMistake::MeasuredFromReceipt) { now } else { Mono(stamp).min(now) };
                    leader.replicas.promise(from, sent + promise);
                }
                if leader.replicas.wanted() != leader.listed {
                    self.write_sync_record(now);
                }
            }
            HaMessage::Recreated { revision }
                if revision > leader.sync_revision && leader.replicas.get(from).is_some_and(Replica::is_in_sync) =>
            {
                (leader.view, leader.sync_revision, leader.written_at) = (revision, revision, now);
                (leader.key_lease, leader.is_key_gone, leader.must_write) = (0, false, true);
            }
            HaMessage::Leave => {
                leader.replicas.leave(from);
                self.write_sync_record(now);
            }
            HaMessage::Ready => {
                let address = self.me.rpc.to_string();
                if let Some(hand_over) = leader.hand_over.as_mut()
                    && (hand_over.to, hand_over.step) == (from, HandOverStep::Preparing)
                {
                    (hand_over.step, hand_over.since) = (HandOverStep::Releasing, now);
                    self.actions.push(HaAction::DeleteKey { view: leader.view, address });
                }
            }
            _ => {}
        }
    }
}
