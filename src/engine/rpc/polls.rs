//! When each worker thread last polled its connections.
//!
//! A worker that is held up reads nothing, although the process runs. So a request that was sent before [`WorkerPolls::oldest`] has been
//! read by now, and one that was sent later may still be waiting. Each worker beats twice a second, which costs a request nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use crate::engine::base::Mono;
use crate::engine::env::Env;

/// Time between two beats of a worker.
pub const BEAT: Duration = Duration::from_millis(500);
/// Readable sockets that the runtime reports per poll.
const EVENTS_PER_POLL: usize = 1024;

/// The workers' last polls. Cheap to clone.
#[derive(Clone, Debug)]
pub struct WorkerPolls(Arc<[AtomicU64]>);

impl WorkerPolls {
    pub(super) fn new(workers: usize, now: Mono) -> WorkerPolls {
        WorkerPolls((0..workers).map(|_| AtomicU64::new(now.0)).collect())
    }

    /// Every worker has read what had arrived before this time. `None` without worker threads: the caller runs on the same thread.
    pub fn oldest(&self) -> Option<Mono> {
        self.0.iter().map(|poll| Mono(poll.load(Ordering::Acquire))).min()
    }

    /// Beat for the worker `index`, on its runtime, for as long as this is polled. `connections` is how many it has.
    pub(super) async fn beat<E: Env>(self, env: E, index: usize, connections: Arc<AtomicUsize>) {
        loop {
            let began = env.now();
            // Each yield lets the runtime poll its sockets once, and all tasks that this wakes run before this one.
            for _ in 0..=1 + connections.load(Ordering::Relaxed) / EVENTS_PER_POLL {
                tokio::task::yield_now().await;
            }
            if let Some(poll) = self.0.get(index) {
                poll.store(began.0, Ordering::Release);
            }
            env.sleep(BEAT).await;
        }
    }
}
