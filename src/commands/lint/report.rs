//! The report as text and as JSON.

use std::collections::BTreeMap;
use std::fmt::Write;

use serde::Serialize;

use crate::commands::error::Failure;
use crate::engine::check::{Finding, Severity};
use crate::engine::lint::{CHECKS, Implementation, ParsedDeployment, ProcessRole};

/// The document of `--json`, schema `mcctl.lint/1`.
#[derive(Debug, Serialize)]
pub struct LintReport<'a> {
    schema: &'static str,
    files: &'a [&'a str],
    unread: Vec<UnreadFile<'a>>,
    processes: Vec<ListedProcess<'a>>,
    findings: &'a [Finding],
    counts: BTreeMap<Severity, usize>,
}

/// A file that could not be read.
#[derive(Debug, Serialize)]
struct UnreadFile<'a> {
    name: &'a str,
    reason: &'a str,
}

/// A process found in the inputs.
#[derive(Debug, Serialize)]
struct ListedProcess<'a> {
    role: &'static str,
    name: &'a str,
    place: String,
    /// `upstream` or `mcctl`. Suggested fixes are for this implementation.
    program: &'static str,
    /// The assumed Mooncake release. Absent if neither `--release` nor the image sets one.
    #[serde(skip_serializing_if = "Option::is_none")]
    release: Option<String>,
}

impl<'a> LintReport<'a> {
    /// Builds the document.
    pub fn new(
        files: &'a [&'a str],
        unread: &'a [(String, Failure)],
        deployment: &'a ParsedDeployment,
        findings: &'a [Finding],
    ) -> LintReport<'a> {
        let reason = |failure: &'a Failure| failure.found.as_deref().unwrap_or(&failure.what);
        let unread = unread.iter().map(|(name, failure)| UnreadFile { name, reason: reason(failure) }).collect();
        let counts = counts(findings);
        let known = deployment.processes.iter().filter(|process| process.role != ProcessRole::Other);
        let processes = known.map(|p| ListedProcess {
            role: p.role.noun(),
            name: &p.name,
            place: p.place.to_string(),
            program: p.implementation.name(),
            release: deployment.release_of(p).filter(|_| p.implementation == Implementation::Upstream),
        });
        LintReport { schema: "mcctl.lint/1", files, unread, processes: processes.collect(), findings, counts }
    }
}

fn counts(findings: &[Finding]) -> BTreeMap<Severity, usize> {
    let mut counts = BTreeMap::from([(Severity::Info, 0), (Severity::Warning, 0), (Severity::Error, 0)]);
    for finding in findings {
        *counts.entry(finding.severity).or_default() += 1;
    }
    counts
}

/// The verdict of a run, for the last line of the report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Passed,
    /// A finding reaches `--fail-on`.
    Failed,
    /// This many inputs could not be read.
    Incomplete(usize),
}

/// The findings in compiler format, each with its evidence and fix, followed by the counts and the verdict.
pub fn text(deployment: &ParsedDeployment, files: &[&str], findings: &[Finding], verdict: Verdict) -> String {
    let mut out = String::new();
    for finding in findings {
        let place = finding.place.as_ref().map(|place| format!("{place}: ")).unwrap_or_default();
        // Writing to a String cannot fail.
        let _ = writeln!(out, "{place}{}: {} [{}]", finding.severity, finding.finding, finding.id);
        let _ = writeln!(out, "    found: {}", finding.evidence);
        let _ = writeln!(out, "    next:  {}", finding.remedy);
    }
    let counts = counts(findings);
    let known = deployment.processes.iter().filter(|process| process.role != ProcessRole::Other).count();
    let count = |severity| counts.get(&severity).copied().unwrap_or_default();
    let _ = writeln!(
        out,
        "{}, {}, {} info in {} ({})",
        many(count(Severity::Error), "error", "errors"),
        many(count(Severity::Warning), "warning", "warnings"),
        count(Severity::Info),
        many(files.len(), "file", "files"),
        many(known, "process", "processes"),
    );
    let _ = match verdict {
        Verdict::Passed => writeln!(out, "result: passed"),
        Verdict::Failed => writeln!(out, "result: failed"),
        Verdict::Incomplete(count) => {
            writeln!(out, "result: incomplete, {} could not be read", many(count, "input", "inputs"))
        }
    };
    out
}

fn many(count: usize, one: &str, several: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { several })
}

/// The text of `--list`: each rule and what it checks.
pub fn list() -> String {
    let width = CHECKS.iter().map(|check| check.id.len()).max().unwrap_or(0);
    let rows = CHECKS.iter().map(|check| (check.id, check.about));
    std::iter::once(("RULE", "CHECKS THAT")).chain(rows).map(|(id, about)| format!("{id:<width$}  {about}\n")).collect()
}

/// The document of `--list --json`.
pub fn list_json() -> String {
    #[derive(Serialize)]
    struct RuleJson {
        id: &'static str,
        about: &'static str,
        problems: &'static [u8],
    }
    #[derive(Serialize)]
    struct RuleListJson {
        schema: &'static str,
        rules: Vec<RuleJson>,
    }
    let rules = CHECKS.iter().map(|c| RuleJson { id: c.id, about: c.about, problems: c.problems }).collect();
    let list = RuleListJson { schema: "mcctl.lint-rules/1", rules };
    serde_json::to_string(&list).map(|text| text + "\n").unwrap_or_default()
}
