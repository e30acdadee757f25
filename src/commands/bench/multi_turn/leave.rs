//! What a run leaves: the live view and the files while it goes, the report at its end. Every command that measures conversations
//! leaves the same.

use std::path::Path;

use crate::commands::bench::multi_turn::files::{self, Files, OpenManner};
use crate::commands::bench::multi_turn::live::{Screen, View};
use crate::commands::bench::multi_turn::measure::{self, Measured};
use crate::commands::bench::multi_turn::printed::Printed;
use crate::commands::bench::multi_turn::report::{Identity, Report};
use crate::commands::bench::multi_turn::{Args, html, table};
use crate::commands::error::{Exit, Failure, Outcome};
use crate::commands::output;
use crate::engine::env::{Env, RealEnv};
use crate::engine::load::session::{Observer, Session};

/// See the module.
pub(in crate::commands::bench) struct Leave {
    /// What is run.
    pub identity: Identity,
    /// Where what is said meanwhile goes.
    pub screen: Screen,
    files: Files,
    printed: Printed,
    hidden: bool,
}

impl Leave {
    /// Open all files that `args` name, before anything is sent. `work` is a digest of what is asked of whom.
    ///
    /// # Errors
    /// A file cannot be written, or is there already.
    pub fn open(args: &Args, work: &str) -> Result<Leave, Failure> {
        let identity = Identity::of_this_run(args.load.seed, RealEnv::new().unix());
        let screen = Screen::new(args.output.quiet);
        args.output.no_file_twice()?;
        for path in [&args.output.json, &args.output.html].into_iter().flatten() {
            if path.as_os_str() != "-" {
                // It is known before the run that it can be written; what is in it stays until there is something to put there.
                files::open(path, if args.output.overwrite { OpenManner::Append } else { OpenManner::New })?;
            }
        }
        let files = Files::open(args, &identity, work, &screen)?;
        let printed = Printed::new(screen.clone(), args.output.print_requests);
        Ok(Leave { identity, screen, files, printed, hidden: args.output.disable_tqdm })
    }

    /// Carry out `session`, shown and written down as it goes, and watched by `more`.
    ///
    /// # Errors
    /// Signals cannot be taken, or there is no runtime.
    pub fn carry_out(&mut self, session: Session, more: &mut dyn Observer) -> Result<Measured, Failure> {
        let mut view = View::new(self.screen.clone(), self.hidden);
        let (earlier, doubt) = match self.files.resumed() {
            None => (Vec::new(), None),
            Some(resumed) => {
                let doubt = format!(
                    "up to {} requests are of a run that began {} and was interrupted: the caches were not as they would have been \
                     in one run, and time between tokens is of this one alone",
                    resumed.requests, resumed.started
                );
                (resumed.passes, Some(doubt))
            }
        };
        let observers: Vec<&mut dyn Observer> = vec![&mut self.files, &mut self.printed, &mut view, more];
        let mut measured = measure::carry_out(session, earlier, observers, &self.screen)?;
        measured.doubts.extend(doubt);
        Ok(measured)
    }

    /// The figures of `bench serving`, where it is that.
    pub fn figures(&mut self) -> Option<serde_json::Value> {
        self.files.figures()
    }

    /// Close the files and leave `report`; the exit code, `exit` unless something could not be written.
    ///
    /// # Errors
    /// stdout cannot be written.
    pub fn finish(mut self, args: &Args, report: &Report, exit: Exit) -> Outcome {
        let mut troubles = self.files.finish();
        if let Some(path) = &args.output.html {
            troubles.extend(write(path, &html::page(report)).err());
        }
        let shown = match args.output.json.as_deref() {
            Some(path) if path.as_os_str() != "-" => {
                let text = serde_json::to_string(report).expect("our own documents have only text keys");
                troubles.extend(write(path, &(text + "\n")).err());
                shown_to_people(report, exit)
            }
            Some(_) => output::json(report),
            None => shown_to_people(report, exit),
        };
        for trouble in &troubles {
            self.screen.warn(&format!("error: {trouble}"));
        }
        shown?;
        Ok(if troubles.is_empty() || exit == Exit::Bug { exit } else { Exit::Host })
    }
}

/// The report on stdout; where no request succeeded, an error instead of empty tables. A bug keeps its exit code.
fn shown_to_people(report: &Report, exit: Exit) -> Result<(), Failure> {
    match report.refused().filter(|_| exit != Exit::Bug) {
        Some(failure) => Err(failure),
        None => output::data(table::render(report)),
    }
}

/// Put `text` into the file at `path`: whole, or what is there stays.
fn write(path: &Path, text: &str) -> Result<(), String> {
    let cannot = |error: std::io::Error| format!("cannot write {}: {error}", path.display());
    let plain = std::fs::metadata(path).map(|metadata| metadata.is_file()).unwrap_or(true);
    if !plain {
        return std::fs::write(path, text).map_err(cannot);
    }
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut beside = tempfile::NamedTempFile::new_in(folder).map_err(cannot)?;
    std::io::Write::write_all(&mut beside, text.as_bytes()).map_err(cannot)?;
    // Others may read it as they may any new file.
    if let Ok(there) = std::fs::metadata(path) {
        let _ = beside.as_file().set_permissions(there.permissions());
    }
    beside.persist(path).map(drop).map_err(|error| cannot(error.error))
}
