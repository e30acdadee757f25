//! Byte sizes, parsed from strings such as `16gb` and formatted with units.

use std::fmt;
use std::str::FromStr;

/// Default size of a file of the master's log, in bytes.
pub const LOG_FILE_BYTES: u64 = 16 << 20;

/// A number of bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ByteSize(pub u64);

impl ByteSize {
    pub const KIB: u64 = 1 << 10;
    pub const MIB: u64 = 1 << 20;
    pub const GIB: u64 = 1 << 30;
    pub const TIB: u64 = 1 << 40;
}

/// Why a string is not a size.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseSizeError {
    #[error(
        "'{text}' is not a valid size: expected a number of bytes, or a number with a kb, mb, gb or tb suffix (powers of 1024), e.g. 16gb"
    )]
    Syntax { text: String },
    #[error("'{text}' is too large: the maximum size is 16 EiB")]
    TooLarge { text: String },
}

impl FromStr for ByteSize {
    type Err = ParseSizeError;

    /// Accepts upstream's grammar (all units are powers of 1024, fractions are allowed, case is
    /// ignored): `16gb`, `1.5 GB`, `64m`, `4096`. Also accepts Kubernetes' `16Gi` and `16GiB`, with
    /// the same meaning.
    fn from_str(text: &str) -> Result<ByteSize, ParseSizeError> {
        let bad = || ParseSizeError::Syntax { text: text.to_owned() };
        let too_large = || ParseSizeError::TooLarge { text: text.to_owned() };
        let trimmed = text.trim();
        let split = trimmed.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(trimmed.len());
        let (number, unit) = trimmed.split_at(split);
        let shift = match unit.trim().to_ascii_lowercase().as_str() {
            "" | "b" => 0,
            "k" | "kb" | "ki" | "kib" => 10,
            "m" | "mb" | "mi" | "mib" => 20,
            "g" | "gb" | "gi" | "gib" => 30,
            "t" | "tb" | "ti" | "tib" => 40,
            _ => return Err(bad()),
        };
        if let Ok(whole) = number.parse::<u64>() {
            return whole.checked_mul(1 << shift).map(ByteSize).ok_or_else(too_large);
        }
        let fraction = number.parse::<f64>().map_err(|_| bad())?;
        let bytes = fraction * (1u64 << shift) as f64;
        if !bytes.is_finite() || bytes >= u64::MAX as f64 {
            return Err(too_large());
        }
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the range is checked above")]
        Ok(ByteSize(bytes as u64))
    }
}

impl fmt::Display for ByteSize {
    /// Formats the size with a binary unit and at most two decimal places: `16 GiB`, `1.50 MiB`,
    /// `17 B`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (unit, name) = match self.0 {
            n if n >= Self::TIB => (Self::TIB, "TiB"),
            n if n >= Self::GIB => (Self::GIB, "GiB"),
            n if n >= Self::MIB => (Self::MIB, "MiB"),
            n if n >= Self::KIB => (Self::KIB, "KiB"),
            n => return write!(f, "{n} B"),
        };
        if self.0.is_multiple_of(unit) {
            write!(f, "{} {name}", self.0 / unit)
        } else {
            write!(f, "{:.2} {name}", self.0 as f64 / unit as f64)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, bytes: u64) {
        assert_eq!(text.parse(), Ok(ByteSize(bytes)), "{text}");
    }

    #[test]
    fn every_form_that_upstream_accepts_is_a_size() {
        check("0", 0);
        check("4096", 4096);
        check("16gb", 16 << 30);
        check("16 GB", 16 << 30);
        check("1.5m", 3 << 19);
        check("64k", 65536);
        check("2TB", 2 << 40);
        check("100b", 100);
    }

    #[test]
    fn kubernetes_units_mean_the_same_powers_of_1024() {
        check("16Gi", 16 << 30);
        check("16GiB", 16 << 30);
    }

    #[test]
    fn an_invalid_size_is_refused_with_its_text() {
        for bad in ["", "gb", "-1", "1e9", "16 xb", "1.2.3", "0x10"] {
            let error = bad.parse::<ByteSize>().expect_err(bad).to_string();
            assert!(error.starts_with(&format!("'{bad}' is not a valid size")), "{error}");
        }
        for large in ["99999999999tb", "1000000000000.5tb"] {
            assert!(matches!(large.parse::<ByteSize>(), Err(ParseSizeError::TooLarge { .. })), "{large}");
        }
    }

    #[test]
    fn a_size_prints_with_a_binary_unit() {
        for (bytes, text) in [(17, "17 B"), (1536, "1.50 KiB"), (16 << 30, "16 GiB"), (1 << 40, "1 TiB")] {
            assert_eq!(ByteSize(bytes).to_string(), text);
        }
    }
}
