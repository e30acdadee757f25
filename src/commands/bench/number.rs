//! Parsers for numeric flags with a range.

use thiserror::Error;

/// The value of a flag is not a number in its range.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("'{text}' is not {kind}: use {range}")]
pub struct NumberError {
    text: String,
    /// Name of the expected value with its article, e.g. `a ratio`.
    kind: &'static str,
    /// Description of the accepted values.
    range: &'static str,
}

/// Parses `text` as a number for which `accepts` returns true. `kind` and `range` are used in the
/// error.
///
/// # Errors
/// `text` is not a number, or `accepts` rejects it.
pub fn parse(
    text: &str,
    kind: &'static str,
    range: &'static str,
    accepts: impl Fn(f64) -> bool,
) -> Result<f64, NumberError> {
    let number = text.parse::<f64>().ok().filter(|number| accepts(*number));
    number.ok_or_else(|| NumberError { text: text.to_owned(), kind, range })
}

/// Parses a ratio from 0 to 1.
///
/// # Errors
/// Same as [`parse`].
pub fn ratio(text: &str) -> Result<f64, NumberError> {
    parse(text, "a ratio", "a number from 0 to 1", |ratio| (0.0..=1.0).contains(&ratio))
}

/// Parses a positive factor.
///
/// # Errors
/// Same as [`parse`].
pub fn factor(text: &str) -> Result<f64, NumberError> {
    parse(text, "a factor", "a number from 0.000001 to 1000000", |factor| (1e-6..=1e6).contains(&factor))
}

/// Parses a share above 0 and up to 1.
///
/// # Errors
/// Same as [`parse`].
pub fn share(text: &str) -> Result<f64, NumberError> {
    parse(text, "a share", "a number above 0 and at most 1", |share| share > 0.0 && share <= 1.0)
}
