//! Lines on their way to files, written by a thread of their own: a slow disk never holds the generator up.
//!
//! The queue is bounded. What does not fit, or cannot be written, is lost, told at once, and counted.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, TrySendError, sync_channel};
use std::thread::JoinHandle;

use crate::commands::bench::multi_turn::live::Screen;
use crate::commands::error::Failure;

/// Most lines on their way.
const QUEUE_MAX: usize = 1 << 16;

/// A file that is being written.
struct Open {
    path: PathBuf,
    to: BufWriter<File>,
    trouble: Option<String>,
    lost: u64,
}

/// Which of the files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Which(usize);

/// The files to be written, before the thread begins.
#[derive(Default)]
pub(super) struct Opened(Vec<Open>);

/// How a file is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::commands::bench) enum Manner {
    /// It is new, or empty.
    New,
    /// What is in it goes.
    Over,
    /// What is in it stays.
    Append,
}

/// Open `path` to be written.
///
/// # Errors
/// It has something in it and may not be written over, or the system refuses.
pub(in crate::commands::bench) fn open(path: &Path, manner: Manner) -> Result<File, Failure> {
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
    options.create(true).append(manner == Manner::Append).write(true);
    // Nothing is cut off before it is known what it is.
    let file = options.truncate(false).open(path).map_err(cannot)?;
    let metadata = file.metadata().map_err(cannot)?;
    if metadata.is_file() && metadata.len() > 0 {
        match manner {
            Manner::New => {
                return Err(Failure::usage(format!("{} is there already", path.display()))
                    .found(format!("{} bytes", metadata.len()))
                    .next("name another file, or write over it with --overwrite"));
            }
            Manner::Over => file.set_len(0).map_err(cannot)?,
            Manner::Append => {}
        }
    }
    Ok(file)
}

impl Opened {
    /// One more file.
    ///
    /// # Errors
    /// As [`open`].
    pub(super) fn add(&mut self, path: &Path, manner: Manner) -> Result<Which, Failure> {
        let to = BufWriter::with_capacity(1 << 16, open(path, manner)?);
        self.0.push(Open { path: path.to_owned(), to, trouble: None, lost: 0 });
        Ok(Which(self.0.len() - 1))
    }

    /// Begin to write; troubles are told on `screen` as they come.
    ///
    /// # Errors
    /// The host gives no thread.
    pub(super) fn start(self, screen: Screen) -> Result<Writer, Failure> {
        let (send, lines) = sync_channel(QUEUE_MAX);
        let lost = vec![0; self.0.len()];
        let thread = std::thread::Builder::new().name("files".to_owned()).spawn(move || write(self.0, &lines, &screen));
        let thread = thread.map_err(|error| Failure::host("cannot start a thread").found(error.to_string()))?;
        Ok(Writer { send: Some(send), thread: Some(thread), lost })
    }
}

fn write(mut files: Vec<Open>, lines: &Receiver<(Which, Vec<u8>)>, screen: &Screen) -> Vec<Open> {
    let mut unflushed = false;
    loop {
        // What is there is written before anybody is waited for, so that a file is as far as the run is.
        let next = match lines.try_recv() {
            Ok(next) => Some(next),
            Err(TryRecvError::Empty) => {
                if std::mem::take(&mut unflushed) {
                    files.iter_mut().for_each(|file| file.carry(screen, |to| to.flush()));
                }
                lines.recv().ok()
            }
            Err(TryRecvError::Disconnected) => None,
        };
        let Some((Which(at), line)) = next else { break };
        if let Some(file) = files.get_mut(at) {
            file.carry(screen, |to| to.write_all(&line));
            file.lost += u64::from(file.trouble.is_some());
            unflushed = true;
        }
    }
    files.iter_mut().for_each(|file| file.carry(screen, |to| to.flush()));
    files
}

impl Open {
    /// Do something with the file, unless it is given up already.
    fn carry(&mut self, screen: &Screen, what: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>) {
        if self.trouble.is_some() {
            return;
        }
        if let Err(error) = what(&mut self.to) {
            screen.warn(&format!(
                "cannot write {}: {error}: nothing more is written to it, and the run goes on",
                self.path.display()
            ));
            self.trouble = Some(error.to_string());
        }
    }
}

/// The thread that writes.
pub(super) struct Writer {
    send: Option<SyncSender<(Which, Vec<u8>)>>,
    thread: Option<JoinHandle<Vec<Open>>>,
    /// Lines of each file that found the queue full.
    lost: Vec<u64>,
}

impl Writer {
    /// Send `line`, which has its newline, on its way.
    pub(super) fn line(&mut self, which: Which, line: Vec<u8>) {
        let Some(send) = &self.send else { return };
        if let Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) = send.try_send((which, line))
            && let Some(lost) = self.lost.get_mut(which.0)
        {
            *lost += 1;
        }
    }

    /// Send `value` as a line of JSON.
    pub(super) fn json(&mut self, which: Which, value: &impl serde::Serialize) {
        let mut line = serde_json::to_vec(value).expect("our own documents have only text keys");
        line.push(b'\n');
        self.line(which, line);
    }

    /// Wait until all is written; what is wrong with the files now, a sentence each.
    pub(super) fn finish(&mut self) -> Vec<String> {
        self.send = None;
        let Some(thread) = self.thread.take() else { return Vec::new() };
        let Ok(files) = thread.join() else { return vec!["the thread that writes files died".to_owned()] };
        let mut troubles = Vec::new();
        for (mut file, full) in files.into_iter().zip(&self.lost) {
            let path = file.path.display().to_string();
            if let Some(trouble) = &file.trouble {
                // What the buffer still holds has nowhere to go.
                let _ = file.to.get_mut();
                troubles.push(format!("{path} is not complete: {trouble}"));
                // Dropping the buffer would try once more.
                std::mem::forget(file.to);
            } else if *full > 0 {
                troubles.push(format!("{path} lacks {full} lines: they came faster than they could be written"));
            }
        }
        troubles
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_with_something_in_it_is_refused_written_over_or_added_to_as_is_asked() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("a");
        let write = |manner, text: &str| -> Result<Vec<String>, Failure> {
            let mut opened = Opened::default();
            let which = opened.add(&path, manner)?;
            let mut writer = opened.start(Screen::quiet())?;
            writer.line(which, text.as_bytes().to_vec());
            Ok(writer.finish())
        };
        assert_eq!(write(Manner::New, "one\n"), Ok(Vec::new()));
        assert!(write(Manner::New, "two\n").is_err_and(|failure| failure.exit.code() == 2));
        assert_eq!(std::fs::read_to_string(&path).expect("there"), "one\n");
        assert_eq!(write(Manner::Append, "two\n"), Ok(Vec::new()));
        assert_eq!(std::fs::read_to_string(&path).expect("there"), "one\ntwo\n");
        assert_eq!(write(Manner::Over, "three\n"), Ok(Vec::new()));
        assert_eq!(std::fs::read_to_string(&path).expect("there"), "three\n");
    }

    #[test]
    fn a_full_disk_is_told_and_does_not_hold_the_other_file_up() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("good");
        let mut opened = Opened::default();
        let full = opened.add(Path::new("/dev/full"), Manner::New).expect("it opens");
        let good = opened.add(&path, Manner::New).expect("it opens");
        let mut writer = opened.start(Screen::quiet()).expect("a thread");
        for n in 0..100_000 {
            writer.line(full, format!("{n}\n").into_bytes());
            if n % 1000 == 0 {
                writer.line(good, b"x\n".to_vec());
            }
        }
        let troubles = writer.finish();
        assert!(
            troubles.iter().any(|trouble| trouble.starts_with("/dev/full is not complete: No space left")),
            "{troubles:?}"
        );
        let written = std::fs::read_to_string(&path).expect("there").lines().count();
        assert!(written > 0, "{troubles:?}");
    }
}
