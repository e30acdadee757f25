//! The state of a leader: its view, its standbys and its hand-over.

use crate::ha::config::AckMode;
use crate::ha::member::{HistoryId, MemberId};
use crate::ha::planted::{HaMistake, is_planted};
use crate::ha::replica_set::ReplicaSet;
use crate::ha::reuse::ReuseBarrier;
use mcctl_base::Mono;

/// The state of a leader.
#[derive(Debug)]
pub(super) struct Leader {
    pub view: u64,
    pub replicas: ReplicaSet,
    pub ack: AckMode,
    /// Mod revision of the sync record. The next write compares it.
    pub sync_revision: u64,
    /// Time at which this revision was received. If a read that was sent later finds a lower one,
    /// etcd has lost its data.
    pub written_at: Mono,
    /// The lease of the leader's key. It may be that of a standby, which has created the key again.
    /// 0: none.
    pub key_lease: i64,
    pub is_key_gone: bool,
    /// The key existed at this time.
    pub key_seen: Mono,
    /// The standbys in the sync record.
    pub listed: Vec<MemberId>,
    pub alone_since: Option<u64>,
    /// The history of its changes.
    pub history: HistoryId,
    pub barrier: ReuseBarrier,
    /// The result of a write is unknown. Another write must succeed before a standby may be
    /// removed.
    pub must_write: bool,
    /// The last change of the state.
    pub appended: u64,
    /// Time of the last event that the core handled.
    pub ran_at: Mono,
    /// The write of the sync record whose result is awaited.
    pub writing: Option<SyncWrite>,
    pub electing: Option<Mono>,
    /// Earliest time for the repetition of a request to etcd that failed at once.
    pub retry_at: Mono,
    pub next_ping: Mono,
    pub hand_over: Option<HandOver>,
}

impl Leader {
    /// A leader that has just been elected, at revision `view`. Its last change is `appended`.
    pub(super) fn new(now: Mono, view: u64, key_lease: i64, appended: u64, history: HistoryId, ack: AckMode) -> Leader {
        Leader {
            view,
            replicas: ReplicaSet::default(),
            ack,
            sync_revision: view,
            written_at: now,
            key_lease,
            is_key_gone: false,
            key_seen: Mono::ZERO,
            listed: Vec::new(),
            alone_since: Some(appended),
            history,
            barrier: ReuseBarrier::new(appended),
            must_write: false,
            appended,
            ran_at: now,
            writing: None,
            electing: None,
            retry_at: Mono::ZERO,
            next_ping: Mono::ZERO,
            hand_over: None,
        }
    }

    /// The sync record lists these standbys.
    pub(super) fn require_all(&mut self, now: Mono, listed: Vec<MemberId>) {
        listed.iter().for_each(|id| self.replicas.require(now, *id));
        self.alone_since = self.alone_since.filter(|_| listed.is_empty());
        self.listed = listed;
    }

    /// Whether it hands over, or has handed over.
    pub(super) fn is_handing_over(&self) -> bool {
        self.hand_over.is_some()
    }

    /// The last change whose response may be sent.
    pub(super) fn acked(&self) -> u64 {
        if self.waits_for_standby() { self.replicas.acked(self.appended) } else { self.appended }
    }

    /// Whether responses to changes wait for a standby. During a hand-over they always do: the
    /// successor has the changes that it has acknowledged, and no others.
    pub(super) fn waits_for_standby(&self) -> bool {
        let is_awaited =
            self.ack == AckMode::Sync || self.is_handing_over() && !is_planted(HaMistake::HandOverNotAwaited);
        is_awaited && self.has_required()
    }

    /// Whether a standby is required.
    pub(super) fn has_required(&self) -> bool {
        self.replicas.iter().any(|(_, replica)| replica.is_required())
    }

    /// Whether the sync record lists the standbys that it should list.
    pub(super) fn lists_wanted(&self) -> bool {
        self.replicas.wanted().eq(self.listed.iter().copied())
    }

    /// The last change that all required standbys have.
    pub(super) fn replicated(&self) -> u64 {
        self.replicas.acked(self.appended)
    }

    /// The barrier of the next record, which lists these standbys.
    pub(super) fn next_barrier(&self, in_sync: &[MemberId]) -> Option<u64> {
        if !in_sync.is_empty() {
            return None;
        }
        self.barrier.next_alone(!self.listed.is_empty(), self.replicated())
    }

    /// Whether it no longer answers requests.
    pub(super) fn has_released(&self) -> bool {
        let step = self.hand_over.map(|hand_over| hand_over.step);
        matches!(step, Some(HandOverStep::Releasing | HandOverStep::Released | HandOverStep::Done))
    }
}

/// A write of the sync record.
#[derive(Clone, Copy, Debug)]
pub(super) struct SyncWrite {
    pub sent: Mono,
    /// The revision that it compares.
    pub expected_sync: u64,
}

/// A hand-over in progress.
#[derive(Clone, Copy, Debug)]
pub(super) struct HandOver {
    pub to: MemberId,
    /// The last change before the hand-over. 0 until changes are held.
    pub last: u64,
    /// Time at which the step began, or the standby last made progress.
    pub since: Mono,
    pub step: HandOverStep,
    /// The process is about to end, so the hand-over is never cancelled: changes stay held, so a
    /// standby that is late still has all of them.
    pub is_final: bool,
}

/// The stage of a hand-over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HandOverStep {
    /// Changes are being held.
    Holding,
    /// The standby makes its copy ready.
    Preparing,
    /// It is ready. The other standbys in the sync record, which may be elected instead, receive
    /// the last change.
    Ready,
    /// Requests are no longer answered, and the key is being deleted.
    Releasing,
    /// The key is deleted.
    Released,
    /// The successor was elected. Connections are forwarded to it.
    Done,
}
