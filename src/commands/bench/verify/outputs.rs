//! The files of `bench verify`: CSV, an SVG image and an HTML page.

use crate::commands::bench::multi_turn::{Identity, html};
use crate::commands::bench::report_files::{ReportFileArgs, ReportFiles};
use crate::commands::bench::verify::report::VerifyReport;
use crate::commands::cli::error::Failure;
use crate::engine::load::verify::TierResult;

/// Writes the files that the flags name.
///
/// # Errors
/// A file cannot be written. The others are still written.
pub(super) fn write(files: &ReportFileArgs, report: &VerifyReport, run: &Identity) -> Result<(), Failure> {
    files.write(&ReportFiles {
        json: &|| serde_json::to_string(&report.document()).expect("report keys are strings") + "\n",
        html: &|| page(report, run),
        svg: &|| report.plot().document(),
        csv: &|| csv(report),
    })
}

/// Renders the report as an HTML page.
fn page(report: &VerifyReport, run: &Identity) -> String {
    let caveats: Vec<String> = report.caveats.iter().map(ToString::to_string).collect();
    let title = format!("Cached and computed answers: {}", report.target);
    html::document(&title, run, &[report.sentence()], &caveats, &[report.section(), report.measured.section(run)])
}

/// A CSV column: its header and its value.
type VerifyColumn = (&'static str, fn(&TierResult) -> String);

const COLUMNS: [VerifyColumn; 14] = [
    ("tier", |tier| tier.tier.name().to_owned()),
    ("verdict", |tier| tier.verdict.name().to_owned()),
    ("planned", |tier| tier.planned.to_string()),
    ("verified", |tier| tier.verified.to_string()),
    ("not_reached", |tier| tier.not_reached.to_string()),
    ("failed", |tier| tier.failed.to_string()),
    ("compared_with", |tier| tier.compared_with.map_or("", |pass| pass.name()).to_owned()),
    ("differing", |tier| tier.differing.to_string()),
    ("shifted", |tier| tier.shifted.to_string()),
    ("tokens_differ", |tier| tier.differences.tokens_differ.to_string()),
    ("kl_median", |tier| number(tier.differences.kl_median)),
    ("kl_max", |tier| number(tier.differences.kl_max)),
    ("limit", |tier| number(tier.limit)),
    ("decode_ratio", |tier| number(tier.decode.map(|ratio| ratio.median))),
];

fn number(value: Option<f64>) -> String {
    value.map_or(String::new(), |value| value.to_string())
}

/// Renders one row per tier. Absent values are empty.
fn csv(report: &VerifyReport) -> String {
    let mut csv = csv::Writer::from_writer(Vec::new());
    let rows = report.result.tiers.iter().map(|tier| COLUMNS.map(|(_, value)| value(tier)));
    for row in std::iter::once(COLUMNS.map(|(name, _)| name.to_owned())).chain(rows) {
        csv.write_record(row).expect("writing to memory");
    }
    let bytes = csv.into_inner().expect("writing to memory");
    String::from_utf8(bytes).expect("columns are text")
}
