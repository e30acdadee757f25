//! The report as text: figures and sections, then the caveats and the conclusion.

use crate::commands::bench::caveat::render_end;
use crate::commands::bench::multi_turn::report::RunReport;
use crate::commands::bench::serving;
use crate::commands::cli::table;

/// Renders `report` for the terminal width.
pub(super) fn render(report: &RunReport) -> String {
    let width = table::width();
    let figures = report.serving.as_ref().map(serving::figures::text);
    let plots = report.passes.iter().filter(|_| report.plot).map(|pass| serving::plot::text(&pass.series));
    let sections = report.sections();
    let sections = sections.iter().map(|section| section.render(width));
    let mut parts: Vec<String> = figures.into_iter().chain(plots).chain(sections).collect();
    parts.push(render_end(&report.all_caveats(), &report.answer(), width));
    parts.retain(|part| !part.is_empty());
    parts.join("\n")
}
