//! Strings: a length and bytes. Mooncake never checks that they are valid UTF-8, so neither do
//! these types.

use std::fmt;

use bytes::Bytes;

use crate::pack::{DecodeError, PayloadReader, PayloadWriter, TypeLiteral, Wire};

/// A string that borrows from its message.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Text<'a>(pub &'a [u8]);

/// An owned string. Clones share the bytes.
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
    /// Copies the string into an owned one.
    #[inline]
    pub fn to_buf(self) -> TextBuf {
        TextBuf(Bytes::copy_from_slice(self.0))
    }
}

impl TextBuf {
    /// Borrows the bytes as a `Text`.
    #[inline]
    pub fn as_text(&self) -> Text<'_> {
        Text(&self.0)
    }

    /// Returns the string as UTF-8, with invalid bytes replaced.
    pub fn to_string_lossy(&self) -> std::borrow::Cow<'_, str> {
        String::from_utf8_lossy(&self.0)
    }

    /// Returns true if the string is empty.
    #[inline]
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

fn literal(out: &mut TypeLiteral) {
    out.byte(0x80);
    out.byte(0x0c);
}

impl<'a> Wire<'a> for Text<'a> {
    fn literal(out: &mut TypeLiteral) {
        literal(out);
    }
    #[inline]
    fn longest(&self) -> usize {
        self.0.len()
    }
    #[inline]
    fn put(&self, out: &mut PayloadWriter<'_>) {
        out.length(self.0.len());
        out.bytes(self.0);
    }
    #[inline]
    fn get(from: &mut PayloadReader<'a>) -> Result<Text<'a>, DecodeError> {
        let length = from.length()?;
        from.take(length).map(Text)
    }
}

impl<'a> Wire<'a> for TextBuf {
    fn literal(out: &mut TypeLiteral) {
        literal(out);
    }
    #[inline]
    fn longest(&self) -> usize {
        self.0.len()
    }
    #[inline]
    fn put(&self, out: &mut PayloadWriter<'_>) {
        self.as_text().put(out);
    }
    #[inline]
    fn get(from: &mut PayloadReader<'a>) -> Result<TextBuf, DecodeError> {
        Text::get(from).map(Text::to_buf)
    }
}
