//! Identifiers: 128-bit ids for clients, segments and tasks; byte-string keys for objects.

use std::fmt;
use std::str::FromStr;

use crate::text::Quoted;

/// Maximum length of a new object's key, and of the name of its group, in bytes. Upstream has no
/// limit. SGLang's keys are shorter than 200 bytes; those of connectors that contain the path of a
/// model may be longer than a path (4 KiB). The master keeps each key in memory.
pub const KEY_BYTES_MAX: usize = 16 << 10;
/// Maximum length of a key in a record, in bytes. Masters of earlier builds accepted keys of this
/// length, and their data is still loaded.
pub const RECORDED_KEY_BYTES_MAX: usize = 1 << 20;

macro_rules! uuid {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub u64, pub u64);

        impl fmt::Display for $name {
            /// Upstream's text representation: the two halves in decimal, joined by `-`.
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}-{}", self.0, self.1)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }

        impl FromStr for $name {
            type Err = ParseIdError;
            fn from_str(text: &str) -> Result<Self, ParseIdError> {
                let (a, b) = text.split_once('-').ok_or(ParseIdError)?;
                Ok($name(a.parse().map_err(|_| ParseIdError)?, b.parse().map_err(|_| ParseIdError)?))
            }
        }
    };
}

uuid! {
    /// Identifies a client process, which chooses the id itself.
    ClientId
}
uuid! {
    /// Identifies a mounted memory segment.
    SegmentId
}

uuid! {
    /// Identifies a copy or move task.
    TaskId
}

/// The string does not consist of two decimal numbers joined by `-`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid id: expected two decimal numbers joined by '-'")]
pub struct ParseIdError;

/// An object's key. It may contain any bytes; in practice, keys are text.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectKey(pub Box<[u8]>);

impl ObjectKey {
    /// Returns the key's bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl From<&str> for ObjectKey {
    fn from(text: &str) -> ObjectKey {
        ObjectKey(text.as_bytes().into())
    }
}

impl From<&[u8]> for ObjectKey {
    fn from(bytes: &[u8]) -> ObjectKey {
        ObjectKey(bytes.into())
    }
}

impl fmt::Display for ObjectKey {
    /// Formats the key for error messages: quoted, on a single line, and truncated if it is long.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&Quoted(&String::from_utf8_lossy(&self.0)), f)
    }
}

impl fmt::Debug for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", String::from_utf8_lossy(&self.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_round_trips_through_text() {
        let id = ClientId(7, u64::MAX);
        assert_eq!(id.to_string(), "7-18446744073709551615");
        assert_eq!(id.to_string().parse(), Ok(id));
        for bad in ["", "7", "7-", "-7", "7-x", "7-8-9", "18446744073709551616-0"] {
            assert_eq!(bad.parse::<ClientId>(), Err(ParseIdError), "{bad}");
        }
    }
}
