//! A rank's L2 pool: the tokens, pages and bytes that result from `--hicache-size` or
//! `--hicache-ratio`.
//!
//! Source: `sglang/srt/mem_cache/pool_host/base.py`, `HostKVCache.__init__`.

use crate::plan::SizingError;
use crate::plan::error::narrow;
use crate::plan::geometry::{CacheType, Geometry};
use crate::plan::layout::ParallelLayout;

/// The setting that determines the size of the pool.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum L2Size {
    /// `--hicache-size`, in decimal GB per rank.
    Gb(u64),
    /// `--hicache-ratio`, the pool size relative to the device pool.
    Ratio {
        ratio: f64,
        /// Capacity of the device pool, in tokens (`max_total_num_tokens` in SGLang's log).
        device_tokens: u64,
    },
}

/// A rank's pool and its side pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostPool {
    /// Key and value bytes per token.
    pub token_bytes: u64,
    /// Side pool bytes per token (for the sparse attention indexer); 0 without a side pool.
    pub side_token_bytes: u64,
    /// Capacity in tokens; a multiple of the page size.
    pub tokens: u64,
    /// Pages, including the padding page.
    pub pages: u64,
    /// Size of the single buffer for keys and values, in bytes.
    pub bytes: u64,
    /// Size of the side pool's buffer, in bytes; 0 without a side pool.
    pub side_bytes: u64,
}

/// Maximum number of tokens: 2^48 one-byte tokens fill a host's address space.
const TOKENS_MAX: u128 = 1 << 48;

/// The number of tokens before padding.
fn wanted_tokens(l2_size: L2Size, token_bytes: u64) -> Result<u64, SizingError> {
    match l2_size {
        L2Size::Gb(gb) => {
            let bytes = u128::from(gb) * 1_000_000_000;
            let tokens =
                bytes.checked_div(u128::from(token_bytes)).ok_or(SizingError::Zero { what: "the token size" })?;
            narrow(tokens, "the L2 pool size")
        }
        L2Size::Ratio { ratio, device_tokens } => {
            if !ratio.is_finite() || ratio <= 0.0 {
                return Err(SizingError::Ratio);
            }
            let tokens = device_tokens as f64 * ratio;
            if tokens >= TOKENS_MAX as f64 {
                return Err(SizingError::TooLarge { what: "the L2 pool size" });
            }
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "positive and below 2^48")]
            Ok(tokens as u64)
        }
    }
}

/// The pool's capacity for a ratio, in tokens, including the padding page. It does not depend on
/// the model.
///
/// # Errors
/// The ratio is not a positive number, or the result overflows.
pub fn ratio_tokens(ratio: f64, device_tokens: u64, page_size: u64) -> Result<u64, SizingError> {
    let pages = wanted_tokens(L2Size::Ratio { ratio, device_tokens }, 1)?
        .checked_div(page_size)
        .ok_or(SizingError::Zero { what: "the page size" })?;
    narrow((u128::from(pages) + 1) * u128::from(page_size), "the L2 pool size")
}

/// Computes the pools of one rank per pipeline stage.
///
/// With a fixed size, every stage gets the number of tokens that fit in the stage with the most
/// bytes per token (`sync_fixed_hicache_size`). SGLang always adds one page, so the pool exceeds
/// the configured size by up to one page.
///
/// The side pool holds the main pool's tokens plus one page (`dsa.py`, `indexer_page_num`). It is
/// not part of the configured size.
///
/// # Errors
/// SGLang rejects the combination, or a value overflows.
pub fn pools(
    l2_size: L2Size,
    page_size: u64,
    geometry: &Geometry,
    layout: &ParallelLayout,
    cache: CacheType,
) -> Result<Vec<HostPool>, SizingError> {
    if page_size == 0 {
        return Err(SizingError::Zero { what: "the page size" });
    }
    let mut stages = Vec::new();
    let mut least: Option<u64> = None;
    for stage in 0..layout.pp() {
        let layers = layout.layers_of_stage(geometry.layers, stage)?;
        let token_bytes = geometry.token_bytes(layers, layout.attention_tp(), cache)?;
        let tokens = wanted_tokens(l2_size, token_bytes)?;
        least = Some(least.map_or(tokens, |l| l.min(tokens)));
        stages.push((token_bytes, geometry.indexer_token_bytes(layers)?));
    }
    let pages = least.unwrap_or(0) / page_size + 1;
    let tokens = u128::from(pages) * u128::from(page_size);
    if tokens > TOKENS_MAX {
        return Err(SizingError::TooLarge { what: "the L2 pool size" });
    }
    let side_pages = (tokens + u128::from(page_size) + 1) / u128::from(page_size);
    let pool = |(token_bytes, side_token_bytes): (u64, u64)| {
        Ok(HostPool {
            token_bytes,
            side_token_bytes,
            tokens: narrow(tokens, "the L2 pool size")?,
            pages,
            bytes: narrow(tokens * u128::from(token_bytes), "the L2 pool size")?,
            side_bytes: narrow(
                side_pages * u128::from(page_size) * u128::from(side_token_bytes),
                "the side pool size",
            )?,
        })
    };
    stages.into_iter().map(pool).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::models;
    use proptest::prelude::*;

    fn one(model: &str, tp: u64, page: u64, l2_size: L2Size) -> HostPool {
        let layout = ParallelLayout::new(tp, 1, 1, false, 1).unwrap();
        let geometry = models::by_name(model).unwrap().geometry;
        pools(l2_size, page, &geometry, &layout, CacheType::Half).unwrap()[0]
    }

    #[test]
    fn pools_match_sglang_0_5_23() {
        // Each row lists the model, tp, page size and size in GB, then the tokens, pages and bytes
        // that SGLang's own class computes.
        for (model, tp, page, gb, tokens, pages, bytes) in [
            ("Qwen3-32B", 1, 1, 30, 114_441, 114_441, 30_000_021_504),
            ("Qwen3-32B", 1, 64, 30, 114_496, 1_789, 30_014_439_424),
            ("Qwen3-32B", 1, 64, 1, 3_840, 60, 1_006_632_960),
            ("Qwen3-32B", 4, 64, 30, 457_792, 7_153, 30_001_856_512),
            ("Qwen3-32B", 8, 64, 1, 30_528, 477, 1_000_341_504),
            ("Qwen3-32B", 4, 64, 64, 976_576, 15_259, 64_000_884_736),
            ("DeepSeek-V3", 8, 64, 30, 426_944, 6_671, 30_002_208_768),
            ("DeepSeek-V3", 1, 1, 1, 14_231, 14_231, 1_000_040_832),
        ] {
            let pool = one(model, tp, page, L2Size::Gb(gb));
            assert_eq!((pool.tokens, pool.pages, pool.bytes), (tokens, pages, bytes), "{model} tp{tp} page {page}");
        }
        let pool = one("Qwen3-32B", 1, 64, L2Size::Ratio { ratio: 2.0, device_tokens: 100_000 });
        assert_eq!((pool.tokens, pool.pages), (200_064, 3_126));
        assert_eq!(ratio_tokens(2.0, 100_000, 64), Ok(200_064));
        // From SGLang's log, for a device pool of 4096 tokens with 16-token pages.
        assert_eq!(ratio_tokens(2.0, 4_096, 16), Ok(8_208));
    }

    #[test]
    fn the_index_of_sparse_attention_is_added() {
        let pool = one("DeepSeek-V3.2", 8, 64, L2Size::Gb(30));
        assert_eq!((pool.bytes, pool.side_token_bytes), (30_002_208_768, 8_052));
        assert_eq!(pool.side_bytes, (pool.tokens + 64) * 8_052);
    }

    #[test]
    fn all_stages_hold_as_many_tokens_as_the_largest_one() {
        let layout = ParallelLayout::new(1, 4, 1, false, 1).unwrap();
        let geometry = models::by_name("Qwen3-Coder-480B").unwrap().geometry;
        let pools = pools(L2Size::Gb(10), 64, &geometry, &layout, CacheType::Half).unwrap();
        assert!(pools.iter().all(|pool| pool.tokens == pools[3].tokens));
        assert!(pools[0].bytes < pools[3].bytes && pools[3].bytes > 10_000_000_000);
    }

    #[test]
    fn a_ratio_must_be_positive() {
        let layout = ParallelLayout::new(1, 1, 1, false, 1).unwrap();
        let geometry = models::by_name("Qwen3-8B").unwrap().geometry;
        for ratio in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            let l2_size = L2Size::Ratio { ratio, device_tokens: 5 };
            assert_eq!(pools(l2_size, 1, &geometry, &layout, CacheType::Half), Err(SizingError::Ratio));
        }
    }

    proptest! {
        #[test]
        fn the_pool_exceeds_the_size_by_at_most_a_page(
            gb in 1u64..2_000, page in 1u64..512, tp in 1u64..9, layers in 1u64..130, kv in 1u64..33
        ) {
            let attention = crate::plan::geometry::Attention::Heads { kv_heads: kv, head_dim: 128, v_head_dim: 128 };
            let geometry = Geometry { layers, window_layers: 0, attention };
            let layout = ParallelLayout::new(tp, 1, 1, false, 1).unwrap();
            let pool = pools(L2Size::Gb(gb), page, &geometry, &layout, CacheType::Half).unwrap()[0];
            let l2_size = gb * 1_000_000_000;
            let page_bytes = page * pool.token_bytes;
            prop_assert!(pool.bytes > l2_size && pool.bytes <= l2_size + page_bytes);
            prop_assert_eq!(pool.tokens, pool.pages * page);
        }
    }
}
