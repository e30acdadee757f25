//! One thing that is wrong, or worth knowing.

use std::fmt;
use std::sync::Arc;

use serde::Serialize;

/// How much a finding matters. The order is that of harm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Severity {
    /// Good to know; nothing has to be done.
    Info,
    /// It works, but not well, not everywhere, or not for long.
    Warning,
    /// It does not work, or loses what it holds.
    Error,
}

impl Severity {
    /// The word in tables and JSON.
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

/// A line of a text that was read.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct SourceLocation {
    /// The file as the user named it; `environment`, `command line` or `pid 12` where there is none.
    pub file: Arc<str>,
    /// Counted from one; 0 where the text has no lines.
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

/// Of a longer list, what fits a line: the first few, and how many more there are.
pub fn listed<T: fmt::Display>(items: &[T]) -> String {
    const SHOWN: usize = 4;
    let shown: Vec<String> = items.iter().take(SHOWN).map(T::to_string).collect();
    match items.len().checked_sub(SHOWN) {
        Some(more) if more > 0 => format!("{} and {more} more", shown.join(", ")),
        _ => shown.join(", "),
    }
}

/// One thing that was found. The three texts are sentences without a full stop, fit for one line each.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Which check found it: stable, kebab-case, the name that `--only` and `--skip` take.
    pub id: &'static str,
    /// How much it matters.
    pub severity: Severity,
    /// What is wrong, and what follows from it.
    pub finding: String,
    /// What was seen that says so: a value and where it stands, an answer, an error.
    pub evidence: String,
    /// What to do about it; a line to paste where there is one.
    pub remedy: String,
    /// Where in a file, where it is in one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub place: Option<SourceLocation>,
}
