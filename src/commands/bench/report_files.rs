//! Flags for the files of a report: JSON, an HTML page, an SVG image and CSV.

use std::path::PathBuf;

use crate::commands::bench::multi_turn::{OpenMode, open, replace};
use crate::commands::cli::error::Failure;

/// Flags for the report and its files.
#[derive(Clone, Debug, Default, clap::Args)]
pub(super) struct ReportFileArgs {
    /// Print the report as one JSON document, or write it to FILE
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-")]
    json: Option<PathBuf>,
    /// Write the report with plots as an HTML page
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Write the main plot as an SVG image
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Write the rows of the table as CSV
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
}

/// Functions that render the files.
pub(super) struct ReportFiles<'a> {
    pub json: &'a dyn Fn() -> String,
    pub html: &'a dyn Fn() -> String,
    pub svg: &'a dyn Fn() -> String,
    pub csv: &'a dyn Fn() -> String,
}

impl ReportFileArgs {
    /// Checks that the files can be written, before anything is measured. Files that exist are
    /// replaced at the end.
    ///
    /// # Errors
    /// A file cannot be written, or two flags name the same file.
    pub(super) fn check(&self) -> Result<(), Failure> {
        let flags = [("--json", &self.json), ("--html", &self.html), ("--svg", &self.svg), ("--csv", &self.csv)];
        let named: Vec<_> = flags.into_iter().filter_map(|(flag, path)| Some((flag, path.as_ref()?))).collect();
        for (at, (flag, path)) in named.iter().enumerate() {
            if path.as_os_str() == "-" {
                if *flag == "--json" {
                    continue;
                }
                return Err(Failure::usage(format!("{flag} needs a file")).next(format!("use {flag} FILE")));
            }
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
    pub(super) fn write(&self, files: &ReportFiles<'_>) -> Result<(), Failure> {
        let files =
            [(&self.json, files.json), (&self.html, files.html), (&self.svg, files.svg), (&self.csv, files.csv)];
        let named = files.iter().filter_map(|(path, text)| Some((path.as_ref()?, text)));
        let written = named.filter(|(path, _)| path.as_os_str() != "-").map(|(path, text)| replace(path, &text()));
        let failed = written.filter_map(Result::err).map(|error| Failure::host(error.to_string()));
        failed.collect::<Vec<_>>().into_iter().next().map_or(Ok(()), Err)
    }
}
