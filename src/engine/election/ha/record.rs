//! The records of the masters in etcd, and the transactions that change them.

use serde::{Deserialize, Serialize};

use crate::ha::config::{AckMode, NotInSyncPolicy};
use crate::ha::member::{HistoryId, MemberId, MemberInfo};
use mcctl_base::HostPort;

/// The key that upstream's clients read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaderKey {
    /// `host:port` of the leader's RPC port.
    pub address: String,
    /// The revision at which the key was created.
    pub view: u64,
    /// The lease that it belongs to.
    pub lease: i64,
}

impl LeaderKey {
    /// Beginning of a value that masters later than 0.3.13 store for a moment before their address.
    /// The leader is known, but not ready.
    pub const WARMING: &str = "__mooncake_service_warming__:";

    /// Whether the key names a master that leads.
    pub fn names_a_master(&self) -> bool {
        !self.address.starts_with(LeaderKey::WARMING) && self.address.parse::<HostPort>().is_ok()
    }

    /// Whether no master has written this value.
    pub fn is_foreign(&self) -> bool {
        !self.address.starts_with(LeaderKey::WARMING) && self.address.parse::<HostPort>().is_err()
    }
}

/// The masters that can be elected. With `--ha-ack sync`, each has all changes that were
/// acknowledged.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SyncRecord {
    /// Version of this format: [`SyncRecord::FORMAT`].
    pub format: u32,
    /// The leader. It is always in sync.
    pub leader: MemberId,
    /// `host:port` of the leader's RPC port.
    pub rpc: String,
    /// `host:port` of the leader's port for replication.
    pub replication: String,
    /// The standbys in sync.
    pub in_sync: Vec<MemberId>,
    /// The last change before the leader began to answer without a standby.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub alone_since: Option<u64>,
    /// The leader's policy, on which its fence relies. `None`: written by a release that does not
    /// have it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub when_not_in_sync: Option<NotInSyncPolicy>,
    /// The condition on which the leader sends responses. `None`: written by a release that does
    /// not have it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ack: Option<AckMode>,
    /// The history of the leader's changes. `None`: written by a release whose leader may use
    /// memory again before a copy that is listed here knows that it was freed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub history: Option<HistoryId>,
    /// The barrier: nothing that a later change than this has freed was used again, and no later
    /// removal, replacement, eviction, mount or unmount has had an effect that a client has seen.
    /// So a copy of this history that has this change keeps its objects in a promotion, although it
    /// may lack others. `None`: only the listed copies can.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_reused_since: Option<u64>,
    /// The leader has handed over: it no longer answers, and all listed copies have its last
    /// change.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub handed_over: bool,
}

impl SyncRecord {
    /// The version of the format that this release reads and writes.
    pub const FORMAT: u32 = 1;

    /// The record of a leader without standbys.
    pub fn alone(leader: &MemberInfo, last: u64) -> SyncRecord {
        SyncRecord {
            format: SyncRecord::FORMAT,
            leader: leader.id,
            rpc: leader.rpc.to_string(),
            replication: leader.replication.to_string(),
            in_sync: Vec::new(),
            alone_since: Some(last),
            when_not_in_sync: None,
            ack: None,
            history: None,
            not_reused_since: None,
            handed_over: false,
        }
    }

    /// Whether it lists this copy, which can be elected.
    pub fn includes(&self, id: MemberId) -> bool {
        self.leader == id || self.in_sync.contains(&id)
    }

    /// Whether this copy contains everything that was acknowledged. A copy of a leader that does
    /// not wait for its standbys may lack changes, until the leader has handed over. `default` is
    /// the mode of a record without one.
    pub fn is_complete(&self, id: MemberId, default: AckMode) -> bool {
        let is_acknowledged = self.handed_over || self.ack.unwrap_or(default) == AckMode::Sync;
        self.leader == id || self.in_sync.contains(&id) && is_acknowledged
    }

    /// Whether no object of this copy can have bytes of another one, or was removed or replaced by
    /// an acknowledged call, although the copy may lack changes. It has changes of `history` up to
    /// `applied`.
    pub fn is_proven(&self, id: MemberId, history: Option<HistoryId>, applied: u64) -> bool {
        let is_listed = self.history.is_some() && self.in_sync.contains(&id);
        let is_same = history.is_some() && history == self.history;
        is_listed || is_same && self.not_reused_since.is_some_and(|barrier| applied >= barrier)
    }

    /// The leader, if its addresses can be parsed.
    pub fn leader_info(&self) -> Option<MemberInfo> {
        let rpc: HostPort = self.rpc.parse().ok()?;
        let replication: HostPort = self.replication.parse().ok()?;
        Some(MemberInfo { id: self.leader, rpc, replication })
    }
}

/// The leader's key and the sync record, read in one transaction.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Observation {
    /// The revision at which they were read. Observations with lower ones are older.
    pub revision: u64,
    pub leader: Option<LeaderKey>,
    /// The sync record and its mod revision.
    pub sync: Option<(SyncRecord, u64)>,
}

impl Observation {
    /// Mod revision of the sync record; 0 if it does not exist.
    pub fn sync_revision(&self) -> u64 {
        self.sync.as_ref().map_or(0, |(_, revision)| *revision)
    }
}

/// Creates the leader's key and writes the sync record, if the key does not exist and the record
/// was not changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ElectionTxn {
    pub address: String,
    pub lease: i64,
    /// Mod revision of the sync record, or 0 if it must not exist.
    pub expected_sync: u64,
    pub sync: SyncRecord,
}

/// Writes the sync record, if neither it nor the leader was changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SyncTxn {
    /// Create revision of the leader's key.
    pub view: u64,
    /// Value of the leader's key.
    pub address: String,
    pub expected_sync: u64,
    pub sync: SyncRecord,
    /// Also binds the leader's key, which keeps its value, to this lease.
    pub lease: Option<i64>,
}

/// Deletes the leader's key and writes the sync record, if neither it nor the leader was changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HandOverTxn {
    /// Create revision of the leader's key.
    pub view: u64,
    /// Value of the leader's key.
    pub address: String,
    pub expected_sync: u64,
    pub sync: SyncRecord,
}

/// The result of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TxnOutcome {
    /// Written at this revision.
    Done(u64),
    /// Not written: a comparison failed, or the request was not processed.
    Refused,
    /// No response was received. The write may have been performed, or may still be.
    Unknown,
}
