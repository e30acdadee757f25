//! The files of `bench verify`: CSV, an SVG image and an HTML page.

use std::path::PathBuf;

use crate::commands::bench::multi_turn::{Identity, OpenMode, html, open, replace};
use crate::commands::bench::verify::report::VerifyReport;
use crate::commands::cli::error::Failure;
use crate::engine::load::verify::TierResult;

/// Flags for the report and its files.
#[derive(Clone, Debug, Default, clap::Args)]
pub(super) struct VerifyFileArgs {
    /// Print the report as one JSON document, or write it to FILE
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-")]
    pub json: Option<PathBuf>,
    /// Write the report with plots as an HTML page
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Write the plot of the divergences as an SVG image
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
    /// Write one CSV row per tier
    #[arg(long, value_name = "FILE")]
    pub csv: Option<PathBuf>,
}

impl VerifyFileArgs {
    /// Checks that the files can be written, before anything is measured. Files that exist are
    /// replaced at the end.
    ///
    /// # Errors
    /// A file cannot be written, or two flags name the same file.
    pub(super) fn check(&self) -> Result<(), Failure> {
        let flags = [("--json", &self.json), ("--html", &self.html), ("--svg", &self.svg), ("--csv", &self.csv)];
        let named: Vec<_> = flags
            .into_iter()
            .filter_map(|(flag, path)| Some((flag, path.as_ref()?)))
            .filter(|(_, path)| path.as_os_str() != "-")
            .collect();
        for (at, (flag, path)) in named.iter().enumerate() {
            if let Some((other, _)) = named[..at].iter().find(|(_, earlier)| earlier == path) {
                return Err(Failure::usage(format!("{other} and {flag} point to the same file"))
                    .found(path.display().to_string())
                    .next("use a different file for each flag"));
            }
            open(path, OpenMode::Append)?;
        }
        Ok(())
    }

    /// Whether the JSON document replaces the report on stdout.
    pub(super) fn prints_json(&self) -> bool {
        self.json.as_ref().is_some_and(|path| path.as_os_str() == "-")
    }

    /// Writes the files that the flags name.
    ///
    /// # Errors
    /// A file cannot be written. The others are still written.
    pub(super) fn write(&self, report: &VerifyReport, run: &Identity) -> Result<(), Failure> {
        let json = || serde_json::to_string(&report.document()).expect("report keys are strings") + "\n";
        let files: [(&Option<PathBuf>, &dyn Fn() -> String); 4] = [
            (&self.json, &json),
            (&self.html, &|| page(report, run)),
            (&self.svg, &|| report.plot().document()),
            (&self.csv, &|| csv(report)),
        ];
        let named = files.iter().filter_map(|(path, text)| Some((path.as_ref()?, text)));
        let written = named.filter(|(path, _)| path.as_os_str() != "-").map(|(path, text)| replace(path, &text()));
        let failed = written.filter_map(Result::err).map(|error| Failure::host(error.to_string()));
        failed.collect::<Vec<_>>().into_iter().next().map_or(Ok(()), Err)
    }
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
