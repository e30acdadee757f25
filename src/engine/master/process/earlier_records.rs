//! The metadata service's records of an earlier release, which kept them in a directory of their
//! own in the master's data directory. They are moved into the master's log once.

use std::borrow::Cow;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use bytes::Bytes;

use crate::MasterHandle;
use crate::process::{MasterDataPlan, MasterProcessError};
use mcctl_journal::{DataDir, ExistingDataChoice};
use mcctl_metadata::backend::NotServed;
use mcctl_metadata::change::MetadataChange;
use mcctl_metadata::records::MetadataTable;
use mcctl_metadata::{open_data_dir, read_records};
use mcctl_sys::env::{Env, RealEnv};

/// Maximum size of the records in one change of the log, unless one record is larger.
const CHANGE_BYTES: usize = 1 << 20;

/// The records, and their directory.
pub(super) struct EarlierRecords {
    path: PathBuf,
    records: Vec<(Bytes, Bytes)>,
}

impl EarlierRecords {
    /// Reads the records, if there are any and the plan is to keep them. Otherwise, moves or
    /// removes them like the data of the master, whose directory is open as `dir`.
    ///
    /// # Errors
    /// The directory is damaged or of an unknown version, or the disk reports an error.
    pub(super) fn read(
        plan: &MasterDataPlan,
        dir: &DataDir,
        env: &RealEnv,
    ) -> Result<Option<EarlierRecords>, MasterProcessError> {
        let records = plan.of_records();
        let path = records.path.clone();
        if !path.is_dir() {
            return Ok(None);
        }
        match (plan.directory.existing, dir.set_aside()) {
            (ExistingDataChoice::Restore, _) => {
                let found = open_data_dir(&records, env).map_err(Into::into).and_then(|dir| read_records(&dir))?;
                return Ok(Some(EarlierRecords { path, records: found }));
            }
            (ExistingDataChoice::SetAside, Some(subdirectory)) => {
                let to = plan.directory.path.join(subdirectory).join(mcctl_metadata::METADATA_DIRECTORY);
                fs::rename(&path, to).map_err(|error| in_the_way(&path, error))?;
            }
            (ExistingDataChoice::SetAside, None) => {}
            (ExistingDataChoice::Discard, _) => fs::remove_dir_all(&path).map_err(|error| in_the_way(&path, error))?,
        }
        Ok(None)
    }

    /// Writes the records to the master's log, and removes their directory when they are durable. A
    /// start that was interrupted in between does the same again.
    ///
    /// # Errors
    /// The log cannot be written, or the directory cannot be removed.
    pub(super) async fn import<E: Env>(self, master: &MasterHandle<E>) -> Result<(), MasterProcessError> {
        let stopped = |error: NotServed| MasterProcessError::RecordsNotImported {
            path: self.path.clone(),
            problem: error.to_string(),
        };
        let put = |(key, value): &(Bytes, Bytes)| MetadataChange::Put {
            key: Cow::Owned(key.to_vec()),
            value: Cow::Owned(value.to_vec()),
        };
        let log = master.metadata_records();
        let mut rest = self.records.as_slice();
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
            return Err(stopped(NotServed::Stopping));
        }
        fs::remove_dir_all(&self.path).map_err(|error| in_the_way(&self.path, error))?;
        tracing::info!(
            records = self.records.len(),
            directory = %self.path.display(),
            "metadata records moved from their own directory into the master's log"
        );
        Ok(())
    }
}

/// A directory that remains would be imported again at the next start, over newer records.
fn in_the_way(path: &Path, error: io::Error) -> MasterProcessError {
    MasterProcessError::RecordsNotImported {
        path: path.to_owned(),
        problem: format!("cannot move or remove it: {error}"),
    }
}
