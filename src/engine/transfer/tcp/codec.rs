//! Data plane frames. Pure.
//!
//! ```text
//! request  u64 size | u64 address | u8 opcode: 0 read, 1 write, 0x80 = version 2 | 7 bytes of padding     (24 bytes)
//! status   u64 = 0x4D435456_00000000 | code, code 0 = done, 1 = address rejected                           (8 bytes)
//! ```
//! All fields are little-endian. The padding is C struct padding: zeros since 0.3.13, garbage
//! before that, so it is ignored. Version 1 has no status frames.

use crate::types::OpKind;

/// Size of a request header.
pub const HEADER_BYTES: usize = 24;
/// Size of a status frame.
pub const STATUS_BYTES: usize = 8;

/// Status code for success.
pub const DONE: u32 = 0;
/// Status code for a range that is not in registered memory.
pub const REFUSED: u32 = 1;

const VERSION_2: u8 = 0x80;
const WRITE: u8 = 1;
const MAGIC: u64 = 0x4D43_5456;

/// The framing version of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FramingVersion {
    /// Only requests and data bytes, without status frames.
    V1,
    /// A status frame before the bytes of a read, and after the bytes of a write.
    V2,
}

/// The header of a request: direction, address and length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestFrame {
    pub kind: OpKind,
    pub version: FramingVersion,
    /// First address of the range in the target's process.
    pub address: u64,
    pub size: u64,
}

impl RequestFrame {
    /// Encodes the header for sending.
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[..8].copy_from_slice(&self.size.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.address.to_le_bytes());
        let write = if self.kind == OpKind::Write { WRITE } else { 0 };
        bytes[16] = write | if self.version == FramingVersion::V2 { VERSION_2 } else { 0 };
        bytes
    }

    /// Decodes a header. Every byte sequence is valid: anything but a write is a read, as in
    /// upstream's servers.
    pub fn decode(bytes: &[u8; HEADER_BYTES]) -> RequestFrame {
        let (words, rest) = bytes.as_chunks::<8>();
        debug_assert!(rest.is_empty() && words.len() == 3, "24 bytes are three 8-byte words");
        let opcode = bytes[16];
        RequestFrame {
            kind: if opcode & !VERSION_2 == WRITE { OpKind::Write } else { OpKind::Read },
            version: if opcode & VERSION_2 == 0 { FramingVersion::V1 } else { FramingVersion::V2 },
            address: u64::from_le_bytes(words[1]),
            size: u64::from_le_bytes(words[0]),
        }
    }
}

/// Encodes a status frame.
pub fn encode_status(code: u32) -> [u8; STATUS_BYTES] {
    (MAGIC << 32 | u64::from(code)).to_le_bytes()
}

/// Decodes a status frame and returns its code.
///
/// # Errors
/// Fails with the received 64-bit word if it is not a status frame.
pub fn decode_status(bytes: [u8; STATUS_BYTES]) -> Result<u32, u64> {
    let word = u64::from_le_bytes(bytes);
    let [a, b, c, d, ..] = bytes;
    if word >> 32 == MAGIC { Ok(u32::from_le_bytes([a, b, c, d])) } else { Err(word) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn request_frames_equal_the_real_engines() {
        // From a 0.3.13 initiator that writes 16 bytes and then reads 16 bytes, in version 2.
        let write = b"\x10\0\0\0\0\0\0\0\x00\xc0\xab\x06\x88\x7f\0\0\x81\0\0\0\0\0\0\0";
        let header =
            RequestFrame { kind: OpKind::Write, version: FramingVersion::V2, address: 0x7f88_06ab_c000, size: 16 };
        assert_eq!((&header.encode(), RequestFrame::decode(write)), (write, header));
        let read = b"\x10\0\0\0\0\0\0\0\x10\xc0\xab\x06\x88\x7f\0\0\x80\0\0\0\0\0\0\0";
        let header =
            RequestFrame { kind: OpKind::Read, version: FramingVersion::V2, address: 0x7f88_06ab_c010, size: 16 };
        assert_eq!((&header.encode(), RequestFrame::decode(read)), (read, header));
    }

    #[test]
    fn status_frames_equal_the_real_engines() {
        assert_eq!(&encode_status(DONE), b"\0\0\0\0VTCM");
        assert_eq!(&encode_status(REFUSED), b"\x01\0\0\0VTCM");
        assert_eq!(decode_status(*b"\0\0\0\0VTCM"), Ok(DONE));
        assert_eq!(decode_status(*b"\x07\0\0\0VTCM"), Ok(7));
        assert_eq!(decode_status(*b"HTTP/1.1"), Err(u64::from_le_bytes(*b"HTTP/1.1")));
    }

    #[test]
    fn padding_is_ignored_and_an_unknown_opcode_is_a_read() {
        let mut bytes = RequestFrame { kind: OpKind::Write, version: FramingVersion::V1, address: 5, size: 6 }.encode();
        bytes[17..].copy_from_slice(b"garbage");
        assert_eq!(RequestFrame::decode(&bytes).kind, OpKind::Write);
        for opcode in [5, 0x40, 0xC0] {
            bytes[16] = opcode;
            assert_eq!(RequestFrame::decode(&bytes).kind, OpKind::Read);
        }
    }

    proptest! {
        #[test]
        fn request_frames_round_trip(write: bool, v2: bool, address: u64, size: u64) {
            let header = RequestFrame {
                kind: if write { OpKind::Write } else { OpKind::Read },
                version: if v2 { FramingVersion::V2 } else { FramingVersion::V1 },
                address, size,
            };
            prop_assert_eq!(RequestFrame::decode(&header.encode()), header);
        }

        #[test]
        fn status_frames_round_trip_and_other_values_are_rejected(code: u32, word: u64) {
            prop_assert_eq!(decode_status(encode_status(code)), Ok(code));
            prop_assert_eq!(decode_status(word.to_le_bytes()).is_ok(), word >> 32 == MAGIC);
        }
    }
}
