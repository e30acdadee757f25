//! Complete messages: head, flags, literal, payload.

use crate::pack::error::DecodeFault;
use crate::pack::{DecodeError, LengthWidth, PayloadReader, PayloadWriter, TypeInfo, Wire};

/// Flag bits: a total length follows. These two bits encode its width (only with `compatible`
/// members; Mooncake has none).
const TOTAL_LENGTH: u8 = 0b0000_0011;
/// Flag bit: the NUL-terminated type literal follows.
const LITERAL: u8 = 0b0000_0100;

/// Appends a message of type `info` whose payload `put` writes. With `literal`, the message
/// includes the type literal, as in upstream's release builds. Otherwise it has its shortest form.
/// Receivers accept both.
pub fn encode(
    out: &mut Vec<u8>,
    info: &TypeInfo,
    literal: bool,
    longest: usize,
    put: impl FnOnce(&mut PayloadWriter<'_>),
) {
    let width = LengthWidth::for_length(longest);
    let flags = width.to_flags() | if literal { LITERAL } else { 0 };
    if flags == 0 {
        out.extend_from_slice(&info.hash().to_le_bytes());
    } else {
        out.extend_from_slice(&(info.hash() | 1).to_le_bytes());
        out.push(flags);
        if literal {
            out.extend_from_slice(info.literal());
            out.push(0);
        }
    }
    put(&mut PayloadWriter::new(out, width, info.release()));
}

/// Checks the head of the message in `body` against `info` and returns a reader for its payload.
///
/// # Errors
/// The message has a different type, or ends within its head.
pub fn open<'a>(body: &'a [u8], info: &TypeInfo) -> Result<PayloadReader<'a>, DecodeError> {
    let mut reader = PayloadReader::new(body, LengthWidth::W1, info.release());
    let head = u32::from_le_bytes(reader.array()?);
    if head & !1 != info.hash() {
        return Err(DecodeFault::Hash { found: head & !1, expected: info.hash() }.into());
    }
    if head & 1 == 0 {
        return Ok(reader);
    }
    let [flags] = reader.array()?;
    if flags & TOTAL_LENGTH != 0 {
        reader.take(1 << (flags & TOTAL_LENGTH))?;
    }
    if flags & LITERAL != 0 {
        let found = reader.take(info.literal().len() + 1)?;
        if found.split_last() != Some((&0, info.literal())) {
            return Err(DecodeFault::Literal.into());
        }
    }
    let rest = reader.left();
    Ok(PayloadReader::new(reader.take(rest)?, LengthWidth::from_flags(flags), info.release()))
}

/// Returns the type hash at the start of a message; `None` if it is shorter.
#[inline]
pub fn type_hash(body: &[u8]) -> Option<u32> {
    body.first_chunk().map(|head| u32::from_le_bytes(*head) & !1)
}

/// Returns true if the message contains its type literal.
pub fn carries_literal(body: &[u8]) -> bool {
    matches!(body, [head, _, _, _, flags, ..] if head & 1 != 0 && flags & LITERAL != 0)
}

/// Decodes a complete message of type `info`. Bytes after the payload are ignored, as in upstream.
///
/// # Errors
/// The message has a different type or is malformed.
pub fn decode<'a, T: Wire<'a>>(body: &'a [u8], info: &TypeInfo) -> Result<T, DecodeError> {
    T::get(&mut open(body, info)?)
}
