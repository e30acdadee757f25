//! The responses that wait for an acknowledgement. An acknowledgement wakes only those that wait
//! for it.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::Waker;

/// The limit that a response waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AwaitedLimit {
    /// The change that all responses wait for.
    Acked(u64),
    /// The change that responses wait for that hand out or free memory.
    Replicated(u64),
    /// Another limit: the fence, or the term.
    Other,
}

/// The tasks of waiting responses, in the order of the changes that they wait for.
#[derive(Debug, Default)]
pub(super) struct CommitWaiters(Mutex<WaiterQueues>);

/// The number of the change, and a number that distinguishes the tasks.
type WaiterKey = (u64, u64);

#[derive(Debug, Default)]
struct WaiterQueues {
    next: u64,
    acked: BTreeMap<WaiterKey, Waker>,
    replicated: BTreeMap<WaiterKey, Waker>,
    other: BTreeMap<WaiterKey, Waker>,
}

/// The place of a task in a queue. A task leaves the queue when this is dropped.
#[derive(Debug)]
pub(super) struct QueuedWaiter<'a> {
    waiters: &'a CommitWaiters,
    limit: AwaitedLimit,
    key: WaiterKey,
}

impl CommitWaiters {
    /// Adds a task, which is woken once when `limit` may have been reached.
    pub(super) fn add(&self, limit: AwaitedLimit, waker: &Waker) -> QueuedWaiter<'_> {
        let mut queues = self.lock();
        queues.next += 1;
        let key = (limit.change(), queues.next);
        queues.of(limit).insert(key, waker.clone());
        QueuedWaiter { waiters: self, limit, key }
    }

    /// Wakes the tasks that wait for changes up to these.
    pub(super) fn wake_up_to(&self, acked: u64, replicated: u64) {
        let mut queues = self.lock();
        let mut due = split_up_to(&mut queues.acked, acked);
        due.append(&mut split_up_to(&mut queues.replicated, replicated));
        drop(queues);
        due.into_values().for_each(Waker::wake);
    }

    /// Wakes all tasks, because the phase, the term or the fence has changed.
    pub(super) fn wake_all(&self) {
        let mut queues = self.lock();
        let WaiterQueues { acked, replicated, other, .. } = &mut *queues;
        let due = [acked, replicated, other].map(std::mem::take);
        drop(queues);
        due.into_iter().flat_map(BTreeMap::into_values).for_each(Waker::wake);
    }

    fn lock(&self) -> MutexGuard<'_, WaiterQueues> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Removes and returns the tasks that wait for changes up to `last`.
fn split_up_to(queue: &mut BTreeMap<WaiterKey, Waker>, last: u64) -> BTreeMap<WaiterKey, Waker> {
    if queue.first_key_value().is_none_or(|((first, _), _)| *first > last) {
        return BTreeMap::new();
    }
    let later = last.checked_add(1).map(|next| queue.split_off(&(next, 0))).unwrap_or_default();
    std::mem::replace(queue, later)
}

impl WaiterQueues {
    fn of(&mut self, limit: AwaitedLimit) -> &mut BTreeMap<WaiterKey, Waker> {
        match limit {
            AwaitedLimit::Acked(_) => &mut self.acked,
            AwaitedLimit::Replicated(_) => &mut self.replicated,
            AwaitedLimit::Other => &mut self.other,
        }
    }
}

impl AwaitedLimit {
    fn change(self) -> u64 {
        match self {
            AwaitedLimit::Acked(change) | AwaitedLimit::Replicated(change) => change,
            AwaitedLimit::Other => 0,
        }
    }
}

impl Drop for QueuedWaiter<'_> {
    fn drop(&mut self) {
        self.waiters.lock().of(self.limit).remove(&self.key);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::task::Wake;

    use super::*;

    #[derive(Default)]
    struct WakeCount(AtomicU32);

    impl Wake for WakeCount {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn only_the_tasks_whose_limit_was_reached_are_woken() {
        let waiters = CommitWaiters::default();
        let counts: Vec<Arc<WakeCount>> = (0..6).map(|_| Arc::default()).collect();
        let limits = [
            AwaitedLimit::Acked(3),
            AwaitedLimit::Acked(3),
            AwaitedLimit::Acked(4),
            AwaitedLimit::Replicated(3),
            AwaitedLimit::Replicated(u64::MAX),
            AwaitedLimit::Other,
        ];
        let wakers: Vec<Waker> = counts.iter().map(|count| Waker::from(count.clone())).collect();
        let mut queued: Vec<_> = limits.iter().zip(&wakers).map(|(limit, waker)| waiters.add(*limit, waker)).collect();
        let woken = || counts.iter().map(|count| count.0.load(Ordering::Relaxed)).collect::<Vec<u32>>();
        waiters.wake_up_to(2, 2);
        assert_eq!(woken(), [0; 6]);
        drop(queued.remove(1));
        waiters.wake_up_to(3, 2);
        assert_eq!(woken(), [1, 0, 0, 0, 0, 0]);
        waiters.wake_up_to(3, u64::MAX);
        assert_eq!(woken(), [1, 0, 0, 1, 1, 0]);
        waiters.wake_all();
        waiters.wake_all();
        assert_eq!(woken(), [1, 0, 1, 1, 1, 1]);
    }
}
