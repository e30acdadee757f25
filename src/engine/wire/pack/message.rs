//! Whole messages: head, flags, literal, payload.

use crate::engine::wire::pack::error::Fault;
use crate::engine::wire::pack::{DecodeError, Packer, Reader, TypeInfo, Width, Wire};

/// Flag byte: a total length follows, in the width coded by these two bits (only with `compatible` members; Mooncake has none).
const TOTAL_LENGTH: u8 = 0b0000_0011;
/// Flag byte: the NUL-terminated type literal follows.
const LITERAL: u8 = 0b0000_0100;

/// Append the message of type `info` whose payload `put` writes. With `literal` the type literal is carried along, as upstream's
/// release builds do; without, the message is in its canonical, shortest form. Receivers accept both.
pub fn encode(out: &mut Vec<u8>, info: &TypeInfo, literal: bool, longest: usize, put: impl FnOnce(&mut Packer<'_>)) {
    let width = Width::for_length(longest);
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
    put(&mut Packer::new(out, width));
}

/// Check the head of the message in `body` against `info` and give a reader of its payload.
///
/// # Errors
/// The message is of another type, or ends within its head.
pub fn open<'a>(body: &'a [u8], info: &TypeInfo) -> Result<Reader<'a>, DecodeError> {
    let mut reader = Reader::new(body, Width::W1);
    let head = u32::from_le_bytes(reader.array()?);
    if head & !1 != info.hash() {
        return Err(Fault::Hash { found: head & !1, expected: info.hash() }.into());
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
            return Err(Fault::Literal.into());
        }
    }
    let rest = reader.left();
    Ok(Reader::new(reader.take(rest)?, Width::from_flags(flags)))
}

/// Does the message carry its type literal?
pub fn carries_literal(body: &[u8]) -> bool {
    matches!(body, [head, _, _, _, flags, ..] if head & 1 != 0 && flags & LITERAL != 0)
}

/// Decode a whole message of type `info`. Bytes after the payload are ignored, as upstream does.
///
/// # Errors
/// The message is of another type or malformed.
pub fn decode<'a, T: Wire<'a>>(body: &'a [u8], info: &TypeInfo) -> Result<T, DecodeError> {
    T::get(&mut open(body, info)?)
}
