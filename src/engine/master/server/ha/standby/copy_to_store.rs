//! A copy that has replaced another one, and is being stored in the data directory.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::apply::StandbyState;
use crate::record::DataFormat;
use crate::server::ha::disk::copy_note::CopyNote;
use crate::server::ha::disk::{EndedLog, HaDisk};
use mcctl_journal::JournalError;
use mcctl_sys::env::Env;

/// A copy that is handed over to a thread, which stores it in the data directory.
pub(in crate::server::ha) struct CopyToStore {
    pub standby: Box<StandbyState>,
    /// The number of the copy.
    pub generation: u64,
    /// The last change that it contains.
    pub applied: u64,
    pub note: CopyNote,
    /// The copy is discarded, or needed for something else.
    pub is_cancelled: Arc<AtomicBool>,
}

impl CopyToStore {
    /// Stores the copy in the directory, whose log has `ended`, unless that is cancelled. Waits for
    /// the disk.
    ///
    /// # Errors
    /// The disk reports an error.
    pub(crate) fn store<E: Env>(
        &mut self,
        disk: &HaDisk,
        ended: EndedLog,
        env: &E,
        format: DataFormat,
        number: u64,
    ) -> Result<(), JournalError> {
        let is_cancelled = &self.is_cancelled;
        if is_cancelled.load(Ordering::Relaxed) {
            return Ok(());
        }
        let standby = &mut self.standby;
        standby.begin_snapshot(env.now(), format);
        let slices = |slots| if is_cancelled.load(Ordering::Relaxed) { None } else { standby.snapshot_slots(slots) };
        let begun = disk.begin(ended, env, slices, self.applied, self.note, number);
        self.standby.cancel_snapshot();
        begun
    }
}
