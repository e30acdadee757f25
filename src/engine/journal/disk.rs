//! The data directory on a file system of this host.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, OFlag, fallocate};
use nix::sys::statvfs::statvfs;

use crate::error::JournalError;
use crate::modes;
use crate::names;
use crate::storage::{DiskSpace, JournalFile, JournalStorage, StorageOperation};

/// Number of zeros that one write preallocates a file with.
const ZERO_BYTES: usize = 1 << 20;

/// A directory on a file system.
pub struct DiskStorage {
    root: PathBuf,
    /// The locked file, and the directory. An operator may remove the file, so the directory is
    /// locked as well if the file system can do that.
    lock: Mutex<Option<(File, Option<File>)>>,
}

impl DiskStorage {
    /// Opens a directory, and creates it if it does not exist. Only this user can use it and its
    /// files afterwards. If an existing directory cannot be restricted, a warning is logged.
    ///
    /// # Errors
    /// The directory cannot be created, or `root` is not a directory.
    pub fn open(root: &Path) -> Result<DiskStorage, JournalError> {
        let failed = JournalError::storage(StorageOperation::CreateDirectory, &root.display().to_string(), None);
        create_directory(root).map_err(failed)?;
        modes::tighten(root);
        Ok(DiskStorage { root: root.to_owned(), lock: Mutex::new(None) })
    }

    fn at(&self, name: &str) -> PathBuf {
        if name.is_empty() { self.root.clone() } else { self.root.join(name) }
    }
}

impl JournalStorage for DiskStorage {
    fn path(&self) -> String {
        self.root.display().to_string()
    }

    fn space(&self) -> Option<DiskSpace> {
        let system = statvfs(&self.root).ok()?;
        let bytes = |blocks: u64| blocks.saturating_mul(system.fragment_size());
        Some(DiskSpace { free: bytes(system.blocks_available()), size: bytes(system.blocks()) })
    }

    fn lock(&self) -> io::Result<bool> {
        let mut lock = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        if lock.is_some() {
            return Ok(true);
        }
        let mut options = modes::create_options();
        // A named pipe must not block.
        options.truncate(false).write(true).custom_flags(OFlag::O_NONBLOCK.bits());
        let file = options.open(self.at(names::LOCK))?;
        modes::restrict(&file);
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Ok(false),
            Err(TryLockError::Error(error)) => return Err(error),
        }
        let directory = File::open(&self.root)?;
        let directory = match directory.try_lock() {
            Ok(()) => Some(directory),
            Err(TryLockError::WouldBlock) => return Ok(false),
            // Some network file systems lock only files.
            Err(TryLockError::Error(_)) => None,
        };
        *lock = Some((file, directory));
        Ok(true)
    }

    fn list(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(&self.root)? {
            let entry = entry?;
            // A symbolic link to a file counts as a file.
            if entry.file_name() != names::LOCK && fs::metadata(entry.path()).is_ok_and(|found| found.is_file()) {
                // The journal writes only names in UTF-8.
                names.extend(OsString::into_string(entry.file_name()));
            }
        }
        names.sort();
        Ok(names)
    }

    fn create(&self, name: &str, size: u64) -> io::Result<Arc<dyn JournalFile>> {
        let file = modes::create_options().truncate(true).read(true).write(true).open(self.at(name))?;
        modes::restrict(&file);
        if size > 0 {
            preallocate(&file, size)?;
        }
        Ok(Arc::new(DiskFile(file)))
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn JournalFile>> {
        let file = OpenOptions::new().read(true).write(true).open(self.at(name))?;
        Ok(Arc::new(DiskFile(file)))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        fs::rename(self.at(from), self.at(to))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        fs::remove_file(self.at(name))
    }

    fn create_directory(&self, name: &str) -> io::Result<()> {
        modes::create_directory(&self.at(name))
    }

    fn sync_directory(&self, name: &str) -> io::Result<()> {
        File::open(self.at(name))?.sync_all()
    }
}

/// Creates a directory and those above it that do not exist. Makes their names durable.
fn create_directory(path: &Path) -> io::Result<()> {
    if path.is_dir() {
        let is_empty = fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_none());
        if is_empty && let Ok(Some(parent)) = path.canonicalize().map(|path| path.parent().map(File::open)) {
            // A process that was killed may have created the directory. If another user did, this
            // one may not be able to open the parent.
            parent.and_then(|parent| parent.sync_all()).unwrap_or_default();
        }
        return Ok(());
    }
    let missing = path.ancestors().take_while(|path| !path.as_os_str().is_empty() && !path.exists()).count();
    if let Some(parent) = path.parent() {
        // Other programs may use the directories above.
        fs::create_dir_all(parent)?;
    }
    match modes::create_directory(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => {}
        created => created?,
    }
    for parent in path.canonicalize()?.ancestors().skip(1).take(missing) {
        File::open(parent)?.sync_all()?;
    }
    Ok(())
}

/// Allocates the blocks of an empty file. Writes zeros if the file system cannot do that.
fn preallocate(file: &File, size: u64) -> io::Result<()> {
    let length = i64::try_from(size).map_err(|_| Errno::EFBIG)?;
    loop {
        match fallocate(file, FallocateFlags::empty(), 0, length) {
            Ok(()) => return Ok(()),
            Err(Errno::EINTR) => {}
            Err(Errno::EOPNOTSUPP | Errno::ENOSYS) => return write_zeros(file, size),
            Err(error) => return Err(error.into()),
        }
    }
}

fn write_zeros(file: &File, size: u64) -> io::Result<()> {
    let zeros = vec![0; ZERO_BYTES];
    let mut offset = 0;
    while offset < size {
        let count = (size - offset).min(ZERO_BYTES as u64);
        #[expect(clippy::cast_possible_truncation, reason = "at most ZERO_BYTES")]
        file.write_all_at(&zeros[..count as usize], offset)?;
        offset += count;
    }
    Ok(())
}

/// An open file on a file system.
struct DiskFile(File);

impl JournalFile for DiskFile {
    fn size(&self) -> io::Result<u64> {
        self.0.metadata().map(|metadata| metadata.len())
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.read_at(buffer, offset)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.0.write_all_at(bytes, offset)
    }

    fn sync(&self) -> io::Result<()> {
        self.0.sync_data()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn storage() -> (tempfile::TempDir, DiskStorage) {
        let root = tempfile::tempdir().unwrap();
        let storage = DiskStorage::open(&root.path().join("data/a")).unwrap();
        (root, storage)
    }

    #[test]
    fn the_space_is_that_of_the_file_system() {
        let root = tempfile::tempdir().unwrap();
        let space = DiskStorage::open(root.path()).unwrap().space().expect("a file system");
        assert!(space.free <= space.size && space.size > 0, "{space:?}");
    }

    #[test]
    fn a_created_file_has_its_size_and_zeros() {
        let (_root, storage) = storage();
        let file = storage.create("log-1", 70_000).unwrap();
        assert_eq!(file.size().unwrap(), 70_000);
        file.write_at(69_998, b"ab").unwrap();
        file.sync().unwrap();
        let mut bytes = vec![9; 70_001];
        let count = crate::storage::read_full(&*file, 0, &mut bytes).unwrap();
        assert_eq!(count, 70_000);
        assert!(bytes[..69_998].iter().all(|byte| *byte == 0));
        assert_eq!(&bytes[69_998..], b"ab\x09");
    }

    #[test]
    fn zeros_replace_preallocation() {
        let (_root, storage) = storage();
        let file = File::create_new(storage.at("zeros")).unwrap();
        let size = ZERO_BYTES as u64 + 7;
        write_zeros(&file, size).unwrap();
        assert_eq!(fs::read(storage.at("zeros")).unwrap(), vec![0; ZERO_BYTES + 7]);
        assert_eq!(file.metadata().unwrap().len(), size);
    }

    #[test]
    fn names_are_listed_without_directories_and_the_lock() {
        let (_root, storage) = storage();
        assert!(storage.lock().unwrap());
        storage.create("b", 0).unwrap();
        storage.create("a.tmp", 0).unwrap();
        storage.create_directory("old").unwrap();
        storage.rename("a.tmp", "a").unwrap();
        storage.create("c", 0).unwrap();
        storage.rename("c", "old/c").unwrap();
        storage.sync_directory("old").unwrap();
        storage.sync_directory("").unwrap();
        assert_eq!(storage.list().unwrap(), ["a", "b"]);
        storage.remove("b").unwrap();
        assert_eq!(storage.list().unwrap(), ["a"]);
        assert_eq!(storage.create_directory("old").unwrap_err().kind(), io::ErrorKind::AlreadyExists);
    }

    #[test]
    fn a_file_is_not_a_data_directory() {
        let (_root, storage) = storage();
        storage.create("file", 0).unwrap();
        match DiskStorage::open(&storage.at("file")).err() {
            Some(JournalError::Storage { operation: StorageOperation::CreateDirectory, file, .. }) => {
                assert!(file.ends_with("data/a/file"));
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_directory_is_locked_until_its_storage_is_dropped() {
        let (_root, storage) = storage();
        let other = DiskStorage::open(&storage.root).unwrap();
        assert!(storage.lock().unwrap());
        assert!(storage.lock().unwrap(), "the same storage again");
        assert!(!other.lock().unwrap());
        drop(storage);
        assert!(other.lock().unwrap());
    }
}
