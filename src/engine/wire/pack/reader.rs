//! A bounds-checked payload reader, and a payload writer with a fixed length width.

use crate::pack::DecodeError;
use crate::pack::error::DecodeFault;
use mcctl_base::upstream::Release;

/// Width of each length field in a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LengthWidth {
    W1,
    W2,
    W4,
    W8,
}

impl LengthWidth {
    /// The smallest width that fits `longest`.
    pub fn for_length(longest: usize) -> LengthWidth {
        match longest as u64 {
            0..=0xff => LengthWidth::W1,
            0x100..=0xffff => LengthWidth::W2,
            0x1_0000..=0xffff_ffff => LengthWidth::W4,
            _ => LengthWidth::W8,
        }
    }

    /// Decodes bits 3 and 4 of the flag byte.
    pub fn from_flags(flags: u8) -> LengthWidth {
        match (flags >> 3) & 3 {
            0 => LengthWidth::W1,
            1 => LengthWidth::W2,
            2 => LengthWidth::W4,
            _ => LengthWidth::W8,
        }
    }

    /// Encodes the width as bits 3 and 4 of the flag byte.
    pub fn to_flags(self) -> u8 {
        (self as u8) << 3
    }

    /// Number of bytes per length.
    #[inline]
    pub fn bytes(self) -> usize {
        1 << (self as u8)
    }
}

#[derive(Clone, Debug)]
pub struct PayloadReader<'a> {
    left: &'a [u8],
    width: LengthWidth,
    release: Release,
}

impl<'a> PayloadReader<'a> {
    /// Creates a reader for `bytes` in a message of `release`, in which lengths have the given
    /// width.
    #[inline]
    pub fn new(bytes: &'a [u8], width: LengthWidth, release: Release) -> PayloadReader<'a> {
        PayloadReader { left: bytes, width, release }
    }

    /// Whether the message's release has what was added in `since`.
    #[inline]
    pub fn has(&self, since: Release) -> bool {
        self.release >= since
    }

    /// Number of unread bytes.
    #[inline]
    pub fn left(&self) -> usize {
        self.left.len()
    }

    /// Reads `count` bytes.
    ///
    /// # Errors
    /// Fewer bytes remain.
    #[inline]
    pub fn take(&mut self, count: usize) -> Result<&'a [u8], DecodeError> {
        let (head, tail) =
            self.left.split_at_checked(count).ok_or_else(|| DecodeError::short(count, self.left.len()))?;
        self.left = tail;
        Ok(head)
    }

    /// Reads `N` bytes as an array.
    ///
    /// # Errors
    /// Fewer bytes remain.
    #[inline]
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let (head, tail) = self.left.split_first_chunk::<N>().ok_or_else(|| DecodeError::short(N, self.left.len()))?;
        self.left = tail;
        Ok(*head)
    }

    /// Reads a string length or list count. It is at most the number of remaining bytes, because
    /// each element takes at least one byte.
    ///
    /// # Errors
    /// The bytes end early, or the length exceeds the remaining bytes.
    #[inline]
    pub fn length(&mut self) -> Result<usize, DecodeError> {
        let length = match self.width {
            LengthWidth::W1 => u64::from(u8::from_le_bytes(self.array()?)),
            LengthWidth::W2 => u64::from(u16::from_le_bytes(self.array()?)),
            LengthWidth::W4 => u64::from(u32::from_le_bytes(self.array()?)),
            LengthWidth::W8 => u64::from_le_bytes(self.array()?),
        };
        let limit = self.left.len();
        usize::try_from(length)
            .ok()
            .filter(|length| *length <= limit)
            .ok_or_else(|| DecodeFault::TooLong { length, limit: limit as u64 }.into())
    }
}

pub struct PayloadWriter<'o> {
    out: &'o mut Vec<u8>,
    width: LengthWidth,
    release: Release,
}

impl<'o> PayloadWriter<'o> {
    /// Creates a writer that appends to `out` in a message of `release`, with lengths of the given
    /// width.
    #[inline]
    pub fn new(out: &'o mut Vec<u8>, width: LengthWidth, release: Release) -> PayloadWriter<'o> {
        PayloadWriter { out, width, release }
    }

    /// Whether the message's release has what was added in `since`.
    #[inline]
    pub fn has(&self, since: Release) -> bool {
        self.release >= since
    }

    /// Appends bytes without a length.
    #[inline]
    pub fn bytes(&mut self, bytes: &[u8]) {
        self.out.extend_from_slice(bytes);
    }

    /// Appends a length or count. The message's width fits the longest one.
    #[inline]
    pub fn length(&mut self, length: usize) {
        let bytes = (length as u64).to_le_bytes();
        debug_assert!(LengthWidth::for_length(length).bytes() <= self.width.bytes(), "longest() missed a length");
        self.out.extend_from_slice(&bytes[..self.width.bytes()]);
    }
}
