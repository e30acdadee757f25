//! The files of a tier ladder: CSV, an SVG image and an HTML page.

use crate::commands::bench::ladder::report::LadderReport;
use crate::commands::bench::multi_turn::{Identity, html};
use crate::commands::bench::report_files::{ReportFileArgs, ReportFiles};
use crate::commands::cli::error::Failure;
use crate::engine::load::ladder::LadderCell;

/// Writes the files that the flags name.
///
/// # Errors
/// A file cannot be written. The others are still written.
pub(super) fn write(files: &ReportFileArgs, report: &LadderReport, run: &Identity) -> Result<(), Failure> {
    files.write(&ReportFiles {
        json: &|| serde_json::to_string(report).expect("report keys are strings") + "\n",
        html: &|| page(report, run),
        svg: &|| report.plot().document(),
        csv: &|| csv(report),
    })
}

/// Renders the report as an HTML page.
fn page(report: &LadderReport, run: &Identity) -> String {
    let caveats: Vec<String> =
        report.caveats.iter().map(ToString::to_string).chain([format!("{}.", report.agreement())]).collect();
    let (caveats, agreement) = caveats.split_at(caveats.len() - 1);
    let mut section = report.section();
    section.text.extend(agreement.iter().cloned());
    let title = format!("Tier ladder: {}", report.target);
    html::document(&title, run, &report.sentences(), caveats, &[report.measured.section(run), section])
}

/// A CSV column: its header and its value.
type LadderColumn = (&'static str, fn(&LadderCell) -> String);

const COLUMNS: [LadderColumn; 19] = [
    ("tokens", |rung| rung.length.to_string()),
    ("tier", |rung| rung.tier.name().to_owned()),
    ("requests", |rung| rung.requests.to_string()),
    ("verified", |rung| rung.verified.to_string()),
    ("ttft_median_ms", |rung| ms(rung.ttft.map(|ttft| ttft.median_ms))),
    ("ttft_low_ms", |rung| ms(rung.ttft.and_then(|ttft| ttft.low_ms))),
    ("ttft_high_ms", |rung| ms(rung.ttft.and_then(|ttft| ttft.high_ms))),
    ("ttft_min_ms", |rung| ms(rung.ttft.map(|ttft| ttft.min_ms))),
    ("ttft_max_ms", |rung| ms(rung.ttft.map(|ttft| ttft.max_ms))),
    ("tokens_per_s", |rung| rung.tokens_per_s.map_or(String::new(), |rate| format!("{rate:.0}"))),
    ("saved_median_ms", |rung| ms(rung.saved.as_ref().map(|saved| saved.median_ms))),
    ("saved_low_ms", |rung| ms(rung.saved.as_ref().and_then(|saved| saved.low_ms))),
    ("saved_high_ms", |rung| ms(rung.saved.as_ref().and_then(|saved| saved.high_ms))),
    ("verdict", |rung| rung.saved.as_ref().map_or("", |saved| saved.verdict.name()).to_owned()),
    ("reason", |rung| {
        rung.saved.as_ref().and_then(|saved| saved.reason.as_ref()).map_or(String::new(), ToString::to_string)
    }),
    ("device_tokens", |rung| rung.device.to_string()),
    ("host_tokens", |rung| rung.host.to_string()),
    ("storage_tokens", |rung| rung.storage.to_string()),
    ("computed_tokens", |rung| rung.computed.to_string()),
];

fn ms(value: Option<f64>) -> String {
    value.map_or(String::new(), |value| format!("{value:.3}"))
}

/// Renders one row per length and tier. Absent values are empty.
fn csv(report: &LadderReport) -> String {
    let mut csv = csv::Writer::from_writer(Vec::new());
    let rows = report.ladder.rungs.iter().map(|rung| COLUMNS.map(|(_, value)| value(rung)));
    for row in std::iter::once(COLUMNS.map(|(name, _)| name.to_owned())).chain(rows) {
        csv.write_record(row).expect("writing to memory");
    }
    let bytes = csv.into_inner().expect("writing to memory");
    String::from_utf8(bytes).expect("columns are text")
}
