//! Detects stalls of the master and computes how much longer its clients live. Pure: each call receives the time.
//!
//! After a stop of a minute (process or machine), the master would expire every client whose pings it has not read yet. So the ticker
//! announces when it will run next. If neither the ticker nor any call has had the state for a while after that, the master stalled,
//! and its clients live longer.
//!
//! They do not get the whole stall. A master that is short of processor time stalls again and again, and would never expire any
//! client. But it reads the pings that arrive between two stalls. So a part of each stall counts against the clients: as much as a
//! client that pings can spare several times. With a TTL of ten seconds that is 2.25 s. A dead client is then detected after ten
//! seconds by a master that is always two seconds late, after twice that if it is always four seconds late, and after at most five
//! ticks in any case.

use std::time::Duration;

use crate::engine::base::Mono;

/// Nobody had the state for this much longer than announced: the master stalled.
const STALL_MIN: Duration = Duration::from_millis(100);
/// Total stall time from which a report is due.
const REPORT_MIN: Duration = Duration::from_secs(1);
/// Ping interval of upstream's clients. The TTL must always leave room for it.
const PING_INTERVAL: Duration = Duration::from_secs(1);

/// Tracks the time in which nothing ran.
#[derive(Debug)]
pub(super) struct StallDetector {
    /// When the ticker will run next.
    due: Mono,
    /// The latest time at which any caller had the state.
    latest: Mono,
    /// The part of each stall that counts against the clients.
    counted: Duration,
    unreported: StallReport,
}

/// Stalls since the last report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct StallReport {
    /// Total time in which nothing ran.
    pub stalled: Duration,
    /// Total time by which the clients' deadlines were extended.
    pub extension: Duration,
}

impl StallDetector {
    /// A detector without stalls. The ticker runs at once.
    pub fn new(now: Mono, client_ttl: Duration) -> StallDetector {
        // A fraction of what the TTL leaves after one ping interval, but never zero.
        let counted = (client_ttl.saturating_sub(PING_INTERVAL) / 4).max(client_ttl / 8);
        StallDetector { due: now, latest: now, counted, unreported: StallReport::default() }
    }

    /// Records that a caller has the state at `now`. Returns by how much to extend the clients' deadlines. The caller must do that
    /// before anything expires and before the first ping is read: pings that arrived during the stall must find their clients alive.
    pub fn observe(&mut self, now: Mono) -> Duration {
        let nothing_ran = now.since(self.latest.max(self.due));
        // A caller that read the clock earlier may get the state later. Time never goes back, or one stall would be counted twice.
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

    /// The latest time passed to [`observe`](StallDetector::observe): the state's time.
    pub fn latest(&self) -> Mono {
        self.latest
    }

    /// Announces that the ticker will run again at `due`.
    pub fn expect_by(&mut self, due: Mono) {
        self.due = due;
    }

    /// Takes the stalls since the last report, if they are long enough to report.
    pub fn take_report(&mut self) -> Option<StallReport> {
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

    /// A detector at 1,000 s, with clients that live for 10 s.
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
        // The ticker plans from the state's time, not from the time at which it read the clock.
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
