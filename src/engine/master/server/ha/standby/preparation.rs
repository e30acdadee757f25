//! How a copy becomes the state of a leader: it is made ready, and then serves.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::apply::{ApplyError, StandbyState};
use crate::restore::{RestoreError, RestoreReport};
use crate::server::data::MasterDataError;
use crate::state::MasterState;
use mcctl_base::{ClientId, Mono};
use mcctl_election::ha::planted::{HaMistake, is_planted};
use mcctl_election::ha::{HistoryId, MemberId};

/// Minimum time for which segments accept no new objects if acknowledged changes may be missing.
const LOSSY_HOLD: Duration = Duration::from_secs(30);

/// A copy that is being made ready to serve.
pub(in crate::server::ha) struct Preparation {
    pub standby: Box<StandbyState>,
    /// Acknowledged changes may be missing: the objects are dropped.
    pub lossy: bool,
    /// The number of the copy.
    pub generation: u64,
    /// The last change that it contains.
    pub applied: u64,
    /// The last change that it contains, and its history. `None`: its objects are dropped, so it
    /// continues no history.
    pub parent: Option<(HistoryId, u64)>,
}

/// A copy that was made ready to serve, or cannot be used.
pub(in crate::server::ha) struct PreparedCopy {
    /// The number of the copy.
    pub generation: u64,
    /// Time at which the preparation began.
    pub began: Mono,
    /// Its ID, which is a new one if its objects were dropped.
    pub id: MemberId,
    /// Its changes will belong to this history.
    pub history: HistoryId,
    pub result: Result<(MasterState, PreparationReport), MasterDataError>,
}

/// The state of a copy that is ready to serve.
#[derive(Clone, Copy, Debug)]
pub(in crate::server::ha) struct PreparationReport {
    pub restored: RestoreReport,
    /// Number of objects that were dropped, because acknowledged changes may be missing.
    pub dropped: u64,
}

/// A copy that serves from now on.
pub(in crate::server::ha) struct ServedCopy {
    pub state: Box<MasterState>,
    /// Time at which it was ready.
    pub since: Mono,
    /// Time of each client's last call to the former leader.
    pub calls: BTreeMap<ClientId, Mono>,
    /// Number of objects that were dropped.
    pub dropped: u64,
}

impl Preparation {
    /// Drops the objects, if acknowledged changes may be missing: their memory may belong to other
    /// objects. Returns their number.
    ///
    /// # Errors
    /// The copy is damaged.
    pub(crate) fn drop_objects(self, now: Mono) -> Result<(Preparation, u64), ApplyError> {
        if !self.lossy || is_planted(HaMistake::LossyObjectsKept) {
            return Ok((self, 0));
        }
        let hold = self.hold();
        let (standby, dropped) = self.standby.without_objects(now, hold)?;
        Ok((Preparation { standby, ..self }, dropped))
    }

    /// Time for which segments accept no new objects if acknowledged changes may be missing.
    fn hold(&self) -> Duration {
        let policy = self.standby.policy();
        LOSSY_HOLD.max(policy.put_release_after).max(policy.lease_ttl).max(self.standby.earlier_lease())
    }

    /// Makes it ready. `stale`: time for which another master may still grant leases.
    ///
    /// # Errors
    /// The copy is damaged.
    pub(crate) fn run(mut self, now: Mono, stale: Duration) -> Result<(MasterState, RestoreReport), RestoreError> {
        // A copy whose objects were dropped is a new one. It may have to follow again.
        self.standby.follow(now)?;
        let hold = if self.lossy { self.hold() } else { Duration::ZERO };
        self.standby.activate_behind(now, hold, stale)
    }
}
