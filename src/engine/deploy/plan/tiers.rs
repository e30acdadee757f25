//! Objects in L3, and the capacity of a tier in tokens, pages, keys and conversations.

use crate::plan::SizingError;
use crate::plan::error::narrow;
use crate::plan::geometry::{CacheType, Geometry, PoolKind, PoolShape, TokenRow};
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

/// What an object in L3 is stored for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoredFor {
    /// Every page of tokens.
    Page,
    /// Pages in the window of a prefix.
    WindowPage,
    /// A prefix.
    Prefix,
}

/// The objects of one pool in L3, for one page or prefix, over all ranks in a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredObjects {
    pub pool: PoolKind,
    /// The end of the key, after the suffixes of ranks and stages (`_k`, `_swa_v`, `_conv_0`).
    pub suffix: String,
    pub stored_for: StoredFor,
    /// Number of objects.
    pub objects: u64,
    /// Size of the largest of them, in bytes.
    pub bytes: u64,
}

/// Computes the objects that a group of ranks stores, in the order of the pools.
///
/// Source: `sglang/srt/mem_cache/storage/mooncake_store/mooncake_store.py`: with heads, two (`_k`,
/// `_v`) per rank. With a latent cache, one per pipeline stage and DCP shard. Indexes and
/// compressed pools have one object per stage, and states one per buffer and rank.
///
/// # Errors SGLang rejects the layout, or a value overflows.
pub fn stored_objects(
    page_size: u64,
    geometry: &Geometry,
    layout: &ParallelLayout,
    cache: CacheType,
) -> Result<Vec<StoredObjects>, SizingError> {
    let mut all: Vec<StoredObjects> = Vec::new();
    for shape in geometry.pools_of_stages(layout, cache)?.iter().flatten() {
        for object in objects_of(shape, page_size, geometry, layout)? {
            match all.iter_mut().find(|known| (known.pool, &known.suffix) == (object.pool, &object.suffix)) {
                Some(known) => {
                    known.objects = known.objects.saturating_add(object.objects);
                    known.bytes = known.bytes.max(object.bytes);
                }
                None => all.push(object),
            }
        }
    }
    Ok(all)
}

/// The objects of a page under SGLang's unified key scheme, over all ranks in a group, and their
/// size in bytes. `None` if the scheme does not describe the model's pools. One object has the keys
/// and values of a rank's heads, or the rows of a stage.
///
/// Source: `sglang/srt/mem_cache/hicache_key_scheme.py`. No option of SGLang 0.5.23 selects it.
///
/// # Errors
/// SGLang rejects the layout, or a value overflows.
pub fn unified_objects(
    page_size: u64,
    geometry: &Geometry,
    layout: &ParallelLayout,
    cache: CacheType,
) -> Result<Option<(u64, u64)>, SizingError> {
    let ranks = match geometry.full {
        TokenRow::Heads { kv_heads, .. } if kv_heads < layout.attention_tp() => return Ok(None),
        TokenRow::Heads { .. } => layout.attention_tp(),
        TokenRow::Latent { .. } => 1,
    };
    if geometry.check_per_token().is_err() || geometry.is_sparse() || layout.dcp() > 1 {
        return Ok(None);
    }
    let mut bytes = 0;
    for shape in geometry.pools_of_stages(layout, cache)?.iter().flatten() {
        let own = u128::from(shape.unit_bytes()) * u128::from(page_size);
        bytes = narrow(own, "the object size")?.max(bytes);
    }
    Ok(Some((ranks.saturating_mul(layout.pp()), bytes)))
}

/// The objects of one pool and stage.
fn objects_of(
    shape: &PoolShape,
    page_size: u64,
    geometry: &Geometry,
    layout: &ParallelLayout,
) -> Result<Vec<StoredObjects>, SizingError> {
    let tp = layout.attention_tp();
    let units = page_size.checked_div(shape.tokens).map_or(1, |units| units.max(1));
    let bytes = |unit: u128| narrow(unit * u128::from(units), "the object size");
    let unit = u128::from(shape.unit_bytes());
    let object = |suffix: &str, stored_for, objects, unit| {
        Ok(StoredObjects { pool: shape.kind, suffix: suffix.to_owned(), stored_for, objects, bytes: bytes(unit)? })
    };
    let (row, stored_for, prefix) = match shape.kind {
        PoolKind::Kv => (Some(geometry.full), StoredFor::Page, ""),
        PoolKind::Swa if geometry.compressed.is_none() => (Some(geometry.window), StoredFor::WindowPage, "_swa"),
        PoolKind::Swa | PoolKind::DeepseekV4C4State | PoolKind::DeepseekV4C4IndexerState => {
            (None, StoredFor::WindowPage, "")
        }
        PoolKind::Mamba => return state_objects(shape, geometry, tp),
        _ => (None, StoredFor::Page, ""),
    };
    match row {
        Some(TokenRow::Heads { head_dim, v_head_dim, .. }) => {
            let keys = unit * u128::from(head_dim) / u128::from((head_dim + v_head_dim).max(1));
            let key = object(&format!("{prefix}_k"), stored_for, tp, keys);
            let value = object(&format!("{prefix}_v"), stored_for, tp, unit - keys);
            Ok(vec![key?, value?])
        }
        // With decode context parallelism each rank stores a shard; every shard has the same size
        // as a page without DCP.
        Some(TokenRow::Latent { .. }) => Ok(vec![object(&format!("{prefix}_k"), stored_for, layout.dcp(), unit)?]),
        None => Ok(vec![object(&format!("_{}", shape.kind.name()), stored_for, layout.dcp(), unit)?]),
    }
}

/// The objects of a prefix's state: one per buffer and rank. A temporal state without bytes is left
/// out.
fn state_objects(shape: &PoolShape, geometry: &Geometry, tp: u64) -> Result<Vec<StoredObjects>, SizingError> {
    let has_temporal = geometry.state.as_ref().is_some_and(|state| state.temporal.is_some());
    let names = has_temporal.then(|| "_temporal".to_owned()).into_iter();
    let names = names.chain((0..shape.buffers.len()).map(|conv| format!("_conv_{conv}")));
    let object = |(suffix, bytes): (String, &u64)| StoredObjects {
        pool: shape.kind,
        suffix,
        stored_for: StoredFor::Prefix,
        objects: tp,
        bytes: *bytes,
    };
    Ok(names.zip(&shape.buffers).map(object).collect())
}

/// Computes a page in L3 for this model and layout, if all its objects are stored for every page.
/// `page_size` is the value from the command line, which DCP multiplies.
///
/// # Errors
/// A value overflows.
pub fn stored_page(
    page_size: u64,
    geometry: &Geometry,
    layout: &ParallelLayout,
    cache: CacheType,
) -> Result<Option<StoredPage>, SizingError> {
    if geometry.check_per_token().is_err() || page_size == 0 {
        return Ok(None);
    }
    let mut token_bytes = 0u128;
    for shape in geometry.pools_of_stages(layout, cache)?.iter().flatten() {
        let ranks = if shape.kind == PoolKind::Kv && !geometry.is_latent() { layout.attention_tp() } else { 1 };
        token_bytes += u128::from(shape.unit_bytes()) * u128::from(ranks);
    }
    let objects = stored_objects(page_size, geometry, layout, cache)?;
    Ok(Some(StoredPage {
        token_bytes: narrow(token_bytes, "the cache size per token")?,
        keys: objects.iter().map(|object| object.objects).sum(),
        object_bytes: objects.iter().map(|object| object.bytes).max().unwrap_or(0),
    }))
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
        stored_page(size, &models::by_name(model).unwrap().geometry, &layout, CacheType::Half).unwrap().unwrap()
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
        let geometry = &models::by_name("DeepSeek-V3").unwrap().geometry;
        let page = stored_page(64, geometry, &layout, CacheType::Half).unwrap().unwrap();
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
