//! The state of a standby: its leader, its promise and its own candidacy.

use std::time::Duration;

use crate::engine::base::Mono;
use crate::engine::ha::action::{HaMessage, StandbyAck};
use crate::engine::ha::member::{MemberId, MemberInfo};

/// A copy that has not come closer to being ready for this long will not be ready. Sorting hundred million objects takes some
/// ten seconds.
const PREPARATION_STUCK: Duration = Duration::from_secs(30);

/// The state of a standby.
#[derive(Debug, Default)]
pub(super) struct Follower {
    pub following: Option<MemberInfo>,
    pub stream: Option<MemberId>,
    /// The last change of the leader that the copy contains.
    pub applied: u64,
    /// The stream is for another copy, which will replace this one. This one's changes are not acknowledged over it.
    pub is_replacing: bool,
    /// The copy was written by a master without a cluster, and has followed no leader.
    pub is_original: bool,
    /// The last change that was acknowledged over this stream.
    pub acknowledged: u64,
    /// It does not stand for election before this time.
    pub promised_until: Mono,
    /// The stamp of the ping that the promise answers.
    pub echo: Option<u64>,
    /// When a read of etcd was sent that found the key of the leader that this standby follows.
    pub key_seen: Option<Mono>,
    /// The same on the leader's clock, or earlier.
    pub key_seen_there: Option<u64>,
    /// Since when a master at another address leads with this copy's ID.
    pub same_id_since: Option<Mono>,
    /// Since when no master leads, and the mod revision of the sync record since then.
    pub absent_since: Option<Mono>,
    pub absent_revision: u64,
    /// The leader requested that this standby takes over after this change. Ends with the stream, over which the leader can
    /// cancel it.
    pub take_over: Option<u64>,
    pub recreating: Option<Mono>,
    pub step: CandidateStep,
    /// When the copy last came closer to being ready.
    pub progress_at: Mono,
    /// The standbys in the record with which it stands for election.
    pub candidate_list: Vec<MemberId>,
}

/// How far a candidate has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum CandidateStep {
    #[default]
    None,
    /// The copy is being made ready.
    Preparing { lossy: bool, expected_sync: u64 },
    /// The copy is ready. It is kept as long as the sync record includes it, because it may be the last one.
    Prepared { lossy: bool, expected_sync: u64 },
    /// The transaction is on its way, or its result is unknown.
    Electing { lossy: bool, sent: Mono, expected_sync: u64 },
}

impl CandidateStep {
    /// Whether the copy may lack changes. Its objects are dropped before this master leads.
    pub fn is_lossy(self) -> bool {
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
    pub fn ack(&self, now: Mono, applied: u64) -> HaMessage {
        let is_preparing = matches!(self.step, CandidateStep::Preparing { .. });
        HaMessage::Ack(StandbyAck {
            applied: if self.is_replacing { 0 } else { applied },
            echo: self.echo,
            key_seen: self.key_seen_there,
            is_preparing: is_preparing && now.since(self.progress_at) < PREPARATION_STUCK,
        })
    }

    /// Whether it stands for election.
    pub fn is_candidate(&self) -> bool {
        self.step != CandidateStep::None
    }
}
