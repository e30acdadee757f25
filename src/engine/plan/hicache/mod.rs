//! What each tier of a SGLang with HiCache serves of each request of a trace: tokens from the device (L1), from the host (L2), from
//! storage (L3), and new ones.
//!
//! It follows SGLang 0.5.23 step by step for one engine that gets its requests one after the other, each after the writing of the one
//! before is over: the lookup on arrival and the fetch from storage that follows it (`managers/scheduler.py`, `_prefetch_kvcache`;
//! `mem_cache/unified_radix_cache.py`), the second lookup and the load from the host on admission (`managers/schedule_policy.py`,
//! `add_one_req`), eviction before every allocation (`mem_cache/allocation.py`), and the copies to host and storage that an insert
//! starts under write-through. It never asks what a request waits for: a server with several requests at once evicts in another order.
//!
//! Storage keeps all that was written to it: what a store evicts is not foreseen.

pub mod prompt;
pub mod tree;

use std::collections::HashSet;

use crate::engine::plan::hicache::prompt::Prompt;
use crate::engine::plan::hicache::tree::Tree;

/// Tokens that a fetch from storage must bring: SGLang's `prefetch_threshold`.
pub const PREFETCH_THRESHOLD: u64 = 256;
/// SGLang counts at most so many tokens of a reply when it decides whether a request fits (`CLIP_MAX_NEW_TOKENS`).
const REPLY_TOKENS_COUNTED: u64 = 4096;

/// The tiers, and SGLang's settings that matter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tiers {
    /// Tokens of a page.
    pub page_size: u64,
    /// Tokens of the device's pool (`max_total_num_tokens`).
    pub device_tokens: u64,
    /// Tokens of the host's pool, the padding page included.
    pub host_tokens: u64,
    pub storage: bool,
    /// Tokens that a fetch must bring; below a page, a page.
    pub prefetch_threshold: u64,
    /// Tokens of a step of a prompt (`--chunked-prefill-size`); `None`: prompts are not cut.
    pub chunk_tokens: Option<u64>,
}

/// What a request got, in tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Served {
    /// From the device.
    pub device: u64,
    /// From the host.
    pub host: u64,
    /// From storage, through the host.
    pub storage: u64,
    pub new: u64,
    /// Why storage gave nothing, or less than it had.
    pub why: Option<Why>,
}

/// Why storage gave less than was missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// What is missing, or what storage has of it, is below the threshold.
    BelowThreshold,
    /// The host has no room for it.
    HostFull,
    /// What was found on the host does not fit on the device.
    DeviceFull,
    /// The last node that was found has no copy on the host, so that SGLang does not ask.
    NotOnHost,
    /// The request is larger than the device's pool: SGLang never starts it.
    TooLong,
}

/// A server that has seen requests.
#[derive(Clone, Debug)]
pub struct Hicache {
    tiers: Tiers,
    tree: Tree,
    stored: HashSet<u64>,
}

impl Hicache {
    /// Nothing is cached yet.
    pub fn new(tiers: Tiers) -> Hicache {
        let page = tiers.page_size.max(1);
        let tiers = Tiers { page_size: page, ..tiers };
        let tree = Tree::new(tiers.device_tokens / page, tiers.host_tokens / page);
        Hicache { tiers, tree, stored: HashSet::new() }
    }

    /// Tokens in storage.
    pub fn stored_tokens(&self) -> u64 {
        self.stored.len() as u64 * self.tiers.page_size
    }

    /// Serve a request.
    pub fn serve(&mut self, prompt: &Prompt) -> Served {
        let page = self.tiers.page_size;
        // The last token is always computed, so that there is something to sample from.
        let asked = usize::try_from(prompt.tokens.saturating_sub(1) / page).unwrap_or(usize::MAX);
        let asked = &prompt.pages[..asked.min(prompt.pages.len())];
        let (from, fetched, mut why) = self.fetch(asked);
        let found = self.tree.find(asked);
        let reply = prompt.reply_tokens.min(REPLY_TOKENS_COUNTED);
        self.tree.lock(found.device_node);
        let is_too_long = prompt.tokens - found.device * page + reply + page >= self.tree.reachable() * page;
        self.tree.unlock(found.device_node);
        if is_too_long {
            return Served { new: prompt.tokens, why: Some(Why::TooLong), ..Served::default() };
        }
        let is_loaded = found.host > 0 && self.tree.load_back(found.node);
        if found.host > 0 && !is_loaded {
            why = Some(Why::DeviceFull);
        }
        let (last, prefix) =
            if is_loaded { (found.node, found.device + found.host) } else { (found.device_node, found.device) };
        self.run(prompt, last, prefix);
        let storage = prefix.min(from + fetched).saturating_sub(from);
        let from_host = if is_loaded { found.host } else { 0 };
        let host = from_host - prefix.min(from + fetched).saturating_sub(from.max(prefix - from_host));
        Served {
            device: (prefix - host - storage) * page,
            host: host * page,
            storage: storage * page,
            new: prompt.tokens - prefix * page,
            why,
        }
    }

    /// Look up what is asked for, and fetch what is missing from storage to the host: where the fetch begins, its pages, and why they
    /// are not all that is missing.
    fn fetch(&mut self, asked: &[u64]) -> (u64, u64, Option<Why>) {
        let page = self.tiers.page_size;
        let found = self.tree.find(asked);
        let from = found.device + found.host;
        if !self.tiers.storage {
            return (from, 0, None);
        }
        // The pages found are among those asked for.
        let missing = &asked[usize::try_from(from).unwrap_or(asked.len())..];
        if missing.is_empty() {
            return (from, 0, None);
        }
        if !self.tree.anchors_fetch(found.node) {
            return (from, 0, Some(Why::NotOnHost));
        }
        let least = self.tiers.prefetch_threshold.max(page).div_ceil(page);
        if (missing.len() as u64) < least {
            return (from, 0, Some(Why::BelowThreshold));
        }
        let hit = missing.iter().take_while(|name| self.stored.contains(*name)).count() as u64;
        if hit < least {
            return (from, 0, (hit > 0).then_some(Why::BelowThreshold));
        }
        self.tree.lock_host(found.node, true);
        if self.tree.host_free < hit {
            self.tree.evict_host(hit);
        }
        let room = hit.min(self.tree.host_free);
        let fetched = if room == hit || room >= least { room } else { 0 };
        if fetched > 0 {
            self.tree.host_free -= fetched;
            let pages = usize::try_from(fetched).unwrap_or(missing.len());
            self.tree.insert_fetched(found.node, &missing[..pages]);
        }
        self.tree.lock_host(found.node, false);
        (from, fetched, (fetched < hit).then_some(Why::HostFull))
    }

    /// Compute the prompt from page `prefix` on, then the reply, and put both into the tree, whose node `last` is where it begins.
    fn run(&mut self, prompt: &Prompt, last: usize, prefix: u64) {
        let page = self.tiers.page_size;
        let Hicache { tree, stored, tiers } = self;
        let mut written = |pages: &[u64]| {
            if tiers.storage {
                stored.extend(pages);
            }
        };
        let whole = |tokens: u64, pages: &[u64]| usize::try_from(tokens / page).unwrap_or(usize::MAX).min(pages.len());
        let (mut last, mut own, mut known) = (last, prefix, 0);
        let mut done = prefix * page;
        tree.lock(last);
        // Puts the first pages, and keeps the path to them instead of the one before.
        let mut put = |tree: &mut Tree, pages: &[u64], own: &mut u64, known: &mut u64| {
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
            // A page more than needed, as SGLang asks for.
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
            // The prompt is made a node of its own, so that the reply can be evicted without it.
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
    use crate::engine::plan::trace::Request;
    use proptest::prelude::*;

    const PAGE: u64 = 16;

    fn tiers(device: u64, host: u64) -> Tiers {
        Tiers {
            page_size: PAGE,
            device_tokens: device * PAGE,
            host_tokens: host * PAGE,
            storage: true,
            prefetch_threshold: 64,
            chunk_tokens: None,
        }
    }

    /// A prompt of blocks of 64 tokens, four pages each.
    fn prompt(ids: &[u64], tokens: u64, reply: u64) -> Prompt {
        let request = Request { hash_ids: ids.to_vec(), input_length: Some(tokens), output_length: Some(reply) };
        Prompt::new(&request, 64, PAGE).unwrap()
    }

    fn whole(ids: &[u64]) -> Prompt {
        prompt(ids, ids.len() as u64 * 64, 1)
    }

    fn by_tier(served: Served) -> [u64; 4] {
        [served.device, served.host, served.storage, served.new]
    }

    #[test]
    fn a_prompt_again_is_on_the_device_but_for_the_page_of_its_last_token() {
        let mut server = Hicache::new(tiers(64, 129));
        assert_eq!(by_tier(server.serve(&whole(&[1, 2]))), [0, 0, 0, 128]);
        assert_eq!(by_tier(server.serve(&whole(&[1, 2]))), [112, 0, 0, 16]);
        assert_eq!(by_tier(server.serve(&prompt(&[1, 2, 3], 130, 1))), [128, 0, 0, 2]);
        assert_eq!(by_tier(server.serve(&whole(&[1, 9]))), [64, 0, 0, 64]);
    }

    #[test]
    fn what_the_device_loses_comes_from_the_host_and_then_from_storage() {
        let mut server = Hicache::new(tiers(20, 41));
        server.serve(&whole(&[1, 2]));
        for other in 10..13 {
            server.serve(&whole(&[other, other + 100]));
        }
        // Eight pages each: the device held two prompts, the host five.
        assert_eq!(by_tier(server.serve(&prompt(&[1, 2, 3], 130, 1))), [0, 128, 0, 2]);
        for other in 20..26 {
            server.serve(&whole(&[other, other + 100]));
        }
        assert_eq!(by_tier(server.serve(&prompt(&[1, 2, 3], 130, 1))), [0, 0, 128, 2]);
        assert_eq!(server.stored_tokens(), 10 * 128);
    }

    #[test]
    fn less_than_the_threshold_is_not_fetched() {
        let mut server = Hicache::new(Tiers { prefetch_threshold: 256, ..tiers(20, 41) });
        for other in [1, 10, 20, 30, 40, 50, 60] {
            server.serve(&whole(&[other, other + 1]));
        }
        let served = server.serve(&whole(&[1, 2]));
        assert_eq!((by_tier(served), served.why), ([0, 0, 0, 128], Some(Why::BelowThreshold)));
    }

    #[test]
    fn a_request_above_the_device_is_never_started() {
        let mut server = Hicache::new(tiers(8, 33));
        let served = server.serve(&whole(&[1, 2]));
        assert_eq!((served.new, served.why), (128, Some(Why::TooLong)));
        assert_eq!(by_tier(server.serve(&whole(&[1]))), [0, 0, 0, 64]);
    }

    #[test]
    fn a_reply_takes_room_and_is_found_by_nobody_else() {
        let mut server = Hicache::new(tiers(40, 81));
        assert_eq!(by_tier(server.serve(&prompt(&[1], 60, 40))), [0, 0, 0, 60]);
        assert_eq!(server.stored_tokens(), 96);
        assert_eq!(by_tier(server.serve(&prompt(&[1, 2], 128, 40))), [48, 0, 0, 80]);
    }

    proptest! {
        #[test]
        fn whatever_is_asked_nothing_is_lost_or_counted_twice(
            requests in prop::collection::vec((prop::collection::vec(0u64..6, 1..6), 1u64..64, 1u64..70), 1..60),
            device in 10u64..60, host in 10u64..120, chunk in prop::option::of(1u64..100), storage: bool
        ) {
            let tiers = Tiers { chunk_tokens: chunk, storage, ..tiers(device, host) };
            let mut server = Hicache::new(tiers);
            for (ids, last, reply) in requests {
                // An id stands for all before it, too.
                let ids: Vec<u64> = ids.iter().scan(7, |all, id| { *all = *all * 31 + id; Some(*all) }).collect();
                let asked = prompt(&ids, (ids.len() as u64 - 1) * 64 + last, reply);
                let served = server.serve(&asked);
                prop_assert_eq!(by_tier(served).iter().sum::<u64>(), asked.tokens);
                prop_assert!(served.new >= 1 && (storage || served.storage == 0));
                server.tree.check(device, host);
            }
        }

        #[test]
        fn without_eviction_a_request_gets_the_longest_beginning_that_was_asked_before(
            requests in prop::collection::vec(prop::collection::vec(0u64..3, 1..5), 1..30)
        ) {
            let mut server = Hicache::new(tiers(100_000, 200_001));
            let mut before: Vec<Prompt> = Vec::new();
            for ids in requests {
                let asked = whole(&ids);
                let common = |old: &Prompt| old.pages.iter().zip(&asked.pages).take_while(|(a, b)| a == b).count() as u64;
                let best = before.iter().map(common).max().unwrap_or(0).min((asked.tokens - 1) / PAGE);
                prop_assert_eq!(by_tier(server.serve(&asked)), [best * PAGE, 0, 0, asked.tokens - best * PAGE]);
                before.push(asked);
            }
        }
    }
}
