//! The two ends of a payload: a reader that cannot be over-read, and a writer that knows the width of lengths.

use crate::engine::wire::pack::DecodeError;
use crate::engine::wire::pack::error::Fault;

/// How many bytes each length in a message takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Width {
    /// One byte.
    W1,
    /// Two bytes.
    W2,
    /// Four bytes.
    W4,
    /// Eight bytes.
    W8,
}

impl Width {
    /// The smallest width that holds `longest`.
    pub fn for_length(longest: usize) -> Width {
        match longest as u64 {
            0..=0xff => Width::W1,
            0x100..=0xffff => Width::W2,
            0x1_0000..=0xffff_ffff => Width::W4,
            _ => Width::W8,
        }
    }

    /// From bits 3 and 4 of the flag byte.
    pub fn from_flags(flags: u8) -> Width {
        match (flags >> 3) & 3 {
            0 => Width::W1,
            1 => Width::W2,
            2 => Width::W4,
            _ => Width::W8,
        }
    }

    /// As bits 3 and 4 of the flag byte.
    pub fn to_flags(self) -> u8 {
        (self as u8) << 3
    }

    /// Bytes per length.
    pub fn bytes(self) -> usize {
        1 << (self as u8)
    }
}

/// What is left to read of a payload.
#[derive(Clone, Debug)]
pub struct Reader<'a> {
    left: &'a [u8],
    width: Width,
}

impl<'a> Reader<'a> {
    /// Read `bytes`, whose lengths are `width` wide.
    pub fn new(bytes: &'a [u8], width: Width) -> Reader<'a> {
        Reader { left: bytes, width }
    }

    /// Bytes not yet read.
    pub fn left(&self) -> usize {
        self.left.len()
    }

    /// The next `count` bytes.
    ///
    /// # Errors
    /// Fewer are left.
    pub fn take(&mut self, count: usize) -> Result<&'a [u8], DecodeError> {
        let (head, tail) =
            self.left.split_at_checked(count).ok_or_else(|| DecodeError::short(count, self.left.len()))?;
        self.left = tail;
        Ok(head)
    }

    /// The next `N` bytes, as an array.
    ///
    /// # Errors
    /// Fewer are left.
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let (head, tail) = self.left.split_first_chunk::<N>().ok_or_else(|| DecodeError::short(N, self.left.len()))?;
        self.left = tail;
        Ok(*head)
    }

    /// A string's length or a list's count. It is at most the number of bytes left, as each element takes one at least.
    ///
    /// # Errors
    /// The bytes end, or the length is larger than what is left.
    pub fn length(&mut self) -> Result<usize, DecodeError> {
        let length = match self.width {
            Width::W1 => u64::from(u8::from_le_bytes(self.array()?)),
            Width::W2 => u64::from(u16::from_le_bytes(self.array()?)),
            Width::W4 => u64::from(u32::from_le_bytes(self.array()?)),
            Width::W8 => u64::from_le_bytes(self.array()?),
        };
        let limit = self.left.len();
        usize::try_from(length)
            .ok()
            .filter(|length| *length <= limit)
            .ok_or_else(|| Fault::TooLong { length, limit: limit as u64 }.into())
    }
}

/// Where a payload is written.
pub struct Packer<'o> {
    out: &'o mut Vec<u8>,
    width: Width,
}

impl<'o> Packer<'o> {
    /// Append to `out`, with lengths `width` wide.
    pub fn new(out: &'o mut Vec<u8>, width: Width) -> Packer<'o> {
        Packer { out, width }
    }

    /// Append bytes as they are.
    pub fn bytes(&mut self, bytes: &[u8]) {
        self.out.extend_from_slice(bytes);
    }

    /// Append a length or count. The message's width was chosen to hold the longest.
    pub fn length(&mut self, length: usize) {
        let bytes = (length as u64).to_le_bytes();
        debug_assert!(Width::for_length(length).bytes() <= self.width.bytes(), "longest() missed a length");
        self.out.extend_from_slice(&bytes[..self.width.bytes()]);
    }
}
