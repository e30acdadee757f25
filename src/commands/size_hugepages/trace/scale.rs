//! Converts cache sizes in tokens to bytes of each tier.

use crate::commands::cli::error::Failure;
use crate::commands::size_hugepages::{Args, request};
use crate::engine::base::ByteSize;
use crate::engine::plan::host_pool::{self, L2Size};
use crate::engine::plan::tiers::{self, FILLED_PERCENT, StoredPage};

/// The size of a token in each tier.
#[derive(Clone, Copy, Debug)]
pub(super) struct TokenScale {
    /// Number of ranks that share the L2 tokens.
    dcp: u64,
    /// The largest token size of any pipeline stage, which determines how many tokens fit into
    /// `--hicache-size`.
    l2_token_bytes: Option<u64>,
    stored: Option<StoredPage>,
}

impl TokenScale {
    /// The scale for the model of the command line; without a model, it has no bytes.
    ///
    /// # Errors
    /// The model is unknown, or an argument is invalid.
    pub(super) fn new(args: &Args) -> Result<TokenScale, Failure> {
        // Only the token size is needed, and it does not depend on the L2 size.
        let wanted = request::sized(args, L2Size::Gb(1))?.wanted;
        let mut scale = TokenScale { dcp: 1, l2_token_bytes: None, stored: None };
        if let Some(geometry) = wanted.geometry.as_ref().filter(|geometry| geometry.check_per_token().is_ok()) {
            let ranks = host_pool::pools(&wanted, geometry)?;
            scale.dcp = wanted.layout.dcp();
            scale.l2_token_bytes = ranks.iter().filter_map(|rank| Some(rank.pools.first()?.unit_bytes)).max();
            scale.stored = tiers::stored_page(wanted.page_size, geometry, &wanted.layout, wanted.cache)?;
        }
        Ok(scale)
    }

    /// The `--hicache-size` that holds `tokens`, in decimal GB per rank, for a server with one
    /// group.
    pub(super) fn hicache_gb(&self, tokens: u64) -> Option<u64> {
        let bytes = u128::from(tokens) * u128::from(self.l2_token_bytes?);
        Some(narrow(bytes.div_ceil(u128::from(host_pool::GB) * u128::from(self.dcp))))
    }

    /// The total size of all segments that holds `tokens`, at 90 % usage.
    pub(super) fn segment_bytes(&self, tokens: u64) -> Option<u64> {
        let bytes = u128::from(tokens) * u128::from(self.stored?.token_bytes);
        Some(narrow((bytes * 100).div_ceil(u128::from(FILLED_PERCENT))))
    }

    /// Number of tokens per GiB of segments.
    pub(super) fn tokens_per_gib(&self) -> Option<f64> {
        let token_bytes = self.stored?.token_bytes.max(1) as f64;
        Some(ByteSize::GIB as f64 * FILLED_PERCENT as f64 / 100.0 / token_bytes)
    }
}

fn narrow(value: u128) -> u64 {
    u64::try_from(value).unwrap_or(u64::MAX)
}
