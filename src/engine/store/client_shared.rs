//! What a client shares with its clones, and what it holds until it is stopped.

use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::damage::DamageLog;
use crate::name::NodeName;
use crate::writing_keys::WritingKeys;
use mcctl_base::{HostPort, Mono};
use mcctl_transfer::{Registration, TransferEngine, TransferError};

/// What a client shares with its clones and with the clients from
/// [`StoreClient::another`](crate::StoreClient::another).
pub(crate) struct ClientShared {
    pub engine: TransferEngine,
    /// Number of threads that wait for a response of the master, of those that poll for it.
    pub callers: Arc<AtomicUsize>,
    pub failure_log: FailureLog,
    pub damage: DamageLog,
    pub writing: Arc<WritingKeys>,
    /// The name of this process's segments, if it has any.
    pub name: HostPort,
    /// What is released when the client is [stopped](crate::StoreClient::stop).
    pub held: Mutex<Option<HeldByClient>>,
}

/// Limits log lines about failed transfers to one per second.
#[derive(Debug, Default)]
pub(crate) struct FailureLog {
    last: Mutex<Option<Mono>>,
}

impl FailureLog {
    /// Returns true if a line may be logged at `now`, and counts it.
    pub(crate) fn allows(&self, now: Mono) -> bool {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let is_allowed = last.is_none_or(|last| now.since(last) >= Duration::from_secs(1));
        if is_allowed {
            *last = Some(now);
        }
        is_allowed
    }
}

/// What a client holds until it is stopped.
pub(crate) struct HeldByClient {
    /// Reserves the port in the name.
    pub name: NodeName,
    pub local_buffer: Option<Registration>,
}

impl ClientShared {
    /// Locks what the client holds.
    pub(crate) fn held(&self) -> MutexGuard<'_, Option<HeldByClient>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Releases the local buffer and the name, and stops the engine, which removes its records from
    /// the metadata service.
    ///
    /// # Errors
    /// The records cannot be removed.
    pub(crate) async fn stop(&self) -> Result<(), TransferError> {
        let held = self.held().take();
        let (_name, local_buffer) = held.map_or((None, None), |held| (Some(held.name), held.local_buffer));
        if let Some(local_buffer) = local_buffer
            && let Err(error) = self.engine.deregister(local_buffer).await
        {
            tracing::debug!(%error, "cannot deregister the local buffer");
        }
        self.engine.shutdown().await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_per_second_is_logged() {
        let log = FailureLog::default();
        let allowed = [0, 1, 999, 1000, 1500, 2100].map(|ms| log.allows(Mono::from_ms(5000 + ms)));
        assert_eq!(allowed, [true, false, false, true, false, true]);
    }
}
