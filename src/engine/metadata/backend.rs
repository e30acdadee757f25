//! Where a metadata service keeps its records: in memory, in a data directory of its own, or in the
//! state of a master.

use bytes::Bytes;
use futures_util::future::{BoxFuture, ready};

use crate::change::MetadataChange;
use crate::records::{MetadataTable, SharedTable};
use mcctl_journal::JournalError;

/// Decides on a write, with the table locked. The caller applies the changes that it returns, in
/// this order.
pub type TablePlan<'a> = Box<dyn FnOnce(&mut MetadataTable) -> Vec<MetadataChange<'a>> + Send + 'a>;

/// The records of a metadata service.
pub trait RecordBackend: Send + Sync + 'static {
    /// The record under `key`, for a response.
    fn get<'a>(&'a self, key: &'a [u8]) -> BoxFuture<'a, Result<Option<Bytes>, NotServed>>;

    /// Makes the changes of `plan`. Returns when a response may report the changes, or what `plan`
    /// has found. They are then stored as this backend requires before a response.
    ///
    /// # Errors
    /// After [`NotServed::Unknown`], the changes may have been made. After the other errors, they
    /// have not.
    fn change<'a>(&'a self, plan: TablePlan<'a>) -> BoxFuture<'a, Result<(), NotServed>>;

    /// The record under `key` in this process's copy of the records, if the copy was in sync when
    /// its state was last received. The inner `None`: there is no such record. For reads that no
    /// leader can answer.
    fn last_known(&self, _key: &[u8]) -> Option<Option<Bytes>> {
        None
    }

    /// Whether this process serves requests, or can take over from the one that does.
    fn is_ready(&self) -> bool {
        true
    }

    /// The records as they are now. They may show changes that are not stored yet.
    fn table(&self) -> SharedTable;

    /// Waits until the process must stop, because changes can no longer be stored.
    fn failed(&self) -> BoxFuture<'_, JournalError> {
        Box::pin(std::future::pending())
    }

    /// Makes all changes durable, before the process ends.
    ///
    /// # Errors
    /// The disk reports an error, now or before, and the service does not continue without it.
    fn close(&self) -> BoxFuture<'_, Result<(), JournalError>> {
        Box::pin(ready(Ok(())))
    }
}

/// Why a backend does not serve a request.
#[derive(Clone, Debug, thiserror::Error)]
pub enum NotServed {
    #[error("the service is starting")]
    Starting,
    #[error("the service is stopping")]
    Stopping,
    #[error("metadata not stored: {0}")]
    Journal(#[from] JournalError),
    /// Changes wait for a hand-over or an election, or for the disk of the log.
    #[error("changes wait for a hand-over, or for the disk of the log")]
    Waiting,
    /// Another master serves this request.
    #[error("this master does not lead the cluster, and {}", leader_text(leader))]
    NotLeading {
        /// The address of its metadata service, for example `http://10.0.0.1:8080`; `None` if it is
        /// not known.
        leader: Option<String>,
    },
    /// The request could not be passed on to the master that leads.
    #[error("this master does not lead the cluster, and cannot forward the request: {problem}")]
    NotForwarded { problem: String },
    /// The write may have taken effect, or may still take effect.
    #[error("the result of this request is not known: {cause}")]
    Unknown {
        /// Why it may not be stored.
        cause: String,
    },
}

fn leader_text(leader: &Option<String>) -> String {
    match leader {
        Some(leader) => format!("the metadata service of the leader ({leader}) does not answer"),
        None => "the metadata service of the leader is not known".to_owned(),
    }
}

/// Records that are only in memory.
impl RecordBackend for SharedTable {
    fn get<'a>(&'a self, key: &'a [u8]) -> BoxFuture<'a, Result<Option<Bytes>, NotServed>> {
        Box::pin(ready(Ok(self.lock().get(key))))
    }

    fn change<'a>(&'a self, plan: TablePlan<'a>) -> BoxFuture<'a, Result<(), NotServed>> {
        let mut table = self.lock();
        for change in plan(&mut table) {
            table.apply(&change);
        }
        Box::pin(ready(Ok(())))
    }

    fn table(&self) -> SharedTable {
        self.clone()
    }
}
