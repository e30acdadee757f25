//! Benchmark for puts and gets: latency, throughput and CPU cost of batches.
//!
//! Clients run concurrently, each with its own connection to the master, and process one batch
//! after another. All keys in a run share a prefix, which is used to remove them.

mod client;
mod plan;
mod results;
mod stored;
mod transport;

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use mcctl_base::{Mono, ObjectKey};
use mcctl_store::{StoreClient, StoreError};
use mcctl_sys::clock::monotonic;
use mcctl_sys::env::Env;
use mcctl_sys::host::cpu_time;
use mcctl_transfer::{TransferEngine, TransferError};

use client::BenchClient;
pub use plan::{StoreBenchPlan, StoreBenchPlanError};
pub use results::{ErrorCount, OperationStats, PassKind, StorePass};
use stored::StoredPrefix;
pub use transport::{SHARED_MEMORY, TransportShare, TransportUse};

/// Stops a run early, between two batches.
#[derive(Clone, Debug, Default)]
pub struct StopFlag(Arc<AtomicBool>);

impl StopFlag {
    /// Asks the run to end early.
    pub fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Returns whether a stop was requested.
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// State shared by the clients in a pass.
struct PassState {
    plan: StoreBenchPlan,
    stop: StopFlag,
    /// Objects put or read so far, in all passes.
    done: Arc<AtomicU64>,
    /// Number of objects to put or to read.
    goal: u32,
    /// Index of the next object to put, or of the next read.
    next: AtomicU32,
    /// Objects whose put has completed.
    stored: Mutex<StoredPrefix>,
    /// Number of put batches that stored nothing.
    failed_batches: AtomicU32,
    /// Whether at least one object was stored or already existed.
    any: AtomicBool,
}

/// A run that has stored no object ends after this many put batches.
const FAILED_BATCHES_MAX: u32 = 4;

impl PassState {
    /// Returns N such that the first N objects are stored. Only these objects are read.
    fn stored(&self) -> u32 {
        self.stored.lock().unwrap_or_else(PoisonError::into_inner).first()
    }

    /// Records whether a put batch stored anything.
    fn record_put(&self, stored: bool) {
        if stored {
            self.any.store(true, Ordering::Relaxed);
        } else {
            self.failed_batches.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Returns whether [`FAILED_BATCHES_MAX`] put batches have failed and no object was stored.
    fn nothing_stored(&self) -> bool {
        !self.any.load(Ordering::Relaxed) && self.failed_batches.load(Ordering::Relaxed) >= FAILED_BATCHES_MAX
    }

    /// Records that the put of `objects` has completed.
    fn put(&self, objects: std::ops::Range<u32>) {
        self.stored.lock().unwrap_or_else(PoisonError::into_inner).add(objects);
    }
}

/// A benchmark with its clients. Each step is run by its owner.
pub struct StoreBench<E: Env> {
    env: E,
    clients: Vec<BenchClient<E>>,
    engine: TransferEngine,
    plan: StoreBenchPlan,
    stop: StopFlag,
    /// Objects put or read so far, in all passes.
    done: Arc<AtomicU64>,
}

impl<E: Env> StoreBench<E> {
    /// Creates a benchmark with one client task per store in `stores`. `client` is a client of the
    /// same process. Counts the objects put or read in `done`.
    ///
    /// # Errors
    /// A client's memory cannot be registered.
    pub async fn new(
        env: E,
        client: &StoreClient<E>,
        stores: Vec<StoreClient<E>>,
        plan: StoreBenchPlan,
        stop: StopFlag,
        done: Arc<AtomicU64>,
    ) -> Result<StoreBench<E>, TransferError> {
        let mut clients = Vec::with_capacity(stores.len());
        for (index, store) in stores.into_iter().enumerate() {
            clients.push(BenchClient::new(env.clone(), store, &plan, index as u64).await?);
        }
        Ok(StoreBench { env, clients, engine: client.engine().clone(), plan, stop, done })
    }

    /// Returns the plan of this run.
    pub fn plan(&self) -> &StoreBenchPlan {
        &self.plan
    }

    /// Removes the objects of a put pass. Returns their number; objects that no longer exist do not
    /// count.
    ///
    /// # Errors
    /// The master did not respond.
    pub async fn remove_round(&self, client: &StoreClient<E>) -> Result<i64, StoreError> {
        /// Number of keys per call.
        const KEYS: u32 = 1024;
        let mut removed = 0;
        for from in (0..self.plan.objects).step_by(KEYS as usize) {
            let keys: Vec<ObjectKey> =
                (from..self.plan.objects.min(from.saturating_add(KEYS))).map(|index| self.plan.key(index)).collect();
            removed += client.batch_remove(&keys, true).await?.iter().filter(|one| one.is_ok()).count() as i64;
        }
        Ok(removed)
    }

    /// Runs one pass. `goal`: the number of objects to read, or of operations of a mixed pass,
    /// unless `duration` limits the pass. A put pass puts every object of the plan once.
    pub async fn pass(&mut self, kind: PassKind, goal: u32, duration: Option<Duration>) -> StorePass {
        let stored = if kind == PassKind::Put { 0 } else { self.plan.objects };
        let shared = Arc::new(PassState {
            plan: self.plan.clone(),
            stop: self.stop.clone(),
            done: Arc::clone(&self.done),
            goal: if kind == PassKind::Put { self.plan.objects } else { goal },
            next: AtomicU32::new(if kind == PassKind::Get { 0 } else { stored }),
            stored: Mutex::new(StoredPrefix::new(stored)),
            failed_batches: AtomicU32::new(0),
            any: AtomicBool::new(false),
        });
        let peers = self.engine.peers();
        let from = monotonic();
        let began = self.env.now();
        let cpu = cpu_time();
        let until = duration.filter(|_| kind != PassKind::Put).map(|duration| began + duration);
        let tasks: Vec<_> = self
            .clients
            .drain(..)
            .map(|mut client| {
                let shared = shared.clone();
                tokio::spawn(async move {
                    let share = client.work(kind, &shared, until).await;
                    (client, share)
                })
            })
            .collect();
        let mut put = OperationStats::default();
        let mut get = OperationStats::default();
        for task in tasks {
            let (client, share) = task.await.unwrap_or_else(|bug| std::panic::resume_unwind(bug.into_panic()));
            self.clients.push(client);
            put.add(share.put);
            get.add(share.get);
        }
        let elapsed = self.env.now().since(began);
        let cpu = cpu_time().saturating_sub(cpu);
        (put.transport, get.transport) = TransportUse::between(self.engine.protocol(), &peers, &self.engine.peers());
        StorePass { kind, elapsed, window: (from, from + elapsed), cpu, put, get }
    }
}

/// Results of one client in a pass.
#[derive(Debug, Default)]
struct ClientStats {
    put: OperationStats,
    get: OperationStats,
}

/// Returns whether the deadline `until` has passed.
fn is_time_up(now: Mono, until: Option<Mono>) -> bool {
    until.is_some_and(|until| now >= until)
}
