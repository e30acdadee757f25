//! The value of a time flag that clap parses.

use std::ffi::OsStr;
use std::time::Duration;

use clap::builder::TypedValueParser;
use clap::{Arg, Command};

use crate::commands::cli::args::ValueError;
use crate::commands::cli::output;
use crate::commands::cli::times;

/// Parser for the time of one of mcctl's own flags. Prints [`times::unit_warning`] with the flag's
/// name.
#[derive(Clone, Copy, Debug)]
pub struct TimeParser {
    allows_zero: bool,
}

impl TimeParser {
    /// Accepts any time, also 0.
    pub const fn any() -> TimeParser {
        TimeParser { allows_zero: true }
    }

    /// Accepts a time limit, which must be greater than 0.
    pub const fn limit() -> TimeParser {
        TimeParser { allows_zero: false }
    }

    fn parse(self, text: &str) -> Result<Duration, ValueError> {
        match times::parse(text)? {
            Duration::ZERO if !self.allows_zero => Err(ValueError::ZeroLimit),
            time => Ok(time),
        }
    }
}

impl TypedValueParser for TimeParser {
    type Value = Duration;

    fn parse_ref(&self, cmd: &Command, arg: Option<&Arg>, value: &OsStr) -> Result<Duration, clap::Error> {
        let parser = *self;
        // The parser of a function builds the error, with the flag and its value.
        let time = (move |text: &str| parser.parse(text)).parse_ref(cmd, arg, value)?;
        let flag = arg.and_then(Arg::get_long).map(|long| format!("--{long}"));
        if let (Some(flag), Some(text)) = (flag, value.to_str())
            && let Some(warning) = times::unit_warning(&flag, text, "ms")
        {
            output::say(format!("warning: {warning}"));
        }
        Ok(time)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_greater_than_zero() {
        assert_eq!(TimeParser::limit().parse("0s"), Err(ValueError::ZeroLimit));
        assert_eq!(TimeParser::any().parse("0s"), Ok(Duration::ZERO));
    }
}
