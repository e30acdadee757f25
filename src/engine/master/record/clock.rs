//! The times in records, on the clock of the process that makes the change or applies the record.

use std::time::Duration;

use mcctl_base::Mono;

/// Origin of the times at which objects were last used, in a state that only applies records. Times
/// before this process started are negative on its own clock.
const USED_ORIGIN: Duration = Duration::from_secs(1 << 32);

/// Whether this is the time of a use that was read from a record ([`RecordClock::used`]), and not a
/// time on this process's clock.
#[inline]
pub(crate) fn is_recorded_use(at: Mono) -> bool {
    at >= RECORDED_USES
}

/// All recorded uses are after this time, and no time on this process's clock is.
pub(crate) const RECORDED_USES: Mono = Mono(1 << 61);

/// The time of a recorded use on this process's clock, relative to `from`, in milliseconds.
pub(crate) fn recorded_use_ms(at: Mono, from: Mono) -> i64 {
    let origin = from + USED_ORIGIN;
    let ms = |time: Duration| i64::try_from(time.as_millis()).unwrap_or(i64::MAX);
    ms(at.since(origin)) - ms(origin.since(at))
}

/// Converts a record's durations to this process's clock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RecordClock {
    pub now: Mono,
    /// How long before `now` the record was written.
    pub age: Duration,
}

impl RecordClock {
    /// The time `ms` after the record was written, but not before `now`.
    pub(crate) fn after(&self, ms: u64) -> Mono {
        self.now + Duration::from_millis(ms).saturating_sub(self.age)
    }

    /// The time `ms` after `now`. A quarantine must not end early, and the age depends on the wall
    /// clock, which may have been set.
    pub(crate) fn in_full(&self, ms: u64) -> Mono {
        self.now + Duration::from_millis(ms)
    }

    /// The time `ms` after the record was written, on the clock that begins [`USED_ORIGIN`] before
    /// this process's.
    pub(crate) fn used(&self, ms: i64) -> Mono {
        let from = self.now + USED_ORIGIN - self.age;
        let distance = Duration::from_millis(ms.unsigned_abs());
        if ms < 0 { from - distance } else { from + distance }
    }
}

/// The times of a leader's change, on its own clock. They are precise: a record contains durations
/// in milliseconds, rounded up.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ChangeTimes {
    /// The change does not depend on the time.
    Untimed,
    /// The change is made at this time. A duration in the record counts from it.
    At(Mono),
    /// The change is made at `now`. The duration in the record ends at `end`.
    Until { now: Mono, end: Mono },
}

impl ChangeTimes {
    /// When the change is made.
    #[inline]
    pub(crate) fn now(self) -> Mono {
        match self {
            ChangeTimes::At(now) | ChangeTimes::Until { now, .. } => now,
            ChangeTimes::Untimed => {
                debug_assert!(false, "the change depends on the time");
                Mono::ZERO
            }
        }
    }

    /// When the duration in the record ends, which is `ms` milliseconds long.
    #[inline]
    pub(crate) fn end(self, ms: u64) -> Mono {
        match self {
            ChangeTimes::Until { end, .. } => end,
            ChangeTimes::At(_) | ChangeTimes::Untimed => self.now() + Duration::from_millis(ms),
        }
    }
}
