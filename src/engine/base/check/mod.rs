//! Types for checks and findings, shared by `doctor` and `lint`. This module does not inspect
//! anything itself.

mod finding;
mod report;

pub use finding::{Finding, Severity, SourceLocation, listed};
pub use report::{Check, CheckGroup, CheckReport, CheckStatus};
