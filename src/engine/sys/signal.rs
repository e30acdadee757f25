//! Ignores signals that would kill the process where an error can be reported instead.

use nix::sys::signal::{SigHandler, Signal, signal};

/// Makes a write beyond the file size limit (`ulimit -f`) fail with `EFBIG`, instead of killing the process with
/// `SIGXFSZ`.
pub fn file_size_limit_is_an_error() {
    // SAFETY: no handler is installed, so none of our code runs in signal context. Ignoring a signal touches no
    // memory.
    let ignored = unsafe { signal(Signal::SIGXFSZ, SigHandler::SigIgn) };
    // The number is valid and the signal can be ignored, so the call cannot fail.
    debug_assert!(ignored.is_ok(), "{ignored:?}");
}
