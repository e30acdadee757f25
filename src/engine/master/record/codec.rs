//! The numbers and byte strings of the records: varints (7 bits per byte, lowest first) and byte
//! strings with their length in front.

use mcctl_base::{ClientId, SegmentId};

/// Why a payload cannot be decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{problem} at byte {position} of the payload")]
pub struct RecordError {
    /// Offset in the payload, in bytes.
    pub position: usize,
    pub problem: RecordProblem,
}

/// What is wrong with a payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordProblem {
    #[error("unknown data format {0}")]
    UnknownFormat(u8),
    #[error("unknown record {0}")]
    UnknownTag(u8),
    #[error("unknown flags {0:#04x}")]
    UnknownFlags(u8),
    #[error("end of data inside a record")]
    Short,
    #[error("number out of range")]
    NumberTooLarge,
    #[error("object without replicas")]
    NoReplica,
}

/// Appends values to a payload.
#[derive(Debug)]
pub(super) struct RecordWriter<'a>(pub &'a mut Vec<u8>);

impl RecordWriter<'_> {
    pub(super) fn byte(&mut self, value: u8) {
        self.0.push(value);
    }

    #[inline]
    pub(super) fn number(&mut self, value: u64) {
        #[expect(clippy::cast_possible_truncation, reason = "the lowest seven bits")]
        let low = |value: u64| value as u8 & 0x7f;
        if value < 0x80 {
            return self.0.push(low(value));
        }
        let mut bytes = [0; 10];
        let mut len = 0;
        let mut value = value;
        while value >= 0x80 {
            bytes[len] = low(value) | 0x80;
            len += 1;
            value >>= 7;
        }
        bytes[len] = low(value);
        self.0.extend_from_slice(&bytes[..=len]);
    }

    /// A number that may be negative: the sign is the lowest bit.
    pub(super) fn signed(&mut self, value: i64) {
        self.number((value.cast_unsigned() << 1) ^ (value >> 63).cast_unsigned());
    }

    pub(super) fn bytes(&mut self, value: &[u8]) {
        self.number(value.len() as u64);
        self.0.extend_from_slice(value);
    }

    /// Eight bytes, lowest first, for numbers that use all their bits.
    pub(super) fn fixed(&mut self, value: u64) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    pub(super) fn client(&mut self, ClientId(high, low): ClientId) {
        self.fixed(high);
        self.fixed(low);
    }

    pub(super) fn segment(&mut self, SegmentId(high, low): SegmentId) {
        self.fixed(high);
        self.fixed(low);
    }
}

/// Reads values from a payload. Never reads beyond its end.
#[derive(Clone, Copy, Debug)]
pub(super) struct RecordReader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> RecordReader<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> RecordReader<'a> {
        RecordReader { bytes, at: 0 }
    }

    pub(super) fn position(&self) -> usize {
        self.at
    }

    pub(super) fn is_at_end(&self) -> bool {
        self.at >= self.bytes.len()
    }

    /// The bytes from `begin` to the current position.
    pub(super) fn since(&self, begin: usize) -> &'a [u8] {
        self.bytes.get(begin..self.at).unwrap_or(&[])
    }

    pub(super) fn error(&self, problem: RecordProblem) -> RecordError {
        RecordError { position: self.at, problem }
    }

    fn take(&mut self, len: usize) -> Result<&'a [u8], RecordError> {
        let end = self.at.checked_add(len);
        let taken = end.and_then(|end| self.bytes.get(self.at..end)).ok_or(self.error(RecordProblem::Short))?;
        self.at += len;
        Ok(taken)
    }

    pub(super) fn byte(&mut self) -> Result<u8, RecordError> {
        Ok(self.take(1)?[0])
    }

    pub(super) fn number(&mut self) -> Result<u64, RecordError> {
        let begin = *self;
        let mut value = 0u64;
        for shift in (0..u64::BITS).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            if bits << shift >> shift != bits {
                break;
            }
            value |= bits << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(begin.error(RecordProblem::NumberTooLarge))
    }

    /// A number that fits into 32 bits, for slots and counts.
    pub(super) fn number32(&mut self) -> Result<u32, RecordError> {
        let begin = *self;
        u32::try_from(self.number()?).map_err(|_| begin.error(RecordProblem::NumberTooLarge))
    }

    pub(super) fn signed(&mut self) -> Result<i64, RecordError> {
        let value = self.number()?;
        Ok((value >> 1).cast_signed() ^ -(value & 1).cast_signed())
    }

    pub(super) fn bytes(&mut self) -> Result<&'a [u8], RecordError> {
        let begin = *self;
        let len = usize::try_from(self.number()?).map_err(|_| begin.error(RecordProblem::NumberTooLarge))?;
        self.take(len)
    }

    pub(super) fn fixed(&mut self) -> Result<u64, RecordError> {
        let mut value = [0; 8];
        value.copy_from_slice(self.take(8)?);
        Ok(u64::from_le_bytes(value))
    }

    pub(super) fn client(&mut self) -> Result<ClientId, RecordError> {
        Ok(ClientId(self.fixed()?, self.fixed()?))
    }

    pub(super) fn segment(&mut self) -> Result<SegmentId, RecordError> {
        Ok(SegmentId(self.fixed()?, self.fixed()?))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn numbers_that_do_not_fit_are_refused_at_their_first_byte() {
        let number = |bytes: &[u8]| {
            let mut reader = RecordReader::new(bytes);
            reader.byte().and_then(|_| reader.number())
        };
        let too_large = Err(RecordError { position: 1, problem: RecordProblem::NumberTooLarge });
        assert_eq!(number(&[7, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x02]), too_large);
        assert_eq!(number(&[7, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01]), too_large);
        assert_eq!(number(&[7, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01]), Ok(u64::MAX));
        assert_eq!(number(&[7, 0x80]), Err(RecordError { position: 2, problem: RecordProblem::Short }));
        assert_eq!(
            RecordReader::new(&[0x80, 0x80, 0x80, 0x80, 0x10]).number32(),
            Err(RecordError { position: 0, problem: RecordProblem::NumberTooLarge })
        );
    }

    proptest! {
        #[test]
        fn values_round_trip(number: u64, shift in 0u32..64, signed: i64, bytes: Vec<u8>) {
            let mut out = Vec::new();
            let mut writer = RecordWriter(&mut out);
            writer.number(number >> shift);
            writer.signed(signed >> shift);
            writer.bytes(&bytes);
            writer.fixed(number);
            let mut reader = RecordReader::new(&out);
            prop_assert_eq!(reader.number(), Ok(number >> shift));
            prop_assert_eq!(reader.signed(), Ok(signed >> shift));
            prop_assert_eq!(reader.bytes(), Ok(&bytes[..]));
            prop_assert_eq!(reader.fixed(), Ok(number));
            prop_assert!(reader.is_at_end());
        }
    }
}
