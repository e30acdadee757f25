//! Completion polling: of all threads that wait for a batch, only one polls at a time (the leader).
//!
//! The devices move the bytes. The remaining work is to fetch completions, and to post requests for
//! which the queues had no room before. The leader does both for all batches while it waits for its
//! own. When its batch ends, it hands over to another waiting thread. So an idle engine has no
//! polling thread, and a single caller needs no other thread.
//!
//! The leader polls for a short time before it sleeps on the completion channels. The polling time
//! adapts to how often polling has succeeded recently.

use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use crate::MonoClock;
use crate::rdma::batch::{Batch, CqWaker};
use crate::rdma::nic::Nic;
use mcctl_base::Mono;
use mcctl_sys::readiness::wait_readable;
use mcctl_sys::verbs::WorkCompletion;

/// Maximum number of completions fetched per call.
const POLL: usize = 64;
/// Maximum time to poll without a completion before the leader sleeps.
const SPIN_MAX: Duration = Duration::from_micros(50);
/// Initial limit on polling without a completion before the leader sleeps.
const SPIN_START: Duration = Duration::from_micros(5);
/// If a sleep is shorter than this, continuing to poll would have been better.
const SHORT_SLEEP: Duration = Duration::from_micros(50);
/// Maximum duration of one sleep. No known case requires it, but a lost event must not stop all
/// transfers.
const SLEEP_MAX: Duration = Duration::from_millis(500);

/// Polls the completion queues of all of an engine's devices.
pub(super) struct CompletionPoller {
    nics: Vec<Arc<Nic>>,
    queue: Mutex<PollerQueue>,
    waker: Arc<CqWaker>,
    clock: MonoClock,
    /// Current polling time before a sleep, in nanoseconds.
    spin: AtomicU64,
}

#[derive(Default)]
struct PollerQueue {
    /// The batch whose waiting thread is the leader, identified by the batch's address.
    leader: Option<usize>,
    waiting: VecDeque<Arc<Batch>>,
}

fn id(batch: &Arc<Batch>) -> usize {
    Arc::as_ptr(batch) as usize
}

/// Removes the batch's waiting thread from the poller's queue when dropped.
struct LeaderGuard<'a>(&'a CompletionPoller, &'a Arc<Batch>);

impl Drop for LeaderGuard<'_> {
    fn drop(&mut self) {
        self.0.leave(self.1);
    }
}

impl CompletionPoller {
    pub(super) fn new(nics: Vec<Arc<Nic>>, waker: Arc<CqWaker>, clock: MonoClock) -> CompletionPoller {
        let spin = AtomicU64::new(SPIN_START.as_nanos() as u64);
        CompletionPoller { nics, queue: Mutex::default(), waker, clock, spin }
    }

    /// Waits until `batch` has events or the time `until` is reached.
    pub(super) fn wait(&self, batch: &Arc<Batch>, until: Mono) {
        batch.set_waiter();
        // If handling a completion panics, another thread must take over as leader.
        let _leave = LeaderGuard(self, batch);
        let mut scratch = [WorkCompletion::EMPTY; POLL];
        while !batch.has_events() {
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

    /// Returns whether the thread that waits for `batch` is the leader. If there is no leader, the
    /// thread becomes the leader. Otherwise it is queued.
    fn lead(&self, batch: &Arc<Batch>) -> bool {
        let mut queue = self.queue();
        match queue.leader {
            None => queue.leader = Some(id(batch)),
            Some(leader) if leader == id(batch) => {}
            Some(_) => {
                if !queue.waiting.iter().any(|other| Arc::ptr_eq(other, batch)) {
                    queue.waiting.push_back(Arc::clone(batch));
                }
                return false;
            }
        }
        true
    }

    /// Removes the thread that waits for `batch`. If it was the leader, another thread takes over.
    fn leave(&self, batch: &Arc<Batch>) {
        let mut queue = self.queue();
        if queue.leader != Some(id(batch)) {
            queue.waiting.retain(|other| !Arc::ptr_eq(other, batch));
            return;
        }
        // A thread whose batch has events wakes up and leaves on its own.
        queue.leader = None;
        while let Some(next) = queue.waiting.pop_front() {
            if !next.has_events() {
                queue.leader = Some(id(&next));
                drop(queue);
                next.wake();
                return;
            }
        }
    }

    fn lead_until(&self, batch: &Batch, until: Mono, scratch: &mut [WorkCompletion]) {
        let mut idle_since = None;
        while !batch.has_events() {
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

    /// Fetches the available completions from every device. Returns their number.
    fn poll(&self, scratch: &mut [WorkCompletion]) -> usize {
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

    /// Sleeps until a completion arrives, another thread wakes this one, or `limit` has passed.
    fn sleep(&self, batch: &Batch, limit: Duration, scratch: &mut [WorkCompletion]) {
        self.nics.iter().for_each(|nic| nic.arm());
        // A completion that arrived before the completion queue was armed generates no event.
        if self.poll(scratch) > 0 {
            return;
        }
        self.waker.begin_sleep();
        let mut ready = 0;
        if !batch.has_events() {
            let before = (self.clock)();
            let waker = std::iter::once(self.waker.fd());
            // Positions matter, so the waker's file descriptor stands in for a broken channel's.
            let channels =
                self.nics.iter().map(|nic| if nic.is_channel_broken() { self.waker.fd() } else { nic.events() });
            let fds: Vec<BorrowedFd<'_>> = waker.chain(channels).collect();
            match wait_readable(&fds, limit) {
                Ok(readable) => ready = readable,
                Err(error) => {
                    tracing::warn!(%error, "cannot wait for completions");
                    thread::yield_now();
                }
            }
            self.slept((self.clock)().since(before));
        }
        self.waker.end_sleep(ready & 1 != 0);
        for (at, nic) in self.nics.iter().enumerate() {
            if ready & 2 << at != 0 && !nic.is_channel_broken() {
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

    fn queue(&self) -> MutexGuard<'_, PollerQueue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
