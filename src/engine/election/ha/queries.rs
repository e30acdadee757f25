//! The values that can be read from the core.

use std::time::Duration;

use crate::ha::config::NotInSyncPolicy;
use crate::ha::member::{HistoryId, MemberId, MemberInfo};
use crate::ha::record::SyncRecord;
use crate::ha::replica_set::Replica;
use crate::ha::state::{HaCore, HaRole, HaStatus, RoleState};
use mcctl_base::{HostPort, Mono};

/// The time for which a leader can prove that it leads while etcd does not respond.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutageLimit {
    /// As long as its standbys in sync respond: without etcd, no other master is elected.
    WhileStandbysRespond,
    /// For this time, if its standbys in sync respond. Later, a master that is not in sync may be
    /// promoted.
    WithStandbys(Duration),
    /// For this time: it has no standby, and its lease ends.
    Lease(Duration),
}

/// Maximum time for the election of a master that is in sync.
const WITHOUT_LEADER: Duration = Duration::from_secs(3);

impl HaCore {
    /// This master's ID and addresses.
    pub fn me(&self) -> &MemberInfo {
        &self.me
    }

    /// The current role of this master.
    pub fn role(&self) -> HaRole {
        match &self.role {
            RoleState::Standby(follower) if follower.is_candidate() => HaRole::Candidate,
            RoleState::Standby(_) => HaRole::Standby,
            RoleState::Leader(leader) if leader.is_handing_over() => HaRole::HandingOver,
            RoleState::Leader(_) => HaRole::Leader,
            RoleState::Resetting => HaRole::Resetting,
        }
    }

    /// The state of this master for reports and metrics.
    pub fn status(&self) -> HaStatus {
        let in_sync = self.sync_record().is_some_and(|record| record.includes(self.me.id));
        let RoleState::Leader(leader) = &self.role else {
            let view = self.seen.as_ref().and_then(|seen| seen.leader.as_ref()).map_or(0, |key| key.view);
            return HaStatus { role: self.role(), view, in_sync, acked: 0, required: Vec::new() };
        };
        let required = leader.replicas.iter().filter(|(_, replica)| replica.is_required()).map(|(id, _)| id).collect();
        HaStatus { role: self.role(), view: leader.view, in_sync, acked: leader.acked(), required }
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
        self.sync_record()?.alone_since
    }

    /// The leader's standbys that are connected or required.
    pub fn standbys(&self) -> impl Iterator<Item = (MemberId, &Replica)> {
        let RoleState::Leader(leader) = &self.role else { return None.into_iter().flatten() };
        Some(leader.replicas.iter()).into_iter().flatten()
    }

    /// Whether this standby has a stream from its leader.
    pub fn is_following(&self) -> bool {
        matches!(&self.role, RoleState::Standby(follower) if follower.stream.is_some())
    }

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

    /// The standbys in the sync record that this leader has written last.
    pub fn listed_standbys(&self) -> &[MemberId] {
        if let RoleState::Leader(leader) = &self.role { &leader.listed } else { &[] }
    }

    /// How long this leader can serve if etcd no longer responds; `None` if it does not lead.
    pub fn outage_limit(&self, now: Mono) -> Option<OutageLimit> {
        let RoleState::Leader(leader) = &self.role else { return None };
        let until = self.promises_count_until();
        let lease = (self.lease.confirmed + self.config.lease_ttl - self.config.margin).since(now);
        Some(match leader.has_required() {
            false => OutageLimit::Lease(lease),
            true if until == Mono(u64::MAX) => OutageLimit::WhileStandbysRespond,
            true => OutageLimit::WithStandbys((until - self.config.margin).since(now).max(lease)),
        })
    }

    /// The last change whose freed memory may be used again: all required standbys have it, and it
    /// is not after the barrier. `appended` is the last change of the state.
    pub fn reusable(&mut self, appended: u64) -> u64 {
        let RoleState::Leader(leader) = &mut self.role else { return 0 };
        let replicated = leader.replicas.acked(appended);
        leader.barrier.advance(replicated)
    }

    /// The barrier of this leader, if it has one: freed memory and responses wait for its removal.
    pub fn barrier(&self) -> Option<u64> {
        if let RoleState::Leader(leader) = &self.role { leader.barrier.limit() } else { None }
    }

    /// Whether this copy, which has changes of `history` up to `applied`, keeps its objects in a
    /// promotion although it may lack changes.
    pub fn is_proven(&self, history: Option<HistoryId>, applied: u64) -> bool {
        let is_proven = |sync: &SyncRecord| sync.is_proven(self.me.id, history, applied);
        self.sync_record().is_some_and(is_proven)
    }

    /// The reason for which this standby cannot be promoted without loss; `None` if it can.
    /// `keeps_objects`: it would keep its objects ([`is_proven`](Self::is_proven)).
    pub fn not_promotable(&self, keeps_objects: bool) -> Option<String> {
        let Some(seen) = &self.seen else { return Some("the coordination service was not reached yet".to_owned()) };
        if let Some(key) = seen.leader.as_ref().filter(|key| key.is_foreign()) {
            return Some(format!(
                "the leader's key in etcd contains '{}', which is not a master's address",
                key.address
            ));
        }
        let Some(sync) = self.sync_record() else {
            let why =
                "there is no sync record in etcd: without a leader, it is promoted after 3 s and drops all objects";
            return (!self.is_complete()).then(|| why.to_owned());
        };
        if sync.includes(self.me.id) {
            let is_complete = sync.is_complete(self.me.id, self.config.ack);
            let loss = if keeps_objects { "loses the last puts" } else { "drops all objects" };
            return (!is_complete).then(|| format!("--ha-ack async: a failover {loss}, a hand-over does not"));
        }
        let why = match sync.alone_since {
            Some(last) => format!("not in sync: the leader has answered without a standby since change {last}"),
            None => "not in sync: the leader has not added this copy to the sync record".to_owned(),
        };
        let then = match self.not_in_sync_policy() {
            NotInSyncPolicy::Wait => "without a leader, it waits for a master that is in sync".to_owned(),
            NotInSyncPolicy::PromoteAfter(pause) => {
                let objects = if keeps_objects { "keeps its objects" } else { "drops all objects" };
                format!("without a leader, it is promoted after {} s and {objects}", pause.as_secs())
            }
        };
        Some(format!("{why}; {then} (--when-not-in-sync)"))
    }

    /// The reason for which this standby is not promoted, although no master has led for some
    /// seconds.
    pub fn not_promoted(&self, now: Mono, keeps_objects: bool) -> Option<String> {
        let RoleState::Standby(follower) = &self.role else { return None };
        follower.absent_since.filter(|since| now.since(*since) >= WITHOUT_LEADER)?;
        if now.since(self.seen_at) >= WITHOUT_LEADER {
            return Some("etcd does not respond, so another master may lead".to_owned());
        }
        self.not_promotable(keeps_objects)
    }

    /// The sync record, as last read.
    pub(super) fn sync_record(&self) -> Option<&SyncRecord> {
        let (sync, _) = self.seen.as_ref()?.sync.as_ref()?;
        Some(sync)
    }

    /// Whether the sync record, as last read, permits this master's election at once.
    pub(super) fn is_electable(&self) -> bool {
        self.sync_record().is_none_or(|sync| sync.includes(self.me.id))
    }

    /// Whether this standby's copy certainly contains everything that was acknowledged. Without a
    /// record, only a copy that is empty, or has been in no cluster, is certainly complete.
    pub(super) fn is_complete(&self) -> bool {
        let RoleState::Standby(follower) = &self.role else { return false };
        self.sync_record()
            .map_or(follower.applied == 0 || follower.is_original, |sync| sync.is_complete(self.me.id, self.config.ack))
    }

    /// The policy of this master while it is not in sync: the later promotion of its own policy and
    /// the leader's.
    pub(super) fn not_in_sync_policy(&self) -> NotInSyncPolicy {
        let own = self.config.not_in_sync;
        let leader = self.sync_record().and_then(|sync| sync.when_not_in_sync);
        leader.map_or(own, |leader| own.later(leader))
    }

    /// Whether the only copy in the sync record was that of an earlier process at this master's
    /// address, which has ended.
    pub(super) fn is_last_copy_gone(&self) -> bool {
        self.sync_record().is_some_and(|sync| {
            sync.in_sync.is_empty() && sync.leader != self.me.id && sync.rpc == self.me.rpc.to_string()
        })
    }

    /// Promises bind only standbys in sync. If others may be promoted without a leader's key for
    /// some time, promises count only for that time after the key is known to have existed: after
    /// the last renewal of the lease, or after this master or a standby has seen it.
    pub(super) fn promises_count_until(&self) -> Mono {
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
}
