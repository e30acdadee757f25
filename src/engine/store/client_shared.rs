//! What a client shares with its clones, and what it holds until it is stopped.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::engine::base::HostPort;
use crate::engine::store::name::NodeName;
use crate::engine::transfer::{Registration, TransferEngine, TransferError};

/// What a client shares with its clones and with the clients from [`StoreClient::another`](crate::engine::store::StoreClient::another).
pub(in crate::engine::store) struct ClientShared {
    pub engine: TransferEngine,
    /// The name of this process's segments, if it has any.
    pub name: HostPort,
    /// What is released when the client is [stopped](crate::engine::store::StoreClient::stop).
    pub held: Mutex<Option<HeldByClient>>,
}

/// What a client holds until it is stopped.
pub(in crate::engine::store) struct HeldByClient {
    /// Reserves the port in the name.
    pub name: NodeName,
    pub local_buffer: Option<Registration>,
}

impl ClientShared {
    /// Locks what the client holds.
    pub fn held(&self) -> MutexGuard<'_, Option<HeldByClient>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Releases the local buffer and the name, and stops the engine, which removes its records from the metadata service.
    ///
    /// # Errors
    /// The records cannot be removed.
    pub async fn stop(&self) -> Result<(), TransferError> {
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
