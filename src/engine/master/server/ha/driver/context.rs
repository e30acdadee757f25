//! The context that the driver and its tasks share.

use std::sync::Arc;

use crate::server::ha::disk::HaDisk;
use crate::server::ha::driver::event::DriverEvents;
use crate::server::ha::leader::gate::GatePhase;
use crate::server::ha::{HaHub, HaSettings};
use crate::server::shared::MasterShared;
use mcctl_election::ha::{ResponseGate, ResponseLimits};
use mcctl_journal::JournalError;
use mcctl_sys::env::Env;

/// The environment, what all threads of the master share, and the driver's queue. Cheap to clone.
pub(in crate::server::ha) struct HaContext<E: Env> {
    pub env: E,
    pub shared: Arc<MasterShared<E>>,
    pub hub: Arc<HaHub>,
    pub settings: Arc<HaSettings>,
    /// Sends events to the driver.
    pub events: DriverEvents<E>,
}

impl<E: Env> Clone for HaContext<E> {
    fn clone(&self) -> HaContext<E> {
        HaContext {
            env: self.env.clone(),
            shared: self.shared.clone(),
            hub: self.hub.clone(),
            settings: self.settings.clone(),
            events: self.events.clone(),
        }
    }
}

impl<E: Env> HaContext<E> {
    /// The number of a new note in the data directory.
    pub(crate) fn number_note(&self) -> u64 {
        self.hub.disk.as_ref().map_or(0, HaDisk::number_note)
    }

    /// Waits until the data directory, if there is one, has the changes up to `last`. Returns false
    /// if they cannot be stored.
    pub(crate) async fn wait_stored(&self, last: u64) -> bool {
        match self.hub.disk.as_ref().and_then(HaDisk::log) {
            Some(log) => log.store_copied(last).await,
            None => true,
        }
    }

    /// Runs work with the data directory, if there is one, on another thread. An error ends the
    /// process, or the use of the directory.
    ///
    /// # Errors
    /// The disk reports an error that ends the process.
    pub(crate) async fn use_disk(
        &self,
        work: impl FnOnce(&HaDisk) -> Result<(), JournalError> + Send + 'static,
    ) -> Result<(), JournalError> {
        let hub = self.hub.clone();
        let work = move || {
            let Some(disk) = &hub.disk else { return Ok(()) };
            work(disk).or_else(|error| disk.fail(error))
        };
        self.env.run_blocking(work).await
    }

    /// Drops a large value on another thread, because that may take long.
    pub(crate) fn drop_elsewhere(&self, large: impl Send + 'static) {
        drop(self.env.run_blocking(move || drop(large)));
    }
}

impl<E: Env> ResponseGate for HaContext<E> {
    fn appended(&self) -> u64 {
        self.hub.tail.appended()
    }

    fn publish(&self, limits: ResponseLimits) {
        let gate = &self.hub.gate;
        gate.publish(&self.env, limits);
        if limits.fence.is_none() && matches!(gate.phase(), GatePhase::Open | GatePhase::ChangesHeld) {
            gate.set_phase(GatePhase::Released);
            // A thread may have been stopped between the gate and the state, for longer than the
            // successor's election.
            self.shared.with_guarded(|guarded, _, _| guarded.is_released = true);
        }
    }

    fn appended_before_publish(&self) -> u64 {
        self.hub.tail.last_locked()
    }
}
