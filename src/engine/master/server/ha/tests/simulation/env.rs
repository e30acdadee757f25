//! The environment of a simulated process: its clocks, timers and random numbers. Work of other
//! threads runs on the only thread, after a random time.

use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use super::event::Event;
use super::fabric::Fabric;
use super::net::SimNet;
use mcctl_base::rng::Rng;
use mcctl_base::{Mono, Unix};
use mcctl_sys::env::{Env, ThreadWork};

/// A clock: an offset in nanoseconds, and its rate in parts per thousand.
#[derive(Clone, Copy, Debug)]
pub(super) struct HostClock {
    pub offset: u64,
    pub rate: u64,
}

impl HostClock {
    /// The clock at `us`.
    pub(super) fn at(self, us: u64) -> Mono {
        Mono(self.offset + us * self.rate)
    }

    /// The simulation's time in which `duration` passes on this clock, rounded up.
    fn us(self, duration: Duration) -> u64 {
        u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX / 2).div_ceil(self.rate)
    }
}

/// Maximum duration of work on other threads, in microseconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct ThreadTimes {
    /// Work that is awaited, such as making a copy ready.
    pub work: usize,
    /// The pause before a step of a thread, such as the log's.
    pub step: usize,
}

/// The environment of one process.
#[derive(Clone)]
pub(super) struct SimEnv {
    pub fabric: Arc<Fabric>,
    net: SimNet,
    pub node: usize,
    pub incarnation: u64,
    clock: HostClock,
    times: ThreadTimes,
    rng: Arc<Mutex<Rng>>,
}

impl SimEnv {
    /// The environment of a process that starts now.
    pub(super) fn new(
        fabric: Arc<Fabric>,
        node: usize,
        incarnation: u64,
        clock: HostClock,
        times: ThreadTimes,
    ) -> SimEnv {
        let rng = fabric.state().rng(1_000_000_007 * (1 + node as u64) + incarnation);
        let net = SimNet { fabric: fabric.clone(), node, incarnation };
        SimEnv { fabric, net, node, incarnation, clock, times, rng: Arc::new(Mutex::new(rng)) }
    }

    /// The kernel may stop a thread at any time, to run others. Here, it stops one call in eight,
    /// for up to 0.26 s.
    pub(super) async fn preempt(&self) {
        if self.below(8) == 0 {
            let us = 1 << self.below(19);
            self.wait(us).await;
        }
    }

    fn below(&self, bound: usize) -> u64 {
        self.rng.lock().expect("one thread").below(bound) as u64
    }

    /// Waits on the simulation's clock.
    fn wait(&self, us: u64) -> SimTimer {
        SimTimer { fabric: self.fabric.clone(), owner: (self.node, self.incarnation), us, number: None }
    }
}

impl Env for SimEnv {
    type Net = SimNet;

    fn net(&self) -> &SimNet {
        &self.net
    }

    fn now(&self) -> Mono {
        self.clock.at(self.fabric.now_at(self.node))
    }

    fn unix(&self) -> Unix {
        Unix(1_700_000_000_000 + (self.fabric.now() / 1000).cast_signed())
    }

    async fn sleep(&self, duration: Duration) {
        self.wait(self.clock.us(duration)).await;
    }

    fn rng(&self) -> u64 {
        self.rng.lock().expect("one thread").next()
    }

    fn run_blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> impl Future<Output = T> + Send + 'static {
        let timer = self.wait(1 + self.below(self.times.work));
        async move {
            timer.await;
            work()
        }
    }

    fn run_thread(&self, mut work: impl ThreadWork) -> impl Future<Output = ()> + Send + 'static {
        let env = self.clone();
        async move {
            loop {
                env.wait(1 + env.below(env.times.step)).await;
                if !work.step(false) {
                    return;
                }
            }
        }
    }
}

/// A timer. It ends with an event of the world.
struct SimTimer {
    fabric: Arc<Fabric>,
    owner: (usize, u64),
    us: u64,
    number: Option<u64>,
}

impl Future for SimTimer {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        let mut state = this.fabric.state();
        let waker = Some(context.waker().clone());
        match this.number {
            None if this.us == 0 => return Poll::Ready(()),
            None => {
                let number = state.number();
                state.timers.insert(number, waker);
                this.number = Some(number);
                let at = this.fabric.now() + this.us;
                let (node, incarnation) = this.owner;
                state.posted.push((at, Event::Timer { node, incarnation, number }));
            }
            // The event has removed it.
            Some(number) if !state.timers.contains_key(&number) => return Poll::Ready(()),
            Some(number) => {
                state.timers.insert(number, waker);
            }
        }
        Poll::Pending
    }
}

impl Drop for SimTimer {
    fn drop(&mut self) {
        if let Some(number) = self.number {
            self.fabric.state().timers.remove(&number);
        }
    }
}
