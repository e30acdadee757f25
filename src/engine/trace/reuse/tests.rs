//! The hit curve against caches that are simulated one by one.

use std::collections::HashSet;

use proptest::prelude::*;

use super::*;

/// Number of tokens in each block.
const BLOCK: u64 = 4;

/// A request by its block IDs, the tokens of its last block, and the length of its reply.
type Asked = (Vec<u64>, u64, u64);

/// Prefix keys. A partial block has another key than a full one.
fn prefix_keys((ids, last_tokens, _): &Asked) -> Vec<u64> {
    let mut key = 1u64;
    let last = ids.len().saturating_sub(1);
    let next = |(at, id): (usize, &u64)| {
        let id = id + if at == last { (BLOCK - last_tokens) << 32 } else { 0 };
        key = (key ^ id.wrapping_mul(0x9e37_79b9_7f4a_7c15)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        key ^= key >> 29;
        key = key.wrapping_mul(0x94d0_49bb_1331_11eb);
        key ^= key >> 32;
        key
    };
    ids.iter().enumerate().map(next).collect()
}

fn is_sampled(key: u64, shift: u32) -> bool {
    key.checked_shr(64 - shift).unwrap_or(0) == 0
}

fn add(reuse: &mut ReuseDistances, asked: &Asked, shift: u32) {
    let (ids, last_tokens, output) = asked;
    let keys = prefix_keys(asked);
    let input = (ids.len() as u64 * BLOCK).saturating_sub(BLOCK - last_tokens).max(1);
    reuse.keyed_tokens += input;
    let sampled: Vec<u64> = keys.iter().copied().filter(|key| is_sampled(*key, shift)).collect();
    let last_tokens = if sampled.last() == keys.last() { *last_tokens } else { BLOCK };
    let prompt = TracePrompt::Blocks { keys: 0..sampled.len(), last_tokens };
    reuse.request(&TraceRequest { line: 1, session: 0, at: None, input, output: *output, prompt }, &sampled);
}

fn reuse(requests: &[Asked], shift: u32) -> ReuseDistances {
    let mut reuse = ReuseDistances::new(requests.len(), BLOCK, shift);
    requests.iter().for_each(|asked| add(&mut reuse, asked, shift));
    reuse
}

/// The key of a token's block, and its number within the block.
type Token = (u64, u64);

/// The tokens of a prompt, and those of its reply that are cached.
fn tokens(number: usize, asked: &Asked) -> (Vec<Token>, Vec<Token>) {
    let keys = prefix_keys(asked);
    let count = |at: usize| if at + 1 == keys.len() { asked.1 } else { BLOCK };
    let prompt = keys.iter().enumerate().flat_map(|(at, key)| (0..count(at)).map(|token| (*key, token))).collect();
    (prompt, (1..asked.2).map(|token| (number as u64, 1_000 + token)).collect())
}

/// Hit tokens of two lists of tokens, the token used last at the end. With write-back, a token is
/// in one of them only.
fn simulate(requests: &[Asked], l1: usize, l2: usize, policy: WritePolicy) -> (u64, u64) {
    let (mut device, mut host): (Vec<Token>, Vec<Token>) = Default::default();
    let mut written: HashSet<u64> = HashSet::new();
    let mut hits = (0, 0);
    for (number, asked) in requests.iter().enumerate() {
        let (prompt, reply) = tokens(number, asked);
        let is_selective = policy == WritePolicy::WriteThroughSelective;
        for token in &prompt {
            if device.contains(token) {
                hits.0 += 1;
            } else if host.contains(token) && (!is_selective || written.contains(&token.0)) {
                hits.1 += 1;
            } else {
                break;
            }
        }
        // A block that is on the device as a whole has its second use.
        written.extend(
            prompt
                .iter()
                .map(|token| token.0)
                .filter(|key| prompt.iter().filter(|token| token.0 == *key).all(|token| device.contains(token))),
        );
        for token in prompt.iter().chain(&reply).rev() {
            device.retain(|other| other != token);
            device.push(*token);
            host.retain(|other| other != token);
            if policy != WritePolicy::WriteBack {
                host.push(*token);
            }
        }
        let left: Vec<Token> = device.drain(..device.len().saturating_sub(l1)).collect();
        if policy == WritePolicy::WriteBack {
            host.extend(left);
        }
        host.drain(..host.len().saturating_sub(l2));
    }
    hits
}

#[test]
fn a_repeated_prompt_hits_if_the_cache_holds_what_came_between() {
    let curve = reuse(&[(vec![1, 2], 4, 1), (vec![3], 4, 3), (vec![1, 2], 4, 1)], 0).curve();
    // Six tokens are between, two of them of the reply. The first token of the prompt was used
    // last.
    assert_eq!([0, 6, 7, 10, 14, 99].map(|size| curve.hits(size)), [0, 0, 1, 4, 8, 8]);
    assert_eq!((curve.asked, curve.distinct), (20, 12));
}

#[test]
fn equal_blocks_after_different_prefixes_are_no_hits() {
    let curve = reuse(&[(vec![1, 2], 4, 1), (vec![3, 2], 4, 1), (vec![2], 4, 1)], 0).curve();
    assert_eq!((curve.ceiling(), curve.distinct), (0, 20));
}

#[test]
fn a_session_hits_the_tokens_of_the_request_before_and_its_reply() {
    let mut reuse = ReuseDistances::new(5, BLOCK, 0);
    let mut ask = |session, input, output, prefix| {
        let prompt = TracePrompt::Continued { prefix };
        reuse.request(&TraceRequest { line: 1, session, at: None, input, output, prompt }, &[]);
    };
    ask(0, 16, 5, 0); // 20 tokens with the reply
    ask(1, 8, 1, 0);
    ask(0, 30, 3, 18); // 18 tokens behind the 8 of the other session; 14 new ones with the reply
    ask(1, 8, 1, 8); // behind 32 tokens and the 2 of the first request that were not used again
    ask(0, 8, 1, 9); // a shorter prompt than the prefix, behind 8 tokens
    let curve = reuse.curve();
    assert_eq!([8, 9, 16, 26, 32, 40, 99].map(|size| curve.hits(size)), [0, 2, 16, 26, 26, 34, 34]);
    assert_eq!((curve.asked, curve.distinct), (70, 36));
}

proptest! {
    #[test]
    fn each_tier_serves_what_the_policy_has_written(
        requests in prop::collection::vec((prop::collection::vec(0u64..3, 1..6), 1u64..5, 1u64..6), 0..60),
        l1 in 24usize..100, l2 in 0usize..200, policy in 0usize..3
    ) {
        let policy = WritePolicy::ALL[policy];
        let l2 = if policy == WritePolicy::WriteBack { l2 } else { l1 + l2 };
        let mut reuse = ReuseDistances::new(requests.len(), BLOCK, 0).with_policy(policy, l1 as u64);
        requests.iter().for_each(|asked| add(&mut reuse, asked, 0));
        let hits = reuse.tier_curves().hits(TierSizes { l1: l1 as u64, l2: l2 as u64, l3: 0 });
        let (device, host) = simulate(&requests, l1, l2, policy);
        prop_assert_eq!(hits.l1, device);
        match policy {
            // A block that was removed from the host is still counted as written.
            WritePolicy::WriteThroughSelective => prop_assert!(hits.l2 >= host, "{} {}", hits.l2, host),
            _ => prop_assert_eq!(hits.l2, host),
        }
    }

    #[test]
    fn the_curve_matches_a_simulated_cache_of_every_size(
        requests in prop::collection::vec((prop::collection::vec(0u64..4, 1..9), 1u64..5, 1u64..4), 0..60),
        sizes in prop::collection::vec(1usize..500, 6)
    ) {
        let curve = reuse(&requests, 0).curve();
        for size in sizes {
            let (hits, _) = simulate(&requests, size, 0, WritePolicy::WriteThrough);
            prop_assert_eq!(curve.hits(size as u64), hits, "{} tokens", size);
        }
    }
}

#[test]
fn a_sample_of_an_eighth_is_within_its_error() {
    // 300 sessions of growing prompts with a shared start, in an order that mixes them.
    let prompt = |i: u64| {
        let (session, turn) = (i * 7 % 300, i / 300);
        let own = (0..(turn + 1) * 20).map(|at| 1_000 + session * 1_000 + at);
        ((0..30).chain(own).collect::<Vec<u64>>(), 3, 9)
    };
    let requests: Vec<Asked> = (0..1_500).map(prompt).collect();
    let exact = reuse(&requests, 0).curve();
    let sampled = reuse(&requests, 3).curve();
    assert_eq!(exact.error(20_000), None);
    for size in [4_000, 20_000, 40_000, 80_000, 160_000] {
        let off = (exact.rate(exact.hits(size)) - sampled.rate(sampled.hits(size))).abs();
        let error = sampled.error(size).unwrap();
        assert!(error > 0.0 && error < 0.5, "{size} tokens: {error}");
        assert!(off <= error, "{size} tokens: {off}, {error}");
    }
}

#[test]
fn a_block_that_is_used_once_in_l1_is_not_written_selectively() {
    let tiers = |policy| {
        let requests: [&[u64]; 6] = [&[1], &[2, 3], &[1], &[1], &[4, 5], &[1]];
        let mut reuse = ReuseDistances::new(6, BLOCK, 0).with_policy(policy, 8);
        requests.iter().for_each(|ids| add(&mut reuse, &(ids.to_vec(), 4, 1), 0));
        let hits = reuse.tier_curves().hits(TierSizes { l1: 8, l2: 12, l3: 36 });
        [hits.l1, hits.l2, hits.l3]
    };
    // Block 1 leaves L1 after its first use, and again after two more uses.
    assert_eq!(tiers(WritePolicy::WriteThrough), [4, 8, 0]);
    assert_eq!(tiers(WritePolicy::WriteThroughSelective), [4, 4, 0]);
    assert_eq!(tiers(WritePolicy::WriteBack), [4, 8, 0]);
}
