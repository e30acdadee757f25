//! The sizes of the log of metadata records.

use crate::VALUE_BYTES_MAX;
use crate::records::KEY_BYTES_MAX;
use mcctl_journal::{CommitLogOptions, LogConfig};

/// These options, with the sizes for metadata records.
pub(crate) fn record_options(options: CommitLogOptions) -> CommitLogOptions {
    let log = LogConfig { file_bytes: RECORDS_FILE_BYTES, buffer_bytes: RECORDS_BUFFER_BYTES };
    CommitLogOptions { log, snapshot_log_bytes: SNAPSHOT_AFTER_BYTES, ..options }
}

/// A snapshot is written after this many bytes of changes.
const SNAPSHOT_AFTER_BYTES: u64 = 8 << 20;
/// Size of a log file. The largest write fits, and the files of a service with few records take
/// little room.
const RECORDS_FILE_BYTES: u64 = 20 << 20;
const RECORDS_BUFFER_BYTES: usize = 64 << 20;
/// Maximum size of a payload: the format, and two changes of a name that changes owners.
const PAYLOAD_BYTES_MAX: usize = 1 + 2 * (9 + KEY_BYTES_MAX) + VALUE_BYTES_MAX;
const _: () =
    assert!(PAYLOAD_BYTES_MAX as u64 + 4096 < RECORDS_FILE_BYTES && PAYLOAD_BYTES_MAX + 4096 < RECORDS_BUFFER_BYTES);
