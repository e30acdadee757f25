//! The write of an object's bytes to their destination, by one thread, and its end by another. A file gets its name when it has all
//! of them, or never.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tempfile::NamedTempFile;

use crate::commands::error::Failure;
use crate::commands::output;
use crate::commands::store::destination::Destination;

/// Bytes that are written before the next look whether to stop.
const STEP_BYTES: usize = 8 << 20;
/// What a plain create asks for; the process's mask takes its part away.
const NEW_FILE_MODE: u32 = 0o666;
/// Who replaces a file shows its bytes to nobody else before they have the old file's owner and mode.
const UNFINISHED_MODE: u32 = 0o600;

/// The write of one object.
#[derive(Debug)]
pub(super) struct Writing {
    destination: Destination,
    bytes: Vec<u8>,
    stop: AtomicBool,
    stage: Mutex<Stage>,
}

/// How far the file beside the destination has come.
#[derive(Debug)]
enum Stage {
    /// It is not there.
    None,
    /// It gets its bytes, under this name.
    Beside(PathBuf),
    /// It gets the destination's name, or has it.
    Named,
    /// It shall not get that any more; this much of it may be left.
    GivenUp(Option<PathBuf>),
}

impl Writing {
    pub(super) fn new(destination: Destination, bytes: Vec<u8>) -> Writing {
        Writing { destination, bytes, stop: AtomicBool::new(false), stage: Mutex::new(Stage::None) }
    }

    /// Write, unless [`Writing::stop`] is called. It waits for a reader or a disk for as long as it likes.
    ///
    /// # Errors
    /// The system refuses, or the write was stopped.
    pub(super) fn run(&self) -> Result<(), Failure> {
        let cannot = |path: &Path, tried: String, error: io::Error, next: &str| {
            Failure::host(format!("cannot write {}", path.display())).tried(tried).found(error.to_string()).next(next)
        };
        match &self.destination {
            Destination::Stdout => output::data(&self.bytes),
            Destination::Stream(path) => {
                let open = OpenOptions::new().write(true).create(true).truncate(true).open(path);
                open.and_then(|mut stream| self.put(&mut stream)).map_err(|error| {
                    let tried = "write to it as it is, since it is no regular file".to_owned();
                    cannot(path, tried, error, "give --output another FILE")
                })
            }
            Destination::InPlace { path, folder } => {
                let tried = || format!("write to it in place, since no file can be made in {}", folder.display());
                let kept = "give --output another FILE; the old file is as it was";
                let open = OpenOptions::new().write(true).truncate(true).open(path);
                let mut file = open.map_err(|error| cannot(path, tried(), error, kept))?;
                self.put(&mut file).and_then(|()| file.sync_all()).map_err(|error| {
                    cannot(path, tried(), error, "give --output another FILE; this one is no more than a part now")
                })
            }
            Destination::File { path, folder, old } => {
                let write = || {
                    let mut beside = self.beside(folder, old.as_ref())?;
                    self.fill(&mut beside, old.as_ref())?;
                    self.name(beside, path)
                };
                write().map_err(|error| {
                    let tried =
                        format!("write {} bytes beside it in {}, then rename", self.bytes.len(), folder.display());
                    let kept = if old.is_some() { "; the old file is as it was" } else { "" };
                    cannot(path, tried, error, &format!("make room there, or give --output another FILE{kept}"))
                })
            }
        }
    }

    /// Ask the thread that writes to end. It may be done already.
    pub(super) fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    /// Take away what lies beside the destination, for the thread that would do so does not end. From now on it renames nothing.
    pub(super) fn give_up(&self) {
        let mut stage = self.stage();
        let beside = match &*stage {
            Stage::None => None,
            Stage::Beside(path) => Some(path.clone()),
            Stage::Named | Stage::GivenUp(_) => return,
        };
        *stage = Stage::GivenUp(beside.clone());
        // To remove a file may take as long as to write it, and nobody is to wait for that.
        drop(stage);
        let Some(path) = beside else { return };
        match fs::remove_file(path) {
            // The other thread may have been quicker.
            Err(error) if error.kind() != io::ErrorKind::NotFound => {}
            _ => *self.stage() = Stage::GivenUp(None),
        }
    }

    /// What is at the destination after a write that did not end well, or did not end.
    pub(super) fn left(&self) -> String {
        let (path, old) = match &self.destination {
            Destination::Stdout => return "stdout may have got a part of it".to_owned(),
            Destination::Stream(path) => return format!("{} may have got a part of it", path.display()),
            Destination::InPlace { path, .. } => return format!("{} may be no more than a part now", path.display()),
            Destination::File { path, old, .. } => (path.display(), old),
        };
        let kept = if old.is_some() { format!("{path} is as it was") } else { format!("{path} was not made") };
        match &*self.stage() {
            Stage::None | Stage::Beside(_) | Stage::GivenUp(None) => kept,
            Stage::GivenUp(Some(beside)) => format!("{kept}, but {} may be left beside it", beside.display()),
            Stage::Named => format!("{kept}, or it is whole: its rename does not end"),
        }
    }

    /// A new file in `folder`, to take the place of the `old` one.
    fn beside(&self, folder: &Path, old: Option<&fs::Metadata>) -> io::Result<NamedTempFile> {
        let mode = if old.is_some() { UNFINISHED_MODE } else { NEW_FILE_MODE };
        let mut builder = tempfile::Builder::new();
        let beside = builder.prefix(".mcctl-").permissions(Permissions::from_mode(mode)).tempfile_in(folder)?;
        self.advance(Stage::Beside(beside.path().to_owned()))?;
        Ok(beside)
    }

    /// Give it all bytes, and owner and mode of the `old` one.
    fn fill(&self, beside: &mut NamedTempFile, old: Option<&fs::Metadata>) -> io::Result<()> {
        self.put(beside.as_file_mut())?;
        if let Some(old) = old {
            let new = beside.as_file().metadata()?;
            if (new.uid(), new.gid()) != (old.uid(), old.gid()) {
                // Who may not give files away keeps this one.
                let _ = fchown(beside.as_file(), Some(old.uid()), Some(old.gid()));
            }
            beside.as_file().set_permissions(Permissions::from_mode(old.mode() & 0o7777))?;
        }
        // Some file systems say only now that there is no room.
        beside.as_file().sync_all()
    }

    fn name(&self, beside: NamedTempFile, path: &Path) -> io::Result<()> {
        self.advance(Stage::Named)?;
        if let Err(error) = beside.persist(path) {
            *self.stage() = Stage::None;
            return Err(error.into());
        }
        Ok(())
    }

    /// Enter `next`, unless the write was stopped.
    fn advance(&self, next: Stage) -> io::Result<()> {
        let mut stage = self.stage();
        if self.stop.load(Ordering::Relaxed) || matches!(*stage, Stage::GivenUp(_)) {
            return Err(io::ErrorKind::Interrupted.into());
        }
        *stage = next;
        Ok(())
    }

    fn stage(&self) -> MutexGuard<'_, Stage> {
        self.stage.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn put(&self, file: &mut File) -> io::Result<()> {
        for step in self.bytes.chunks(STEP_BYTES) {
            if self.stop.load(Ordering::Relaxed) {
                return Err(io::ErrorKind::Interrupted.into());
            }
            file.write_all(step)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::error::Exit;

    fn writing(path: &Path, bytes: &[u8]) -> Writing {
        Writing::new(Destination::find(Some(path)).expect("writable"), bytes.to_owned())
    }

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).expect("there").mode() & 0o7777
    }

    /// A folder with a file of `mode`, whose text is "old".
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
    fn a_file_that_is_replaced_keeps_its_mode_and_a_link_keeps_pointing() {
        let (dir, file) = folder(0o640);
        let link = dir.path().join("link");
        std::os::unix::fs::symlink("file", &link).expect("a link");
        writing(&link, b"new").run().expect("room");
        assert_eq!(fs::read(&file).expect("there"), b"new");
        assert_eq!(mode(&file), 0o640);
        assert!(link.is_symlink());
        assert_eq!(count(&dir), 2, "nothing else is left");
    }

    #[test]
    fn a_file_that_replaces_another_is_its_writers_alone_until_it_is_whole() {
        let (_dir, file) = folder(0o604);
        let writing = writing(&file, b"new");
        let Destination::File { folder, old, .. } = &writing.destination else { unreachable!("a regular file") };
        let mut beside = writing.beside(folder, old.as_ref()).expect("room");
        assert_eq!(mode(beside.path()), 0o600);
        writing.fill(&mut beside, old.as_ref()).expect("room");
        assert_eq!(mode(beside.path()), 0o604);
    }

    #[test]
    fn a_write_that_is_stopped_leaves_the_old_file() {
        let (dir, file) = folder(0o600);
        let writing = writing(&file, b"new");
        writing.stop();
        let failure = writing.run().expect_err("stopped");
        assert!(failure.next.is_some_and(|next| next.ends_with("the old file is as it was")));
        assert_eq!(writing.left(), format!("{} is as it was", file.display()));
        assert_eq!(fs::read(&file).expect("there"), b"old");
        assert_eq!(count(&dir), 1);
    }

    #[test]
    fn a_write_that_is_given_up_leaves_nothing_beside_the_old_file_and_is_not_renamed_later() {
        let (dir, file) = folder(0o600);
        let writing = writing(&file, b"new");
        let Destination::File { path, folder, old } = &writing.destination else { unreachable!("a regular file") };
        let beside = writing.beside(folder, old.as_ref()).expect("room");
        assert_eq!(count(&dir), 2);
        writing.give_up();
        assert_eq!((count(&dir), writing.left()), (1, format!("{} is as it was", file.display())));
        assert_eq!(writing.name(beside, path).expect_err("given up").kind(), io::ErrorKind::Interrupted);
        assert_eq!(fs::read(&file).expect("there"), b"old");
    }

    #[test]
    fn a_file_that_cannot_be_taken_away_is_named() {
        let (dir, file) = folder(0o600);
        let writing = writing(&file, b"new");
        // A folder is not removed as a file is.
        let beside = dir.path().join("beside");
        fs::create_dir(&beside).expect("made");
        *writing.stage() = Stage::Beside(beside.clone());
        writing.give_up();
        let left = writing.left();
        assert!(left.ends_with(&format!("is as it was, but {} may be left beside it", beside.display())), "{left}");
    }

    #[test]
    fn a_file_that_is_written_in_place_stays_the_same_one() {
        let (dir, file) = folder(0o604);
        let number = fs::metadata(&file).expect("there").ino();
        let destination = Destination::InPlace { path: file.clone(), folder: dir.path().to_owned() };
        Writing::new(destination, b"n".to_vec()).run().expect("room");
        assert_eq!(fs::read(&file).expect("there"), b"n");
        assert_eq!((mode(&file), fs::metadata(&file).expect("there").ino()), (0o604, number));
    }

    #[test]
    fn what_is_no_regular_file_is_written_to_as_it_is() {
        writing(Path::new("/dev/null"), b"x").run().expect("it takes everything");
        assert_eq!(writing(Path::new("/dev/full"), b"x").run().expect_err("it takes nothing").exit, Exit::Host);
    }
}
