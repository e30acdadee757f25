//! The frames of a log file: encoding, checksums, and the search for valid frames after a damaged
//! one.
//!
//! A frame is a header and a payload. The header has the checksum, the length of the payload, the
//! sequence number, the wall-clock time and the number of frames before it that were not known to
//! be durable. All numbers are little-endian.

use crc32c::crc32c_append;

use mcctl_base::Unix;

/// Size of a frame's header.
pub(super) const FRAME_HEADER_BYTES: usize = 28;

const LENGTH_AT: usize = 4;
const SEQUENCE_AT: usize = 8;
const TIME_AT: usize = 16;
const UNSYNCED_AT: usize = 24;

/// A frame with a correct checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Frame<'a> {
    pub sequence: u64,
    pub at: Unix,
    /// Number of frames before this one that were not known to be durable when it was written.
    /// `u32::MAX`: this many or more.
    pub unsynced: u32,
    pub payload: &'a [u8],
}

impl Frame<'_> {
    /// Size of the frame with its header.
    pub(super) fn bytes(&self) -> usize {
        FRAME_HEADER_BYTES + self.payload.len()
    }

    /// Whether the frame `sequence` was known to be durable when this frame was written.
    pub(super) fn proves_durable(&self, sequence: u64) -> bool {
        self.unsynced != u32::MAX && sequence.saturating_add(u64::from(self.unsynced)) < self.sequence
    }
}

/// Adds a frame to `buffer`. [`seal_run`] adds its checksum later.
pub(super) fn push(buffer: &mut Vec<u8>, sequence: u64, at: Unix, payload: &[u8]) {
    let mut header = [0; FRAME_HEADER_BYTES];
    #[expect(clippy::cast_possible_truncation, reason = "the writer limits the length")]
    header[LENGTH_AT..SEQUENCE_AT].copy_from_slice(&(payload.len() as u32).to_le_bytes());
    header[SEQUENCE_AT..TIME_AT].copy_from_slice(&sequence.to_le_bytes());
    header[TIME_AT..UNSYNCED_AT].copy_from_slice(&at.0.to_le_bytes());
    buffer.reserve(FRAME_HEADER_BYTES + payload.len());
    buffer.extend_from_slice(&header);
    buffer.extend_from_slice(payload);
}

/// Complete frames at the beginning of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FrameRun {
    pub bytes: usize,
    /// The sequence number of the first frame, and of the last one.
    pub first: u64,
    pub last: u64,
}

/// Completes the frames at the beginning of `buffer` that fit into `room` bytes: writes their
/// checksums for a file with this `seed`, and how many frames before each are after `durable`.
/// `None`: the first frame does not fit.
pub(super) fn seal_run(buffer: &mut [u8], room: u64, seed: u32, durable: u64) -> Option<FrameRun> {
    let mut run: Option<FrameRun> = None;
    let mut at = 0;
    while at < buffer.len() {
        let size = FRAME_HEADER_BYTES + length(&buffer[at..]);
        if (at + size) as u64 > room {
            break;
        }
        let frame = &mut buffer[at..at + size];
        let sequence = word(frame, SEQUENCE_AT);
        let unsynced = u32::try_from((sequence - 1).saturating_sub(durable)).unwrap_or(u32::MAX);
        frame[UNSYNCED_AT..FRAME_HEADER_BYTES].copy_from_slice(&unsynced.to_le_bytes());
        let crc = crc32c_append(seed, &frame[LENGTH_AT..]);
        frame[..LENGTH_AT].copy_from_slice(&crc.to_le_bytes());
        at += size;
        run = Some(FrameRun { bytes: at, first: run.map_or(sequence, |run| run.first), last: sequence });
    }
    run
}

/// The frame at the beginning of `bytes`. `None`: the bytes are not a valid frame of a file with
/// this `seed`.
pub(super) fn parse(bytes: &[u8], seed: u32) -> Option<Frame<'_>> {
    let header = bytes.get(..FRAME_HEADER_BYTES)?;
    let end = FRAME_HEADER_BYTES.checked_add(length(header))?;
    let frame = bytes.get(..end)?;
    let crc = u32::from_le_bytes([frame[0], frame[1], frame[2], frame[3]]);
    let sequence = word(frame, SEQUENCE_AT);
    // Sequence numbers begin with 1. The last one is excluded, so that a next one exists.
    if sequence == 0 || sequence == u64::MAX || crc != crc32c_append(seed, &frame[LENGTH_AT..]) {
        return None;
    }
    let unsynced = &frame[UNSYNCED_AT..FRAME_HEADER_BYTES];
    Some(Frame {
        sequence,
        at: Unix(word(frame, TIME_AT).cast_signed()),
        unsynced: u32::from_le_bytes([unsynced[0], unsynced[1], unsynced[2], unsynced[3]]),
        payload: &frame[FRAME_HEADER_BYTES..],
    })
}

/// The size of the frame whose header is `header`, which may be damaged. `None`: the header is
/// short.
pub(super) fn size(header: &[u8]) -> Option<usize> {
    (header.len() >= FRAME_HEADER_BYTES).then(|| FRAME_HEADER_BYTES.saturating_add(length(header)))
}

/// The first valid frame at or after `from` whose sequence number is at least `least`, with its
/// offset. `from` may be inside a frame.
pub(super) fn find(bytes: &[u8], from: usize, seed: u32, least: u64) -> Option<(usize, Frame<'_>)> {
    let last = bytes.len().checked_sub(FRAME_HEADER_BYTES)?;
    // Computing a checksum takes long. The sequence number is checked first, and excludes almost
    // all offsets.
    let most = least.saturating_add(bytes.len() as u64).saturating_add(u64::from(u32::MAX));
    (from..=last).find_map(|at| {
        let sequence = word(&bytes[at..], SEQUENCE_AT);
        let frame = (least..=most).contains(&sequence).then(|| parse(&bytes[at..], seed)).flatten()?;
        Some((at, frame))
    })
}

/// The number of bytes up to the last one that is not zero.
pub(super) fn used_bytes(bytes: &[u8]) -> usize {
    const BLOCK: usize = 4096;
    let is_zero = |block: &[u8]| block.iter().fold(0, |all, byte| all | byte) == 0;
    let mut end = bytes.len();
    while end > 0 {
        let begin = end.saturating_sub(BLOCK);
        if !is_zero(&bytes[begin..end]) {
            return begin + bytes[begin..end].iter().rposition(|byte| *byte != 0).map_or(0, |at| at + 1);
        }
        end = begin;
    }
    0
}

/// The length in a header that starts at the beginning of `bytes`.
fn length(bytes: &[u8]) -> usize {
    u32::from_le_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]) as usize
}

fn word(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(std::array::from_fn(|index| bytes[at + index]))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEED: u32 = 0x1234_5678;

    fn three(durable: u64) -> Vec<u8> {
        let mut buffer = Vec::new();
        for (sequence, payload) in [(5, &b"first"[..]), (6, b""), (7, b"third")] {
            push(&mut buffer, sequence, Unix(1000 + sequence.cast_signed()), payload);
        }
        seal_run(&mut buffer, u64::MAX, SEED, durable).unwrap();
        buffer
    }

    #[test]
    fn frames_round_trip() {
        let buffer = three(4);
        let first = parse(&buffer, SEED).unwrap();
        assert_eq!(first, Frame { sequence: 5, at: Unix(1005), unsynced: 0, payload: b"first" });
        let second = parse(&buffer[first.bytes()..], SEED).unwrap();
        assert_eq!(second, Frame { sequence: 6, at: Unix(1006), unsynced: 1, payload: b"" });
        let third = parse(&buffer[first.bytes() + second.bytes()..], SEED).unwrap();
        assert_eq!((third.sequence, third.unsynced, third.payload), (7, 2, &b"third"[..]));
    }

    #[test]
    fn every_flipped_bit_and_every_truncation_is_detected() {
        let whole = three(0);
        let size = parse(&whole, SEED).unwrap().bytes();
        for bit in 0..size * 8 {
            let mut bytes = whole.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(parse(&bytes, SEED), None, "{bit}");
        }
        for length in 0..size {
            assert_eq!(parse(&whole[..length], SEED), None, "{length}");
        }
        assert_eq!(parse(&whole, SEED + 1), None, "another file");
        assert_eq!(parse(&[0; 64], SEED), None, "zeros");
    }

    #[test]
    fn a_run_ends_before_the_frame_that_does_not_fit() {
        let run = |room| seal_run(&mut three(0), room, SEED, 0);
        assert_eq!(run(32), None);
        assert_eq!(run(33), Some(FrameRun { bytes: 33, first: 5, last: 5 }));
        assert_eq!(run(61), Some(FrameRun { bytes: 61, first: 5, last: 6 }));
        assert_eq!(run(93), Some(FrameRun { bytes: 61, first: 5, last: 6 }));
        assert_eq!(run(94), Some(FrameRun { bytes: 94, first: 5, last: 7 }));
    }

    #[test]
    fn a_frame_proves_that_older_frames_are_durable() {
        let buffer = three(4);
        let third = find(&buffer, 1, SEED, 7).unwrap().1;
        assert_eq!((3..=7).map(|n| third.proves_durable(n)).collect::<Vec<_>>(), [true, true, false, false, false]);
        assert!(!Frame { unsynced: u32::MAX, ..third }.proves_durable(1));
    }

    #[test]
    fn a_valid_frame_is_found_at_any_offset() {
        let buffer = [&[9; 13][..], &three(0)].concat();
        assert_eq!(find(&buffer, 0, SEED, 1).map(|(at, frame)| (at, frame.sequence)), Some((13, 5)));
        assert_eq!(find(&buffer, 14, SEED, 1).map(|(at, frame)| (at, frame.sequence)), Some((46, 6)));
        assert_eq!(find(&buffer, 0, SEED, 7).map(|(at, frame)| (at, frame.sequence)), Some((74, 7)));
        assert_eq!(find(&buffer, 0, SEED, 8), None);
        assert_eq!(find(&[0; 20], 0, SEED, 1), None);
    }

    #[test]
    fn trailing_zeros_are_not_used_bytes() {
        let mut bytes = vec![0; 10_000];
        assert_eq!(used_bytes(&bytes), 0);
        for at in [0, 1903, 1904, 5999, 9999] {
            bytes[at] = 1;
            assert_eq!(used_bytes(&bytes), at + 1);
        }
        assert_eq!(used_bytes(&[]), 0);
    }
}
