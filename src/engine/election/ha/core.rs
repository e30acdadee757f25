//! The core handles an event, performs the work that is due, publishes which responses may be sent,
//! and returns its actions.

use std::time::Duration;
use std::vec::Drain;

use crate::ha::action::{HaAction, HaMessage, RevokeReason};
use crate::ha::config::HaConfig;
use crate::ha::event::HaEvent;
use crate::ha::followership::Follower;
use crate::ha::limits::{ResponseGate, ResponseLimits};
use crate::ha::member::{MemberId, MemberInfo};
use crate::ha::planted::{HaMistake, is_planted};
use crate::ha::record::{ElectionTxn, Observation, TxnOutcome};
use crate::ha::state::{HaCore, OwnLease, REQUEST_TIMEOUT, RoleState};
use mcctl_base::Mono;

/// Maximum time between two reads of etcd. A watch reports changes earlier.
const OBSERVE_EVERY: Duration = Duration::from_secs(1);

impl HaCore {
    /// Creates the core of a master that has just started, with an empty copy.
    pub fn new(config: HaConfig, me: MemberInfo) -> HaCore {
        HaCore {
            config,
            me,
            role: RoleState::Standby(Follower::default()),
            seen: None,
            seen_at: Mono::ZERO,
            lease: OwnLease::default(),
            actions: Vec::new(),
            observe_at: Mono::ZERO,
            settled_at: None,
        }
    }

    /// Creates the core of a master that has just started with its earlier copy, whose last change
    /// is number `last`. An earlier process may have promised not to stand for election.
    /// `is_original`: the copy was written by a master without a cluster, so no other copy has
    /// later changes.
    pub fn with_copy(config: HaConfig, me: MemberInfo, now: Mono, last: u64, is_original: bool) -> HaCore {
        let promised_until = now + config.promise;
        let follower = Follower { applied: last, is_original, promised_until, ..Follower::default() };
        HaCore { role: RoleState::Standby(follower), ..HaCore::new(config, me) }
    }

    /// Handles an event, and publishes to `gate` which responses may be sent. Returns the actions
    /// to perform, in order.
    #[must_use = "the actions must be performed"]
    pub fn handle(&mut self, now: Mono, event: HaEvent, gate: &impl ResponseGate) -> Drain<'_, HaAction> {
        if let RoleState::Leader(leader) = &mut self.role {
            leader.appended = leader.appended.max(gate.appended());
            // A leader with standbys sends pings, so this process did not run for longer than
            // between two of them.
            let gap = now.since(std::mem::replace(&mut leader.ran_at, now));
            if gap >= 2 * self.config.ping_every && !leader.has_released() {
                leader.replicas.postpone(gap);
                if let Some(hand_over) = &mut leader.hand_over {
                    hand_over.since = hand_over.since + gap;
                }
            }
        }
        self.apply(now, event);
        if let RoleState::Leader(leader) = &mut self.role {
            // From now on, responses to these changes may be sent.
            let replicated = leader.replicated();
            leader.barrier.advance(replicated);
        }
        gate.publish(self.limits());
        self.require_joining(now, gate);
        self.actions.drain(..)
    }

    fn apply(&mut self, now: Mono, event: HaEvent) {
        match event {
            // These come with each change. Only a hand-over whose successor is ready can become due
            // with them.
            HaEvent::Received { from, message: HaMessage::Ack(ack) } => self.note_ack(now, from, ack),
            HaEvent::ChangesReceived { last } => self.acknowledge(now, last),
            HaEvent::Applied { last } => self.note_applied(now, last),
            event => {
                self.apply_rare(now, event);
                self.settle(now);
            }
        }
    }

    fn apply_rare(&mut self, now: Mono, event: HaEvent) {
        match event {
            // `settle` performs the work that is due after a timeout. `apply` handles the other
            // two.
            HaEvent::Timeout | HaEvent::ChangesReceived { .. } | HaEvent::Applied { .. } => {}
            HaEvent::ListensOn { port } => self.me.replication.port = port,
            HaEvent::LeaseGranted { sent, lease } => self.note_lease(now, sent, lease),
            HaEvent::LeaseRenewed { sent, lease, renewed } => self.note_renewal(now, sent, lease, renewed),
            HaEvent::Observed { sent, seen } => self.note_records(now, sent, seen),
            HaEvent::Elected { txn, outcome } => self.note_election(now, &txn, &outcome),
            HaEvent::Offered { offers } => self.note_offers(now, offers.as_deref()),
            HaEvent::SyncWritten { txn, outcome } => self.note_sync_write(now, &txn, &outcome),
            HaEvent::KeyDeleted { outcome } => self.note_key_deletion(now, &outcome),
            HaEvent::Reset { id } => self.reset(now, id),
            HaEvent::Received { from, message } => match self.role {
                RoleState::Standby(_) => self.take_leaders_message(now, from, message),
                RoleState::Leader(_) => self.take_standbys_message(now, from, message),
                RoleState::Resetting => {}
            },
            HaEvent::StreamOpened { leader, is_replacing } => self.open_stream(leader, is_replacing),
            HaEvent::Replaced { id } => self.replace_copy(id),
            HaEvent::StreamClosed { process_gone } => self.close_stream(now, process_gone),
            HaEvent::CopyDamaged => self.discard_damaged(now),
            HaEvent::Preparing => self.note_progress(now),
            HaEvent::Prepared { ready, id, history } => self.note_preparation(ready, id, history),
            HaEvent::Leave => self.leave(),
            HaEvent::StandbyConnected { id, applied } => self.connect_standby(now, id, applied),
            HaEvent::StandbyDisconnected { id } => self.disconnect_standby(id),
            HaEvent::StepDown { is_ending } => self.step_down(now, is_ending),
            HaEvent::BarrierRemovalNeeded => self.remove_barrier(),
            HaEvent::ChangesHeld { last } => self.ask_to_take_over(now, last),
        }
    }

    /// Performs all work that is due at this time.
    fn settle(&mut self, now: Mono) {
        self.settled_at = Some(now);
        self.keep_lease(now);
        if now >= self.observe_at {
            self.request_observation(now);
        }
        match self.role {
            RoleState::Standby(_) => self.settle_follower(now),
            RoleState::Leader(_) => self.settle_leader(now),
            RoleState::Resetting => {}
        }
    }

    fn limits(&self) -> ResponseLimits {
        let RoleState::Leader(leader) = &self.role else {
            // A former leader's term ends a little later. Until then it must not send a response to
            // a change, in whichever order a thread reads the two limits.
            return ResponseLimits { fence: Some(Mono::ZERO), acked: Some(0), replicated: Some(0), barrier: None };
        };
        let fence = (!leader.has_released()).then(|| self.fence());
        let replicated = leader.has_required().then(|| leader.replicas.acked(leader.appended));
        let acked = replicated.filter(|_| leader.waits_for_standby());
        ResponseLimits { fence, acked, replicated, barrier: leader.barrier.limit() }
    }

    /// Called after the limits that make responses wait for the joining standbys were published. A
    /// joining standby is in sync once it has all changes that may have been answered before.
    fn require_joining(&mut self, now: Mono, gate: &impl ResponseGate) {
        let RoleState::Leader(leader) = &mut self.role else { return };
        if leader.replicas.has_new_joining() {
            let appended = gate.appended_before_publish();
            leader.barrier.advance(appended);
            leader.replicas.require_from(appended);
            self.write_sync_record(now);
        }
    }

    pub(super) fn request_observation(&mut self, now: Mono) {
        self.observe_at = now + OBSERVE_EVERY;
        self.actions.push(HaAction::Observe);
    }

    pub(super) fn keep_lease(&mut self, now: Mono) {
        let is_waiting = self.lease.requested.is_some_and(|at| now.since(at) < REQUEST_TIMEOUT);
        if is_waiting || now < self.lease.next {
            return;
        }
        self.lease.requested = Some(now);
        self.lease.next = now + self.config.renew_every;
        self.actions.push(self.lease.id.map_or(HaAction::GrantLease, HaAction::RenewLease));
    }

    fn note_lease(&mut self, now: Mono, sent: Mono, lease: Option<i64>) {
        self.lease.requested = None;
        let Some(id) = lease else { return };
        self.lease.id = Some(id);
        self.lease.confirmed = if is_planted(HaMistake::MeasuredFromReceipt) { now } else { sent };
    }

    fn note_renewal(&mut self, now: Mono, sent: Mono, id: i64, renewed: Option<bool>) {
        if self.lease.id != Some(id) {
            return;
        }
        self.lease.requested = None;
        match renewed {
            Some(true) => {
                let at = if is_planted(HaMistake::MeasuredFromReceipt) { now } else { sent };
                self.lease.confirmed = self.lease.confirmed.max(at);
            }
            Some(false) => {
                // The key was deleted with the lease.
                self.lease = OwnLease::default();
                self.request_observation(now);
            }
            None => {}
        }
    }

    fn note_records(&mut self, now: Mono, sent: Mono, seen: Observation) {
        // A read that overlapped the last one may be older. One that began after it is newer, even
        // with a lower revision: etcd has lost its data, or was restored from a backup.
        if self.seen.as_ref().is_some_and(|before| before.revision > seen.revision) && sent <= self.seen_at {
            return;
        }
        self.seen = Some(seen);
        self.seen_at = now;
        match self.role {
            RoleState::Standby(_) => self.compare_followed_records(now, sent),
            RoleState::Leader(_) => self.compare_own_records(now, sent),
            RoleState::Resetting => {}
        }
    }

    fn note_election(&mut self, now: Mono, txn: &ElectionTxn, outcome: &TxnOutcome) {
        match self.role {
            RoleState::Standby(_) => self.note_candidacy(now, txn, outcome),
            RoleState::Leader(_) => self.note_recreation(now, txn, outcome),
            RoleState::Resetting => {}
        }
    }

    fn reset(&mut self, now: Mono, id: MemberId) {
        self.me.id = id;
        self.role = RoleState::Standby(Follower::default());
        // The key may still belong to the lease, with the former ID in the sync record.
        if let Some(lease) = std::mem::take(&mut self.lease).id {
            self.actions.push(HaAction::RevokeLease(lease, RevokeReason::Own));
        }
        if self.seen.is_some() {
            self.compare_followed_records(now, Mono::ZERO);
        }
    }
}
