//! The options of a data directory: when changes become durable, and the reaction to a disk error.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// The time of the syncs of the log. In every mode, a change is in the kernel before its response
/// leaves, so a crash of the process loses none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyncMode {
    /// Before each response. A power loss loses no change.
    Always,
    /// At this interval. A power loss loses about that much of the newest changes.
    Interval(Duration),
    /// At times that the kernel chooses, and with each snapshot.
    Never,
}

impl SyncMode {
    /// The interval of `interval` without a value.
    pub const INTERVAL: Duration = Duration::from_millis(50);
    /// The longest interval that is accepted.
    pub const INTERVAL_MAX: Duration = Duration::from_secs(3600);
}

impl Default for SyncMode {
    fn default() -> SyncMode {
        SyncMode::Interval(SyncMode::INTERVAL)
    }
}

/// The text is not a sync mode.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid sync mode '{0}': use always, never, interval or interval=TIME, with a time from 1ms to 3600s")]
pub struct ParseSyncModeError(pub String);

impl FromStr for SyncMode {
    type Err = ParseSyncModeError;

    fn from_str(text: &str) -> Result<SyncMode, ParseSyncModeError> {
        let wrong = || ParseSyncModeError(text.to_owned());
        match text {
            "always" => Ok(SyncMode::Always),
            "never" => Ok(SyncMode::Never),
            "interval" => Ok(SyncMode::default()),
            _ => text.strip_prefix("interval=").and_then(interval).map(SyncMode::Interval).ok_or_else(wrong),
        }
    }
}

/// Parses a time with the unit `ms` or `s`, from 1 ms to [`SyncMode::INTERVAL_MAX`].
fn interval(text: &str) -> Option<Duration> {
    let (number, ms_per_unit) = match text.strip_suffix("ms") {
        Some(number) => (number, 1),
        None => (text.strip_suffix('s')?, 1000),
    };
    let is_number = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
    let ms = number.parse::<u64>().ok().filter(|_| is_number)?.checked_mul(ms_per_unit)?;
    let interval = Duration::from_millis(ms);
    (ms > 0 && interval <= SyncMode::INTERVAL_MAX).then_some(interval)
}

impl fmt::Display for SyncMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SyncMode::Always => f.write_str("always"),
            SyncMode::Interval(interval) => write!(f, "interval={}ms", interval.as_millis()),
            SyncMode::Never => f.write_str("never"),
        }
    }
}

/// The reaction to a disk error that makes the log unusable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DiskErrorPolicy {
    /// The process refuses further changes and stops.
    #[default]
    Stop,
    /// The process marks the directory as invalid and continues in memory. If the mark cannot be
    /// written, it stops.
    ContinueMemoryOnly,
}

/// The text is not a policy for disk errors.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid policy '{0}': use stop or continue-memory-only")]
pub struct ParseDiskErrorPolicyError(pub String);

impl FromStr for DiskErrorPolicy {
    type Err = ParseDiskErrorPolicyError;

    fn from_str(text: &str) -> Result<DiskErrorPolicy, ParseDiskErrorPolicyError> {
        match text {
            "stop" => Ok(DiskErrorPolicy::Stop),
            "continue-memory-only" => Ok(DiskErrorPolicy::ContinueMemoryOnly),
            _ => Err(ParseDiskErrorPolicyError(text.to_owned())),
        }
    }
}

impl fmt::Display for DiskErrorPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            DiskErrorPolicy::Stop => "stop",
            DiskErrorPolicy::ContinueMemoryOnly => "continue-memory-only",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sync_mode_round_trips_through_text() {
        let ms = |ms| SyncMode::Interval(Duration::from_millis(ms));
        for (text, mode, shown) in [
            ("always", SyncMode::Always, "always"),
            ("never", SyncMode::Never, "never"),
            ("interval", SyncMode::default(), "interval=50ms"),
            ("interval=1ms", ms(1), "interval=1ms"),
            ("interval=2s", ms(2000), "interval=2000ms"),
            ("interval=3600s", ms(3_600_000), "interval=3600000ms"),
        ] {
            assert_eq!(text.parse(), Ok(mode), "{text}");
            assert_eq!((mode.to_string().as_str(), shown.parse()), (shown, Ok(mode)), "{text}");
        }
    }

    #[test]
    fn a_sync_mode_without_a_valid_interval_is_refused() {
        for text in ["", "Always", "interval=", "interval=0ms", "interval=50", "interval=+5ms", "interval=3601s"] {
            assert_eq!(text.parse::<SyncMode>(), Err(ParseSyncModeError(text.to_owned())), "{text}");
        }
    }

    #[test]
    fn a_policy_round_trips_through_text() {
        for policy in [DiskErrorPolicy::Stop, DiskErrorPolicy::ContinueMemoryOnly] {
            assert_eq!(policy.to_string().parse(), Ok(policy));
        }
        assert_eq!("go-on".parse::<DiskErrorPolicy>(), Err(ParseDiskErrorPolicyError("go-on".to_owned())));
    }
}
