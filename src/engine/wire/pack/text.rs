//! Strings: a length and bytes. Mooncake never checks that they are UTF-8, so neither type here does.

use std::fmt;

use bytes::Bytes;

use crate::engine::wire::pack::{DecodeError, Literal, Packer, Reader, Wire};

/// A string that borrows from the message it was read from.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Text<'a>(pub &'a [u8]);

/// A string of its own; clones share the bytes.
#[derive(Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TextBuf(pub Bytes);

impl<'a> From<&'a str> for Text<'a> {
    fn from(text: &'a str) -> Text<'a> {
        Text(text.as_bytes())
    }
}

impl<'a> From<&'a [u8]> for Text<'a> {
    fn from(bytes: &'a [u8]) -> Text<'a> {
        Text(bytes)
    }
}

impl Text<'_> {
    /// A copy that owns its bytes.
    pub fn to_buf(self) -> TextBuf {
        TextBuf(Bytes::copy_from_slice(self.0))
    }
}

impl TextBuf {
    /// The bytes, borrowed.
    pub fn as_text(&self) -> Text<'_> {
        Text(&self.0)
    }

    /// As UTF-8; bytes that are not become the replacement character.
    pub fn to_string_lossy(&self) -> std::borrow::Cow<'_, str> {
        String::from_utf8_lossy(&self.0)
    }

    /// Is it empty?
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl From<&str> for TextBuf {
    fn from(text: &str) -> TextBuf {
        TextBuf(Bytes::copy_from_slice(text.as_bytes()))
    }
}

impl From<String> for TextBuf {
    fn from(text: String) -> TextBuf {
        TextBuf(Bytes::from(text))
    }
}

impl fmt::Display for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&String::from_utf8_lossy(self.0))
    }
}

impl fmt::Debug for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", String::from_utf8_lossy(self.0))
    }
}

impl fmt::Display for TextBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_text().fmt(f)
    }
}

impl fmt::Debug for TextBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.as_text(), f)
    }
}

fn literal(out: &mut Literal) {
    out.byte(0x80);
    out.byte(0x0c);
}

impl<'a> Wire<'a> for Text<'a> {
    fn literal(out: &mut Literal) {
        literal(out);
    }
    #[inline]
    fn longest(&self) -> usize {
        self.0.len()
    }
    #[inline]
    fn put(&self, out: &mut Packer<'_>) {
        out.length(self.0.len());
        out.bytes(self.0);
    }
    #[inline]
    fn get(from: &mut Reader<'a>) -> Result<Text<'a>, DecodeError> {
        let length = from.length()?;
        from.take(length).map(Text)
    }
}

impl<'a> Wire<'a> for TextBuf {
    fn literal(out: &mut Literal) {
        literal(out);
    }
    fn longest(&self) -> usize {
        self.0.len()
    }
    fn put(&self, out: &mut Packer<'_>) {
        self.as_text().put(out);
    }
    fn get(from: &mut Reader<'a>) -> Result<TextBuf, DecodeError> {
        Text::get(from).map(Text::to_buf)
    }
}
