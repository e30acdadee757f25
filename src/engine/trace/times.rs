//! Time units, timestamps as text, and the check whether a unit is plausible.

use std::fmt;

use serde::Deserialize;
use serde::de::{self, Deserializer, Visitor};

use crate::error::RowError;

/// Maximum time after the start of a trace: ten years in seconds, in either unit.
pub(crate) const TIME_MAX: f64 = 315_576_000.0 * 1e3;
/// Above this rate, in requests per second, a trace is unlikely.
const RATE_MAX: f64 = 1000.0;
/// Below this rate, a long trace is unlikely.
const RATE_MIN: f64 = 0.005;
/// Minimum number of requests for which a rate is checked.
const ROWS_MIN: usize = 10;

/// Unit of the timestamps in a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimeUnit {
    Seconds,
    Milliseconds,
}

impl TimeUnit {
    /// Number of seconds in this unit.
    pub fn seconds(self) -> f64 {
        match self {
            TimeUnit::Seconds => 1.0,
            TimeUnit::Milliseconds => 1e-3,
        }
    }

    pub(crate) fn other(self) -> TimeUnit {
        match self {
            TimeUnit::Seconds => TimeUnit::Milliseconds,
            TimeUnit::Milliseconds => TimeUnit::Seconds,
        }
    }

    /// Returns the rates (requests per second) with this unit and with the other, if the first is
    /// implausible and the second is not. `span` is the time from the first to the last of
    /// `requests` requests, in this unit; `whole`: all timestamps are integers.
    pub fn doubt(self, requests: usize, span: f64, whole: bool) -> Option<(f64, f64)> {
        if requests < ROWS_MIN || span <= 0.0 {
            return None;
        }
        let rate = |unit: TimeUnit| requests as f64 / (span * unit.seconds());
        let (this, other) = (rate(self), rate(self.other()));
        let plausible = (RATE_MIN..=RATE_MAX).contains(&other);
        let implausible = match self {
            TimeUnit::Milliseconds => this > RATE_MAX,
            // Integers are typical of milliseconds, and slow traces with fractions exist.
            TimeUnit::Seconds => this < RATE_MIN && whole,
        };
        (implausible && plausible).then_some((this, other))
    }
}

impl fmt::Display for TimeUnit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            TimeUnit::Seconds => "seconds",
            TimeUnit::Milliseconds => "milliseconds",
        })
    }
}

/// Checks a time or delay from a row.
pub(crate) fn checked(field: &'static str, value: f64) -> Result<f64, RowError> {
    // Absolute times in milliseconds since 1970 are below this limit, too.
    if (0.0..=TIME_MAX * 10.0).contains(&value) {
        return Ok(value);
    }
    Err(RowError::Time { field, value: value.to_string() })
}

/// An absolute time in seconds since 1970, from an ISO 8601 text or a number.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Timestamp(pub(crate) f64);

impl Timestamp {
    /// Numbers above this are milliseconds: as seconds, they would be after the year 5000.
    const SECONDS_MAX: f64 = 1e11;

    fn from_number(value: f64) -> Timestamp {
        Timestamp(if value.abs() > Timestamp::SECONDS_MAX { value / 1e3 } else { value })
    }

    /// Parses a date and time in ISO 8601. Times without an offset are UTC.
    pub(crate) fn parse(text: &str) -> Option<Timestamp> {
        let at = match text.parse::<jiff::Timestamp>() {
            Ok(at) => at,
            Err(_) => text.parse::<jiff::civil::DateTime>().ok()?.to_zoned(jiff::tz::TimeZone::UTC).ok()?.timestamp(),
        };
        Some(Timestamp(at.as_duration().as_secs_f64()))
    }
}

impl<'de> Deserialize<'de> for Timestamp {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Timestamp, D::Error> {
        struct TimestampVisitor;
        impl Visitor<'_> for TimestampVisitor {
            type Value = Timestamp;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a time in ISO 8601 or seconds since 1970")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Timestamp, E> {
                Timestamp::parse(text).ok_or_else(|| E::invalid_value(de::Unexpected::Str(text), &self))
            }

            fn visit_f64<E: de::Error>(self, value: f64) -> Result<Timestamp, E> {
                Ok(Timestamp::from_number(value))
            }

            fn visit_u64<E: de::Error>(self, value: u64) -> Result<Timestamp, E> {
                Ok(Timestamp::from_number(value as f64))
            }

            fn visit_i64<E: de::Error>(self, value: i64) -> Result<Timestamp, E> {
                Ok(Timestamp::from_number(value as f64))
            }
        }
        deserializer.deserialize_any(TimestampVisitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn timestamps_have_optional_fractions_and_offsets() {
        let at = |text: &str| Timestamp::parse(text).expect("a time").0;
        assert_eq!(at("1970-01-01T00:00:00Z"), 0.0);
        assert_eq!(at("2000-02-29T12:00:00"), 951_825_600.0);
        assert_eq!(at("2026-11-16T10:00:00.250Z"), at("2026-11-16 12:00:00.25+02:00"));
        assert_eq!(at("2026-11-16T10:00:00+00"), at("2026-11-16T09:30:00-0030"));
        for bad in ["", "2026", "2026-13-01T00:00:00Z", "2026-01-01T25:00:00Z", "2026-01-01T00:00:00X"] {
            assert_eq!(Timestamp::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn numbers_are_seconds_or_milliseconds() {
        let at = |text| serde_json::from_str::<Timestamp>(text).expect("a time").0;
        assert_eq!(at("1780000000"), at("1780000000000"));
        assert_eq!(at("1.5"), 1.5);
    }

    #[test]
    fn implausible_rates_are_doubted() {
        let ms = TimeUnit::Milliseconds;
        assert!(ms.doubt(1000, 300.0, false).is_some(), "3,333 requests/s as ms, 3.3 as s");
        assert!(ms.doubt(1000, 300_000.0, true).is_none());
        assert!(TimeUnit::Seconds.doubt(1000, 300_000.0, true).is_some(), "0.003 requests/s as s, 3.3 as ms");
        assert!(TimeUnit::Seconds.doubt(1000, 300.0, true).is_none());
        assert!(ms.doubt(1000, 0.0, true).is_none());
    }

    proptest! {
        #[test]
        fn arbitrary_text_never_panics(text in "\\PC{0,40}", digits in "[0-9TZ:.+ -]{0,40}") {
            Timestamp::parse(&text);
            Timestamp::parse(&digits);
        }
    }
}
