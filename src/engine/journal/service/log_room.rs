//! The waits for a slow disk of the log: requests that change something, and the ticker.
//!
//! [`LogWriter::has_room`](crate::LogWriter::has_room) decides. Requests wait before they
//! are processed, so no change is lost. The log thread makes room for them, and reports it with the
//! log's progress.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use mcctl_base::Mono;

/// The value of a time in [`LogRoom`] that is not set.
const NEVER: u64 = u64::MAX;

/// The waits for the log, in nanoseconds of the monotonic clock.
#[derive(Debug)]
pub struct LogRoom {
    /// Number of requests that wait for room.
    waiting: AtomicUsize,
    /// Time from which on requests have waited for room, or [`NEVER`]. Only the log thread resets
    /// it.
    since: AtomicU64,
    /// Time for which requests have waited, without the present wait and the time that was already
    /// taken.
    waited: AtomicU64,
    /// Time at which the log thread began its present operation of the disk, or [`NEVER`].
    busy_since: AtomicU64,
    /// An operation of the disk that lasts longer than this counts as a stall.
    stall_timeout: Duration,
}

/// A request that waits.
pub(super) struct RoomWait<'a>(&'a AtomicUsize);

impl Drop for RoomWait<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl LogRoom {
    /// A log for which no request waits.
    pub(super) fn new(stall_timeout: Duration) -> LogRoom {
        LogRoom {
            waiting: AtomicUsize::new(0),
            since: AtomicU64::new(NEVER),
            waited: AtomicU64::new(0),
            busy_since: AtomicU64::new(NEVER),
            stall_timeout,
        }
    }

    /// Counts a request as waiting until the result is dropped.
    pub(super) fn enter(&self) -> RoomWait<'_> {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        RoomWait(&self.waiting)
    }

    /// Records that a request has found no room.
    pub(super) fn note_wait(&self, now: Mono) {
        let _ = self.since.compare_exchange(NEVER, now.0, Ordering::AcqRel, Ordering::Acquire);
    }

    /// The log has room again. Only for the log thread.
    pub(super) fn end_waits(&self, now: Mono) {
        let since = self.since.load(Ordering::Acquire);
        if since != NEVER {
            // Added first, so that the ticker does not run without it.
            self.waited.fetch_add(now.0.saturating_sub(since), Ordering::AcqRel);
            self.since.store(NEVER, Ordering::Release);
        }
    }

    /// Whether the log thread has not made room yet for a request that found none.
    pub(super) fn is_awaited(&self) -> bool {
        self.since.load(Ordering::Acquire) != NEVER
    }

    /// Takes the time for which requests have waited since the last call.
    pub fn take_waited(&self) -> Duration {
        Duration::from_nanos(self.waited.swap(0, Ordering::AcqRel))
    }

    /// Whether requests wait for room.
    pub fn has_waiting(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0
    }

    /// The log thread begins to use the disk.
    pub fn begin_work(&self, now: Mono) {
        self.busy_since.store(now.0, Ordering::Release);
    }

    /// The log thread no longer uses the disk.
    pub(super) fn end_work(&self) {
        self.busy_since.store(NEVER, Ordering::Release);
    }

    /// Time for which the present operation of the log thread has lasted, if this is a stall.
    pub fn stalled_for(&self, now: Mono) -> Option<Duration> {
        let since = self.busy_since.load(Ordering::Acquire);
        let busy = Duration::from_nanos(now.0.saturating_sub(since));
        (since != NEVER && busy >= self.stall_timeout).then_some(busy)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STALL: Duration = Duration::from_secs(2);

    #[test]
    fn the_time_of_a_wait_is_taken_once_after_it_has_ended() {
        let room = LogRoom::new(STALL);
        room.end_waits(Mono::from_ms(5));
        assert_eq!((room.is_awaited(), room.take_waited()), (false, Duration::ZERO));
        let waiting = [room.enter(), room.enter()];
        room.note_wait(Mono::from_ms(10));
        room.note_wait(Mono::from_ms(20));
        assert_eq!((room.is_awaited(), room.has_waiting(), room.take_waited()), (true, true, Duration::ZERO));
        room.end_waits(Mono::from_ms(50));
        drop(waiting);
        assert_eq!((room.is_awaited(), room.has_waiting()), (false, false));
        assert_eq!([room.take_waited(), room.take_waited()], [Duration::from_millis(40), Duration::ZERO]);
    }

    #[test]
    fn only_a_long_operation_is_a_stall() {
        let room = LogRoom::new(STALL);
        assert_eq!(room.stalled_for(Mono::from_ms(9_000)), None);
        room.begin_work(Mono::from_ms(1_000));
        assert_eq!(room.stalled_for(Mono::from_ms(2_999)), None);
        assert_eq!(room.stalled_for(Mono::from_ms(3_000)), Some(STALL));
        room.end_work();
        assert_eq!(room.stalled_for(Mono::from_ms(3_000)), None);
    }
}
