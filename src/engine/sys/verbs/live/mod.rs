//! The owners, over the library.

mod chain;
mod device;
mod domain;
mod events;
mod list;
mod pair;
mod queue;
mod region;

use std::ffi::c_int;
use std::io;

pub use chain::Chain;
pub use device::Device;
pub use domain::Domain;
pub use list::devices;
pub use pair::Pair;
pub use queue::Queue;
pub use region::{Region, relaxed_ordering};

/// What a verb's number says: 0 is well, others are error numbers; some drivers say -1 and set `errno`.
fn outcome(rc: c_int) -> io::Result<()> {
    match rc {
        0 => Ok(()),
        -1 => Err(io::Error::last_os_error()),
        rc => Err(io::Error::from_raw_os_error(rc.saturating_abs())),
    }
}

/// A verb that ends something failed, which leaves that thing, and all it was made from, as it is: it must never be freed.
fn left_behind(what: &'static str, device: &str, rc: c_int) -> bool {
    match outcome(rc) {
        Ok(()) => false,
        Err(error) => {
            tracing::error!(device, %error, "{what} failed: what it was to end, and all that it needs, is left as it is");
            true
        }
    }
}
