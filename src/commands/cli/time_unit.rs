//! The unit of the times in a trace, as the value of a flag.

use crate::engine::trace::TimeUnit;

/// A text that is not a unit of time.
#[derive(Debug, thiserror::Error)]
#[error("use s or ms")]
pub struct ParseUnitError;

/// Parses `s` or `ms`.
///
/// # Errors
/// The text is neither.
pub fn parse(text: &str) -> Result<TimeUnit, ParseUnitError> {
    match text {
        "s" => Ok(TimeUnit::Seconds),
        "ms" => Ok(TimeUnit::Milliseconds),
        _ => Err(ParseUnitError),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unit_is_s_or_ms() {
        assert_eq!(parse("s").ok(), Some(TimeUnit::Seconds));
        assert_eq!(parse("ms").ok(), Some(TimeUnit::Milliseconds));
        assert!(parse("seconds").is_err());
    }
}
