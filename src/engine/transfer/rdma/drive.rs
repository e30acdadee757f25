//! Who polls: of the threads that wait for a batch, one at a time.
//!
//! The devices move the bytes; what is left to do is to fetch completions and to post what had no room before. The thread that waits
//! for a batch does that itself, as long as it waits, for everybody; when its batch is over it hands on to another that waits. So an
//! idle engine has no thread that polls or is woken, and a lone caller hands nothing to another thread.
//!
//! The leader polls a little while before it sleeps on the completion channels: as long as it has lately been worth it.

use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use crate::engine::base::Mono;
use crate::engine::sys::readiness::wait_readable;
use crate::engine::sys::verbs::Completion;
use crate::engine::transfer::Clock;
use crate::engine::transfer::rdma::batch::{Batch, Bell};
use crate::engine::transfer::rdma::nic::Nic;

/// Completions fetched at a time.
const POLL: usize = 64;
/// Longest polling without a completion before going to sleep.
const SPIN_MAX: Duration = Duration::from_micros(50);
/// Where it starts.
const SPIN_START: Duration = Duration::from_micros(5);
/// A sleep that was shorter might as well have been polling.
const SHORT_SLEEP: Duration = Duration::from_micros(50);
/// Longest sleep: nothing is known to need it, but a lost event must not stop everything.
const SLEEP_MAX: Duration = Duration::from_millis(500);

/// The polling of all devices of an engine.
pub(super) struct Drive {
    nics: Vec<Arc<Nic>>,
    leads: Mutex<Leads>,
    bell: Arc<Bell>,
    clock: Clock,
    /// How long polling has lately been worth it, ns.
    spin: AtomicU64,
}

#[derive(Default)]
struct Leads {
    /// The batch whose waiter polls, by address.
    leader: Option<usize>,
    waiting: VecDeque<Arc<Batch>>,
}

fn id(batch: &Arc<Batch>) -> usize {
    Arc::as_ptr(batch) as usize
}

/// A batch whose waiter leaves when this goes.
struct Leave<'a>(&'a Drive, &'a Arc<Batch>);

impl Drop for Leave<'_> {
    fn drop(&mut self) {
        self.0.leave(self.1);
    }
}

impl Drive {
    pub(super) fn new(nics: Vec<Arc<Nic>>, bell: Arc<Bell>, clock: Clock) -> Drive {
        let spin = AtomicU64::new(SPIN_START.as_nanos() as u64);
        Drive { nics, leads: Mutex::default(), bell, clock, spin }
    }

    /// Wait until there is news of `batch`, or until `until`.
    pub(super) fn wait(&self, batch: &Arc<Batch>, until: Mono) {
        batch.attend();
        // Also where handling a completion panics: somebody else has to lead then.
        let _leave = Leave(self, batch);
        let mut scratch = [Completion::EMPTY; POLL];
        while !batch.has_news() {
            let now = (self.clock)();
            if now >= until {
                break;
            }
            if self.lead(batch) {
                self.lead_until(batch, until, &mut scratch);
            } else {
                thread::park_timeout(until.since(now));
            }
        }
    }

    /// Is `batch`'s waiter the leader? If there is none, it is now; else it queues.
    fn lead(&self, batch: &Arc<Batch>) -> bool {
        let mut leads = self.leads();
        match leads.leader {
            None => leads.leader = Some(id(batch)),
            Some(leader) if leader == id(batch) => {}
            Some(_) => {
                if !leads.waiting.iter().any(|other| Arc::ptr_eq(other, batch)) {
                    leads.waiting.push_back(Arc::clone(batch));
                }
                return false;
            }
        }
        true
    }

    /// `batch`'s waiter waits no more: if it led, another does.
    fn leave(&self, batch: &Arc<Batch>) {
        let mut leads = self.leads();
        if leads.leader != Some(id(batch)) {
            leads.waiting.retain(|other| !Arc::ptr_eq(other, batch));
            return;
        }
        // One that has news wakes up by itself, and leaves.
        leads.leader = None;
        while let Some(next) = leads.waiting.pop_front() {
            if !next.has_news() {
                leads.leader = Some(id(&next));
                drop(leads);
                next.wake();
                return;
            }
        }
    }

    fn lead_until(&self, batch: &Batch, until: Mono, scratch: &mut [Completion]) {
        let mut idle_since = None;
        while !batch.has_news() {
            if self.poll(scratch) > 0 {
                if idle_since.take().is_some() {
                    self.spin_was_worth_it();
                }
                continue;
            }
            let now = (self.clock)();
            if now >= until {
                return;
            }
            let since = *idle_since.get_or_insert(now);
            if now.since(since) < Duration::from_nanos(self.spin.load(Ordering::Relaxed)) {
                std::hint::spin_loop();
                continue;
            }
            self.sleep(batch, until.since(now).min(SLEEP_MAX), scratch);
            idle_since = None;
        }
    }

    /// Fetch what completions there are, once around. How many.
    fn poll(&self, scratch: &mut [Completion]) -> usize {
        let mut sum = 0;
        for nic in &self.nics {
            loop {
                let fetched = nic.poll(scratch);
                nic.completed(&scratch[..fetched]);
                sum += fetched;
                if fetched < scratch.len() {
                    break;
                }
            }
        }
        sum
    }

    /// Sleep until a completion comes, the bell rings, or `limit` is over.
    fn sleep(&self, batch: &Batch, limit: Duration, scratch: &mut [Completion]) {
        self.nics.iter().for_each(|nic| nic.arm());
        // One that came before it was armed makes no event.
        if self.poll(scratch) > 0 {
            return;
        }
        self.bell.listen();
        let mut ready = 0;
        if !batch.has_news() {
            let before = (self.clock)();
            let bell = std::iter::once(self.bell.fd());
            // Places count: the bell stands in for a channel that is broken.
            let channels = self.nics.iter().map(|nic| if nic.is_deaf() { self.bell.fd() } else { nic.events() });
            let fds: Vec<BorrowedFd<'_>> = bell.chain(channels).collect();
            match wait_readable(&fds, limit) {
                Ok(readable) => ready = readable,
                Err(error) => {
                    tracing::warn!(%error, "cannot wait for completions");
                    thread::yield_now();
                }
            }
            self.slept((self.clock)().since(before));
        }
        self.bell.stop_listening(ready & 1 != 0);
        for (at, nic) in self.nics.iter().enumerate() {
            if ready & 2 << at != 0 && !nic.is_deaf() {
                nic.clear_events();
            }
        }
    }

    fn spin_was_worth_it(&self) {
        let spin = self.spin.load(Ordering::Relaxed);
        self.spin.store((spin + spin / 4 + 500).min(SPIN_MAX.as_nanos() as u64), Ordering::Relaxed);
    }

    fn slept(&self, slept: Duration) {
        let spin = self.spin.load(Ordering::Relaxed);
        let next = if slept < SHORT_SLEEP { (spin * 2).max(2000) } else { spin / 2 };
        self.spin.store(next.min(SPIN_MAX.as_nanos() as u64), Ordering::Relaxed);
    }

    fn leads(&self) -> MutexGuard<'_, Leads> {
        self.leads.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
