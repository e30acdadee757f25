//! What was found, for people: findings first, the worst of them first of all; then what was not done, and the sum.

use std::collections::BTreeMap;

use crate::commands::doctor::document::{Summary, by_severity};
use crate::engine::base::text::escaped;
use crate::engine::check::{Group, Report, Status};

/// The most names of skipped checks in one line; all of them are in the JSON document.
const NAMED_MAX: usize = 4;

pub(super) fn render(reports: &[Report], verbose: bool) -> String {
    let mut text = String::new();
    for finding in by_severity(reports) {
        text.push_str(&format!("{:<8} {}: {}\n", finding.severity, finding.id, escaped(&finding.finding)));
        if let Some(place) = &finding.place {
            text.push_str(&format!("         place     {}\n", escaped(&place.to_string())));
        }
        text.push_str(&format!("         evidence  {}\n", escaped(&finding.evidence)));
        text.push_str(&format!("         remedy    {}\n", escaped(&finding.remedy)));
    }
    if verbose {
        for report in reports {
            if let Status::Passed(seen) = &report.status {
                text.push_str(&format!("passed   {}: {}\n", report.check.id, escaped(seen)));
            }
        }
    }
    for ((group, why), names) in skipped(reports) {
        let all = reports.iter().filter(|report| report.check.group == group).count();
        let which = match names.len() {
            n if n == all => String::new(),
            n if n > NAMED_MAX => format!(" ({} and {} more)", names[..NAMED_MAX].join(", "), n - NAMED_MAX),
            _ => format!(" ({})", names.join(", ")),
        };
        text.push_str(&format!("skipped  {group}{which}: {}\n", escaped(why)));
    }
    let sum = Summary::of(reports);
    let count = |n: usize, what: &str| format!("{n} {what}{}", if n == 1 { "" } else { "s" });
    text.push_str(&format!(
        "{}{}: {} passed, {} skipped, {} with findings\n{}: {}, {}, {}\n",
        if text.is_empty() { "" } else { "\n" },
        count(sum.checks, "check"),
        sum.passed,
        sum.skipped,
        sum.found,
        count(sum.errors + sum.warnings + sum.infos, "finding"),
        count(sum.errors, "error"),
        count(sum.warnings, "warning"),
        count(sum.infos, "info"),
    ));
    text
}

/// What was not done, by group and reason.
fn skipped(reports: &[Report]) -> BTreeMap<(Group, &str), Vec<&'static str>> {
    let mut all: BTreeMap<(Group, &str), Vec<&'static str>> = BTreeMap::new();
    for report in reports {
        if let Status::Skipped(why) = &report.status {
            all.entry((report.check.group, why)).or_default().push(report.check.id);
        }
    }
    all
}
