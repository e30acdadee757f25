//! Converts cache sizes in blocks to tokens and bytes of each tier.

use crate::commands::cli::error::Failure;
use crate::commands::size_hugepages::{Args, request};
use crate::engine::base::ByteSize;
use crate::engine::plan::host_pool::{self, L2Size};
use crate::engine::plan::tiers::{self, FILLED_PERCENT, StoredPage};

/// The size of a block in each tier.
#[derive(Clone, Copy, Debug)]
pub(super) struct TokenScale {
    pub block_tokens: u64,
    /// Number of ranks that share the L2 tokens.
    dcp: u64,
    /// The largest token size of any pipeline stage, which determines how many tokens fit into
    /// `--hicache-size`.
    l2_token_bytes: Option<u64>,
    stored: Option<StoredPage>,
}

impl TokenScale {
    /// The scale for the model of the command line; only tokens without a model.
    ///
    /// # Errors
    /// The model is unknown, or an argument is invalid.
    pub(super) fn new(args: &Args, block_tokens: u64) -> Result<TokenScale, Failure> {
        // Only the token size is needed, and it does not depend on the L2 size.
        let wanted = request::sized(args, L2Size::Gb(1))?.wanted;
        let mut scale = TokenScale { block_tokens, dcp: 1, l2_token_bytes: None, stored: None };
        if let Some(geometry) = wanted.geometry.as_ref().filter(|geometry| geometry.check_per_token().is_ok()) {
            let ranks = host_pool::pools(&wanted, geometry)?;
            scale.dcp = wanted.layout.dcp();
            scale.l2_token_bytes = ranks.iter().filter_map(|rank| Some(rank.pools.first()?.unit_bytes)).max();
            scale.stored = tiers::stored_page(wanted.page_size, geometry, &wanted.layout, wanted.cache)?;
        }
        Ok(scale)
    }

    pub(super) fn tokens(&self, blocks: u64) -> u64 {
        blocks.saturating_mul(self.block_tokens)
    }

    /// `tokens` in whole blocks, rounded down.
    pub(super) fn blocks(&self, tokens: u64) -> u64 {
        tokens / self.block_tokens.max(1)
    }

    /// The `--hicache-size` that holds `blocks`, in decimal GB per rank, for a server with one
    /// group.
    pub(super) fn hicache_gb(&self, blocks: u64) -> Option<u64> {
        let bytes = u128::from(self.tokens(blocks)) * u128::from(self.l2_token_bytes?);
        Some(narrow(bytes.div_ceil(u128::from(host_pool::GB) * u128::from(self.dcp))))
    }

    /// Number of blocks that an L2 of `gb` GB per rank holds.
    pub(super) fn l2_blocks(&self, gb: u64) -> Option<u64> {
        let bytes = u128::from(gb) * u128::from(host_pool::GB) * u128::from(self.dcp);
        Some(self.blocks(narrow(bytes / u128::from(self.l2_token_bytes?.max(1)))))
    }

    /// The total size of all segments that holds `blocks`, at 90 % usage.
    pub(super) fn segment_bytes(&self, blocks: u64) -> Option<u64> {
        let bytes = u128::from(self.tokens(blocks)) * u128::from(self.stored?.token_bytes);
        Some(narrow((bytes * 100).div_ceil(u128::from(FILLED_PERCENT))))
    }

    /// Number of blocks per GiB of segments.
    pub(super) fn blocks_per_gib(&self) -> Option<f64> {
        let token_bytes = self.stored?.token_bytes.max(1) as f64;
        Some(ByteSize::GIB as f64 * FILLED_PERCENT as f64 / 100.0 / token_bytes / self.block_tokens.max(1) as f64)
    }
}

fn narrow(value: u128) -> u64 {
    u64::try_from(value).unwrap_or(u64::MAX)
}
