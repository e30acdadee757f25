//! Outputs of a run: progress and files during the run, and the report at the end. Shared by all
//! commands that measure conversations.

use std::path::Path;

use crate::commands::bench::caveat::BenchCaveat;
use crate::commands::bench::env;
use crate::commands::bench::multi_turn::execute::{self, MeasuredRun};
use crate::commands::bench::multi_turn::files::record::RunDescription;
use crate::commands::bench::multi_turn::files::{self, OpenMode, OutputFileError, OutputFiles};
use crate::commands::bench::multi_turn::progress::{ProgressView, Screen};
use crate::commands::bench::multi_turn::report::{Identity, RunReport};
use crate::commands::bench::multi_turn::request_log::RequestLogger;
use crate::commands::bench::multi_turn::{Args, html, text};
use crate::commands::cli::error::{Exit, Failure, Outcome};
use crate::commands::cli::output;
use crate::commands::cli::whole_file::{self, IfExists};
use crate::engine::env::wall_clock;
use crate::engine::load::session::{Observer, Session};

/// The outputs of a run.
pub(in crate::commands::bench) struct RunOutputs {
    pub identity: Identity,
    /// Destination for messages during the run.
    pub screen: Screen,
    files: OutputFiles,
    printed: RequestLogger,
    hidden: bool,
}

impl RunOutputs {
    /// Opens all files that `args` specifies, before anything is sent. `described` is written into
    /// the records.
    ///
    /// # Errors
    /// A file already exists or cannot be written.
    pub(crate) fn open(args: &Args, described: RunDescription) -> Result<RunOutputs, Failure> {
        let identity = Identity::of_this_run(args.load.seed(), wall_clock(&env()));
        let screen = Screen::new(args.output.quiet);
        args.output.no_file_twice()?;
        for path in [&args.output.json, &args.output.html].into_iter().flatten() {
            if path.as_os_str() != "-" {
                // Check early that the file is writable. Keep its content until the report replaces
                // it.
                files::open(path, if args.output.overwrite { OpenMode::Append } else { OpenMode::New })?;
            }
        }
        let files = OutputFiles::open(args, &identity, described, &screen)?;
        let printed = RequestLogger::new(screen.clone(), args.output.print_requests);
        Ok(RunOutputs { identity, screen, files, printed, hidden: args.output.disable_tqdm })
    }

    /// Runs `session` with progress, file output and the observer `more`.
    ///
    /// # Errors
    /// Same as [`execute::run`].
    pub(crate) fn execute(&mut self, session: Session, more: &mut dyn Observer) -> Result<MeasuredRun, Failure> {
        let mut view = ProgressView::new(self.screen.clone(), self.hidden);
        let (earlier, caveat) = match self.files.resumed() {
            None => (Vec::new(), None),
            Some(resumed) => {
                let caveat = BenchCaveat::Resumed { requests: resumed.requests, started: resumed.started };
                (resumed.passes, Some(caveat))
            }
        };
        let observers: Vec<&mut dyn Observer> = vec![&mut self.files, &mut self.printed, &mut view, more];
        let mut measured = execute::run(session, earlier, observers, &self.screen)?;
        measured.caveats.extend(caveat);
        Ok(measured)
    }

    /// Returns the `bench serving` result line; `None` for other commands.
    pub(crate) fn figures(&mut self) -> Option<serde_json::Value> {
        self.files.figures()
    }

    /// Closes the files and writes `report`. Returns `exit`, or the exit code for a host error if a
    /// file could not be written.
    ///
    /// # Errors
    /// stdout cannot be written, or no request succeeded.
    pub(crate) fn finish(mut self, args: &Args, report: &RunReport, exit: Exit) -> Outcome {
        let mut errors = self.files.finish();
        if let Some(path) = &args.output.html {
            errors.extend(replace(path, &html::page(report)).err());
        }
        let shown = match args.output.json.as_deref() {
            Some(path) if path.as_os_str() != "-" => {
                let text = serde_json::to_string(report).expect("report keys are strings");
                errors.extend(replace(path, &(text + "\n")).err());
                print(report, exit)
            }
            Some(_) => output::json(report),
            None => print(report, exit),
        };
        for error in &errors {
            self.screen.warn(&format!("error: {error}"));
        }
        shown?;
        Ok(if errors.is_empty() || exit == Exit::Bug { exit } else { Exit::Host })
    }
}

/// Prints the report. If no request succeeded, returns an error instead of printing empty tables,
/// unless `exit` reports a bug.
fn print(report: &RunReport, exit: Exit) -> Result<(), Failure> {
    match report.refused().filter(|_| exit != Exit::Bug) {
        Some(failure) => Err(failure),
        None => output::data(text::render(report)),
    }
}

/// Replaces the content of `path` with `text`: see [`whole_file::write`].
pub(in crate::commands::bench) fn replace(path: &Path, text: &str) -> Result<(), OutputFileError> {
    let cannot = |error: std::io::Error| OutputFileError::Write { path: path.display().to_string(), error };
    whole_file::write(path, text.as_bytes(), IfExists::Replace).map_err(cannot)
}
