//! How well the kernel's wall clock is kept, as the kernel knows it.
//!
//! Only reads: nothing is adjusted.

use std::io;
use std::time::Duration;

/// What the kernel says of its clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keeping {
    /// Does a daemon keep it in step with others?
    pub synchronised: bool,
    /// How far off it may be.
    pub error_max: Duration,
}

/// Ask the kernel.
///
/// # Errors
/// It refuses (some sandboxes do).
pub fn keeping() -> io::Result<Keeping> {
    // SAFETY: `timex` is a plain C structure of integers, for which all zeros is a value; zero `modes` asks to change nothing.
    let mut state: libc::timex = unsafe { std::mem::zeroed() };
    // SAFETY: `state` is a valid structure of the type that the call writes into, borrowed alone for the call.
    let rc = unsafe { libc::adjtimex(&raw mut state) };
    if rc < 0 {
        return Err(io::Error::last_os_error());
    }
    let error_max = Duration::from_micros(u64::try_from(state.maxerror).unwrap_or(u64::MAX));
    Ok(Keeping { synchronised: rc != libc::TIME_ERROR && state.status & libc::STA_UNSYNC == 0, error_max })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_answers_or_refuses() {
        if let Ok(keeping) = keeping() {
            assert!(!keeping.synchronised || keeping.error_max < Duration::from_secs(60), "{keeping:?}");
        }
    }
}
