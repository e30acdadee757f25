//! The hits that the sizes of a server's caches allow.

use serde::Serialize;

use crate::ceiling::reach::TierReach;

/// Prompt tokens that LRU caches with the sizes of a server hold, cumulative by tier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct AllowedHits {
    /// In L1.
    pub device: u64,
    /// In L1 or L2.
    pub memory: u64,
    /// In any tier.
    pub all: u64,
}

impl AllowedHits {
    /// Adds the counts of `other`.
    pub fn plus(&mut self, other: AllowedHits) {
        self.device += other.device;
        self.memory += other.memory;
        self.all += other.all;
    }
}

/// Consecutive tokens of a prompt with the same last use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UsedRun {
    pub tokens: u64,
    /// Number of other tokens that were used since the last use of the first token. Each further
    /// token adds one.
    pub distance: u64,
    /// Whether L1 and L2 have not been flushed since.
    pub in_memory: bool,
    /// Whether the tokens were written to L3.
    pub stored: bool,
}

/// Counts the hits of a prompt, run by run from its start. A tier is used up to the first token
/// that it lacks.
#[derive(Clone, Copy, Debug)]
pub struct PrefixWalk {
    page: u64,
    reach: TierReach,
    found: AllowedHits,
    /// Whether a tier has all tokens so far.
    open: [bool; 3],
}

impl PrefixWalk {
    /// Starts at the beginning of a prompt.
    pub fn new(page: u32, reach: TierReach) -> PrefixWalk {
        PrefixWalk { page: u64::from(page.max(1)), reach, found: AllowedHits::default(), open: [true; 3] }
    }

    /// Adds the next run.
    pub fn add(&mut self, run: UsedRun) {
        let within = |size: u64| run.tokens.min(size.saturating_sub(run.distance)) / self.page * self.page;
        let of_memory = |size: u64| if run.in_memory { within(size) } else { 0 };
        let memory = of_memory(self.reach.memory);
        let stored = if run.stored { within(self.reach.storage_tokens()) } else { 0 };
        let parts = [of_memory(self.reach.device), memory, memory.max(stored)];
        let sums = [&mut self.found.device, &mut self.found.memory, &mut self.found.all];
        for ((sum, part), open) in sums.into_iter().zip(parts).zip(&mut self.open) {
            if *open {
                *sum += part;
                *open = part == run.tokens;
            }
        }
    }

    /// Returns the hits.
    pub fn end(self) -> AllowedHits {
        self.found
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ceiling::reach::StorageReach;

    #[test]
    fn whole_pages_within_the_reach_are_hits() {
        let reach = TierReach { device: 20, memory: 40, storage: StorageReach::Tokens(100) };
        let run = |tokens, distance| UsedRun { tokens, distance, in_memory: true, stored: true };
        let walk = |runs: &[UsedRun]| {
            let mut walk = PrefixWalk::new(4, reach);
            runs.iter().for_each(|run| walk.add(*run));
            walk.end()
        };
        assert_eq!(walk(&[run(40, 6)]), AllowedHits { device: 12, memory: 32, all: 40 });
        assert_eq!(walk(&[run(8, 0), run(40, 70)]), AllowedHits { device: 8, memory: 8, all: 36 });
        assert_eq!(walk(&[run(8, 18), run(8, 0)]).device, 0, "a prefix is missing");
        let flushed = UsedRun { in_memory: false, ..run(8, 0) };
        assert_eq!(walk(&[flushed]), AllowedHits { device: 0, memory: 0, all: 8 });
        assert_eq!(walk(&[UsedRun { stored: false, ..flushed }]), AllowedHits::default());
    }
}
