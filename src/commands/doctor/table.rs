//! The text report: findings (most severe first), passed checks, skipped checks, and the summary.

use std::collections::BTreeMap;
use std::io::IsTerminal;

use crate::commands::doctor::document::{DoctorSummary, by_severity};
use crate::commands::output;
use crate::commands::severity_colour::painted;
use crate::commands::table::{width, wrapped_line};
use crate::engine::base::text::escaped;
use crate::engine::check::{CheckGroup, CheckReport, CheckStatus, Severity};

/// Maximum number of skipped checks named on a line. The JSON document lists all of them.
const NAMED_MAX: usize = 4;

/// Renders the report. On a terminal, lines are wrapped at its width. Otherwise, each message is printed on a single line, so that `grep`
/// can find it.
pub(super) fn render(reports: &[CheckReport], verbose: bool, fail_on: Severity) -> String {
    let is_terminal = std::io::stdout().is_terminal();
    let has_colour = output::is_fancy();
    let line = |text: String| if is_terminal { wrapped_line(&text, width()) } else { format!("{text}\n") };
    let mut text = String::new();
    for finding in by_severity(reports) {
        let head = line(format!("{:<8} {}: {}", finding.severity, finding.id, escaped(&finding.finding)));
        text.push_str(&painted(head, finding.severity, 0, has_colour));
        if let Some(place) = &finding.place {
            text.push_str(&line(format!("         location  {}", escaped(&place.to_string()))));
        }
        text.push_str(&line(format!("         evidence  {}", escaped(&finding.evidence))));
        text.push_str(&line(format!("         remedy    {}", escaped(&finding.remedy))));
    }
    if verbose {
        for report in reports {
            if let CheckStatus::Passed(seen) = &report.status {
                text.push_str(&line(format!("passed   {}: {}", report.check.id, escaped(seen))));
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
        text.push_str(&line(format!("skipped  {group}{which}: {}", escaped(why))));
    }
    let sum = DoctorSummary::of(reports);
    let count = |n: usize, what: &str| format!("{n} {what}{}", if n == 1 { "" } else { "s" });
    let result = match reports.iter().filter_map(CheckReport::worst).max() {
        Some(worst) => {
            let code = i32::from(worst >= fail_on);
            painted(format!("{worst} (code {code} with --fail-on {fail_on})"), worst, 0, has_colour)
        }
        None => "no findings (code 0)".to_owned(),
    };
    text.push_str(&format!(
        "{}{}: {} passed, {} skipped, {} with findings\n{}: {}, {}, {}\nResult: {result}\n",
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

/// The skipped checks, by group and reason.
fn skipped(reports: &[CheckReport]) -> BTreeMap<(CheckGroup, &str), Vec<&'static str>> {
    let mut all: BTreeMap<(CheckGroup, &str), Vec<&'static str>> = BTreeMap::new();
    for report in reports {
        if let CheckStatus::Skipped(why) = &report.status {
            all.entry((report.check.group, why)).or_default().push(report.check.id);
        }
    }
    all
}
