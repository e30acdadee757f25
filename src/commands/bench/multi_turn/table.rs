//! The report for people at a terminal.

use crate::commands::bench::multi_turn::report::Report;
use crate::commands::bench::serving;

pub(super) fn render(report: &Report) -> String {
    let figures = report.serving.as_ref().map(serving::figures::text);
    let plots = report.passes.iter().filter(|_| report.plot).map(|pass| serving::plot::text(&pass.series));
    let before: String = figures.into_iter().chain(plots).map(|text| text + "\n").collect();
    before + &sections(report)
}

fn sections(report: &Report) -> String {
    let sections: Vec<String> =
        report.sections().iter().map(|section| section.text()).filter(|text| !text.is_empty()).collect();
    let mut text = sections.join("\n");
    let doubts = report.all_doubts();
    if !doubts.is_empty() && !text.is_empty() {
        text.push('\n');
    }
    for doubt in doubts {
        text.push_str(&format!("doubt: {doubt}\n"));
    }
    text
}
