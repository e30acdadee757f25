//! The settings of a cluster of masters.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// The condition for sending the response to a change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AckMode {
    /// All required standbys have the change.
    #[default]
    Sync,
    /// None: it does not wait for a standby, unless the change hands out or frees memory.
    Async,
}

/// The policy of a standby that is not in sync while no master leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NotInSyncPolicy {
    /// It waits for a master that is in sync.
    Wait,
    /// It is promoted after this time, and drops the objects that are not proven.
    PromoteAfter(Duration),
}

impl NotInSyncPolicy {
    /// The policy that is safe if another master has `other`: the later promotion.
    pub fn later(self, other: NotInSyncPolicy) -> NotInSyncPolicy {
        match (self, other) {
            (NotInSyncPolicy::PromoteAfter(one), NotInSyncPolicy::PromoteAfter(two)) => {
                NotInSyncPolicy::PromoteAfter(one.max(two))
            }
            _ => NotInSyncPolicy::Wait,
        }
    }
}

/// Times and policies. All masters of a cluster should have the same.
#[derive(Clone, Copy, Debug)]
pub struct HaConfig {
    /// TTL of the lease in etcd. etcd 3.4 raises shorter ones to 2 s.
    pub lease_ttl: Duration,
    /// Time between two renewals of the lease.
    pub renew_every: Duration,
    /// A fence is this much earlier than the time up to which the proof holds. Covers the
    /// difference of clock rates.
    pub margin: Duration,
    /// Time after a ping in which the standby that received it does not stand for election.
    pub promise: Duration,
    /// Time between two pings to a standby.
    pub ping_every: Duration,
    /// A required standby that does not acknowledge for this long is removed from the sync record.
    pub standby_timeout: Duration,
    pub ack: AckMode,
    pub not_in_sync: NotInSyncPolicy,
}

impl Default for HaConfig {
    fn default() -> HaConfig {
        HaConfig {
            lease_ttl: Duration::from_secs(2),
            renew_every: Duration::from_millis(500),
            margin: Duration::from_millis(300),
            promise: Duration::from_millis(1500),
            ping_every: Duration::from_millis(250),
            standby_timeout: Duration::from_secs(1),
            ack: AckMode::Sync,
            not_in_sync: NotInSyncPolicy::Wait,
        }
    }
}

impl HaConfig {
    /// Maximum time after the election of another master in which a former leader may still grant
    /// leases. A new leader adds this to the leases that it assumes.
    pub fn stale_answers(&self) -> Duration {
        self.lease_ttl.max(self.promise)
    }
}
