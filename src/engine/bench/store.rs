//! Objects in and out of a cluster: what a put and a get of so many at once take, and what they cost.
//!
//! Clients work side by side, each with a connection of its own to the master, one batch after the other. Keys begin with a prefix of
//! the run, by which they are removed again.

mod client;
mod plan;
mod stored;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::engine::base::Mono;
use crate::engine::env::Env;
use crate::engine::load::Histogram;
use crate::engine::store::{StoreClient, StoreError};
use crate::engine::sys::host::cpu_time;
use crate::engine::transfer::TransferError;

use client::Client;
pub use plan::{Plan, PlanError};
use stored::Stored;

/// Ends the run early: between two batches.
#[derive(Clone, Debug, Default)]
pub struct Stop(Arc<AtomicBool>);

impl Stop {
    /// End it.
    pub fn stop(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Is it to end?
    pub fn is_told(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// A failure, as often as it happened.
#[derive(Clone, Debug)]
pub struct Failed {
    /// How many objects.
    pub count: u64,
    /// Message of the first one.
    pub first: String,
    /// The first one, unless it was not an error of the store.
    pub error: Option<StoreError>,
}

/// What became of one kind of work.
#[derive(Clone, Debug, Default)]
pub struct Done {
    /// Batches, of those that moved anything.
    pub batches: u64,
    /// Objects moved.
    pub objects: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Objects that were not there to be read: evicted, or never stored.
    pub missing: u64,
    /// Objects that were there already.
    pub taken: u64,
    /// Objects that got fewer copies than were asked for: there were not enough nodes with room.
    pub fewer_copies: u64,
    /// Objects whose bytes were compared, and the same.
    pub verified: u64,
    /// Objects that failed, by the error's name.
    pub failed: BTreeMap<String, Failed>,
    /// How long batches took.
    pub latency: Histogram,
}

impl Done {
    /// Objects that failed.
    pub fn failures(&self) -> u64 {
        self.failed.values().map(|failed| failed.count).sum()
    }

    fn add(&mut self, other: Done) {
        self.batches += other.batches;
        self.objects += other.objects;
        self.bytes += other.bytes;
        self.missing += other.missing;
        self.taken += other.taken;
        self.fewer_copies += other.fewer_copies;
        self.verified += other.verified;
        for (name, failed) in other.failed {
            let mine = self.failed.entry(name).or_insert(Failed { count: 0, ..failed.clone() });
            mine.count += failed.count;
        }
        self.latency.add(&other.latency);
    }
}

/// What a pass brought.
#[derive(Clone, Debug)]
pub struct Pass {
    /// `put`, `get` or `mixed`.
    pub name: &'static str,
    /// From its start to the end of its last batch.
    pub elapsed: Duration,
    /// CPU time of this process meanwhile, all threads.
    pub cpu: Duration,
    /// The puts.
    pub put: Done,
    /// The gets.
    pub get: Done,
}

impl Pass {
    /// CPU of this process per object moved.
    pub fn cpu_per_object(&self) -> Option<Duration> {
        let objects = u32::try_from(self.put.objects + self.get.objects).ok().filter(|objects| *objects > 0);
        objects.map(|objects| self.cpu / objects)
    }

    /// `amount` a second.
    pub fn per_second(&self, amount: u64) -> f64 {
        amount as f64 / self.elapsed.as_secs_f64().max(1e-9)
    }
}

/// What the clients of a pass share.
struct Shared {
    plan: Plan,
    stop: Stop,
    /// The next object to put, or the next number of a read.
    next: AtomicU32,
    /// Objects put, the first ones.
    stored: Mutex<Stored>,
    /// Batches of puts that stored nothing, as long as none stored anything.
    fruitless: AtomicU32,
    /// Has any object been stored, or found stored?
    any: AtomicBool,
}

/// Batches of puts after which a run that has stored nothing ends.
const FRUITLESS_MAX: u32 = 4;

impl Shared {
    /// So many of the first objects have been put: only these are read.
    fn stored(&self) -> u32 {
        self.stored.lock().unwrap_or_else(PoisonError::into_inner).first()
    }

    /// A batch of puts is over; did it store anything?
    fn note_put(&self, stored: bool) {
        if stored {
            self.any.store(true, Ordering::Relaxed);
        } else {
            self.fruitless.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Has nothing been stored although it was tried often enough?
    fn is_hopeless(&self) -> bool {
        !self.any.load(Ordering::Relaxed) && self.fruitless.load(Ordering::Relaxed) >= FRUITLESS_MAX
    }

    /// The put of these is over.
    fn put(&self, objects: std::ops::Range<u32>) {
        self.stored.lock().unwrap_or_else(PoisonError::into_inner).add(objects);
    }
}

/// Carry out `plan` with `stores`, a client each, in tasks of their own.
///
/// A run whose first puts store nothing ends with that pass.
///
/// # Errors
/// A client's memory cannot be registered.
pub async fn run<E: Env>(
    env: E,
    stores: Vec<StoreClient<E>>,
    plan: Plan,
    stop: Stop,
) -> Result<Vec<Pass>, TransferError> {
    let (mut passes, mut clients) = (Vec::new(), Vec::with_capacity(stores.len()));
    for (index, store) in stores.into_iter().enumerate() {
        clients.push(Client::new(env.clone(), store, &plan, index as u64).await?);
    }
    let shared = |next: u32, stored: u32| {
        let (plan, stop) = (plan.clone(), stop.clone());
        let (fruitless, any) = (AtomicU32::new(0), AtomicBool::new(false));
        Arc::new(Shared {
            plan,
            stop,
            next: AtomicU32::new(next),
            stored: Mutex::new(Stored::new(stored)),
            fruitless,
            any,
        })
    };
    let names = [("put", Kind::Put), if plan.read_ratio < 1.0 { ("mixed", Kind::Mixed) } else { ("get", Kind::Get) }];
    for (name, kind) in names {
        // There is nothing to read where no put succeeded.
        let is_empty = |pass: &Pass| pass.put.objects == 0 && pass.put.taken == 0;
        if stop.is_told() || passes.last().is_some_and(is_empty) {
            break;
        }
        let stored = if kind == Kind::Put { 0 } else { plan.objects };
        let shared = shared(if kind == Kind::Get { 0 } else { stored }, stored);
        let (began, cpu) = (env.now(), cpu_time());
        let until = plan.duration.filter(|_| kind != Kind::Put).map(|duration| began + duration);
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
        let mut pass =
            Pass { name, elapsed: Duration::ZERO, cpu: Duration::ZERO, put: Done::default(), get: Done::default() };
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

/// What a pass does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Put,
    Get,
    Mixed,
}

/// What one client did in a pass.
#[derive(Debug, Default)]
struct Share {
    put: Done,
    get: Done,
}

/// Is the time up?
fn is_over(now: Mono, until: Option<Mono>) -> bool {
    until.is_some_and(|until| now >= until)
}
