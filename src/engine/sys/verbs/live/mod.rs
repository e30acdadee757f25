//! Owning types for verbs objects, implemented with libibverbs.

mod completion_queue;
mod device;
mod device_list;
mod events;
mod memory_region;
mod protection_domain;
mod queue_pair;
mod request_list;

use std::ffi::c_int;
use std::io;

pub use completion_queue::CompletionQueue;
pub use device::RdmaDevice;
pub use device_list::devices;
pub use memory_region::{MemoryRegion, relaxed_ordering};
pub use protection_domain::ProtectionDomain;
pub use queue_pair::QueuePair;
pub use request_list::WorkRequestList;

/// Converts a verb's result: 0 is success, other values are error numbers. Some drivers return -1
/// and set `errno`.
fn outcome(rc: c_int) -> io::Result<()> {
    match rc {
        0 => Ok(()),
        -1 => Err(io::Error::last_os_error()),
        rc => Err(io::Error::from_raw_os_error(rc.saturating_abs())),
    }
}

/// Handles a failed destroy call. After a failure, the object and everything it was created from
/// remain in use and must never be freed. Returns whether the call failed.
fn is_leaked(what: &'static str, device: &str, rc: c_int) -> bool {
    match outcome(rc) {
        Ok(()) => false,
        Err(error) => {
            tracing::error!(device, %error, "{what} failed: the object and its dependencies are leaked");
            true
        }
    }
}
