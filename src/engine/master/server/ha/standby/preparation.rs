//! How a copy becomes the state of a leader: it is made ready, and then serves.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::engine::base::{ClientId, Mono};
use crate::engine::ha::HistoryId;
use crate::engine::master::apply::StandbyState;
use crate::engine::master::restore::{RestoreError, RestoreReport};
use crate::engine::master::server::data::MasterDataError;
use crate::engine::master::state::MasterState;

/// A copy that is being made ready to serve.
pub(in crate::engine::master::server::ha) struct Preparation {
    pub standby: Box<StandbyState>,
    /// The number of the copy.
    pub generation: u64,
    /// The last change that it contains.
    pub applied: u64,
    /// The last change that it contains, and its history.
    pub parent: Option<(HistoryId, u64)>,
    pub is_uncertain: bool,
}

/// A copy that was made ready to serve, or cannot be used.
pub(in crate::engine::master::server::ha) struct PreparedCopy {
    /// The number of the copy.
    pub generation: u64,
    /// When the preparation began.
    pub began: Mono,
    /// Acknowledged changes may be missing.
    pub lossy: bool,
    /// Its changes will belong to this history.
    pub history: HistoryId,
    pub result: Result<(MasterState, RestoreReport), MasterDataError>,
}

/// A copy that serves from now on.
pub(in crate::engine::master::server::ha) struct ServedCopy {
    pub state: Box<MasterState>,
    /// When it was ready.
    pub since: Mono,
    /// When each client last called the former leader.
    pub calls: BTreeMap<ClientId, Mono>,
}

impl Preparation {
    /// Makes it ready. `stale`: how long another master may still grant leases.
    ///
    /// # Errors
    /// The copy is damaged.
    pub fn run(
        self,
        now: Mono,
        hold: Option<Duration>,
        stale: Duration,
    ) -> Result<(MasterState, RestoreReport), RestoreError> {
        let policy = self.standby.policy();
        let hold = hold.map_or(Duration::ZERO, |least| {
            least.max(policy.put_release_after).max(policy.lease_ttl).max(self.standby.earlier_lease())
        });
        self.standby.activate_behind(now, hold, stale)
    }
}
