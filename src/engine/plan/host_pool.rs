//! The L2 pool of a rank: how many tokens `--hicache-size` or `--hicache-ratio` give, in pages, and their bytes.
//!
//! Source: `sglang/srt/mem_cache/pool_host/base.py`, `HostKVCache.__init__`.

use crate::engine::plan::PlanError;
use crate::engine::plan::error::narrow;
use crate::engine::plan::geometry::{CacheType, Geometry};
use crate::engine::plan::layout::Layout;

/// What decides the size of the pool.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Wish {
    /// `--hicache-size`, decimal GB per rank.
    Gb(u64),
    /// `--hicache-ratio` of the device's pool.
    Ratio {
        /// The ratio.
        ratio: f64,
        /// Tokens of the device's pool (`max_total_num_tokens` in SGLang's log).
        device_tokens: u64,
    },
}

/// The pool of a rank, and what lies beside it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostPool {
    /// Bytes per token of keys and values.
    pub token_bytes: u64,
    /// Bytes per token of the side pool (the indexer of sparse attention); 0 without one.
    pub side_token_bytes: u64,
    /// Tokens it holds; a multiple of the page size.
    pub tokens: u64,
    /// Pages, the padding one included.
    pub pages: u64,
    /// Bytes of the one buffer for keys and values.
    pub bytes: u64,
    /// Bytes of the side pool's buffer; 0 without one.
    pub side_bytes: u64,
}

/// Tokens above this are absurd: 2^48 of one byte are a host's whole address space.
const TOKENS_MAX: u128 = 1 << 48;

/// Tokens before padding that `wish` gives at `token_bytes`.
fn wanted_tokens(wish: Wish, token_bytes: u64) -> Result<u64, PlanError> {
    match wish {
        Wish::Gb(gb) => {
            let bytes = u128::from(gb) * 1_000_000_000;
            let tokens = bytes.checked_div(u128::from(token_bytes)).ok_or(PlanError::Zero { what: "a token" })?;
            narrow(tokens, "the L2 pool")
        }
        Wish::Ratio { ratio, device_tokens } => {
            if !ratio.is_finite() || ratio <= 0.0 {
                return Err(PlanError::Ratio);
            }
            let tokens = device_tokens as f64 * ratio;
            if tokens >= TOKENS_MAX as f64 {
                return Err(PlanError::TooLarge { what: "the L2 pool" });
            }
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "positive and below 2^48")]
            Ok(tokens as u64)
        }
    }
}

/// Tokens of the pool that `ratio` gives, the padding page included: no model is needed for that.
///
/// # Errors
/// The ratio is none, or figures are absurd.
pub fn ratio_tokens(ratio: f64, device_tokens: u64, page_size: u64) -> Result<u64, PlanError> {
    let pages = wanted_tokens(Wish::Ratio { ratio, device_tokens }, 1)?
        .checked_div(page_size)
        .ok_or(PlanError::Zero { what: "the page size" })?;
    narrow((u128::from(pages) + 1) * u128::from(page_size), "the L2 pool")
}

/// The pools of a rank of each pipeline stage.
///
/// A size gives every stage as many tokens as the stage with the largest token can hold (`sync_fixed_hicache_size`). One page more
/// than fits is always added, so that the pool exceeds the wish by up to a page.
///
/// The side pool has room for the anchor's tokens and a page more again (`dsa.py`, `indexer_page_num`), on top of the size.
///
/// # Errors
/// Nothing fits together, or figures are absurd.
pub fn pools(
    wish: Wish,
    page_size: u64,
    geometry: &Geometry,
    layout: &Layout,
    cache: CacheType,
) -> Result<Vec<HostPool>, PlanError> {
    if page_size == 0 {
        return Err(PlanError::Zero { what: "the page size" });
    }
    let mut stages = Vec::new();
    let mut least: Option<u64> = None;
    for stage in 0..layout.pp() {
        let layers = layout.layers_of_stage(geometry.layers, stage)?;
        let token_bytes = geometry.token_bytes(layers, layout.attention_tp(), cache)?;
        let tokens = wanted_tokens(wish, token_bytes)?;
        least = Some(least.map_or(tokens, |l| l.min(tokens)));
        stages.push((token_bytes, geometry.indexer_token_bytes(layers)?));
    }
    let pages = least.unwrap_or(0) / page_size + 1;
    let tokens = u128::from(pages) * u128::from(page_size);
    if tokens > TOKENS_MAX {
        return Err(PlanError::TooLarge { what: "the L2 pool" });
    }
    let side_pages = (tokens + u128::from(page_size) + 1) / u128::from(page_size);
    let pool = |(token_bytes, side_token_bytes): (u64, u64)| {
        Ok(HostPool {
            token_bytes,
            side_token_bytes,
            tokens: narrow(tokens, "the L2 pool")?,
            pages,
            bytes: narrow(tokens * u128::from(token_bytes), "the L2 pool")?,
            side_bytes: narrow(side_pages * u128::from(page_size) * u128::from(side_token_bytes), "the side pool")?,
        })
    };
    stages.into_iter().map(pool).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::plan::models;
    use proptest::prelude::*;

    fn one(model: &str, tp: u64, page: u64, wish: Wish) -> HostPool {
        let layout = Layout::new(tp, 1, 1, false, 1).unwrap();
        let geometry = models::by_name(model).unwrap().geometry;
        pools(wish, page, &geometry, &layout, CacheType::Half).unwrap()[0]
    }

    #[test]
    fn the_pool_is_what_sglang_0_5_23_allocates() {
        // Model, tp, page size, GB; tokens, pages, bytes of SGLang's own class.
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
            let pool = one(model, tp, page, Wish::Gb(gb));
            assert_eq!((pool.tokens, pool.pages, pool.bytes), (tokens, pages, bytes), "{model} tp{tp} page {page}");
        }
        let pool = one("Qwen3-32B", 1, 64, Wish::Ratio { ratio: 2.0, device_tokens: 100_000 });
        assert_eq!((pool.tokens, pool.pages), (200_064, 3_126));
        assert_eq!(ratio_tokens(2.0, 100_000, 64), Ok(200_064));
        // What SGLang's log says of a pool of 4096 tokens in pages of 16.
        assert_eq!(ratio_tokens(2.0, 4_096, 16), Ok(8_208));
    }

    #[test]
    fn the_index_of_sparse_attention_comes_on_top() {
        let pool = one("DeepSeek-V3.2", 8, 64, Wish::Gb(30));
        assert_eq!((pool.bytes, pool.side_token_bytes), (30_002_208_768, 8_052));
        assert_eq!(pool.side_bytes, (pool.tokens + 64) * 8_052);
    }

    #[test]
    fn stages_hold_as_many_tokens_as_the_one_with_the_largest_token() {
        let layout = Layout::new(1, 4, 1, false, 1).unwrap();
        let geometry = models::by_name("Qwen3-Coder-480B").unwrap().geometry;
        let pools = pools(Wish::Gb(10), 64, &geometry, &layout, CacheType::Half).unwrap();
        assert!(pools.iter().all(|pool| pool.tokens == pools[3].tokens));
        assert!(pools[0].bytes < pools[3].bytes && pools[3].bytes > 10_000_000_000);
    }

    #[test]
    fn a_ratio_must_be_a_number_above_zero() {
        let layout = Layout::new(1, 1, 1, false, 1).unwrap();
        let geometry = models::by_name("Qwen3-8B").unwrap().geometry;
        for ratio in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            let wish = Wish::Ratio { ratio, device_tokens: 5 };
            assert_eq!(pools(wish, 1, &geometry, &layout, CacheType::Half), Err(PlanError::Ratio));
        }
    }

    proptest! {
        #[test]
        fn the_pool_exceeds_the_wish_by_at_most_a_page(
            gb in 1u64..2_000, page in 1u64..512, tp in 1u64..9, layers in 1u64..130, kv in 1u64..33
        ) {
            let attention = crate::engine::plan::geometry::Attention::Heads { kv_heads: kv, head_dim: 128, v_head_dim: 128 };
            let geometry = Geometry { layers, window_layers: 0, attention };
            let layout = Layout::new(tp, 1, 1, false, 1).unwrap();
            let pool = pools(Wish::Gb(gb), page, &geometry, &layout, CacheType::Half).unwrap()[0];
            let (wish, page_bytes) = (gb * 1_000_000_000, page * pool.token_bytes);
            prop_assert!(pool.bytes > wish && pool.bytes <= wish + page_bytes);
            prop_assert_eq!(pool.tokens, pool.pages * page);
        }
    }
}
