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

/// What a copy that is made ready does with its objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::server::ha) enum PreparedObjects {
    /// It has all acknowledged changes.
    Complete,
    /// It may lack changes, but its objects certainly still have their memory: it keeps them
    /// ([`SyncRecord::is_proven`](mcctl_election::ha::SyncRecord::is_proven)).
    Proven,
    /// It may lack changes, and the memory of its objects may belong to others: it drops them.
    Dropped,
}

/// A copy that is being made ready to serve.
pub(in crate::server::ha) struct Preparation {
    pub standby: Box<StandbyState>,
    pub objects: PreparedObjects,
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
    pub loss: CopyLoss,
}

/// The consequence of changes that a copy may lack.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::server::ha) struct CopyLoss {
    /// Number of objects that were dropped.
    pub dropped: u64,
    /// It has kept its objects. Its unfinished writes must be discarded.
    pub is_proven: bool,
}

/// A copy that serves from now on.
pub(in crate::server::ha) struct ServedCopy {
    pub state: Box<MasterState>,
    /// Time at which it was ready.
    pub since: Mono,
    /// Time of each client's last call to the former leader.
    pub calls: BTreeMap<ClientId, Mono>,
    pub loss: CopyLoss,
}

impl Preparation {
    /// Whether acknowledged changes may be missing.
    pub(crate) fn is_lossy(&self) -> bool {
        self.objects != PreparedObjects::Complete
    }

    /// Drops the objects, if acknowledged changes may be missing, so that their memory may belong
    /// to other objects.
    ///
    /// # Errors
    /// The copy is damaged.
    pub(crate) fn drop_objects(mut self, now: Mono) -> Result<(Preparation, CopyLoss), ApplyError> {
        let is_kept = is_planted(HaMistake::LossyObjectsKept);
        match self.objects {
            PreparedObjects::Proven => {
                // A client may have unmounted a segment since.
                self.standby.require_remounts();
                Ok((self, CopyLoss { dropped: 0, is_proven: true }))
            }
            PreparedObjects::Dropped if !is_kept => {
                let hold = self.hold();
                let (standby, dropped) = self.standby.without_objects(now, hold)?;
                Ok((Preparation { standby, ..self }, CopyLoss { dropped, is_proven: false }))
            }
            PreparedObjects::Complete | PreparedObjects::Dropped => Ok((self, CopyLoss::default())),
        }
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
        let hold = if self.is_lossy() { self.hold() } else { Duration::ZERO };
        self.standby.activate_behind(now, hold, stale)
    }
}
