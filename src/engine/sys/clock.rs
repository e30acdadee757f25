//! Synchronization state of the kernel's wall clock. Read-only: nothing is adjusted.

use std::io;
use std::time::Duration;

/// Synchronization state of the wall clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockSync {
    /// Whether a daemon synchronizes the clock with other clocks.
    pub synchronised: bool,
    /// Maximum error as estimated by the kernel.
    pub error_max: Duration,
}

/// Reads the synchronization state from the kernel.
///
/// # Errors
/// Fails if the kernel rejects the call, as happens in some sandboxes.
pub fn clock_sync() -> io::Result<ClockSync> {
    // SAFETY: `timex` is a plain C structure of integers, for which all zeros is a valid value. Zero `modes` requests
    // no change.
    let mut state: libc::timex = unsafe { std::mem::zeroed() };
    // SAFETY: `state` is a valid structure of the type that the call writes. It is exclusively borrowed for the call.
    let rc = unsafe { libc::adjtimex(&raw mut state) };
    if rc < 0 {
        return Err(io::Error::last_os_error());
    }
    let error_max = Duration::from_micros(u64::try_from(state.maxerror).unwrap_or(u64::MAX));
    Ok(ClockSync { synchronised: rc != libc::TIME_ERROR && state.status & libc::STA_UNSYNC == 0, error_max })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clock_sync_is_plausible_if_the_kernel_reports_it() {
        if let Ok(clock_sync) = clock_sync() {
            assert!(!clock_sync.synchronised || clock_sync.error_max < Duration::from_secs(60), "{clock_sync:?}");
        }
    }
}
