//! Page IDs, and the keys and contents of the corresponding objects in the store.

use md5::{Digest, Md5};

use mcctl_base::ObjectKey;

/// Prefix shared by all keys.
const PREFIX: &str = "mcctl-sim-";
/// Regular expression that matches the keys written by simulators, and no others.
pub(crate) const EVERY_KEY: &str = "^mcctl-sim-[0-9a-f]{16}-[kv]$";

/// SplitMix64 finalizer: every bit of the result depends on every bit of `n`.
pub(crate) fn mixed(n: u64) -> u64 {
    let mut z = n.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Computes page IDs in sequence. Each ID depends on all tokens up to the end of its page. IDs are
/// the same on every machine and in every release, because simulators that share a store must agree
/// on them.
#[derive(Clone, Debug)]
pub(crate) struct PageNamer {
    before: [u8; 16],
}

impl PageNamer {
    /// Creates a namer for `model`, with pages of `page` tokens of `bytes` each. Different
    /// parameters produce different IDs.
    pub(crate) fn new(model: &str, page: u64, bytes: u64) -> PageNamer {
        let mut hash = Md5::new();
        hash.update(page.to_le_bytes());
        hash.update(bytes.to_le_bytes());
        hash.update(model.as_bytes());
        PageNamer { before: hash.finalize().into() }
    }

    /// Returns the ID of the next page.
    pub(crate) fn next(&mut self, tokens: &[u32]) -> u64 {
        let mut hash = Md5::new();
        hash.update(self.before);
        for token in tokens {
            hash.update(token.to_le_bytes());
        }
        self.before = hash.finalize().into();
        let [a, b, c, d, e, f, g, h, ..] = self.before;
        u64::from_le_bytes([a, b, c, d, e, f, g, h])
    }
}

/// Returns the keys of a page's two objects: attention keys and attention values, as in SGLang.
pub(crate) fn keys(page: u64) -> [ObjectKey; 2] {
    ["k", "v"].map(|half| ObjectKey::from(format!("{PREFIX}{page:016x}-{half}").as_str()))
}

/// Fills `bytes` with the content of a page's object `half` (0 or 1). Every group of eight bytes is
/// different, so that mixed-up objects are detected.
pub(crate) fn fill(page: u64, half: usize, bytes: &mut [u8]) {
    let mut state = mixed(page ^ half as u64);
    for word in bytes.chunks_mut(8) {
        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        word.copy_from_slice(&(state ^ (state >> 29)).to_le_bytes()[..word.len()]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_id_depends_on_all_previous_tokens() {
        let names = |model: &str, pages: &[[u32; 2]]| -> Vec<u64> {
            let mut namer = PageNamer::new(model, 2, 64);
            pages.iter().map(|page| namer.next(page)).collect()
        };
        let one = names("a", &[[1, 2], [3, 4]]);
        assert_eq!(one, [11_993_274_542_381_226_276, 15_493_047_868_142_230_745]);
        assert_eq!(names("a", &[[1, 2], [3, 5]])[0], one[0]);
        assert_ne!(names("a", &[[2, 1], [3, 4]])[1], one[1]);
        assert_ne!(names("b", &[[1, 2]])[0], one[0]);
        assert_eq!(keys(0x1f)[1].as_bytes(), b"mcctl-sim-000000000000001f-v");
        let bytes = |page, half| {
            let mut bytes = [0; 13];
            fill(page, half, &mut bytes);
            bytes
        };
        assert_eq!(bytes(1, 0), bytes(1, 0));
        assert!(bytes(1, 0) != bytes(1, 1) && bytes(1, 0) != bytes(2, 0));
    }
}
