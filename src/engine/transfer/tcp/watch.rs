//! How long an operation is waited for: the batch's deadline, and the limit on standing still.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::engine::base::Mono;
use crate::engine::transfer::transport::Deadline;
use crate::engine::transfer::{Clock, Step};

/// How often a blocked call wakes up to look at the time.
pub(super) const TICK: Duration = Duration::from_millis(50);
/// Once another operation on the same peer was given up, standing still for this long is enough.
const COMPANION_LIMIT: Duration = Duration::from_secs(1);

/// Watches the runs that one thread carries, one after another.
pub(super) struct Watch<'a> {
    clock: &'a Clock,
    deadline: Deadline,
    /// Counts operations on this peer that were given up.
    hung: &'a AtomicU64,
    hung_before: u64,
    still_since: Option<Mono>,
}

/// It is time to give up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GiveUp {
    /// Nothing moved for the step's limit.
    Still(Step, Duration),
    /// The batch's time is over, though bytes were moving.
    Late(Step, Duration),
}

impl<'a> Watch<'a> {
    pub(super) fn new(clock: &'a Clock, deadline: Deadline, hung: &'a AtomicU64) -> Watch<'a> {
        Watch { clock, deadline, hung, hung_before: hung.load(Ordering::Relaxed), still_since: None }
    }

    /// Another run is waited for. What was given up since this watch began still counts: its companions need not wait as long.
    pub(super) fn begin(&mut self) {
        self.still_since = None;
    }

    /// The batch's time, if it is over.
    pub(super) fn over(&self) -> Option<Duration> {
        ((self.clock)() >= self.deadline.until).then_some(self.deadline.allowed)
    }

    /// Bytes moved, though not all.
    pub(super) fn moved(&mut self, step: Step) -> Result<(), GiveUp> {
        self.still_since = None;
        if (self.clock)() >= self.deadline.until { Err(GiveUp::Late(step, self.deadline.allowed)) } else { Ok(()) }
    }

    /// A blocked call woke up for the time's sake: nothing moved for a [`TICK`].
    pub(super) fn still(&mut self, step: Step, limit: Duration) -> Result<(), GiveUp> {
        let now = (self.clock)();
        let since = *self.still_since.get_or_insert(now - TICK);
        let still = now.since(since);
        let companion = self.hung.load(Ordering::Relaxed) != self.hung_before && still >= COMPANION_LIMIT;
        if still >= limit || companion {
            self.hung.fetch_add(1, Ordering::Relaxed);
            return Err(GiveUp::Still(step, still.min(limit)));
        }
        if now >= self.deadline.until {
            self.hung.fetch_add(1, Ordering::Relaxed);
            return Err(GiveUp::Still(step, self.deadline.allowed));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    fn clock_at(ms: &Arc<AtomicU64>) -> Clock {
        let ms = Arc::clone(ms);
        Arc::new(move || Mono::from_ms(ms.load(Ordering::Relaxed)))
    }

    fn by(ms: u64) -> Deadline {
        Deadline::after(Mono::from_ms(1000), Duration::from_millis(ms - 1000))
    }

    #[test]
    fn standing_still_for_the_limit_is_the_end_and_moving_starts_it_anew() {
        let ms = Arc::new(AtomicU64::new(1000));
        let (clock, hung) = (clock_at(&ms), AtomicU64::new(0));
        let mut watch = Watch::new(&clock, by(60_000), &hung);
        let limit = Duration::from_secs(2);
        assert_eq!(watch.still(Step::Body, limit), Ok(()));
        ms.store(2900, Ordering::Relaxed);
        assert_eq!(watch.still(Step::Body, limit), Ok(()));
        assert_eq!(watch.moved(Step::Body), Ok(()));
        ms.store(2951, Ordering::Relaxed);
        assert_eq!(watch.still(Step::Body, limit), Ok(()));
        ms.store(4951, Ordering::Relaxed);
        assert_eq!(watch.still(Step::Body, limit), Err(GiveUp::Still(Step::Body, limit)));
        assert_eq!(hung.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn the_batchs_time_ends_it_whether_bytes_move_or_not() {
        let ms = Arc::new(AtomicU64::new(1000));
        let (clock, hung) = (clock_at(&ms), AtomicU64::new(0));
        let mut watch = Watch::new(&clock, by(1500), &hung);
        ms.store(1500, Ordering::Relaxed);
        let time = Duration::from_millis(500);
        assert_eq!(watch.moved(Step::Body), Err(GiveUp::Late(Step::Body, time)));
        assert_eq!(hung.load(Ordering::Relaxed), 0, "a slow peer is no dead peer");
        assert_eq!(watch.still(Step::Status, Duration::from_secs(30)), Err(GiveUp::Still(Step::Status, time)));
    }

    #[test]
    fn when_another_operation_was_given_up_a_second_of_standing_still_is_enough() {
        let ms = Arc::new(AtomicU64::new(1000));
        let (clock, hung) = (clock_at(&ms), AtomicU64::new(0));
        let mut watch = Watch::new(&clock, by(60_000), &hung);
        let limit = Duration::from_secs(30);
        assert_eq!(watch.still(Step::Status, limit), Ok(()));
        hung.fetch_add(1, Ordering::Relaxed);
        ms.store(1900, Ordering::Relaxed);
        assert_eq!(watch.still(Step::Status, limit), Ok(()));
        ms.store(1950, Ordering::Relaxed);
        assert!(matches!(watch.still(Step::Status, limit), Err(GiveUp::Still(..))));
    }
}
