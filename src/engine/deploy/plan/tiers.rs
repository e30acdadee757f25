//! The capacity of a tier in tokens, pages, keys and conversations.
//!
//! Keys per page (`sglang/srt/mem_cache/storage/mooncake_store/mooncake_store.py`): with heads, two
//! (`_k`, `_v`) per rank in a group. With a latent cache, one per pipeline stage and DCP shard, or
//! two if the model has an indexer.

use crate::plan::SizingError;
use crate::plan::error::narrow;
use crate::plan::geometry::{CacheType, Geometry};
use crate::plan::layout::ParallelLayout;

/// The percentage of segment capacity that stays in use: the master evicts above 90%
/// (`eviction_high_watermark_ratio`).
pub const FILLED_PERCENT: u64 = 90;

/// A page of tokens as stored in L3.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoredPage {
    /// Bytes per token, summed over all ranks in a group.
    pub token_bytes: u64,
    pub keys: u64,
    /// Size of the largest object, in bytes.
    pub object_bytes: u64,
}

/// The capacity of a tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TierCapacity {
    pub tokens: u64,
    pub pages: u64,
    /// Objects; 0 for a tier without objects.
    pub keys: u64,
    pub conversations: u64,
}

/// Computes a page in L3 for this model and layout. `page_size` is the value from the command line,
/// which DCP multiplies.
///
/// # Errors
/// A value overflows.
pub fn stored_page(
    page_size: u64,
    geometry: &Geometry,
    layout: &ParallelLayout,
    cache: CacheType,
) -> Result<StoredPage, SizingError> {
    let mut token_bytes = 0u128;
    let mut object = 0u64;
    let mut keys = 0;
    for stage in 0..layout.pp() {
        let layers = layout.layers_of_stage(geometry.layers, stage)?;
        let own = geometry.token_bytes(layers, layout.attention_tp(), cache)?;
        let index = geometry.indexer_token_bytes(layers)?;
        if geometry.is_latent() {
            token_bytes += u128::from(own) + u128::from(index);
            // With decode context parallelism each rank stores a shard; every shard has the same
            // size as a page without DCP.
            keys += (1 + u64::from(index > 0)) * layout.dcp();
            object = object.max(own);
        } else {
            token_bytes += u128::from(own) * u128::from(layout.attention_tp());
            keys += 2 * layout.attention_tp();
            object = object.max(own / 2);
        }
    }
    let object_bytes = narrow(u128::from(object) * u128::from(page_size), "the object size")?;
    Ok(StoredPage { token_bytes: narrow(token_bytes, "the cache size per token")?, keys, object_bytes })
}

/// The capacity of segments with a total of `bytes` bytes, filled to [`FILLED_PERCENT`].
pub fn l3(bytes: u64, page_size: u64, page: &StoredPage, conversation: u64) -> TierCapacity {
    let usable = u128::from(bytes) * u128::from(FILLED_PERCENT) / 100;
    let tokens = u64::try_from(usable / u128::from(page.token_bytes.max(1))).unwrap_or(u64::MAX);
    let pages = tokens / page_size.max(1);
    holding(pages, page_size, page.keys, conversation)
}

/// The capacity of `pages` pages of `page_size` tokens with `keys` objects each.
pub fn holding(pages: u64, page_size: u64, keys: u64, conversation: u64) -> TierCapacity {
    let tokens = pages.saturating_mul(page_size);
    // Only full pages are stored, so a conversation uses whole pages.
    let conversations = pages / (conversation / page_size.max(1)).max(1);
    TierCapacity { tokens, pages, keys: pages.saturating_mul(keys), conversations }
}

/// Published values for comparison: the RBG project's KEP-74 shows a master with Qwen3-32B, page
/// size 1 and one GPU.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Kep74 {
    /// Number of keys in that master's log.
    pub keys: u64,
    /// Memory in use according to that master's log, in hundredths of a GiB.
    pub shown_gib_hundredths: u64,
    /// Computed size of these keys, in bytes.
    pub bytes: u64,
    /// Difference between reported and computed size, in hundredths of a percent of `bytes`. Its
    /// cause is unknown.
    pub unexplained_hundredths_percent: u64,
}

/// Compares KEP-74 with the computed size, for objects of `object_bytes` bytes.
pub fn kep74(object_bytes: u64) -> Kep74 {
    let keys = 219_474;
    let bytes = keys * object_bytes;
    let shown = 2_696u64;
    let shown_bytes = (u128::from(shown) << 30) / 100;
    let surplus = shown_bytes.saturating_sub(u128::from(bytes)) * 20_000 / u128::from(bytes.max(1));
    let unexplained_hundredths_percent = u64::try_from(surplus.div_ceil(2)).unwrap_or(u64::MAX);
    Kep74 { keys, shown_gib_hundredths: shown, bytes, unexplained_hundredths_percent }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::models;

    fn page(model: &str, tp: u64, pp: u64, size: u64) -> StoredPage {
        let layout = ParallelLayout::new(tp, pp, 1, false, 1).unwrap();
        stored_page(size, &models::by_name(model).unwrap().geometry, &layout, CacheType::Half).unwrap()
    }

    #[test]
    fn keys_and_objects_match_sglang() {
        assert_eq!(page("Qwen3-32B", 1, 1, 1), StoredPage { token_bytes: 262_144, keys: 2, object_bytes: 131_072 });
        assert_eq!(page("Qwen3-32B", 4, 2, 64).keys, 16);
        assert_eq!(page("DeepSeek-V3", 8, 1, 64), StoredPage { token_bytes: 70_272, keys: 1, object_bytes: 4_497_408 });
        assert_eq!(page("DeepSeek-V3.2", 8, 2, 64).keys, 4);
        // With more ranks than heads, each head is stored more than once.
        assert_eq!(page("Qwen3-235B", 8, 1, 1).token_bytes, 2 * page("Qwen3-235B", 4, 1, 1).token_bytes);
    }

    #[test]
    fn dcp_multiplies_keys_of_equal_size() {
        let layout = ParallelLayout::new(8, 1, 1, false, 1).unwrap().with_dcp(4).unwrap();
        let geometry = models::by_name("DeepSeek-V3").unwrap().geometry;
        let page = stored_page(64, &geometry, &layout, CacheType::Half).unwrap();
        assert_eq!(page, StoredPage { token_bytes: 70_272, keys: 4, object_bytes: 4_497_408 });
    }

    #[test]
    fn a_segment_of_100_gib_holds_the_reference_tokens() {
        let hundred = 100 << 30;
        assert_eq!(l3(hundred, 1, &page("Qwen3-32B", 4, 1, 1), 1).tokens, 368_640);
        assert_eq!(l3(hundred, 1, &page("DeepSeek-V3", 8, 1, 1), 1).tokens, 1_375_181);
    }

    #[test]
    fn conversations_use_whole_pages() {
        let held = holding(1_000, 64, 8, 8_192);
        assert_eq!((held.tokens, held.keys, held.conversations), (64_000, 8_000, 7));
        assert_eq!(holding(10, 64, 1, 5).conversations, 10);
    }

    #[test]
    fn kep_74_shows_more_bytes_than_its_keys_need() {
        let kep = kep74(page("Qwen3-32B", 1, 1, 1).object_bytes);
        assert_eq!((kep.bytes, kep.unexplained_hundredths_percent), (28_766_896_128, 63));
    }
}
