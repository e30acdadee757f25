//! Why bytes are not the value they should be.

use std::fmt;

/// The bytes do not decode; says where (a path of field names and indices) and what was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DecodeError {
    /// Field names and indices from the innermost outwards.
    path: Vec<Step>,
    /// What is wrong.
    pub fault: Fault,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Step {
    Field(&'static str),
    Index(usize),
}

/// What is wrong with the bytes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// Fewer bytes than the value takes.
    #[error("{needed} bytes needed, {left} left")]
    Short {
        /// Bytes that the value takes.
        needed: usize,
        /// Bytes that are left.
        left: usize,
    },
    /// A length or count that cannot be right.
    #[error("length {length} is over the limit of {limit}")]
    TooLong {
        /// The length as sent.
        length: u64,
        /// The most that could be there.
        limit: u64,
    },
    /// The type hash is another type's.
    #[error("type hash {found:#010x}, expected {expected:#010x}: the peer speaks another release")]
    Hash {
        /// As sent.
        found: u32,
        /// Ours.
        expected: u32,
    },
    /// The type literal differs although the hash agrees.
    #[error("the type literal differs from ours: the peer speaks another release")]
    Literal,
    /// A variant index that no alternative has.
    #[error("variant {found}, but there are only {known}")]
    Variant {
        /// As sent.
        found: u8,
        /// Number of alternatives.
        known: u8,
    },
}

impl DecodeError {
    pub(crate) fn short(needed: usize, left: usize) -> DecodeError {
        Fault::Short { needed, left }.into()
    }

    /// The same fault, seen from the struct that has it in `field`.
    #[must_use]
    pub fn within(mut self, field: &'static str) -> DecodeError {
        self.path.push(Step::Field(field));
        self
    }

    /// The same fault, seen from the list that has it at `index`.
    #[must_use]
    pub fn at(mut self, index: usize) -> DecodeError {
        self.path.push(Step::Index(index));
        self
    }
}

impl From<Fault> for DecodeError {
    fn from(fault: Fault) -> DecodeError {
        DecodeError { path: Vec::new(), fault }
    }
}

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut first = true;
        for step in self.path.iter().rev() {
            match step {
                Step::Field(name) if first => write!(f, "{name}")?,
                Step::Field(name) => write!(f, ".{name}")?,
                Step::Index(index) => write!(f, "[{index}]")?,
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
