//! An operation's time limits: the batch's deadline, and the limit on time without progress.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::types::Deadline;
use crate::{MonoClock, TransferStep};
use mcctl_base::Mono;

/// How often a blocked call wakes up to check the time.
pub(super) const TICK: Duration = Duration::from_millis(50);
/// Once another operation on the same peer has timed out, an operation times out after this long
/// without progress.
const COMPANION_LIMIT: Duration = Duration::from_secs(1);

/// How long a thread polls for a response before it sleeps.
const BUSY_WAIT: Duration = Duration::from_micros(50);

/// Monitors one thread's runs, one after another.
pub(super) struct ProgressMonitor<'a> {
    clock: &'a MonoClock,
    deadline: Deadline,
    /// Number of operations on this peer that have timed out.
    hung: &'a AtomicU64,
    hung_before: u64,
    still_since: Option<Mono>,
    busy_wait: bool,
}

/// Why an operation timed out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StepTimeout {
    /// No byte moved within the step's limit.
    Still(TransferStep, Duration),
    /// The batch's deadline passed, although bytes were moving.
    Late(TransferStep, Duration),
}

impl<'a> ProgressMonitor<'a> {
    pub(super) fn new(clock: &'a MonoClock, deadline: Deadline, hung: &'a AtomicU64) -> ProgressMonitor<'a> {
        ProgressMonitor {
            clock,
            deadline,
            hung,
            hung_before: hung.load(Ordering::Relaxed),
            still_since: None,
            busy_wait: false,
        }
    }

    /// Sets whether the thread polls for a response before it sleeps.
    pub(super) fn busy_wait(self, busy_wait: bool) -> ProgressMonitor<'a> {
        ProgressMonitor { busy_wait, ..self }
    }

    /// Calls `is_ready` until it returns true, for a time that is shorter than waking an idle
    /// processor takes.
    pub(super) fn poll(&self, is_ready: impl Fn() -> bool) {
        let began = (self.clock)();
        while self.busy_wait && !is_ready() && (self.clock)().since(began) < BUSY_WAIT {
            std::hint::spin_loop();
        }
    }

    /// Starts monitoring another run. Timeouts on the peer since this monitor was created still
    /// shorten the run's limit.
    pub(super) fn begin(&mut self) {
        self.still_since = None;
    }

    /// Returns the batch's time limit if its deadline has passed.
    pub(super) fn over(&self) -> Option<Duration> {
        ((self.clock)() >= self.deadline.until).then_some(self.deadline.allowed)
    }

    /// Records that some bytes moved.
    pub(super) fn moved(&mut self, step: TransferStep) -> Result<(), StepTimeout> {
        self.still_since = None;
        if (self.clock)() >= self.deadline.until { Err(StepTimeout::Late(step, self.deadline.allowed)) } else { Ok(()) }
    }

    /// Records that a blocked call woke up after a [`TICK`] without progress.
    pub(super) fn still(&mut self, step: TransferStep, limit: Duration) -> Result<(), StepTimeout> {
        let now = (self.clock)();
        let since = *self.still_since.get_or_insert(now - TICK);
        let still = now.since(since);
        let companion = self.hung.load(Ordering::Relaxed) != self.hung_before && still >= COMPANION_LIMIT;
        if still >= limit || companion {
            self.hung.fetch_add(1, Ordering::Relaxed);
            return Err(StepTimeout::Still(step, still.min(limit)));
        }
        if now >= self.deadline.until {
            self.hung.fetch_add(1, Ordering::Relaxed);
            return Err(StepTimeout::Still(step, self.deadline.allowed));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    fn clock_at(ms: &Arc<AtomicU64>) -> MonoClock {
        let ms = Arc::clone(ms);
        Arc::new(move || Mono::from_ms(ms.load(Ordering::Relaxed)))
    }

    fn by(ms: u64) -> Deadline {
        Deadline::after(Mono::from_ms(1000), Duration::from_millis(ms - 1000))
    }

    #[test]
    fn no_progress_for_the_limit_times_out_and_progress_resets_it() {
        let ms = Arc::new(AtomicU64::new(1000));
        let clock = clock_at(&ms);
        let hung = AtomicU64::new(0);
        let mut monitor = ProgressMonitor::new(&clock, by(60_000), &hung);
        let limit = Duration::from_secs(2);
        assert_eq!(monitor.still(TransferStep::Body, limit), Ok(()));
        ms.store(2900, Ordering::Relaxed);
        assert_eq!(monitor.still(TransferStep::Body, limit), Ok(()));
        assert_eq!(monitor.moved(TransferStep::Body), Ok(()));
        ms.store(2951, Ordering::Relaxed);
        assert_eq!(monitor.still(TransferStep::Body, limit), Ok(()));
        ms.store(4951, Ordering::Relaxed);
        assert_eq!(monitor.still(TransferStep::Body, limit), Err(StepTimeout::Still(TransferStep::Body, limit)));
        assert_eq!(hung.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn the_batch_deadline_applies_with_and_without_progress() {
        let ms = Arc::new(AtomicU64::new(1000));
        let clock = clock_at(&ms);
        let hung = AtomicU64::new(0);
        let mut monitor = ProgressMonitor::new(&clock, by(1500), &hung);
        ms.store(1500, Ordering::Relaxed);
        let time = Duration::from_millis(500);
        assert_eq!(monitor.moved(TransferStep::Body), Err(StepTimeout::Late(TransferStep::Body, time)));
        assert_eq!(hung.load(Ordering::Relaxed), 0, "a slow peer is not a dead peer");
        assert_eq!(
            monitor.still(TransferStep::Status, Duration::from_secs(30)),
            Err(StepTimeout::Still(TransferStep::Status, time))
        );
    }

    #[test]
    fn after_another_timeout_one_second_without_progress_suffices() {
        let ms = Arc::new(AtomicU64::new(1000));
        let clock = clock_at(&ms);
        let hung = AtomicU64::new(0);
        let mut monitor = ProgressMonitor::new(&clock, by(60_000), &hung);
        let limit = Duration::from_secs(30);
        assert_eq!(monitor.still(TransferStep::Status, limit), Ok(()));
        hung.fetch_add(1, Ordering::Relaxed);
        ms.store(1900, Ordering::Relaxed);
        assert_eq!(monitor.still(TransferStep::Status, limit), Ok(()));
        ms.store(1950, Ordering::Relaxed);
        assert!(matches!(monitor.still(TransferStep::Status, limit), Err(StepTimeout::Still(..))));
    }
}
