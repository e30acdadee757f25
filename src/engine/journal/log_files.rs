//! The files of a running log: the one that is written, the next one, and those before.

use std::collections::VecDeque;
use std::mem;
use std::sync::Arc;

use crate::flushed_mark::FlushedMark;
use crate::log_file::{KnownLogFile, LogFile};
use crate::storage::JournalFile;

/// The files, and the frames with which the next write begins.
pub(super) struct LogFiles {
    pub current: LogFile,
    /// Created ahead of need by [`LogWriter::prepare_next`](super::LogWriter::prepare_next).
    pub next: Option<LogFile>,
    /// Full files with bytes that are not known to be durable.
    pub unsynced: Vec<(String, Arc<dyn JournalFile>)>,
    /// All files before `current`.
    pub older: VecDeque<KnownLogFile>,
    /// Frames that did not fit into `current` while `next` was missing.
    pub pending: Vec<u8>,
    pub mark: FlushedMark,
}

impl LogFiles {
    /// The log continues in `current`, after the `older` files.
    pub(super) fn new(current: LogFile, older: &[KnownLogFile], mark: FlushedMark) -> LogFiles {
        let older = older.iter().copied().collect();
        LogFiles { current, next: None, unsynced: Vec::new(), older, pending: Vec::new(), mark }
    }

    /// Continues in the next file. `false`: it does not exist yet.
    pub(super) fn rotate(&mut self) -> bool {
        let Some(next) = self.next.take() else { return false };
        let full = mem::replace(&mut self.current, next);
        self.older.push_back(KnownLogFile { number: full.number, first: full.first });
        self.unsynced.push((full.name, full.file));
        true
    }

    /// Number of bytes that fit into the files that exist.
    pub(super) fn room(&self) -> u64 {
        self.current.room() + self.next.as_ref().map_or(0, LogFile::room)
    }

    /// Whether the next file should be created soon.
    pub(super) fn needs_next(&self) -> bool {
        self.next.is_none() && self.current.offset >= self.current.size / 2
    }
}
