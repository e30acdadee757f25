//! Writes an object to its destination on one thread; another thread can stop the write. A file
//! gets its final name when complete.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tempfile::NamedTempFile;

use crate::commands::cli::error::Failure;
use crate::commands::cli::output;
use crate::commands::cli::progress_bar::{WorkProgress, WorkUnit};
use crate::commands::store::destination::Destination;

/// Number of bytes written between checks for a stop request.
const STEP_BYTES: usize = 8 << 20;
/// Mode for a new file, before the umask is applied.
const NEW_FILE_MODE: u32 = 0o666;
/// Mode for a temporary file that will replace an existing file. Other users cannot read it until
/// it has the old file's owner and mode.
const UNFINISHED_MODE: u32 = 0o600;

/// Writes one object to a file or to stdout. Another thread can request that it stop.
#[derive(Debug)]
pub(super) struct ObjectWrite {
    destination: Destination,
    bytes: Vec<u8>,
    stop: AtomicBool,
    /// Number of bytes written so far.
    written: AtomicU64,
    stage: Mutex<WriteStage>,
}

/// The state of the temporary file next to the destination.
#[derive(Debug)]
enum WriteStage {
    /// The file does not exist.
    None,
    /// The file is being written at this path.
    Writing(PathBuf),
    /// The file is being renamed to the destination, or has been renamed.
    Renamed,
    /// The file will not be renamed. It may remain at this path.
    Aborted(Option<PathBuf>),
}

impl ObjectWrite {
    pub(super) fn new(destination: Destination, bytes: Vec<u8>) -> ObjectWrite {
        let stop = AtomicBool::new(false);
        let written = AtomicU64::new(0);
        ObjectWrite { destination, bytes, stop, written, stage: Mutex::new(WriteStage::None) }
    }

    /// Shows the progress of a write to a regular file. Other files may be a terminal.
    pub(super) fn progress(self: &Arc<Self>) -> Option<WorkProgress> {
        if matches!(self.destination, Destination::Stdout | Destination::Stream(_)) {
            return None;
        }
        let writing = Arc::clone(self);
        let total = WorkUnit::Bytes(Some(self.bytes.len() as u64));
        Some(WorkProgress::start("writing the file", total, move || writing.written.load(Ordering::Relaxed)))
    }

    /// Writes the object unless [`ObjectWrite::stop`] is called. May block on a pipe or a disk
    /// indefinitely.
    ///
    /// # Errors
    /// The write failed or was stopped.
    pub(super) fn run(&self) -> Result<(), Failure> {
        let cannot = |path: &Path, tried: String, error: io::Error, next: &str| {
            Failure::host(format!("cannot write {}", path.display())).tried(tried).found(error.to_string()).next(next)
        };
        match &self.destination {
            Destination::Stdout => output::data(&self.bytes),
            Destination::Stream(path) => {
                let open = OpenOptions::new().write(true).create(true).truncate(true).open(path);
                open.and_then(|mut stream| self.put(&mut stream)).map_err(|error| {
                    let tried = "write directly to the file, which is not a regular file".to_owned();
                    cannot(path, tried, error, "use a different --output FILE")
                })
            }
            Destination::InPlace { path, folder } => {
                let tried =
                    || format!("overwrite the file in place, because a file cannot be created in {}", folder.display());
                let kept = "use a different --output FILE; the old file is unchanged";
                let open = OpenOptions::new().write(true).truncate(true).open(path);
                let mut file = open.map_err(|error| cannot(path, tried(), error, kept))?;
                self.put(&mut file).and_then(|()| file.sync_all()).map_err(|error| {
                    cannot(path, tried(), error, "use a different --output FILE; this file is now incomplete")
                })
            }
            Destination::File { path, folder, old } => {
                let write = || {
                    let mut beside = self.beside(folder, old.as_ref())?;
                    self.fill(&mut beside, old.as_ref())?;
                    self.rename(beside, path)
                };
                write().map_err(|error| {
                    let tried = format!(
                        "write {} bytes to a temporary file in {}, then rename",
                        self.bytes.len(),
                        folder.display()
                    );
                    let kept = if old.is_some() { "; the old file is unchanged" } else { "" };
                    cannot(path, tried, error, &format!("free up space there, or use a different --output FILE{kept}"))
                })
            }
        }
    }

    /// Requests that the writing thread stop. The write may already have finished.
    pub(super) fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    /// Removes the temporary file if the writing thread is blocked. After this call, that thread
    /// will not rename the file.
    pub(super) fn abort(&self) {
        let mut stage = self.stage();
        let beside = match &*stage {
            WriteStage::None => None,
            WriteStage::Writing(path) => Some(path.clone()),
            WriteStage::Renamed | WriteStage::Aborted(_) => return,
        };
        *stage = WriteStage::Aborted(beside.clone());
        // Removing the file can block just as writing it can, so release the lock first.
        drop(stage);
        let Some(path) = beside else { return };
        match fs::remove_file(path) {
            // The writing thread may already have removed the file.
            Err(error) if error.kind() != io::ErrorKind::NotFound => {}
            _ => *self.stage() = WriteStage::Aborted(None),
        }
    }

    /// The state of the destination after a write that failed or is blocked, for an error message.
    pub(super) fn remains(&self) -> String {
        let (path, old) = match &self.destination {
            Destination::Stdout => return "part of the object may have been written to stdout".to_owned(),
            Destination::Stream(path) => {
                return format!("part of the object may have been written to {}", path.display());
            }
            Destination::InPlace { path, .. } => return format!("{} may be incomplete", path.display()),
            Destination::File { path, old, .. } => (path.display(), old),
        };
        let kept = if old.is_some() { format!("{path} is unchanged") } else { format!("{path} was not created") };
        match &*self.stage() {
            WriteStage::None | WriteStage::Writing(_) | WriteStage::Aborted(None) => kept,
            WriteStage::Aborted(Some(beside)) => format!("{kept}, but {} may remain", beside.display()),
            WriteStage::Renamed => format!("{kept} or complete: the rename is blocked"),
        }
    }

    /// Creates a temporary file in `folder` that will replace the `old` file.
    fn beside(&self, folder: &Path, old: Option<&fs::Metadata>) -> io::Result<NamedTempFile> {
        let mode = if old.is_some() { UNFINISHED_MODE } else { NEW_FILE_MODE };
        let mut builder = tempfile::Builder::new();
        let beside = builder.prefix(".mcctl-").permissions(Permissions::from_mode(mode)).tempfile_in(folder)?;
        self.advance(WriteStage::Writing(beside.path().to_owned()))?;
        Ok(beside)
    }

    /// Writes all bytes to the temporary file and gives it the `old` file's owner and mode.
    fn fill(&self, beside: &mut NamedTempFile, old: Option<&fs::Metadata>) -> io::Result<()> {
        self.put(beside.as_file_mut())?;
        if let Some(old) = old {
            let new = beside.as_file().metadata()?;
            if (new.uid(), new.gid()) != (old.uid(), old.gid()) {
                // If the process may not change the owner, the file stays owned by the current
                // user.
                let _ = fchown(beside.as_file(), Some(old.uid()), Some(old.gid()));
            }
            beside.as_file().set_permissions(Permissions::from_mode(old.mode() & 0o7777))?;
        }
        // Some file systems report a full disk only on fsync.
        beside.as_file().sync_all()
    }

    fn rename(&self, beside: NamedTempFile, path: &Path) -> io::Result<()> {
        self.advance(WriteStage::Renamed)?;
        if let Err(error) = beside.persist(path) {
            *self.stage() = WriteStage::None;
            return Err(error.into());
        }
        Ok(())
    }

    /// Enters the stage `next`, unless the write was stopped.
    fn advance(&self, next: WriteStage) -> io::Result<()> {
        let mut stage = self.stage();
        if self.stop.load(Ordering::Relaxed) || matches!(*stage, WriteStage::Aborted(_)) {
            return Err(io::ErrorKind::Interrupted.into());
        }
        *stage = next;
        Ok(())
    }

    fn stage(&self) -> MutexGuard<'_, WriteStage> {
        self.stage.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn put(&self, file: &mut File) -> io::Result<()> {
        for step in self.bytes.chunks(STEP_BYTES) {
            if self.stop.load(Ordering::Relaxed) {
                return Err(io::ErrorKind::Interrupted.into());
            }
            file.write_all(step)?;
            self.written.fetch_add(step.len() as u64, Ordering::Relaxed);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::cli::error::Exit;

    fn writing(path: &Path, bytes: &[u8]) -> ObjectWrite {
        ObjectWrite::new(Destination::find(Some(path)).expect("writable"), bytes.to_owned())
    }

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).expect("there").mode() & 0o7777
    }

    /// A directory that contains a file with mode `mode` and content "old".
    fn folder(mode: u32) -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().expect("a folder");
        let file = dir.path().join("file");
        fs::write(&file, "old").expect("written");
        fs::set_permissions(&file, Permissions::from_mode(mode)).expect("ours");
        (dir, file)
    }

    fn count(dir: &tempfile::TempDir) -> usize {
        fs::read_dir(dir.path()).expect("a folder").count()
    }

    #[test]
    fn a_replaced_file_keeps_its_mode_and_symbolic_link() {
        let (dir, file) = folder(0o640);
        let link = dir.path().join("link");
        std::os::unix::fs::symlink("file", &link).expect("a link");
        writing(&link, b"new").run().expect("room");
        assert_eq!(fs::read(&file).expect("there"), b"new");
        assert_eq!(mode(&file), 0o640);
        assert!(link.is_symlink());
        assert_eq!(count(&dir), 2, "no temporary file remains");
    }

    #[test]
    fn a_temporary_file_is_private_until_it_is_complete() {
        let (_dir, file) = folder(0o604);
        let writing = writing(&file, b"new");
        let Destination::File { folder, old, .. } = &writing.destination else { unreachable!("a regular file") };
        let mut beside = writing.beside(folder, old.as_ref()).expect("room");
        assert_eq!(mode(beside.path()), 0o600);
        writing.fill(&mut beside, old.as_ref()).expect("room");
        assert_eq!(mode(beside.path()), 0o604);
    }

    #[test]
    fn a_stopped_write_leaves_the_old_file() {
        let (dir, file) = folder(0o600);
        let writing = writing(&file, b"new");
        writing.stop();
        assert_eq!(writing.run().expect_err("stopped").exit, Exit::Host);
        assert!(matches!(*writing.stage(), WriteStage::None));
        assert_eq!(fs::read(&file).expect("there"), b"old");
        assert_eq!(count(&dir), 1);
    }

    #[test]
    fn an_aborted_write_leaves_the_old_file_and_is_not_renamed_later() {
        let (dir, file) = folder(0o600);
        let writing = writing(&file, b"new");
        let Destination::File { path, folder, old } = &writing.destination else { unreachable!("a regular file") };
        let beside = writing.beside(folder, old.as_ref()).expect("room");
        assert_eq!(count(&dir), 2);
        writing.abort();
        assert!(count(&dir) == 1 && matches!(*writing.stage(), WriteStage::Aborted(None)));
        assert_eq!(writing.rename(beside, path).expect_err("aborted").kind(), io::ErrorKind::Interrupted);
        assert_eq!(fs::read(&file).expect("there"), b"old");
    }

    #[test]
    fn a_temporary_file_that_cannot_be_removed_is_named() {
        let (dir, file) = folder(0o600);
        let writing = writing(&file, b"new");
        // remove_file fails on a directory.
        let beside = dir.path().join("beside");
        fs::create_dir(&beside).expect("made");
        *writing.stage() = WriteStage::Writing(beside.clone());
        writing.abort();
        assert!(writing.remains().contains(&beside.display().to_string()), "{}", writing.remains());
    }

    #[test]
    fn a_file_overwritten_in_place_keeps_its_inode() {
        let (dir, file) = folder(0o604);
        let number = fs::metadata(&file).expect("there").ino();
        let destination = Destination::InPlace { path: file.clone(), folder: dir.path().to_owned() };
        ObjectWrite::new(destination, b"n".to_vec()).run().expect("room");
        assert_eq!(fs::read(&file).expect("there"), b"n");
        assert_eq!((mode(&file), fs::metadata(&file).expect("there").ino()), (0o604, number));
    }

    #[test]
    fn a_device_is_written_directly() {
        writing(Path::new("/dev/null"), b"x").run().expect("/dev/null accepts all bytes");
        assert_eq!(writing(Path::new("/dev/full"), b"x").run().expect_err("/dev/full is full").exit, Exit::Host);
    }
}
