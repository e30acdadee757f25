//! What a server should have in its caches: the pages of everything that was sent and answered, by the rule of caches that hold whole
//! pages and compute the last token of a prompt always. Pure.
//!
//! It knows no sizes: what a cache evicted is a difference between expectation and answer, which is what it is for.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// Pages that are kept at most, per server; further ones are not expected.
pub const PAGES_MAX: usize = 1 << 22;

/// Names of pages are hashes already.
#[derive(Clone, Copy, Debug, Default)]
struct AsItIs(u64);

impl Hasher for AsItIs {
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

/// Token ids as the chain of their whole pages: each page's name stands for itself and all before it.
#[derive(Clone, Debug)]
pub struct Chain {
    page: u32,
    names: Vec<u64>,
    /// The name so far of the page that is not yet whole.
    open: u64,
    tokens: u32,
}

impl Chain {
    /// An empty chain of pages of `page` tokens.
    pub fn new(page: u32) -> Chain {
        Chain { page: page.max(1), names: Vec::new(), open: 0x9e37_79b9_7f4a_7c15, tokens: 0 }
    }

    /// Further ids.
    pub fn extend(&mut self, ids: &[u32]) {
        for id in ids {
            self.open = (self.open ^ u64::from(*id)).wrapping_mul(0xff51_afd7_ed55_8ccd).rotate_left(31);
            self.tokens += 1;
            if self.tokens.is_multiple_of(self.page) {
                // SplitMix's finish: every bit of the name depends on every id.
                let mut name = self.open;
                name = (name ^ (name >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
                name = (name ^ (name >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
                self.open = name ^ (name >> 31);
                self.names.push(self.open);
            }
        }
    }

    /// How many ids there were.
    pub fn tokens(&self) -> u32 {
        self.tokens
    }
}

/// Where something is, and when it was used last.
#[derive(Clone, Copy, Debug)]
struct Place {
    /// The clock at its last use.
    used: u64,
    /// In L1 or L2.
    near: bool,
    /// In L3.
    stored: bool,
    /// Was it answered? What was only sent may be cached already, but nobody can count on it.
    answered: bool,
}

/// Tokens of a prompt that should be cached, and how far back each part was used.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Foreseen {
    /// In all.
    pub tokens: u32,
    /// Tokens that may be cached besides, since others that begin alike are being answered: the most that these caches can have.
    pub possible: u32,
    /// Parts from the front on: tokens, and tokens that the server saw since they were used.
    pub parts: Vec<(u32, u64)>,
}

/// What one server should have.
#[derive(Clone, Debug)]
pub struct Known {
    page: u32,
    has_storage: bool,
    pages: HashMap<u64, Place, BuildHasherDefault<AsItIs>>,
    /// Tokens of prompts and answers that the server has seen.
    clock: u64,
    is_full: bool,
}

impl Known {
    /// A server with empty caches of `page` tokens a page; `has_storage` when an L3 keeps what L1 and L2 lose.
    pub fn new(page: u32, has_storage: bool) -> Known {
        Known { page: page.max(1), has_storage, pages: HashMap::default(), clock: 0, is_full: false }
    }

    /// Tokens of a page.
    pub fn page(&self) -> u32 {
        self.page
    }

    /// Were there more pages than are kept?
    pub fn is_full(&self) -> bool {
        self.is_full
    }

    /// The most that can be cached of a prompt: its last token is always computed.
    pub fn most(&self, prompt: u32) -> u32 {
        prompt.saturating_sub(1) / self.page * self.page
    }

    /// What should be cached of a prompt.
    pub fn foresee(&self, chain: &Chain) -> Foreseen {
        let most = (self.most(chain.tokens) / self.page) as usize;
        let mut foreseen = Foreseen::default();
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

    /// What should be cached of something that goes by one `name` as a whole, of which `tokens` were learned with it.
    pub fn foresee_named(&self, name: u64, tokens: u32) -> Foreseen {
        let tokens = tokens / self.page * self.page;
        match self.pages.get(&name) {
            Some(place) if tokens > 0 => {
                Foreseen { tokens, possible: tokens, parts: vec![(tokens, self.clock - place.used)] }
            }
            _ => Foreseen::default(),
        }
    }

    /// A prompt and its answer (but the last token, which was never computed on) are cached now; `seen` is how many tokens the server
    /// has seen of both.
    pub fn learn(&mut self, chain: &Chain, seen: u64) {
        self.clock += seen;
        for name in &chain.names {
            self.put(*name, true);
        }
    }

    /// A prompt was sent: its pages will be there before it is answered.
    pub fn sent(&mut self, chain: &Chain) {
        for name in &chain.names {
            if !self.pages.contains_key(name) {
                self.put(*name, false);
            }
        }
    }

    /// The server has seen so many tokens more, of which nothing is kept count.
    pub fn passed(&mut self, tokens: u64) {
        self.clock += tokens;
    }

    /// The same for what goes by one name.
    pub fn learn_named(&mut self, name: u64, seen: u64) {
        self.clock += seen;
        self.put(name, true);
    }

    fn put(&mut self, name: u64, answered: bool) {
        let (clock, has_storage) = (self.clock, self.has_storage);
        if let Some(place) = self.pages.get_mut(&name) {
            // What comes back to L1 is written to L3 again where that has lost it.
            place.stored = if place.near { place.stored } else { has_storage };
            (place.used, place.near, place.answered) = (clock, true, true);
        } else if self.pages.len() < PAGES_MAX {
            self.pages.insert(name, Place { used: clock, near: true, stored: has_storage, answered });
        } else {
            self.is_full = true;
        }
    }

    /// L1 and L2 were emptied.
    pub fn flushed(&mut self) {
        self.pages.retain(|_, place| {
            place.near = false;
            place.stored
        });
    }

    /// L3 was emptied.
    pub fn cleared(&mut self) {
        self.pages.retain(|_, place| {
            place.stored = false;
            place.near
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn chain(ids: impl IntoIterator<Item = u32>) -> Chain {
        let mut chain = Chain::new(4);
        chain.extend(&ids.into_iter().collect::<Vec<_>>());
        chain
    }

    fn known(storage: bool, ids: u32) -> Known {
        let mut known = Known::new(4, storage);
        known.learn(&chain(0..ids), u64::from(ids));
        known
    }

    #[test]
    fn whole_pages_are_cached_and_the_last_token_is_always_computed() {
        let known = known(false, 11);
        let tokens = |ids: u32| known.foresee(&chain(0..ids)).tokens;
        assert_eq!([4, 5, 8, 9, 12, 40].map(tokens), [0, 4, 4, 8, 8, 8]);
        assert_eq!(known.foresee(&chain([0, 1, 2, 9, 4, 5, 6, 7, 8])).tokens, 0, "a page stands for all before it");
    }

    #[test]
    fn a_flush_leaves_what_is_in_l3_and_a_clear_what_is_not() {
        let seen = |known: &Known| known.foresee(&chain(0..9)).tokens;
        let mut plain = known(false, 8);
        plain.flushed();
        assert_eq!(seen(&plain), 0);
        let mut stored = known(true, 8);
        stored.flushed();
        assert_eq!(seen(&stored), 8);
        stored.learn(&chain(0..8), 8);
        stored.cleared();
        assert_eq!(seen(&stored), 8, "it had come back to L1");
        stored.flushed();
        assert_eq!(seen(&stored), 0, "nothing wrote it to L3 again");
    }

    #[test]
    fn a_part_is_as_far_back_as_its_last_use() {
        let mut known = known(false, 8);
        known.learn(&chain(100..200), 100);
        known.learn(&chain(0..4), 4);
        let foreseen = known.foresee(&chain(0..9));
        assert_eq!(foreseen, Foreseen { tokens: 8, possible: 8, parts: vec![(4, 0), (4, 104)] });
    }

    #[test]
    fn what_is_only_being_answered_may_be_there_but_is_not_counted_on() {
        let mut known = known(false, 8);
        known.sent(&chain(0..16));
        let foreseen = known.foresee(&chain(0..20));
        assert_eq!((foreseen.tokens, foreseen.possible), (8, 16));
        known.learn(&chain(0..16), 16);
        assert_eq!(known.foresee(&chain(0..20)).tokens, 16);
    }

    #[test]
    fn a_name_stands_for_a_whole_prompt() {
        let mut known = Known::new(4, false);
        assert_eq!(known.foresee_named(7, 10), Foreseen::default());
        known.learn_named(7, 30);
        assert_eq!(known.foresee_named(7, 10), Foreseen { tokens: 8, possible: 8, parts: vec![(8, 0)] });
    }

    proptest! {
        #[test]
        fn a_chain_is_the_same_however_it_was_put_together(ids in proptest::collection::vec(any::<u32>(), 0..60), cut in 0_usize..60) {
            let cut = cut.min(ids.len());
            let mut parts = chain(ids[..cut].iter().copied());
            parts.extend(&ids[cut..]);
            prop_assert_eq!(&parts.names, &chain(ids.iter().copied()).names);
        }

        #[test]
        fn what_is_foreseen_is_the_longest_beginning_in_whole_pages(
            said in proptest::collection::vec(proptest::collection::vec(0_u32..2, 1..20), 0..12),
            asked in proptest::collection::vec(0_u32..2, 1..20),
        ) {
            let mut known = Known::new(4, false);
            said.iter().for_each(|ids| known.learn(&chain(ids.iter().copied()), ids.len() as u64));
            let common = |ids: &Vec<u32>| {
                let same = ids.iter().zip(&asked).take_while(|(a, b)| a == b).count();
                (same / 4 * 4).min((asked.len() - 1) / 4 * 4)
            };
            let best = said.iter().map(common).max().unwrap_or(0);
            let foreseen = known.foresee(&chain(asked.iter().copied()));
            prop_assert_eq!(foreseen.tokens as usize, best);
            prop_assert_eq!(foreseen.parts.iter().map(|(tokens, _)| tokens).sum::<u32>(), foreseen.tokens);
        }
    }
}
