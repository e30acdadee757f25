//! The third tier: pages in a Mooncake store, with two objects per page. Their bytes are derived
//! from the page ID and verified when read.

use std::sync::Arc;
use std::time::Duration;

use crate::page;
use mcctl_base::ObjectKey;
use mcctl_store::{StoreClient, StoreError};
use mcctl_sys::env::Env;
use mcctl_sys::memory::{Memory, Slice};
use mcctl_wire::types::ReplicateConfig;

/// Maximum number of pages per lookup.
const LOOK_PAGES: usize = 512;
/// Maximum batch size in bytes, unless a single page is larger.
const BATCH_BYTES: usize = 8 << 20;

/// A store client and the size of its objects.
#[derive(Clone)]
pub struct Storage<E: Env> {
    env: E,
    client: StoreClient<E>,
    object_bytes: usize,
    tokens_per_s: f64,
    page_size: u64,
}

/// The result of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchResult {
    /// Number of pages transferred successfully. For a read, only the pages before the first
    /// failure are counted.
    pub pages: usize,
    pub took: Duration,
}

impl<E: Env> Storage<E> {
    /// Creates the storage for `config`, using `client`.
    pub fn new(env: E, client: StoreClient<E>, config: &crate::Config) -> Storage<E> {
        Storage {
            env,
            client,
            object_bytes: usize::try_from(config.object_bytes()).unwrap_or(usize::MAX),
            tokens_per_s: config.cost.storage_tokens_per_s,
            page_size: config.page_size,
        }
    }

    /// Returns how many of `pages`, counted from the first, exist. These pages receive a read
    /// lease.
    pub(super) async fn lookup(&self, pages: &[u64]) -> usize {
        let mut there = 0;
        for some in pages.chunks(LOOK_PAGES) {
            let keys: Vec<ObjectKey> = some.iter().flat_map(|page| page::keys(*page)).collect();
            let answers = match self.client.batch_exists(&keys).await {
                Ok(answers) => answers,
                Err(error) => {
                    tracing::warn!(%error, "storage lookup failed");
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

    /// Reads and verifies `pages`.
    pub(super) async fn read(&self, pages: &[u64]) -> BatchResult {
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
                    tracing::warn!(%error, "storage read failed");
                    break;
                }
            };
            if let Some(error) = got.iter().find_map(|one| one.as_ref().err()) {
                tracing::debug!(%error, "a page was not read from storage");
            }
            let mine = some.to_vec();
            let length = self.object_bytes;
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
        BatchResult { pages: came, took: self.env.now().since(began) }
    }

    /// Writes `pages`. A page that already exists counts as written.
    pub(super) async fn write(&self, pages: &[u64]) -> BatchResult {
        let began = self.env.now();
        let mut taken = 0;
        for some in pages.chunks(self.batch_pages()) {
            let mine = some.to_vec();
            let length = self.object_bytes;
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
                        tracing::debug!(%error, "a page was not written to storage");
                    }
                }
                Err(error) => tracing::warn!(%error, "storage write failed"),
            }
        }
        BatchResult { pages: taken, took: self.env.now().since(began) }
    }

    /// Removes all simulator pages, except leased ones. Returns the number of removed objects.
    ///
    /// # Errors
    /// The master does not respond, or rejects the request.
    pub(super) async fn clear(&self) -> Result<i64, StoreError> {
        self.client.remove_by_regex(page::EVERY_KEY, false).await
    }

    fn batch_pages(&self) -> usize {
        (BATCH_BYTES / (2 * self.object_bytes).max(1)).max(1)
    }
}

/// Returns the objects for `pages`, laid out in sequence in `memory`.
fn objects(pages: &[u64], memory: Arc<Memory>, length: usize) -> Vec<(ObjectKey, Slice)> {
    let keys = pages.iter().flat_map(|page| page::keys(*page));
    keys.enumerate()
        .map(|(at, key)| (key, memory.slice(at * length, length).expect("memory is sized for all objects")))
        .collect()
}

/// Returns how many pages, counted from the first, were read with the expected bytes.
fn right(pages: &[u64], objects: &[(ObjectKey, Slice)], got: &[Result<usize, StoreError>], length: usize) -> usize {
    let mut expected = vec![0; length];
    let mut is_right = |at: usize, page: u64| {
        [0, 1].into_iter().all(|half| {
            let (key, slice) = &objects[2 * at + half];
            let came = matches!(got.get(2 * at + half), Some(Ok(bytes)) if *bytes == length);
            page::fill(page, half, &mut expected);
            let same = came && slice.to_vec() == expected;
            if came && !same {
                tracing::warn!(%key, "storage returned different bytes than were written");
            }
            same
        })
    };
    pages.iter().enumerate().take_while(|(at, page)| is_right(*at, **page)).count()
}
