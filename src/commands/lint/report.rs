//! The report as text and as JSON.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::commands::cli::error::Failure;
use crate::commands::cli::severity_colour::painted;
use crate::commands::cli::table::{ReportTable, wrapped_line};
use crate::engine::base::text::{counted, counted_as, printable};
use crate::engine::check::{Finding, Severity};
use crate::engine::lint::{CHECKS, Implementation, ParsedDeployment, UnreadPlace};

/// The `--json` document, schema `mcctl.lint/1`.
#[derive(Debug, Serialize)]
pub(super) struct LintReport<'a> {
    schema: &'static str,
    /// `failed`, `passed`, `partly-read` (no finding at or above `--fail-on`, but parts of scripts
    /// were not read) or `incomplete`.
    result: &'static str,
    files: &'a [&'a str],
    unread: Vec<UnreadFile<'a>>,
    /// Parts of scripts that were not read.
    unread_places: Vec<ListedPlace<'a>>,
    script_lines: ScriptLines,
    processes: Vec<ListedProcess<'a>>,
    findings: &'a [Finding],
    counts: BTreeMap<Severity, usize>,
    /// Why the exit code is not 0; `null` if it is 0.
    cause: Option<String>,
    /// What to do about it.
    next: Option<String>,
}

/// A file that could not be read.
#[derive(Debug, Serialize)]
struct UnreadFile<'a> {
    name: &'a str,
    reason: &'a str,
}

/// A part of a script that was not read.
#[derive(Debug, Serialize)]
struct ListedPlace<'a> {
    file: &'a str,
    line: u32,
    /// The number of lines, at least 1.
    lines: u32,
    reason: &'a str,
}

/// The lines of all scripts that are neither empty nor comments.
#[derive(Debug, Serialize)]
struct ScriptLines {
    total: u32,
    read: u32,
}

/// A process found in the inputs.
#[derive(Debug, Serialize)]
struct ListedProcess<'a> {
    role: &'static str,
    name: &'a str,
    place: String,
    /// `upstream` or `mcctl`. Suggested fixes apply to this implementation.
    program: &'static str,
    /// The assumed Mooncake release. Absent if neither `--release` nor the image sets one.
    #[serde(skip_serializing_if = "Option::is_none")]
    release: Option<String>,
}

impl<'a> LintReport<'a> {
    /// Builds the document from the inputs and findings.
    pub(super) fn new(
        files: &'a [&'a str],
        unread: &'a [(String, Failure)],
        deployment: &'a ParsedDeployment,
        findings: &'a [Finding],
        verdict: LintVerdict,
    ) -> LintReport<'a> {
        let reason = |failure: &'a Failure| failure.found.as_deref().unwrap_or(&failure.what);
        let unread: Vec<UnreadFile<'_>> =
            unread.iter().map(|(name, failure)| UnreadFile { name, reason: reason(failure) }).collect();
        let counts = counts(findings);
        let processes = deployment.distinct_processes().into_iter().map(|p| ListedProcess {
            role: p.role.noun(),
            name: &p.name,
            place: p.place.to_string(),
            program: p.implementation.name(),
            release: deployment.release_of(p).filter(|_| p.implementation == Implementation::Upstream),
        });
        let place = |unread: &'a UnreadPlace| ListedPlace {
            file: &unread.place.file,
            line: unread.place.line,
            lines: unread.lines,
            reason: &unread.reason,
        };
        let (cause, next) = verdict.explained(&counts, &unread);
        let lost: u32 = deployment.unread.iter().map(|unread| unread.lines).sum();
        let total = deployment.script_lines;
        LintReport {
            schema: "mcctl.lint/1",
            result: verdict.name(),
            files,
            unread,
            unread_places: deployment.unread.iter().map(place).collect(),
            script_lines: ScriptLines { total, read: total.saturating_sub(lost) },
            processes: processes.collect(),
            findings,
            counts,
            cause,
            next,
        }
    }
}

fn counts(findings: &[Finding]) -> BTreeMap<Severity, usize> {
    let mut counts = BTreeMap::from([(Severity::Info, 0), (Severity::Warning, 0), (Severity::Error, 0)]);
    for finding in findings {
        *counts.entry(finding.severity).or_default() += 1;
    }
    counts
}

/// The verdict for the last line of the report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LintVerdict {
    /// No finding at or above `--fail-on`, and everything was read.
    Passed,
    /// Like `Passed`, but parts of scripts were not read; the value is their number.
    PartlyRead(usize),
    /// At least one finding is at or above `--fail-on`.
    Failed,
    /// Some inputs could not be read; the value is their number.
    Incomplete(usize),
}

impl LintVerdict {
    /// The value in JSON.
    pub(super) const fn name(self) -> &'static str {
        match self {
            LintVerdict::Passed => "passed",
            LintVerdict::PartlyRead(_) => "partly-read",
            LintVerdict::Failed => "failed",
            LintVerdict::Incomplete(_) => "incomplete",
        }
    }

    /// Why the exit code is not 0, and what to do about it.
    fn explained(
        self,
        counts: &BTreeMap<Severity, usize>,
        unread: &[UnreadFile<'_>],
    ) -> (Option<String>, Option<String>) {
        match self {
            LintVerdict::Passed | LintVerdict::PartlyRead(_) => (None, None),
            LintVerdict::Failed => {
                let of = |severity| counts.get(&severity).copied().unwrap_or_default();
                let cause = format!(
                    "found {}, {} and {} info",
                    counted(of(Severity::Error), "error"),
                    counted(of(Severity::Warning), "warning"),
                    of(Severity::Info)
                );
                (Some(cause), Some("apply the remedy of each finding, or skip its rule with --skip".to_owned()))
            }
            LintVerdict::Incomplete(count) => {
                let first = unread.first().map(|file| format!(": {}: {}", file.name, file.reason)).unwrap_or_default();
                let cause = format!("{} could not be read{first}", counted(count, "input"));
                (Some(cause), Some("pass readable files of a known type; --kind sets the type".to_owned()))
            }
        }
    }
}

/// The findings in compiler format, each with its evidence and fix, followed by the counts and the
/// verdict. Lines wrap at `width`. Control characters are escaped. With `has_colour`, severities
/// have colours.
pub(super) fn text(
    deployment: &ParsedDeployment,
    files: &[&str],
    findings: &[Finding],
    verdict: LintVerdict,
    width: Option<usize>,
    has_colour: bool,
) -> String {
    let line = |text: String| {
        // A file name or a value in a file may contain control characters and newlines.
        let text = printable(&text).replace('\n', "\\n");
        match width {
            Some(width) => wrapped_line(&text, width),
            None => text + "\n",
        }
    };
    let mut out = String::new();
    for finding in findings {
        let place = finding.place.as_ref().map(|place| format!("{place}: ")).unwrap_or_default();
        let head = line(format!("{place}{}: {} [{}]", finding.severity, finding.finding, finding.id));
        out.push_str(&painted(head, finding.severity, place.len(), has_colour));
        out.push_str(&line(format!("    found: {}", finding.evidence)));
        out.push_str(&line(format!("    next:  {}", finding.remedy)));
    }
    for unread in &deployment.unread {
        out.push_str(&line(format!("{}: not read: {}", unread.place, unread.reason)));
    }
    let counts = counts(findings);
    let known = deployment.distinct_processes().len();
    let count = |severity| counts.get(&severity).copied().unwrap_or_default();
    out.push_str(&line(format!(
        "{}, {}, {} info in {} ({})",
        counted(count(Severity::Error), "error"),
        counted(count(Severity::Warning), "warning"),
        count(Severity::Info),
        counted(files.len(), "file"),
        counted_as(known, "process", "processes"),
    )));
    out.push_str(&match verdict {
        LintVerdict::Passed => "result: passed\n".to_owned(),
        LintVerdict::PartlyRead(count) => line(format!("result: passed, {} not read", counted(count, "place"))),
        LintVerdict::Failed => "result: failed\n".to_owned(),
        LintVerdict::Incomplete(count) => {
            line(format!("result: incomplete, {} could not be read", counted(count, "input")))
        }
    });
    out
}

/// The `--list` table: each rule and what it checks, at most `width` columns wide.
pub(super) fn list(width: usize) -> String {
    let mut table = ReportTable::new("", &["rule", "checks that"]).text_column(1);
    for check in CHECKS {
        table.row([check.id, check.about]);
    }
    table.render(width)
}

/// The `--list --json` document.
pub(super) fn list_json() -> String {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rule_table_has_a_header_and_fits_60_columns() {
        let text = list(60);
        assert!(text.starts_with("rule"), "{text}");
        assert!(text.lines().all(|line| line.len() <= 60), "{text}");
    }

    #[test]
    fn findings_wrap_only_at_a_given_width() {
        let finding = Finding {
            id: "memory-limit",
            severity: Severity::Error,
            finding: "a message that is too long for a narrow terminal, ".repeat(3),
            evidence: "e".to_owned(),
            remedy: "r".to_owned(),
            place: None,
        };
        let text = |width| {
            text(
                &ParsedDeployment::default(),
                &["a"],
                std::slice::from_ref(&finding),
                LintVerdict::Failed,
                width,
                false,
            )
        };
        assert!(text(Some(60)).lines().all(|line| line.len() <= 60));
        assert_eq!(text(None).lines().count(), 5);
    }
}
