//! Test objects for store checks.

/// Returns deterministic bytes in which every group of eight bytes is different, so that misplaced
/// data is detected.
pub fn payload(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed;
    let word = |_| {
        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        (state ^ (state >> 29)).to_le_bytes()
    };
    (0..len.div_ceil(8)).flat_map(word).take(len).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_payload_has_its_length_and_depends_on_its_seed() {
        assert_eq!(payload(1, 13).len(), 13);
        assert_eq!(payload(1, 64), payload(1, 64));
        assert_ne!(payload(1, 64), payload(2, 64));
    }
}
