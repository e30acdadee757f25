//! Writes lines to files from a separate thread, so that a slow disk never delays the load
//! generator.
//!
//! The queue is bounded. Lines that do not fit or cannot be written are dropped, counted and
//! reported.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, TrySendError, sync_channel};
use std::thread::JoinHandle;

use crate::commands::bench::multi_turn::progress::Screen;
use crate::commands::cli::error::Failure;

/// An output file that could not be written completely.
#[derive(Debug, thiserror::Error)]
pub(in crate::commands::bench) enum OutputFileError {
    #[error("{path} is incomplete: {reason}")]
    Incomplete { path: String, reason: String },
    #[error("{path} is missing {lines} lines: the disk was too slow for the run")]
    LostLines { path: String, lines: u64 },
    #[error("cannot write {path}: {error}")]
    Write { path: String, error: io::Error },
    #[error("the output file thread panicked")]
    Thread,
}

const QUEUE_MAX: usize = 1 << 16;

/// An open output file.
struct OutputFile {
    path: PathBuf,
    to: BufWriter<File>,
    /// The first write error. Nothing is written after it.
    error: Option<String>,
    lost: u64,
}

/// Index of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FileId(usize);

/// The files to write, before the writer thread starts.
#[derive(Default)]
pub(super) struct OutputFileSet(Vec<OutputFile>);

/// How a file is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::commands::bench) enum OpenMode {
    /// The file must be new or empty.
    New,
    /// Existing content is removed.
    Overwrite,
    /// Existing content is kept.
    Append,
}

/// Opens `path` for writing.
///
/// # Errors
/// The file has content and `mode` is [`OpenMode::New`], or the file cannot be opened.
pub(in crate::commands::bench) fn open(path: &Path, mode: OpenMode) -> Result<File, Failure> {
    let cannot = |error: io::Error| {
        let failure = match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::IsADirectory => {
                Failure::usage(format!("cannot write {}", path.display()))
            }
            _ => Failure::host(format!("cannot write {}", path.display())),
        };
        failure.found(error.to_string())
    };
    let mut options = File::options();
    options.create(true).append(mode == OpenMode::Append).write(true);
    // Check the file before truncating it.
    let file = options.truncate(false).open(path).map_err(cannot)?;
    let metadata = file.metadata().map_err(cannot)?;
    if metadata.is_file() && metadata.len() > 0 {
        match mode {
            OpenMode::New => {
                return Err(Failure::usage(format!("{} already exists", path.display()))
                    .found(format!("file size: {} bytes", metadata.len()))
                    .next("choose another file, or use --overwrite"));
            }
            OpenMode::Overwrite => file.set_len(0).map_err(cannot)?,
            OpenMode::Append => {}
        }
    }
    Ok(file)
}

impl OutputFileSet {
    /// Opens one more file.
    ///
    /// # Errors
    /// Same as [`open`].
    pub(super) fn add(&mut self, path: &Path, mode: OpenMode) -> Result<FileId, Failure> {
        let to = BufWriter::with_capacity(1 << 16, open(path, mode)?);
        self.0.push(OutputFile { path: path.to_owned(), to, error: None, lost: 0 });
        Ok(FileId(self.0.len() - 1))
    }

    /// Starts the writer thread. Write errors are shown on `screen`.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub(super) fn start(self, screen: Screen) -> Result<OutputWriter, Failure> {
        let (send, lines) = sync_channel(QUEUE_MAX);
        let lost = vec![0; self.0.len()];
        let thread = std::thread::Builder::new().name("files".to_owned()).spawn(move || write(self.0, &lines, &screen));
        let thread = thread.map_err(|error| Failure::host("cannot start a thread").found(error.to_string()))?;
        Ok(OutputWriter { send: Some(send), thread: Some(thread), lost })
    }
}

fn write(mut files: Vec<OutputFile>, lines: &Receiver<(FileId, Vec<u8>)>, screen: &Screen) -> Vec<OutputFile> {
    let mut unflushed = false;
    loop {
        // Flush before waiting for the next line, so that the files are up to date during the run.
        let next = match lines.try_recv() {
            Ok(next) => Some(next),
            Err(TryRecvError::Empty) => {
                if std::mem::take(&mut unflushed) {
                    files.iter_mut().for_each(|file| file.apply(screen, |to| to.flush()));
                }
                lines.recv().ok()
            }
            Err(TryRecvError::Disconnected) => None,
        };
        let Some((FileId(at), line)) = next else { break };
        if let Some(file) = files.get_mut(at) {
            file.apply(screen, |to| to.write_all(&line));
            file.lost += u64::from(file.error.is_some());
            unflushed = true;
        }
    }
    files.iter_mut().for_each(|file| file.apply(screen, |to| to.flush()));
    files
}

impl OutputFile {
    /// Runs `operation`, unless an earlier one failed.
    fn apply(&mut self, screen: &Screen, operation: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>) {
        if self.error.is_some() {
            return;
        }
        if let Err(error) = operation(&mut self.to) {
            screen.warn(&format!("cannot write {}: {error}; the run continues without this file", self.path.display()));
            self.error = Some(error.to_string());
        }
    }
}

/// Handle to the writer thread.
pub(super) struct OutputWriter {
    send: Option<SyncSender<(FileId, Vec<u8>)>>,
    thread: Option<JoinHandle<Vec<OutputFile>>>,
    /// Lines dropped because the queue was full, per file.
    lost: Vec<u64>,
}

impl OutputWriter {
    /// Queues `line`, which must end with a newline.
    pub(super) fn line(&mut self, which: FileId, line: Vec<u8>) {
        let Some(send) = &self.send else { return };
        if let Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) = send.try_send((which, line))
            && let Some(lost) = self.lost.get_mut(which.0)
        {
            *lost += 1;
        }
    }

    /// Queues `value` as a JSON line.
    pub(super) fn json(&mut self, which: FileId, value: &impl serde::Serialize) {
        let mut line = serde_json::to_vec(value).expect("record keys are strings");
        line.push(b'\n');
        self.line(which, line);
    }

    /// Waits until all lines have been written, and returns any file errors.
    pub(super) fn finish(&mut self) -> Vec<OutputFileError> {
        self.send = None;
        let Some(thread) = self.thread.take() else { return Vec::new() };
        let Ok(files) = thread.join() else { return vec![OutputFileError::Thread] };
        let mut errors = Vec::new();
        for (mut file, full) in files.into_iter().zip(&self.lost) {
            let path = file.path.display().to_string();
            if let Some(reason) = &file.error {
                // The remaining buffered data cannot be written.
                let _ = file.to.get_mut();
                errors.push(OutputFileError::Incomplete { path, reason: reason.clone() });
                // Dropping the buffer would try to write the data again.
                std::mem::forget(file.to);
            } else if *full > 0 {
                errors.push(OutputFileError::LostLines { path, lines: *full });
            }
        }
        errors
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_existing_file_is_refused_overwritten_or_appended_to() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("a");
        let write = |mode, text: &str| -> Result<usize, Failure> {
            let mut opened = OutputFileSet::default();
            let which = opened.add(&path, mode)?;
            let mut writer = opened.start(Screen::quiet())?;
            writer.line(which, text.as_bytes().to_vec());
            Ok(writer.finish().len())
        };
        assert_eq!(write(OpenMode::New, "one\n"), Ok(0));
        assert!(write(OpenMode::New, "two\n").is_err_and(|failure| failure.exit.code() == 2));
        assert_eq!(std::fs::read_to_string(&path).expect("a file"), "one\n");
        assert_eq!(write(OpenMode::Append, "two\n"), Ok(0));
        assert_eq!(std::fs::read_to_string(&path).expect("a file"), "one\ntwo\n");
        assert_eq!(write(OpenMode::Overwrite, "three\n"), Ok(0));
        assert_eq!(std::fs::read_to_string(&path).expect("a file"), "three\n");
    }

    #[test]
    fn a_full_disk_is_reported_and_does_not_block_other_files() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("good");
        let mut opened = OutputFileSet::default();
        let full = opened.add(Path::new("/dev/full"), OpenMode::New).expect("it opens");
        let good = opened.add(&path, OpenMode::New).expect("it opens");
        let mut writer = opened.start(Screen::quiet()).expect("a thread");
        for n in 0..100_000 {
            writer.line(full, format!("{n}\n").into_bytes());
            if n % 1000 == 0 {
                writer.line(good, b"x\n".to_vec());
            }
        }
        let errors = writer.finish();
        let is_full =
            |error: &OutputFileError| matches!(error, OutputFileError::Incomplete { path, .. } if path == "/dev/full");
        assert!(errors.iter().any(is_full), "{errors:?}");
        let written = std::fs::read_to_string(&path).expect("a file").lines().count();
        assert!(written > 0, "{errors:?}");
    }
}
