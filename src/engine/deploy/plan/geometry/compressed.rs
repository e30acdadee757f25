//! The pools of compressed attention (DeepSeek-V4): a window of tokens in every layer, and all
//! tokens compressed 4 or 128 times.
//!
//! Source: `sglang/srt/mem_cache/deepseek_v4_memory_pool.py` in its default layout;
//! `mem_cache/hybrid_cache/hybrid_pool_assembler.py`, `build_deepseek_v4_hicache_stack`.

/// The dimensions of compressed attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompressedShape {
    /// `head_dim`, including the rope part.
    pub head_dim: u64,
    /// `qk_rope_head_dim`.
    pub rope: u64,
    /// `index_head_dim`.
    pub index_head_dim: u64,
}

/// Tokens per page, which SGLang sets for these models.
pub const COMPRESSED_PAGE: u64 = 256;
/// SGLang rounds the size of a page up to a multiple of this, in bytes.
const PAGE_ALIGN: u64 = 576;
/// Elements per scale in a key and value row.
const ROW_BLOCK: u64 = 64;
/// Elements per scale in an index row, and the size of the scale.
const INDEX_BLOCK: u64 = 128;
const INDEX_SCALE: u64 = 4;
/// Positions that the state of the 4-times compression keeps.
const RING: u64 = 8;

impl CompressedShape {
    /// Bytes of `entries` rows in one layer: one byte per element and 2 per rope element, and the
    /// scales (1 byte per 64 elements, padded to a multiple of 8).
    pub fn page_bytes(&self, entries: u64) -> u64 {
        let plain = self.head_dim.saturating_sub(self.rope);
        let scales = plain.div_ceil(ROW_BLOCK).next_multiple_of(8);
        entries.saturating_mul(plain + 2 * self.rope + scales).next_multiple_of(PAGE_ALIGN)
    }

    /// Bytes of the index of a page in one layer that compresses 4 times.
    pub fn index_page_bytes(&self) -> u64 {
        COMPRESSED_PAGE / 4 * (self.index_head_dim + self.index_head_dim / INDEX_BLOCK * INDEX_SCALE)
    }

    /// Bytes of the state for a window page in one layer that compresses 4 times: keys and scores,
    /// for two overlapping groups, in 4-byte elements.
    pub fn state_page_bytes(&self) -> u64 {
        RING * 2 * 2 * self.head_dim * 4
    }

    /// Like [`CompressedShape::state_page_bytes`], for the index.
    pub fn index_state_page_bytes(&self) -> u64 {
        RING * 2 * 2 * self.index_head_dim * 4
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_sizes_match_sglang() {
        let shape = CompressedShape { head_dim: 512, rope: 64, index_head_dim: 128 };
        assert_eq!([256, 64, 2].map(|entries| shape.page_bytes(entries)), [149_760, 37_440, 1_728]);
        assert_eq!(shape.index_page_bytes(), 8_448);
        assert_eq!((shape.state_page_bytes(), shape.index_state_page_bytes()), (65_536, 16_384));
    }
}
