//! The state that the processes of a simulation share: its time, their timers, connections and
//! requests to etcd.
//!
//! The processes add events; the [`World`](super::world::World) takes them in the order of their
//! time.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};

use super::event::{EtcdReply, Event};
use super::net::Connection;
use mcctl_base::rng::Rng;

/// Time, timers, connections and requests. Times are in microseconds.
pub(super) struct Fabric {
    now: AtomicU64,
    /// Time for which the clock of each host has stood still.
    stood_still: Vec<AtomicU64>,
    state: Mutex<FabricState>,
}

/// The part of a [`Fabric`] that is behind its lock.
pub(super) struct FabricState {
    /// Events of the processes that the world has not taken yet, with their times.
    pub posted: Vec<(u64, Event)>,
    pub timers: BTreeMap<u64, Option<Waker>>,
    pub connections: BTreeMap<u64, Connection>,
    /// Packets from the first host of a pair to the second one are held back.
    pub cuts: BTreeSet<(usize, usize)>,
    /// Results of attempts to connect.
    pub attempts: BTreeMap<u64, Answer<io::Result<u64>>>,
    /// The connections that a process has not accepted yet.
    pub accepting: Vec<AcceptQueue>,
    pub replies: BTreeMap<u64, Answer<EtcdReply>>,
    /// Numbers of changes that each process's watch has reported.
    pub watches: Vec<Watch>,
    next: u64,
    next_connection: u64,
    seed: u64,
}

/// A result that a task waits for.
pub(super) struct Answer<T> {
    pub value: Option<T>,
    pub waker: Option<Waker>,
}

impl<T> Default for Answer<T> {
    fn default() -> Answer<T> {
        Answer { value: None, waker: None }
    }
}

impl<T> Answer<T> {
    /// Sets the result, and wakes the task that waits for it.
    pub(super) fn set(&mut self, value: T) {
        self.value = Some(value);
        self.waker.take().into_iter().for_each(Waker::wake);
    }

    /// Takes the result, or registers the task to be woken.
    pub(super) fn poll(&mut self, context: &Context<'_>) -> Poll<T> {
        match self.value.take() {
            Some(value) => Poll::Ready(value),
            None => {
                self.waker = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }
}

/// Connections that wait for a listener.
#[derive(Default)]
pub(super) struct AcceptQueue {
    pub waiting: VecDeque<u64>,
    pub waker: Option<Waker>,
}

/// The changes of the leader's key that were reported to a process.
#[derive(Default)]
pub(super) struct Watch {
    pub changes: u64,
    pub waker: Option<Waker>,
}

impl Fabric {
    /// For this number of hosts.
    pub(super) fn new(hosts: usize, seed: u64) -> Arc<Fabric> {
        let state = FabricState {
            posted: Vec::new(),
            timers: BTreeMap::new(),
            connections: BTreeMap::new(),
            cuts: BTreeSet::new(),
            attempts: BTreeMap::new(),
            accepting: (0..hosts).map(|_| AcceptQueue::default()).collect(),
            replies: BTreeMap::new(),
            watches: (0..hosts).map(|_| Watch::default()).collect(),
            next: 0,
            next_connection: 0,
            seed,
        };
        let stood_still = (0..hosts).map(|_| AtomicU64::new(0)).collect();
        Arc::new(Fabric { now: AtomicU64::new(0), stood_still, state: Mutex::new(state) })
    }

    /// The present time, in microseconds since the simulation began.
    pub(super) fn now(&self) -> u64 {
        self.now.load(Ordering::Relaxed)
    }

    /// The time at a host whose clock may have stood still.
    pub(super) fn now_at(&self, host: usize) -> u64 {
        self.now() - self.stood_still[host].load(Ordering::Relaxed)
    }

    /// The clock of a host stands still for this time, with its processes.
    pub(super) fn stop_clock(&self, host: usize, length: u64) {
        self.stood_still[host].fetch_add(length, Ordering::Relaxed);
    }

    /// Sets the present time, in microseconds. It never decreases.
    pub(super) fn set_now(&self, now: u64) {
        self.now.store(now, Ordering::Relaxed);
    }

    /// Locks the timers, connections and requests.
    pub(super) fn state(&self) -> MutexGuard<'_, FabricState> {
        self.state.lock().expect("no thread panics while it has this locked")
    }

    /// Adds an event that happens after `delay`.
    pub(super) fn post(&self, delay: u64, event: Event) {
        self.state().posted.push((self.now() + delay, event));
    }
}

impl FabricState {
    /// A number that no timer, attempt or request of this simulation has had.
    pub(super) fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// The number of a new connection. It does not depend on the order in which tasks run.
    pub(super) fn connection_number(&mut self) -> u64 {
        self.next_connection += 1;
        self.next_connection
    }

    /// Random numbers for something with this number. They do not depend on the order in which
    /// tasks run.
    pub(super) fn rng(&self, number: u64) -> Rng {
        // The generator's states differ by this factor. So that two numbers do not yield the same
        // sequence, one later than the other, its first output is the seed.
        Rng::new(Rng::new(self.seed ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15)).next())
    }
}
