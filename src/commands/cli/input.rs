//! Opens user-specified files that a command reads to the end.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

/// Opens `path` for reading: a regular file, or a shell pipe (`<(command)`, `/dev/stdin`).
///
/// # Errors
/// The file does not exist or cannot be read, or it is a directory, socket, device or named pipe.
/// Reading some of these would never finish.
pub fn open(path: &Path) -> io::Result<File> {
    // Checked before the file is opened: opening a named pipe blocks until a process writes to it.
    let kind = fs::metadata(path)?.file_type();
    if kind.is_file() || kind.is_fifo() && is_descriptor(path) {
        return File::open(path);
    }
    let what = if kind.is_dir() {
        return Err(io::Error::new(io::ErrorKind::IsADirectory, "expected a file, found a directory"));
    } else if kind.is_fifo() {
        "a named pipe"
    } else if kind.is_socket() {
        "a socket"
    } else {
        "a device"
    };
    Err(io::Error::new(io::ErrorKind::InvalidInput, format!("expected a regular file, found {what}")))
}

/// Whether `path` names a descriptor that this process inherited.
fn is_descriptor(path: &Path) -> bool {
    ["/dev/fd", "/proc/self/fd", "/dev/stdin"].iter().any(|folder| path.starts_with(folder))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_without_end_are_refused_without_blocking() {
        let dir = tempfile::tempdir().expect("a folder");
        let socket = dir.path().join("socket");
        let _listens = std::os::unix::net::UnixListener::bind(&socket).expect("a socket");
        let error = |path: &Path| open(path).map(|_| ()).expect_err("refused");
        assert!(error(&socket).to_string().contains("a socket"));
        assert!(error(Path::new("/dev/zero")).to_string().contains("a device"));
        assert_eq!(error(dir.path()).kind(), io::ErrorKind::IsADirectory);
        let file = dir.path().join("file");
        fs::write(&file, "x").expect("written");
        assert!(open(&file).is_ok());
    }
}
