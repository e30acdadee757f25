//! Tracks when each worker thread last polled its connections.
//!
//! A blocked worker reads nothing, although the process is running. A request sent before
//! [`WorkerPolls::oldest`] has been read; a request sent later may still be unread. Each worker
//! updates its time twice a second, which adds no work to requests.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use mcctl_base::Mono;
use mcctl_sys::env::Env;

/// Interval between two updates of a worker.
pub const UPDATE_INTERVAL: Duration = Duration::from_millis(500);
/// Maximum number of readable sockets that the runtime reports per poll.
const EVENTS_PER_POLL: usize = 1024;

/// Times of the workers' last polls. Cheap to clone.
#[derive(Clone, Debug)]
pub struct WorkerPolls(Arc<[AtomicU64]>);

impl WorkerPolls {
    pub(super) fn new(workers: usize, now: Mono) -> WorkerPolls {
        WorkerPolls((0..workers).map(|_| AtomicU64::new(now.0)).collect())
    }

    /// For a service without worker threads.
    pub fn none() -> WorkerPolls {
        WorkerPolls(Arc::new([]))
    }

    /// Every worker has read everything that arrived before this time. `None` without worker
    /// threads: the caller then runs on the same thread.
    pub fn oldest(&self) -> Option<Mono> {
        self.0.iter().map(|poll| Mono(poll.load(Ordering::Acquire))).min()
    }

    /// Updates the time of worker `index` while this future is polled on the worker's runtime.
    /// `connections` is the worker's number of connections.
    pub(super) async fn keep_updated<E: Env>(self, env: E, index: usize, connections: Arc<AtomicUsize>) {
        loop {
            let began = env.now();
            // Each yield lets the runtime poll its sockets once. All tasks woken by this poll run
            // before this task continues.
            for _ in 0..=1 + connections.load(Ordering::Relaxed) / EVENTS_PER_POLL {
                tokio::task::yield_now().await;
            }
            if let Some(poll) = self.0.get(index) {
                poll.store(began.0, Ordering::Release);
            }
            env.sleep(UPDATE_INTERVAL).await;
        }
    }
}
