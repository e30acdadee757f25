//! Where `store get` puts bytes: stdout, a device or pipe, or a file. Nothing is opened or changed here.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use nix::unistd::{AccessFlags, access};

use crate::commands::error::Failure;

/// A place for the bytes of one object.
#[derive(Debug)]
pub(super) enum Destination {
    /// Standard output.
    Stdout,
    /// What is written to as it is: a device, a pipe, an open descriptor, a link to nothing.
    Stream(PathBuf),
    /// A regular file in a folder that takes no new one.
    InPlace {
        /// Its path, without links.
        path: PathBuf,
        /// The folder that it is in.
        folder: PathBuf,
    },
    /// A regular file, there or not, which is whole or as it was before.
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
        Destination::find_for(path, |path, flags| Ok(access(path, flags)?))
    }

    /// What `path` means for a user who `may` do this and that.
    fn find_for(path: &Path, may: impl Fn(&Path, AccessFlags) -> io::Result<()>) -> Result<Destination, Failure> {
        let is_folder =
            || usage(path, "it is a directory", format!("name a file in it: --output {}", path.join("NAME").display()));
        let old = match fs::metadata(path) {
            Ok(found) if found.is_dir() => return Err(is_folder()),
            Ok(found) if !found.is_file() || is_descriptor(path) => return Ok(Destination::Stream(path.to_owned())),
            Ok(found) => Some(found),
            Err(error) if error.kind() == io::ErrorKind::NotFound && !is_descriptor(path) => None,
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
            may(&real, AccessFlags::W_OK).map_err(|error| refused(path, "write to it", &error))?;
        }
        match may(&folder, AccessFlags::W_OK | AccessFlags::X_OK) {
            Ok(()) => {}
            Err(_) if old.is_some() => return Ok(Destination::InPlace { path: real, folder }),
            Err(error) => return Err(refused(path, &format!("make a file in {}", folder.display()), &error)),
        }
        Ok(Destination::File { path: real, folder, old })
    }

    /// What the user has to know before the bytes are written.
    pub(super) fn note(&self) -> Option<String> {
        let Destination::InPlace { path, folder } = self else { return None };
        Some(format!(
            "note: no file can be made in {}: {} is written in place, and is neither the old nor the new one if that fails",
            folder.display(),
            path.display()
        ))
    }
}

/// Is `path` the name of a descriptor that is open? A regular file behind it is to be written to, and not to be replaced.
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
        .next("give --output a FILE in a directory that this user may write to, or send stdout there")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::error::Exit;

    fn find(path: &str) -> Result<Destination, Failure> {
        Destination::find(Some(Path::new(path)))
    }

    #[test]
    fn what_cannot_be_a_file_is_refused_before_anything_is_read() {
        let dir = tempfile::tempdir().expect("a folder");
        let refused = |path: &Path| Destination::find(Some(path)).expect_err("no place for bytes");
        assert_eq!(refused(dir.path()).found.as_deref(), Some("it is a directory"));
        assert_eq!(refused(&dir.path().join("x/")).found.as_deref(), Some("it is a directory"));
        assert_eq!(refused(&dir.path().join("none/x")).exit, Exit::Usage);
        assert_eq!(refused(Path::new("/dev/fd/987654")).exit, Exit::Usage);
        fs::write(dir.path().join("file"), "").expect("written");
        assert_eq!(refused(&dir.path().join("file/x")).exit, Exit::Usage);
    }

    #[test]
    fn what_is_no_regular_file_is_a_stream_and_so_is_a_descriptor() {
        assert!(matches!(find("/dev/null"), Ok(Destination::Stream(_))));
        assert!(matches!(find("/dev/stdout"), Ok(Destination::Stdout)));
        assert!(matches!(Destination::find(None), Ok(Destination::Stdout)));
        let open = tempfile::tempfile().expect("a file");
        for folder in ["/dev/fd", "/proc/self/fd", "/proc/thread-self/fd"] {
            // The last is of the thread that opens it, which shares its descriptors with ours.
            let path = format!("{folder}/{}", std::os::fd::AsRawFd::as_raw_fd(&open));
            assert!(matches!(find(&path), Ok(Destination::Stream(_))), "{path}");
        }
        let names =
            ["/dev/stderr", "/proc/7/fd/1", "/dev/shm/fd/1", "/proc/7/fdinfo", "/dev/fd", "/dev/shm/model", "/"];
        assert_eq!(names.map(|path| is_descriptor(Path::new(path))), [true, true, false, false, false, false, false]);
    }

    #[test]
    fn a_regular_file_in_shared_memory_is_replaced_like_any_other() {
        // Not every host has it.
        let Ok(dir) = tempfile::tempdir_in("/dev/shm") else { return };
        let file = dir.path().join("model");
        assert!(matches!(Destination::find(Some(&file)), Ok(Destination::File { old: None, .. })));
        fs::write(&file, "old").expect("written");
        assert!(matches!(Destination::find(Some(&file)), Ok(Destination::File { old: Some(_), .. })));
    }

    #[test]
    fn a_file_in_a_folder_that_takes_no_new_one_is_written_in_place_and_a_new_one_is_refused() {
        let dir = tempfile::tempdir().expect("a folder");
        let file = dir.path().join("file");
        let closed =
            |path: &Path, _| if path.ends_with("file") { Ok(()) } else { Err(io::Error::from_raw_os_error(13)) };
        assert_eq!(Destination::find_for(&file, closed).expect_err("no file there").exit, Exit::Host);
        fs::write(&file, "old").expect("written");
        let found = Destination::find_for(&file, closed).expect("a file of ours");
        assert!(matches!(&found, Destination::InPlace { path, .. } if path.ends_with("file")), "{found:?}");
        assert!(found.note().is_some_and(|note| note.contains("is written in place")));
        let foreign = |_: &Path, _| Err(io::Error::from_raw_os_error(13));
        assert_eq!(Destination::find_for(&file, foreign).expect_err("not ours").exit, Exit::Host);
    }
}
