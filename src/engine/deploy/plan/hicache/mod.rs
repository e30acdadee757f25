//! Computes how many tokens of each request in a trace come from each SGLang HiCache tier: the
//! device (L1), the host (L2) and storage (L3). The remaining tokens are new.
//!
//! The model reproduces the steps of SGLang 0.5.23 for one engine that serves one request at a
//! time. Each request starts after the previous request's writes have completed. The steps are:
//! - the lookup on arrival and the prefetch from storage (`managers/scheduler.py`,
//!   `_prefetch_kvcache`; `mem_cache/unified_radix_cache.py`)
//! - the second lookup and the load from the host on admission (`managers/schedule_policy.py`,
//!   `add_one_req`)
//! - eviction before every allocation (`mem_cache/allocation.py`)
//! - the copies to the host and to storage that an insert triggers with write-through
//!
//! Queueing is not modeled: a server with concurrent requests evicts in a different order.
//!
//! Storage keeps everything written to it. Store evictions are not modeled.

pub mod prompt;
pub mod tree;

use std::collections::HashSet;

use crate::plan::hicache::prompt::PagedPrompt;
use crate::plan::hicache::tree::CacheTree;

/// Minimum number of tokens for a prefetch from storage (SGLang's `prefetch_threshold`).
pub const PREFETCH_THRESHOLD: u64 = 256;
/// Maximum number of reply tokens that SGLang counts when it checks whether a request fits
/// (`CLIP_MAX_NEW_TOKENS`).
const REPLY_TOKENS_COUNTED: u64 = 4096;

/// The tier sizes and the relevant SGLang settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TierSettings {
    pub page_size: u64,
    /// Capacity of the device pool, in tokens (`max_total_num_tokens`).
    pub device_tokens: u64,
    /// Capacity of the host pool, in tokens, including the padding page.
    pub host_tokens: u64,
    pub storage: bool,
    /// Minimum number of tokens for a prefetch. At least one page.
    pub prefetch_threshold: u64,
    /// Tokens per prefill chunk (`--chunked-prefill-size`); `None` disables chunking.
    pub chunk_tokens: Option<u64>,
}

/// A request's tokens, by source.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TierTokens {
    pub device: u64,
    pub host: u64,
    /// Loaded from storage through the host.
    pub storage: u64,
    pub new: u64,
    /// Why storage supplied no tokens, or fewer than it contained.
    pub why: Option<StorageShortfall>,
}

/// Why storage did not supply all missing tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StorageShortfall {
    /// Fewer tokens than the threshold are missing, or fewer than the threshold are in storage.
    BelowThreshold,
    /// The host pool has no free space.
    HostFull,
    /// The tokens found on the host do not fit on the device.
    DeviceFull,
    /// The last matched node has no copy on the host, so SGLang does not query storage.
    NotOnHost,
    /// The request is larger than the device pool, so SGLang never starts it.
    TooLong,
}

/// The state of a server's caches.
#[derive(Clone, Debug)]
pub struct HicacheModel {
    tiers: TierSettings,
    tree: CacheTree,
    stored: HashSet<u64>,
}

impl HicacheModel {
    /// Creates a server with empty caches.
    pub fn new(tiers: TierSettings) -> HicacheModel {
        let page = tiers.page_size.max(1);
        let tiers = TierSettings { page_size: page, ..tiers };
        let tree = CacheTree::new(tiers.device_tokens / page, tiers.host_tokens / page);
        HicacheModel { tiers, tree, stored: HashSet::new() }
    }

    /// Number of tokens in storage.
    pub fn stored_tokens(&self) -> u64 {
        self.stored.len() as u64 * self.tiers.page_size
    }

    /// Processes a request and returns its tokens by tier.
    pub fn serve(&mut self, prompt: &PagedPrompt) -> TierTokens {
        let page = self.tiers.page_size;
        // The last token is always computed, because sampling needs its output.
        let asked = usize::try_from(prompt.tokens.saturating_sub(1) / page).unwrap_or(usize::MAX);
        let asked = &prompt.pages[..asked.min(prompt.pages.len())];
        let (from, fetched, mut why) = self.fetch(asked);
        let found = self.tree.find(asked);
        let reply = prompt.reply_tokens.min(REPLY_TOKENS_COUNTED);
        self.tree.lock(found.device_node);
        let is_too_long = prompt.tokens - found.device * page + reply + page >= self.tree.reachable() * page;
        self.tree.unlock(found.device_node);
        if is_too_long {
            return TierTokens { new: prompt.tokens, why: Some(StorageShortfall::TooLong), ..TierTokens::default() };
        }
        let is_loaded = found.host > 0 && self.tree.load_back(found.node);
        if found.host > 0 && !is_loaded {
            why = Some(StorageShortfall::DeviceFull);
        }
        let (last, prefix) =
            if is_loaded { (found.node, found.device + found.host) } else { (found.device_node, found.device) };
        self.run(prompt, last, prefix);
        let storage = prefix.min(from + fetched).saturating_sub(from);
        let from_host = if is_loaded { found.host } else { 0 };
        let host = from_host - prefix.min(from + fetched).saturating_sub(from.max(prefix - from_host));
        TierTokens {
            device: (prefix - host - storage) * page,
            host: host * page,
            storage: storage * page,
            new: prompt.tokens - prefix * page,
            why,
        }
    }

    /// Looks up the pages in `asked` and fetches missing pages from storage to the host. Returns
    /// the index of the first missing page, the number of fetched pages, and why not all missing
    /// pages were fetched.
    fn fetch(&mut self, asked: &[u64]) -> (u64, u64, Option<StorageShortfall>) {
        let page = self.tiers.page_size;
        let found = self.tree.find(asked);
        let from = found.device + found.host;
        if !self.tiers.storage {
            return (from, 0, None);
        }
        // The matched pages are a prefix of `asked`.
        let missing = &asked[usize::try_from(from).unwrap_or(asked.len())..];
        if missing.is_empty() {
            return (from, 0, None);
        }
        if !self.tree.anchors_fetch(found.node) {
            return (from, 0, Some(StorageShortfall::NotOnHost));
        }
        let least = self.tiers.prefetch_threshold.max(page).div_ceil(page);
        if (missing.len() as u64) < least {
            return (from, 0, Some(StorageShortfall::BelowThreshold));
        }
        let hit = missing.iter().take_while(|name| self.stored.contains(*name)).count() as u64;
        if hit < least {
            return (from, 0, (hit > 0).then_some(StorageShortfall::BelowThreshold));
        }
        self.tree.lock_host(found.node, true);
        if self.tree.host_free < hit {
            self.tree.evict_host(hit);
        }
        let fitting = hit.min(self.tree.host_free);
        let fetched = if fitting == hit || fitting >= least { fitting } else { 0 };
        if fetched > 0 {
            self.tree.host_free -= fetched;
            let pages = usize::try_from(fetched).unwrap_or(missing.len());
            self.tree.insert_fetched(found.node, &missing[..pages]);
        }
        self.tree.lock_host(found.node, false);
        (from, fetched, (fetched < hit).then_some(StorageShortfall::HostFull))
    }

    /// Computes the prompt from page `prefix` on, then the reply, and inserts both into the tree
    /// after node `last`.
    fn run(&mut self, prompt: &PagedPrompt, last: usize, prefix: u64) {
        let page = self.tiers.page_size;
        let HicacheModel { tree, stored, tiers } = self;
        let mut written = |pages: &[u64]| {
            if tiers.storage {
                stored.extend(pages);
            }
        };
        let whole = |tokens: u64, pages: &[u64]| usize::try_from(tokens / page).unwrap_or(usize::MAX).min(pages.len());
        let mut last = last;
        let mut own = prefix;
        let mut known = 0;
        let mut done = prefix * page;
        tree.lock(last);
        // Inserts the first pages, then locks the path to them in place of the previous path.
        let mut put = |tree: &mut CacheTree, pages: &[u64], own: &mut u64, known: &mut u64| {
            let node = tree.insert(pages, *known, *own, &mut written);
            tree.unlock(last);
            tree.lock(node);
            last = node;
            *own = (*own).max(pages.len() as u64);
            *known = (*known).max(pages.len() as u64);
        };
        loop {
            let rest = prompt.tokens - done;
            let step = match tiers.chunk_tokens {
                Some(chunk) if rest.div_ceil(page) * page > chunk && chunk >= page => chunk / page * page,
                _ => rest,
            };
            // SGLang requests one more page than needed.
            tree.make_room((step + page).div_ceil(page));
            let end = done + step;
            tree.device_free -= end.div_ceil(page) - done.div_ceil(page);
            done = end;
            if done == prompt.tokens {
                break;
            }
            put(tree, &prompt.pages[..whole(done, &prompt.pages)], &mut own, &mut known);
        }
        if prompt.reply_tokens > 1 {
            put(tree, &prompt.pages, &mut own, &mut known);
        }
        for _ in 1..prompt.reply_tokens {
            tree.make_room(1);
            tree.device_free -= u64::from(done.is_multiple_of(page));
            done += 1;
        }
        let all: Vec<u64> = prompt.pages.iter().chain(&prompt.reply_pages).copied().collect();
        if !all.is_empty() {
            put(tree, &all, &mut own, &mut known);
        }
        if !prompt.pages.is_empty() && !prompt.reply_pages.is_empty() {
            // The prompt becomes a separate node, so that the reply can be evicted without the
            // prompt.
            let pages = prompt.pages.len() as u64;
            tree.insert(&prompt.pages, pages, pages, &mut |_| {});
        }
        tree.device_free += done.div_ceil(page) - own;
        tree.unlock(last);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::hicache::prompt::PromptPager;
    use mcctl_trace::{TracePrompt, TraceRequest};
    use proptest::prelude::*;

    const PAGE: u64 = 16;

    fn tiers(device: u64, host: u64) -> TierSettings {
        TierSettings {
            page_size: PAGE,
            device_tokens: device * PAGE,
            host_tokens: host * PAGE,
            storage: true,
            prefetch_threshold: 64,
            chunk_tokens: None,
        }
    }

    /// A prompt in 64-token blocks of four pages each.
    fn prompt(ids: &[u64], tokens: u64, reply: u64) -> PagedPrompt {
        // Each key stands for all IDs up to its block.
        let keys: Vec<u64> = ids
            .iter()
            .scan(7u64, |all, id| {
                *all = all.wrapping_mul(1_000_003) + id;
                Some(*all)
            })
            .collect();
        let blocks = TracePrompt::Blocks { keys: 0..keys.len(), last_tokens: 64 };
        let request = TraceRequest { line: 1, session: 0, at: None, input: tokens, output: reply, prompt: blocks };
        PromptPager::new(PAGE, 64).page(&request, &keys)
    }

    fn whole(ids: &[u64]) -> PagedPrompt {
        prompt(ids, ids.len() as u64 * 64, 1)
    }

    fn by_tier(served: TierTokens) -> [u64; 4] {
        [served.device, served.host, served.storage, served.new]
    }

    #[test]
    fn a_repeated_prompt_is_on_the_device_except_its_last_page() {
        let mut server = HicacheModel::new(tiers(64, 129));
        assert_eq!(by_tier(server.serve(&whole(&[1, 2]))), [0, 0, 0, 128]);
        assert_eq!(by_tier(server.serve(&whole(&[1, 2]))), [112, 0, 0, 16]);
        assert_eq!(by_tier(server.serve(&prompt(&[1, 2, 3], 130, 1))), [128, 0, 0, 2]);
        assert_eq!(by_tier(server.serve(&whole(&[1, 9]))), [64, 0, 0, 64]);
    }

    #[test]
    fn evicted_pages_come_from_the_host_and_then_from_storage() {
        let mut server = HicacheModel::new(tiers(20, 41));
        server.serve(&whole(&[1, 2]));
        for other in 10..13 {
            server.serve(&whole(&[other, other + 100]));
        }
        // Each prompt has eight pages: the device has room for two prompts, and the host for five.
        assert_eq!(by_tier(server.serve(&prompt(&[1, 2, 3], 130, 1))), [0, 128, 0, 2]);
        for other in 20..26 {
            server.serve(&whole(&[other, other + 100]));
        }
        assert_eq!(by_tier(server.serve(&prompt(&[1, 2, 3], 130, 1))), [0, 0, 128, 2]);
        assert_eq!(server.stored_tokens(), 10 * 128);
    }

    #[test]
    fn less_than_the_threshold_is_not_fetched() {
        let mut server = HicacheModel::new(TierSettings { prefetch_threshold: 256, ..tiers(20, 41) });
        for other in [1, 10, 20, 30, 40, 50, 60] {
            server.serve(&whole(&[other, other + 1]));
        }
        let served = server.serve(&whole(&[1, 2]));
        assert_eq!((by_tier(served), served.why), ([0, 0, 0, 128], Some(StorageShortfall::BelowThreshold)));
    }

    #[test]
    fn a_request_larger_than_the_device_is_never_started() {
        let mut server = HicacheModel::new(tiers(8, 33));
        let served = server.serve(&whole(&[1, 2]));
        assert_eq!((served.new, served.why), (128, Some(StorageShortfall::TooLong)));
        assert_eq!(by_tier(server.serve(&whole(&[1]))), [0, 0, 0, 64]);
    }

    #[test]
    fn a_reply_uses_space_and_is_not_shared() {
        let mut server = HicacheModel::new(tiers(40, 81));
        assert_eq!(by_tier(server.serve(&prompt(&[1], 60, 40))), [0, 0, 0, 60]);
        assert_eq!(server.stored_tokens(), 96);
        assert_eq!(by_tier(server.serve(&prompt(&[1, 2], 128, 40))), [48, 0, 0, 80]);
    }

    proptest! {
        #[test]
        fn no_token_is_lost_or_counted_twice(
            requests in prop::collection::vec((prop::collection::vec(0u64..6, 1..6), 1u64..64, 1u64..70), 1..60),
            device in 10u64..60, host in 10u64..120, chunk in prop::option::of(1u64..100), storage: bool
        ) {
            let tiers = TierSettings { chunk_tokens: chunk, storage, ..tiers(device, host) };
            let mut server = HicacheModel::new(tiers);
            for (ids, last, reply) in requests {
                // Each id depends on all ids before it.
                let ids: Vec<u64> = ids.iter().scan(7, |all, id| { *all = *all * 31 + id; Some(*all) }).collect();
                let asked = prompt(&ids, (ids.len() as u64 - 1) * 64 + last, reply);
                let served = server.serve(&asked);
                prop_assert_eq!(by_tier(served).iter().sum::<u64>(), asked.tokens);
                prop_assert!(served.new >= 1 && (storage || served.storage == 0));
                server.tree.check(device, host);
            }
        }

        #[test]
        fn without_eviction_a_request_hits_the_longest_common_prefix(
            requests in prop::collection::vec(prop::collection::vec(0u64..3, 1..5), 1..30)
        ) {
            let mut server = HicacheModel::new(tiers(100_000, 200_001));
            let mut before: Vec<PagedPrompt> = Vec::new();
            for ids in requests {
                let asked = whole(&ids);
                let common = |old: &PagedPrompt| old.pages.iter().zip(&asked.pages).take_while(|(a, b)| a == b).count() as u64;
                let best = before.iter().map(common).max().unwrap_or(0).min((asked.tokens - 1) / PAGE);
                prop_assert_eq!(by_tier(server.serve(&asked)), [best * PAGE, 0, 0, asked.tokens - best * PAGE]);
                before.push(asked);
            }
        }
    }
}
