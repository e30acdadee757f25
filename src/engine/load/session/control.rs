//! Steps that put an endpoint's caches into a known state.

use std::fmt;

use crate::engine::env::Env;
use crate::engine::load::session::Side;

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Control {
    /// Empty device and host (L1 and L2).
    Flush,
}

impl fmt::Display for Control {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Control::Flush => f.write_str("flush device and host"),
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
