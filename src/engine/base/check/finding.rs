//! A finding: a problem, or a fact worth knowing.

use std::fmt;
use std::sync::Arc;

use serde::Serialize;

/// The severity of a finding, from least to most harmful.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Severity {
    /// No action is required.
    Info,
    /// Works, but slowly, not from every host, or only temporarily.
    Warning,
    /// Does not work, or data will be lost.
    Error,
}

impl Severity {
    /// The name in tables and JSON.
    pub const fn word(self) -> &'static str {
        match self {
            Severity::Info => "info",
            Severity::Warning => "warning",
            Severity::Error => "error",
        }
    }
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.word())
    }
}

/// A location in the input.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct SourceLocation {
    /// The file path as passed by the user, or `environment`, `command line` or `pid 12`.
    pub file: Arc<str>,
    /// Line number, counted from 1; 0 if the input has no lines.
    pub line: u32,
}

impl fmt::Display for SourceLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => f.write_str(&self.file),
            line => write!(f, "{}:{line}", self.file),
        }
    }
}

/// Joins the first few items of a list and counts the rest: `a, b, c, d and 3 more`.
pub fn listed<T: fmt::Display>(items: &[T]) -> String {
    const SHOWN: usize = 4;
    let shown: Vec<String> = items.iter().take(SHOWN).map(T::to_string).collect();
    match items.len().checked_sub(SHOWN) {
        Some(more) if more > 0 => format!("{} and {more} more", shown.join(", ")),
        _ => shown.join(", "),
    }
}

/// A check result that needs attention. Each of the three messages is a single line without a
/// trailing period.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The id of the check: stable, kebab-case, accepted by `--only` and `--skip`.
    pub id: &'static str,
    pub severity: Severity,
    /// The problem and its consequence.
    pub finding: String,
    /// The observed value, response or error that demonstrates the problem.
    pub evidence: String,
    /// How to fix the problem, with a command that can be pasted if there is one.
    pub remedy: String,
    /// The location in a file, if the problem is in a file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub place: Option<SourceLocation>,
}
