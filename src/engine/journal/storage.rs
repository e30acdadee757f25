//! The traits through which the journal uses a disk: one directory with files. A crash model can
//! replace them.

use std::fmt;
use std::io;
use std::sync::Arc;

/// The operations of the journal on a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum StorageOperation {
    Lock,
    List,
    Open,
    Read,
    Create,
    Write,
    Sync,
    Rename,
    Remove,
    CreateDirectory,
    SyncDirectory,
}

impl fmt::Display for StorageOperation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            StorageOperation::Lock => "lock",
            StorageOperation::List => "list",
            StorageOperation::Open => "open",
            StorageOperation::Read => "read",
            StorageOperation::Create => "create",
            StorageOperation::Write => "write",
            StorageOperation::Sync => "sync",
            StorageOperation::Rename => "rename",
            StorageOperation::Remove => "remove",
            StorageOperation::CreateDirectory => "create the directory",
            StorageOperation::SyncDirectory => "sync the directory",
        })
    }
}

/// The space on the file system of a directory, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskSpace {
    /// Available to this process's user.
    pub free: u64,
    pub size: u64,
}

/// A directory of files. Names are relative to it. Only [`JournalStorage::rename`] and
/// [`JournalStorage::sync_directory`] accept a subdirectory.
///
/// Nothing is durable before it is synced: the bytes of a file by [`JournalFile::sync`], names by
/// [`JournalStorage::sync_directory`].
pub trait JournalStorage: Send + Sync {
    /// The directory, for messages.
    fn path(&self) -> String;

    /// The space on its file system; `None` if it cannot be read.
    fn space(&self) -> Option<DiskSpace> {
        None
    }

    /// Locks the directory for this process. Returns `false` if another process has it locked. The
    /// lock ends with the storage.
    ///
    /// # Errors
    /// The lock file cannot be created or locked.
    fn lock(&self) -> io::Result<bool>;

    /// The names of the files in the directory, sorted, without subdirectories.
    ///
    /// # Errors
    /// The directory cannot be read.
    fn list(&self) -> io::Result<Vec<String>>;

    /// Creates a file of `size` zero bytes whose blocks are allocated. A file with this name is
    /// replaced.
    ///
    /// # Errors
    /// The file cannot be created, or the disk has no room for it.
    fn create(&self, name: &str, size: u64) -> io::Result<Arc<dyn JournalFile>>;

    /// Opens an existing file.
    ///
    /// # Errors
    /// The file does not exist, or cannot be opened for reading and writing.
    fn open(&self, name: &str) -> io::Result<Arc<dyn JournalFile>>;

    /// Renames a file. A file with the new name is replaced.
    ///
    /// # Errors
    /// The file does not exist, or cannot be renamed.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;

    /// Removes a file.
    ///
    /// # Errors
    /// The file does not exist, or cannot be removed.
    fn remove(&self, name: &str) -> io::Result<()>;

    /// Creates a subdirectory.
    ///
    /// # Errors
    /// A file or directory with this name exists, or the directory cannot be created.
    fn create_directory(&self, name: &str) -> io::Result<()>;

    /// Makes the names in a subdirectory durable, or those in the directory itself if `name` is
    /// empty.
    ///
    /// # Errors
    /// The directory cannot be opened or synced.
    fn sync_directory(&self, name: &str) -> io::Result<()>;
}

/// An open file. It can be used by several threads at a time.
pub trait JournalFile: Send + Sync {
    /// The size of the file in bytes.
    ///
    /// # Errors
    /// The file's size cannot be read.
    fn size(&self) -> io::Result<u64>;

    /// Reads at most `buffer.len()` bytes at `offset`, and returns their number: 0 at the end of
    /// the file.
    ///
    /// # Errors
    /// The bytes cannot be read.
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize>;

    /// Writes all `bytes` at `offset`. After an error, the file may contain some of them.
    ///
    /// # Errors
    /// The bytes cannot be written.
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()>;

    /// Makes everything that was written before this call durable, with the file's size.
    ///
    /// # Errors
    /// The disk reports an error. Written bytes may then be lost, even if a later call succeeds.
    fn sync(&self) -> io::Result<()>;
}

/// Reads until `buffer` is full or the file ends. Returns the number of bytes.
pub(super) fn read_full(file: &dyn JournalFile, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
    let mut done = 0;
    while done < buffer.len() {
        match file.read_at(offset + done as u64, &mut buffer[done..]) {
            Ok(0) => break,
            Ok(count) => done += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}
