//! Where `store get` puts bytes: stdout, a device or pipe, or a file, which is whole or as it was before.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use nix::unistd::{AccessFlags, access};

use crate::commands::error::Failure;
use crate::commands::output;

/// Bytes that are written before the next look whether to stop.
const STEP_BYTES: usize = 8 << 20;
/// What a plain create asks for; the process's mask takes its part away.
const NEW_FILE_MODE: u32 = 0o666;

/// A place for the bytes of one object.
#[derive(Debug)]
pub(super) enum Destination {
    /// Standard output.
    Stdout,
    /// What is no regular file, and is written to as it is: a device, a pipe, a link to nothing.
    Stream(PathBuf),
    /// A regular file, there or not.
    File {
        /// Its path, without links.
        path: PathBuf,
        /// The folder that it is in.
        folder: PathBuf,
        /// Who may do what with the file that is there now, and whose it is.
        old: Option<fs::Metadata>,
    },
}

impl Destination {
    /// What `path`, the value of `--output`, means. Nothing is opened yet, but what would surely fail later fails now.
    ///
    /// # Errors
    /// There is no such folder, it is a folder itself, or this user may not write there.
    pub(super) fn find(path: Option<&Path>) -> Result<Destination, Failure> {
        let Some(path) = path.filter(|path| path.as_os_str() != "-" && *path != Path::new("/dev/stdout")) else {
            return Ok(Destination::Stdout);
        };
        let is_folder =
            || usage(path, "it is a directory", format!("name a file in it: --output {}", path.join("NAME").display()));
        let old = match fs::metadata(path) {
            Ok(found) if found.is_dir() => return Err(is_folder()),
            Ok(found) if !found.is_file() || path.starts_with("/dev") || path.starts_with("/proc") => {
                return Ok(Destination::Stream(path.to_owned()));
            }
            Ok(found) => Some(found),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(usage(path, error.to_string(), "give --output another FILE".to_owned())),
        };
        if old.is_none() && path.is_symlink() {
            return Ok(Destination::Stream(path.to_owned()));
        }
        let real = match old {
            Some(_) => fs::canonicalize(path).map_err(|error| refused(path, "resolve its path", &error))?,
            None => path.to_owned(),
        };
        let folder = match (real.parent(), real.as_os_str().as_encoded_bytes().last()) {
            (None, _) | (_, Some(b'/')) => return Err(is_folder()),
            (Some(parent), _) if parent.as_os_str().is_empty() => PathBuf::from("."),
            (Some(parent), _) => parent.to_owned(),
        };
        match fs::metadata(&folder) {
            Ok(found) if found.is_dir() => {}
            Ok(_) => {
                let found = format!("{} is no directory", folder.display());
                return Err(usage(path, found, "give --output another FILE".to_owned()));
            }
            Err(error) => {
                let found = format!("{}: {error}", folder.display());
                return Err(usage(path, found, format!("make it first: mkdir -p {}", folder.display())));
            }
        }
        if old.is_some() {
            access(&real, AccessFlags::W_OK).map_err(|error| refused(path, "write to it", &error.into()))?;
        }
        access(&folder, AccessFlags::W_OK | AccessFlags::X_OK)
            .map_err(|error| refused(path, &format!("make a file in {}", folder.display()), &error.into()))?;
        Ok(Destination::File { path: real, folder, old })
    }

    /// Write `bytes`, unless `stop` becomes true.
    ///
    /// # Errors
    /// The system refuses; a file is as it was before then.
    pub(super) fn write(&self, bytes: &[u8], stop: &AtomicBool) -> Result<(), Failure> {
        match self {
            Destination::Stdout => output::data(bytes),
            Destination::Stream(path) => OpenOptions::new()
                .write(true)
                .create(true)
                .truncate(true)
                .open(path)
                .and_then(|mut stream| put(&mut stream, bytes, stop))
                .map_err(|error| {
                    Failure::host(format!("cannot write {}", path.display()))
                        .tried("write to it as it is, since it is no regular file")
                        .found(error.to_string())
                        .next("give --output another FILE")
                }),
            Destination::File { path, folder, old } => {
                replace(path, folder, old.as_ref(), bytes, stop).map_err(|error| {
                    let kept = if old.is_some() { "; the old file is as it was" } else { "" };
                    Failure::host(format!("cannot write {}", path.display()))
                        .tried(format!("write {} bytes beside it in {}, then rename", bytes.len(), folder.display()))
                        .found(error.to_string())
                        .next(format!("make room there, or give --output another FILE{kept}"))
                })
            }
        }
    }
}

/// A file beside `path` gets the bytes, and its name when it has them all.
fn replace(path: &Path, folder: &Path, old: Option<&fs::Metadata>, bytes: &[u8], stop: &AtomicBool) -> io::Result<()> {
    let mut builder = tempfile::Builder::new();
    let mut beside =
        builder.prefix(".mcctl-").permissions(Permissions::from_mode(NEW_FILE_MODE)).tempfile_in(folder)?;
    put(beside.as_file_mut(), bytes, stop)?;
    if let Some(old) = old {
        let new = beside.as_file().metadata()?;
        if (new.uid(), new.gid()) != (old.uid(), old.gid()) {
            // Who may not give files away keeps this one.
            let _ = fchown(beside.as_file(), Some(old.uid()), Some(old.gid()));
        }
        beside.as_file().set_permissions(Permissions::from_mode(old.mode() & 0o7777))?;
    }
    // Some file systems say only now that there is no room.
    beside.as_file().sync_all()?;
    beside.persist(path)?;
    Ok(())
}

fn put(file: &mut File, bytes: &[u8], stop: &AtomicBool) -> io::Result<()> {
    for step in bytes.chunks(STEP_BYTES) {
        if stop.load(Ordering::Relaxed) {
            return Err(io::ErrorKind::Interrupted.into());
        }
        file.write_all(step)?;
    }
    Ok(())
}

fn usage(path: &Path, found: impl Into<String>, next: String) -> Failure {
    let shown = path.display();
    Failure::usage(format!("cannot write {shown}")).tried(format!("--output {shown}")).found(found).next(next)
}

fn refused(path: &Path, tried: &str, error: &io::Error) -> Failure {
    Failure::host(format!("cannot write {}", path.display()))
        .tried(tried)
        .found(error.to_string())
        .next("give --output a FILE in a directory that this user may write to, or send stdout there")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::error::Exit;

    fn write(path: &Path, bytes: &[u8]) -> Result<(), Failure> {
        Destination::find(Some(path))?.write(bytes, &AtomicBool::new(false))
    }

    #[test]
    fn a_file_that_is_replaced_keeps_its_mode_and_a_link_keeps_pointing() {
        let dir = tempfile::tempdir().expect("a folder");
        let (file, link) = (dir.path().join("file"), dir.path().join("link"));
        fs::write(&file, "old").expect("written");
        fs::set_permissions(&file, Permissions::from_mode(0o640)).expect("ours");
        std::os::unix::fs::symlink("file", &link).expect("a link");
        write(&link, b"new").expect("room");
        assert_eq!(fs::read(&file).expect("there"), b"new");
        assert_eq!(fs::metadata(&file).expect("there").mode() & 0o7777, 0o640);
        assert!(link.is_symlink());
        assert_eq!(fs::read_dir(dir.path()).expect("a folder").count(), 2, "nothing else is left");
    }

    #[test]
    fn a_write_that_is_stopped_leaves_the_old_file() {
        let dir = tempfile::tempdir().expect("a folder");
        let file = dir.path().join("file");
        fs::write(&file, "old").expect("written");
        let found = Destination::find(Some(&file)).expect("writable");
        let failure = found.write(b"new", &AtomicBool::new(true)).expect_err("stopped");
        assert!(failure.next.is_some_and(|next| next.ends_with("the old file is as it was")));
        assert_eq!(fs::read(&file).expect("there"), b"old");
        assert_eq!(fs::read_dir(dir.path()).expect("a folder").count(), 1);
    }

    #[test]
    fn what_cannot_be_a_file_is_refused_before_anything_is_read() {
        let dir = tempfile::tempdir().expect("a folder");
        let refused = |path: &Path| Destination::find(Some(path)).expect_err("no place for bytes");
        assert_eq!(refused(dir.path()).found.as_deref(), Some("it is a directory"));
        assert_eq!(refused(&dir.path().join("x/")).found.as_deref(), Some("it is a directory"));
        assert_eq!(refused(&dir.path().join("none/x")).exit, Exit::Usage);
        fs::write(dir.path().join("file"), "").expect("written");
        assert_eq!(refused(&dir.path().join("file/x")).exit, Exit::Usage);
    }

    #[test]
    fn what_is_no_regular_file_is_written_to_as_it_is() {
        assert!(matches!(Destination::find(Some(Path::new("/dev/null"))), Ok(Destination::Stream(_))));
        assert!(matches!(Destination::find(Some(Path::new("/dev/stdout"))), Ok(Destination::Stdout)));
        assert!(matches!(Destination::find(None), Ok(Destination::Stdout)));
        write(Path::new("/dev/null"), b"x").expect("it takes everything");
        assert_eq!(write(Path::new("/dev/full"), b"x").expect_err("it takes nothing").exit, Exit::Host);
    }
}
