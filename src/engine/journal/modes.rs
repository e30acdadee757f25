//! The modes of a data directory and its files: no other user of the host may read them, or lock
//! the directory.

use std::fs::{self, DirBuilder, File, Metadata, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

use nix::unistd::Uid;

use crate::names;

/// The mode of a data directory and its subdirectories.
const DIRECTORY_MODE: u32 = 0o700;
/// The mode of the files in it.
const FILE_MODE: u32 = 0o600;
/// The permissions of the group and of others.
const OTHER_USERS: u32 = 0o077;
/// The permission of others to create and remove files.
const WRITABLE_BY_OTHERS: u32 = 0o002;
/// The sticky bit: several users share the directory, as they do `/tmp`.
const STICKY: u32 = 0o1000;

/// Creates a directory that only this user can use, whatever the umask is. The directory above must
/// exist.
///
/// # Errors
/// The directory exists, or cannot be created.
pub(super) fn create_directory(path: &Path) -> io::Result<()> {
    DirBuilder::new().mode(DIRECTORY_MODE).create(path)?;
    // The umask may have removed this user's permissions. Some file systems have no modes.
    let _ = fs::set_permissions(path, Permissions::from_mode(DIRECTORY_MODE));
    Ok(())
}

/// Options that create a file that only this user can use. [`restrict`] sets the modes that they
/// cannot set.
pub(super) fn create_options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.create(true).mode(FILE_MODE);
    options
}

/// Gives an open file its mode, which the umask or an earlier process may have changed. Some file
/// systems have no modes, so an error is ignored: the directory's mode keeps others away as well.
pub(super) fn restrict(file: &File) {
    let mode = file.metadata().map(|found| found.mode() & 0o7777);
    if mode.is_ok_and(|mode| mode != FILE_MODE) {
        let _ = file.set_permissions(Permissions::from_mode(FILE_MODE));
    }
}

/// Removes the permissions of other users from an existing directory and the journal's files in it.
/// It is logged if that is not possible, or not safe: the directory may belong to another user, or
/// contain files of other programs.
pub(super) fn tighten(root: &Path) {
    let Ok(found) = fs::metadata(root) else { return };
    if found.mode() & OTHER_USERS != 0
        && let Err(why) = tighten_directory(root, &found)
    {
        report_kept(root, &found, &why);
    }
    tighten_files(root);
}

/// Logs that a directory keeps its mode. The files in it are closed to other users nevertheless.
fn report_kept(root: &Path, found: &Metadata, why: &KeptMode) {
    let directory = root.display();
    let owner = found.uid();
    let mode = format!("{:o}", found.mode() & 0o7777);
    // A volume in Kubernetes is like this, and no other user can reach it.
    let is_volume = owner == 0 && found.mode() & WRITABLE_BY_OTHERS == 0 && matches!(why, KeptMode::OtherOwner);
    if is_volume {
        tracing::info!(%directory, mode, owner, "the data directory belongs to root, so its mode is unchanged; its files have mode 600");
    } else {
        tracing::warn!(
            %directory,
            mode,
            owner,
            %why,
            "other users of this host may be able to use the data directory, for example to lock it, so that the next start fails. Give it \
             to the user of this process (chown), and run: chmod 700 DIRECTORY"
        );
    }
}

/// The reason for which a directory keeps its mode.
#[derive(Debug, thiserror::Error)]
enum KeptMode {
    #[error("the directory belongs to another user")]
    OtherOwner,
    #[error("the directory contains files of other programs")]
    Shared,
    #[error("cannot change the mode: {0}")]
    Io(#[from] io::Error),
}

fn tighten_directory(root: &Path, found: &Metadata) -> Result<(), KeptMode> {
    if found.uid() != Uid::effective().as_raw() {
        return Err(KeptMode::OtherOwner);
    }
    if found.mode() & STICKY != 0 || !contains_only_data(root)? {
        return Err(KeptMode::Shared);
    }
    let mode = found.mode() & 0o7777 & !OTHER_USERS;
    fs::set_permissions(root, Permissions::from_mode(mode))?;
    tracing::info!(directory = %root.display(), "the data directory is now closed to other users of this host (chmod 700)");
    Ok(())
}

/// Whether all that is in a directory belongs to a data directory. `/tmp` or `/var/lib` must keep
/// its mode if an operator specifies it by mistake.
fn contains_only_data(root: &Path) -> io::Result<bool> {
    for entry in fs::read_dir(root)? {
        let entry = entry?;
        let name = entry.file_name();
        let name = name.to_string_lossy();
        let is_data = match entry.file_type()?.is_dir() {
            // Data that was set aside, and the records of an embedded metadata service. Each is a
            // data directory, too.
            true => name == LOST_AND_FOUND || entry.path().join(names::IDENTITY).exists() || is_empty(&entry.path()),
            false => is_of_directory(&name),
        };
        if !is_data {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The directory for lost files in the root of a file system.
const LOST_AND_FOUND: &str = "lost+found";

fn is_empty(directory: &Path) -> bool {
    fs::read_dir(directory).is_ok_and(|mut entries| entries.next().is_none())
}

fn is_of_directory(name: &str) -> bool {
    name == names::LOCK || name.starts_with(names::EMPTYING) || names::is_of_journal(name)
}

/// Removes the permissions of other users from the journal's files that belong to this user. An
/// error is ignored.
fn tighten_files(root: &Path) {
    let Ok(entries) = fs::read_dir(root) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        // A link may point to a file of another program.
        let Ok(found) = entry.path().symlink_metadata() else { continue };
        let is_own = found.is_file() && found.nlink() == 1 && found.uid() == Uid::effective().as_raw();
        if is_own && found.mode() & OTHER_USERS != 0 && is_of_directory(&name.to_string_lossy()) {
            let _ = fs::set_permissions(entry.path(), Permissions::from_mode(FILE_MODE));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::unit_tests::options;
    use crate::{DataDir, DiskStorage, JournalStorage, LogConfig, RecoveredItem, Uuid};

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().mode() & 0o7777
    }

    fn set_mode(path: &Path, mode: u32) {
        fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }

    /// Starts a log in a directory, with a snapshot.
    fn use_directory(path: &Path) {
        let mut dir = DataDir::open(Arc::new(DiskStorage::open(path).unwrap()), &options(Uuid(1))).unwrap();
        let report = dir.recover(|_: RecoveredItem<'_>| Ok::<(), crate::JournalError>(())).unwrap();
        let log = dir.start_log(&report, LogConfig { file_bytes: 4096, ..LogConfig::default() }).unwrap();
        log.append(b"x", mcctl_base::Unix(1)).unwrap();
        log.sync(1).unwrap();
        log.prepare_next().unwrap();
        dir.store_note(b"note", true).unwrap();
    }

    /// The names of the files that other users may read or write.
    fn open_files(path: &Path) -> Vec<String> {
        let entries = fs::read_dir(path).unwrap().map(|entry| entry.unwrap());
        let open = entries.filter(|entry| entry.metadata().unwrap().mode() & 0o777 != FILE_MODE);
        open.map(|entry| entry.file_name().into_string().unwrap()).collect()
    }

    #[test]
    fn a_new_directory_and_its_files_are_closed_to_other_users() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("parent/data");
        use_directory(&path);
        assert_eq!(mode(&path), 0o700);
        assert_eq!(open_files(&path), [""; 0]);
        assert!(path.join(names::LOCK).exists() && path.join(names::log_name(2)).exists());
        let storage = DiskStorage::open(&path).unwrap();
        storage.create("a.tmp", 10).unwrap();
        storage.create_directory("2026").unwrap();
        assert_eq!((mode(&path.join("a.tmp")), mode(&path.join("2026"))), (0o600, 0o700));
    }

    #[test]
    fn an_open_directory_is_closed_when_it_is_used_again() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("data");
        use_directory(&path);
        set_mode(&path, 0o2755);
        for entry in fs::read_dir(&path).unwrap() {
            set_mode(&entry.unwrap().path(), 0o644);
        }
        fs::create_dir(path.join("empty")).unwrap();
        drop(DiskStorage::open(&path).unwrap());
        assert_eq!(mode(&path), 0o2700, "the set-group-ID bit stays");
        fs::remove_dir(path.join("empty")).unwrap();
        assert_eq!(open_files(&path), [""; 0]);
    }

    #[test]
    fn a_directory_with_files_of_other_programs_keeps_its_mode() {
        let root = tempfile::tempdir().unwrap();
        let other = |name: &str, prepare: &dyn Fn(&Path)| {
            let path = root.path().join(name);
            fs::create_dir(&path).unwrap();
            set_mode(&path, 0o755);
            prepare(&path);
            drop(DiskStorage::open(&path).unwrap());
            mode(&path)
        };
        assert_eq!(other("file", &|path| fs::write(path.join("notes.txt"), "").unwrap()), 0o755);
        assert_eq!(other("directory", &|path| fs::create_dir_all(path.join("lib/a")).unwrap()), 0o755);
        assert_eq!(other("sticky", &|path| set_mode(path, 0o1777)), 0o1777);
        assert_eq!(other("nothing", &|_| {}), 0o700);
    }

    #[test]
    fn a_linked_file_keeps_its_mode() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("data");
        let outside = root.path().join("outside");
        fs::create_dir(&path).unwrap();
        fs::write(&outside, "").unwrap();
        set_mode(&outside, 0o644);
        std::os::unix::fs::symlink(&outside, path.join(names::log_name(7))).unwrap();
        drop(DiskStorage::open(&path).unwrap());
        assert_eq!((mode(&path), mode(&outside)), (0o700, 0o644));
    }
}
