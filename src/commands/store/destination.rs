//! The destination for `store get`: stdout, a device or pipe, or a file. This module does not open
//! or change files.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use nix::unistd::{AccessFlags, access};

use crate::commands::cli::error::Failure;

/// The destination for one object.
#[derive(Debug)]
pub(super) enum Destination {
    Stdout,
    /// Written directly: a device, a pipe, an open descriptor, or a dangling symbolic link.
    Stream(PathBuf),
    /// An existing regular file, overwritten in place because a file cannot be created in its
    /// directory.
    InPlace {
        /// Path with symbolic links resolved.
        path: PathBuf,
        folder: PathBuf,
    },
    /// A new or existing regular file, written through a temporary file and a rename: the file is
    /// either complete or unchanged.
    File {
        /// Path with symbolic links resolved.
        path: PathBuf,
        folder: PathBuf,
        /// The existing file's owner and mode.
        old: Option<fs::Metadata>,
    },
}

impl Destination {
    /// The destination for `path`, the value of `--output`. Nothing is opened, but an unwritable
    /// path fails immediately.
    ///
    /// # Errors
    /// The parent directory does not exist, `path` is a directory, or this user has no write
    /// permission.
    pub(super) fn find(path: Option<&Path>) -> Result<Destination, Failure> {
        let Some(path) = path.filter(|path| path.as_os_str() != "-" && *path != Path::new("/dev/stdout")) else {
            return Ok(Destination::Stdout);
        };
        Destination::find_for(path, |path, flags| Ok(access(path, flags)?))
    }

    /// The destination for `path`, where `may` checks the user's permissions.
    fn find_for(path: &Path, may: impl Fn(&Path, AccessFlags) -> io::Result<()>) -> Result<Destination, Failure> {
        let is_folder = || {
            usage(path, "it is a directory", format!("specify a file in it: --output {}", path.join("NAME").display()))
        };
        let old = match fs::metadata(path) {
            Ok(found) if found.is_dir() => return Err(is_folder()),
            Ok(found) if !found.is_file() || is_descriptor(path) => return Ok(Destination::Stream(path.to_owned())),
            Ok(found) => Some(found),
            Err(error) if error.kind() == io::ErrorKind::NotFound && !is_descriptor(path) => None,
            Err(error) => return Err(usage(path, error.to_string(), "use a different --output FILE".to_owned())),
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
                let found = format!("{} is not a directory", folder.display());
                return Err(usage(path, found, "use a different --output FILE".to_owned()));
            }
            Err(error) => {
                let found = format!("{}: {error}", folder.display());
                return Err(usage(path, found, format!("create it: mkdir -p {}", folder.display())));
            }
        }
        if old.is_some() {
            may(&real, AccessFlags::W_OK).map_err(|error| refused(path, "write to it", &error))?;
        }
        match may(&folder, AccessFlags::W_OK | AccessFlags::X_OK) {
            Ok(()) => {}
            Err(_) if old.is_some() => return Ok(Destination::InPlace { path: real, folder }),
            Err(error) => return Err(refused(path, &format!("create a file in {}", folder.display()), &error)),
        }
        Ok(Destination::File { path: real, folder, old })
    }

    /// A warning to print before the object is written.
    pub(super) fn note(&self) -> Option<String> {
        let Destination::InPlace { path, folder } = self else { return None };
        Some(format!(
            "note: cannot create a file in {}, so {} is overwritten in place; a failure leaves it incomplete",
            folder.display(),
            path.display()
        ))
    }
}

/// Whether `path` names an open descriptor. Its regular file, if any, is written through the
/// descriptor instead of being replaced.
fn is_descriptor(path: &Path) -> bool {
    let folder = path.parent().unwrap_or(path);
    path == Path::new("/dev/stdout")
        || path == Path::new("/dev/stderr")
        || folder == Path::new("/dev/fd")
        || (folder.starts_with("/proc") && folder.ends_with("fd"))
}

fn usage(path: &Path, found: impl Into<String>, next: String) -> Failure {
    let shown = path.display();
    Failure::usage(format!("cannot write {shown}")).tried(format!("--output {shown}")).found(found).next(next)
}

fn refused(path: &Path, tried: &str, error: &io::Error) -> Failure {
    Failure::host(format!("cannot write {}", path.display()))
        .tried(tried)
        .found(error.to_string())
        .next("set --output to a FILE in a writable directory, or redirect stdout")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::cli::error::Exit;

    fn find(path: &str) -> Result<Destination, Failure> {
        Destination::find(Some(Path::new(path)))
    }

    #[test]
    fn unwritable_paths_are_refused_early() {
        let dir = tempfile::tempdir().expect("a folder");
        let refused = |path: &Path| Destination::find(Some(path)).expect_err("not writable");
        assert_eq!(refused(dir.path()).found.as_deref(), Some("it is a directory"));
        assert_eq!(refused(&dir.path().join("x/")).found.as_deref(), Some("it is a directory"));
        assert_eq!(refused(&dir.path().join("none/x")).exit, Exit::Usage);
        assert_eq!(refused(Path::new("/dev/fd/987654")).exit, Exit::Usage);
        fs::write(dir.path().join("file"), "").expect("written");
        assert_eq!(refused(&dir.path().join("file/x")).exit, Exit::Usage);
    }

    #[test]
    fn devices_and_descriptors_are_streams() {
        assert!(matches!(find("/dev/null"), Ok(Destination::Stream(_))));
        assert!(matches!(find("/dev/stdout"), Ok(Destination::Stdout)));
        assert!(matches!(Destination::find(None), Ok(Destination::Stdout)));
        let open = tempfile::tempfile().expect("a file");
        for folder in ["/dev/fd", "/proc/self/fd", "/proc/thread-self/fd"] {
            // /proc/thread-self belongs to the opening thread, which shares its descriptors with
            // this one.
            let path = format!("{folder}/{}", std::os::fd::AsRawFd::as_raw_fd(&open));
            assert!(matches!(find(&path), Ok(Destination::Stream(_))), "{path}");
        }
        let names =
            ["/dev/stderr", "/proc/7/fd/1", "/dev/shm/fd/1", "/proc/7/fdinfo", "/dev/fd", "/dev/shm/model", "/"];
        assert_eq!(names.map(|path| is_descriptor(Path::new(path))), [true, true, false, false, false, false, false]);
    }

    #[test]
    fn a_regular_file_in_dev_shm_is_replaced_by_rename() {
        let dir = tempfile::tempdir_in("/dev/shm").expect("a writable /dev/shm");
        let file = dir.path().join("model");
        assert!(matches!(Destination::find(Some(&file)), Ok(Destination::File { old: None, .. })));
        fs::write(&file, "old").expect("written");
        assert!(matches!(Destination::find(Some(&file)), Ok(Destination::File { old: Some(_), .. })));
    }

    #[test]
    fn without_a_writable_folder_an_existing_file_is_overwritten() {
        let dir = tempfile::tempdir().expect("a folder");
        let file = dir.path().join("file");
        let closed =
            |path: &Path, _| if path.ends_with("file") { Ok(()) } else { Err(io::Error::from_raw_os_error(13)) };
        assert_eq!(Destination::find_for(&file, closed).expect_err("no file there").exit, Exit::Host);
        fs::write(&file, "old").expect("written");
        let found = Destination::find_for(&file, closed).expect("a file that this user owns");
        assert!(matches!(&found, Destination::InPlace { path, .. } if path.ends_with("file")), "{found:?}");
        assert!(found.note().is_some());
        let foreign = |_: &Path, _| Err(io::Error::from_raw_os_error(13));
        assert_eq!(Destination::find_for(&file, foreign).expect_err("not ours").exit, Exit::Host);
    }
}
