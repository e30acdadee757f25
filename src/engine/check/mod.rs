//! The vocabulary of checks that `doctor` and `lint` share. It inspects nothing itself.

mod finding;
mod report;

pub use finding::{Finding, Severity, SourceLocation, listed};
pub use report::{Check, CheckGroup, CheckReport, CheckStatus};
