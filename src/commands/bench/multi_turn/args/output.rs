//! What is left of it.

use std::path::PathBuf;

/// The report.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Report")]
pub struct OutputArgs {
    /// One JSON document on stdout, or into FILE
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-")]
    pub json: Option<PathBuf>,
    /// A page with plots, for a browser
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
}
