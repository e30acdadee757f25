//! Writes whole files: a file has its complete new contents, or is unchanged.
//!
//! The contents are first written to a temporary file in the same directory, so that a full disk is
//! found before anything changes.

use std::fs::{self, File, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use tempfile::TempPath;

/// Mode of a new file before the umask.
const MODE: u32 = 0o666;

/// What to do if the file exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IfExists {
    Replace,
    Fail,
}

/// A file whose contents were written under a temporary name, without a sync: there may be
/// thousands. Dropping it removes the temporary file.
#[derive(Debug)]
pub struct StagedFile {
    temporary: TempPath,
    target: PathBuf,
}

impl StagedFile {
    /// Writes `contents` to a temporary file next to `path`. A symbolic link is followed. A
    /// replaced file keeps its mode.
    ///
    /// # Errors
    /// The directory is not writable, or the disk is full.
    pub fn new(path: &Path, contents: &[u8]) -> io::Result<StagedFile> {
        StagedFile::written(path, contents, |_| Ok(()))
    }

    /// Like [`new`](StagedFile::new), with a last step before the temporary file is closed.
    fn written(path: &Path, contents: &[u8], finish: impl FnOnce(&File) -> io::Result<()>) -> io::Result<StagedFile> {
        let target = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        let folder = target.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let mut builder = tempfile::Builder::new();
        let mut file = builder.prefix(".mcctl-").permissions(Permissions::from_mode(MODE)).tempfile_in(folder)?;
        file.as_file_mut().write_all(contents)?;
        if let Ok(found) = fs::metadata(&target) {
            file.as_file().set_permissions(found.permissions())?;
        }
        finish(file.as_file())?;
        // Closed, because there may be more files than a process may open.
        Ok(StagedFile { temporary: file.into_temp_path(), target })
    }

    /// Gives the file its name.
    ///
    /// # Errors
    /// The file exists with [`IfExists::Fail`], or cannot be renamed.
    pub fn commit(self, if_exists: IfExists) -> io::Result<()> {
        match if_exists {
            IfExists::Replace => self.temporary.persist(&self.target).map_err(|error| error.error),
            IfExists::Fail => self.temporary.persist_noclobber(&self.target).map_err(|error| error.error),
        }
    }
}

/// Writes `contents` to `path`, so that the file is complete or unchanged. An existing device or
/// pipe is written directly.
///
/// # Errors
/// The file exists with [`IfExists::Fail`], or cannot be written.
pub fn write(path: &Path, contents: &[u8], if_exists: IfExists) -> io::Result<()> {
    if if_exists == IfExists::Replace && fs::metadata(path).is_ok_and(|found| !found.is_file()) {
        return fs::OpenOptions::new().write(true).open(path)?.write_all(contents);
    }
    // Some file systems report a full disk only at the sync.
    StagedFile::written(path, contents, File::sync_all)?.commit(if_exists)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }

    #[test]
    fn an_existing_file_is_replaced_with_its_mode_or_kept() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        write(&path, b"1", IfExists::Fail).unwrap();
        assert_eq!(write(&path, b"2", IfExists::Fail).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(fs::read(&path).unwrap(), b"1");
        fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
        write(&path, b"3", IfExists::Replace).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"3");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(names(folder.path()), ["a"]);
    }

    #[test]
    fn a_link_keeps_its_target_and_a_device_is_written_directly() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("a");
        let link = folder.path().join("b");
        let full = folder.path().join("full");
        fs::write(&file, "1").unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        write(&link, b"2", IfExists::Replace).unwrap();
        assert_eq!(fs::read(&file).unwrap(), b"2");
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        std::os::unix::fs::symlink("/dev/full", &full).unwrap();
        assert_eq!(write(&full, b"3", IfExists::Replace).unwrap_err().kind(), io::ErrorKind::StorageFull);
    }

    #[test]
    fn a_staged_file_that_is_not_committed_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        drop(StagedFile::new(&folder.path().join("a"), b"1").unwrap());
        assert!(names(folder.path()).is_empty());
    }
}
