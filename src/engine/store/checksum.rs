//! The checksum of an object: CRC-64/ECMA-182 over its bytes, as in upstream's 0.3.13 client.
//!
//! The writer sends it with the end of its write. The master stores it and returns it to readers,
//! who compare it with the bytes that they have read. Only a read of the whole object can be
//! compared.

use crate::ObjectPart;
use mcctl_sys::crc64::{self, Crc64};

/// Whether the bytes that were read are those that the writer sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChecksumResult {
    Equal,
    Different,
    Unchecked(Unchecked),
}

/// Why bytes were not compared with a checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unchecked {
    /// Checksums are switched off.
    Off,
    /// The object has no checksum: its writer sent none.
    NoChecksum,
    /// Only a part of the object was read, or was written in an order in which its checksum is
    /// unknown.
    Part,
}

/// Returns the checksum of an object whose bytes are `parts`, in order.
pub fn of_parts(parts: &[ObjectPart]) -> u64 {
    let mut crc = Crc64::new();
    parts.iter().for_each(|part| crc.update_slice(&part.local));
    crc.finish()
}

/// Compares the bytes in `parts` with the checksum of their object, which has `size` bytes.
pub fn compare(checksum: Option<u64>, size: u64, parts: &[ObjectPart]) -> ChecksumResult {
    let Some(expected) = checksum else { return ChecksumResult::Unchecked(Unchecked::NoChecksum) };
    if !is_whole(parts, size) {
        return ChecksumResult::Unchecked(Unchecked::Part);
    }
    if of_parts(parts) == expected { ChecksumResult::Equal } else { ChecksumResult::Different }
}

/// Whether `parts` are an object of `size` bytes from its first to its last byte.
fn is_whole(parts: &[ObjectPart], size: u64) -> bool {
    let mut next = 0;
    let follows = |part: &ObjectPart| {
        let follows = part.offset == next;
        next += part.local.len() as u64;
        follows
    };
    parts.iter().all(follows) && next == size
}

/// The checksum of an object that is written in several calls. It is known if the parts that were
/// written cover the object without overlaps, in any order.
#[derive(Clone, Debug, Default)]
pub struct PartChecksums {
    /// Offset, length and checksum of each part.
    parts: Vec<(u64, u64, u64)>,
}

impl PartChecksums {
    /// Computes the checksums of `parts`.
    pub fn of(parts: &[ObjectPart]) -> PartChecksums {
        let checksum = |part: &ObjectPart| {
            let mut crc = Crc64::new();
            crc.update_slice(&part.local);
            (part.offset, part.local.len() as u64, crc.finish())
        };
        PartChecksums { parts: parts.iter().map(checksum).collect() }
    }

    /// Adds other parts of the object.
    pub fn append(&mut self, other: PartChecksums) {
        self.parts.extend(other.parts);
    }

    /// Returns the checksum of the object, which has `size` bytes.
    pub fn of_object(&self, size: u64) -> Option<u64> {
        let mut parts = self.parts.clone();
        parts.sort_unstable_by_key(|(offset, ..)| *offset);
        let mut next = 0;
        let mut whole = Crc64::new().finish();
        for (offset, length, crc) in &parts {
            if *offset != next {
                return None;
            }
            next += length;
            whole = crc64::combined(whole, *crc, *length);
        }
        (next == size).then_some(whole)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use mcctl_sys::Memory;

    fn part(offset: u64, bytes: &[u8]) -> ObjectPart {
        ObjectPart { offset, local: Arc::new(Memory::from_vec(bytes.to_vec())).whole() }
    }

    #[test]
    fn only_a_whole_object_with_a_checksum_is_compared() {
        let whole = [part(0, b"1234"), part(4, b"56789")];
        let expected = Some(of_parts(&whole));
        assert_eq!(expected, Some(0x6C40_DF5F_0B49_7347));
        assert_eq!(compare(expected, 9, &whole), ChecksumResult::Equal);
        assert_eq!(compare(Some(1), 9, &whole), ChecksumResult::Different);
        assert_eq!(compare(None, 9, &whole), ChecksumResult::Unchecked(Unchecked::NoChecksum));
        for parts in [&whole[..1], &whole[1..], &[part(5, b"6789"), part(0, b"12345")]] {
            assert_eq!(compare(expected, 9, parts), ChecksumResult::Unchecked(Unchecked::Part));
        }
    }

    #[test]
    fn parts_that_cover_an_object_once_have_its_checksum_in_any_order() {
        let of = |parts: &[ObjectPart]| {
            let mut checksums = PartChecksums::default();
            parts.iter().for_each(|part| checksums.append(PartChecksums::of(std::slice::from_ref(part))));
            checksums.of_object(9)
        };
        let expected = Some(0x6C40_DF5F_0B49_7347);
        assert_eq!(of(&[part(4, b"56789"), part(0, b"1"), part(1, b"234")]), expected);
        assert_eq!(of(&[part(0, b"1234"), part(5, b"6789")]), None, "a gap");
        assert_eq!(of(&[part(0, b"12345"), part(4, b"56789")]), None, "an overlap");
        assert_eq!(of(&[part(0, b"12345678")]), None, "the end is missing");
    }
}
