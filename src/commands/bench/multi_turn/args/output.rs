//! What is left of it.

use std::path::PathBuf;

use crate::commands::error::Failure;

/// The report.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "Report")]
pub struct OutputArgs {
    /// One JSON document on stdout, or into FILE
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-")]
    pub json: Option<PathBuf>,
    /// A page with plots, for a browser
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Every request as it ends, a JSON object a line (schema mcctl.bench.record/1); --resume reads it
    #[arg(long, value_name = "FILE")]
    pub records: Option<PathBuf>,
    /// Every request as it ends, as CSV
    #[arg(long, value_name = "FILE")]
    pub csv: Option<PathBuf>,
    /// Append a line with the keys of bench_serving's result, one a pass
    #[arg(long, value_name = "FILE")]
    pub output_file: Option<PathBuf>,
    /// In that line every request by itself, too
    #[arg(long, requires = "output_file")]
    pub output_details: bool,
    /// Append a line with the keys of bench_multiturn.py's result, one a pass
    #[arg(long, value_name = "FILE")]
    pub log_file: Option<PathBuf>,
    /// A word that those two lines carry
    #[arg(long, value_name = "WORD")]
    pub tag: Option<String>,
    /// Write over files that exist
    #[arg(long)]
    pub overwrite: bool,
    /// Go on with the interrupted run that left these --records: what ended is not asked again, the report covers both, and the file grows
    #[arg(long, value_name = "FILE", conflicts_with_all = ["records", "overwrite"])]
    pub resume: Option<PathBuf>,
    /// A line on stderr for every request as it ends
    #[arg(long)]
    pub print_requests: bool,
    /// No progress on stderr
    #[arg(long)]
    pub disable_tqdm: bool,
    /// Show cached tokens by tier in the figures of bench_serving too; the report has them anyway
    #[arg(long)]
    pub cache_report: bool,
    /// Plot tokens per second and requests in flight over the run
    #[arg(long)]
    pub plot_throughput: bool,
    /// Nothing on stderr while it runs, but what goes wrong
    #[arg(long, short)]
    pub quiet: bool,
}

impl OutputArgs {
    /// No file is to hold two things.
    ///
    /// # Errors
    /// One is.
    pub fn no_file_twice(&self) -> Result<(), Failure> {
        let named = [
            ("--json", &self.json),
            ("--html", &self.html),
            ("--records", &self.records),
            ("--csv", &self.csv),
            ("--output-file", &self.output_file),
            ("--log-file", &self.log_file),
            ("--resume", &self.resume),
        ];
        let named: Vec<_> = named.iter().filter_map(|(flag, path)| Some((flag, path.as_ref()?))).collect();
        for (place, (flag, path)) in named.iter().enumerate() {
            if let Some((other, _)) = named[..place].iter().find(|(_, earlier)| earlier == path) {
                return Err(Failure::usage(format!("{other} and {flag} name the same file"))
                    .found(path.display().to_string())
                    .next("name a file of its own for each"));
            }
        }
        Ok(())
    }
}
