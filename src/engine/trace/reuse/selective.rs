//! Which blocks SGLang has written with `write_through_selective`.

use std::collections::{HashMap, HashSet};
use std::hash::BuildHasherDefault;

use crate::SessionId;
use crate::reuse::histogram::DistanceHistogram;
use crate::reuse::{BlockTokens, KeyHasher};

/// The blocks that were used twice while in L1. A block that has left all tiers still counts as
/// written, so that the hits are an upper bound.
#[derive(Debug)]
pub(super) struct SelectiveWrites {
    /// Number of tokens that L1 holds.
    l1: u64,
    keys: HashSet<u64, BuildHasherDefault<KeyHasher>>,
    /// Number of written tokens of a session without keys, from its start.
    sessions: HashMap<SessionId, u64>,
    /// Hit tokens of written blocks by reuse distance.
    hits: DistanceHistogram,
}

impl SelectiveWrites {
    pub(super) fn new(l1: u64) -> SelectiveWrites {
        let (keys, sessions) = (HashSet::default(), HashMap::new());
        SelectiveWrites { l1, keys, sessions, hits: DistanceHistogram::default() }
    }

    /// Counts the hits of written blocks with consecutive distances. Blocks in L1 are then written.
    pub(super) fn keyed(&mut self, blocks: &BlockTokens<'_>, from: u64) {
        for (key, at, tokens) in blocks.each() {
            let distance = from + at;
            let is_written = if distance + tokens <= self.l1 {
                self.keys.insert(key);
                true
            } else {
                self.keys.contains(&key)
            };
            if is_written {
                self.hits.add(distance, distance + tokens, 1);
            }
        }
    }

    /// The same for the first `shared` tokens of a session.
    pub(super) fn continued(&mut self, session: SessionId, from: u64, shared: u64) {
        let in_l1 = self.l1.saturating_sub(from).min(shared);
        let written = self.sessions.entry(session).or_default();
        *written = (*written).min(shared).max(in_l1);
        self.hits.add(from, from + *written, 1);
    }

    /// Sizes in tokens and the hit tokens up to them.
    pub(super) fn hits(&self) -> Vec<(u64, u64)> {
        self.hits.sums()
    }
}
