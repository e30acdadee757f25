//! The state of a simulated disk: the contents that a process sees, and those that survive a power
//! loss.

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use crate::simulated_inode::SimulatedInode;
use crate::storage::StorageOperation;
use mcctl_base::Rng;

/// An error that a simulated disk returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskFault {
    pub operation: StorageOperation,
    /// Number of operations of this kind that still succeed.
    pub after: u64,
    /// The error number of the operating system, for example 28 for a full disk.
    pub errno: i32,
    /// Whether all later operations of this kind fail, too.
    pub is_permanent: bool,
}

/// The effect of the stop setting on an operation: the process continues, or stops at it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StopState {
    Running,
    Stopping,
}

/// A change of a name that is not synced.
#[derive(Clone)]
enum NameChange {
    Link { name: String, inode: u64 },
    Rename { from: String, to: String, inode: u64 },
    Unlink { name: String, inode: u64 },
}

/// A directory, its files, and the process that uses it.
pub(super) struct SimulatedDisk {
    pub rng: Rng,
    pub fault: Option<DiskFault>,
    pub operations: BTreeMap<StorageOperation, u64>,
    inodes: BTreeMap<u64, SimulatedInode>,
    names: BTreeMap<String, u64>,
    durable_names: BTreeMap<String, u64>,
    changes: Vec<NameChange>,
    directories: BTreeSet<String>,
    next_inode: u64,
    /// The number of the running process, and of the running kernel.
    process: u64,
    boot: u64,
    count: u64,
    stop_at: u64,
    /// The operation at which the process stopped, and its file.
    stopped_at: Option<(StorageOperation, String)>,
}

impl SimulatedDisk {
    pub(super) fn new(seed: u64) -> SimulatedDisk {
        SimulatedDisk {
            rng: Rng::new(seed),
            fault: None,
            operations: BTreeMap::new(),
            inodes: BTreeMap::new(),
            names: BTreeMap::new(),
            durable_names: BTreeMap::new(),
            changes: Vec::new(),
            directories: BTreeSet::new(),
            next_inode: 0,
            process: 0,
            boot: 0,
            count: 0,
            stop_at: u64::MAX,
            stopped_at: None,
        }
    }

    pub(super) fn process(&self) -> u64 {
        self.process
    }

    pub(super) fn boot(&self) -> u64 {
        self.boot
    }

    pub(super) fn stop_at(&mut self, number: u64) {
        self.stop_at = number;
    }

    pub(super) fn stopped_at(&self) -> Option<&(StorageOperation, String)> {
        self.stopped_at.as_ref()
    }

    /// The error of a process that stopped.
    pub(super) fn dead() -> io::Error {
        io::Error::other("the simulated process has stopped")
    }

    /// Checks that `process` is the running one, and did not stop.
    pub(super) fn check(&self, process: u64) -> io::Result<()> {
        if process != self.process || self.stopped_at.is_some() { Err(SimulatedDisk::dead()) } else { Ok(()) }
    }

    /// The running process is the only one that locks the directory.
    pub(super) fn lock(&self, process: u64) -> bool {
        process == self.process
    }

    /// Counts an operation on `file`. Returns the error that the operation must return.
    pub(super) fn begin(&mut self, operation: StorageOperation, file: &str) -> io::Result<StopState> {
        *self.operations.entry(operation).or_default() += 1;
        self.count += 1;
        self.fail(operation)?;
        if self.count < self.stop_at {
            return Ok(StopState::Running);
        }
        self.stopped_at = Some((operation, file.to_owned()));
        Ok(StopState::Stopping)
    }

    /// Returns the error that this operation must return, if one was injected.
    pub(super) fn fail(&mut self, operation: StorageOperation) -> io::Result<()> {
        let Some(fault) = self.fault.as_mut().filter(|fault| fault.operation == operation) else { return Ok(()) };
        if fault.after > 0 {
            fault.after -= 1;
            return Ok(());
        }
        let error = io::Error::from_raw_os_error(fault.errno);
        if !fault.is_permanent {
            self.fault = None;
        }
        Err(error)
    }

    pub(super) fn list(&self) -> Vec<String> {
        self.names.keys().filter(|name| !name.contains('/')).cloned().collect()
    }

    pub(super) fn inode(&self, name: &str) -> io::Result<u64> {
        self.names.get(name).copied().ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    pub(super) fn bytes(&self, inode: u64) -> &[u8] {
        self.inodes.get(&inode).map_or(&[], SimulatedInode::bytes)
    }

    pub(super) fn contents(&self, name: &str) -> Option<&[u8]> {
        self.names.get(name).map(|inode| self.bytes(*inode))
    }

    pub(super) fn damage(&mut self, name: &str, bytes: Vec<u8>) {
        if let Some(inode) = self.names.get(name).and_then(|inode| self.inodes.get_mut(inode)) {
            inode.replace(bytes);
        }
    }

    pub(super) fn create(&mut self, name: &str, size: usize) -> u64 {
        let inode = self.next_inode;
        self.next_inode += 1;
        self.inodes.insert(inode, SimulatedInode::new(size));
        self.change(NameChange::Link { name: name.to_owned(), inode });
        inode
    }

    pub(super) fn rename(&mut self, from: &str, to: &str) -> io::Result<()> {
        let inode = self.inode(from)?;
        if let Some((directory, _)) = to.split_once('/').filter(|(directory, _)| !self.directories.contains(*directory))
        {
            return Err(io::Error::new(io::ErrorKind::NotFound, directory));
        }
        self.change(NameChange::Rename { from: from.to_owned(), to: to.to_owned(), inode });
        Ok(())
    }

    pub(super) fn remove(&mut self, name: &str) -> io::Result<()> {
        let inode = self.inode(name)?;
        self.change(NameChange::Unlink { name: name.to_owned(), inode });
        Ok(())
    }

    /// Directories are durable at once. No file is lost by this, because a file in a lost directory
    /// would be lost, too.
    pub(super) fn create_directory(&mut self, name: &str) -> io::Result<()> {
        let is_new = !self.names.contains_key(name) && self.directories.insert(name.to_owned());
        if is_new { Ok(()) } else { Err(io::ErrorKind::AlreadyExists.into()) }
    }

    fn change(&mut self, change: NameChange) {
        change.apply(&mut self.names);
        self.changes.push(change);
    }

    /// Makes the changes durable that concern a name in this directory.
    pub(super) fn sync_directory(&mut self, directory: &str) {
        let (synced, rest) = std::mem::take(&mut self.changes).into_iter().partition(|change| change.is_in(directory));
        self.changes = rest;
        let synced: Vec<NameChange> = synced;
        for change in synced {
            change.apply(&mut self.durable_names);
        }
    }

    /// The file `inode`. `None`: a power loss has removed it.
    pub(super) fn file(&mut self, inode: u64) -> Option<&mut SimulatedInode> {
        self.inodes.get_mut(&inode)
    }

    /// Ends the process, and the kernel as well if `is_power_loss`.
    pub(super) fn crash(&mut self, is_power_loss: bool) {
        self.process += 1;
        self.stop_at = u64::MAX;
        self.stopped_at = None;
        self.fault = None;
        if !is_power_loss {
            return;
        }
        self.boot += 1;
        // Each change of a name is durable or not, as file systems do not promise an order. A
        // rename may leave the old name.
        for change in std::mem::take(&mut self.changes) {
            match (self.rng.below(8), &change) {
                (0..4, _) => {}
                (4, NameChange::Rename { to, inode, .. }) => {
                    self.durable_names.insert(to.clone(), *inode);
                }
                _ => change.apply(&mut self.durable_names),
            }
        }
        self.names.clone_from(&self.durable_names);
        let used: BTreeSet<u64> = self.names.values().copied().collect();
        self.inodes.retain(|number, _| used.contains(number));
        for inode in self.inodes.values_mut() {
            inode.lose_power(&mut self.rng);
        }
    }
}

impl NameChange {
    fn apply(&self, names: &mut BTreeMap<String, u64>) {
        match self {
            NameChange::Link { name, inode } => {
                names.insert(name.clone(), *inode);
            }
            NameChange::Rename { from, to, inode } => {
                remove_if(names, from, *inode);
                names.insert(to.clone(), *inode);
            }
            NameChange::Unlink { name, inode } => remove_if(names, name, *inode),
        }
    }

    fn is_in(&self, directory: &str) -> bool {
        let is_in = |name: &str| name.split_once('/').map_or("", |(directory, _)| directory) == directory;
        match self {
            NameChange::Link { name, .. } | NameChange::Unlink { name, .. } => is_in(name),
            NameChange::Rename { from, to, .. } => is_in(from) || is_in(to),
        }
    }
}

fn remove_if(names: &mut BTreeMap<String, u64>, name: &str, inode: u64) {
    if names.get(name) == Some(&inode) {
        names.remove(name);
    }
}
