//! What is left of it.

use std::path::PathBuf;

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
    /// Nothing on stderr while it runs, but what goes wrong
    #[arg(long, short)]
    pub quiet: bool,
}
