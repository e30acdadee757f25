//! Points in time as plain numbers, so that pure code can run with a simulated clock.

use std::fmt;
use std::ops::{Add, Sub};
use std::time::Duration;

/// A point on the monotonic clock, in nanoseconds since an origin chosen by the `Env`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Mono(pub u64);

impl Mono {
    pub const ZERO: Mono = Mono(0);

    /// The point `ms` milliseconds after the origin.
    pub const fn from_ms(ms: u64) -> Mono {
        Mono(ms * 1_000_000)
    }

    /// Time from `earlier` to `self`; zero if `earlier` is later.
    #[inline]
    pub fn since(self, earlier: Mono) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Mono {
    type Output = Mono;
    #[inline]
    fn add(self, d: Duration) -> Mono {
        Mono(self.0.saturating_add(u64::try_from(d.as_nanos()).unwrap_or(u64::MAX)))
    }
}

impl Sub<Duration> for Mono {
    type Output = Mono;
    #[inline]
    fn sub(self, d: Duration) -> Mono {
        Mono(self.0.saturating_sub(u64::try_from(d.as_nanos()).unwrap_or(u64::MAX)))
    }
}

/// Wall-clock time in milliseconds since 1970, the unit of Mooncake's timestamps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Unix(pub i64);

/// A duration for messages, rounded: `12.3 us`, `250 ms`, `1.0 s`, `33 s`, `5 min`, `7 h`,
/// `3 days`. A whole number of a unit has no decimal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RoundedDuration(pub Duration);

impl fmt::Display for RoundedDuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const MINUTE: u128 = 60;
        const HOUR: u128 = 60 * MINUTE;
        const DAY: u128 = 24 * HOUR;
        let tenths = self.0.as_millis().saturating_add(50) / 100;
        let seconds = self.0.as_millis().saturating_add(500) / 1000;
        // In tenths of a microsecond and of a millisecond.
        let fine = (self.0.as_nanos() + 50) / 100;
        let short = (self.0.as_micros() + 50) / 100;
        match self.0.as_millis() {
            0 if fine == 0 => f.write_str("0 ms"),
            0 if self.0.as_nanos().is_multiple_of(1000) => write!(f, "{} us", self.0.as_micros()),
            0 if fine < 10_000 => write!(f, "{}.{} us", fine / 10, fine % 10),
            ms if ms < 10 && !self.0.as_micros().is_multiple_of(1000) && short < 100 => {
                write!(f, "{}.{} ms", short / 10, short % 10)
            }
            ms if ms < 950 => write!(f, "{} ms", (self.0.as_micros() + 500) / 1000),
            ms if ms.is_multiple_of(1000) && seconds < 120 => write!(f, "{seconds} s"),
            _ if tenths < 100 => write!(f, "{}.{} s", tenths / 10, tenths % 10),
            _ if seconds < 120 => write!(f, "{seconds} s"),
            _ if seconds < 2 * HOUR => write!(f, "{} min", (seconds + MINUTE / 2) / MINUTE),
            _ if seconds < 2 * DAY => write!(f, "{} h", (seconds + HOUR / 2) / HOUR),
            _ => write!(f, "{} days", (seconds + DAY / 2) / DAY),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_durations_have_a_decimal_unless_they_are_whole() {
        let shown = |ns| RoundedDuration(Duration::from_nanos(ns)).to_string();
        let all = [0, 40, 5_000, 12_345, 999_990, 1_000_000, 1_249_000, 9_960_000].map(shown);
        assert_eq!(all, ["0 ms", "0 ms", "5 us", "12.3 us", "1.0 ms", "1 ms", "1.2 ms", "10 ms"]);
    }

    #[test]
    fn durations_are_rounded_to_two_or_three_digits() {
        let shown = |ms| RoundedDuration(Duration::from_millis(ms)).to_string();
        let all = [
            0,
            949,
            950,
            1_000,
            1049,
            9_949,
            9_950,
            33_499,
            119_499,
            119_500,
            270_000,
            7_140_000,
            7_200_000,
            172_800_000,
        ]
        .map(shown);
        assert_eq!(
            all,
            [
                "0 ms", "949 ms", "1.0 s", "1 s", "1.0 s", "9.9 s", "10 s", "33 s", "119 s", "2 min", "5 min",
                "119 min", "2 h", "2 days"
            ]
        );
    }
}
