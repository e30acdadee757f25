//! The records of the metadata service, as a part of the master's state.
//!
//! They are stored, replicated and saved with the state, so that a restarted or another master has
//! them.

use bytes::Bytes;

use crate::record::MasterRecord;
use crate::record::buffer::RepeatedCall;
use crate::state::MasterState;
use mcctl_metadata::VALUE_BYTES_MAX;
use mcctl_metadata::backend::TablePlan;
use mcctl_metadata::change::MetadataChange;
use mcctl_metadata::records::{KEY_BYTES_MAX, SharedTable};

impl MasterState {
    /// Makes the changes of `plan`, and adds them to the change in progress. If there are none, the
    /// response still waits for the changes that `plan` may have seen.
    pub(super) fn change_metadata(&mut self, plan: TablePlan<'_>) {
        let shared = self.metadata.clone();
        let mut table = shared.lock();
        let changes = plan(&mut table);
        if changes.is_empty() {
            return self.show_earlier_changes();
        }
        for change in changes {
            self.record(&match &change {
                MetadataChange::Put { key, value } => MasterRecord::MetadataPut { key, value },
                MetadataChange::Remove { key } => MasterRecord::MetadataRemoved { key },
            });
            table.apply(&change);
        }
    }

    /// The record of the metadata service under `key`. The response waits for the change that has
    /// made it.
    pub(super) fn metadata_record(&mut self, key: &[u8]) -> Option<Bytes> {
        self.show_earlier_changes();
        self.metadata.lock().get(key)
    }

    /// The response waits for all changes so far.
    fn show_earlier_changes(&mut self) {
        self.repeat(RepeatedCall { needs_sync: false, needs_standby: true });
    }

    /// The records of the metadata service. Clones stay those of this state.
    pub(super) fn metadata(&self) -> &SharedTable {
        &self.metadata
    }
}

/// A change is one frame of the log: a name that changes owners, with keys and a value of the
/// maximum size.
const CHANGE_BYTES_MAX: usize = VALUE_BYTES_MAX + 3 * (KEY_BYTES_MAX + 16);
const _: () = assert!(CHANGE_BYTES_MAX as u64 + 4096 < mcctl_base::size::LOG_FILE_BYTES);
