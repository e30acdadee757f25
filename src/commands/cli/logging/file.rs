//! The log file: appended to, rotated by size, reopened on request.
//!
//! `PATH` is the current file, `PATH.1` the previous one, up to `PATH.KEEP`. If the file cannot be
//! written, log lines are lost, but the program continues. The error is reported once on stderr.
//! Once the file is writable again, the number of lost lines is logged.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use crate::commands::cli::logging::sink::{self, LineOutput};

/// The current log file.
pub(super) struct LogFile {
    path: PathBuf,
    /// Maximum file size in bytes before rotation; 0 means no rotation.
    max: u64,
    /// Rotated files to keep.
    keep: u32,
    file: File,
    /// File size, in bytes; `None` for a file that is never rotated: a device, a pipe, or a
    /// descriptor path such as `/dev/stdout`.
    len: Option<u64>,
    /// Lines lost since the last successful write.
    lost: u64,
    /// Steps whose failures have been reported and that have not succeeded since.
    failing: Vec<&'static str>,
}

impl LogFile {
    /// Opens `path` for appending.
    ///
    /// # Errors
    /// The path cannot be opened for writing.
    pub(super) fn open(path: &Path, max: u64, keep: u32) -> io::Result<LogFile> {
        let (file, len) = append_to(path)?;
        Ok(LogFile { path: path.to_owned(), max, keep, file, len, lost: 0, failing: Vec::new() })
    }

    /// `PATH.N`.
    fn rotated(&self, number: u32) -> PathBuf {
        let mut name = OsString::from(&self.path);
        name.push(format!(".{number}"));
        name.into()
    }

    fn rotate(&mut self) -> io::Result<()> {
        if self.keep == 0 {
            self.file.set_len(0)?;
            self.len = Some(0);
            return Ok(());
        }
        // If the current file was moved or could not be opened after the last rotation, the rotated
        // files keep their numbers.
        if fs::symlink_metadata(&self.path).is_ok() {
            for number in (1..self.keep).rev() {
                rename(&self.rotated(number), &self.rotated(number + 1))?;
            }
            rename(&self.path, &self.rotated(1))?;
        }
        (self.file, self.len) = append_to(&self.path)?;
        Ok(())
    }

    /// The number of bytes of `lines`, in whole lines, that fit into the current file.
    fn fitting(&self, lines: &[u8]) -> usize {
        let Some(len) = self.len.filter(|_| self.max > 0) else { return lines.len() };
        let free_bytes = usize::try_from(self.max.saturating_sub(len)).unwrap_or(usize::MAX);
        if lines.len() <= free_bytes {
            return lines.len();
        }
        match memchr::memrchr(b'\n', &lines[..free_bytes]) {
            Some(end) => end + 1,
            // An empty file accepts one line of any length.
            None if len == 0 => memchr::memchr(b'\n', lines).map_or(lines.len(), |end| end + 1),
            None => 0,
        }
    }

    /// Appends `lines`. On failure, returns the number of bytes in the whole lines that were
    /// written.
    fn append(&mut self, lines: &[u8]) -> Result<(), (usize, io::Error)> {
        let mut done = 0;
        while done < lines.len() {
            let error = match self.file.write(&lines[done..]) {
                Ok(0) => io::ErrorKind::WriteZero.into(),
                Ok(count) => {
                    done += count;
                    continue;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => error,
            };
            // Truncate a partial line, unless another process is writing to the same file.
            let whole = memchr::memrchr(b'\n', &lines[..done]).map_or(0, |end| end + 1);
            let before = self.len.filter(|len| self.file.metadata().is_ok_and(|now| now.len() == len + done as u64));
            if let Some(before) = before {
                let _ = self.file.set_len(before + whole as u64);
            }
            self.grow(whole);
            return Err((whole, error));
        }
        self.grow(lines.len());
        Ok(())
    }

    fn grow(&mut self, bytes: usize) {
        self.len = self.len.map(|len| len + bytes as u64);
    }

    /// Records that `step` succeeded, so that its next failure is reported again.
    fn succeeded(&mut self, step: &'static str) {
        self.failing.retain(|failing| *failing != step);
    }

    /// Reports `error` on stderr, unless a failure of `step` was already reported and the step has
    /// not succeeded since.
    fn report(&mut self, step: &'static str, error: &io::Error) {
        if !self.failing.contains(&step) {
            self.failing.push(step);
            let path = self.path.display();
            sink::stderr().push(format!("warning: cannot {step} the log file {path}: {error}\n").as_bytes());
        }
    }
}

impl LineOutput for LogFile {
    fn write(&mut self, mut lines: &[u8]) {
        while !lines.is_empty() {
            let mut fitting = self.fitting(lines);
            if fitting == 0 {
                match self.rotate() {
                    Ok(()) => {
                        self.succeeded("rotate");
                        continue;
                    }
                    // Keep writing: an oversized file is better than lost lines.
                    Err(error) => {
                        self.report("rotate", &error);
                        fitting = lines.len();
                    }
                }
            }
            if let Err((whole, error)) = self.append(&lines[..fitting]) {
                self.lost += memchr::memchr_iter(b'\n', &lines[whole..]).count() as u64;
                return self.report("write", &error);
            }
            lines = &lines[fitting..];
            self.succeeded("write");
            let lost = std::mem::take(&mut self.lost);
            if lost > 0 {
                tracing::warn!(lost, "log lines were lost: the log file could not be written");
            }
        }
    }

    fn reopen(&mut self) {
        match append_to(&self.path) {
            Ok((file, len)) => {
                self.file = file;
                self.len = len;
                self.failing = Vec::new();
                tracing::info!("log file reopened: {}", self.path.display());
            }
            Err(error) => self.report("reopen", &error),
        }
    }
}

/// Opens `path` for appending. Also returns its [`LogFile::len`].
fn append_to(path: &Path) -> io::Result<(File, Option<u64>)> {
    let file = OpenOptions::new().append(true).create(true).open(path)?;
    let about = file.metadata()?;
    let rotates = about.is_file() && !is_in_proc(path);
    Ok((file, rotates.then_some(about.len())))
}

/// Whether `path` is in /proc or is a symbolic link into /proc. Renaming such a path would remove
/// it for other programs.
fn is_in_proc(path: &Path) -> bool {
    let is_below = |path: &Path| {
        let folder = path.parent().and_then(|folder| fs::canonicalize(folder).ok());
        folder.is_some_and(|folder| folder.starts_with("/proc"))
    };
    is_below(path) || fs::read_link(path).is_ok_and(|target| is_below(&target))
}

/// Renames a file that may be missing.
fn rename(from: &Path, to: &Path) -> io::Result<()> {
    match fs::rename(from, to) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(path: &Path) -> String {
        fs::read_to_string(path).unwrap_or_else(|error| format!("{}: {error}", path.display()))
    }

    #[test]
    fn a_full_file_is_rotated_between_lines() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("log");
        let mut file = LogFile::open(&path, 8, 2).expect("it opens");
        file.write(b"aaa\nbbb\nccc\nddd\neee\n");
        file.write(b"fff\ngggggggggggg\nh\n");
        let all = ["log", "log.1", "log.2", "log.3"].map(|name| dir.path().join(name));
        assert_eq!([text(&all[0]), text(&all[1]), text(&all[2])], ["h\n", "gggggggggggg\n", "eee\nfff\n"]);
        assert!(!all[3].exists());
    }

    #[test]
    fn an_existing_file_is_appended_to_and_counts_towards_its_size() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("log");
        fs::write(&path, "old\n").expect("written");
        let mut file = LogFile::open(&path, 8, 1).expect("it opens");
        file.write(b"new\n");
        assert_eq!(text(&path), "old\nnew\n");
        file.write(b"3\n");
        assert_eq!([text(&path), text(&dir.path().join("log.1"))], ["3\n", "old\nnew\n"]);
    }

    #[test]
    fn keep_0_truncates_the_file_and_size_0_never_rotates() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("log");
        let mut file = LogFile::open(&path, 4, 0).expect("it opens");
        file.write(b"aaa\nbbb\n");
        assert_eq!(text(&path), "bbb\n");
        let mut file = LogFile::open(&path, 0, 0).expect("it opens");
        file.write(&b"x\n".repeat(100));
        assert_eq!(fs::read_dir(dir.path()).expect("the folder").count(), 1);
        assert_eq!(text(&path).len(), 204);
    }

    #[test]
    fn reopen_creates_a_moved_file_again() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("log");
        let moved = dir.path().join("moved");
        let mut file = LogFile::open(&path, 0, 0).expect("it opens");
        file.write(b"1\n");
        fs::rename(&path, &moved).expect("moved");
        file.write(b"2\n");
        file.reopen();
        file.write(b"3\n");
        assert_eq!([text(&moved), text(&path)], ["1\n2\n", "3\n"]);
    }

    #[test]
    fn a_full_disk_loses_lines_and_nothing_else() {
        let mut file = LogFile::open(Path::new("/dev/full"), 0, 0).expect("it opens");
        file.write(b"1\n2\n");
        file.write(b"3\n");
        assert_eq!((file.lost, file.failing), (3, vec!["write"]));
    }

    #[test]
    fn devices_and_descriptor_paths_are_never_rotated() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("log");
        let link = dir.path().join("link");
        let open = File::create(&path).expect("created");
        let number = std::os::fd::AsRawFd::as_raw_fd(&open);
        std::os::unix::fs::symlink(format!("/proc/self/fd/{number}"), &link).expect("linked");
        for name in [Path::new("/dev/null"), &link, &PathBuf::from(format!("/dev/fd/{number}"))] {
            let mut file = LogFile::open(name, 4, 1).expect("it opens");
            file.write(b"aaa\nbbb\nccc\n");
            assert!(file.failing.is_empty() && !file.rotated(1).exists(), "{}", name.display());
        }
        assert_eq!(text(&path), "aaa\nbbb\nccc\n".repeat(2));
    }

    #[test]
    fn rotated_files_keep_their_numbers_if_the_current_file_is_gone() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("log");
        let mut file = LogFile::open(&path, 4, 2).expect("it opens");
        file.write(b"aaa\nbbb\n");
        fs::rename(&path, dir.path().join("moved")).expect("moved");
        file.write(b"ccc\n");
        assert_eq!([text(&path), text(&dir.path().join("log.1"))], ["ccc\n", "aaa\n"]);
        assert!(!dir.path().join("log.2").exists());
    }
}
