//! What a tier holds: tokens, pages, keys, conversations.
//!
//! Keys per page: `sglang/srt/mem_cache/storage/mooncake_store/mooncake_store.py`: two (`_k`, `_v`) per rank of a group with heads; one
//! per pipeline stage with a latent cache, as often as its rows are shared out (DCP), and one more with an indexer.

use crate::engine::plan::PlanError;
use crate::engine::plan::error::narrow;
use crate::engine::plan::geometry::{CacheType, Geometry};
use crate::engine::plan::layout::Layout;

/// The share of the segments that stays filled, in percent: the master evicts from 90 % on (`eviction_high_watermark_ratio`).
pub const FILLED_PERCENT: u64 = 90;

/// What a page of tokens is in L3.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoredPage {
    /// Bytes per token, all ranks of a group together.
    pub token_bytes: u64,
    /// Objects per page.
    pub keys: u64,
    /// Bytes of the largest object.
    pub object_bytes: u64,
}

/// What a tier holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holding {
    /// Tokens.
    pub tokens: u64,
    /// Whole pages.
    pub pages: u64,
    /// Objects; 0 where there are none.
    pub keys: u64,
    pub conversations: u64,
}

/// What a page is in L3 for this model and layout; `page_size` is that of the command line, which DCP widens.
///
/// # Errors
/// Figures are absurd.
pub fn stored_page(
    page_size: u64,
    geometry: &Geometry,
    layout: &Layout,
    cache: CacheType,
) -> Result<StoredPage, PlanError> {
    let mut token_bytes = 0u128;
    let mut object = 0u64;
    let mut keys = 0;
    for stage in 0..layout.pp() {
        let layers = layout.layers_of_stage(geometry.layers, stage)?;
        let own = geometry.token_bytes(layers, layout.attention_tp(), cache)?;
        let index = geometry.indexer_token_bytes(layers)?;
        if geometry.is_latent() {
            token_bytes += u128::from(own) + u128::from(index);
            // A shard of the rows each, with decode context parallelism; every shard of a page is as large as a page without.
            keys += (1 + u64::from(index > 0)) * layout.dcp();
            object = object.max(own);
        } else {
            token_bytes += u128::from(own) * u128::from(layout.attention_tp());
            keys += 2 * layout.attention_tp();
            object = object.max(own / 2);
        }
    }
    let object_bytes = narrow(u128::from(object) * u128::from(page_size), "an object")?;
    Ok(StoredPage { token_bytes: narrow(token_bytes, "the cache of a token")?, keys, object_bytes })
}

/// What `bytes` of segments hold, filled to [`FILLED_PERCENT`].
pub fn l3(bytes: u64, page_size: u64, page: &StoredPage, conversation: u64) -> Holding {
    let usable = u128::from(bytes) * u128::from(FILLED_PERCENT) / 100;
    let tokens = u64::try_from(usable / u128::from(page.token_bytes.max(1))).unwrap_or(u64::MAX);
    let pages = tokens / page_size.max(1);
    holding(pages, page_size, page.keys, conversation)
}

/// `pages` of `page_size` tokens with `keys` objects each.
pub fn holding(pages: u64, page_size: u64, keys: u64, conversation: u64) -> Holding {
    let tokens = pages.saturating_mul(page_size);
    // Only full pages are kept, so a conversation takes whole ones.
    let conversations = pages / (conversation / page_size.max(1)).max(1);
    Holding { tokens, pages, keys: pages.saturating_mul(keys), conversations }
}

/// A published figure that the arithmetic can be held against: KEP-74 of the RBG project shows a master with Qwen3-32B, page size 1,
/// one GPU.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Kep74 {
    /// Keys in its log.
    pub keys: u64,
    /// GiB that its log shows as used, in hundredths.
    pub shown_gib_hundredths: u64,
    /// Bytes that so many keys take.
    pub bytes: u64,
    /// What is left over, in hundredths of a percent of our figure. No source explains it.
    pub unexplained_hundredths_percent: u64,
}

/// KEP-74's figure beside ours, for objects of `object_bytes`.
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
    use crate::engine::plan::models;

    fn page(model: &str, tp: u64, pp: u64, size: u64) -> StoredPage {
        let layout = Layout::new(tp, pp, 1, false, 1).unwrap();
        stored_page(size, &models::by_name(model).unwrap().geometry, &layout, CacheType::Half).unwrap()
    }

    #[test]
    fn keys_and_objects_are_those_of_sglang() {
        assert_eq!(page("Qwen3-32B", 1, 1, 1), StoredPage { token_bytes: 262_144, keys: 2, object_bytes: 131_072 });
        assert_eq!(page("Qwen3-32B", 4, 2, 64).keys, 16);
        assert_eq!(page("DeepSeek-V3", 8, 1, 64), StoredPage { token_bytes: 70_272, keys: 1, object_bytes: 4_497_408 });
        assert_eq!(page("DeepSeek-V3.2", 8, 2, 64).keys, 4);
        // Beyond as many ranks as heads they are stored several times.
        assert_eq!(page("Qwen3-235B", 8, 1, 1).token_bytes, 2 * page("Qwen3-235B", 4, 1, 1).token_bytes);
    }

    #[test]
    fn rows_that_are_shared_out_are_more_keys_of_the_same_bytes() {
        let layout = Layout::new(8, 1, 1, false, 1).unwrap().with_dcp(4).unwrap();
        let geometry = models::by_name("DeepSeek-V3").unwrap().geometry;
        let page = stored_page(64, &geometry, &layout, CacheType::Half).unwrap();
        assert_eq!(page, StoredPage { token_bytes: 70_272, keys: 4, object_bytes: 4_497_408 });
    }

    #[test]
    fn a_segment_of_100_gib_holds_the_tokens_of_the_reference() {
        let hundred = 100 << 30;
        assert_eq!(l3(hundred, 1, &page("Qwen3-32B", 4, 1, 1), 1).tokens, 368_640);
        assert_eq!(l3(hundred, 1, &page("DeepSeek-V3", 8, 1, 1), 1).tokens, 1_375_181);
    }

    #[test]
    fn conversations_take_whole_pages() {
        let held = holding(1_000, 64, 8, 8_192);
        assert_eq!((held.tokens, held.keys, held.conversations), (64_000, 8_000, 7));
        assert_eq!(holding(10, 64, 1, 5).conversations, 10);
    }

    #[test]
    fn kep_74_shows_more_than_its_keys_take_by_what_nothing_explains() {
        let kep = kep74(page("Qwen3-32B", 1, 1, 1).object_bytes);
        assert_eq!((kep.bytes, kep.unexplained_hundredths_percent), (28_766_896_128, 63));
    }
}
