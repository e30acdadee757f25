//! How a metadata service uses its data directory.

use crate::VALUE_BYTES_MAX;
use crate::records::KEY_BYTES_MAX;
use mcctl_journal::{DiskErrorPolicy, LogConfig, SyncMode};

/// How a metadata service uses its data directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MetadataJournalOptions {
    pub sync: SyncMode,
    pub on_error: DiskErrorPolicy,
    pub log: LogConfig,
    /// A snapshot is written after this many bytes of changes.
    pub snapshot_bytes: u64,
    /// A snapshot is written after this many changes.
    pub snapshot_changes: u64,
}

impl Default for MetadataJournalOptions {
    fn default() -> MetadataJournalOptions {
        MetadataJournalOptions {
            sync: SyncMode::default(),
            on_error: DiskErrorPolicy::default(),
            log: LogConfig { file_bytes: RECORDS_FILE_BYTES, buffer_bytes: RECORDS_BUFFER_BYTES },
            snapshot_bytes: 8 << 20,
            snapshot_changes: 10_000,
        }
    }
}

/// Size of a log file. The largest write fits, and the files of a service with few records take
/// little room.
const RECORDS_FILE_BYTES: u64 = 20 << 20;
const RECORDS_BUFFER_BYTES: usize = 64 << 20;
/// Maximum size of a payload: the format, and two changes of a name that changes owners.
const PAYLOAD_BYTES_MAX: usize = 1 + 2 * (9 + KEY_BYTES_MAX) + VALUE_BYTES_MAX;
const _: () =
    assert!(PAYLOAD_BYTES_MAX as u64 + 4096 < RECORDS_FILE_BYTES && PAYLOAD_BYTES_MAX + 4096 < RECORDS_BUFFER_BYTES);
