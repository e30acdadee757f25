//! Sizes as the deployment file writes them: always with a unit that has one meaning.

use std::fmt;
use std::str::FromStr;

use serde::de::{self, Deserialize, Deserializer, Visitor};
use serde::{Serialize, Serializer};

use crate::engine::base::text::Quoted;

/// A number of bytes. `16GiB` is 16 x 1024^3, `16GB` is 16 x 10^9, `0` and any other bare number are bytes. `16gb` is refused: SGLang
/// and the store mean 1024^3 by it, and a disk's vendor does not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Size(pub u64);

/// What an address space holds: no size is larger.
const BYTES_MAX: u64 = 1 << 57;

const UNITS: &[(&str, u64)] = &[
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
    ("kB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("TB", 1_000_000_000_000),
];

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Size, String> {
        let trimmed = text.trim();
        let split = trimmed.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(trimmed.len());
        let (number, unit) = trimmed.split_at(split);
        let unit = unit.trim();
        let bad = || {
            let twin = UNITS.iter().find(|(name, _)| name.replace('i', "").eq_ignore_ascii_case(unit));
            let hint = match twin {
                Some((name, _)) => format!("write {number}{name} (1024-based) or a decimal unit such as {number}GB"),
                None => {
                    "write a number with KiB, MiB, GiB or TiB (1024-based), kB, MB, GB or TB (1000-based), or bytes"
                        .to_owned()
                }
            };
            format!("{} is not a size: {hint}", Quoted(text))
        };
        let scale = match unit {
            "" => 1,
            unit => UNITS.iter().find(|(name, _)| *name == unit).map(|(_, scale)| *scale).ok_or_else(bad)?,
        };
        let too_large = || format!("{} is absurdly large", Quoted(text));
        let bytes = match number.split_once('.') {
            None => {
                if number.is_empty() {
                    return Err(bad());
                }
                let whole: u64 = number.parse().map_err(|_| too_large())?;
                whole.checked_mul(scale).ok_or_else(too_large)?
            }
            Some((whole, fraction)) => {
                let digits = fraction.len();
                if digits == 0 || digits > 6 || unit.is_empty() {
                    return Err(bad());
                }
                let whole: u64 = whole.parse().map_err(|_| bad())?;
                let part: u64 = fraction.parse().map_err(|_| bad())?;
                let part = u128::from(part) * u128::from(scale) / 10u128.pow(u32::try_from(digits).unwrap_or(6));
                let all = u128::from(whole) * u128::from(scale) + part;
                u64::try_from(all).map_err(|_| too_large())?
            }
        };
        if bytes > BYTES_MAX { Err(too_large()) } else { Ok(Size(bytes)) }
    }
}

impl fmt::Display for Size {
    /// In the largest unit that divides it: `16GiB`, `30GB`, `12345`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let whole = |(_, scale): &&(&str, u64)| self.0 > 0 && self.0.is_multiple_of(*scale);
        let binary = UNITS[..4].iter().rev().find(whole);
        match binary.or_else(|| UNITS[5..].iter().rev().find(whole)) {
            Some((name, scale)) => write!(f, "{}{name}", self.0 / scale),
            None => write!(f, "{}", self.0),
        }
    }
}

impl Serialize for Size {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Size, D::Error> {
        struct Text;
        impl Visitor<'_> for Text {
            type Value = Size;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a size such as \"16GiB\" or a number of bytes")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Size, E> {
                text.parse().map_err(E::custom)
            }

            fn visit_u64<E: de::Error>(self, bytes: u64) -> Result<Size, E> {
                self.visit_str(&bytes.to_string())
            }

            fn visit_i64<E: de::Error>(self, bytes: i64) -> Result<Size, E> {
                self.visit_str(&bytes.to_string())
            }
        }
        from.deserialize_any(Text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_unit_has_one_meaning() {
        for (text, bytes) in [
            ("16GiB", 16 << 30),
            ("16GB", 16_000_000_000),
            ("1.5 GiB", 3 << 29),
            ("0", 0),
            ("4096", 4096),
            ("2MiB", 2 << 20),
        ] {
            assert_eq!(text.parse(), Ok(Size(bytes)), "{text}");
        }
    }

    #[test]
    fn a_unit_with_two_meanings_is_refused_with_the_one_that_was_probably_meant() {
        for bad in ["16gb", "16g", "16G", "16Gi", "", "-1", "1e9", "GiB", "1.2.3GiB", "0x10", "1.5"] {
            assert!(bad.parse::<Size>().is_err(), "{bad}");
        }
        let said = "16gb".parse::<Size>().unwrap_err();
        assert!(said.contains("write 16GiB (1024-based)"), "{said}");
        assert!("999999999TiB".parse::<Size>().unwrap_err().contains("absurdly large"));
    }

    proptest! {
        #[test]
        fn what_is_printed_is_read_back(bytes in 0..=BYTES_MAX) {
            prop_assert_eq!(Size(bytes).to_string().parse(), Ok(Size(bytes)));
        }
    }
}
