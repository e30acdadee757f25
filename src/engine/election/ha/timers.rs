//! The timers of a master: the times at which it must act without another event.

use std::time::Duration;

use crate::ha::followership::{CandidateStep, Follower};
use crate::ha::hand_over::{HAND_OVER_TIMEOUT, RELEASED_TIMEOUT};
use crate::ha::leadership::Leader;
use crate::ha::state::{HaCore, REQUEST_TIMEOUT, RoleState};
use mcctl_base::Mono;

/// A leader may create its own expired key again in this time, before its standby does.
pub(super) const OWN_RECREATION: Duration = Duration::from_millis(100);
/// Without a sync record, a master does not stand for election before this time has passed without
/// a leader. A leader that is alive, whose records etcd has lost, creates them again in this time:
/// it reads etcd once a second, and may need a new lease.
pub(super) const NO_RECORD_PAUSE: Duration = Duration::from_secs(3);
/// The key of an earlier process with this copy's ID, at another address, expires within this time.
/// After it, another process has that ID.
pub(super) const SAME_ID_MAX: Duration = Duration::from_secs(5);

/// The events that a master waits for. The promotion of a copy that is not in sync has no timer: it
/// follows a read of etcd.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HaTimer {
    /// The next renewal of the lease.
    Lease,
    /// A request for the lease without a result is repeated.
    LeaseRequest,
    /// The next read of etcd.
    Observe,
    /// Leader: the next ping to the standbys.
    Ping,
    /// Leader: a required standby has not acknowledged for too long.
    Standby,
    /// Leader: a write of the sync record without a result is repeated.
    SyncRequest,
    /// Leader: a request to etcd that failed is repeated.
    Retry,
    /// Leader: the creation of its own key, without a result, is repeated.
    KeyRequest,
    /// Leader: the hand-over makes no progress.
    HandOver,
    /// Standby: its promise not to stand for election ends.
    Promise,
    /// Standby: the creation or deletion of the leader's key, without a result, is repeated.
    KeptKeyRequest,
    /// Standby: another process certainly has the same ID.
    SameId,
    /// Standby: the leader has not created its expired key again.
    Recreation,
    /// Standby: there is no sync record, and no leader has created one.
    NoRecord,
    /// Standby: it reads the offers of other candidates again, or no longer waits for them.
    Offers,
    /// Standby: its election, without a result, is repeated.
    ElectionRequest,
}

impl HaCore {
    /// The time at which the next [`Timeout`](super::HaEvent::Timeout) is due.
    pub fn next_timeout(&self) -> Mono {
        self.next_timer().map_or(Mono(u64::MAX), |(_, at)| at)
    }

    /// The timer that is due next, and its time. Timers that were due before have been handled:
    /// their work waits for an event.
    pub fn next_timer(&self) -> Option<(HaTimer, Mono)> {
        let mut next = None;
        self.visit_timers(&mut |timer, at| {
            let is_ahead = self.settled_at.is_none_or(|settled| at > settled);
            if is_ahead && next.is_none_or(|(_, before)| at < before) {
                next = Some((timer, at));
            }
        });
        next
    }

    fn visit_timers(&self, visit: &mut impl FnMut(HaTimer, Mono)) {
        visit(HaTimer::Lease, self.lease.next);
        if let Some(requested) = self.lease.requested {
            visit(HaTimer::LeaseRequest, requested + REQUEST_TIMEOUT);
        }
        visit(HaTimer::Observe, self.observe_at);
        match &self.role {
            RoleState::Leader(leader) => self.visit_leader_timers(leader, visit),
            RoleState::Standby(follower) => self.visit_follower_timers(follower, visit),
            RoleState::Resetting => {}
        }
    }

    fn visit_leader_timers(&self, leader: &Leader, visit: &mut impl FnMut(HaTimer, Mono)) {
        if !leader.has_released() {
            visit(HaTimer::Ping, leader.next_ping);
        }
        if let Some(progress) = leader.replicas.least_progress() {
            visit(HaTimer::Standby, progress + self.config.standby_timeout);
        }
        if let Some(write) = leader.writing {
            visit(HaTimer::SyncRequest, write.sent + REQUEST_TIMEOUT);
        }
        visit(HaTimer::Retry, leader.retry_at);
        if let Some(sent) = leader.electing {
            visit(HaTimer::KeyRequest, sent + REQUEST_TIMEOUT);
        }
        if let Some(hand_over) = leader.hand_over {
            visit(HaTimer::HandOver, hand_over.since + HAND_OVER_TIMEOUT);
            visit(HaTimer::HandOver, hand_over.since + RELEASED_TIMEOUT);
        }
    }

    fn visit_follower_timers(&self, follower: &Follower, visit: &mut impl FnMut(HaTimer, Mono)) {
        visit(HaTimer::Promise, follower.promised_until);
        if let Some(sent) = follower.recreating {
            visit(HaTimer::KeptKeyRequest, sent + REQUEST_TIMEOUT);
        }
        if let Some(since) = follower.same_id_since {
            visit(HaTimer::SameId, since + SAME_ID_MAX);
        }
        if let Some(since) = follower.absent_since {
            visit(HaTimer::Recreation, since + OWN_RECREATION);
            visit(HaTimer::NoRecord, since + NO_RECORD_PAUSE);
        }
        if let (CandidateStep::Prepared { .. }, Some(offers)) = (follower.step, &follower.offers) {
            offers.timeouts().into_iter().for_each(|at| visit(HaTimer::Offers, at));
        }
        if let CandidateStep::Electing { sent, .. } = follower.step {
            visit(HaTimer::ElectionRequest, sent + REQUEST_TIMEOUT);
        }
    }
}
