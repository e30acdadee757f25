//! The arena of prefix keys, and its sample.

use std::ops::Range;

use crate::prefix_key::PrefixKeys;
use crate::request::{TracePrompt, TraceRequest};

/// Maximum number of leading zero bits that a sample requires.
const SHIFT_MAX: u32 = 63;

/// The prefix keys of all requests, one request after the other.
///
/// Above `max` keys, only a sample is kept: the keys whose top `shift` bits are zero. A key is
/// either kept everywhere or nowhere, so hits and misses of the kept blocks are unbiased.
#[derive(Debug)]
pub(crate) struct KeyArena {
    pub(crate) keys: Vec<u64>,
    pub(crate) shift: u32,
    max: usize,
}

impl KeyArena {
    pub(crate) fn new(max: usize) -> KeyArena {
        KeyArena { keys: Vec::new(), shift: 0, max: max.max(1) }
    }

    fn keeps(&self, key: u64) -> bool {
        self.shift == 0 || key >> (64 - self.shift) == 0
    }

    /// Adds the blocks of a prompt. The last block has `last_tokens` tokens, the others have
    /// `block_tokens`. `requests` are the requests before it, in the order of their keys; they are
    /// adjusted if the sample is reduced.
    pub(crate) fn push(
        &mut self,
        mut keys: PrefixKeys,
        ids: &[u64],
        last_tokens: u64,
        block_tokens: u64,
        requests: &mut [TraceRequest],
    ) -> TracePrompt {
        let mut start = self.keys.len();
        let mut last = None;
        for id in ids {
            let key = keys.next(*id);
            last = Some(key);
            if !self.keeps(key) {
                continue;
            }
            while self.keys.len() >= self.max && self.shift < SHIFT_MAX {
                start = self.halve(start, requests, block_tokens);
            }
            // The last halving may have dropped the key, too.
            if self.keeps(key) {
                self.keys.push(key);
            }
        }
        let last_tokens = match last {
            Some(last) if self.keeps(last) => last_tokens,
            _ if self.keys.len() > start => block_tokens,
            _ => 0,
        };
        TracePrompt::Blocks { keys: start..self.keys.len(), last_tokens }
    }

    /// Drops half of the keys in place. Returns the new position of `start`, from which on the keys
    /// belong to no request yet.
    fn halve(&mut self, start: usize, requests: &mut [TraceRequest], block_tokens: u64) -> usize {
        self.shift += 1;
        let mut to = 0;
        for request in requests {
            let TracePrompt::Blocks { keys, last_tokens } = &mut request.prompt else { continue };
            let last = (keys.start < keys.end).then(|| self.keys[keys.end - 1]);
            let kept = self.keep(keys.clone(), to);
            *last_tokens = match last {
                Some(last) if self.keeps(last) => *last_tokens,
                _ if kept > to => block_tokens,
                _ => 0,
            };
            *keys = to..kept;
            to = kept;
        }
        let end = self.keep(start..self.keys.len(), to);
        self.keys.truncate(end);
        to
    }

    /// Moves the kept keys of `range` to `to`, which is not after the range. Returns the position
    /// after the last one.
    fn keep(&mut self, range: Range<usize>, mut to: usize) -> usize {
        for at in range {
            let key = self.keys[at];
            if self.keeps(key) {
                self.keys[to] = key;
                to += 1;
            }
        }
        to
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn request(prompt: TracePrompt) -> TraceRequest {
        TraceRequest { line: 1, session: 0, at: None, input: 1, output: 1, prompt }
    }

    fn fill(max: usize, prompts: &[Vec<u64>]) -> (KeyArena, Vec<TraceRequest>) {
        let mut arena = KeyArena::new(max);
        let mut requests = Vec::new();
        for ids in prompts {
            let prompt = arena.push(PrefixKeys::global(), ids, 3, 16, &mut requests);
            requests.push(request(prompt));
        }
        (arena, requests)
    }

    proptest! {
        #[test]
        fn sample_is_the_same_subset_of_every_prompt(
            prompts in proptest::collection::vec(proptest::collection::vec(0..6_u64, 0..30), 1..40),
            max in 1..200_usize,
        ) {
            let (all, full) = fill(usize::MAX, &prompts);
            let (some, sampled) = fill(max, &prompts);
            prop_assert!(some.keys.len() <= max);
            for (full, sampled) in full.iter().zip(&sampled) {
                let (TracePrompt::Blocks { keys: full, last_tokens: 0 | 3 }, TracePrompt::Blocks { keys: kept, last_tokens }) =
                    (&full.prompt, &sampled.prompt) else { panic!("blocks with a full last block") };
                let full = &all.keys[full.clone()];
                let expected: Vec<u64> = full.iter().copied().filter(|key| some.keeps(*key)).collect();
                prop_assert_eq!(&some.keys[kept.clone()], &expected[..]);
                let tokens = match (expected.last(), full.last()) {
                    (None, _) => 0,
                    (kept, last) if kept == last => 3,
                    _ => 16,
                };
                prop_assert_eq!(*last_tokens, tokens);
            }
        }
    }

    #[test]
    fn sample_is_used_only_above_the_limit() {
        let (arena, _) = fill(8, &[vec![1, 2, 3, 4], vec![1, 2, 3, 4]]);
        assert_eq!((arena.shift, arena.keys.len()), (0, 8));
        let (arena, _) = fill(8, &[vec![1, 2, 3, 4], vec![1, 2, 3, 4, 5]]);
        assert!(arena.shift > 0 && arena.keys.len() < 8);
    }
}
