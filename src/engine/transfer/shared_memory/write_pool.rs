//! The connections for writes to one node.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::shared_memory::link::ServerIdentity;
use crate::shared_memory::write_connection::WriteConnection;
use mcctl_base::Mono;

/// Maximum number of connections. Further threads use the engine's transport.
const CONNECTIONS_MAX: usize = 8;
/// No connection is opened in this time after an attempt has failed, or after the node could not
/// read a buffer.
const RETRY_AFTER: Duration = Duration::from_secs(30);

/// At most [`CONNECTIONS_MAX`] connections, each of which one thread uses at a time.
#[derive(Default)]
pub(super) struct WritePool {
    state: Mutex<PoolState>,
}

/// The reason for which no connection can be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoConnection {
    /// Too many are in use, or an attempt has failed recently.
    Unavailable,
    /// The node's generation has changed.
    Ended,
}

#[derive(Default)]
struct PoolState {
    idle: Vec<WriteConnection>,
    /// Number of connections in use.
    busy: usize,
    /// No connection is opened or used before this time.
    again: Mono,
}

impl WritePool {
    /// Takes a connection of this generation, and opens one if necessary.
    pub(super) fn take(
        &self,
        server: &ServerIdentity,
        generation: u64,
        now: Mono,
    ) -> Result<WriteConnection, NoConnection> {
        {
            let mut state = self.state();
            state.idle.retain(|connection| connection.generation >= generation);
            if now < state.again || state.busy >= CONNECTIONS_MAX {
                return Err(NoConnection::Unavailable);
            }
            state.busy += 1;
            let same = state.idle.iter().position(|connection| connection.generation == generation);
            if let Some(index) = same {
                return Ok(state.idle.swap_remove(index));
            }
        }
        self.open(server, generation, now)
    }

    /// Replaces a connection that the node has closed with one of the same generation.
    pub(super) fn replace(
        &self,
        closed: WriteConnection,
        server: &ServerIdentity,
        now: Mono,
    ) -> Result<WriteConnection, NoConnection> {
        let generation = closed.generation;
        drop(closed);
        self.open(server, generation, now)
    }

    fn open(&self, server: &ServerIdentity, generation: u64, now: Mono) -> Result<WriteConnection, NoConnection> {
        match WriteConnection::open(server) {
            Ok(connection) if connection.generation == generation => Ok(connection),
            Ok(_) => {
                self.discard();
                Err(NoConnection::Ended)
            }
            Err(error) => {
                tracing::debug!(%error, "cannot use shared memory for writes; using the transport");
                self.discard();
                self.pause(now);
                Err(NoConnection::Unavailable)
            }
        }
    }

    /// Returns a connection for the next use.
    pub(super) fn put(&self, connection: WriteConnection) {
        let mut state = self.state();
        state.busy = state.busy.saturating_sub(1);
        state.idle.push(connection);
    }

    /// Call instead of [`put`](WritePool::put) if the connection is closed.
    pub(super) fn discard(&self) {
        let mut state = self.state();
        state.busy = state.busy.saturating_sub(1);
    }

    /// Stops using connections for the pause after a failure.
    pub(super) fn pause(&self, now: Mono) {
        let mut state = self.state();
        state.again = now + RETRY_AFTER;
        state.idle.clear();
    }

    /// Closes the idle connections. Those in use are closed by the node.
    pub(super) fn close_idle(&self) {
        self.state().idle.clear();
    }

    /// Closes the idle connections with which the node holds memory that this process has released.
    pub(super) fn close_outdated(&self) {
        self.state().idle.retain(|connection| !connection.is_outdated());
    }

    fn state(&self) -> MutexGuard<'_, PoolState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
