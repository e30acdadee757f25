//! The pool of connections to one peer: its size, its idle connections, and the batches waiting for
//! one.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::MonoClock;
use crate::tcp::connection::DataConnection;
use crate::tcp::progress::TICK;
use crate::tcp::settings::TcpSettings;
use crate::types::Deadline;
use mcctl_base::Mono;

/// Connections to one peer.
pub(super) struct DataConnectionPool {
    state: Mutex<PoolState>,
    freed: Condvar,
    keep: bool,
    queued: usize,
    pending: usize,
    admission: Duration,
}

struct PoolState {
    idle: Vec<DataConnection>,
    /// Connections that may still be acquired, including idle ones.
    free: usize,
    waiting: usize,
    /// Connections acquired in an earlier epoch are closed when they are returned.
    epoch: u64,
}

/// A lease on a connection slot, with its connection if one is open. Dropping the lease returns
/// both to the pool. A failed connection must be removed from the lease first.
pub(super) struct ConnectionLease<'a> {
    pool: &'a DataConnectionPool,
    pub(super) connection: Option<DataConnection>,
    epoch: u64,
}

/// Why no connection was acquired.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum AcquireError {
    /// Too many batches are waiting.
    Busy(usize),
    /// No connection became free in time.
    Timeout(Duration),
}

impl DataConnectionPool {
    pub(super) fn new(settings: &TcpSettings) -> DataConnectionPool {
        DataConnectionPool {
            state: Mutex::new(PoolState {
                idle: Vec::new(),
                free: settings.connections_per_peer.max(1),
                waiting: 0,
                epoch: 0,
            }),
            freed: Condvar::new(),
            keep: settings.keep_connections,
            queued: settings.queued_per_peer,
            pending: settings.pending_per_peer,
            admission: settings.admission,
        }
    }

    /// Acquires at least one connection, and up to `connections_max` if that leaves enough for
    /// waiting batches.
    pub(super) fn take(
        &self,
        connections_max: usize,
        deadline: Deadline,
        clock: &MonoClock,
    ) -> Result<Vec<ConnectionLease<'_>>, AcquireError> {
        let mut state = self.state();
        if state.free == 0 {
            state = self.wait(state, deadline.until, clock)?;
        }
        let share = state.free.saturating_sub(state.waiting).max(1);
        let count = connections_max.clamp(1, share);
        state.free -= count;
        let epoch = state.epoch;
        Ok((0..count).map(|_| ConnectionLease { pool: self, connection: state.idle.pop(), epoch }).collect())
    }

    fn wait<'s>(
        &'s self,
        mut state: MutexGuard<'s, PoolState>,
        until: Mono,
        clock: &MonoClock,
    ) -> Result<MutexGuard<'s, PoolState>, AcquireError> {
        if state.waiting >= self.queued + self.pending {
            return Err(AcquireError::Busy(state.waiting));
        }
        let began = clock();
        let until = if state.waiting >= self.queued { until.min(began + self.admission) } else { until };
        state.waiting += 1;
        while state.free == 0 {
            let now = clock();
            if now >= until {
                state.waiting -= 1;
                return Err(AcquireError::Timeout(until.since(began)));
            }
            // Woken when a connection is returned. The tick is needed for clocks other than the
            // system clock.
            let limit = until.since(now).min(TICK);
            state = self.freed.wait_timeout(state, limit).unwrap_or_else(PoisonError::into_inner).0;
        }
        state.waiting -= 1;
        Ok(state)
    }

    /// Closes idle connections. Connections in use are closed when they are returned.
    pub(super) fn forget(&self) {
        let mut state = self.state();
        state.epoch += 1;
        let idle = std::mem::take(&mut state.idle);
        drop(state);
        drop(idle);
    }

    fn state(&self) -> MutexGuard<'_, PoolState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for ConnectionLease<'_> {
    fn drop(&mut self) {
        let mut state = self.pool.state();
        state.free += 1;
        let keep = self.pool.keep && self.epoch == state.epoch;
        let unkept = match self.connection.take() {
            Some(connection) if keep => {
                state.idle.push(connection);
                None
            }
            other => other,
        };
        let wake = state.waiting > 0;
        drop(state);
        drop(unkept);
        if wake {
            self.pool.freed.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    fn pool(connections: usize) -> DataConnectionPool {
        let settings = TcpSettings {
            connections_per_peer: connections,
            queued_per_peer: 1,
            pending_per_peer: 0,
            ..TcpSettings::default()
        };
        DataConnectionPool::new(&settings)
    }

    /// A clock that advances by 50 ms per call.
    fn ticking() -> MonoClock {
        let ms = AtomicU64::new(0);
        Arc::new(move || Mono::from_ms(ms.fetch_add(50, Ordering::Relaxed)))
    }

    #[test]
    fn the_pool_limits_leases_and_reuses_returned_ones() {
        let pool = pool(3);
        let clock = ticking();
        let end = Deadline::after(Mono::ZERO, Duration::from_secs(1000));
        let two = pool.take(2, end, &clock).ok().unwrap();
        assert_eq!((two.len(), pool.take(5, end, &clock).ok().unwrap().len()), (2, 1));
        let three = {
            drop(two);
            pool.take(5, end, &clock).ok().unwrap()
        };
        assert_eq!(three.len(), 3);
        assert_eq!(
            pool.take(1, Deadline::after(Mono::ZERO, Duration::ZERO), &clock).err(),
            Some(AcquireError::Timeout(Duration::ZERO))
        );
    }

    #[test]
    fn a_waiter_gets_the_freed_connection_and_the_next_is_refused() {
        let pool = Arc::new(pool(1));
        let real: MonoClock = ticking();
        let end = Deadline::after(Mono::ZERO, Duration::from_secs(1 << 30));
        let lease = pool.take(1, end, &real).ok().unwrap();
        let waiter = std::thread::spawn({
            let pool = Arc::clone(&pool);
            let clock = Arc::clone(&real);
            move || pool.take(1, end, &clock).is_ok()
        });
        while pool.state().waiting == 0 {
            std::thread::yield_now();
        }
        assert_eq!(pool.take(1, end, &real).err(), Some(AcquireError::Busy(1)));
        drop(lease);
        assert!(waiter.join().unwrap());
        assert_eq!(pool.state().free, 1);
    }
}
