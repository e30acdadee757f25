//! The lanes to one peer: how many there may be, which are idle, and who waits for one.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::engine::base::Mono;
use crate::engine::transfer::Clock;
use crate::engine::transfer::config::TransferSettings;
use crate::engine::transfer::tcp::lane::Lane;
use crate::engine::transfer::tcp::watch::TICK;
use crate::engine::transfer::transport::Deadline;

/// Lanes to one peer.
pub(super) struct Pool {
    state: Mutex<State>,
    freed: Condvar,
    keep: bool,
    queued: usize,
    pending: usize,
    admission: Duration,
}

struct State {
    idle: Vec<Lane>,
    /// Lanes that may still be taken, idle ones included.
    free: usize,
    waiting: usize,
    /// Lanes taken before this changed are not kept.
    epoch: u64,
}

/// The right to use a lane, and the lane, if it was open. Given back when it is dropped; without a lane unless it is well.
pub(super) struct Held<'a> {
    pool: &'a Pool,
    pub(super) lane: Option<Lane>,
    epoch: u64,
}

/// Why there is no lane.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum NoLane {
    /// Too many wait already.
    Busy(usize),
    /// None became free in time.
    Timeout(Duration),
}

impl Pool {
    pub(super) fn new(settings: &TransferSettings) -> Pool {
        Pool {
            state: Mutex::new(State { idle: Vec::new(), free: settings.lanes_per_peer.max(1), waiting: 0, epoch: 0 }),
            freed: Condvar::new(),
            keep: settings.keep_lanes,
            queued: settings.queued_per_peer,
            pending: settings.pending_per_peer,
            admission: settings.admission,
        }
    }

    /// Take one lane, and up to `want` if that leaves enough for those who wait.
    pub(super) fn take(&self, want: usize, deadline: Deadline, clock: &Clock) -> Result<Vec<Held<'_>>, NoLane> {
        let mut state = self.state();
        if state.free == 0 {
            state = self.wait(state, deadline.until, clock)?;
        }
        let share = state.free.saturating_sub(state.waiting).max(1);
        let count = want.clamp(1, share);
        state.free -= count;
        let epoch = state.epoch;
        Ok((0..count).map(|_| Held { pool: self, lane: state.idle.pop(), epoch }).collect())
    }

    fn wait<'s>(
        &'s self,
        mut state: MutexGuard<'s, State>,
        until: Mono,
        clock: &Clock,
    ) -> Result<MutexGuard<'s, State>, NoLane> {
        if state.waiting >= self.queued + self.pending {
            return Err(NoLane::Busy(state.waiting));
        }
        let began = clock();
        let until = if state.waiting >= self.queued { until.min(began + self.admission) } else { until };
        state.waiting += 1;
        while state.free == 0 {
            let now = clock();
            if now >= until {
                state.waiting -= 1;
                return Err(NoLane::Timeout(until.since(began)));
            }
            // Woken when a lane is freed; the tick is for a clock that is not the system's.
            let limit = until.since(now).min(TICK);
            state = self.freed.wait_timeout(state, limit).unwrap_or_else(PoisonError::into_inner).0;
        }
        state.waiting -= 1;
        Ok(state)
    }

    /// Close the idle lanes, and do not keep those that are in use now.
    pub(super) fn forget(&self) {
        let mut state = self.state();
        state.epoch += 1;
        let idle = std::mem::take(&mut state.idle);
        drop(state);
        drop(idle);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        let mut state = self.pool.state();
        state.free += 1;
        let keep = self.pool.keep && self.epoch == state.epoch;
        let unkept = match self.lane.take() {
            Some(lane) if keep => {
                state.idle.push(lane);
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

    fn pool(lanes: usize) -> Pool {
        let settings = TransferSettings {
            lanes_per_peer: lanes,
            queued_per_peer: 1,
            pending_per_peer: 0,
            ..TransferSettings::default()
        };
        Pool::new(&settings)
    }

    /// A clock that a tick of waiting moves on by 50 ms.
    fn ticking() -> Clock {
        let ms = AtomicU64::new(0);
        Arc::new(move || Mono::from_ms(ms.fetch_add(50, Ordering::Relaxed)))
    }

    #[test]
    fn no_more_lanes_are_out_than_there_may_be_and_dropped_ones_come_back() {
        let (pool, clock) = (pool(3), ticking());
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
            Some(NoLane::Timeout(Duration::ZERO))
        );
    }

    #[test]
    fn one_who_waits_gets_the_lane_that_is_freed_and_one_too_many_is_refused() {
        let pool = Arc::new(pool(1));
        let real: Clock = ticking();
        let end = Deadline::after(Mono::ZERO, Duration::from_secs(1 << 30));
        let held = pool.take(1, end, &real).ok().unwrap();
        let waiter = std::thread::spawn({
            let (pool, clock) = (Arc::clone(&pool), Arc::clone(&real));
            move || pool.take(1, end, &clock).is_ok()
        });
        while pool.state().waiting == 0 {
            std::thread::yield_now();
        }
        assert_eq!(pool.take(1, end, &real).err(), Some(NoLane::Busy(1)));
        drop(held);
        assert!(waiter.join().unwrap());
        assert_eq!(pool.state().free, 1);
    }
}
