//! What a measurement does to the caches of its servers, and which of them can be flushed.

use std::time::Duration;

use crate::LoadCaveat;
use crate::plan::{Measurement, MeasurementKind, Phase, PlanError};
use crate::server::ServerClient;
use crate::session::LoadEndpoint;
use mcctl_sys::env::{Env, deadline};

/// Timeout for a flush or settings request before the measurement.
const REQUEST_LIMIT: Duration = Duration::from_secs(30);

/// The cache tiers that a measurement empties or fills, beyond what its requests do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheChange {
    /// Flush L1 and L2.
    DeviceAndHost,
    /// L1, L2 and L3.
    AllTiers,
}

impl Measurement {
    /// Returns which caches the measurement empties or fills, unless it leaves them as they are. A
    /// flush that the caller requested with [`PhasePlan::new`](crate::plan::PhasePlan::new) does
    /// not count.
    pub fn cache_change(&self) -> Option<CacheChange> {
        let flushes = self.kind != MeasurementKind::Single && !self.phases.decides_flushes();
        let has_calls = self.sides.iter().any(|side| side.server.is_some());
        let calls = has_calls && (flushes || self.phases.has(&[Phase::Flush, Phase::Clear]));
        let fills = self.phases.has(&[Phase::EvictDevice, Phase::EvictHost]);
        let tiers = if self.phases.has(&[Phase::Clear]) { CacheChange::AllTiers } else { CacheChange::DeviceAndHost };
        (calls || fills).then_some(tiers)
    }

    /// Flushes the caches of `sides` and returns whether all of them could be flushed. Adds a
    /// caveat if one could not. Returns false if the phases determine when caches are flushed.
    pub(super) async fn can_flush<E: Env>(
        &self,
        env: &E,
        sides: &[LoadEndpoint],
        caveats: &mut Vec<LoadCaveat>,
    ) -> bool {
        if self.phases.decides_flushes() {
            return false;
        }
        for side in sides {
            let error = match &side.server {
                None => Some(None),
                Some(server) => server.flush(env, REQUEST_LIMIT).await.err().map(Some),
            };
            if let Some(error) = error {
                caveats.push(LoadCaveat::CachesNotFlushed { side: side.name.clone(), error });
                return false;
            }
        }
        true
    }

    /// Checks whether cached prompts could be reused through L3. A server that receives the same
    /// prompts twice hits L3 the second time, even if L1 and L2 were flushed. Adds a caveat if a
    /// server is only compared with itself.
    ///
    /// # Errors
    /// A server is compared with itself and then with another server, whose L3 does not hold the
    /// prompts.
    pub(super) async fn check_storage_reuse<E: Env>(
        &self,
        env: &E,
        caveats: &mut Vec<LoadCaveat>,
    ) -> Result<(), PlanError> {
        let servers: Vec<&ServerClient> = self.sides.iter().filter_map(|side| side.server.as_ref()).collect();
        let [first, others @ ..] = &servers[..] else { return Ok(()) };
        if self.phases.has(&[Phase::Clear]) || !others.iter().any(|other| other.is(first)) {
            return Ok(());
        }
        let info = deadline(env, REQUEST_LIMIT, first.info()).await;
        if !info.is_ok_and(|info| info.is_ok_and(|info| info.is_some_and(|info| info.storage.is_some()))) {
            return Ok(());
        }
        if others.iter().any(|other| !other.is(first)) {
            return Err(PlanError::StorageReuse);
        }
        caveats.push(LoadCaveat::StorageKeepsBlocks);
        Ok(())
    }
}
