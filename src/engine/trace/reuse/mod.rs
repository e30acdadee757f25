//! Computes the hit rate for every cache size in one pass over the requests, from exact reuse
//! distances.
//!
//! The reuse distance of a token is the number of other tokens used since its last use. An LRU
//! cache of `n` tokens contains the token if and only if the distance is less than `n`.
//!
//! A request looks up all its tokens before using any of them, and uses the last token first. The
//! beginning of a prompt therefore outlives its end, and its reply is removed first, as in SGLang's
//! tree, which evicts leaves first.
//!
//! A token is used only together with all tokens before it, so the time of last use never increases
//! along a prompt. The tokens of a prompt with the same last use are consecutive, and their
//! distances are consecutive numbers: the tokens that later requests used, then those of the same
//! request, from the first on. One step of O(log n) handles all of them.

mod curve;
mod fenwick;
mod histogram;
mod sample;
mod selective;
mod tiers;

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use crate::reuse::histogram::DistanceHistogram;
use crate::reuse::sample::SampleGroup;
use crate::reuse::selective::SelectiveWrites;
use crate::{SessionId, Trace, TracePrompt, TraceRequest};

pub use curve::HitCurve;
pub use fenwick::Fenwick;
pub use tiers::{TierCurves, TierHits, TierSizes, WritePolicy};

/// A hasher for prefix keys, which are already well distributed.
#[derive(Clone, Copy, Debug, Default)]
struct KeyHasher(u64);

impl Hasher for KeyHasher {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        self.0 = bytes.iter().fold(self.0, |hash, byte| hash.rotate_left(8) ^ u64::from(*byte));
    }
    fn write_u64(&mut self, key: u64) {
        self.0 = key.rotate_left(32);
    }
}

/// Accumulates the reuse distances of all requests of a trace. With `policy`, it also records which
/// blocks the policy has written, with this number of tokens in L1. `progress` is called with the
/// number of requests so far.
pub fn distances(trace: &Trace, policy: Option<(WritePolicy, u64)>, mut progress: impl FnMut(u64)) -> ReuseDistances {
    let mut reuse = ReuseDistances::new(trace.requests.len(), trace.block_tokens, trace.sample_shift);
    reuse.keyed_tokens = trace.keyed_tokens;
    if let Some((policy, l1)) = policy {
        reuse = reuse.with_policy(policy, l1);
    }
    for (request, done) in trace.requests.iter().zip(1..) {
        reuse.request(request, &trace.keys);
        progress(done);
    }
    reuse
}

/// Accumulates the reuse distances of requests.
#[derive(Debug)]
pub struct ReuseDistances {
    block_tokens: u64,
    policy: WritePolicy,
    /// A block with a key stands for 2^`shift` blocks.
    shift: u32,
    /// Number of requests so far.
    now: u32,
    /// The request that used a block last, by prefix key.
    last: HashMap<u64, u32, BuildHasherDefault<KeyHasher>>,
    /// The last request of a session without keys, and the number of its tokens.
    sessions: HashMap<SessionId, (u32, u64)>,
    /// Number of tokens by the request that used them last; with a sample, of the sampled ones.
    used: Fenwick,
    /// Hit tokens by reuse distance, of prompts without a sample.
    hits: DistanceHistogram,
    /// With a policy that writes a block after its second use in L1.
    selective: Option<SelectiveWrites>,
    /// The blocks of the sample, in groups.
    groups: Vec<SampleGroup>,
    /// Tokens of all blocks with keys, also of those outside the sample.
    keyed_tokens: u64,
    /// Tokens of all prompts.
    asked: u64,
    /// Prompt tokens without those that repeat an earlier prefix.
    distinct: u64,
}

/// Blocks of a prompt with the same last use.
struct BlockRun {
    last: u32,
    blocks: usize,
}

impl ReuseDistances {
    /// Creates an empty accumulator for `requests` requests, whose blocks have `block_tokens`
    /// tokens. Of the blocks with a key, one in 2^`shift` belongs to the sample.
    pub fn new(requests: usize, block_tokens: u64, shift: u32) -> ReuseDistances {
        ReuseDistances {
            block_tokens: block_tokens.max(1),
            policy: WritePolicy::default(),
            shift,
            now: 0,
            last: HashMap::default(),
            sessions: HashMap::new(),
            used: Fenwick::new(requests),
            hits: DistanceHistogram::default(),
            selective: None,
            groups: sample::groups(shift),
            keyed_tokens: 0,
            asked: 0,
            distinct: 0,
        }
    }

    /// Also records which blocks `policy` has written, with `l1` tokens in L1. With a sample, all
    /// blocks count as written.
    #[must_use]
    pub fn with_policy(self, policy: WritePolicy, l1: u64) -> ReuseDistances {
        let is_selective = policy == WritePolicy::WriteThroughSelective && self.shift == 0;
        ReuseDistances { policy, selective: is_selective.then(|| SelectiveWrites::new(l1)), ..self }
    }

    /// Adds the next request. `keys` are the prefix keys of its trace.
    pub fn request(&mut self, request: &TraceRequest, keys: &[u64]) {
        self.asked = self.asked.saturating_add(request.input);
        // The last token of a reply is not cached, because no token is computed after it.
        let reply = request.output.saturating_sub(1);
        match &request.prompt {
            TracePrompt::Blocks { keys: range, last_tokens } => {
                self.keyed(keys.get(range.clone()).unwrap_or_default(), *last_tokens, reply);
            }
            TracePrompt::Continued { prefix } => self.continued(request, *prefix, reply),
        }
        self.now = self.now.saturating_add(1);
    }

    /// Adds a prompt whose blocks have keys. All are full, except that the last one has
    /// `last_tokens` tokens.
    fn keyed(&mut self, keys: &[u64], last_tokens: u64, reply: u64) {
        let now = self.now;
        let mut runs: Vec<BlockRun> = Vec::new();
        for key in keys {
            match self.last.insert(*key, now) {
                Some(last) => match runs.last_mut() {
                    Some(run) if run.last == last => run.blocks += 1,
                    _ => runs.push(BlockRun { last, blocks: 1 }),
                },
                // All blocks after a new one are new, because a key stands for a whole prefix.
                None => self.distinct = self.distinct.saturating_add(self.block_tokens.saturating_mul(1 << self.shift)),
            }
        }
        let cut = self.block_tokens.saturating_sub(last_tokens);
        let tokens = |blocks: usize, has_last: bool| {
            (blocks as u64 * self.block_tokens).saturating_sub(if has_last { cut } else { 0 })
        };
        let mut at = 0;
        for run in &runs {
            let from = self.used.after(run.last as usize);
            let end = (at + run.blocks).min(keys.len());
            let is_last = end == keys.len();
            let count = tokens(run.blocks, is_last);
            let blocks =
                BlockTokens { keys: &keys[at..end], each: self.block_tokens, cut: if is_last { cut } else { 0 } };
            if self.shift == 0 {
                self.hits.add(from, from + count, 1);
                if let Some(selective) = &mut self.selective {
                    selective.keyed(&blocks, from);
                }
            } else {
                sample::hits(&mut self.groups, &blocks, from, self.shift);
            }
            at = end;
        }
        if keys.len() > at {
            self.distinct = self.distinct.saturating_sub(cut.saturating_mul(1 << self.shift));
        }
        if self.shift > 0 {
            sample::asked(&mut self.groups, &BlockTokens { keys, each: self.block_tokens, cut });
        }
        let mut at = 0;
        for run in runs {
            at += run.blocks;
            self.used.subtract(run.last as usize, tokens(run.blocks, at == keys.len()));
        }
        self.used.add(now as usize, tokens(keys.len(), !keys.is_empty()) + (reply >> self.shift));
    }

    /// Adds a request whose first `prefix` tokens are those of its session's request before.
    fn continued(&mut self, request: &TraceRequest, prefix: u64, reply: u64) {
        let now = self.now;
        let tokens = request.input.saturating_add(reply);
        let mut shared = 0;
        if let Some((last, before)) = self.sessions.insert(request.session, (now, tokens)) {
            shared = prefix.min(request.input).min(before);
            let from = self.used.after(last as usize) << self.shift;
            self.hits.add(from, from + shared, 1);
            if let Some(selective) = &mut self.selective {
                selective.continued(request.session, from, shared);
            }
            // The tokens behind the shared ones stay in the cache, and are not used again.
            self.used.subtract(last as usize, shared >> self.shift);
        }
        self.distinct = self.distinct.saturating_add(request.input.saturating_sub(shared));
        self.used.add(now as usize, tokens >> self.shift);
    }

    /// Returns the hit curve for all requests so far.
    pub fn curve(&self) -> HitCurve {
        let mut curve = HitCurve::new(self.hits.sums(), self.asked, self.distinct);
        if self.shift > 0 {
            sample::add(&mut curve, &self.groups, self.shift, self.keyed_tokens, self.block_tokens);
        }
        curve
    }

    /// Number of different blocks in the sample; `None` if all blocks have been read.
    pub fn sampled_blocks(&self) -> Option<usize> {
        (self.shift > 0).then_some(self.last.len())
    }

    /// Returns the hit curves by tier for all requests so far.
    pub fn tier_curves(&self) -> TierCurves {
        let all = self.curve();
        let written = match &self.selective {
            Some(selective) => HitCurve::new(selective.hits(), self.asked, self.distinct),
            None => all.clone(),
        };
        TierCurves::new(self.policy, all, written)
    }
}

/// Blocks of `each` tokens, of which the last one lacks `cut`.
struct BlockTokens<'a> {
    keys: &'a [u64],
    each: u64,
    cut: u64,
}

impl BlockTokens<'_> {
    /// The key, the number of tokens before it and its number of tokens, for each block.
    fn each(&self) -> impl Iterator<Item = (u64, u64, u64)> {
        let last = self.keys.len().saturating_sub(1);
        self.keys.iter().enumerate().map(move |(at, key)| {
            let cut = if at == last { self.cut } else { 0 };
            (*key, at as u64 * self.each, self.each.saturating_sub(cut))
        })
    }
}

#[cfg(test)]
mod tests;
