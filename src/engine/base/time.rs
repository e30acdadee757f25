//! Points in time as plain numbers, so that pure code can run with a simulated clock.

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
