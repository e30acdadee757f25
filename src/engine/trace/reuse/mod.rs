//! Computes the hit rate for every cache size in one pass over the requests, from exact reuse
//! distances.
//!
//! The reuse distance of a block is the number of other blocks used since its last use. An LRU
//! cache of `n` blocks contains the block if and only if the distance is less than `n`.
//!
//! A request looks up all its blocks before using any of them, and uses the last block first. The
//! beginning of a prompt therefore outlives its end, as in SGLang's tree, which evicts leaves
//! first.
//!
//! A block is used only together with all blocks before it, so the time of last use never increases
//! along a prompt. The blocks of a prompt with the same last use are consecutive, and their
//! distances are consecutive numbers: the blocks that later requests used, then those of the same
//! request, from the first on. One step of O(log n) handles all of them.

mod curve;
mod fenwick;
mod histogram;
mod sample;
mod tiers;

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasherDefault, Hasher};

use crate::reuse::fenwick::Fenwick;
use crate::reuse::histogram::DistanceHistogram;
use crate::reuse::sample::SampleGroup;
use crate::{SessionId, TracePrompt, TraceRequest};

pub use curve::HitCurve;
pub use tiers::{TierBlocks, TierCurves, TierHits, WritePolicy};

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
    /// The last request of a session without keys, and the number of its blocks.
    sessions: HashMap<SessionId, (u32, u64)>,
    /// Number of blocks by the request that used them last.
    used: Fenwick,
    /// Hit tokens by reuse distance, of prompts without a sample.
    hits: DistanceHistogram,
    /// With a policy that writes a block after its second use in L1.
    selective: Option<SelectiveWrites>,
    /// The blocks of the sample, in groups.
    groups: Vec<SampleGroup>,
    /// Tokens of all blocks with keys, also of those outside the sample.
    pub keyed_tokens: u64,
    /// Tokens of all prompts.
    asked: u64,
    /// Different blocks.
    distinct: u64,
}

/// The blocks that SGLang has written because they were used twice while in L1. A block that has
/// left all tiers still counts as written, so that the hits are an upper bound.
#[derive(Debug, Default)]
struct SelectiveWrites {
    l1: u64,
    keys: HashSet<u64, BuildHasherDefault<KeyHasher>>,
    /// Number of written blocks of a session without keys, from its start.
    sessions: HashMap<SessionId, u64>,
    /// Hit tokens of written blocks by reuse distance.
    hits: DistanceHistogram,
}

/// Blocks of a prompt with the same last use.
struct BlockRun {
    last: u32,
    blocks: u64,
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

    /// The same, and it tells which blocks `policy` has written, with `l1` blocks in L1. With a
    /// sample, all blocks count as written.
    #[must_use]
    pub fn with_policy(self, policy: WritePolicy, l1: u64) -> ReuseDistances {
        let is_selective = policy == WritePolicy::WriteThroughSelective && self.shift == 0;
        let selective = is_selective.then(|| SelectiveWrites { l1, ..SelectiveWrites::default() });
        ReuseDistances { policy, selective, ..self }
    }

    /// Adds the next request. `keys` are the prefix keys of its trace.
    pub fn request(&mut self, request: &TraceRequest, keys: &[u64]) {
        self.asked = self.asked.saturating_add(request.input);
        match &request.prompt {
            TracePrompt::Blocks { keys: range, last_tokens } => {
                self.keyed(keys.get(range.clone()).unwrap_or_default(), *last_tokens);
            }
            TracePrompt::Continued { prefix } => self.continued(request, *prefix),
        }
        self.now = self.now.saturating_add(1);
    }

    /// Adds a prompt whose blocks have keys.
    fn keyed(&mut self, keys: &[u64], last_tokens: u64) {
        let now = self.now;
        let mut runs: Vec<BlockRun> = Vec::new();
        for key in keys {
            match self.last.insert(*key, now) {
                Some(last) => match runs.last_mut() {
                    Some(run) if run.last == last => run.blocks += 1,
                    _ => runs.push(BlockRun { last, blocks: 1 }),
                },
                // All blocks after a new one are new, because a key stands for a whole prefix.
                None => self.distinct += 1 << self.shift,
            }
        }
        let cut = self.block_tokens.saturating_sub(last_tokens);
        let mut at = 0;
        for run in &runs {
            let from = self.used.after(run.last as usize);
            let end = at + run.blocks;
            let cut = if end == keys.len() as u64 { cut } else { 0 };
            let blocks = usize::try_from(at).unwrap_or(usize::MAX)..usize::try_from(end).unwrap_or(usize::MAX);
            let keys = keys.get(blocks).unwrap_or_default();
            if self.shift == 0 {
                self.hits.add(from, from + run.blocks, signed(self.block_tokens));
                self.hits.add(from + run.blocks - 1, from + run.blocks, -signed(cut));
                if let Some(selective) = &mut self.selective {
                    selective.keyed(keys, from, self.block_tokens, cut);
                }
            } else {
                for (key, distance) in keys.iter().zip(from..) {
                    let cut = if distance + 1 == from + run.blocks { cut } else { 0 };
                    let tokens = self.block_tokens - cut;
                    self.groups[sample::group(*key)].hit(distance << self.shift, signed(tokens));
                }
            }
            at = end;
        }
        if self.shift > 0 {
            for (key, left) in keys.iter().zip((0..keys.len()).rev()) {
                let tokens = if left == 0 { last_tokens } else { self.block_tokens };
                self.groups[sample::group(*key)].asked(tokens);
            }
        }
        for run in runs {
            self.used.subtract(run.last as usize, run.blocks);
        }
        self.used.add(now as usize, keys.len() as u64);
    }

    /// Adds a request whose first `prefix` tokens are those of its session's request before.
    fn continued(&mut self, request: &TraceRequest, prefix: u64) {
        let now = self.now;
        // The last token of a reply is not cached, because no token is computed after it.
        let blocks = request.input.saturating_add(request.output.saturating_sub(1)).div_ceil(self.block_tokens);
        let mut shared = 0;
        if let Some((last, before)) = self.sessions.insert(request.session, (now, blocks)) {
            shared = (prefix.min(request.input) / self.block_tokens).min(before);
            let from = self.used.after(last as usize) << self.shift;
            self.hits.add(from, from + shared, signed(self.block_tokens));
            if let Some(selective) = &mut self.selective {
                selective.continued(request.session, from, shared, self.block_tokens);
            }
            // The blocks behind the shared ones stay in the cache, and are not used again.
            self.used.subtract(last as usize, shared >> self.shift);
        }
        self.distinct += blocks.saturating_sub(shared);
        self.used.add(now as usize, blocks >> self.shift);
    }

    /// Returns the hit curve for all requests so far.
    pub fn curve(&self) -> HitCurve {
        let mut curve = HitCurve::new(self.hits.sums(), self.asked, self.distinct, self.block_tokens);
        if self.shift > 0 {
            sample::add(&mut curve, &self.groups, self.shift, self.keyed_tokens);
        }
        curve
    }

    /// Returns the hit curves by tier for all requests so far.
    pub fn tier_curves(&self) -> TierCurves {
        let all = self.curve();
        let written = match &self.selective {
            Some(selective) => HitCurve::new(selective.hits.sums(), self.asked, self.distinct, self.block_tokens),
            None => all.clone(),
        };
        TierCurves::new(self.policy, all, written)
    }
}

impl SelectiveWrites {
    /// Counts the hits of written blocks with consecutive distances, of which the last one lacks
    /// `cut` tokens. Blocks in L1 are then written.
    fn keyed(&mut self, keys: &[u64], from: u64, block_tokens: u64, cut: u64) {
        for (key, distance) in keys.iter().zip(from..) {
            let is_last = distance + 1 == from + keys.len() as u64;
            let tokens = block_tokens - if is_last { cut } else { 0 };
            let is_written = match distance < self.l1 {
                true => {
                    self.keys.insert(*key);
                    true
                }
                false => self.keys.contains(key),
            };
            self.hits.add(distance, distance + 1, if is_written { signed(tokens) } else { 0 });
        }
    }

    /// The same for the first `shared` blocks of a session.
    fn continued(&mut self, session: SessionId, from: u64, shared: u64, block_tokens: u64) {
        let in_l1 = self.l1.saturating_sub(from).min(shared);
        let written = self.sessions.entry(session).or_default();
        *written = (*written).min(shared).max(in_l1);
        self.hits.add(from, from + *written, signed(block_tokens));
    }
}

fn signed(tokens: u64) -> i64 {
    i64::try_from(tokens).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests;
