//! Checks of a host and of a running store: the list of all checks, the selection, and the checks
//! of each group.
//!
//! The checks leave the host and the cluster unchanged. Ports are probed with a socket that is then
//! closed. Probe objects are removed from the cluster. A check that cannot run reports `skipped`
//! with the reason; a check never passes merely because its subject is absent.
#![forbid(unsafe_code)]

pub mod cluster;
pub mod config;
pub mod host;
pub mod peer;
pub mod problems;
mod running;
mod select;
pub mod serving;
pub mod wheel;

use mcctl_base::check::{Check, CheckReport, CheckStatus, Finding, Severity, listed};
use mcctl_sys::env::Env;

pub use running::{Fact, Unavailable};
pub use select::{Selection, UnknownName};

use running::{chain, finding, reports};

/// All checks, ordered by group.
pub fn catalogue() -> Vec<Check> {
    let host = host::checks();
    let wheel = wheel::checks();
    [&host, config::CHECKS, &wheel, cluster::CHECKS, serving::CHECKS, peer::CHECKS].concat()
}

/// A check and the function that evaluates it against the facts of its group.
type CheckEntry<L> = (Check, fn(&L, &Check) -> CheckStatus);

/// Runs the selected checks of `table`.
fn each<L>(env: &impl Env, table: &[CheckEntry<L>], facts: &L, selection: &Selection) -> Vec<CheckReport> {
    let wanted = table.iter().filter(|(check, _)| selection.includes(check));
    let done = wanted.map(|(check, evaluate)| {
        let start = env.now();
        let status = evaluate(facts, check);
        CheckReport { check: *check, status, took: env.now().since(start) }
    });
    done.collect()
}

/// Reports each selected check of a group as skipped for the same `reason`.
pub fn skipped(checks: &[Check], selection: &Selection, reason: &str) -> Vec<CheckReport> {
    let wanted = checks.iter().filter(|check| selection.includes(check));
    let skip = |check: &Check| CheckReport {
        check: *check,
        status: CheckStatus::Skipped(reason.to_owned()),
        took: std::time::Duration::ZERO,
    };
    wanted.map(skip).collect()
}

/// Builds a finding of `check`. The strings are sentences without a trailing period.
fn find(
    check: &Check,
    severity: Severity,
    finding: impl Into<String>,
    evidence: impl Into<String>,
    remedy: impl Into<String>,
) -> Finding {
    Finding {
        id: check.id,
        severity,
        finding: finding.into(),
        evidence: evidence.into(),
        remedy: remedy.into(),
        place: None,
    }
}

/// `Found` if there are findings, otherwise `Passed` with the observation.
fn status(findings: Vec<Finding>, seen: impl FnOnce() -> String) -> CheckStatus {
    if findings.is_empty() { CheckStatus::Passed(seen()) } else { CheckStatus::Found(findings) }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_problem_is_recognized_by_a_check() {
        assert!(
            (1..).zip(problems::ALL).all(|(number, problem)| problem.number == number),
            "numbered from 1 without gaps"
        );
        let all = catalogue();
        for problem in problems::ALL {
            assert!(all.iter().any(|check| check.problems.contains(&problem.number)), "problem {}", problem.number);
        }
    }

    #[test]
    fn check_ids_are_unique_and_problem_numbers_exist() {
        let all = catalogue();
        let names: BTreeSet<&str> = all.iter().map(|check| check.id).collect();
        assert_eq!(names.len(), all.len(), "an id is used twice");
        for check in all {
            assert!(!check.about.ends_with('.') && !check.about.is_empty(), "{}", check.id);
            assert!(check.id.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-'), "{}", check.id);
            assert!(check.problems.iter().all(|n| problems::ALL.iter().any(|p| p.number == *n)), "{}", check.id);
        }
    }
}
