//! What the checks of running things share: words, and how facts become reports. Each of those groups has two halves: one gathers
//! facts (sockets, deadlines) and never judges; the other judges them and is pure, so that every finding is tested without the thing
//! that it is about.

use std::time::Duration;

use crate::engine::check::{Check, Finding, Report, Severity, Status};

/// What came when something was asked for, or in words why nothing did.
pub type Asked<T> = Result<T, String>;

/// A finding of the check `id`; its place is not a file.
pub(super) fn finding(
    id: &'static str,
    severity: Severity,
    finding: impl Into<String>,
    evidence: impl Into<String>,
    remedy: impl Into<String>,
) -> Finding {
    Finding { id, severity, finding: finding.into(), evidence: evidence.into(), remedy: remedy.into(), place: None }
}

/// The reports of `checks`, in their order, each judged by `judge` (which also says how long its facts took).
pub(super) fn reports(
    checks: &[Check],
    wanted: &dyn Fn(&str) -> bool,
    judge: impl Fn(&Check) -> (Status, Duration),
) -> Vec<Report> {
    let wanted = checks.iter().filter(|check| wanted(check.id));
    let report = |check: &Check| {
        let (status, took) = judge(check);
        Report { check: *check, status, took }
    };
    wanted.map(report).collect()
}

/// `1 node`, `3 nodes`.
pub(super) fn plural(n: usize, what: &str) -> String {
    format!("{n} {what}{}", if n == 1 { "" } else { "s" })
}

/// A time as people read it: `0.4 ms`, `2.0 s`.
pub(super) fn shown(time: Duration) -> String {
    match time.as_secs_f64() {
        s if s < 1.0 => format!("{:.1} ms", s * 1e3),
        s => format!("{s:.1} s"),
    }
}

/// An error and what it comes from, in one line.
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
