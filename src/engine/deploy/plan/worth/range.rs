//! A number that is known only within bounds, such as a price.

use std::fmt;
use std::str::FromStr;

/// A positive number between two bounds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NumberRange {
    pub low: f64,
    pub high: f64,
}

/// Text that is not a range of positive numbers.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is not a positive number such as 2.5, or a range such as 2-4")]
pub struct ParseRangeError(String);

/// Numbers beyond these bounds are mistakes, and products of them would not be finite.
const NUMBERS: std::ops::RangeInclusive<f64> = 1e-12..=1e15;

impl FromStr for NumberRange {
    type Err = ParseRangeError;

    /// Parses `2.5` or `2-4`.
    fn from_str(text: &str) -> Result<NumberRange, ParseRangeError> {
        let number = |text: &str| text.trim().parse().ok().filter(|number: &f64| NUMBERS.contains(number));
        // An exponent may have a hyphen, too.
        let ends = |(at, _)| {
            let (low, high) = (number(text.get(..at)?)?, number(text.get(at + 1..)?)?);
            (low <= high).then_some(NumberRange { low, high })
        };
        let both = number(text).map(|number| NumberRange { low: number, high: number });
        let range = both.or_else(|| text.match_indices('-').find_map(ends));
        range.ok_or_else(|| ParseRangeError(text.to_owned()))
    }
}

impl NumberRange {
    /// The geometric mean of the bounds.
    pub fn middle(self) -> f64 {
        (self.low * self.high).sqrt()
    }

    /// Whether both bounds are the same number.
    pub fn is_exact(self) -> bool {
        self.low >= self.high
    }
}

impl fmt::Display for NumberRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.is_exact() {
            true => write!(f, "{}", self.low),
            false => write!(f, "{}-{}", self.low, self.high),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_one_positive_number_or_two() {
        let parsed = |text: &str| text.parse::<NumberRange>().map(|range| (range.low, range.high)).ok();
        assert_eq!(parsed("2.5"), Some((2.5, 2.5)));
        assert_eq!(parsed("2-4"), Some((2.0, 4.0)));
        assert_eq!(parsed("1e-3"), Some((1e-3, 1e-3)));
        assert_eq!(parsed(" 0.5 - 1e3"), Some((0.5, 1000.0)));
        assert_eq!(parsed("1e-3-2e-3"), Some((1e-3, 2e-3)));
        for bad in ["", "-", "0", "-1", "4-2", "2-", "NaN", "inf", "1-NaN", "1e300", "$2"] {
            assert_eq!(parsed(bad), None, "{bad}");
        }
    }
}
