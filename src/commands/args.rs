//! Value parsers that commands share. Each says what it wanted when it does not get it.

use std::time::Duration;

use crate::engine::base::HostPort;

/// A duration as Mooncake's master writes one: a whole number and, after optional blanks, `ms`, `s`, `m` or `h` in any case;
/// without a unit it is milliseconds.
///
/// # Errors
/// The text is not of that form, or does not fit in 64 bits of milliseconds.
pub fn duration(text: &str) -> Result<Duration, String> {
    let bad =
        || format!("'{text}' is not a duration: write a whole number with ms, s, m or h, e.g. 10s (no unit means ms)");
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

/// A [`duration`] that something may take: not nothing.
pub fn limit(text: &str) -> Result<Duration, String> {
    match duration(text)? {
        Duration::ZERO => Err("a time limit of 0 leaves no time: give at least 1ms".to_owned()),
        limit => Ok(limit),
    }
}

/// A duration for people: `300 ms`, `10 s`, `30 min`, `24 h`.
pub fn show_duration(duration: Duration) -> String {
    let ms = duration.as_millis();
    for (unit, name) in [(3_600_000, "h"), (60_000, "min"), (1_000, "s")] {
        if ms >= unit && ms.is_multiple_of(unit) {
            return format!("{} {name}", ms / unit);
        }
    }
    format!("{ms} ms")
}

/// `HOST` or `HOST:PORT`, with `port` where none is written.
///
/// # Errors
/// The text is not an address.
pub fn endpoint(text: &str, port: u16) -> Result<HostPort, String> {
    let (host, written) = HostPort::split(text).map_err(|error| error.to_string())?;
    Ok(HostPort::new(host, written.unwrap_or(port)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_that_upstream_accepts_is_a_duration() {
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
    fn what_is_no_duration_is_refused_with_the_text() {
        for bad in ["", "s", "-1", "1.5s", "5x", "5 s s", "18446744073709551615h", "1d"] {
            assert!(duration(bad).expect_err(bad).starts_with(&format!("'{bad}' is not a duration")));
        }
    }

    #[test]
    fn a_duration_prints_in_its_largest_whole_unit() {
        for (ms, text) in
            [(0, "0 ms"), (1_500, "1500 ms"), (10_000, "10 s"), (1_800_000, "30 min"), (86_400_000, "24 h")]
        {
            assert_eq!(show_duration(Duration::from_millis(ms)), text);
        }
    }

    #[test]
    fn an_endpoint_without_a_port_takes_the_usual_one() {
        assert_eq!(endpoint("node-1", 50051), Ok(HostPort::new("node-1", 50051)));
        assert_eq!(endpoint("[::1]:7", 50051), Ok(HostPort::new("::1", 7)));
        assert!(endpoint("", 1).is_err());
    }
}
