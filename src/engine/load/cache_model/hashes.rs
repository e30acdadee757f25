//! Token sequences as hashes of their pages.

use std::hash::Hasher;

/// A hasher for page hashes, which are already well distributed.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct IdentityHasher(u64);

impl Hasher for IdentityHasher {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        self.0 = bytes.iter().fold(self.0, |hash, byte| hash.rotate_left(8) ^ u64::from(*byte));
    }
    fn write_u64(&mut self, name: u64) {
        self.0 = name;
    }
}

/// A token sequence, stored as hashes of its whole pages. Each hash covers its page and all
/// preceding pages.
#[derive(Clone, Debug)]
pub struct PageHashes {
    page: u32,
    pub(super) names: Vec<u64>,
    /// Running hash of the incomplete page.
    open: u64,
    pub(super) tokens: u32,
}

impl PageHashes {
    /// Creates an empty sequence with `page` tokens per page.
    pub fn new(page: u32) -> PageHashes {
        PageHashes { page: page.max(1), names: Vec::new(), open: 0x9e37_79b9_7f4a_7c15, tokens: 0 }
    }

    /// Appends token IDs to the sequence.
    pub fn extend(&mut self, ids: &[u32]) {
        for id in ids {
            self.open = (self.open ^ u64::from(*id)).wrapping_mul(0xff51_afd7_ed55_8ccd).rotate_left(31);
            self.tokens += 1;
            if self.tokens.is_multiple_of(self.page) {
                // SplitMix finalizer: every bit of the hash depends on every ID.
                let mut name = self.open;
                name = (name ^ (name >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
                name = (name ^ (name >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
                self.open = name ^ (name >> 31);
                self.names.push(self.open);
            }
        }
    }

    /// Number of IDs so far.
    pub fn tokens(&self) -> u32 {
        self.tokens
    }
}
