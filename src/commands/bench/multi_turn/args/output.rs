//! Flags for the report and its files.

use std::path::{Path, PathBuf};

use crate::commands::cli::error::Failure;

#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "Report")]
pub struct OutputArgs {
    /// Print the report as one JSON document, or write it to FILE
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-")]
    pub json: Option<PathBuf>,
    /// Write the report with plots as an HTML page
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Write every completed request as a JSON line (schema mcctl.bench.record/1), for --resume and
    /// bench compare
    #[arg(long, value_name = "FILE")]
    pub records: Option<PathBuf>,
    /// Write every completed request as a CSV row
    #[arg(long, value_name = "FILE")]
    pub csv: Option<PathBuf>,
    /// Append one JSON line per pass, with the same keys as bench_serving
    #[arg(long, value_name = "FILE")]
    pub output_file: Option<PathBuf>,
    /// Include per-request details in the --output-file lines, in the order of the prompts
    #[arg(long)]
    pub output_details: bool,
    /// Append one JSON line per pass, with the same keys as bench_multiturn.py
    #[arg(long, value_name = "FILE")]
    pub log_file: Option<PathBuf>,
    /// Label to store in the --output-file and --log-file lines
    #[arg(long, value_name = "WORD")]
    pub tag: Option<String>,
    /// Overwrite output files that already exist
    #[arg(long)]
    pub overwrite: bool,
    /// Continue the interrupted run that wrote this --records file: completed requests are not
    /// repeated, and new ones are appended
    #[arg(long, value_name = "FILE", conflicts_with_all = ["records", "overwrite"])]
    pub resume: Option<PathBuf>,
    /// Log every completed request to stderr
    #[arg(long)]
    pub print_requests: bool,
    /// Do not show progress on stderr
    #[arg(long)]
    pub disable_tqdm: bool,
    /// Also show cached tokens by tier in the bench_serving summary; the report always includes
    /// them
    #[arg(long)]
    pub cache_report: bool,
    /// Show a text plot of tokens per second and requests in flight over time
    #[arg(long)]
    pub plot_throughput: bool,
    /// Explain the terms of the report at its end
    #[arg(long)]
    pub legend: bool,
    /// Log only warnings and errors to stderr
    #[arg(long, short)]
    pub quiet: bool,
}

impl OutputArgs {
    /// Rejects output flags that point to the file `input`, which is read.
    ///
    /// # Errors
    /// A flag points to `input`.
    pub fn check_not_written(&self, input: &str) -> Result<(), Failure> {
        let real = |path: &Path| std::fs::canonicalize(path).ok();
        let Some(read) = real(Path::new(input)) else { return Ok(()) };
        let written = self.files().into_iter().filter_map(|(flag, path)| Some((flag, path.as_deref()?)));
        match written.into_iter().find(|(_, path)| real(path).as_ref() == Some(&read)) {
            None => Ok(()),
            Some((flag, path)) => Err(Failure::usage(format!("{flag} points to a file that is compared"))
                .found(path.display().to_string())
                .next("use a different file")),
        }
    }

    fn files(&self) -> [(&'static str, &Option<PathBuf>); 7] {
        [
            ("--json", &self.json),
            ("--html", &self.html),
            ("--records", &self.records),
            ("--csv", &self.csv),
            ("--output-file", &self.output_file),
            ("--log-file", &self.log_file),
            ("--resume", &self.resume),
        ]
    }

    /// Rejects output flags that point to the same file.
    ///
    /// # Errors
    /// Two flags point to the same file.
    pub fn no_file_twice(&self) -> Result<(), Failure> {
        let named = self.files();
        let named: Vec<_> = named.iter().filter_map(|(flag, path)| Some((flag, path.as_ref()?))).collect();
        for (at, (flag, path)) in named.iter().enumerate() {
            if let Some((other, _)) = named[..at].iter().find(|(_, earlier)| earlier == path) {
                return Err(Failure::usage(format!("{other} and {flag} point to the same file"))
                    .found(path.display().to_string())
                    .next("use a different file for each flag"));
            }
        }
        Ok(())
    }
}
