//! Steps that put an endpoint's caches into a known state.

use std::fmt;

use crate::engine::env::Env;
use crate::engine::load::session::Side;

/// A tier of the server's caches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tier {
    /// L1.
    Device,
    /// L2.
    Host,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Control {
    /// Empty device and host (L1 and L2).
    Flush,
    /// Empty the store (L3), and see that it is.
    Clear,
    /// Wait until what was computed has been written to L2 and L3.
    Settle,
    /// So many requests that share nothing with what is measured.
    Warm(u32),
    /// Each shared system prompt once.
    Prime,
    /// Other conversations of at least the tier's size, so that it has nothing of those that are measured.
    Fill(Tier),
}

impl fmt::Display for Control {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Control::Flush => f.write_str("flush device and host"),
            Control::Clear => f.write_str("clear the store"),
            Control::Settle => f.write_str("wait for what is written back"),
            Control::Warm(requests) => write!(f, "warm up with {requests} requests"),
            Control::Prime => f.write_str("send the shared prompts"),
            Control::Fill(Tier::Device) => f.write_str("fill the device with others"),
            Control::Fill(Tier::Host) => f.write_str("fill the host with others"),
        }
    }
}

/// A step could not be done.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot {step}: {found}")]
pub struct ControlError {
    /// Which.
    pub step: String,
    /// What was found.
    pub found: String,
}

/// Do `step` at `side`.
///
/// # Errors
/// The endpoint cannot, or what it did is not enough.
pub(super) async fn perform<E: Env>(env: &E, side: &Side, step: &Control) -> Result<(), ControlError> {
    let _ = (env, side);
    Err(ControlError { step: step.to_string(), found: "this server is not known to have it".to_owned() })
}
