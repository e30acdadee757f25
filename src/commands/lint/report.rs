//! Findings as text and as JSON.

use std::collections::BTreeMap;
use std::fmt::Write;

use serde::Serialize;

use crate::commands::error::Failure;
use crate::engine::check::{Finding, Severity};
use crate::engine::lint::{CHECKS, Make, Role, Scene};

/// `--json`, schema `mcctl.lint/1`.
#[derive(Debug, Serialize)]
pub struct Document<'a> {
    schema: &'static str,
    files: &'a [&'a str],
    unread: Vec<UnreadLine<'a>>,
    processes: Vec<ProcessLine<'a>>,
    findings: &'a [Finding],
    counts: BTreeMap<Severity, usize>,
}

/// A file that could not be read, and why.
#[derive(Debug, Serialize)]
struct UnreadLine<'a> {
    name: &'a str,
    reason: &'a str,
}

/// A process that was understood.
#[derive(Debug, Serialize)]
struct ProcessLine<'a> {
    role: &'static str,
    name: &'a str,
    place: String,
    /// Whose program it is, `upstream` or `mcctl`: remedies are for that one.
    program: &'static str,
    /// The release of Mooncake that is assumed; absent where neither `--release` nor an image names one.
    #[serde(skip_serializing_if = "Option::is_none")]
    release: Option<String>,
}

impl<'a> Document<'a> {
    /// What was read and found.
    pub fn new(
        files: &'a [&'a str],
        unread: &'a [(String, Failure)],
        scene: &'a Scene,
        findings: &'a [Finding],
    ) -> Document<'a> {
        let reason = |failure: &'a Failure| failure.found.as_deref().unwrap_or(&failure.what);
        let unread = unread.iter().map(|(name, failure)| UnreadLine { name, reason: reason(failure) }).collect();
        let counts = counts(findings);
        let known = scene.processes.iter().filter(|process| process.role != Role::Other);
        let processes = known.map(|p| ProcessLine {
            role: p.role.noun(),
            name: &p.name,
            place: p.place.to_string(),
            program: p.make.word(),
            release: scene.release_of(p).filter(|_| p.make == Make::Upstream),
        });
        Document { schema: "mcctl.lint/1", files, unread, processes: processes.collect(), findings, counts }
    }
}

fn counts(findings: &[Finding]) -> BTreeMap<Severity, usize> {
    let mut counts = BTreeMap::from([(Severity::Info, 0), (Severity::Warning, 0), (Severity::Error, 0)]);
    for finding in findings {
        *counts.entry(finding.severity).or_default() += 1;
    }
    counts
}

/// A line per finding that editors understand, what says so and what to do below it; then what was looked at.
pub fn text(scene: &Scene, files: &[&str], findings: &[Finding]) -> String {
    let mut out = String::new();
    for finding in findings {
        let place = finding.place.as_ref().map(|place| format!("{place}: ")).unwrap_or_default();
        // Writing to a text cannot fail.
        let _ = writeln!(out, "{place}{}: {} [{}]", finding.severity, finding.finding, finding.id);
        let _ = writeln!(out, "    seen: {}", finding.evidence);
        let _ = writeln!(out, "    next: {}", finding.remedy);
    }
    let counts = counts(findings);
    let known = scene.processes.iter().filter(|process| process.role != Role::Other).count();
    let count = |severity| counts.get(&severity).copied().unwrap_or_default();
    let _ = writeln!(
        out,
        "{}, {}: {}, {}, {} info",
        many(files.len(), "file"),
        many(known, "process").replace("processs", "processes"),
        many(count(Severity::Error), "error"),
        many(count(Severity::Warning), "warning"),
        count(Severity::Info),
    );
    out
}

fn many(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

/// `--list`: each rule with what it makes sure of.
pub fn list() -> String {
    let width = CHECKS.iter().map(|check| check.id.len()).max().unwrap_or(0);
    CHECKS.iter().map(|check| format!("{:<width$}  {}\n", check.id, check.about)).collect()
}

/// `--list --json`.
pub fn list_json() -> String {
    #[derive(Serialize)]
    struct Line {
        id: &'static str,
        about: &'static str,
        problems: &'static [u8],
    }
    #[derive(Serialize)]
    struct List {
        schema: &'static str,
        rules: Vec<Line>,
    }
    let rules = CHECKS.iter().map(|c| Line { id: c.id, about: c.about, problems: c.problems }).collect();
    let list = List { schema: "mcctl.lint-rules/1", rules };
    serde_json::to_string(&list).map(|text| text + "\n").unwrap_or_default()
}
