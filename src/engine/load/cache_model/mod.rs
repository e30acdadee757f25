//! Models what a server's caches should contain: the pages of every prompt and response. Caches
//! hold whole pages only, and the last token of a prompt is always computed. The model does no I/O.
//!
//! The expected hits deliberately ignore cache sizes, so that evictions show up as a difference
//! between expected and actual hits. The hits that the sizes allow are counted separately.

mod hashes;

use std::collections::HashMap;
use std::hash::BuildHasherDefault;

use crate::cache_model::hashes::IdentityHasher;
use crate::ceiling::{AllowedHits, PrefixWalk, TierReach, UseOrder, UsedRun};

pub use hashes::PageHashes;

/// Maximum number of pages tracked per server. No hits are expected for pages beyond it.
pub const PAGES_MAX: usize = 1 << 22;

/// Number of the last use of what has no place in the order of uses: text prompts.
const NO_USE: u32 = u32::MAX;

/// Where a page is cached, and when it was last used.
#[derive(Clone, Copy, Debug)]
struct PageState {
    /// Clock value at the last use.
    used: u64,
    /// Number of the last use in the order of uses. Unlike `used`, it counts from the request.
    number: u32,
    /// Whether the page is in L1 or L2.
    in_l1_or_l2: bool,
    /// Whether the page is in L3.
    stored: bool,
    /// Whether a request that uses the page has completed. Pages of a request that was sent but has
    /// not completed may already be cached, but this is not certain.
    answered: bool,
}

/// Prompt tokens that should be cached, and the reuse distance of each part of the prompt.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExpectedHit {
    pub tokens: u32,
    /// Upper bound on cached tokens; includes pages of prompts that are still in flight.
    pub possible: u32,
    /// Parts of the prompt, starting at the beginning: number of tokens, and reuse distance (tokens
    /// that the server has processed since the last use).
    pub parts: Vec<(u32, u64)>,
}

impl ExpectedHit {
    /// Adds the next page of a prompt.
    fn add(&mut self, place: &PageState, page: u32, clock: u64) {
        self.possible += page;
        if !place.answered || self.possible > self.tokens + page {
            return;
        }
        self.tokens += page;
        let distance = clock - place.used;
        match self.parts.last_mut() {
            Some((tokens, known)) if *known == distance => *tokens += page,
            _ => self.parts.push((page, distance)),
        }
    }
}

/// Cache model of one server.
#[derive(Clone, Debug)]
pub struct CacheModel {
    page: u32,
    has_storage: bool,
    pages: HashMap<u64, PageState, BuildHasherDefault<IdentityHasher>>,
    /// Number of prompt and output tokens that the server has processed.
    clock: u64,
    is_full: bool,
    /// Pages by their last use.
    order: UseOrder,
    /// The first use after the last flush.
    flushed: u32,
    reach: Option<TierReach>,
}

/// Pages of a prompt with the same last use.
struct PageRun {
    number: u32,
    stored: bool,
    pages: u64,
    /// Pages that can be hit.
    hits: u64,
}

impl CacheModel {
    /// Creates a model for a server with empty caches and `page` tokens per page. With
    /// `has_storage`, L3 keeps what L1 and L2 evict.
    pub fn new(page: u32, has_storage: bool) -> CacheModel {
        CacheModel {
            page: page.max(1),
            has_storage,
            pages: HashMap::default(),
            clock: 0,
            is_full: false,
            order: UseOrder::default(),
            flushed: 0,
            reach: None,
        }
    }

    /// Sets the sizes of the server's caches.
    pub fn set_reach(&mut self, reach: TierReach) {
        self.reach = Some(reach);
    }

    /// Returns the sizes of the server's caches, if known.
    pub fn reach(&self) -> Option<TierReach> {
        self.reach
    }

    /// Returns the number of tokens per page.
    pub fn page(&self) -> u32 {
        self.page
    }

    /// Whether L3 keeps what L1 and L2 evict.
    pub fn has_storage(&self) -> bool {
        self.has_storage
    }

    /// Whether more than [`PAGES_MAX`] pages were used.
    pub fn is_full(&self) -> bool {
        self.is_full
    }

    /// Returns the maximum number of tokens in a prompt that can be cached. The last token is
    /// always computed.
    pub fn max_cached(&self, prompt: u32) -> u32 {
        prompt.saturating_sub(1) / self.page * self.page
    }

    /// Returns the expected hit for a prompt that is not sent.
    #[cfg(test)]
    fn expected_hit(&self, chain: &PageHashes) -> ExpectedHit {
        let most = (self.max_cached(chain.tokens) / self.page) as usize;
        let mut foreseen = ExpectedHit::default();
        let known = chain.names.iter().take(most).map_while(|name| self.pages.get(name));
        known.for_each(|place| foreseen.add(place, self.page, self.clock));
        foreseen
    }

    /// Returns the expected hit for a text prompt of `tokens` tokens that is tracked as a unit
    /// under `name`.
    pub fn expected_hit_named(&self, name: u64, tokens: u32) -> ExpectedHit {
        let tokens = tokens / self.page * self.page;
        match self.pages.get(&name) {
            Some(place) if tokens > 0 => {
                ExpectedHit { tokens, possible: tokens, parts: vec![(tokens, self.clock - place.used)] }
            }
            _ => ExpectedHit::default(),
        }
    }

    /// Records that a prompt and its response are now cached. The last output token is not cached,
    /// because the model never processed it as input. `seen` is the number of tokens that the
    /// server processed for both.
    pub fn record_answer(&mut self, chain: &PageHashes, seen: u64) {
        self.clock += seen;
        self.use_pages(chain, true, |_| ());
    }

    /// Records that a prompt was sent. Its pages will be cached before its request completes.
    /// Returns the expected hit, and the hits that the sizes of the caches allow.
    pub fn record_sent(&mut self, chain: &PageHashes) -> (ExpectedHit, AllowedHits) {
        let mut expected = ExpectedHit::default();
        let clock = self.clock;
        let page = self.page;
        let runs = self.use_pages(chain, false, |place| expected.add(place, page, clock));
        let Some(reach) = self.reach else { return (expected, AllowedHits::default()) };
        let page = u64::from(page);
        let mut walk = PrefixWalk::new(self.page, reach);
        for (run, distance) in runs.iter().filter(|(run, _)| run.hits > 0) {
            walk.add(UsedRun {
                tokens: run.hits * page,
                distance: *distance,
                in_memory: run.number >= self.flushed,
                stored: run.stored,
            });
        }
        (expected, walk.end())
    }

    /// Forgets the pages of a prompt that was sent and not processed, except those that a request
    /// has completed or that one of the prompts `in_flight` has.
    pub fn forget<'a>(&mut self, chain: &PageHashes, in_flight: impl Iterator<Item = &'a PageHashes>) {
        let common = |other: &PageHashes| chain.names.iter().zip(&other.names).take_while(|(a, b)| a == b).count();
        let kept = in_flight.map(common).max().unwrap_or(0);
        for name in chain.names.iter().skip(kept) {
            if let Some(page) = self.pages.get(name).filter(|page| !page.answered).copied() {
                self.pages.remove(name);
                self.order.remove(page.number, u64::from(self.page));
            }
        }
    }

    /// Records a use of the pages of `chain`, the last one first. Calls `hit` with the state before
    /// of each page that can be hit. Returns the runs of pages with the same previous use, each
    /// with the number of tokens that were used since.
    fn use_pages(
        &mut self,
        chain: &PageHashes,
        answered: bool,
        mut hit: impl FnMut(&PageState),
    ) -> Vec<(PageRun, u64)> {
        if self.order.is_full() {
            let page = u64::from(self.page);
            let uses = self.pages.values_mut().filter(|place| place.number != NO_USE);
            let uses = uses.map(|place| (&mut place.number, page));
            self.order.renumber(uses.chain([(&mut self.flushed, 0)]).collect());
        }
        let number = self.order.next_number();
        let most = u64::from(self.max_cached(chain.tokens) / self.page);
        let mut runs: Vec<(PageRun, u64)> = Vec::new();
        let new_from = self.pages.len();
        let mut known = 0;
        let mut is_prefix = true;
        for (name, at) in chain.names.iter().zip(0..) {
            let Some(before) = self.put(*name, answered, number) else {
                is_prefix = false;
                continue;
            };
            known += 1;
            let is_hit = is_prefix && at < most;
            if is_hit {
                hit(&before);
            }
            let hits = u64::from(is_hit);
            match runs.last_mut() {
                Some((run, _)) if run.number == before.number && run.stored == before.stored => {
                    run.pages += 1;
                    run.hits += hits;
                }
                _ => runs.push((PageRun { number: before.number, stored: before.stored, pages: 1, hits }, 0)),
            }
        }
        let page = u64::from(self.page);
        let mut same: Option<(u32, u64)> = None;
        for (run, distance) in &mut runs {
            // Pages of the same use that differ in L3 follow each other.
            let first = same.filter(|(number, _)| *number == run.number).map_or(0, |(_, pages)| pages);
            *distance = self.order.after(run.number) + first * page;
            same = Some((run.number, first + run.pages));
        }
        for (run, _) in &runs {
            self.order.remove(run.number, run.pages * page);
        }
        self.order.push((known + self.pages.len() - new_from) as u64 * page);
        runs
    }

    /// Advances the clock by the number of tokens in untracked requests.
    pub fn advance(&mut self, tokens: u64) {
        self.clock += tokens;
        self.order.push_untracked(tokens);
    }

    /// Same as [`CacheModel::record_answer`], for a text prompt that is tracked as a unit under
    /// `name`.
    pub fn record_answer_named(&mut self, name: u64, seen: u64) {
        self.clock += seen;
        self.put(name, true, NO_USE);
    }

    /// Records a use of a page and returns its state before, if it was cached.
    fn put(&mut self, name: u64, answered: bool, number: u32) -> Option<PageState> {
        let clock = self.clock;
        let has_storage = self.has_storage;
        if let Some(place) = self.pages.get_mut(&name) {
            let before = *place;
            place.number = number;
            if answered {
                // A page that returns to L1 is written to L3 again if it is no longer in L3.
                place.stored = if place.in_l1_or_l2 { place.stored } else { has_storage };
                place.used = clock;
                place.in_l1_or_l2 = true;
                place.answered = true;
            }
            return Some(before);
        }
        if self.pages.len() < PAGES_MAX {
            let state = PageState { used: clock, number, in_l1_or_l2: true, stored: has_storage, answered };
            self.pages.insert(name, state);
        } else {
            self.is_full = true;
        }
        None
    }

    /// Models a flush of L1 and L2.
    pub fn flush(&mut self) {
        let order = &mut self.order;
        let page = u64::from(self.page);
        self.pages.retain(|_, place| {
            place.in_l1_or_l2 = false;
            if !place.stored {
                order.remove(place.number, page);
            }
            place.stored
        });
        self.flushed = self.order.next_number();
    }

    /// Models the effect of clearing L3 between passes.
    pub fn clear_storage(&mut self) {
        let order = &mut self.order;
        let page = u64::from(self.page);
        self.pages.retain(|_, place| {
            place.stored = false;
            if !place.in_l1_or_l2 {
                order.remove(place.number, page);
            }
            place.in_l1_or_l2
        });
    }
}

#[cfg(test)]
mod tests;
