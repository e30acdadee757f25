//! The text report: the result, then findings (most severe first), passed checks and skipped
//! checks.

use std::collections::BTreeMap;
use std::io::IsTerminal;

use crate::commands::cli::output;
use crate::commands::cli::severity_colour::painted;
use crate::commands::cli::table::{width, wrapped_line};
use crate::commands::doctor::document::{DoctorSummary, by_severity, has_checked_nothing, unchecked};
use crate::engine::base::text::{counted, escaped};
use crate::engine::check::{CheckGroup, CheckReport, CheckStatus, Severity};

/// Maximum number of skipped checks named on a line. The JSON document lists all of them.
const NAMED_MAX: usize = 4;

/// Renders the report. On a terminal, lines are wrapped at its width. Otherwise, each message is
/// printed on a single line, so that `grep` can find it.
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
    let head = headline(reports, fail_on, has_colour);
    if text.is_empty() { head } else { format!("{head}\n{text}") }
}

/// The first lines: the result with its exit code, the groups of which no check ran, and the
/// numbers of checks and findings.
fn headline(reports: &[CheckReport], fail_on: Severity, has_colour: bool) -> String {
    let sum = DoctorSummary::of(reports);
    let result = match reports.iter().filter_map(CheckReport::worst).max() {
        Some(worst) => {
            let code = i32::from(worst >= fail_on);
            painted(format!("{worst} (code {code} with --fail-on {fail_on})"), worst, 0, has_colour)
        }
        None if has_checked_nothing(reports) => "nothing was checked (code 1)".to_owned(),
        None => "no findings (code 0)".to_owned(),
    };
    let unchecked: Vec<String> = unchecked(reports).iter().map(ToString::to_string).collect();
    let unchecked = match unchecked.is_empty() {
        true => String::new(),
        false => format!("Not checked: {} (see the reasons after 'skipped')\n", unchecked.join(", ")),
    };
    format!(
        "Result: {result}\n{unchecked}{}: {} passed, {} skipped, {} with findings\n{}: {}, {}, {}\n",
        counted(sum.checks, "check"),
        sum.passed,
        sum.skipped,
        sum.found,
        counted(sum.errors + sum.warnings + sum.infos, "finding"),
        counted(sum.errors, "error"),
        counted(sum.warnings, "warning"),
        counted(sum.infos, "info"),
    )
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
