//! The state of a master's core: the role, the lease, and the records that were last read from
//! etcd.

use std::time::Duration;

use crate::ha::action::HaAction;
use crate::ha::config::HaConfig;
use crate::ha::followership::Follower;
use crate::ha::leadership::Leader;
use crate::ha::member::{MemberId, MemberInfo};
use crate::ha::record::Observation;
use mcctl_base::Mono;

/// A request to etcd without a result is repeated after this time.
pub(super) const REQUEST_TIMEOUT: Duration = Duration::from_secs(1);
/// Pause after a request to etcd that failed. It may have failed at once, because its port is
/// closed.
pub(super) const RETRY_PAUSE: Duration = Duration::from_millis(100);

/// Decides the actions of one master. [`handle`](HaCore::handle) changes it; the other methods only
/// read it.
#[derive(Debug)]
pub struct HaCore {
    pub(super) config: HaConfig,
    pub(super) me: MemberInfo,
    pub(super) role: RoleState,
    pub(super) seen: Option<Observation>,
    /// Time at which the response was received.
    pub(super) seen_at: Mono,
    pub(super) lease: OwnLease,
    /// The actions of the event that is being handled.
    pub(super) actions: Vec<HaAction>,
    pub(super) observe_at: Mono,
    /// Everything that was due until then was done.
    pub(super) settled_at: Option<Mono>,
}

/// The role, with what belongs to it.
#[derive(Debug)]
pub(super) enum RoleState {
    Standby(Follower),
    Leader(Leader),
    /// The state is being discarded.
    Resetting,
}

/// The role of a master.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HaRole {
    /// It follows a leader, or waits for one. A master begins so.
    #[default]
    Standby,
    /// It stands for election, and makes its copy ready.
    Candidate,
    /// It answers requests, while its fence has not passed.
    Leader,
    /// It was the leader and has handed over, or is about to.
    HandingOver,
    /// It discards its state.
    Resetting,
}

impl HaRole {
    /// The name in reports.
    pub fn name(self) -> &'static str {
        match self {
            HaRole::Standby => "standby",
            HaRole::Candidate => "candidate",
            HaRole::Leader => "leader",
            HaRole::HandingOver => "handing_over",
            HaRole::Resetting => "resetting",
        }
    }
}

/// A master's lease in etcd.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct OwnLease {
    pub id: Option<i64>,
    /// Send time of the request that was answered last.
    pub confirmed: Mono,
    pub requested: Option<Mono>,
    pub next: Mono,
}

/// The state of a master for reports and metrics.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HaStatus {
    pub role: HaRole,
    pub view: u64,
    /// Whether the sync record lists this copy.
    pub in_sync: bool,
    /// The leader: the last change that all required standbys have.
    pub acked: u64,
    /// The standbys that responses wait for.
    pub required: Vec<MemberId>,
}
