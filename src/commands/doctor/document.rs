//! The results as one JSON document.

use serde::Serialize;

use crate::commands::doctor::peer;
use crate::engine::check::{CheckGroup, CheckReport, CheckStatus, Finding, Severity};
use crate::engine::doctor::peer::PeerFacts;

#[derive(Debug, Serialize)]
pub(super) struct DoctorDocument<'a> {
    schema: &'static str,
    summary: DoctorSummary,
    /// The groups of which every selected check was skipped.
    not_checked: Vec<CheckGroup>,
    findings: Vec<&'a Finding>,
    checks: Vec<CheckResultEntry<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    rdma_peers: Vec<peer::PeerEntry<'a>>,
}

/// The numbers of checks and findings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct DoctorSummary {
    pub checks: usize,
    pub passed: usize,
    pub found: usize,
    pub skipped: usize,
    pub errors: usize,
    pub warnings: usize,
    pub infos: usize,
}

#[derive(Debug, Serialize)]
struct CheckResultEntry<'a> {
    id: &'static str,
    group: CheckGroup,
    status: &'static str,
    /// What the check observed, if it passed.
    #[serde(skip_serializing_if = "Option::is_none")]
    evidence: Option<&'a str>,
    /// Why the check was skipped.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'a str>,
    problems: &'static [u8],
    ms: f64,
}

impl DoctorSummary {
    /// Counts the findings of `reports` by severity.
    pub(super) fn of(reports: &[CheckReport]) -> DoctorSummary {
        let mut summary = DoctorSummary { checks: reports.len(), ..DoctorSummary::default() };
        for report in reports {
            match &report.status {
                CheckStatus::Passed(_) => summary.passed += 1,
                CheckStatus::Skipped(_) => summary.skipped += 1,
                CheckStatus::Found(_) => summary.found += 1,
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

impl DoctorDocument<'_> {
    /// The document for `reports`, with the peer results.
    pub(super) fn of<'a>(reports: &'a [CheckReport], peers: &'a PeerFacts) -> DoctorDocument<'a> {
        DoctorDocument {
            schema: "mcctl.doctor/1",
            summary: DoctorSummary::of(reports),
            not_checked: unchecked(reports),
            findings: by_severity(reports),
            checks: reports.iter().map(entry).collect(),
            rdma_peers: peers.peers.iter().map(peer::PeerEntry::of).collect(),
        }
    }
}

/// The groups of which every check in `reports` was skipped, in the order of their first checks.
pub(super) fn unchecked(reports: &[CheckReport]) -> Vec<CheckGroup> {
    let mut groups: Vec<CheckGroup> = Vec::new();
    for report in reports {
        let group = report.check.group;
        if !groups.contains(&group) && has_checked_nothing(reports.iter().filter(|other| other.check.group == group)) {
            groups.push(group);
        }
    }
    groups
}

/// Whether every check was skipped.
pub(super) fn has_checked_nothing<'a>(reports: impl IntoIterator<Item = &'a CheckReport>) -> bool {
    reports.into_iter().all(|report| matches!(report.status, CheckStatus::Skipped(_)))
}

/// All findings, most severe first.
pub(super) fn by_severity(reports: &[CheckReport]) -> Vec<&Finding> {
    let mut findings: Vec<&Finding> = reports.iter().flat_map(CheckReport::findings).collect();
    findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
    findings
}

fn entry(report: &CheckReport) -> CheckResultEntry<'_> {
    let (status, evidence, reason) = match &report.status {
        CheckStatus::Passed(seen) => ("passed", Some(seen.as_str()), None),
        CheckStatus::Found(_) => ("found", None, None),
        CheckStatus::Skipped(why) => ("skipped", None, Some(why.as_str())),
    };
    let ms = (report.took.as_secs_f64() * 1e6).round() / 1e3;
    let check = &report.check;
    CheckResultEntry { id: check.id, group: check.group, status, evidence, reason, problems: check.problems, ms }
}
