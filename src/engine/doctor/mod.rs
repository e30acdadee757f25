//! Checks of what a store runs on and of a running one: the catalogue, which of them to do, and the checks of each group.
//!
//! Only looks: a port is tried with a socket that is closed again, and objects that are put into a cluster are removed. A check that
//! cannot be done says why; it never passes for want of something to look at.

pub mod cluster;
pub mod config;
pub mod host;
pub mod peer;
pub mod problems;
mod running;
mod select;
pub mod serving;
pub mod wheel;

use crate::engine::check::{Check, Finding, Report, Severity, Status, listed};
use crate::engine::env::Env;

pub use running::Asked;
pub use select::{Selection, UnknownName};

use running::{chain, finding, plural, reports, shown};

/// Every check there is, by group.
pub fn catalogue() -> Vec<Check> {
    let (host, wheel) = (host::checks(), wheel::checks());
    [&host, config::CHECKS, &wheel, cluster::CHECKS, serving::CHECKS, peer::CHECKS].concat()
}

/// A check, and what does it over what was read.
type Line<L> = (Check, fn(&L, &Check) -> Status);

/// Do the wanted checks of `table`.
fn each<L>(env: &impl Env, table: &[Line<L>], look: &L, selection: &Selection) -> Vec<Report> {
    let wanted = table.iter().filter(|(check, _)| selection.wants(check));
    let done = wanted.map(|(check, work)| {
        let start = env.now();
        let status = work(look, check);
        Report { check: *check, status, took: env.now().since(start) }
    });
    done.collect()
}

/// Say that none of the wanted checks of a group could be done.
pub fn skipped(checks: &[Check], selection: &Selection, reason: &str) -> Vec<Report> {
    let wanted = checks.iter().filter(|check| selection.wants(check));
    let skip = |check: &Check| Report {
        check: *check,
        status: Status::Skipped(reason.to_owned()),
        took: std::time::Duration::ZERO,
    };
    wanted.map(skip).collect()
}

/// A finding of `check`. The texts are sentences without a full stop.
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

/// Found, or passed with what was seen.
fn status(findings: Vec<Finding>, seen: impl FnOnce() -> String) -> Status {
    if findings.is_empty() { Status::Passed(seen()) } else { Status::Found(findings) }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_problem_is_recognised_by_a_check() {
        assert!(problems::ALL.iter().map(|problem| problem.number).eq(1..=26));
        let all = catalogue();
        for problem in problems::ALL {
            assert!(all.iter().any(|check| check.problems.contains(&problem.number)), "problem {}", problem.number);
        }
    }

    #[test]
    fn every_check_has_a_name_of_its_own_and_problems_that_exist() {
        let all = catalogue();
        let names: BTreeSet<&str> = all.iter().map(|check| check.id).collect();
        assert_eq!(names.len(), all.len(), "an id is there twice");
        for check in all {
            assert!(!check.about.ends_with('.') && !check.about.is_empty(), "{}", check.id);
            assert!(check.id.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-'), "{}", check.id);
            assert!(check.problems.iter().all(|n| problems::ALL.iter().any(|p| p.number == *n)), "{}", check.id);
        }
    }
}
