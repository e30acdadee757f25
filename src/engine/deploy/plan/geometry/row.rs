//! Bytes of one token in one layer.

use crate::plan::SizingError;
use crate::plan::error::narrow;

/// The cache's element type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheType {
    /// bf16 or fp16: 2 bytes.
    Half,
    /// fp8_e4m3 or fp8_e5m2: 1 byte. With sparse attention, rows include their scales.
    Fp8,
    /// Like `Fp8`, but with sparse attention, rows have no scales. Used by the TRT-LLM and ROCm
    /// kernels, and by TileLang on CUDA.
    Fp8Plain,
    /// mxfp8: 1 byte, and a 1-byte scale per 32 elements. For heads only.
    Mxfp8,
}

impl CacheType {
    /// The name in SGLang's `--kv-cache-dtype`.
    pub const fn name(self) -> &'static str {
        match self {
            CacheType::Half => "bf16",
            CacheType::Fp8 | CacheType::Fp8Plain => "fp8_e4m3",
            CacheType::Mxfp8 => "mxfp8",
        }
    }

    /// Size of an element in bytes, without scales.
    pub const fn bytes(self) -> u64 {
        match self {
            CacheType::Half => 2,
            CacheType::Fp8 | CacheType::Fp8Plain | CacheType::Mxfp8 => 1,
        }
    }
}

/// The entry of a token in a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenRow {
    /// Keys and values per head, split across the attention TP ranks.
    Heads {
        /// `num_key_value_heads`.
        kv_heads: u64,
        head_dim: u64,
        v_head_dim: u64,
    },
    /// One latent row, identical on every TP rank (MLA).
    Latent {
        /// `kv_lora_rank`.
        lora: u64,
        /// `qk_rope_head_dim`; 0 if the model does not use it.
        rope: u64,
        /// Whether fp8 rows include scales (sparse attention).
        is_scaled: bool,
    },
}

/// Elements per scale block in the fp8 formats of latent rows and indexes.
const SCALE_BLOCK: u64 = 128;
/// Size of such a scale, in bytes.
const SCALE_BYTES: u64 = 4;
/// Elements per scale in mxfp8.
const MX_BLOCK: u64 = 32;

impl TokenRow {
    /// Bytes per token, layer and rank.
    ///
    /// Source: `sglang/srt/mem_cache/pool_host/mha.py`, `mha_mxfp8.py`, `mla.py`, `dsa.py`. For
    /// sparse attention in fp8, a row is either scaled (`kv_lora_rank` bytes, a 4-byte scale per
    /// 128 bytes, and 2 bytes per rope element), or plain with one byte per element.
    ///
    /// # Errors The product overflows, or SGLang has no such rows.
    pub fn bytes(&self, attention_tp: u64, cache: CacheType) -> Result<u64, SizingError> {
        let bytes = match *self {
            TokenRow::Heads { kv_heads, head_dim, v_head_dim } => {
                // With more ranks than heads, each rank stores one head, so heads are duplicated.
                let heads = (kv_heads / attention_tp.max(1)).max(1);
                let elements = u128::from(heads) * u128::from(head_dim + v_head_dim);
                let scales = if cache == CacheType::Mxfp8 { elements / u128::from(MX_BLOCK) } else { 0 };
                elements * u128::from(cache.bytes()) + scales
            }
            TokenRow::Latent { .. } if cache == CacheType::Mxfp8 => {
                return Err(SizingError::CacheType { cache: "mxfp8", why: "an MLA cache has no mxfp8 rows" });
            }
            TokenRow::Latent { lora, rope, is_scaled: true } if cache == CacheType::Fp8 => {
                u128::from(lora + lora / SCALE_BLOCK * SCALE_BYTES + rope * 2)
            }
            TokenRow::Latent { lora, rope, .. } => u128::from(lora + rope) * u128::from(cache.bytes()),
        };
        narrow(bytes, "the cache size per token")
    }

    /// Whether the row is identical on every TP rank.
    pub fn is_latent(&self) -> bool {
        matches!(self, TokenRow::Latent { .. })
    }
}

/// The entry of a token in an index of sparse attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IndexRow {
    /// `index_head_dim` bytes and their scales (DeepSeek sparse attention), for `tokens` tokens
    /// each (`index_kpool`; otherwise 1).
    Scaled { head_dim: u64, tokens: u64 },
    /// Keys (MiniMax-M3).
    Keys { elements: u64 },
}

impl IndexRow {
    /// Bytes per token and layer, on every rank.
    ///
    /// Source: `sglang/srt/mem_cache/pool_host/dsa.py`, `dsa_indexer_bytes_per_token_per_layer`
    /// (one byte per element and a 4-byte scale per 128 elements, independent of the cache's
    /// element type); `pool_host/mha.py`, `MHATokenToKOnlyPoolHost` (the cache's type on GPUs with
    /// fp8 attention, such as Hopper and Blackwell; on others, 2 bytes even with an fp8 cache).
    pub fn bytes(&self, cache: CacheType) -> u64 {
        match *self {
            IndexRow::Scaled { head_dim, tokens } => {
                (head_dim + head_dim / SCALE_BLOCK * SCALE_BYTES).div_ceil(tokens.max(1))
            }
            IndexRow::Keys { elements } => elements.saturating_mul(cache.bytes()),
        }
    }
}
