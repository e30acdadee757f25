//! Models what a server's caches should contain: the pages of every prompt and response. Caches
//! hold whole pages only, and the last token of a prompt is always computed. The model does no I/O.
//!
//! The model deliberately ignores cache sizes, so that evictions show up as a difference between
//! expected and actual hits.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// Maximum number of pages tracked per server. No hits are expected for pages beyond it.
pub const PAGES_MAX: usize = 1 << 22;

/// A hasher for page hashes, which are already well distributed.
#[derive(Clone, Copy, Debug, Default)]
struct IdentityHasher(u64);

impl Hasher for IdentityHasher {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        self.0 = bytes.iter().fold(self.0, |hash, byte| hash.rotate_left(8) ^ u64::from(*byte));
    }
    fn write_u64(&mut self, name: u64) {
        self.0 = name;
    }
}

/// A token sequence, stored as hashes of its whole pages. Each hash covers its page and all
/// preceding pages.
#[derive(Clone, Debug)]
pub struct PageHashes {
    page: u32,
    names: Vec<u64>,
    /// Running hash of the incomplete page.
    open: u64,
    tokens: u32,
}

impl PageHashes {
    /// Creates an empty sequence with `page` tokens per page.
    pub fn new(page: u32) -> PageHashes {
        PageHashes { page: page.max(1), names: Vec::new(), open: 0x9e37_79b9_7f4a_7c15, tokens: 0 }
    }

    /// Appends token IDs to the sequence.
    pub fn extend(&mut self, ids: &[u32]) {
        for id in ids {
            self.open = (self.open ^ u64::from(*id)).wrapping_mul(0xff51_afd7_ed55_8ccd).rotate_left(31);
            self.tokens += 1;
            if self.tokens.is_multiple_of(self.page) {
                // SplitMix finalizer: every bit of the hash depends on every ID.
                let mut name = self.open;
                name = (name ^ (name >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
                name = (name ^ (name >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
                self.open = name ^ (name >> 31);
                self.names.push(self.open);
            }
        }
    }

    /// Number of IDs so far.
    pub fn tokens(&self) -> u32 {
        self.tokens
    }
}

/// Where a page is cached, and when it was last used.
#[derive(Clone, Copy, Debug)]
struct PageState {
    /// Clock value at the last use.
    used: u64,
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

/// Cache model of one server.
#[derive(Clone, Debug)]
pub struct CacheModel {
    page: u32,
    has_storage: bool,
    pages: HashMap<u64, PageState, BuildHasherDefault<IdentityHasher>>,
    /// Number of prompt and output tokens that the server has processed.
    clock: u64,
    is_full: bool,
}

impl CacheModel {
    /// Creates a model for a server with empty caches and `page` tokens per page. With
    /// `has_storage`, L3 keeps what L1 and L2 evict.
    pub fn new(page: u32, has_storage: bool) -> CacheModel {
        CacheModel { page: page.max(1), has_storage, pages: HashMap::default(), clock: 0, is_full: false }
    }

    /// Returns the number of tokens per page.
    pub fn page(&self) -> u32 {
        self.page
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

    /// Returns the expected hit for a prompt.
    pub fn expected_hit(&self, chain: &PageHashes) -> ExpectedHit {
        let most = (self.max_cached(chain.tokens) / self.page) as usize;
        let mut foreseen = ExpectedHit::default();
        for name in chain.names.iter().take(most) {
            let Some(place) = self.pages.get(name) else { break };
            foreseen.possible += self.page;
            if !place.answered || foreseen.possible > foreseen.tokens + self.page {
                continue;
            }
            foreseen.tokens += self.page;
            let distance = self.clock - place.used;
            match foreseen.parts.last_mut() {
                Some((tokens, known)) if *known == distance => *tokens += self.page,
                _ => foreseen.parts.push((self.page, distance)),
            }
        }
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
        for name in &chain.names {
            self.put(*name, true);
        }
    }

    /// Records that a prompt was sent. Its pages will be cached before its request completes.
    pub fn record_sent(&mut self, chain: &PageHashes) {
        for name in &chain.names {
            if !self.pages.contains_key(name) {
                self.put(*name, false);
            }
        }
    }

    /// Advances the clock by the number of tokens in untracked requests.
    pub fn advance(&mut self, tokens: u64) {
        self.clock += tokens;
    }

    /// Same as [`CacheModel::record_answer`], for a text prompt that is tracked as a unit under
    /// `name`.
    pub fn record_answer_named(&mut self, name: u64, seen: u64) {
        self.clock += seen;
        self.put(name, true);
    }

    fn put(&mut self, name: u64, answered: bool) {
        let clock = self.clock;
        let has_storage = self.has_storage;
        if let Some(place) = self.pages.get_mut(&name) {
            // A page that returns to L1 is written to L3 again if it is no longer in L3.
            place.stored = if place.in_l1_or_l2 { place.stored } else { has_storage };
            place.used = clock;
            place.in_l1_or_l2 = true;
            place.answered = true;
        } else if self.pages.len() < PAGES_MAX {
            self.pages.insert(name, PageState { used: clock, in_l1_or_l2: true, stored: has_storage, answered });
        } else {
            self.is_full = true;
        }
    }

    /// Models a flush of L1 and L2.
    pub fn flush(&mut self) {
        self.pages.retain(|_, place| {
            place.in_l1_or_l2 = false;
            place.stored
        });
    }

    /// Models the effect of clearing L3 between passes.
    pub fn clear_storage(&mut self) {
        self.pages.retain(|_, place| {
            place.stored = false;
            place.in_l1_or_l2
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn chain(ids: impl IntoIterator<Item = u32>) -> PageHashes {
        let mut chain = PageHashes::new(4);
        chain.extend(&ids.into_iter().collect::<Vec<_>>());
        chain
    }

    fn known(storage: bool, ids: u32) -> CacheModel {
        let mut known = CacheModel::new(4, storage);
        known.record_answer(&chain(0..ids), u64::from(ids));
        known
    }

    #[test]
    fn whole_pages_are_cached_but_never_the_last_token() {
        let known = known(false, 11);
        let tokens = |ids: u32| known.expected_hit(&chain(0..ids)).tokens;
        assert_eq!([4, 5, 8, 9, 12, 40].map(tokens), [0, 4, 4, 8, 8, 8]);
        assert_eq!(
            known.expected_hit(&chain([0, 1, 2, 9, 4, 5, 6, 7, 8])).tokens,
            0,
            "a hash covers all preceding pages"
        );
    }

    #[test]
    fn flush_keeps_l3_and_clear_keeps_l1_and_l2() {
        let seen = |known: &CacheModel| known.expected_hit(&chain(0..9)).tokens;
        let mut plain = known(false, 8);
        plain.flush();
        assert_eq!(seen(&plain), 0);
        let mut stored = known(true, 8);
        stored.flush();
        assert_eq!(seen(&stored), 8);
        stored.record_answer(&chain(0..8), 8);
        stored.clear_storage();
        assert_eq!(seen(&stored), 8, "the page is back in L1");
        stored.flush();
        assert_eq!(seen(&stored), 0, "the page was not rewritten to L3");
    }

    #[test]
    fn reuse_distance_counts_from_the_last_use() {
        let mut known = known(false, 8);
        known.record_answer(&chain(100..200), 100);
        known.record_answer(&chain(0..4), 4);
        let foreseen = known.expected_hit(&chain(0..9));
        assert_eq!(foreseen, ExpectedHit { tokens: 8, possible: 8, parts: vec![(4, 0), (4, 104)] });
    }

    #[test]
    fn unanswered_prompts_are_possible_but_not_expected() {
        let mut known = known(false, 8);
        known.record_sent(&chain(0..16));
        let foreseen = known.expected_hit(&chain(0..20));
        assert_eq!((foreseen.tokens, foreseen.possible), (8, 16));
        known.record_answer(&chain(0..16), 16);
        assert_eq!(known.expected_hit(&chain(0..20)).tokens, 16);
    }

    #[test]
    fn named_text_is_tracked_as_a_whole() {
        let mut known = CacheModel::new(4, false);
        assert_eq!(known.expected_hit_named(7, 10), ExpectedHit::default());
        known.record_answer_named(7, 30);
        assert_eq!(known.expected_hit_named(7, 10), ExpectedHit { tokens: 8, possible: 8, parts: vec![(8, 0)] });
    }

    proptest! {
        #[test]
        fn page_hashes_do_not_depend_on_how_ids_are_split(ids in proptest::collection::vec(any::<u32>(), 0..60), cut in 0_usize..60) {
            let cut = cut.min(ids.len());
            let mut parts = chain(ids[..cut].iter().copied());
            parts.extend(&ids[cut..]);
            prop_assert_eq!(&parts.names, &chain(ids.iter().copied()).names);
        }

        #[test]
        fn expected_hit_is_the_longest_common_prefix_in_whole_pages(
            answers in proptest::collection::vec(proptest::collection::vec(0_u32..2, 1..20), 0..12),
            asked in proptest::collection::vec(0_u32..2, 1..20),
        ) {
            let mut known = CacheModel::new(4, false);
            answers.iter().for_each(|ids| known.record_answer(&chain(ids.iter().copied()), ids.len() as u64));
            let common = |ids: &Vec<u32>| {
                let same = ids.iter().zip(&asked).take_while(|(a, b)| a == b).count();
                (same / 4 * 4).min((asked.len() - 1) / 4 * 4)
            };
            let best = answers.iter().map(common).max().unwrap_or(0);
            let foreseen = known.expected_hit(&chain(asked.iter().copied()));
            prop_assert_eq!(foreseen.tokens as usize, best);
            prop_assert_eq!(foreseen.parts.iter().map(|(tokens, _)| tokens).sum::<u32>(), foreseen.tokens);
        }
    }
}
