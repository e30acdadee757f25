//! The state of a standby: its leader, its promise and its own candidacy.

use std::time::Duration;

use crate::ha::action::{HaMessage, StandbyAck};
use crate::ha::member::{HistoryId, MemberId, MemberInfo};
use crate::ha::offers::KnownOffers;
use mcctl_base::Mono;

/// If making a copy ready has made no progress for this time, it has failed. Sorting a hundred
/// million objects takes some ten seconds.
const PREPARATION_STUCK: Duration = Duration::from_secs(30);

/// The state of a standby.
#[derive(Debug, Default)]
pub(super) struct Follower {
    pub following: Option<MemberInfo>,
    pub stream: Option<MemberId>,
    /// The leader whose stream was the last one, if its process has ended, and its view.
    pub ended_leader: Option<(MemberId, u64)>,
    /// The last change of the leader that the copy contains.
    pub applied: u64,
    /// The stream belongs to another copy, which will replace this one. Changes of this one are not
    /// acknowledged over it.
    pub is_replacing: bool,
    /// The copy was written by a master without a cluster, and has followed no leader.
    pub is_original: bool,
    /// The last change that was acknowledged over this stream.
    pub acknowledged: u64,
    /// It does not stand for election before this time.
    pub promised_until: Mono,
    /// The stamp of the ping that the promise answers.
    pub echo: Option<u64>,
    /// Send time of the last read of etcd that found the key of the leader that this standby
    /// follows.
    pub key_seen: Option<Mono>,
    /// The same time on the leader's clock, or an earlier one.
    pub key_seen_there: Option<u64>,
    /// Time from which on a master at another address has led with this copy's ID.
    pub same_id_since: Option<Mono>,
    /// Time from which on no master has led. `absent_revision` is the mod revision of the sync
    /// record since then.
    pub absent_since: Option<Mono>,
    pub absent_revision: u64,
    /// The leader has requested that this standby take over after this change. The request ends
    /// with the stream, over which the leader can cancel it.
    pub take_over: Option<u64>,
    pub recreating: Option<Mono>,
    pub step: CandidateStep,
    /// The offers of the candidates, while this one waits for them.
    pub offers: Option<KnownOffers>,
    /// Time at which making the copy ready last made progress.
    pub progress_at: Mono,
    /// The history of its changes, once it leads.
    pub next_history: HistoryId,
    /// The standbys in the record with which it stands for election.
    pub candidate_list: Vec<MemberId>,
}

/// The stage of a candidacy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum CandidateStep {
    #[default]
    None,
    /// The copy is being made ready.
    Preparing { lossy: bool, expected_sync: u64 },
    /// The copy is ready. It is kept as long as the sync record includes it, because it may be the
    /// last one.
    Prepared { lossy: bool, expected_sync: u64 },
    /// The transaction was sent, and its result is unknown.
    Electing { lossy: bool, sent: Mono, expected_sync: u64 },
}

impl CandidateStep {
    /// Whether the copy may lack changes. Its objects are dropped before this master leads.
    pub(super) fn is_lossy(self) -> bool {
        match self {
            CandidateStep::None => false,
            CandidateStep::Preparing { lossy, .. }
            | CandidateStep::Prepared { lossy, .. }
            | CandidateStep::Electing { lossy, .. } => lossy,
        }
    }
}

impl Follower {
    /// Acknowledges all changes up to `applied`.
    pub(super) fn ack(&self, now: Mono, applied: u64) -> HaMessage {
        let is_preparing = matches!(self.step, CandidateStep::Preparing { .. });
        HaMessage::Ack(StandbyAck {
            applied: if self.is_replacing { 0 } else { applied },
            echo: self.echo,
            key_seen: self.key_seen_there,
            is_preparing: is_preparing && now.since(self.progress_at) < PREPARATION_STUCK,
        })
    }

    /// Whether it stands for election.
    pub(super) fn is_candidate(&self) -> bool {
        self.step != CandidateStep::None
    }
}
