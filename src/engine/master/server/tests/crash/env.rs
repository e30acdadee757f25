//! The clocks of a simulated host.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use mcctl_base::{Mono, Unix};
use mcctl_sys::env::{Env, RealEnv};

/// Time in milliseconds since a run began. It advances only when the run advances it.
#[derive(Clone, Default)]
pub(crate) struct RunClock(Arc<AtomicU64>);

impl RunClock {
    pub(super) fn ms(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Advances the time by `ms` milliseconds.
    pub(crate) fn advance(&self, ms: u64) {
        self.0.fetch_add(ms, Ordering::Relaxed);
    }
}

/// The environment of one process. It has clocks, but no network.
#[derive(Clone)]
pub(crate) struct CrashEnv {
    clock: RunClock,
    /// Start time of the process, at which its monotonic clock begins.
    started: u64,
    /// Difference between the host's wall clock and the run's time, in milliseconds. It changes
    /// when an operator sets the clock.
    wall_clock: i64,
    /// Provides the type of the network. It opens no connections.
    real: RealEnv,
}

impl CrashEnv {
    /// A process that starts now.
    pub(crate) fn new(clock: &RunClock, wall_clock: i64) -> CrashEnv {
        CrashEnv { clock: clock.clone(), started: clock.ms(), wall_clock, real: RealEnv::new() }
    }
}

impl Env for CrashEnv {
    type Net = <RealEnv as Env>::Net;

    fn net(&self) -> &Self::Net {
        self.real.net()
    }

    fn now(&self) -> Mono {
        Mono::from_ms(10 + self.clock.ms() - self.started)
    }

    fn unix(&self) -> Unix {
        Unix(self.clock.ms().cast_signed() + self.wall_clock)
    }

    async fn sleep(&self, _: Duration) {}

    fn rng(&self) -> u64 {
        0
    }
}
