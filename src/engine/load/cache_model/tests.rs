//! Tests of the cache model.

use super::*;
use crate::ceiling::StorageReach;
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
    assert_eq!(known.expected_hit(&chain([0, 1, 2, 9, 4, 5, 6, 7, 8])).tokens, 0, "a hash covers all preceding pages");
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

fn sized(device: u64, memory: u64, storage: StorageReach) -> CacheModel {
    let mut known = CacheModel::new(4, storage != StorageReach::Absent);
    known.set_reach(TierReach { device, memory, storage });
    known
}

#[test]
fn lru_caches_keep_the_beginning_of_the_last_prompts() {
    let mut known = sized(12, 24, StorageReach::Absent);
    let mut sent = |ids: std::ops::Range<u32>| known.record_sent(&chain(ids)).1;
    assert_eq!(sent(0..16), AllowedHits::default());
    // The four pages were the last ones used: L1 has the first three.
    assert_eq!(sent(0..40), AllowedHits { device: 12, memory: 16, all: 16 });
    // Two other pages follow.
    sent(100..108);
    assert_eq!(sent(0..40), AllowedHits { device: 4, memory: 16, all: 16 });
    // Now the ten pages are in front of the two others.
    assert_eq!(sent(100..109), AllowedHits::default());
}

#[test]
fn only_l3_survives_a_flush() {
    let mut known = sized(40, 80, StorageReach::Tokens(12));
    known.record_answer(&chain(0..16), 16);
    known.flush();
    assert_eq!(known.record_sent(&chain(0..17)).1, AllowedHits { device: 0, memory: 0, all: 12 });
    assert_eq!(known.record_sent(&chain(0..17)).1.device, 16, "the prompt is in L1 again");
    let mut known = sized(40, 80, StorageReach::Absent);
    known.record_answer(&chain(0..16), 16);
    known.flush();
    assert_eq!(known.record_sent(&chain(0..17)).1, AllowedHits::default());
    known.advance(25);
    assert_eq!(known.record_sent(&chain(0..17)).1, AllowedHits { device: 12, memory: 16, all: 16 });
}

proptest! {
    #[test]
    fn allowed_hits_are_those_of_a_naive_lru_cache(
        sent in proptest::collection::vec((proptest::collection::vec(0_u32..2, 1..24), any::<bool>()), 1..30),
        pages in 0_u64..12,
        uses in 2_usize..9,
    ) {
        let mut known = sized(pages * 4, pages * 4, StorageReach::Unknown);
        known.order.set_uses_max(uses);
        let mut recent: Vec<u64> = Vec::new();
        for (ids, answered) in sent {
            let chain = chain(ids.iter().copied());
            let most = (ids.len() - 1) / 4;
            let rank = |name: &u64| recent.iter().position(|other| other == name);
            let within = |size: u64| {
                let held = |name: &&u64| rank(name).is_some_and(|rank| (rank as u64) < size);
                chain.names.iter().take(most).take_while(held).count() as u64 * 4
            };
            let expected = AllowedHits { device: within(pages), memory: within(pages), all: within(u64::MAX) };
            let foreseen = known.expected_hit(&chain);
            prop_assert_eq!(known.record_sent(&chain), (foreseen, expected));
            if answered {
                known.record_answer(&chain, 1);
            }
            for name in chain.names.iter().rev() {
                recent.retain(|other| other != name);
                recent.insert(0, *name);
            }
        }
    }

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
