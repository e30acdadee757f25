//! Limits log lines about failed operations: one per error code and [`INTERVAL`], with the number
//! of those that were left out.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use mcctl_base::{ErrorCode, Mono};

/// Shortest time between two lines with the same error code.
const INTERVAL: Duration = Duration::from_secs(10);

/// When each error code was logged last, and how many failures with it were left out since.
#[derive(Debug, Default)]
pub struct OperationFailures {
    logged: Mutex<BTreeMap<i32, (Mono, u64)>>,
}

impl OperationFailures {
    /// No failure was logged.
    pub const fn new() -> OperationFailures {
        OperationFailures { logged: Mutex::new(BTreeMap::new()) }
    }

    /// Whether a failure with this code is to be logged at `now`; then the number of failures that
    /// were left out since the last line.
    pub fn due(&self, now: Mono, code: ErrorCode) -> Option<u64> {
        let mut logged = self.logged.lock().unwrap_or_else(PoisonError::into_inner);
        let Some((last, omitted)) = logged.get_mut(&code.0) else {
            logged.insert(code.0, (now, 0));
            return Some(0);
        };
        if now.since(*last) < INTERVAL {
            *omitted += 1;
            return None;
        }
        *last = now;
        Some(std::mem::take(omitted))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_code_is_logged_once_per_interval_with_the_number_left_out() {
        let log = OperationFailures::new();
        let due = |s: u64, code| log.due(Mono::from_ms(s * 1000), code);
        let transfer = ErrorCode::TRANSFER_FAIL;
        let full = ErrorCode::NO_AVAILABLE_HANDLE;
        assert_eq!((due(1, transfer), due(2, transfer), due(2, full)), (Some(0), None, Some(0)));
        assert_eq!((due(9, transfer), due(11, transfer), due(12, transfer)), (None, Some(2), None));
    }
}
