//! What was found, as one JSON document.

use serde::Serialize;

use crate::commands::doctor::peer;
use crate::engine::check::{Finding, Group, Report, Severity, Status};
use crate::engine::doctor::peer::Facts;

/// The document.
#[derive(Debug, Serialize)]
pub(super) struct Document<'a> {
    schema: &'static str,
    summary: Summary,
    findings: Vec<&'a Finding>,
    checks: Vec<Line<'a>>,
    /// With `--rdma-peer`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    rdma_peers: Vec<peer::Line<'a>>,
}

/// How many there are of each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct Summary {
    pub checks: usize,
    pub passed: usize,
    pub found: usize,
    pub skipped: usize,
    pub errors: usize,
    pub warnings: usize,
    pub infos: usize,
}

#[derive(Debug, Serialize)]
struct Line<'a> {
    id: &'static str,
    group: Group,
    status: &'static str,
    /// What was seen; of a check that passed.
    #[serde(skip_serializing_if = "Option::is_none")]
    evidence: Option<&'a str>,
    /// Why it was not done.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'a str>,
    problems: &'static [u8],
    ms: f64,
}

impl Summary {
    /// Counts the findings of `reports` by severity.
    pub fn of(reports: &[Report]) -> Summary {
        let mut summary = Summary { checks: reports.len(), ..Summary::default() };
        for report in reports {
            match &report.status {
                Status::Passed(_) => summary.passed += 1,
                Status::Skipped(_) => summary.skipped += 1,
                Status::Found(_) => summary.found += 1,
            }
            for finding in report.findings() {
                match finding.severity {
                    Severity::Error => summary.errors += 1,
                    Severity::Warning => summary.warnings += 1,
                    Severity::Info => summary.infos += 1,
                }
            }
        }
        summary
    }
}

impl Document<'_> {
    /// The document of `reports`, with what the peers reported.
    pub fn of<'a>(reports: &'a [Report], peers: &'a Facts) -> Document<'a> {
        Document {
            schema: "mcctl.doctor/1",
            summary: Summary::of(reports),
            findings: by_severity(reports),
            checks: reports.iter().map(line).collect(),
            rdma_peers: peers.peers.iter().map(peer::Line::of).collect(),
        }
    }
}

/// The findings, the worst first.
pub(super) fn by_severity(reports: &[Report]) -> Vec<&Finding> {
    let mut findings: Vec<&Finding> = reports.iter().flat_map(Report::findings).collect();
    findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
    findings
}

fn line(report: &Report) -> Line<'_> {
    let (status, evidence, reason) = match &report.status {
        Status::Passed(seen) => ("passed", Some(seen.as_str()), None),
        Status::Found(_) => ("found", None, None),
        Status::Skipped(why) => ("skipped", None, Some(why.as_str())),
    };
    let ms = (report.took.as_secs_f64() * 1e6).round() / 1e3;
    let check = &report.check;
    Line { id: check.id, group: check.group, status, evidence, reason, problems: check.problems, ms }
}
