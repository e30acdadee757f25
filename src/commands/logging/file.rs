//! The log file: appended to, rotated by size, opened again on request.
//!
//! `PATH` is the current file, `PATH.1` the one before, up to `PATH.KEEP`. A file that cannot be written costs log lines, never the
//! program: that is reported once on stderr, and the number of lost lines in the log itself once it can be written again.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use crate::commands::logging::sink::{self, Output};

/// A file of log lines.
pub struct LogFile {
    path: PathBuf,
    /// Rotate before this many bytes are exceeded; 0 never rotates.
    max: u64,
    /// Rotated files to keep.
    keep: u32,
    file: File,
    /// Bytes in the file.
    len: u64,
    /// Lines lost since the last successful write.
    lost: u64,
    /// What failed and was reported; empty after success.
    failing: Option<&'static str>,
}

impl LogFile {
    /// Open `path` for appending.
    ///
    /// # Errors
    /// The path cannot be opened for writing.
    pub fn open(path: &Path, max: u64, keep: u32) -> io::Result<LogFile> {
        let (file, len) = append_to(path)?;
        Ok(LogFile { path: path.to_owned(), max, keep, file, len, lost: 0, failing: None })
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
            self.len = 0;
            return Ok(());
        }
        for number in (1..self.keep).rev() {
            match fs::rename(self.rotated(number), self.rotated(number + 1)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        match fs::rename(&self.path, self.rotated(1)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        (self.file, self.len) = append_to(&self.path)?;
        Ok(())
    }

    /// The part of `lines`, whole lines, that goes into the current file.
    fn fitting(&self, lines: &[u8]) -> usize {
        let room = usize::try_from(self.max.saturating_sub(self.len)).unwrap_or(usize::MAX);
        if self.max == 0 || lines.len() <= room {
            return lines.len();
        }
        match memchr::memrchr(b'\n', &lines[..room]) {
            Some(end) => end + 1,
            // An empty file takes one line, however long.
            None if self.len == 0 => memchr::memchr(b'\n', lines).map_or(lines.len(), |end| end + 1),
            None => 0,
        }
    }

    /// Append `lines`; on failure, how many bytes of whole lines are in the file.
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
            // No half line stays behind, unless another process writes the same file.
            let whole = memchr::memrchr(b'\n', &lines[..done]).map_or(0, |end| end + 1);
            if self.file.metadata().is_ok_and(|now| now.is_file() && now.len() == self.len + done as u64) {
                let _ = self.file.set_len(self.len + whole as u64);
            }
            self.len += whole as u64;
            return Err((whole, error));
        }
        self.len += lines.len() as u64;
        Ok(())
    }

    /// Report `error` on stderr, unless the same step has failed since the last success.
    fn report(&mut self, step: &'static str, error: &io::Error) {
        if self.failing.replace(step) != Some(step) {
            let path = self.path.display();
            sink::stderr().push(format!("warning: cannot {step} the log file {path}: {error}\n").as_bytes());
        }
    }
}

impl Output for LogFile {
    fn write(&mut self, mut lines: &[u8]) {
        while !lines.is_empty() {
            let mut fitting = self.fitting(lines);
            if fitting == 0 {
                match self.rotate() {
                    Ok(()) => continue,
                    // Better a large file than none.
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
            if self.failing == Some("write") {
                self.failing = None;
            }
            let lost = std::mem::take(&mut self.lost);
            if lost > 0 {
                tracing::warn!(lost, "log lines were lost: the log file could not be written");
            }
        }
    }

    fn reopen(&mut self) {
        match append_to(&self.path) {
            Ok((file, len)) => {
                (self.file, self.len, self.failing) = (file, len, None);
                tracing::info!("log file opened again: {}", self.path.display());
            }
            Err(error) => self.report("open again", &error),
        }
    }
}

/// `path` opened for appending, and the bytes in it.
fn append_to(path: &Path) -> io::Result<(File, u64)> {
    let file = OpenOptions::new().append(true).create(true).open(path)?;
    let about = file.metadata()?;
    // A device or a pipe has no length and is not rotated.
    Ok((file, if about.is_file() { about.len() } else { 0 }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(path: &Path) -> String {
        fs::read_to_string(path).unwrap_or_else(|error| format!("{}: {error}", path.display()))
    }

    #[test]
    fn a_full_file_is_rotated_between_lines_and_only_keep_are_kept() {
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
    fn keep_0_starts_the_file_anew_and_size_0_never_rotates() {
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
    fn after_reopen_lines_go_to_the_path_again() {
        let dir = tempfile::tempdir().expect("a folder");
        let (path, moved) = (dir.path().join("log"), dir.path().join("moved"));
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
        assert_eq!((file.lost, file.failing), (3, Some("write")));
    }
}
