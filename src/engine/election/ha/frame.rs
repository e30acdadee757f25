//! Frames on the stream between a leader and a standby.
//!
//! A frame is a header of 28 bytes and a payload. Numbers are little-endian.
//!
//! | offset | bytes | |
//! |---|---|---|
//! | 0 | 4 | length of the payload |
//! | 4 | 1 | kind ([`FrameKind`]) |
//! | 5 | 3 | zero |
//! | 8 | 8 | view of the leader |
//! | 16 | 8 | sequence number: of the first change, or of the last one that the frame refers to |
//! | 24 | 4 | crc32c of the first 24 bytes and the payload |

use bytes::{Buf, Bytes, BytesMut};
use crc32c::{crc32c, crc32c_append};

/// Size of a header, in bytes.
pub const FRAME_HEADER_BYTES: usize = 28;
/// Maximum size of a payload, in bytes. A change of the state is smaller.
pub const FRAME_BYTES_MAX: usize = 64 << 20;

/// The type of a payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum FrameKind {
    /// Changes, in the order of their numbers ([`Changes`](super::message::Changes)).
    Changes = 1,
    /// A message of the election ([`HaMessage`](super::HaMessage)).
    Control = 2,
    /// A chunk of a snapshot after the change with this number.
    SnapshotChunk = 3,
    /// The end of a snapshot ([`SnapshotEnd`](super::message::SnapshotEnd)).
    SnapshotEnd = 4,
    /// The digest of a part of the state after the change with this number
    /// ([`StateDigest`](super::message::StateDigest)).
    Digest = 5,
    /// The times of the clients' last pings ([`ClientPings`](super::message::ClientPings)).
    Clients = 6,
}

impl FrameKind {
    fn from_number(number: u8) -> Option<FrameKind> {
        use FrameKind::{Changes, Clients, Control, Digest, SnapshotChunk, SnapshotEnd};
        [Changes, Control, SnapshotChunk, SnapshotEnd, Digest, Clients].into_iter().find(|kind| *kind as u8 == number)
    }
}

/// A frame that was received completely, without its checksum.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    pub kind: FrameKind,
    pub view: u64,
    pub sequence: u64,
    pub payload: Bytes,
}

/// The bytes are not a frame. The stream must be closed, because the start of the next frame is
/// unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StreamFrameError {
    #[error("unknown frame type {0}: does the peer run a newer release?")]
    UnknownKind(u8),
    #[error("a frame of {0} bytes is too long")]
    TooLong(usize),
    #[error("corrupt frame: checksum {found:08x}, expected {expected:08x}")]
    Checksum { expected: u32, found: u32 },
}

/// Appends a frame to `out`.
pub fn put_frame(out: &mut Vec<u8>, kind: FrameKind, view: u64, sequence: u64, payload: &[u8]) {
    let length = u32::try_from(payload.len()).unwrap_or(u32::MAX);
    let from = out.len();
    out.extend_from_slice(&length.to_le_bytes());
    out.extend_from_slice(&[kind as u8, 0, 0, 0]);
    out.extend_from_slice(&view.to_le_bytes());
    out.extend_from_slice(&sequence.to_le_bytes());
    let checksum = crc32c_append(crc32c(&out[from..]), payload);
    out.extend_from_slice(&checksum.to_le_bytes());
    out.extend_from_slice(payload);
}

/// Removes the first frame from `input`; `None` if it is not complete.
///
/// # Errors
/// The bytes are not a frame.
pub fn take_frame(input: &mut BytesMut) -> Result<Option<Frame>, StreamFrameError> {
    if input.len() < FRAME_HEADER_BYTES {
        return Ok(None);
    }
    let mut header = &input[..FRAME_HEADER_BYTES];
    let length = header.get_u32_le() as usize;
    let number = header.get_u32_le();
    let view = header.get_u64_le();
    let sequence = header.get_u64_le();
    let expected = header.get_u32_le();
    let kind = u8::try_from(number).ok().and_then(FrameKind::from_number);
    let kind = kind.ok_or(StreamFrameError::UnknownKind((number & 0xff) as u8))?;
    if length > FRAME_BYTES_MAX {
        return Err(StreamFrameError::TooLong(length));
    }
    if input.len() < FRAME_HEADER_BYTES + length {
        return Ok(None);
    }
    let before = crc32c(&input[..FRAME_HEADER_BYTES - 4]);
    let found = crc32c_append(before, &input[FRAME_HEADER_BYTES..FRAME_HEADER_BYTES + length]);
    if found != expected {
        return Err(StreamFrameError::Checksum { expected, found });
    }
    input.advance(FRAME_HEADER_BYTES);
    Ok(Some(Frame { kind, view, sequence, payload: input.split_to(length).freeze() }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Vec<u8> {
        let mut bytes = Vec::new();
        put_frame(&mut bytes, FrameKind::Changes, 7, 1000, b"payload");
        bytes
    }

    #[test]
    fn a_frame_has_these_bytes() {
        let header = "07000000 01000000 0700000000000000 e803000000000000";
        let bytes = sample();
        let hex: String = bytes[..24].iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, header.replace(' ', ""));
        assert_eq!((bytes.len(), &bytes[28..]), (35, &b"payload"[..]));
    }

    #[test]
    fn a_frame_above_the_size_limit_is_refused_before_its_payload() {
        let mut frame = Vec::new();
        put_frame(&mut frame, FrameKind::Control, 1, 2, b"");
        let length = FRAME_BYTES_MAX + 2;
        frame[..4].copy_from_slice(&u32::try_from(length).unwrap().to_le_bytes());
        let error = take_frame(&mut BytesMut::from(&frame[..])).unwrap_err();
        assert!(matches!(error, StreamFrameError::TooLong(found) if found == length), "{error}");
    }

    #[test]
    fn a_frame_is_taken_when_it_is_complete() {
        let bytes = sample();
        let mut input = BytesMut::new();
        for byte in &bytes {
            assert_eq!(take_frame(&mut input), Ok(None));
            input.extend_from_slice(&[*byte]);
        }
        input.extend_from_slice(b"next");
        let payload = Bytes::from_static(b"payload");
        let frame = Frame { kind: FrameKind::Changes, view: 7, sequence: 1000, payload };
        assert_eq!((take_frame(&mut input), &input[..]), (Ok(Some(frame)), &b"next"[..]));
    }

    #[test]
    fn no_flipped_bit_is_accepted() {
        let bytes = sample();
        for bit in 0..bytes.len() * 8 {
            let mut damaged = BytesMut::from(&bytes[..]);
            damaged[bit / 8] ^= 1 << (bit % 8);
            // A longer length waits for more bytes; everything else is an error.
            let is_length = bit < 32;
            match take_frame(&mut damaged) {
                Err(_) => {}
                Ok(None) if is_length => {}
                other => panic!("bit {bit}: {other:?}"),
            }
        }
    }
}
