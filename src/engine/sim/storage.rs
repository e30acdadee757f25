//! The third tier: pages in a Mooncake store, each as two objects, with bytes that are made from the page's name and compared when they
//! come back.

use std::sync::Arc;
use std::time::Duration;

use crate::engine::base::ObjectKey;
use crate::engine::env::Env;
use crate::engine::sim::page;
use crate::engine::store::{StoreClient, StoreError};
use crate::engine::sys::memory::{Memory, Slice};
use crate::engine::wire::types::ReplicateConfig;

/// Pages that one question is about.
const LOOK_PAGES: usize = 512;
/// Bytes of one batch, if a page has no more.
const BATCH_BYTES: usize = 8 << 20;

/// A store, and how large its objects are.
#[derive(Clone)]
pub struct Storage<E: Env> {
    env: E,
    client: StoreClient<E>,
    object_bytes: usize,
    tokens_per_s: f64,
    page_size: u64,
}

/// What a batch came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moved {
    /// Pages that are where they were to be: of a read, the first ones.
    pub pages: usize,
    /// How long it took.
    pub took: Duration,
}

impl<E: Env> Storage<E> {
    /// The store of `client`, for what `config` says.
    pub fn new(env: E, client: StoreClient<E>, config: &crate::engine::sim::Config) -> Storage<E> {
        Storage {
            env,
            client,
            object_bytes: usize::try_from(config.object_bytes()).unwrap_or(usize::MAX),
            tokens_per_s: config.cost.storage_tokens_per_s,
            page_size: config.page_size,
        }
    }

    /// How many of `pages`, from the first on, are there. Those get a read lease.
    pub(super) async fn look(&self, pages: &[u64]) -> usize {
        let mut there = 0;
        for some in pages.chunks(LOOK_PAGES) {
            let keys: Vec<ObjectKey> = some.iter().flat_map(|page| page::keys(*page)).collect();
            let answers = match self.client.batch_exists(&keys).await {
                Ok(answers) => answers,
                Err(error) => {
                    tracing::warn!(%error, "storage does not say what it has");
                    return there;
                }
            };
            let whole = |pair: &[Result<bool, StoreError>]| pair.iter().all(|found| matches!(found, Ok(true)));
            let found = answers.chunks_exact(2).take_while(|pair| whole(pair)).count();
            there += found;
            if found < some.len() {
                break;
            }
        }
        there
    }

    /// Read `pages` and compare them.
    pub(super) async fn read(&self, pages: &[u64]) -> Moved {
        let began = self.env.now();
        let mut came = 0;
        for some in pages.chunks(self.batch_pages()) {
            let objects = objects(
                some,
                Arc::new(Memory::from_vec(vec![0; 2 * some.len() * self.object_bytes])),
                self.object_bytes,
            );
            let got = match self.client.batch_get_into(&objects).await {
                Ok(got) => got,
                Err(error) => {
                    tracing::warn!(%error, "storage does not give its pages");
                    break;
                }
            };
            if let Some(error) = got.iter().find_map(|one| one.as_ref().err()) {
                tracing::debug!(%error, "a page did not come from storage");
            }
            let (mine, length) = (some.to_vec(), self.object_bytes);
            let right = tokio::task::spawn_blocking(move || right(&mine, &objects, &got, length)).await.unwrap_or(0);
            came += right;
            if right < some.len() {
                break;
            }
        }
        if self.tokens_per_s > 0.0 {
            let least = Duration::try_from_secs_f64((came as u64 * self.page_size) as f64 / self.tokens_per_s);
            self.env.sleep(least.unwrap_or_default().saturating_sub(self.env.now().since(began))).await;
        }
        Moved { pages: came, took: self.env.now().since(began) }
    }

    /// Write `pages`. A page that is there already counts as written.
    pub(super) async fn write(&self, pages: &[u64]) -> Moved {
        let began = self.env.now();
        let mut taken = 0;
        for some in pages.chunks(self.batch_pages()) {
            let (mine, length) = (some.to_vec(), self.object_bytes);
            let made = tokio::task::spawn_blocking(move || {
                let mut bytes = vec![0; 2 * mine.len() * length];
                for (at, object) in bytes.chunks_exact_mut(length).enumerate() {
                    page::fill(mine[at / 2], at % 2, object);
                }
                let memory = Arc::new(Memory::from_vec(bytes));
                objects(&mine, memory, length)
            });
            let Ok(made) = made.await else { break };
            match self.client.batch_put(&made, &ReplicateConfig::default()).await {
                Ok(put) => {
                    taken += put.chunks_exact(2).filter(|pair| pair.iter().all(Result::is_ok)).count();
                    if let Some(error) = put.iter().find_map(|one| one.as_ref().err()) {
                        tracing::debug!(%error, "storage does not take a page");
                    }
                }
                Err(error) => tracing::warn!(%error, "storage does not take pages"),
            }
        }
        Moved { pages: taken, took: self.env.now().since(began) }
    }

    /// Forget all pages of simulators, but for those that somebody has a lease on. How many objects went.
    ///
    /// # Errors
    /// The master does not answer, or refuses.
    pub(super) async fn clear(&self) -> Result<i64, StoreError> {
        self.client.remove_by_regex(page::EVERY_KEY, false).await
    }

    fn batch_pages(&self) -> usize {
        (BATCH_BYTES / (2 * self.object_bytes).max(1)).max(1)
    }
}

/// The objects of `pages`, one after the other in `memory`.
fn objects(pages: &[u64], memory: Arc<Memory>, length: usize) -> Vec<(ObjectKey, Slice)> {
    let keys = pages.iter().flat_map(|page| page::keys(*page));
    keys.enumerate().map(|(at, key)| (key, memory.slice(at * length, length).expect("it was made for them"))).collect()
}

/// How many pages, from the first on, came and are what was once written.
fn right(pages: &[u64], objects: &[(ObjectKey, Slice)], got: &[Result<usize, StoreError>], length: usize) -> usize {
    let mut expected = vec![0; length];
    let mut is_right = |at: usize, page: u64| {
        [0, 1].into_iter().all(|half| {
            let (key, slice) = &objects[2 * at + half];
            let came = matches!(got.get(2 * at + half), Some(Ok(bytes)) if *bytes == length);
            page::fill(page, half, &mut expected);
            let same = came && slice.to_vec() == expected;
            if came && !same {
                tracing::warn!(%key, "storage gave other bytes than were written");
            }
            same
        })
    };
    pages.iter().enumerate().take_while(|(at, page)| is_right(*at, **page)).count()
}
