//! What a model keeps in the cache: per layer, per token and per slot.
//!
//! A [`Geometry`] lists the model's layers in order, because pipeline stages get consecutive
//! layers. [`Geometry::pools`] groups the layers of a stage into the pools that SGLang allocates.

mod compressed;
mod pool;
mod row;
mod state;

pub use compressed::{COMPRESSED_PAGE, CompressedShape};
pub use pool::{PoolKind, PoolShape};
pub use row::{CacheType, IndexRow, TokenRow};
pub use state::{Channels, ConvPart, StateShape, Temporal};

use crate::plan::SizingError;
use crate::plan::error::{SLIDING, STATES};

/// Upper limit for model dimensions. The product of three dimensions stays far below 2^127.
pub const DIMENSION_MAX: u64 = 1 << 24;
/// Upper limit for the number of layers.
pub const LAYERS_MAX: u64 = 4096;

/// Which tokens a layer keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeptTokens {
    /// None: the layer has no attention (feed-forward, or linear attention only).
    None,
    /// All tokens: full attention.
    All,
    /// A window of tokens, in a pool of its own: sliding-window or chunked attention.
    Window,
    /// A window of tokens, and all tokens compressed by this ratio; 0 for the window only
    /// (DeepSeek-V4).
    Compressed(u64),
}

/// A layer's entries in the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layer {
    pub tokens: KeptTokens,
    /// Whether the layer keeps a state per slot (Mamba, linear attention, short convolution).
    pub has_state: bool,
    /// Whether the layer owns an index (sparse attention). Layers that share another layer's index
    /// own none.
    pub has_index: bool,
}

impl Layer {
    /// A full attention layer.
    pub const FULL: Layer = Layer { tokens: KeptTokens::All, has_state: false, has_index: false };
    /// A sliding-window layer.
    pub const WINDOW: Layer = Layer { tokens: KeptTokens::Window, ..Layer::FULL };
    /// A layer with a state only.
    pub const STATE: Layer = Layer { tokens: KeptTokens::None, has_state: true, has_index: false };
    /// A layer that keeps nothing.
    pub const EMPTY: Layer = Layer { tokens: KeptTokens::None, ..Layer::FULL };
}

/// The geometry of a model's cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// All layers, in the order of the model. Never empty.
    pub layers: Vec<Layer>,
    /// Attention layers per model layer: 2 in LongCat-Flash, the number of loops in looped models,
    /// otherwise 1.
    pub passes: u64,
    /// Whether SGLang can split the layers into pipeline stages.
    pub has_stages: bool,
    /// `num_attention_heads`, if it is stated.
    pub attention_heads: Option<u64>,
    /// The entry of a token in a full attention layer.
    pub full: TokenRow,
    /// The entry of a token in a window layer.
    pub window: TokenRow,
    /// The entry of a token in an index.
    pub index: Option<IndexRow>,
    /// The state of one layer in one slot.
    pub state: Option<StateShape>,
    /// The dimensions of compressed layers.
    pub compressed: Option<CompressedShape>,
    /// Draft layers (multi-token prediction) that share the pools of the last stage.
    pub draft_layers: u64,
    /// What a draft layer that shares the pools keeps; `None` if that is unknown.
    pub draft: Option<KeptTokens>,
    /// SGLang's default of `--swa-full-tokens-ratio` for this model, in tenths: tokens in the
    /// window pool relative to the full pool.
    pub window_tenths: u64,
    /// SGLang's default of `--mamba-full-memory-ratio` for this model, in tenths: bytes of the
    /// state pool on the device relative to the other pools.
    pub state_tenths: u64,
}

/// SGLang's default of `--swa-full-tokens-ratio`, in tenths.
const WINDOW_TENTHS: u64 = 8;
/// SGLang's default of `--mamba-full-memory-ratio`, in tenths.
const STATE_TENTHS: u64 = 9;

impl Geometry {
    /// A model with these layers, all with entries of the shape `row`.
    pub fn new(layers: Vec<Layer>, row: TokenRow) -> Geometry {
        Geometry {
            layers,
            passes: 1,
            has_stages: true,
            attention_heads: None,
            full: row,
            window: row,
            index: None,
            state: None,
            compressed: None,
            draft_layers: 0,
            draft: Some(KeptTokens::All),
            window_tenths: WINDOW_TENTHS,
            state_tenths: STATE_TENTHS,
        }
    }

    /// A model with `layers` full attention layers.
    pub fn uniform(layers: u64, row: TokenRow) -> Geometry {
        let layers = usize::try_from(layers.min(LAYERS_MAX)).unwrap_or_default();
        Geometry::new(vec![Layer::FULL; layers], row)
    }

    /// Adds the layers of a draft model (multi-token prediction) that share the pools. SGLang
    /// counts them as layers of the target model, so their shape and type must match the target's
    /// (`mem_cache/pool_host/mha.py`, `mla.py`, `dsa.py`, `layer_num`).
    ///
    /// # Errors
    /// The number of layers is out of range, or what the layers keep is unknown.
    pub fn with_draft_layers(mut self, draft: u64) -> Result<Geometry, SizingError> {
        if draft > LAYERS_MAX {
            return Err(SizingError::TooLarge { what: "the number of draft layers" });
        }
        if draft > 0 && self.draft.is_none() {
            return Err(SizingError::DraftLayers);
        }
        self.draft_layers = draft;
        Ok(self)
    }

    /// Returns an error unless every pool has an entry for every token, so that bytes per token
    /// describe the cache.
    ///
    /// # Errors
    /// Some layers keep a window of tokens, or a state per prefix.
    pub fn check_per_token(&self) -> Result<(), SizingError> {
        if self.has_states() {
            return Err(SizingError::NotPerToken { why: STATES });
        }
        if self.has_windows() { Err(SizingError::NotPerToken { why: SLIDING }) } else { Ok(()) }
    }

    /// Returns an error if SGLang cannot split the heads across `attention_tp` ranks.
    ///
    /// Source: `sglang/srt/layers/linear.py`, `QKVParallelLinear`: each rank has as many attention
    /// heads, and either as many KV heads or a copy of one.
    ///
    /// # Errors
    /// The number of heads is not divisible.
    pub fn check_tp(&self, attention_tp: u64) -> Result<(), SizingError> {
        let divisible = |what, value: u64| {
            let by = "the attention TP size";
            let is_split = value.is_multiple_of(attention_tp.max(1));
            if is_split { Ok(()) } else { Err(SizingError::NotDivisible { what, value, by, divisor: attention_tp }) }
        };
        if let Some(heads) = self.attention_heads {
            divisible("num_attention_heads", heads)?;
        }
        match self.full {
            TokenRow::Heads { kv_heads, .. } if !attention_tp.is_multiple_of(kv_heads.max(1)) => {
                divisible("the number of KV heads", kv_heads)
            }
            _ => Ok(()),
        }
    }

    /// Whether layers own an index (sparse attention).
    pub fn is_sparse(&self) -> bool {
        self.index.is_some()
    }

    /// Whether layers have sparse attention over latent rows (DSA).
    pub fn has_sparse_latent(&self) -> bool {
        self.is_sparse() && self.full.is_latent()
    }

    /// Whether keys and values are identical on every TP rank.
    pub fn is_latent(&self) -> bool {
        self.full.is_latent() || self.compressed.is_some()
    }

    /// Whether some layers keep only a window of tokens, in a pool of their own.
    pub fn has_windows(&self) -> bool {
        self.layers.iter().any(|layer| matches!(layer.tokens, KeptTokens::Window | KeptTokens::Compressed(_)))
    }

    /// Whether some layers keep a state per slot.
    pub fn has_states(&self) -> bool {
        self.layers.iter().any(|layer| layer.has_state)
    }

    /// Whether SGLang has `--hicache-mem-layout` `layout` for the model's pools. It replaces
    /// layer_first if the store is Mooncake, and page_first_kv_split is for NPUs.
    ///
    /// Source: `sglang/srt/mem_cache/pool_host/mamba.py`, `mha.py` (keys and values of unequal
    /// size), `mla.py`, `init_kv_buffer`.
    pub fn has_layout(&self, layout: &str) -> bool {
        let is_equal = |row: TokenRow| match row {
            TokenRow::Heads { head_dim, v_head_dim, .. } => head_dim == v_head_dim,
            TokenRow::Latent { .. } => false,
        };
        match layout {
            "page_head" => !self.has_states() && !self.is_sparse() && is_equal(self.full) && is_equal(self.window),
            "page_first_kv_split" => self.is_latent(),
            _ => true,
        }
    }

    /// The type that SGLang's `--kv-cache-dtype auto` selects, unless the checkpoint selects
    /// another.
    pub fn auto_cache(&self) -> CacheType {
        if self.compressed.is_some() { CacheType::Fp8 } else { CacheType::Half }
    }
}
