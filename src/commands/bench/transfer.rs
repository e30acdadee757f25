//! `mcctl bench transfer`.

use crate::commands::error::{Failure, Outcome};

/// What to move, where.
#[derive(Debug, clap::Args)]
pub struct Args {}

/// Measure.
///
/// # Errors
/// What the user has to know.
pub fn run(_: &Args) -> Outcome {
    Err(Failure::host("bench transfer is not there yet"))
}
