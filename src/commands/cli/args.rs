//! Value parsers shared by commands.

use std::time::Duration;

use thiserror::Error;

use crate::engine::base::HostPort;
use crate::engine::base::addr::ParseAddrError;
use crate::engine::base::size::ParseSizeError;

/// Why a string is not a valid flag value.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ValueError {
    #[error("invalid duration '{0}': use a whole number with ms, s, m or h, e.g. 10s (no unit means ms)")]
    Duration(String),
    #[error("invalid time '{0}': use a number with ms, s, m or h, e.g. 500ms or 1.5s")]
    Time(String),
    #[error("expected a number of seconds from 1 to {0}")]
    Seconds(u64),
    #[error("expected a whole number of GB, e.g. 64")]
    Gigabytes,
    #[error("a time limit of 0 is not allowed: use at least 1ms")]
    ZeroLimit,
    #[error("expected a number of tokens from 1 to {TOKENS_MAX}, e.g. 4096")]
    Tokens,
    #[error("'{0}' is not a number")]
    Number(String),
    #[error("must be greater than 0")]
    NotPositive,
    #[error("must be 0 or greater")]
    Negative,
    #[error("the key must not be empty")]
    EmptyKey,
    #[error(transparent)]
    Address(#[from] ParseAddrError),
    #[error(transparent)]
    Size(#[from] ParseSizeError),
    #[error("this store needs a node that contributes memory; the minimum segment size is 16mb")]
    ZeroSegment,
}

/// A duration in the format that Mooncake's master uses: a whole number, optional spaces, and `ms`,
/// `s`, `m` or `h` in any case. No unit means milliseconds.
///
/// # Errors
/// The string is not in this format, or the number of milliseconds does not fit into 64 bits.
pub fn duration(text: &str) -> Result<Duration, ValueError> {
    let bad = || ValueError::Duration(text.to_owned());
    let trimmed = text.trim();
    let split = trimmed.find(|c: char| !c.is_ascii_digit()).unwrap_or(trimmed.len());
    let (number, unit) = trimmed.split_at(split);
    let number: u64 = number.parse().map_err(|_| bad())?;
    let ms: u64 = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        _ => return Err(bad()),
    };
    number.checked_mul(ms).map(Duration::from_millis).ok_or_else(bad)
}

/// A whole number of seconds from 1 to `most`.
pub fn seconds(most: u64) -> impl Fn(&str) -> Result<u64, ValueError> + Clone {
    move |text| text.parse().ok().filter(|seconds| (1..=most).contains(seconds)).ok_or(ValueError::Seconds(most))
}

/// Largest number of tokens of a prompt.
const TOKENS_MAX: u32 = 10_000_000;

/// A number of tokens of a prompt.
///
/// # Errors
/// The string is not a whole number from 1 to 10,000,000.
pub fn tokens(text: &str) -> Result<u32, ValueError> {
    text.trim().parse().ok().filter(|tokens| (1..=TOKENS_MAX).contains(tokens)).ok_or(ValueError::Tokens)
}

/// A whole number of GB.
///
/// # Errors
/// The string is not a whole number.
pub fn gigabytes(text: &str) -> Result<u64, ValueError> {
    text.parse().map_err(|_| ValueError::Gigabytes)
}

/// A finite number greater than 0.
///
/// # Errors
/// The string is not a number, or the number is 0 or less.
pub fn positive(text: &str) -> Result<f64, ValueError> {
    number(text).and_then(|value| if value > 0.0 { Ok(value) } else { Err(ValueError::NotPositive) })
}

/// A finite number that is 0 or greater.
///
/// # Errors
/// The string is not a number, or the number is negative.
pub fn not_negative(text: &str) -> Result<f64, ValueError> {
    number(text).and_then(|value| if value >= 0.0 { Ok(value) } else { Err(ValueError::Negative) })
}

fn number(text: &str) -> Result<f64, ValueError> {
    let number = text.parse().ok().filter(|value: &f64| value.is_finite());
    number.ok_or_else(|| ValueError::Number(text.to_owned()))
}

/// `duration` in the largest unit that yields a whole number: `300 ms`, `10 s`, `30 min`, `24 h`.
pub fn show_duration(duration: Duration) -> String {
    let ms = duration.as_millis();
    for (unit, name) in [(3_600_000, "h"), (60_000, "min"), (1_000, "s")] {
        if ms >= unit && ms.is_multiple_of(unit) {
            return format!("{} {name}", ms / unit);
        }
    }
    format!("{ms} ms")
}

/// `duration` as [`duration`] reads it: `300ms`, `10s`, `30m`, `24h`.
pub fn flag_value(duration: Duration) -> String {
    show_duration(duration).replace(" min", "m").replace(' ', "")
}

/// `HOST` or `HOST:PORT`; the port defaults to `port`.
///
/// # Errors
/// The string is not an address.
pub fn endpoint(text: &str, port: u16) -> Result<HostPort, ValueError> {
    let (host, written) = HostPort::split(text)?;
    Ok(HostPort::new(host, written.unwrap_or(port)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shown_flag_value_can_be_read_again() {
        for ms in [0, 1, 300, 1_000, 1_500, 60_000, 90_000, 1_800_000, 3_600_000, 86_400_000] {
            let time = Duration::from_millis(ms);
            assert_eq!(duration(&flag_value(time)), Ok(time), "{}", flag_value(time));
        }
    }

    #[test]
    fn seconds_and_gigabytes_are_whole_numbers() {
        for text in ["1e999", "0", "11", "-1", ""] {
            assert_eq!(seconds(10)(text), Err(ValueError::Seconds(10)), "{text}");
        }
        assert_eq!((seconds(10)("10"), gigabytes("64")), (Ok(10), Ok(64)));
        assert_eq!(gigabytes("64gb"), Err(ValueError::Gigabytes));
    }

    #[test]
    fn duration_accepts_all_upstream_forms() {
        for (text, ms) in [
            ("0", 0),
            ("10000", 10_000),
            ("5s", 5_000),
            (" 5 S ", 5_000),
            ("2m", 120_000),
            ("1H", 3_600_000),
            ("7ms", 7),
        ] {
            assert_eq!(duration(text), Ok(Duration::from_millis(ms)), "{text}");
        }
    }

    #[test]
    fn duration_refuses_other_texts() {
        for bad in ["", "s", "-1", "1.5s", "5x", "5 s s", "18446744073709551615h", "1d"] {
            assert_eq!(duration(bad), Err(ValueError::Duration(bad.to_owned())));
        }
    }

    #[test]
    fn numbers_are_finite_and_in_range() {
        assert_eq!((positive("2.5"), not_negative("0")), (Ok(2.5), Ok(0.0)));
        assert_eq!((positive("0"), not_negative("-1")), (Err(ValueError::NotPositive), Err(ValueError::Negative)));
        assert_eq!(positive("inf"), Err(ValueError::Number("inf".to_owned())));
    }

    #[test]
    fn show_duration_uses_the_largest_whole_unit() {
        for (ms, text) in
            [(0, "0 ms"), (1_500, "1500 ms"), (10_000, "10 s"), (1_800_000, "30 min"), (86_400_000, "24 h")]
        {
            assert_eq!(show_duration(Duration::from_millis(ms)), text);
        }
    }

    #[test]
    fn an_endpoint_without_a_port_has_the_default_port() {
        assert_eq!(endpoint("node-1", 50051), Ok(HostPort::new("node-1", 50051)));
        assert_eq!(endpoint("[::1]:7", 50051), Ok(HostPort::new("::1", 7)));
        assert!(endpoint("", 1).is_err());
    }
}
