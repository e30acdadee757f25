//! Shared by the checks of running services: formatting helpers, and the conversion of facts into
//! reports. Each group of these checks has two halves. One gathers facts (sockets, deadlines) and
//! never judges them. The other judges the facts and is pure, so every finding can be tested
//! without a running service.

use std::time::Duration;

use mcctl_base::check::{Check, CheckReport, CheckStatus, Finding, Severity};

/// Why a fact could not be determined.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Unavailable(String);

impl Unavailable {
    /// Uses the message of `error` as the reason.
    pub fn new(error: impl std::fmt::Display) -> Unavailable {
        Unavailable(error.to_string())
    }
}

impl From<String> for Unavailable {
    fn from(reason: String) -> Unavailable {
        Unavailable(reason)
    }
}

impl From<&str> for Unavailable {
    fn from(reason: &str) -> Unavailable {
        Unavailable(reason.to_owned())
    }
}

impl From<Unavailable> for String {
    fn from(Unavailable(reason): Unavailable) -> String {
        reason
    }
}

impl From<&Unavailable> for String {
    fn from(Unavailable(reason): &Unavailable) -> String {
        reason.clone()
    }
}

/// A fact, or why it could not be determined.
pub type Fact<T> = Result<T, Unavailable>;

/// Builds a finding of the check `id` that has no location in a file.
pub(super) fn finding(
    id: &'static str,
    severity: Severity,
    finding: impl Into<String>,
    evidence: impl Into<String>,
    remedy: impl Into<String>,
) -> Finding {
    Finding { id, severity, finding: finding.into(), evidence: evidence.into(), remedy: remedy.into(), place: None }
}

/// The reports of `checks`, in order. `judge` returns each result and how long gathering its facts
/// took.
pub(super) fn reports(
    checks: &[Check],
    wanted: &dyn Fn(&str) -> bool,
    judge: impl Fn(&Check) -> (CheckStatus, Duration),
) -> Vec<CheckReport> {
    let wanted = checks.iter().filter(|check| wanted(check.id));
    let report = |check: &Check| {
        let (status, took) = judge(check);
        CheckReport { check: *check, status, took }
    };
    wanted.map(report).collect()
}

/// Formats an error with its sources on one line.
pub(super) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut inner = error.source();
    while let Some(source) = inner {
        let more = source.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        inner = source.source();
    }
    text
}
