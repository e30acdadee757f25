//! Decoding errors.

use std::fmt;

use mcctl_base::upstream::Release;

/// Why a message cannot be decoded, with the path (field names and indices) to the invalid value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DecodeError {
    /// Field names and indices, innermost first.
    path: Vec<PathStep>,
    pub fault: DecodeFault,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum PathStep {
    Field(&'static str),
    Index(usize),
}

/// What is wrong with the bytes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeFault {
    /// Fewer bytes remain than the value needs.
    #[error("{needed} bytes needed, {left} left")]
    Short {
        /// Number of bytes that the value needs.
        needed: usize,
        left: usize,
    },
    /// A length or count exceeds its limit.
    #[error("length {length} exceeds the limit of {limit}")]
    TooLong {
        /// The length in the message.
        length: u64,
        /// The maximum, for example the number of remaining bytes.
        limit: u64,
    },
    /// The type hash does not match the expected type.
    #[error("type hash {found:#010x}, expected {expected:#010x}: the peer runs a different release")]
    Hash { found: u32, expected: u32 },
    /// The type literal differs although the hash is the same.
    #[error("type literal mismatch: the peer runs a different release")]
    Literal,
    /// The release of the peer lacks the method.
    #[error("{method} is not available in release {release}")]
    NoMethod { method: &'static str, release: Release },
    /// No variant has this index.
    #[error("variant index {found} is out of range: there are {known} variants")]
    Variant { found: u8, known: u8 },
}

impl DecodeError {
    pub(crate) fn short(needed: usize, left: usize) -> DecodeError {
        DecodeFault::Short { needed, left }.into()
    }

    /// Adds the field that contains the error to the path.
    #[must_use]
    pub fn within(mut self, field: &'static str) -> DecodeError {
        self.path.push(PathStep::Field(field));
        self
    }

    /// Adds the list index that contains the error to the path.
    #[must_use]
    pub fn at(mut self, index: usize) -> DecodeError {
        self.path.push(PathStep::Index(index));
        self
    }
}

impl From<DecodeFault> for DecodeError {
    fn from(fault: DecodeFault) -> DecodeError {
        DecodeError { path: Vec::new(), fault }
    }
}

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut first = true;
        for step in self.path.iter().rev() {
            match step {
                PathStep::Field(name) if first => write!(f, "{name}")?,
                PathStep::Field(name) => write!(f, ".{name}")?,
                PathStep::Index(index) => write!(f, "[{index}]")?,
            }
            first = false;
        }
        if !first {
            f.write_str(": ")?;
        }
        self.fault.fmt(f)
    }
}

impl std::error::Error for DecodeError {}
