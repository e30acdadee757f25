//! Reads `MC_*` variables. Like upstream, ignores an invalid value with a warning.

use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;
use std::time::Duration;

/// Looks up variables and collects warnings about invalid values.
pub struct VariableReader<'a> {
    pub(crate) lookup: &'a dyn Fn(&str) -> Option<String>,
    /// A warning for each invalid value.
    pub warnings: Vec<String>,
}

impl<'a> VariableReader<'a> {
    /// Creates a reader of the variables that `lookup` returns.
    pub fn new(lookup: &'a dyn Fn(&str) -> Option<String>) -> VariableReader<'a> {
        VariableReader { lookup, warnings: Vec::new() }
    }

    /// Returns the value of the first of `names` that is set, as a number in `range`.
    pub fn number<T>(&mut self, names: &[&str], range: RangeInclusive<T>, otherwise: T) -> T
    where
        T: FromStr + PartialOrd + fmt::Display,
    {
        let Some((name, text)) = names.iter().find_map(|n| Some((n, (self.lookup)(n)?))) else {
            return otherwise;
        };
        match text.trim().parse::<T>() {
            Ok(number) if range.contains(&number) => number,
            _ => {
                let first = range.start();
                let last = range.end();
                self.warnings.push(format!("{name}={text} is not a number from {first} to {last}; using {otherwise}"));
                otherwise
            }
        }
    }

    /// Returns the variable's value as a number of seconds in `range`.
    pub fn seconds(&mut self, name: &str, range: RangeInclusive<u64>, otherwise: Duration) -> Duration {
        Duration::from_secs(self.number(&[name], range, otherwise.as_secs()))
    }

    /// Reads a switch as upstream does: on if set, unless the value is 0, false, no or off.
    pub fn switch(&mut self, name: &str, otherwise: bool) -> bool {
        match (self.lookup)(name) {
            None => otherwise,
            Some(text) => match text.trim().to_ascii_lowercase().as_str() {
                "0" | "false" | "no" | "off" => false,
                "" | "1" | "true" | "yes" | "on" => true,
                _ => {
                    self.warnings.push(format!("{name}={text} is not a boolean (use 1 or 0, true or false); using 1"));
                    true
                }
            },
        }
    }
}
