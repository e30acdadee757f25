//! Opens files that the user names and that are read to their end: those that have one.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

/// Open `path` for reading: a regular file, or a pipe that the shell made (`<(command)`, `/dev/stdin`).
///
/// # Errors
/// It is not there or may not be read; or it is a folder, a socket, a device or a named pipe, which may have no end.
pub fn open(path: &Path) -> io::Result<File> {
    // Asked before it is opened: to open a named pipe waits for somebody to write.
    let kind = fs::metadata(path)?.file_type();
    if kind.is_file() || kind.is_fifo() && is_descriptor(path) {
        return File::open(path);
    }
    let what = if kind.is_dir() {
        return Err(io::Error::new(io::ErrorKind::IsADirectory, "it is a folder, and one file is expected"));
    } else if kind.is_fifo() {
        "a named pipe"
    } else if kind.is_socket() {
        "a socket"
    } else {
        "a device"
    };
    Err(io::Error::new(io::ErrorKind::InvalidInput, format!("it is {what}, and only files with an end are read")))
}

/// Is it a descriptor that this process was given?
fn is_descriptor(path: &Path) -> bool {
    ["/dev/fd", "/proc/self/fd", "/dev/stdin"].iter().any(|folder| path.starts_with(folder))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_have_no_end_is_refused_without_waiting() {
        let dir = tempfile::tempdir().expect("a folder");
        let socket = dir.path().join("socket");
        let _listens = std::os::unix::net::UnixListener::bind(&socket).expect("a socket");
        let says = |path: &Path| open(path).map(|_| ()).expect_err("refused").to_string();
        assert!(says(&socket).contains("a socket"));
        assert!(says(Path::new("/dev/zero")).contains("a device"));
        assert!(says(dir.path()).contains("a folder"));
        let file = dir.path().join("file");
        fs::write(&file, "x").expect("written");
        assert!(open(&file).is_ok());
    }
}
