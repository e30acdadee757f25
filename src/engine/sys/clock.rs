//! The kernel's monotonic clock, and the synchronization state of its wall clock. Read-only:
//! nothing is adjusted.

use std::io;
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

/// Synchronization state of the wall clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockSync {
    /// Whether the clock is being synchronized by a daemon.
    pub synchronised: bool,
    /// Maximum error as estimated by the kernel.
    pub error_max: Duration,
}

impl ClockSync {
    /// Interprets the return value, the status bits and the maximum error (microseconds) of
    /// `adjtimex`.
    fn from_kernel(rc: libc::c_int, status: libc::c_int, error_max: libc::c_long) -> ClockSync {
        ClockSync {
            synchronised: rc != libc::TIME_ERROR && status & libc::STA_UNSYNC == 0,
            error_max: Duration::from_micros(u64::try_from(error_max).unwrap_or(u64::MAX)),
        }
    }
}

/// The kernel's monotonic clock, which all processes of a host share unless they are in different
/// time namespaces.
pub fn monotonic() -> Duration {
    clock_gettime(ClockId::CLOCK_MONOTONIC).map_or(Duration::MAX, Duration::from)
}

/// Reads the synchronization state from the kernel.
///
/// # Errors
/// Fails if the kernel rejects the call, as happens in some sandboxes.
pub fn clock_sync() -> io::Result<ClockSync> {
    // SAFETY: `timex` is a plain C structure of integers, for which all zeros is a valid value.
    // Zero `modes` requests no change.
    let mut state: libc::timex = unsafe { std::mem::zeroed() };
    // SAFETY: `state` is a valid structure of the type that the call writes. It is exclusively
    // borrowed for the call.
    let rc = unsafe { libc::adjtimex(&raw mut state) };
    if rc < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(ClockSync::from_kernel(rc, state.status, state.maxerror))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_is_synchronised_unless_the_kernel_reports_an_error_or_the_flag() {
        let synchronised = |rc, status| ClockSync::from_kernel(rc, status, 0).synchronised;
        assert!(synchronised(libc::TIME_OK, 0));
        assert!(synchronised(libc::TIME_INS, libc::STA_PLL | libc::STA_NANO));
        assert!(!synchronised(libc::TIME_ERROR, 0));
        assert!(!synchronised(libc::TIME_OK, libc::STA_PLL | libc::STA_UNSYNC));
    }

    #[test]
    fn the_maximum_error_is_in_microseconds_and_unlimited_if_negative() {
        let error_max = |micros| ClockSync::from_kernel(libc::TIME_OK, 0, micros).error_max;
        assert_eq!(error_max(16_000_000), Duration::from_secs(16));
        assert_eq!(error_max(-1), Duration::from_micros(u64::MAX));
    }
}
