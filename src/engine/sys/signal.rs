//! Signals that this process ignores.

use nix::sys::signal::{SigHandler, Signal, signal};

use crate::procfs;

/// Makes a write beyond the file size limit (`ulimit -f`) fail with `EFBIG`, instead of killing the
/// process with `SIGXFSZ`.
pub fn file_size_limit_is_an_error() {
    // SAFETY: no handler is installed, so none of our code runs in signal context. Ignoring a
    // signal touches no memory.
    let ignored = unsafe { signal(Signal::SIGXFSZ, SigHandler::SigIgn) };
    // The number is valid and the signal can be ignored, so the call cannot fail.
    debug_assert!(ignored.is_ok(), "{ignored:?}");
}

/// Whether SIGHUP was ignored when this process started (`nohup`).
pub fn is_hangup_ignored() -> bool {
    // The lowest bit of the mask is signal 1, SIGHUP.
    procfs::own_status().is_some_and(|status| status.sigign & 1 == 1)
}
