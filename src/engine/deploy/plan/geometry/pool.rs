//! The pools that SGLang allocates for a range of layers.

use std::ops::Range;

use crate::plan::SizingError;
use crate::plan::error::narrow;
use crate::plan::geometry::{COMPRESSED_PAGE, CacheType, CompressedShape, Geometry, KeptTokens, Layer};
use crate::plan::layout::ParallelLayout;

/// A pool, named as in SGLang (`sglang/srt/mem_cache/hicache_storage.py`, `PoolName`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PoolKind {
    /// Keys and values of all tokens.
    Kv,
    /// Keys and values of the tokens in a window.
    Swa,
    /// The index of sparse attention, which follows `Kv`.
    Indexer,
    /// States of linear attention, Mamba or convolution layers; its unit is a slot.
    Mamba,
    /// Tokens compressed 4 times.
    DeepseekV4C4,
    /// The index of the tokens compressed 4 times.
    DeepseekV4C4Indexer,
    /// Tokens compressed 128 times.
    DeepseekV4C128,
    /// The state of the 4-times compression, which follows `Swa`.
    DeepseekV4C4State,
    /// The state of the index's compression, which follows `Swa`.
    DeepseekV4C4IndexerState,
}

impl PoolKind {
    /// The name in SGLang.
    pub const fn name(self) -> &'static str {
        match self {
            PoolKind::Kv => "kv",
            PoolKind::Swa => "swa",
            PoolKind::Indexer => "indexer",
            PoolKind::Mamba => "mamba",
            PoolKind::DeepseekV4C4 => "deepseek_v4_c4",
            PoolKind::DeepseekV4C4Indexer => "deepseek_v4_c4_indexer",
            PoolKind::DeepseekV4C128 => "deepseek_v4_c128",
            PoolKind::DeepseekV4C4State => "deepseek_v4_c4_state",
            PoolKind::DeepseekV4C4IndexerState => "deepseek_v4_c4_indexer_state",
        }
    }
}

/// A pool's shape on one rank of a pipeline stage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolShape {
    pub kind: PoolKind,
    /// Layers with an entry in the pool.
    pub layers: u64,
    /// Bytes per unit, for each buffer of the pool. The unit is `tokens` tokens or one slot.
    pub buffers: Vec<u64>,
    /// Tokens per unit; 0 for slots.
    pub tokens: u64,
}

impl PoolShape {
    /// Bytes per unit, over all buffers.
    pub fn unit_bytes(&self) -> u64 {
        self.buffers.iter().fold(0, |sum: u64, bytes| sum.saturating_add(*bytes))
    }

    /// Whether the unit is a slot.
    pub fn has_slots(&self) -> bool {
        self.tokens == 0
    }
}

fn layers_times(layers: u64, bytes: u64) -> Result<u64, SizingError> {
    narrow(u128::from(layers) * u128::from(bytes), "the cache size per token")
}

impl Geometry {
    /// The pools for the model's layers `range`, in SGLang's order: the first is the anchor, which
    /// determines the number of pages.
    ///
    /// # Errors
    /// SGLang cannot split the model across `attention_tp` ranks, or a product overflows.
    pub fn pools(
        &self,
        range: Range<usize>,
        attention_tp: u64,
        cache: CacheType,
    ) -> Result<Vec<PoolShape>, SizingError> {
        let layers = self.layers.get(range.clone()).unwrap_or_default();
        // Drafts belong to the last stage.
        let drafts = if range.end == self.layers.len() { self.draft_layers } else { 0 };
        if let Some(shape) = &self.compressed {
            if cache != CacheType::Fp8 {
                return Err(SizingError::CacheType {
                    cache: cache.name(),
                    why: "SGLang has only fp8_e4m3 rows for it",
                });
            }
            return compressed_pools(shape, layers, drafts);
        }
        let is_split = range.start > 0 || range.end < self.layers.len();
        if is_split && !self.has_stages {
            return Err(SizingError::Stages);
        }
        let count = |wanted: fn(&Layer) -> bool| layers.iter().filter(|layer| wanted(layer)).count() as u64;
        let drafts_of = |kept| if self.draft == Some(kept) { drafts } else { 0 };
        let tokens = |kept, layers: u64| (layers * self.passes).saturating_add(drafts_of(kept));
        let full = tokens(KeptTokens::All, count(|layer| layer.tokens == KeptTokens::All));
        let window = tokens(KeptTokens::Window, count(|layer| layer.tokens == KeptTokens::Window));
        let index = count(|layer| layer.has_index) * self.passes;
        let states = count(|layer| layer.has_state);
        let mut pools = Vec::new();
        let mut token_pool = |kind, layers, bytes| {
            pools.push(PoolShape { kind, layers, buffers: vec![layers_times(layers, bytes)?], tokens: 1 });
            Ok::<(), SizingError>(())
        };
        if full > 0 {
            token_pool(PoolKind::Kv, full, self.full.bytes(attention_tp, cache)?)?;
        }
        if window > 0 {
            token_pool(PoolKind::Swa, window, self.window.bytes(attention_tp, cache)?)?;
        }
        if let Some(row) = self.index.filter(|_| index > 0) {
            token_pool(PoolKind::Indexer, index.saturating_add(drafts), row.bytes(cache))?;
        }
        if let Some(state) = self.state.as_ref().filter(|_| states > 0) {
            let buffers: Result<Vec<u64>, SizingError> =
                state.buffers(attention_tp)?.into_iter().map(|bytes| layers_times(states, bytes)).collect();
            let buffers = buffers?.into_iter().filter(|bytes| *bytes > 0).collect();
            pools.push(PoolShape { kind: PoolKind::Mamba, layers: states, buffers, tokens: 0 });
        }
        Ok(pools)
    }

    /// The pools of one rank per pipeline stage.
    ///
    /// # Errors
    /// SGLang cannot split the model like this, or a product overflows.
    pub fn pools_of_stages(
        &self,
        layout: &ParallelLayout,
        cache: CacheType,
    ) -> Result<Vec<Vec<PoolShape>>, SizingError> {
        let of = |stage| {
            let range = layout.layers_of_stage(self.layers.len(), stage)?;
            self.pools(range, layout.attention_tp(), cache)
        };
        (0..layout.pp()).map(of).collect()
    }
}

/// The pools of compressed layers. Their unit is a page, and they are identical on every rank.
fn compressed_pools(shape: &CompressedShape, layers: &[Layer], drafts: u64) -> Result<Vec<PoolShape>, SizingError> {
    let count = |ratio| layers.iter().filter(|layer| layer.tokens == KeptTokens::Compressed(ratio)).count() as u64;
    // A draft layer keeps the window only.
    let all = (layers.len() as u64).saturating_add(drafts);
    let page = COMPRESSED_PAGE;
    let parts = [
        (PoolKind::Swa, all, shape.page_bytes(page)),
        (PoolKind::DeepseekV4C4, count(4), shape.page_bytes(page / 4)),
        (PoolKind::DeepseekV4C4Indexer, count(4), shape.index_page_bytes()),
        (PoolKind::DeepseekV4C128, count(128), shape.page_bytes(page / 128)),
        (PoolKind::DeepseekV4C4State, count(4), shape.state_page_bytes()),
        (PoolKind::DeepseekV4C4IndexerState, count(4), shape.index_state_page_bytes()),
    ];
    let pool = |(kind, layers, bytes)| {
        Ok(PoolShape { kind, layers, buffers: vec![layers_times(layers, bytes)?], tokens: page })
    };
    parts.into_iter().filter(|(_, layers, _)| *layers > 0).map(pool).collect()
}
