//! What a check is and what it says: the words that `doctor` and `lint` share. It looks at nothing itself.

mod finding;
mod report;

pub use finding::{Finding, Severity, SourceLocation, listed};
pub use report::{Check, Group, Report, Status};
