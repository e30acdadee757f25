//! A store benchmark client.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use rand_chacha::ChaCha8Rng;

use crate::store::{ClientStats, ErrorCount, OperationStats, PassKind, PassState, StoreBenchPlan, is_time_up};
use mcctl_base::{ErrorCode, Mono, ObjectKey};
use mcctl_store::{PutOutcome, ReplicateConfig, StoreClient, StoreError, payload};
use mcctl_sys::env::Env;
use mcctl_sys::memory::{Memory, Slice};
use mcctl_sys::{MemoryPolicy, MemorySource};
use mcctl_transfer::{Access, TransferError};

/// A client with the source and destination memory for its batches.
pub(super) struct BenchClient<E: Env> {
    env: E,
    store: StoreClient<E>,
    rng: ChaCha8Rng,
    from: Arc<Memory>,
    into: Arc<Memory>,
}

impl<E: Env> BenchClient<E> {
    /// Creates a client and registers its memory once. With RDMA, unregistered memory would be
    /// registered again for each operation.
    ///
    /// # Errors
    /// The memory cannot be registered.
    pub(super) async fn new(
        env: E,
        store: StoreClient<E>,
        plan: &StoreBenchPlan,
        index: u64,
    ) -> Result<BenchClient<E>, TransferError> {
        let length = usize::try_from(plan.batch_bytes()).unwrap_or(usize::MAX);
        // A node on this host can copy from such memory.
        let source = MemorySource::new(MemoryPolicy::default());
        let memory = |bytes: Vec<u8>| match source.buffer(bytes.len() as u64) {
            Ok(memory) if memory.write_at(0, &bytes).is_ok() => Arc::new(memory),
            _ => Arc::new(Memory::from_vec(bytes)),
        };
        let rng = plan.seed.generator("store bench", index);
        let from = memory(payload(plan.seed.0, length));
        let into = memory(vec![0; length]);
        let local = |memory: &Arc<Memory>| (Arc::clone(memory), Access::Local);
        store.engine().register_all(&[local(&from), local(&into)]).await?;
        Ok(BenchClient { env, store, rng, from, into })
    }

    /// Runs batches until the pass is complete, the deadline has passed, or the run is stopped.
    pub(super) async fn work(&mut self, kind: PassKind, shared: &PassState, until: Option<Mono>) -> ClientStats {
        let mut share = ClientStats::default();
        let plan = &shared.plan;
        let goal = match (kind, until) {
            (_, Some(_)) => u32::MAX,
            (_, None) => shared.goal,
        };
        let mut turn = 0;
        while !shared.stop.is_set() && !is_time_up(self.env.now(), until) {
            let is_read = kind == PassKind::Get || (kind == PassKind::Mixed && plan.reads(&mut self.rng));
            // Without a duration, a mixed pass performs one operation per object.
            if kind == PassKind::Mixed && until.is_none() {
                if turn >= goal.div_ceil(plan.batch) {
                    break;
                }
                turn += 1;
            }
            if is_read {
                let first = shared.next_reads(kind, plan.batch);
                let count = if until.is_some() || kind == PassKind::Mixed {
                    plan.batch
                } else {
                    goal.saturating_sub(first).min(plan.batch)
                };
                if count == 0 {
                    break;
                }
                let stored = shared.stored();
                // In a long run, the read counter wraps around.
                let turns = (0..count).map(|at| first.wrapping_add(at));
                let indices = turns.map(|turn| plan.read_index(turn, stored, &mut self.rng)).collect();
                self.read(plan, indices, &mut share.get).await;
                shared.done.fetch_add(u64::from(count), Ordering::Relaxed);
            } else {
                let first = shared.next.fetch_add(plan.batch, Ordering::Relaxed);
                let count = if kind == PassKind::Put { goal.saturating_sub(first).min(plan.batch) } else { plan.batch };
                if count == 0 || first > u32::MAX - 2 * plan.batch {
                    break;
                }
                let before = share.put.objects + share.put.already_existing;
                self.put(plan, first..first + count, &mut share.put).await;
                shared.put(first..first + count);
                shared.done.fetch_add(u64::from(count), Ordering::Relaxed);
                shared.record_put(share.put.objects + share.put.already_existing > before);
                if shared.nothing_stored() {
                    break;
                }
            }
        }
        share
    }

    async fn put(&self, plan: &StoreBenchPlan, indices: std::ops::Range<u32>, done: &mut OperationStats) {
        let objects = slices(plan, indices.clone(), &self.from);
        if plan.verify {
            let mine = objects.clone();
            let seed = plan.seed.0;
            let fill = move || {
                for ((_, slice), index) in mine.iter().zip(indices) {
                    slice.copy_from_bytes(&expected(seed, index, slice.len()));
                }
            };
            if tokio::task::spawn_blocking(fill).await.is_err() {
                return;
            }
        }
        let config = ReplicateConfig { replica_num: plan.replicas, ..ReplicateConfig::default() };
        let began = self.env.now();
        let answers = self.store.batch_put(&objects, &config).await;
        let took = self.env.now().since(began);
        let answers = match answers {
            Ok(answers) => answers,
            Err(error) => return count_error(done, &error, objects.len() as u64),
        };
        let before = done.objects;
        for (answer, (_, slice)) in answers.iter().zip(&objects) {
            match answer {
                Ok(PutOutcome::Stored { replicas }) => {
                    done.objects += 1;
                    done.fewer_copies += u64::from((*replicas as u64) < plan.replicas);
                    done.bytes += slice.len() as u64;
                }
                Ok(PutOutcome::AlreadyExists) => done.already_existing += 1,
                Err(error) => count_error(done, error, 1),
            }
        }
        if done.objects > before {
            done.batches += 1;
            done.latency.record(took, 1);
        }
    }

    async fn read(&self, plan: &StoreBenchPlan, indices: Vec<u32>, done: &mut OperationStats) {
        let objects = slices(plan, indices.iter().copied(), &self.into);
        let began = self.env.now();
        let answers = self.store.batch_get_into(&objects).await;
        let took = self.env.now().since(began);
        let answers = match answers {
            Ok(answers) => answers,
            Err(error) => return count_error(done, &error, objects.len() as u64),
        };
        let before = done.objects;
        let mut received = Vec::new();
        for ((answer, (_, slice)), index) in answers.into_iter().zip(&objects).zip(indices) {
            match answer {
                Ok(bytes) => {
                    done.objects += 1;
                    done.bytes += bytes as u64;
                    received.push((index, slice.clone(), bytes));
                }
                Err(error) if error.code() == ErrorCode::OBJECT_NOT_FOUND => done.missing += 1,
                Err(error) => count_error(done, &error, 1),
            }
        }
        if done.objects > before {
            done.batches += 1;
            done.latency.record(took, 1);
        }
        if plan.verify && !received.is_empty() {
            let seed = plan.seed.0;
            let plan = plan.clone();
            let compare = move || -> Vec<(u32, bool)> {
                let same = |(index, slice, bytes): &(u32, Slice, usize)| {
                    *bytes as u64 == plan.size(*index) && slice.to_vec() == expected(seed, *index, *bytes)
                };
                received.iter().map(|one| (one.0, same(one))).collect()
            };
            for (index, same) in tokio::task::spawn_blocking(compare).await.unwrap_or_default() {
                if same {
                    done.verified += 1;
                } else {
                    let first = format!("the bytes read from object {index} differ from the bytes written");
                    done.failed
                        .entry("WRONG_BYTES".to_owned())
                        .or_insert(ErrorCount { count: 0, first, error: None })
                        .count += 1;
                }
            }
        }
    }
}

impl PassState {
    /// Reserves `batch` reads and returns the index of the first.
    fn next_reads(&self, kind: PassKind, batch: u32) -> u32 {
        match kind {
            PassKind::Get => self.next.fetch_add(batch, Ordering::Relaxed),
            // In a mixed pass, only puts advance the counter.
            _ => self.next.load(Ordering::Relaxed),
        }
    }
}

/// Returns the expected content of object `index`, for `--verify`.
fn expected(seed: u64, index: u32, length: usize) -> Vec<u8> {
    payload(seed.rotate_left(32) ^ (u64::from(index) << 1 | 1), length)
}

/// Returns the objects at `indices`, laid out one after another in `memory`.
fn slices(
    plan: &StoreBenchPlan,
    indices: impl IntoIterator<Item = u32>,
    memory: &Arc<Memory>,
) -> Vec<(ObjectKey, Slice)> {
    let mut at = 0;
    let slice = |index: u32| {
        let length = usize::try_from(plan.size(index)).unwrap_or(usize::MAX);
        let slice = memory.slice(at, length).expect("the memory is large enough for the largest batch");
        at += length;
        (plan.key(index), slice)
    };
    indices.into_iter().map(slice).collect()
}

fn count_error(done: &mut OperationStats, error: &StoreError, count: u64) {
    let code = error.code();
    let name = code.name().map_or_else(|| code.to_string(), str::to_owned);
    let first = || ErrorCount { count: 0, first: error.to_string(), error: Some(error.clone()) };
    done.failed.entry(name).or_insert_with(first).count += count;
}
