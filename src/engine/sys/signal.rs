//! Signals whose default is to end the process where an error can be told instead.

use nix::sys::signal::{SigHandler, Signal, signal};

/// Let a write past the limit of a file's size (`ulimit -f`) fail with `EFBIG`, where the kernel would end the process by `SIGXFSZ`.
pub fn file_size_limit_is_an_error() {
    // SAFETY: no handler is installed, so no code of ours runs in a signal's context; to ignore a signal touches no memory.
    let ignored = unsafe { signal(Signal::SIGXFSZ, SigHandler::SigIgn) };
    // The number is valid and the signal can be ignored: there is no other way to fail.
    debug_assert!(ignored.is_ok(), "{ignored:?}");
}
