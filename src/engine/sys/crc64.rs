//! CRC-64/ECMA-182 of memory: the checksum of an object, as in upstream's 0.3.13 client.
//!
//! Polynomial 0x42F0E1EBA9EA3693, initial value 0, not reflected, no final xor. The checksum of
//! `123456789` is 0x6C40DF5F0B497347.

use crc_fast::{CrcAlgorithm, Digest, checksum_combine};

use crate::memory::Slice;

const ALGORITHM: CrcAlgorithm = CrcAlgorithm::Crc64Ecma182;

/// Returns the checksum of bytes with the checksum `first`, followed by `length` bytes with the
/// checksum `second`.
pub fn combined(first: u64, second: u64, length: u64) -> u64 {
    checksum_combine(ALGORITHM, first, second, length)
}

/// Computes the checksum of bytes that are passed in order, in any number of pieces.
#[derive(Clone, Copy, Debug)]
pub struct Crc64(Digest);

impl Crc64 {
    /// Begins with no bytes.
    pub fn new() -> Crc64 {
        Crc64(Digest::new(ALGORITHM))
    }

    /// Adds the next bytes of the sequence.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// Continues with the bytes of `slice`. If a peer writes them meanwhile, the checksum is
    /// unspecified.
    ///
    /// The call is not inlined, so that the compiler assumes nothing about these bytes in the
    /// caller.
    #[inline(never)]
    pub fn update_slice(&mut self, slice: &Slice) {
        // SAFETY: the slice's range is readable as long as `slice` exists (checked when it was
        // created), and this process writes to it only through raw copies. A peer may write the
        // bytes during the call. They are only folded into the checksum, by vector instructions, or
        // one at a time as indices of tables with 256 entries. So such a write can change the
        // result and nothing else. The reference does not leave this function.
        let bytes = unsafe { std::slice::from_raw_parts(slice.pointer(0).as_ptr(), slice.len()) };
        self.0.update(bytes);
    }

    /// Returns the checksum of all bytes so far.
    pub fn finish(&self) -> u64 {
        self.0.finalize()
    }
}

impl Default for Crc64 {
    fn default() -> Crc64 {
        Crc64::new()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::Memory;

    #[test]
    fn the_check_value_is_that_of_the_standard() {
        let mut crc = Crc64::new();
        crc.update(b"123456789");
        assert_eq!(crc.finish(), 0x6C40_DF5F_0B49_7347);
    }

    #[test]
    fn pieces_of_any_length_give_the_checksum_of_the_whole() {
        let bytes: Vec<u8> = (0..5000u32).map(|at| at.wrapping_mul(2_654_435_761).to_be_bytes()[0]).collect();
        let memory = Arc::new(Memory::from_vec(bytes.clone()));
        let mut whole = Crc64::new();
        whole.update_slice(&memory.whole());
        for cut in [0, 1, 7, 16, 63, 255, 256, 257, 1024, 4999, 5000] {
            let mut pieces = Crc64::new();
            let mut rest = Crc64::new();
            pieces.update(&bytes[..cut]);
            let after = memory.slice(cut, bytes.len() - cut).expect("within the memory");
            rest.update_slice(&after);
            assert_eq!(combined(pieces.finish(), rest.finish(), after.len() as u64), whole.finish(), "cut at {cut}");
            pieces.update_slice(&after);
            assert_eq!(pieces.finish(), whole.finish(), "cut at {cut}");
        }
    }
}
