//! Checks of Mooncake's Python wheel and of the libraries that it is linked to. No Python is run.

use crate::engine::check::{Check, Report};
use crate::engine::doctor::{Line, Selection, each};
use crate::engine::env::Env;

/// What the checks look at.
#[derive(Debug)]
pub struct Look {}

/// The checks, and what does each.
pub const CHECKS: &[Line<Look>] = &[];

/// Do the wanted checks.
pub fn run(env: &impl Env, selection: &Selection) -> Vec<Report> {
    each(env, CHECKS, &Look {}, selection)
}

/// Its lines of the catalogue.
pub fn checks() -> Vec<Check> {
    CHECKS.iter().map(|(check, _)| *check).collect()
}
