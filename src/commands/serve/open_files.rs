//! The limit on open files of a service.

use crate::engine::sys::descriptors;

/// Raises the soft limit on open files. With the common limit of 1,024, a service would reject
/// connections after roughly the first thousand.
pub fn raise_limit() {
    match descriptors::allow(OPEN_FILES) {
        Ok(allowed) if allowed < OPEN_FILES_LOW => {
            tracing::warn!(
                "the open file limit is {allowed}: raise the hard limit (ulimit -Hn) to allow more connections"
            );
        }
        Ok(_) => {}
        Err(error) => tracing::warn!("cannot raise the open file limit: {error}"),
    }
}

/// Number of open files required for the maximum number of connections on all ports.
const OPEN_FILES: u64 = 128 << 10;
/// With a limit below this value, even a service in a small cluster may run out of file
/// descriptors.
const OPEN_FILES_LOW: u64 = 1024;
