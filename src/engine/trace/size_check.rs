//! Chooses the block size of a trace, and checks every prompt against it.

use crate::block_size::BlockSizes;
use crate::error::{BlockCountError, RowError};
use crate::format::TraceFormat;

/// Maximum number of tokens in a prompt, and in a reply.
pub(crate) const TOKENS_MAX: u64 = 1 << 26;
/// Number of prompts, and of their IDs, from which the block size is derived.
const SAMPLE_PROMPTS: usize = 1000;
const SAMPLE_IDS: u64 = 1 << 20;
/// Largest block size that is accepted.
const SIZE_MAX: u64 = 1 << 32;
/// Two tokenizers may differ by this part of the blocks of a prompt.
const TOKENIZER_SHARE: u64 = 4;
/// Largest power of two that is tried as a block size.
const SIZE_MAX_LOG2: u32 = 16;

/// The lengths of a prompt, as recorded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PromptCounts {
    /// Prompt length in tokens. By default, all blocks are full.
    pub tokens: Option<u64>,
    /// Number of hash IDs; `None` if the prompt has no blocks.
    pub blocks: Option<u64>,
    /// Block size as recorded with the prompt.
    pub block_tokens: Option<u64>,
}

/// A prompt whose length matches its blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CheckedPrompt {
    /// Prompt length in tokens, at least 1.
    pub tokens: u64,
    /// Number of leading hash IDs that belong to the prompt.
    pub blocks: u64,
    /// Tokens per block; without meaning if the prompt has no blocks.
    pub block_tokens: u64,
}

/// Chooses a block size, and checks prompts. Until the size is chosen, prompts wait for the check.
#[derive(Debug)]
pub struct SizeCheck {
    format: TraceFormat,
    given: Option<u64>,
    skip_bad: bool,
    /// Prompts from which the size is derived.
    sample: Vec<PromptCounts>,
    sample_ids: u64,
    size: Option<u64>,
    /// The block sizes that fit all prompts so far.
    common: Option<BlockSizes>,
    mismatches: u64,
}

impl SizeCheck {
    /// Creates a check for the block size `given`; `None` derives the size from the prompts.
    /// `skip_bad`: prompts that fail the check are skipped, so they do not count for the others.
    pub fn new(format: TraceFormat, given: Option<u64>, skip_bad: bool) -> SizeCheck {
        let (sample, common) = (Vec::new(), Some(BlockSizes::ALL));
        SizeCheck { format, given, skip_bad, sample, sample_ids: 0, size: None, common, mismatches: 0 }
    }

    /// Adds a prompt. Returns whether the size is now known.
    pub fn add(&mut self, counts: PromptCounts) -> bool {
        let sizes = self.row_sizes(counts);
        // A row that will be skipped does not restrict the block size.
        let is_bad = |sizes: Option<BlockSizes>| sizes.zip(self.size).is_none_or(|(sizes, size)| !sizes.contains(size));
        if let Some(sizes) = sizes
            && !(self.skip_bad && self.size.is_some() && is_bad(sizes))
        {
            self.common = self.common.and_then(|common| common.intersect(sizes?));
        }
        if self.size.is_none() {
            self.sample_ids += counts.blocks.unwrap_or(0);
            self.sample.push(counts);
            // With a recorded block size, nothing has to be derived.
            let declared = counts.block_tokens.is_some();
            if declared || self.sample.len() >= SAMPLE_PROMPTS || self.sample_ids >= SAMPLE_IDS {
                self.settle();
            }
        }
        self.size.is_some()
    }

    /// Chooses the size from the prompts so far.
    pub fn settle(&mut self) {
        if self.size.is_some() {
            return;
        }
        let size = self.choose();
        self.size = Some(size);
        let sample = std::mem::take(&mut self.sample);
        if self.skip_bad && self.common.is_none_or(|common| !common.contains(size)) {
            let sizes = sample.iter().filter_map(|counts| self.row_sizes(*counts).flatten());
            self.common = sizes
                .filter(|sizes| sizes.contains(size))
                .try_fold(BlockSizes::ALL, |common, sizes| common.intersect(sizes));
        }
    }

    /// Returns the block size in tokens, once it is chosen.
    pub fn size(&self) -> Option<u64> {
        self.size
    }

    /// Returns the block sizes that fit all prompts so far; `None` if no size fits all.
    pub fn common_sizes(&self) -> Option<BlockSizes> {
        self.common
    }

    /// Returns the number of prompts that passed the check although their number of hashes does not
    /// match their length.
    pub fn mismatches(&self) -> u64 {
        self.mismatches
    }

    /// Checks a prompt that was added.
    ///
    /// # Errors
    /// The prompt is empty or too long, or its length does not match its number of blocks.
    pub fn check(&mut self, counts: PromptCounts) -> Result<CheckedPrompt, RowError> {
        let size = self.size.unwrap_or(1);
        let tokens = counts.tokens.or(counts.blocks.map(|blocks| blocks.saturating_mul(size))).unwrap_or(0);
        if tokens == 0 || tokens > TOKENS_MAX {
            return Err(RowError::PromptLength(tokens));
        }
        if let Some(found) = counts.block_tokens {
            if found == 0 || found > SIZE_MAX {
                return Err(RowError::BlockSize(found));
            }
            if found != size && self.given.is_none() {
                return Err(RowError::OtherBlockSize { found, used: size });
            }
        }
        let mut blocks = counts.blocks.unwrap_or(0);
        if counts.blocks.is_some() && !self.format.block_rule().fits(tokens, blocks, size) {
            // The proxy's tokenizer may differ from the one that counted the prompt.
            let has_size = counts.block_tokens.is_some() || self.given.is_some();
            let off = blocks.abs_diff(tokens.div_ceil(size));
            let is_tolerated =
                self.format == TraceFormat::LiteLlm && has_size && off <= (blocks / TOKENIZER_SHARE).max(1);
            if !is_tolerated {
                return Err(RowError::BlockCount(self.mismatch(tokens, blocks, size, counts)));
            }
            self.mismatches += 1;
            blocks = blocks.min(tokens.div_ceil(size));
        }
        Ok(CheckedPrompt { tokens, blocks, block_tokens: size })
    }

    fn mismatch(&self, tokens: u64, blocks: u64, size: u64, counts: PromptCounts) -> BlockCountError {
        let row_sizes = self.row_sizes(counts).flatten();
        let common_sizes = self.common.and_then(|common| common.intersect(row_sizes?));
        let suggested = common_sizes.map(|sizes| sizes.preferred(self.format.conventional_block_tokens()));
        BlockCountError { tokens, blocks, block_tokens: size, row_sizes, common_sizes, suggested }
    }

    /// Returns the block sizes that fit a prompt; the outer `None` without a token count or IDs.
    fn row_sizes(&self, counts: PromptCounts) -> Option<Option<BlockSizes>> {
        Some(self.format.block_rule().sizes(counts.tokens?, counts.blocks?))
    }

    /// Chooses the block size: as given, as recorded, or as derived from the sample.
    fn choose(&self) -> u64 {
        let recorded = || self.sample.iter().find_map(|counts| counts.block_tokens);
        if let Some(size) = self.given.or_else(recorded) {
            return size.max(1);
        }
        let conventional = self.format.conventional_block_tokens();
        if let Some(common) = self.common {
            return common.preferred(conventional);
        }
        // No size fits all prompts. The size that fits most of them is likely the right one.
        let sizes_of = |counts: &PromptCounts| self.row_sizes(*counts).flatten();
        let fits = |size: u64| {
            self.sample.iter().filter(|counts| sizes_of(counts).is_some_and(|sizes| sizes.contains(size))).count()
        };
        let smallest = self.sample.iter().find_map(sizes_of).map(|sizes| sizes.min);
        let powers = (0..=SIZE_MAX_LOG2).rev().map(|log2| 1 << log2);
        let sizes = conventional.into_iter().chain(powers).chain(smallest);
        // The first of equally good sizes.
        let best = sizes.map(|size| (fits(size), size)).reduce(|best, next| if next.0 > best.0 { next } else { best });
        best.map_or(1, |(_, size)| size)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(tokens: u64, blocks: u64) -> PromptCounts {
        PromptCounts { tokens: Some(tokens), blocks: Some(blocks), block_tokens: None }
    }

    #[test]
    fn size_is_derived_from_the_prompts_added_before_it_is_settled() {
        let mut check = SizeCheck::new(TraceFormat::Mooncake, None, false);
        assert!(!check.add(counts(48, 3)) && !check.add(counts(40, 3)));
        check.settle();
        assert_eq!(check.size(), Some(16));
        let checked = CheckedPrompt { tokens: 40, blocks: 3, block_tokens: 16 };
        assert_eq!(check.check(counts(40, 3)), Ok(checked));
        assert!(check.add(counts(64, 3)));
        assert!(matches!(check.check(counts(64, 3)), Err(RowError::BlockCount(count)) if count.suggested.is_none()));
    }

    #[test]
    fn recorded_size_is_known_at_once_and_a_given_size_overrides_it() {
        let recorded = PromptCounts { block_tokens: Some(64), ..counts(130, 2) };
        let mut check = SizeCheck::new(TraceFormat::Weka, None, false);
        assert!(check.add(recorded));
        assert_eq!(check.check(recorded), Ok(CheckedPrompt { tokens: 130, blocks: 2, block_tokens: 64 }));
        let mut check = SizeCheck::new(TraceFormat::Weka, Some(32), false);
        check.add(recorded);
        assert!(matches!(check.check(recorded), Err(RowError::BlockCount(count)) if count.suggested == Some(64)));
    }
}
