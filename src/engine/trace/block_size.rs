//! Which block sizes agree with the token counts and ID counts of a trace.

use std::fmt;

/// Number of IDs of a prompt whose length is not a multiple of the block size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockRule {
    /// A partial last block has an ID: `ceil(tokens / size)` IDs.
    PartialLast,
    /// Only whole blocks have IDs: `floor(tokens / size)` IDs.
    WholeOnly,
    /// Either; the format does not define it.
    Either,
}

impl BlockRule {
    /// Returns whether a prompt of `tokens` tokens has `blocks` IDs for blocks of `size` tokens.
    pub fn fits(self, tokens: u64, blocks: u64, size: u64) -> bool {
        self.sizes(tokens, blocks).is_some_and(|sizes| sizes.contains(size))
    }

    /// Returns the block sizes for which a prompt of `tokens` tokens has `blocks` IDs, if any.
    pub fn sizes(self, tokens: u64, blocks: u64) -> Option<BlockSizes> {
        let (min, max) = match self {
            BlockRule::PartialLast => (Self::ceil_min(tokens, blocks)?, Self::ceil_max(tokens, blocks)),
            BlockRule::WholeOnly => (Self::floor_min(tokens, blocks), Self::floor_max(tokens, blocks)),
            BlockRule::Either => (Self::floor_min(tokens, blocks), Self::ceil_max(tokens, blocks)),
        };
        (min <= max).then_some(BlockSizes { min, max })
    }

    /// `ceil(tokens / size) <= blocks` if and only if `size >= ceil(tokens / blocks)`.
    fn ceil_min(tokens: u64, blocks: u64) -> Option<u64> {
        (blocks > 0).then(|| tokens.div_ceil(blocks).max(1))
    }

    /// `ceil(tokens / size) >= blocks` if and only if `(blocks - 1) * size < tokens`.
    fn ceil_max(tokens: u64, blocks: u64) -> u64 {
        match blocks {
            0 | 1 => u64::MAX,
            _ => tokens.saturating_sub(1) / (blocks - 1),
        }
    }

    /// `floor(tokens / size) <= blocks` if and only if `size > tokens / (blocks + 1)`.
    fn floor_min(tokens: u64, blocks: u64) -> u64 {
        tokens / blocks.saturating_add(1) + 1
    }

    /// `floor(tokens / size) >= blocks` if and only if `size <= tokens / blocks`.
    fn floor_max(tokens: u64, blocks: u64) -> u64 {
        tokens.checked_div(blocks).unwrap_or(u64::MAX)
    }
}

/// A range of block sizes in tokens, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockSizes {
    /// The smallest size, at least 1.
    pub min: u64,
    /// `u64::MAX` if no upper bound is known.
    pub max: u64,
}

impl BlockSizes {
    pub const ALL: BlockSizes = BlockSizes { min: 1, max: u64::MAX };

    /// Whether blocks of `size` tokens fit.
    pub fn contains(self, size: u64) -> bool {
        (self.min..=self.max).contains(&size)
    }

    /// Returns the sizes in both ranges, if any.
    pub fn intersect(self, other: BlockSizes) -> Option<BlockSizes> {
        let (min, max) = (self.min.max(other.min), self.max.min(other.max));
        (min <= max).then_some(BlockSizes { min, max })
    }

    /// Returns the most plausible size of the range: the format's `conventional` size, otherwise
    /// the largest power of two (the smallest if there is no upper bound), otherwise the smallest
    /// size.
    pub fn preferred(self, conventional: Option<u64>) -> u64 {
        match conventional {
            Some(size) if self.contains(size) => size,
            // Without an upper bound, every prompt has one block.
            _ if self.max == u64::MAX => self.min.checked_next_power_of_two().unwrap_or(self.min),
            _ => {
                let power = 1_u64 << self.max.ilog2();
                if power >= self.min { power } else { self.min }
            }
        }
    }
}

impl fmt::Display for BlockSizes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            BlockSizes { min, max } if min == max => write!(f, "{min} tokens"),
            BlockSizes { min, max: u64::MAX } => write!(f, "at least {min} tokens"),
            BlockSizes { min, max } => write!(f, "{min} to {max} tokens"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const RULES: [BlockRule; 3] = [BlockRule::PartialLast, BlockRule::WholeOnly, BlockRule::Either];

    #[test]
    fn sizes_match_the_definition() {
        let count = |rule, tokens: u64, size: u64| match rule {
            BlockRule::PartialLast => vec![tokens.div_ceil(size)],
            BlockRule::WholeOnly => vec![tokens / size],
            BlockRule::Either => vec![tokens / size, tokens.div_ceil(size)],
        };
        for rule in RULES {
            for tokens in 1..60 {
                for blocks in 0..12 {
                    for size in 1..70 {
                        let expected = count(rule, tokens, size).contains(&blocks);
                        assert_eq!(rule.fits(tokens, blocks, size), expected, "{rule:?} {tokens} {blocks} {size}");
                    }
                }
            }
        }
    }

    #[test]
    fn preferred_size_is_conventional_then_a_power_of_two() {
        let sizes = BlockSizes { min: 10, max: 20 };
        assert_eq!(sizes.preferred(Some(12)), 12);
        assert_eq!(sizes.preferred(Some(512)), 16);
        assert_eq!(BlockSizes { min: 17, max: 31 }.preferred(None), 17);
        assert_eq!(BlockSizes { min: 300, max: u64::MAX }.preferred(None), 512);
        assert_eq!(BlockSizes { min: u64::MAX, max: u64::MAX }.preferred(None), u64::MAX);
    }

    proptest! {
        #[test]
        fn arbitrary_counts_never_panic(tokens: u64, blocks: u64, size: u64, which in 0..3_usize) {
            RULES[which].fits(tokens, blocks, size);
        }
    }
}
