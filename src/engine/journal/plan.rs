//! The start of a service with a data directory: which one, and what happens to the data in it.

use std::fs;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use crate::data_dir::{DataDir, DataDirOptions, ExistingData};
use crate::disk::DiskStorage;
use crate::error::JournalError;
use crate::uuid::Uuid;

/// A data directory that a service uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DataDirPlan {
    pub path: PathBuf,
    /// The cluster that the directory must belong to.
    pub cluster_id: String,
    pub existing: ExistingDataChoice,
}

/// What happens to data that is in the directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExistingDataChoice {
    Restore,
    /// Move it to a subdirectory, and start empty.
    SetAside,
    /// Remove it, and start empty.
    Discard,
}

impl DataDirPlan {
    /// Opens the directory. Existing data is kept, moved or removed, as planned. `date` is the name
    /// of the subdirectory for data that is moved, and `new_uuid` the UUID of the directory, if it
    /// is new.
    ///
    /// # Errors
    /// The errors of [`DataDir::open`], and `BootId`.
    pub fn open(&self, date: &str, new_uuid: Uuid) -> Result<DataDir, JournalError> {
        let storage = Arc::new(DiskStorage::open(&self.path)?);
        let options = DataDirOptions {
            cluster_id: &self.cluster_id,
            boot_id: boot_id().map_err(|cause| JournalError::BootId { cause: Arc::new(cause) })?,
            new_uuid,
            existing: match self.existing {
                ExistingDataChoice::Restore => ExistingData::Keep,
                ExistingDataChoice::SetAside => ExistingData::SetAside { date },
                ExistingDataChoice::Discard => ExistingData::Discard,
            },
        };
        DataDir::open(storage, &options)
    }
}

/// The file with the kernel's boot ID.
pub const BOOT_ID_PATH: &str = "/proc/sys/kernel/random/boot_id";

fn boot_id() -> io::Result<Uuid> {
    let text = fs::read_to_string(BOOT_ID_PATH)?;
    text.parse().map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}
