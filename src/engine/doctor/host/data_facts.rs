//! The facts about a master's data directory. Reads the directory, and times syncs of a temporary
//! file next to the data.

use std::fs::{self, File, TryLockError};
use std::io::{self, Write};
use std::path::Path;
use std::time::Duration;

use serde::Deserialize;

use crate::host::PlannedData;
use mcctl_sys::env::Env;
use mcctl_sys::host::file_system;
use mcctl_sys::procfs;
use mcctl_sys::{FileReadError, FileTree};

/// Number of syncs that are timed, and the time after which no further one begins.
const SYNCS: usize = 32;
const SYNCS_MAX: Duration = Duration::from_secs(1);
/// Bytes that are written before each sync.
const SYNC_BYTES: usize = 4096;

/// A master's data directory, as far as it can be read.
#[derive(Debug, Default)]
pub(super) struct DataFacts {
    /// The directory itself, or the nearest one above it that exists, with links resolved.
    pub existing: String,
    pub exists: bool,
    pub is_directory: bool,
    /// Why this user cannot write to `existing`. Unknown for another host.
    pub unwritable: Option<String>,
    /// Free bytes and size of the file system. Unknown for another host.
    pub space: Option<(u64, u64)>,
    /// Type of the file system, e.g. `ext4`.
    pub file_system: Option<String>,
    /// Bytes of the files in the directory.
    pub used: u64,
    pub is_locked: bool,
    /// Whether the directory has a log or snapshots.
    pub has_data: bool,
    /// The directory's last process marked it as incomplete.
    pub is_invalid: bool,
    /// The identity file; `None` if it does not exist. The error states why it cannot be used.
    pub identity: Option<Result<DataIdentity, IdentityReadError>>,
    /// Durations of the syncs, sorted, or why they failed. `None` if the directory must not be
    /// written to.
    pub syncs: Option<io::Result<Vec<Duration>>>,
}

/// The fields of the identity file that all its formats have, and the cluster. `DirectoryIdentity`
/// in the journal defines the file.
#[derive(Debug, Deserialize)]
pub(super) struct DataIdentity {
    pub format: u32,
    pub writer: String,
    /// The cluster that the data belongs to. Format 1 has it.
    #[serde(default)]
    pub cluster_id: String,
}

/// Why an identity file cannot be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum IdentityReadError {
    #[error("{}", .0.source)]
    File(#[from] FileReadError),
    #[error(transparent)]
    Syntax(#[from] serde_json::Error),
}

/// Reads the directory `planned` of the host `tree`.
pub(super) fn gather(env: &impl Env, tree: &FileTree, planned: &PlannedData) -> DataFacts {
    let path = planned.path.trim_end_matches('/');
    let ancestors = Path::new(path).ancestors().filter_map(Path::to_str);
    let existing = ancestors.filter_map(|path| tree.resolve(path)).next().unwrap_or_else(|| "/".to_owned());
    let names = tree.names(path);
    let exists = tree.resolve(path).is_some();
    let is_file = names.as_ref().is_err_and(|error| error.source.kind() == io::ErrorKind::NotADirectory);
    let mut facts = DataFacts { exists, is_directory: exists && !is_file, ..DataFacts::default() };
    let names = names.ok().flatten().unwrap_or_default();
    facts.has_data = names.iter().any(|name| name.starts_with("log-") || name.starts_with("snapshot-"));
    facts.identity = match tree.text(&format!("{path}/identity.json")) {
        Ok(text) => text.map(|text| serde_json::from_str(&text).map_err(IdentityReadError::from)),
        Err(error) => Some(Err(error.into())),
    };
    facts.is_invalid =
        tree.text(&format!("{path}/validity")).is_ok_and(|text| text.is_some_and(|text| text.trim_end() != "valid"));
    facts.file_system = file_system_type(tree, &existing);
    if tree.is_this_host() {
        let folder = Path::new(&existing);
        facts.unwritable = tree.may_read_and_write(&existing).err().map(|error| error.to_string());
        facts.space = file_system(folder).ok();
        let size = |name: &String| fs::metadata(folder.join(name)).map_or(0, |file| file.len());
        facts.used = names.iter().map(size).sum();
        facts.is_locked = facts.is_directory && is_locked(&folder.join("lock"));
        facts.syncs = (planned.may_write && facts.unwritable.is_none() && (facts.is_directory || !facts.exists))
            .then(|| time_syncs(env, folder));
    }
    facts.existing = existing;
    facts
}

/// The type of the file system that contains `path`: that of the longest mount point above it, and
/// of the last one if there are several.
fn file_system_type(tree: &FileTree, path: &str) -> Option<String> {
    let text = tree.text("/proc/self/mounts").ok().flatten().or_else(|| tree.text("/proc/mounts").ok().flatten())?;
    let mounts = procfs::mounts(&text).into_iter().filter(|mount| Path::new(path).starts_with(&mount.fs_file));
    mounts.max_by_key(|mount| mount.fs_file.len()).map(|mount| mount.fs_vfstype)
}

/// Whether a process has the lock file locked. A shared lock is held for an instant to find out.
fn is_locked(path: &Path) -> bool {
    File::open(path).is_ok_and(|file| matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock)))
}

/// Writes to a temporary file and syncs it, several times. The file is removed.
fn time_syncs(env: &impl Env, folder: &Path) -> io::Result<Vec<Duration>> {
    let path = folder.join(format!("mcctl-doctor-{}.tmp", std::process::id()));
    let file = File::create_new(&path)?;
    let times = write_and_sync(env, file);
    fs::remove_file(&path)?;
    times
}

fn write_and_sync(env: &impl Env, mut file: File) -> io::Result<Vec<Duration>> {
    let bytes = [0xa5; SYNC_BYTES];
    let start = env.now();
    let mut times = Vec::with_capacity(SYNCS);
    while times.len() < SYNCS && env.now().since(start) < SYNCS_MAX {
        file.write_all(&bytes)?;
        let before = env.now();
        file.sync_data()?;
        times.push(env.now().since(before));
    }
    times.sort_unstable();
    Ok(times)
}
