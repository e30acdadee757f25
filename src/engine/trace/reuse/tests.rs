//! The hit curve against caches that are simulated one by one.

use proptest::prelude::*;

use super::*;

/// Requests by their block IDs; every block has 4 tokens, the last one as many as given.
fn reuse(requests: &[(Vec<u64>, u64)], shift: u32) -> ReuseDistances {
    let mut reuse = ReuseDistances::new(requests.len(), 4, shift);
    for (ids, last_tokens) in requests {
        let keys = prefix_keys(ids);
        let input = (ids.len() as u64 * 4).saturating_sub(4 - last_tokens).max(1);
        reuse.keyed_tokens += input;
        let sampled: Vec<u64> = keys.iter().copied().filter(|key| is_sampled(*key, shift)).collect();
        let last_tokens = match (sampled.last(), keys.last()) {
            (Some(sampled), Some(last)) if sampled == last => *last_tokens,
            _ => 4,
        };
        let prompt = TracePrompt::Blocks { keys: 0..sampled.len(), last_tokens };
        reuse.request(&TraceRequest { line: 1, session: 0, at: None, input, output: 1, prompt }, &sampled);
    }
    reuse
}

fn is_sampled(key: u64, shift: u32) -> bool {
    key.checked_shr(64 - shift).unwrap_or(0) == 0
}

fn prefix_keys(ids: &[u64]) -> Vec<u64> {
    let mut key = 1u64;
    let next = |id: &u64| {
        key = (key ^ id.wrapping_mul(0x9e37_79b9_7f4a_7c15)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        key ^= key >> 29;
        key = key.wrapping_mul(0x94d0_49bb_1331_11eb);
        key ^= key >> 32;
        key
    };
    ids.iter().map(next).collect()
}

/// Hit tokens of a cache of `size` blocks: a list with the block used last at the end.
fn simulate(requests: &[(Vec<u64>, u64)], size: usize) -> u64 {
    let mut cache: Vec<u64> = Vec::new();
    let mut hits = 0;
    for (ids, last_tokens) in requests {
        let keys = prefix_keys(ids);
        for (at, key) in keys.iter().enumerate() {
            let tokens = if at + 1 == keys.len() { *last_tokens } else { 4 };
            hits += if cache.contains(key) { tokens } else { 0 };
        }
        for key in keys.iter().rev() {
            cache.retain(|other| other != key);
            cache.push(*key);
        }
        cache.drain(..cache.len().saturating_sub(size));
    }
    hits
}

#[test]
fn a_repeated_prompt_hits_if_the_cache_holds_what_came_between() {
    let curve = reuse(&[(vec![1, 2], 4), (vec![3], 4), (vec![1, 2], 1)], 0).curve();
    // The first block of the prompt was used after the second, so a cache of two blocks keeps it.
    assert_eq!([0, 1, 2, 3, 9].map(|size| curve.hits(size)), [0, 0, 4, 5, 5]);
    assert_eq!((curve.asked, curve.distinct), (17, 3));
}

#[test]
fn equal_blocks_after_different_prefixes_are_no_hits() {
    let curve = reuse(&[(vec![1, 2], 4), (vec![3, 2], 4), (vec![2], 4)], 0).curve();
    assert_eq!((curve.ceiling(), curve.distinct), (0, 5));
}

#[test]
fn a_session_hits_the_whole_blocks_of_the_request_before() {
    let mut reuse = ReuseDistances::new(5, 4, 0);
    let mut ask = |session, input, output, prefix| {
        let prompt = TracePrompt::Continued { prefix };
        reuse.request(&TraceRequest { line: 1, session, at: None, input, output, prompt }, &[]);
    };
    ask(0, 16, 5, 0); // 5 blocks with the reply
    ask(1, 8, 1, 0); // 2 blocks
    ask(0, 30, 3, 18); // 4 whole blocks of 18 tokens, 2 blocks are between; then 8 blocks
    ask(1, 8, 1, 8);
    ask(0, 8, 1, 8); // 2 blocks after a reset of the session
    let curve = reuse.curve();
    assert_eq!(curve.points(), [(3, 8), (4, 16), (5, 20), (6, 24), (9, 28), (10, 32)]);
    assert_eq!((curve.asked, curve.distinct), (70, 11));
}

proptest! {
    #[test]
    fn the_curve_matches_a_simulated_cache_of_every_size(
        requests in prop::collection::vec((prop::collection::vec(0u64..4, 1..9), 1u64..5), 0..100),
        sizes in prop::collection::vec(1usize..300, 10)
    ) {
        let curve = reuse(&requests, 0).curve();
        for size in sizes {
            prop_assert_eq!(curve.hits(size as u64), simulate(&requests, size), "{} blocks", size);
        }
    }
}

#[test]
fn a_sample_of_an_eighth_is_within_its_error() {
    // 300 sessions of growing prompts with a shared start, in an order that mixes them.
    let prompt = |i: u64| {
        let (session, turn) = (i * 7 % 300, i / 300);
        let own = (0..(turn + 1) * 20).map(|at| 1_000 + session * 1_000 + at);
        ((0..30).chain(own).collect::<Vec<u64>>(), 3)
    };
    let requests: Vec<(Vec<u64>, u64)> = (0..1_500).map(prompt).collect();
    let exact = reuse(&requests, 0).curve();
    let sampled = reuse(&requests, 3).curve();
    assert_eq!(exact.error(5_000), None);
    for size in [1_000, 5_000, 10_000, 20_000, 40_000] {
        let off = (exact.rate(exact.hits(size)) - sampled.rate(sampled.hits(size))).abs();
        let error = sampled.error(size).unwrap();
        assert!(error > 0.0 && error < 0.03, "{size} blocks: {error}");
        assert!(off <= error, "{size} blocks: {off}, {error}");
    }
}

/// Hit tokens by tier of two lists of blocks, the block used last at the end. With write-back, a
/// block is in one of them only.
fn simulate_tiers(requests: &[(Vec<u64>, u64)], l1: usize, l2: usize, policy: WritePolicy) -> (u64, u64) {
    let (mut device, mut host): (Vec<u64>, Vec<u64>) = Default::default();
    let mut written = HashSet::new();
    let mut hits = (0, 0);
    for (ids, last_tokens) in requests {
        let keys = prefix_keys(ids);
        let mut known = true;
        for (at, key) in keys.iter().enumerate() {
            let tokens = if at + 1 == keys.len() { *last_tokens } else { 4 };
            if device.contains(key) {
                written.insert(*key);
                hits.0 += if known { tokens } else { 0 };
            } else if host.contains(key) && (policy != WritePolicy::WriteThroughSelective || written.contains(key)) {
                hits.1 += if known { tokens } else { 0 };
            } else {
                known = false;
            }
        }
        for key in keys.iter().rev() {
            device.retain(|other| other != key);
            device.push(*key);
            host.retain(|other| other != key);
            if policy != WritePolicy::WriteBack {
                host.push(*key);
            }
        }
        let left: Vec<u64> = device.drain(..device.len().saturating_sub(l1)).collect();
        if policy == WritePolicy::WriteBack {
            host.extend(left);
        }
        host.drain(..host.len().saturating_sub(l2));
    }
    hits
}

proptest! {
    #[test]
    fn each_tier_serves_what_the_policy_has_written(
        requests in prop::collection::vec((prop::collection::vec(0u64..3, 1..6), 1u64..5), 0..80),
        l1 in 6usize..40, l2 in 0usize..80, policy in 0usize..3
    ) {
        let policy = WritePolicy::ALL[policy];
        let l2 = if policy == WritePolicy::WriteBack { l2 } else { l1 + l2 };
        let keys: Vec<Vec<u64>> = requests.iter().map(|(ids, _)| prefix_keys(ids)).collect();
        let mut reuse = ReuseDistances::new(requests.len(), 4, 0).with_policy(policy, l1 as u64);
        for ((ids, last), keys) in requests.iter().zip(&keys) {
            let input = ids.len() as u64 * 4;
            let prompt = TracePrompt::Blocks { keys: 0..keys.len(), last_tokens: *last };
            reuse.request(&TraceRequest { line: 1, session: 0, at: None, input, output: 1, prompt }, keys);
        }
        let hits = reuse.tier_curves().hits(TierBlocks { l1: l1 as u64, l2: l2 as u64, l3: 0 });
        let (device, host) = simulate_tiers(&requests, l1, l2, policy);
        prop_assert_eq!(hits.l1, device);
        match policy {
            // A block that was removed from the host is still counted as written.
            WritePolicy::WriteThroughSelective => prop_assert!(hits.l2 >= host),
            _ => prop_assert_eq!(hits.l2, host),
        }
    }
}

#[test]
fn a_block_that_is_used_once_in_l1_is_not_written_selectively() {
    let tiers = |policy| {
        let requests: [&[u64]; 6] = [&[1], &[2, 3], &[1], &[1], &[4, 5], &[1]];
        let mut reuse = ReuseDistances::new(6, 4, 0).with_policy(policy, 2);
        for ids in requests {
            let keys = prefix_keys(ids);
            let prompt = TracePrompt::Blocks { keys: 0..keys.len(), last_tokens: 4 };
            reuse.request(&TraceRequest { line: 1, session: 0, at: None, input: 4, output: 1, prompt }, &keys);
        }
        let hits = reuse.tier_curves().hits(TierBlocks { l1: 2, l2: 3, l3: 9 });
        [hits.l1, hits.l2, hits.l3]
    };
    // Block 1 leaves L1 after its first use, and again after two more uses.
    assert_eq!(tiers(WritePolicy::WriteThrough), [4, 8, 0]);
    assert_eq!(tiers(WritePolicy::WriteThroughSelective), [4, 4, 0]);
    assert_eq!(tiers(WritePolicy::WriteBack), [4, 8, 0]);
}
