//! A simulated disk, for tests: it loses or keeps unsynced data, stops at any operation, and
//! returns errors.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::simulated_disk::{DiskFault, SimulatedDisk, StopState};
use crate::simulated_inode::SimulatedInode;
use crate::storage::{JournalFile, JournalStorage, StorageOperation};
use crate::uuid::Uuid;

/// Maximum time for which syncs are held, so that the threads of a failed test end.
const SYNC_HELD_MAX: Duration = Duration::from_secs(120);

/// The end of a simulated process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Crash {
    /// The process dies. Everything that it wrote stays.
    Kill,
    /// The kernel dies. Each sector and each name that was not synced is kept, lost or torn.
    Power,
}

/// A directory on a simulated disk, as one process uses it. After [`SimulatedStorage::crash`], this
/// storage and its files return errors. The next process uses the storage that `crash` returns.
///
/// Operations that change the disk are counted: creations, writes, syncs, renames and removals. The
/// same seed and the same operations have the same results.
#[derive(Clone)]
pub struct SimulatedStorage {
    disk: Arc<Mutex<SimulatedDisk>>,
    /// The process that uses this storage.
    process: u64,
    held: Arc<HeldSyncs>,
}

/// Whether syncs of files wait.
#[derive(Default)]
struct HeldSyncs {
    is_held: Mutex<bool>,
    released: Condvar,
}

impl SimulatedStorage {
    /// An empty directory on a new disk.
    pub fn new(seed: u64) -> SimulatedStorage {
        let disk = Arc::new(Mutex::new(SimulatedDisk::new(seed)));
        SimulatedStorage { disk, process: 0, held: Arc::default() }
    }

    /// Ends the process, and returns the directory as the next process finds it.
    pub fn crash(&self, crash: Crash) -> SimulatedStorage {
        let mut disk = self.lock_disk();
        disk.crash(crash == Crash::Power);
        SimulatedStorage { disk: self.disk.clone(), process: disk.process(), held: Arc::default() }
    }

    /// The boot ID of the simulated kernel. It changes when the power fails.
    pub fn boot_id(&self) -> Uuid {
        Uuid(u128::from(self.lock_disk().boot()))
    }

    /// Stops the process at the operation `number`, counted from the first one on this disk. That
    /// operation happens partly, entirely or not at all, and returns an error, as all later ones
    /// do.
    pub fn stop_at(&self, number: u64) {
        self.lock_disk().stop_at(number);
    }

    /// The operation at which the process stopped.
    pub fn stopped_at(&self) -> Option<StorageOperation> {
        self.lock_disk().stopped_at().map(|(operation, _)| *operation)
    }

    /// The name of the file that the process was changing when it stopped. It is empty for the
    /// directory, and the new name for a rename.
    pub fn stopped_in(&self) -> Option<String> {
        self.lock_disk().stopped_at().map(|(_, file)| file.clone())
    }

    /// Lets syncs of files wait from now on (`true`), as on a disk that is overloaded, or continue.
    pub fn hold_syncs(&self, hold: bool) {
        *self.held.is_held.lock().unwrap_or_else(PoisonError::into_inner) = hold;
        self.held.released.notify_all();
    }

    /// Waits while syncs are held.
    fn wait_to_sync(&self) {
        let is_held = self.held.is_held.lock().unwrap_or_else(PoisonError::into_inner);
        drop(self.held.released.wait_timeout_while(is_held, SYNC_HELD_MAX, |is_held| *is_held));
    }

    /// Returns errors from now on. Replaces an earlier fault. `None`: no errors.
    pub fn set_fault(&self, fault: Option<DiskFault>) {
        self.lock_disk().fault = fault;
    }

    /// The number of operations of each kind, since the disk was created.
    pub fn operations(&self) -> BTreeMap<StorageOperation, u64> {
        self.lock_disk().operations.clone()
    }

    /// The bytes of a file, as a process sees them. `None`: it does not exist.
    pub fn contents(&self, name: &str) -> Option<Vec<u8>> {
        self.lock_disk().contents(name).map(<[u8]>::to_vec)
    }

    /// Replaces the bytes of a file, as a defect of the disk does. Does nothing if it does not
    /// exist.
    pub fn damage(&self, name: &str, bytes: Vec<u8>) {
        self.lock_disk().damage(name, bytes);
    }

    fn lock_disk(&self) -> MutexGuard<'_, SimulatedDisk> {
        self.disk.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The disk, if this process is alive.
    fn alive(&self) -> io::Result<MutexGuard<'_, SimulatedDisk>> {
        let disk = self.lock_disk();
        disk.check(self.process)?;
        Ok(disk)
    }

    /// Performs an operation that changes `name`. If the process stops at it, `partly` happens
    /// instead.
    fn change<T>(
        &self,
        operation: StorageOperation,
        name: &str,
        whole: impl FnOnce(&mut SimulatedDisk) -> io::Result<T>,
        partly: impl FnOnce(&mut SimulatedDisk),
    ) -> io::Result<T> {
        let mut disk = self.alive()?;
        match disk.begin(operation, name)? {
            StopState::Running => whole(&mut disk),
            StopState::Stopping => {
                partly(&mut disk);
                Err(SimulatedDisk::dead())
            }
        }
    }

    /// Performs an operation that happens entirely or not at all.
    fn change_at_once<T>(
        &self,
        operation: StorageOperation,
        name: &str,
        whole: impl Fn(&mut SimulatedDisk) -> io::Result<T>,
    ) -> io::Result<T> {
        self.change(operation, name, &whole, |disk| {
            if disk.rng.below(2) == 0 {
                let _: Option<T> = whole(disk).ok();
            }
        })
    }

    fn file(&self, name: &str, inode: u64) -> Arc<dyn JournalFile> {
        Arc::new(SimulatedFile { storage: self.clone(), name: name.to_owned(), inode })
    }
}

impl JournalStorage for SimulatedStorage {
    fn path(&self) -> String {
        "simulated".to_owned()
    }

    fn lock(&self) -> io::Result<bool> {
        Ok(self.lock_disk().lock(self.process))
    }

    fn list(&self) -> io::Result<Vec<String>> {
        Ok(self.alive()?.list())
    }

    fn create(&self, name: &str, size: u64) -> io::Result<Arc<dyn JournalFile>> {
        let size = usize::try_from(size).map_err(|_| io::ErrorKind::FileTooLarge)?;
        let inode = self.change_at_once(StorageOperation::Create, name, |disk| Ok(disk.create(name, size)))?;
        Ok(self.file(name, inode))
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn JournalFile>> {
        let mut disk = self.alive()?;
        disk.fail(StorageOperation::Open)?;
        let inode = disk.inode(name)?;
        Ok(self.file(name, inode))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.change_at_once(StorageOperation::Rename, to, |disk| disk.rename(from, to))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.change_at_once(StorageOperation::Remove, name, |disk| disk.remove(name))
    }

    fn create_directory(&self, name: &str) -> io::Result<()> {
        self.change_at_once(StorageOperation::CreateDirectory, name, |disk| disk.create_directory(name))
    }

    fn sync_directory(&self, name: &str) -> io::Result<()> {
        self.change_at_once(StorageOperation::SyncDirectory, "", |disk| {
            disk.sync_directory(name);
            Ok(())
        })
    }
}

/// An open file on a simulated disk.
struct SimulatedFile {
    storage: SimulatedStorage,
    /// The name with which it was created or opened.
    name: String,
    inode: u64,
}

impl JournalFile for SimulatedFile {
    fn size(&self) -> io::Result<u64> {
        Ok(self.storage.alive()?.bytes(self.inode).len() as u64)
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let mut disk = self.storage.alive()?;
        disk.fail(StorageOperation::Read)?;
        let bytes = disk.bytes(self.inode);
        let begin = usize::try_from(offset).unwrap_or(usize::MAX).min(bytes.len());
        let count = buffer.len().min(bytes.len() - begin);
        buffer[..count].copy_from_slice(&bytes[begin..begin + count]);
        Ok(count)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let offset = usize::try_from(offset).map_err(|_| io::ErrorKind::FileTooLarge)?;
        let whole = |disk: &mut SimulatedDisk| {
            disk.file(self.inode).into_iter().for_each(|file| file.write(offset, bytes));
            Ok(())
        };
        self.storage.change(StorageOperation::Write, &self.name, whole, |disk| {
            let count = disk.rng.below(bytes.len() + 1);
            disk.file(self.inode).into_iter().for_each(|file| file.write(offset, &bytes[..count]));
        })
    }

    fn sync(&self) -> io::Result<()> {
        self.storage.wait_to_sync();
        let result = self.storage.change_at_once(StorageOperation::Sync, &self.name, |disk| {
            disk.file(self.inode).into_iter().for_each(SimulatedInode::sync);
            Ok(())
        });
        if let (Err(_), Ok(mut disk)) = (&result, self.storage.alive()) {
            disk.file(self.inode).into_iter().for_each(SimulatedInode::fail_sync);
        }
        result
    }
}
