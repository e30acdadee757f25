//! Sizes in the deployment file. They have the same syntax as sizes in flags.

use std::fmt;
use std::str::FromStr;

use serde::de::{self, Deserialize, Deserializer, Visitor};
use serde::{Serialize, Serializer};

use mcctl_base::ByteSize;
use mcctl_base::size::ParseSizeError;
use mcctl_base::text::Quoted;

/// A number of bytes, in the syntax of [`ByteSize`]: all units are powers of 1024, so `16GiB`,
/// `16Gi`, `16GB`, `16gb` and `16g` are the same size. A bare number is in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct DeploySize(pub u64);

/// Limit on a size: the 57-bit address space.
const BYTES_MAX: u64 = 1 << 57;

/// Why a string is not a valid size in a deployment file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeploySizeError {
    #[error(transparent)]
    Syntax(#[from] ParseSizeError),
    #[error("{} is larger than any address space", Quoted(.0))]
    TooLarge(String),
}

impl DeploySize {
    /// Whether `text` has a unit that also has a decimal meaning (10^9 for `GB`), such as `16gb`,
    /// `16GB` or `16g`.
    pub fn is_ambiguous(text: &str) -> bool {
        let unit = text.trim().trim_start_matches(|c: char| c.is_ascii_digit() || c == '.').trim().to_ascii_lowercase();
        !unit.is_empty() && unit != "b" && !unit.contains('i')
    }
}

impl FromStr for DeploySize {
    type Err = DeploySizeError;

    fn from_str(text: &str) -> Result<DeploySize, DeploySizeError> {
        let ByteSize(bytes) = text.parse()?;
        if bytes > BYTES_MAX { Err(DeploySizeError::TooLarge(text.to_owned())) } else { Ok(DeploySize(bytes)) }
    }
}

impl fmt::Display for DeploySize {
    /// Formats the size in the largest binary unit that divides it evenly: `16GiB`, `12345`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [(&str, u64); 4] =
            [("TiB", ByteSize::TIB), ("GiB", ByteSize::GIB), ("MiB", ByteSize::MIB), ("KiB", ByteSize::KIB)];
        match UNITS.iter().find(|(_, scale)| self.0 > 0 && self.0.is_multiple_of(*scale)) {
            Some((name, scale)) => write!(f, "{}{name}", self.0 / scale),
            None => write!(f, "{}", self.0),
        }
    }
}

impl Serialize for DeploySize {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for DeploySize {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<DeploySize, D::Error> {
        struct SizeVisitor;
        impl Visitor<'_> for SizeVisitor {
            type Value = DeploySize;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a size such as \"16GiB\", or a number of bytes")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<DeploySize, E> {
                text.parse().map_err(E::custom)
            }

            fn visit_u64<E: de::Error>(self, bytes: u64) -> Result<DeploySize, E> {
                self.visit_str(&bytes.to_string())
            }

            fn visit_i64<E: de::Error>(self, bytes: i64) -> Result<DeploySize, E> {
                self.visit_str(&bytes.to_string())
            }
        }
        from.deserialize_any(SizeVisitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn all_spellings_of_a_size_are_powers_of_1024() {
        for text in ["16GiB", "16Gi", "16GB", "16gb", "16 G", "16384m"] {
            assert_eq!(text.parse(), Ok(DeploySize(16 << 30)), "{text}");
        }
        for (text, bytes) in [("1.5 GiB", 3 << 29), ("0", 0), ("4096", 4096), ("2MiB", 2 << 20)] {
            assert_eq!(text.parse(), Ok(DeploySize(bytes)), "{text}");
        }
    }

    #[test]
    fn units_with_a_decimal_meaning_are_ambiguous() {
        for text in ["64gb", "64GB", "64g", "1.5 m", "64kb"] {
            assert!(DeploySize::is_ambiguous(text), "{text}");
        }
        for text in ["64GiB", "64Gi", "64", "0", "64b"] {
            assert!(!DeploySize::is_ambiguous(text), "{text}");
        }
    }

    #[test]
    fn invalid_sizes_are_rejected() {
        for bad in ["", "-1", "1e9", "GiB", "1.2.3GiB", "0x10"] {
            assert!(matches!(bad.parse::<DeploySize>(), Err(DeploySizeError::Syntax(_))), "{bad}");
        }
        assert_eq!("999999TiB".parse::<DeploySize>(), Err(DeploySizeError::TooLarge("999999TiB".to_owned())));
    }

    proptest! {
        #[test]
        fn printed_sizes_parse_back(bytes in 0..=BYTES_MAX) {
            prop_assert_eq!(DeploySize(bytes).to_string().parse(), Ok(DeploySize(bytes)));
        }
    }
}
