//! Benchmark for puts and gets: latency, throughput and CPU cost of batches.
//!
//! Clients run concurrently, each with its own connection to the master, and process one batch after another. All keys in a run share a
//! prefix, which is used to remove them.

mod client;
mod plan;
mod stored;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::engine::base::Mono;
use crate::engine::env::Env;
use crate::engine::load::LatencyHistogram;
use crate::engine::store::{StoreClient, StoreError};
use crate::engine::sys::host::cpu_time;
use crate::engine::transfer::TransferError;

use client::BenchClient;
pub use plan::{StoreBenchPlan, StoreBenchPlanError};
use stored::StoredPrefix;

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

/// An error, with the number of objects that failed because of it.
#[derive(Clone, Debug)]
pub struct ErrorCount {
    pub count: u64,
    /// Message from the first failure.
    pub first: String,
    /// The first failure, if the store reported it.
    pub error: Option<StoreError>,
}

/// Results for the puts or the gets in a pass.
#[derive(Clone, Debug, Default)]
pub struct OperationStats {
    /// Number of batches that transferred at least one object.
    pub batches: u64,
    pub objects: u64,
    pub bytes: u64,
    /// Objects not found when read: evicted, or never stored.
    pub missing: u64,
    /// Objects not put because the key already existed.
    pub already_existing: u64,
    /// Objects with fewer replicas than requested because too few nodes had free space.
    pub fewer_copies: u64,
    /// Objects whose data was compared and matched.
    pub verified: u64,
    /// Failed objects by error name.
    pub failed: BTreeMap<String, ErrorCount>,
    pub latency: LatencyHistogram,
}

impl OperationStats {
    /// Returns the number of failed objects.
    pub fn failures(&self) -> u64 {
        self.failed.values().map(|failed| failed.count).sum()
    }

    fn add(&mut self, other: OperationStats) {
        self.batches += other.batches;
        self.objects += other.objects;
        self.bytes += other.bytes;
        self.missing += other.missing;
        self.already_existing += other.already_existing;
        self.fewer_copies += other.fewer_copies;
        self.verified += other.verified;
        for (name, failed) in other.failed {
            let mine = self.failed.entry(name).or_insert(ErrorCount { count: 0, ..failed.clone() });
            mine.count += failed.count;
        }
        self.latency.add(&other.latency);
    }
}

/// Results for one pass.
#[derive(Clone, Debug)]
pub struct StorePass {
    /// `put`, `get` or `mixed`.
    pub name: &'static str,
    /// Time from the start of the pass to the end of its last batch.
    pub elapsed: Duration,
    /// CPU time of this process during the pass, over all threads.
    pub cpu: Duration,
    pub put: OperationStats,
    pub get: OperationStats,
}

impl StorePass {
    /// Returns the CPU time of this process per transferred object.
    pub fn cpu_per_object(&self) -> Option<Duration> {
        let objects = u32::try_from(self.put.objects + self.get.objects).ok().filter(|objects| *objects > 0);
        objects.map(|objects| self.cpu / objects)
    }

    /// Returns `amount` per second of the pass.
    pub fn per_second(&self, amount: u64) -> f64 {
        amount as f64 / self.elapsed.as_secs_f64().max(1e-9)
    }
}

/// State shared by the clients in a pass.
struct PassState {
    plan: StoreBenchPlan,
    stop: StopFlag,
    /// Objects put or read so far, in all passes.
    done: Arc<AtomicU64>,
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

/// Runs `plan` with one client task per store in `stores`. Counts the objects put or read in `done`.
///
/// If the first pass stores nothing, the run ends after it.
///
/// # Errors
/// A client's memory cannot be registered.
pub async fn run<E: Env>(
    env: E,
    stores: Vec<StoreClient<E>>,
    plan: StoreBenchPlan,
    stop: StopFlag,
    done: Arc<AtomicU64>,
) -> Result<Vec<StorePass>, TransferError> {
    let (mut passes, mut clients) = (Vec::new(), Vec::with_capacity(stores.len()));
    for (index, store) in stores.into_iter().enumerate() {
        clients.push(BenchClient::new(env.clone(), store, &plan, index as u64).await?);
    }
    let shared = |next: u32, stored: u32| {
        let (plan, stop, done) = (plan.clone(), stop.clone(), Arc::clone(&done));
        let (failed_batches, any) = (AtomicU32::new(0), AtomicBool::new(false));
        Arc::new(PassState {
            plan,
            stop,
            done,
            next: AtomicU32::new(next),
            stored: Mutex::new(StoredPrefix::new(stored)),
            failed_batches,
            any,
        })
    };
    let names = [
        ("put", PassKind::Put),
        if plan.read_ratio < 1.0 { ("mixed", PassKind::Mixed) } else { ("get", PassKind::Get) },
    ];
    for (name, kind) in names {
        // If no put succeeded, there is nothing to read.
        let is_empty = |pass: &StorePass| pass.put.objects == 0 && pass.put.already_existing == 0;
        if stop.is_set() || passes.last().is_some_and(is_empty) {
            break;
        }
        let stored = if kind == PassKind::Put { 0 } else { plan.objects };
        let shared = shared(if kind == PassKind::Get { 0 } else { stored }, stored);
        let (began, cpu) = (env.now(), cpu_time());
        let until = plan.duration.filter(|_| kind != PassKind::Put).map(|duration| began + duration);
        let tasks: Vec<_> = clients
            .drain(..)
            .map(|mut client| {
                let shared = shared.clone();
                tokio::spawn(async move {
                    let share = client.work(kind, &shared, until).await;
                    (client, share)
                })
            })
            .collect();
        let mut pass = StorePass {
            name,
            elapsed: Duration::ZERO,
            cpu: Duration::ZERO,
            put: OperationStats::default(),
            get: OperationStats::default(),
        };
        for task in tasks {
            let (client, share) = task.await.unwrap_or_else(|bug| std::panic::resume_unwind(bug.into_panic()));
            clients.push(client);
            pass.put.add(share.put);
            pass.get.add(share.get);
        }
        (pass.elapsed, pass.cpu) = (env.now().since(began), cpu_time().saturating_sub(cpu));
        passes.push(pass);
    }
    Ok(passes)
}

/// The operations in a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PassKind {
    Put,
    Get,
    Mixed,
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
