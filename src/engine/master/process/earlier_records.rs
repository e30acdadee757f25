//! The metadata service's records of an earlier release, which kept them in a directory of their
//! own in the master's data directory. They are moved into the master's log once.
//!
//! When they are durable in the log, the directory is renamed, so that no start reads it again, and
//! then removed. The next start completes an interrupted removal.

use std::borrow::Cow;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use bytes::Bytes;

use crate::MasterHandle;
use crate::process::{MasterDataPlan, MasterProcessError};
use mcctl_journal::{DataDir, ExistingDataChoice, IDENTITY_FILE, is_journal_file};
use mcctl_metadata::backend::NotServed;
use mcctl_metadata::change::MetadataChange;
use mcctl_metadata::records::MetadataTable;
use mcctl_metadata::{METADATA_DIRECTORY, VALUE_BYTES_MAX, open_data_dir, read_records};
use mcctl_sys::env::{RealEnv, wall_clock};
use mcctl_wire::json::file_name_of;

/// The directory whose records are in the log.
const MOVED_DIRECTORY: &str = "metadata.moved";
/// Maximum size of the records in one change of the log, unless one record is larger.
const CHANGE_BYTES: usize = 1 << 20;

/// The records, and their directory.
pub(super) struct EarlierRecords {
    path: PathBuf,
    records: Vec<(Bytes, Bytes)>,
}

impl EarlierRecords {
    /// Reads the records, if there are any, the plan is to keep them, and a metadata service uses
    /// them (`is_used`). If the plan is another one, moves or removes them like the data of the
    /// master, whose directory is open as `dir`. Waits for the disk.
    ///
    /// # Errors
    /// The directory is damaged or of an unknown version, or the disk reports an error.
    pub(super) fn read(
        plan: &MasterDataPlan,
        dir: &DataDir,
        is_used: bool,
        env: &RealEnv,
    ) -> Result<Option<EarlierRecords>, MasterProcessError> {
        let records = plan.of_records();
        let path = records.path.clone();
        let failed = |error: io::Error| not_imported(&path, format!("cannot move or remove it: {error}"));
        remove_moved(&plan.directory.path.join(MOVED_DIRECTORY));
        if !path.join(IDENTITY_FILE).is_file() {
            return Ok(None);
        }
        match plan.directory.existing {
            ExistingDataChoice::Restore if !is_used => Ok(None),
            ExistingDataChoice::Restore => {
                let found = open_data_dir(&records, env).map_err(Into::into).and_then(|dir| read_records(&dir))?;
                if let Some((key, value)) = found.iter().find(|(_, value)| value.len() > VALUE_BYTES_MAX) {
                    let (key, bytes) = (key.escape_ascii(), value.len());
                    return Err(not_imported(
                        &path,
                        format!("record {key} has {bytes} bytes, more than {VALUE_BYTES_MAX}"),
                    ));
                }
                Ok(Some(EarlierRecords { path, records: found }))
            }
            ExistingDataChoice::SetAside => {
                let to = match dir.set_aside() {
                    Some(subdirectory) => plan.directory.path.join(subdirectory).join(METADATA_DIRECTORY),
                    None => path.with_extension(file_name_of(wall_clock(env))),
                };
                rename(&path, &to).map(|()| None).map_err(failed)
            }
            ExistingDataChoice::Discard => {
                let moved = plan.directory.path.join(MOVED_DIRECTORY);
                rename(&path, &moved).map_err(failed)?;
                remove_moved(&moved);
                Ok(None)
            }
        }
    }

    /// Writes the records to the master's log, and removes their directory when they are durable.
    /// If a start ends before, the next one does the same again.
    ///
    /// # Errors
    /// The log cannot be written, or the directory cannot be renamed.
    pub(super) async fn import(self, master: &MasterHandle<RealEnv>) -> Result<(), MasterProcessError> {
        let EarlierRecords { path, records } = self;
        let stopped = |error: NotServed| not_imported(&path, error.to_string());
        let put = |(key, value): &(Bytes, Bytes)| MetadataChange::Put {
            key: Cow::Owned(key.to_vec()),
            value: Cow::Owned(value.to_vec()),
        };
        let log = master.metadata_records();
        let mut rest = records.as_slice();
        while !rest.is_empty() {
            let mut bytes = 0;
            let fits = |(key, value): &&(Bytes, Bytes)| {
                bytes += key.len() + value.len();
                bytes <= CHANGE_BYTES
            };
            let count = rest.iter().take_while(fits).count().max(1);
            let (now, later) = rest.split_at(count);
            let plan = Box::new(|_: &mut MetadataTable| now.iter().map(put).collect());
            log.change(plan).await.map_err(stopped)?;
            rest = later;
        }
        if !master.sync().await {
            return Err(not_imported(&path, "the log cannot be written".to_owned()));
        }
        let moved = path.with_file_name(MOVED_DIRECTORY);
        let failed = |error: io::Error| not_imported(&path, format!("cannot rename it: {error}"));
        rename(&path, &moved).map_err(failed)?;
        tracing::info!(
            records = records.len(),
            directory = %path.display(),
            "metadata records moved from their own directory into the master's log"
        );
        remove_moved(&moved);
        Ok(())
    }
}

/// Renames a directory, and makes this durable.
fn rename(from: &Path, to: &Path) -> io::Result<()> {
    fs::rename(from, to)?;
    let parents = [from, to].map(|path| path.parent().unwrap_or(Path::new("/")));
    parents.iter().try_for_each(|parent| fs::File::open(parent)?.sync_all())
}

/// Removes a directory of records that is no longer used.
fn remove_moved(path: &Path) {
    if let Err(error) = remove(path) {
        tracing::warn!(%error, directory = %path.display(), "cannot remove this directory, which is no longer used");
    }
}

/// Removes a directory of records, if it exists. Files of others in it stay.
fn remove(path: &Path) -> io::Result<()> {
    let entries = match fs::read_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    for entry in entries {
        let entry = entry?;
        if entry.file_type()?.is_file() && entry.file_name().to_str().is_some_and(is_journal_file) {
            fs::remove_file(entry.path())?;
        }
    }
    fs::remove_dir(path)
}

fn not_imported(path: &Path, problem: String) -> MasterProcessError {
    MasterProcessError::RecordsNotImported { path: path.to_owned(), problem }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::server::MasterData;
    use crate::{DATA_FORMAT, MasterConfig, MasterServer};
    use mcctl_base::HostPort;
    use mcctl_journal::{
        CommitLogOptions, DataDirOptions, DiskErrorPolicy, DiskFault, ExistingData, SimulatedStorage, StorageOperation,
        Uuid,
    };

    #[tokio::test]
    async fn records_stay_where_they_are_if_the_log_is_given_up() {
        let disk = SimulatedStorage::new(1);
        let open = DataDirOptions {
            cluster_id: "c",
            boot_id: disk.boot_id(),
            new_uuid: Uuid(1),
            existing: ExistingData::Keep,
        };
        let dir = DataDir::open(Arc::new(disk.clone()), &open).unwrap();
        let options = CommitLogOptions { on_error: DiskErrorPolicy::ContinueMemoryOnly, ..CommitLogOptions::default() };
        let data = MasterData { dir, options, format: DATA_FORMAT };
        let mut config = MasterConfig::new(HostPort::new("127.0.0.1", 0));
        config.threads = 1;
        let master = MasterServer::start_with(config, Some(data), RealEnv::new()).await.unwrap();
        let root = std::env::temp_dir().join(format!("earlier-records-{}", std::process::id()));
        let path = root.join(METADATA_DIRECTORY);
        fs::create_dir_all(&path).unwrap();
        disk.set_fault(Some(DiskFault {
            operation: StorageOperation::Write,
            after: 0,
            errno: 28,
            is_permanent: false,
        }));
        let records = vec![(Bytes::from_static(b"k"), Bytes::from_static(b"v"))];
        let imported = EarlierRecords { path: path.clone(), records }.import(&master.handle()).await;
        let is_kept = path.is_dir();
        fs::remove_dir_all(&root).unwrap();
        assert!(matches!(imported, Err(MasterProcessError::RecordsNotImported { .. })));
        assert!(is_kept);
        master.stop().await.unwrap();
    }
}
