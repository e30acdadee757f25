//! Times of mcctl's own flags: a number with a unit, such as `500ms` or `1.5s`.
//!
//! Upstream's flags also take a number without a unit, in milliseconds ([`args::duration`]). For
//! mcctl's own flags, such a number is deprecated: it is still accepted, with a warning.

use std::time::Duration;

use crate::commands::cli::args::{self, ValueError};

/// A time: a number, optional spaces, and `ms`, `s`, `m` or `h` in any case. A number with a unit
/// may have a fraction. A whole number without a unit is in milliseconds.
///
/// # Errors
/// The string is not in this format, or the time does not fit into 64 bits of milliseconds.
pub fn parse(text: &str) -> Result<Duration, ValueError> {
    let bad = || ValueError::Time(text.to_owned());
    match args::duration(text) {
        Ok(time) => Ok(time),
        Err(_) => fraction(text.trim()).ok_or_else(bad),
    }
}

/// A time with a decimal fraction and a unit.
fn fraction(text: &str) -> Option<Duration> {
    let (number, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit() && c != '.')?);
    let seconds = match unit.trim().to_ascii_lowercase().as_str() {
        "ms" => 0.001,
        "s" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        _ => return None,
    };
    let (whole, decimals) = number.split_once('.')?;
    if whole.is_empty() || decimals.is_empty() {
        return None;
    }
    Duration::try_from_secs_f64(number.parse::<f64>().ok()? * seconds).ok()
}

/// The warning for a value of the flag `flag` without a unit, which is interpreted in `unit`.
/// `None` if the value has a unit, or is 0.
pub fn unit_warning(flag: &str, value: &str, unit: &str) -> Option<String> {
    let value = value.trim();
    let is_bare = !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit());
    if !is_bare || value.bytes().all(|byte| byte == b'0') {
        return None;
    }
    let choice = if unit == "s" { format!("{value}s") } else { format!("{value}{unit} or {value}s") };
    Some(format!("{flag} {value} has no unit: it means {value} {unit}. Write {choice}; a later release will refuse it"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fraction_needs_a_unit() {
        for (text, ms) in [("1.5s", 1_500), ("0.25 M", 15_000), ("5", 5), ("2h", 7_200_000), ("0.5h", 1_800_000)] {
            assert_eq!(parse(text), Ok(Duration::from_millis(ms)), "{text}");
        }
        assert_eq!(parse("1.5ms"), Ok(Duration::from_micros(1_500)));
        for bad in ["1.5", ".5s", "1.s", "1.2.3s", "-1.5s", "1e3s", "1.5d", "s", "", "99999999999999999999.5h"] {
            assert_eq!(parse(bad), Err(ValueError::Time(bad.to_owned())), "{bad}");
        }
    }

    #[test]
    fn the_warning_names_flag_value_and_unit() {
        let warnings = [unit_warning("--interval", "5", "ms"), unit_warning("--x", "90", "s")];
        insta::assert_snapshot!(warnings.map(Option::unwrap_or_default).join("\n"));
        for text in ["5ms", "5 s", "0", "1.5s", "", "soon"] {
            assert_eq!(unit_warning("--interval", text, "ms"), None, "{text}");
        }
    }
}
