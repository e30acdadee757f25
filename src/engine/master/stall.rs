//! Detects when the master stalls and computes how far to extend client deadlines. Pure: each call
//! receives the time.
//!
//! After a one-minute stop (of the process or the machine), the master would expire every client
//! whose pings it has not read yet. To prevent this, the ticker announces when it will run next. If
//! neither the ticker nor any call locks the state soon after that time, the master has stalled,
//! and client deadlines are extended.
//!
//! The extension is shorter than the stall. A master that is short of processor time stalls again
//! and again, and would otherwise never expire any client. It does read the pings that arrive
//! between two stalls. So part of each stall counts against the clients. This part is small enough
//! that a client that sends pings does not expire even after several stalls in a row. With a TTL of
//! ten seconds, it is 2.25 s: a dead client is detected after ten seconds if the master is always
//! two seconds late, after twenty seconds if it is always four seconds late, and after at most five
//! ticks in any case.

use std::time::Duration;

use mcctl_base::Mono;

/// The master has stalled if no caller locks the state within this time after the announced time.
const STALL_MIN: Duration = Duration::from_millis(100);
/// Minimum total stall time to report.
const REPORT_MIN: Duration = Duration::from_secs(1);
/// Ping interval of upstream's clients. The TTL must always leave room for one interval.
const PING_INTERVAL: Duration = Duration::from_secs(1);

/// Tracks the time during which nothing ran.
#[derive(Debug)]
pub(super) struct StallDetector {
    /// When the ticker will run next.
    due: Mono,
    /// The latest time at which any caller locked the state.
    latest: Mono,
    /// The part of each stall that counts against the clients.
    counted: Duration,
    unreported: StallReport,
}

/// Total stall time since the last report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct StallReport {
    /// Total time during which nothing ran.
    pub stalled: Duration,
    /// Total time by which the clients' deadlines were extended.
    pub extension: Duration,
}

impl StallDetector {
    /// Creates a detector with no stalls recorded. The ticker runs immediately.
    pub(crate) fn new(now: Mono, client_ttl: Duration) -> StallDetector {
        // A fraction of what remains of the TTL after one ping interval, but never zero.
        let counted = (client_ttl.saturating_sub(PING_INTERVAL) / 4).max(client_ttl / 8);
        StallDetector { due: now, latest: now, counted, unreported: StallReport::default() }
    }

    /// Records that a caller locked the state at `now`. Returns how far to extend the clients'
    /// deadlines. The caller must extend them before anything expires and before the first ping is
    /// read, so that clients whose pings arrived during the stall are still alive.
    pub(crate) fn observe(&mut self, now: Mono) -> Duration {
        let nothing_ran = now.since(self.latest.max(self.due));
        // A caller that read the clock earlier may lock the state later. Time must not go backward,
        // or one stall would be counted twice.
        self.latest = self.latest.max(now);
        if nothing_ran < STALL_MIN { Duration::ZERO } else { self.note(nothing_ran) }
    }

    #[cold]
    fn note(&mut self, nothing_ran: Duration) -> Duration {
        let longer = nothing_ran.saturating_sub(self.counted);
        self.unreported.stalled += nothing_ran;
        self.unreported.extension += longer;
        longer
    }

    /// The latest time passed to [`observe`](StallDetector::observe). It serves as the state's
    /// time.
    pub(crate) fn latest(&self) -> Mono {
        self.latest
    }

    /// Announces that the ticker will run again at `due`.
    pub(crate) fn expect_by(&mut self, due: Mono) {
        self.due = due;
    }

    /// Returns and resets the stalls since the last report, if they are long enough to report.
    pub(crate) fn take_report(&mut self) -> Option<StallReport> {
        let report = std::mem::take(&mut self.unreported);
        (report.stalled >= REPORT_MIN).then_some(report)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Mono {
        Mono::from_ms(ms)
    }

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    /// A detector whose clock starts at 1,000 s, for clients with a TTL of 10 s.
    fn stalls() -> StallDetector {
        StallDetector::new(at(1_000_000), ms(10_000))
    }

    #[test]
    fn a_stall_beyond_the_counted_part_extends_deadlines() {
        let mut s = stalls();
        s.expect_by(at(1_001_000));
        assert_eq!(s.observe(at(1_003_250)), ms(0));
        s.expect_by(at(1_004_000));
        assert_eq!(s.observe(at(1_064_000)), ms(57_750));
        assert_eq!(s.take_report(), Some(StallReport { stalled: ms(62_250), extension: ms(57_750) }));
        assert_eq!(s.take_report(), None);
    }

    #[test]
    fn the_shortest_ttl_leaves_room_for_a_ping_and_a_stall() {
        let mut s = StallDetector::new(at(0), ms(2_000));
        assert_eq!(s.observe(at(60_000)), ms(59_750));
    }

    #[test]
    fn a_stall_is_counted_once_despite_an_older_clock_reading() {
        let mut s = stalls();
        let read_earlier = at(1_000_500);
        s.expect_by(at(1_001_000));
        assert_eq!(s.observe(at(1_061_000)), ms(57_750), "the first caller after the stall");
        assert_eq!((s.observe(read_earlier), s.latest()), (ms(0), at(1_061_000)));
        // The ticker plans from the state's time, not from the clock reading.
        s.expect_by(s.latest() + ms(1));
        assert_eq!(s.observe(at(1_061_002)), ms(0));
    }

    #[test]
    fn time_in_which_calls_are_answered_is_not_a_stall() {
        let mut s = stalls();
        s.expect_by(at(1_000_001));
        for i in 1..=1_000 {
            assert_eq!(s.observe(at(1_000_000 + 90 * i)), ms(0));
        }
        assert_eq!(s.take_report(), None);
    }
}
