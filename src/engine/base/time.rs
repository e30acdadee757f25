//! Points in time as plain numbers, so that the cores can be driven by a hand-turned clock.

use std::ops::{Add, Sub};
use std::time::Duration;

/// A point on the monotonic clock, in nanoseconds since an origin chosen by the `Env` that made it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Mono(pub u64);

impl Mono {
    /// The origin.
    pub const ZERO: Mono = Mono(0);

    /// The point `ms` milliseconds after the origin.
    pub const fn from_ms(ms: u64) -> Mono {
        Mono(ms * 1_000_000)
    }

    /// Time from `earlier` to `self`; zero when `earlier` is later.
    pub fn since(self, earlier: Mono) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Mono {
    type Output = Mono;
    fn add(self, d: Duration) -> Mono {
        Mono(self.0.saturating_add(u64::try_from(d.as_nanos()).unwrap_or(u64::MAX)))
    }
}

impl Sub<Duration> for Mono {
    type Output = Mono;
    fn sub(self, d: Duration) -> Mono {
        Mono(self.0.saturating_sub(u64::try_from(d.as_nanos()).unwrap_or(u64::MAX)))
    }
}

/// Wall-clock time, milliseconds since 1970 (what Mooncake writes where it writes a time).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Unix(pub i64);
