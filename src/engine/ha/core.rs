//! The events that leaders and standbys have in common.

use std::time::Duration;

use crate::engine::base::{HostPort, Mono};
use crate::engine::ha::action::{HaAction, HaMessage};
use crate::engine::ha::config::{HaConfig, NotInSyncPolicy};
use crate::engine::ha::followership::Follower;
use crate::engine::ha::member::{MemberId, MemberInfo};
use crate::engine::ha::planted::{HaMistake, is_planted};
use crate::engine::ha::record::{ElectionTxn, Observation, TxnOutcome};
use crate::engine::ha::replica_set::Replica;
use crate::engine::ha::state::{HaCore, HaRole, HaStatus, OwnLease, REQUEST_TIMEOUT, RoleState};

/// A master that is in sync is elected in less time than this.
const WITHOUT_LEADER: Duration = Duration::from_secs(3);
/// Maximum time between two reads of etcd. A watch reports changes earlier.
const OBSERVE_EVERY: Duration = Duration::from_secs(1);

impl HaCore {
    /// A master that has just started, with an empty copy.
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
        }
    }

    /// This master has just started with the copy that it had before, whose last change is number `last`. An earlier process may have
    /// promised not to stand for election.
    pub fn continues(&mut self, now: Mono, last: u64) {
        let promised_until = now + self.config.promise;
        if let RoleState::Standby(follower) = &mut self.role {
            (follower.applied, follower.promised_until) = (last, promised_until);
        }
    }

    /// The actions since the last call, in order.
    pub fn take_actions(&mut self) -> Vec<HaAction> {
        std::mem::take(&mut self.actions)
    }

    /// This master's ID and addresses.
    pub fn me(&self) -> &MemberInfo {
        &self.me
    }

    /// The port for standbys is open.
    pub fn listens_on(&mut self, port: u16) {
        self.me.replication.port = port;
    }

    /// The address in the leader's key, as last read.
    pub fn observed_leader(&self) -> Option<String> {
        let key = self.seen.as_ref()?.leader.as_ref()?;
        Some(key.address.clone())
    }

    /// The address of another master that leads, as last read.
    pub fn leader_address(&self) -> Option<HostPort> {
        let address = self.observed_leader()?;
        address.parse().ok().filter(|address| *address != self.me.rpc)
    }

    /// The last change before the leader began to answer without a standby, as last read.
    pub fn alone_since(&self) -> Option<u64> {
        self.seen.as_ref()?.sync.as_ref()?.0.alone_since
    }

    /// The leader's standbys that are connected or required.
    pub fn standbys(&self) -> impl Iterator<Item = (MemberId, &Replica)> {
        let RoleState::Leader(leader) = &self.role else { return None.into_iter().flatten() };
        Some(leader.replicas.iter()).into_iter().flatten()
    }

    /// Why this standby cannot be promoted without loss; `None` if it can.
    pub fn not_promotable(&self) -> Option<String> {
        let Some(seen) = &self.seen else { return Some("the coordination service was not reached yet".to_owned()) };
        if let Some(key) = seen.leader.as_ref().filter(|key| key.is_foreign()) {
            return Some(format!(
                "the leader's key in etcd contains '{}', which is not a master's address",
                key.address
            ));
        }
        let (sync, _) = seen.sync.as_ref()?;
        if sync.includes(self.me.id) {
            return None;
        }
        let why = match sync.alone_since {
            Some(last) => format!("not in sync: the leader has answered without a standby since change {last}"),
            None => "not in sync: the leader has not added this copy to the sync record".to_owned(),
        };
        let then = match self.not_in_sync_policy() {
            NotInSyncPolicy::Wait => "without a leader, it waits for a master that is in sync".to_owned(),
            NotInSyncPolicy::PromoteAfter(pause) => {
                format!("without a leader, it is promoted after {} s and may lose changes", pause.as_secs())
            }
        };
        Some(format!("{why}; {then} (--when-not-in-sync)"))
    }

    /// Why this standby is not promoted, although no master has led for some seconds.
    pub fn not_promoted(&self, now: Mono) -> Option<String> {
        let RoleState::Standby(follower) = &self.role else { return None };
        follower.absent_since.filter(|since| now.since(*since) >= WITHOUT_LEADER)?;
        self.not_promotable()
    }

    /// What this master does at the moment.
    pub fn role(&self) -> HaRole {
        match &self.role {
            RoleState::Standby(follower) if follower.is_candidate() => HaRole::Candidate,
            RoleState::Standby(_) => HaRole::Standby,
            RoleState::Leader(leader) if leader.is_handing_over() => HaRole::HandingOver,
            RoleState::Leader(_) => HaRole::Leader,
            RoleState::Resetting => HaRole::Resetting,
        }
    }

    /// What is shown of this master.
    pub fn status(&self) -> HaStatus {
        let sync = self.seen.as_ref().and_then(|seen| seen.sync.as_ref());
        let in_sync = sync.is_some_and(|(record, _)| record.includes(self.me.id));
        let key = self.seen.as_ref().and_then(|seen| seen.leader.as_ref());
        let view = key.map_or(0, |key| key.view);
        let RoleState::Leader(leader) = &self.role else {
            return HaStatus { role: self.role(), view, in_sync, acked: 0, required: Vec::new() };
        };
        let required = leader.replicas.iter().filter(|(_, replica)| replica.is_required()).map(|(id, _)| id).collect();
        HaStatus { role: self.role(), view: leader.view, in_sync, acked: leader.acked(), required }
    }

    /// Does what is due. Call it every 50 ms or more often.
    pub fn tick(&mut self, now: Mono) {
        self.tick_lease(now);
        if now >= self.observe_at {
            self.request_observation(now);
        }
        match self.role {
            RoleState::Standby(_) => self.tick_follower(now),
            RoleState::Leader(_) => self.tick_leader(now),
            RoleState::Resetting => {}
        }
    }

    pub(super) fn request_observation(&mut self, now: Mono) {
        self.observe_at = now + OBSERVE_EVERY;
        self.actions.push(HaAction::Observe);
    }

    pub(super) fn tick_lease(&mut self, now: Mono) {
        let is_waiting = self.lease.requested.is_some_and(|at| now.since(at) < REQUEST_TIMEOUT);
        if is_waiting || now < self.lease.next {
            return;
        }
        self.lease.requested = Some(now);
        self.lease.next = now + self.config.renew_every;
        self.actions.push(self.lease.id.map_or(HaAction::GrantLease, HaAction::RenewLease));
    }

    /// etcd granted a lease; the request was sent at `sent`. `None`: it did not.
    pub fn lease_granted(&mut self, now: Mono, sent: Mono, lease: Option<i64>) {
        self.lease.requested = None;
        let Some(id) = lease else { return };
        self.lease.id = Some(id);
        self.lease.confirmed = if is_planted(HaMistake::MeasuredFromReceipt) { now } else { sent };
        self.tick(now);
    }

    /// etcd renewed the lease (`true`), or does not have it any more (`false`). The request was sent at `sent`. `None`: no response came.
    pub fn lease_renewed(&mut self, now: Mono, sent: Mono, id: i64, renewed: Option<bool>) {
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
                // The key went with the lease.
                self.lease = OwnLease::default();
                self.request_observation(now);
            }
            None => {}
        }
        self.tick(now);
    }

    /// Both keys were read. The request was sent at `sent`.
    pub fn observe(&mut self, now: Mono, sent: Mono, seen: Observation) {
        // A later read with a lower revision: etcd has lost its data, or has got it from a backup.
        if self.seen.as_ref().is_some_and(|before| before.revision > seen.revision) && sent <= self.seen_at {
            return;
        }
        (self.seen, self.seen_at) = (Some(seen), now);
        match self.role {
            RoleState::Standby(_) => self.follower_observed(now, sent),
            RoleState::Leader(_) => self.leader_observed(now, sent),
            RoleState::Resetting => {}
        }
        self.tick(now);
    }

    /// An [`HaAction::Elect`] with this transaction ended. A successful one was written at the revision in `outcome`.
    pub fn elected(&mut self, now: Mono, txn: &ElectionTxn, outcome: &TxnOutcome) {
        match self.role {
            RoleState::Standby(_) => self.follower_elected(now, txn, outcome),
            RoleState::Leader(_) => self.leader_reelected(now, txn, outcome),
            RoleState::Resetting => {}
        }
        self.tick(now);
    }

    /// The state was discarded. This master now has an empty copy with a new ID.
    pub fn reset(&mut self, now: Mono, id: MemberId) {
        self.me.id = id;
        self.role = RoleState::Standby(Follower::default());
        // The key may still belong to the lease, with the former ID in the sync record.
        if let Some(lease) = std::mem::take(&mut self.lease).id {
            self.actions.push(HaAction::RevokeLease(lease));
        }
        if self.seen.is_some() {
            self.follower_observed(now, Mono::ZERO);
        }
        self.tick(now);
    }

    /// A message came over the stream to `from`.
    pub fn receive(&mut self, now: Mono, from: MemberId, message: HaMessage) {
        match self.role {
            RoleState::Standby(_) => self.follower_received(now, from, message),
            RoleState::Leader(_) => self.leader_received(now, from, message),
            RoleState::Resetting => {}
        }
    }
}
