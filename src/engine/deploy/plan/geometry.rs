//! Key and value sizes: the geometry of a model's cache, and bytes per token per rank.

use crate::plan::SizingError;
use crate::plan::error::narrow;

/// The cache's element type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheType {
    /// bf16 or fp16: 2 bytes. SGLang's `auto` selects this type for every model in
    /// [`crate::plan::models`].
    Half,
    /// fp8_e4m3 or fp8_e5m2: 1 byte. With sparse attention, rows include their scales.
    Fp8,
    /// Like `Fp8`, but with sparse attention, rows have no scales. Used by the TRT-LLM and ROCm
    /// kernels, and by TileLang on CUDA.
    Fp8Plain,
}

impl CacheType {
    /// Size of an element in bytes.
    pub const fn bytes(self) -> u64 {
        match self {
            CacheType::Half => 2,
            CacheType::Fp8 | CacheType::Fp8Plain => 1,
        }
    }
}

/// The sparse attention (DSA) indexer, which has its own pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Indexer {
    /// `index_head_dim`.
    pub head_dim: u64,
}

/// How attention stores keys and values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attention {
    /// Keys and values per head, split across the attention TP ranks.
    Heads {
        /// `num_key_value_heads`.
        kv_heads: u64,
        head_dim: u64,
        v_head_dim: u64,
    },
    /// One latent row per token and layer, identical on every TP rank (MLA).
    Latent {
        /// `kv_lora_rank`.
        lora: u64,
        /// `qk_rope_head_dim`.
        rope: u64,
        /// Present with sparse attention.
        indexer: Option<Indexer>,
    },
}

/// The geometry of a model's cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Layers that keep all tokens.
    pub layers: u64,
    /// Layers of the same shape that keep only a window of tokens; they have their own pool.
    pub window_layers: u64,
    pub attention: Attention,
}

/// Elements per scale block in the fp8 formats.
const SCALE_BLOCK: u64 = 128;
/// Size of a scale, in bytes.
const SCALE_BYTES: u64 = 4;
/// Upper limit for model dimensions. The product of three dimensions stays far below 2^127.
pub const DIMENSION_MAX: u64 = 1 << 24;

impl Geometry {
    /// Bytes per token and rank for `layers` layers that keep all tokens.
    ///
    /// Source: `sglang/srt/mem_cache/pool_host/mha.py`, `mla.py`, `dsa.py`. For sparse attention in
    /// fp8, a row is either scaled (`kv_lora_rank` bytes, a 4-byte scale per 128 bytes, and 2 bytes
    /// per rope element), or plain with one byte per element.
    ///
    /// # Errors
    /// The product overflows.
    pub fn token_bytes(&self, layers: u64, attention_tp: u64, cache: CacheType) -> Result<u64, SizingError> {
        let per_layer = match self.attention {
            Attention::Heads { kv_heads, head_dim, v_head_dim } => {
                // With more ranks than heads, each rank stores one head, so heads are duplicated.
                let heads = (kv_heads / attention_tp.max(1)).max(1);
                u128::from(heads) * u128::from(head_dim + v_head_dim) * u128::from(cache.bytes())
            }
            Attention::Latent { lora, rope, indexer: Some(_) } if cache == CacheType::Fp8 => {
                u128::from(lora + lora / SCALE_BLOCK * SCALE_BYTES + rope * 2)
            }
            Attention::Latent { lora, rope, .. } => u128::from(lora + rope) * u128::from(cache.bytes()),
        };
        narrow(per_layer * u128::from(layers), "the cache size per token")
    }

    /// Indexer bytes per token and rank for `layers` layers; 0 without an indexer.
    ///
    /// Source: `sglang/srt/mem_cache/pool_host/dsa.py`, `dsa_indexer_bytes_per_token_per_layer`:
    /// one byte per element and a 4-byte scale per 128 elements, independent of the cache's element
    /// type.
    ///
    /// # Errors
    /// The product overflows.
    pub fn indexer_token_bytes(&self, layers: u64) -> Result<u64, SizingError> {
        match self.attention {
            Attention::Latent { indexer: Some(Indexer { head_dim }), .. } => {
                let row = u128::from(head_dim + head_dim / SCALE_BLOCK * SCALE_BYTES);
                narrow(row * u128::from(layers), "the index size per token")
            }
            _ => Ok(0),
        }
    }

    /// Adds the layers of a draft model (multi-token prediction) that share the pools. SGLang
    /// counts them as layers of the target model, so their shape and type must match the target's
    /// (`mem_cache/pool_host/mha.py`, `mla.py`, `dsa.py`, `layer_num`).
    ///
    /// # Errors
    /// The number of layers is out of range.
    pub fn with_draft_layers(self, draft: u64) -> Result<Geometry, SizingError> {
        let layers = self.layers.checked_add(draft).filter(|layers| *layers <= DIMENSION_MAX);
        Ok(Geometry { layers: layers.ok_or(SizingError::TooLarge { what: "the number of draft layers" })?, ..self })
    }

    /// Whether the model uses sparse attention.
    pub fn is_sparse(&self) -> bool {
        matches!(self.attention, Attention::Latent { indexer: Some(_), .. })
    }

    /// Whether the cache is identical on every TP rank.
    pub fn is_latent(&self) -> bool {
        matches!(self.attention, Attention::Latent { .. })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn heads(layers: u64, kv_heads: u64, dim: u64) -> Geometry {
        Geometry { layers, window_layers: 0, attention: Attention::Heads { kv_heads, head_dim: dim, v_head_dim: dim } }
    }

    fn latent(layers: u64, indexer: Option<Indexer>) -> Geometry {
        Geometry { layers, window_layers: 0, attention: Attention::Latent { lora: 512, rope: 64, indexer } }
    }

    #[test]
    fn heads_are_split_until_each_rank_has_one() {
        let qwen = heads(94, 4, 128);
        let at = |tp| qwen.token_bytes(94, tp, CacheType::Half).unwrap();
        assert_eq!([at(1), at(2), at(4), at(8)], [192_512, 96_256, 48_128, 48_128]);
        assert_eq!(qwen.token_bytes(94, 1, CacheType::Fp8), Ok(96_256));
    }

    #[test]
    fn latent_rows_do_not_depend_on_tp() {
        let plain = latent(61, None);
        assert_eq!((plain.token_bytes(61, 8, CacheType::Half), plain.indexer_token_bytes(61)), (Ok(70_272), Ok(0)));
        let sparse = latent(61, Some(Indexer { head_dim: 128 }));
        assert_eq!(sparse.token_bytes(61, 8, CacheType::Half), Ok(70_272));
        assert_eq!(sparse.token_bytes(61, 1, CacheType::Fp8), Ok(40_016));
        assert_eq!(sparse.token_bytes(61, 1, CacheType::Fp8Plain), Ok(61 * 576));
        assert_eq!(plain.token_bytes(61, 1, CacheType::Fp8Plain), plain.token_bytes(61, 1, CacheType::Fp8));
        assert_eq!(sparse.indexer_token_bytes(61), Ok(8_052));
    }

    #[test]
    fn a_packed_draft_adds_layers() {
        let plain = latent(61, None).with_draft_layers(1).unwrap();
        assert_eq!(plain.token_bytes(plain.layers, 8, CacheType::Half), Ok(70_272 + 1_152));
        let sparse = latent(61, Some(Indexer { head_dim: 128 })).with_draft_layers(1).unwrap();
        assert_eq!(sparse.indexer_token_bytes(sparse.layers), Ok(8_052 + 132));
        assert!(plain.with_draft_layers(u64::MAX).is_err());
    }

    proptest! {
        #[test]
        fn all_ranks_together_store_at_least_as_much_as_one(
            kv in 1u64..64, dim in 1u64..512, layers in 1u64..200, tp_shift in 0u32..6
        ) {
            let model = heads(layers, kv, dim);
            let tp = 1u64 << tp_shift;
            prop_assume!(kv % tp == 0 || tp.is_multiple_of(kv));
            let one = model.token_bytes(layers, 1, CacheType::Half).unwrap();
            let all = model.token_bytes(layers, tp, CacheType::Half).unwrap() * tp;
            prop_assert!(all >= one && (tp > kv || all == one));
        }
    }
}
