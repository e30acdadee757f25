//! The log and the snapshots of the metadata service's records.
//!
//! A write is appended while the table is locked, so the log has the order of the table. Its
//! response leaves after [`MetadataJournal::commit`], which waits for the disk. The table is in
//! `store.rs`, and the thread that works in the background in `worker.rs`. With `restore.rs`, a
//! table is read from a data directory.

mod options;
mod restore;
mod signal;
#[cfg(test)]
mod tests;
pub(super) mod worker;

pub use options::MetadataJournalOptions;
pub use restore::{MetadataJournalError, MetadataRestoreReport, read_records};
pub(super) use restore::{RestoredTable, restore};

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use tokio::sync::watch;

use crate::change::{ChangePayload, MetadataChange};
use crate::journal::signal::{WorkerRequests, WorkerSignal, WorkerStop};
use crate::records::TableImage;
use mcctl_base::Unix;
use mcctl_journal::{DataDir, DiskErrorPolicy, JournalError, LogWriter, SnapshotTrailer, SyncMode};

/// The kind of a snapshot's chunk with records.
const RECORDS_CHUNK: u8 = 1;
/// A chunk of a snapshot is complete when it has this size.
const CHUNK_BYTES: usize = 1 << 20;

/// The log of a running service.
pub(super) struct MetadataJournal {
    dir: DataDir,
    log: LogWriter,
    options: MetadataJournalOptions,
    /// Total size of the appended payloads.
    appended_bytes: AtomicU64,
    attempt: Mutex<SnapshotAttempt>,
    /// The error after which the log lacks changes that the table has, or may lack them.
    broken: OnceLock<JournalError>,
    end: OnceLock<JournalEnd>,
    failed: watch::Sender<Option<JournalError>>,
    warned_about_next_file: AtomicBool,
    signal: WorkerSignal,
}

/// How the use of the log ended.
#[derive(Clone, Debug)]
enum JournalEnd {
    /// The directory is invalid, and the service continues without it.
    MemoryOnly,
    /// No more changes are accepted, and the process must stop.
    Failed(JournalError),
}

/// The newest snapshot, and the position of the log when one was last attempted.
#[derive(Clone, Copy, Debug, Default)]
struct SnapshotAttempt {
    written: Option<u64>,
    sequence: u64,
    bytes: u64,
}

impl MetadataJournal {
    /// Begins a log after the records that `restored` was read from.
    ///
    /// # Errors
    /// The disk reports an error.
    pub(super) fn start(
        mut dir: DataDir,
        restored: &RestoredTable,
        options: MetadataJournalOptions,
    ) -> Result<MetadataJournal, JournalError> {
        let log = dir.start_log(&restored.recovery, options.log)?;
        let written = restored.recovery.snapshot.map(|snapshot| snapshot.sequence);
        let sequence = restored.recovery.last_sequence - restored.recovery.records;
        Ok(MetadataJournal {
            dir,
            log,
            options,
            appended_bytes: AtomicU64::new(restored.log_bytes),
            attempt: Mutex::new(SnapshotAttempt { written, sequence, bytes: 0 }),
            broken: OnceLock::new(),
            end: OnceLock::new(),
            failed: watch::Sender::new(None),
            warned_about_next_file: AtomicBool::new(false),
            signal: WorkerSignal::default(),
        })
    }

    /// Appends the changes of one write. Does not wait for the disk. For use with the table locked,
    /// before the changes are applied.
    ///
    /// # Errors
    /// The changes are not in the log and must not be applied.
    pub(super) fn append(&self, changes: &[MetadataChange<'_>], at: Unix) -> Result<(), JournalError> {
        match self.end.get() {
            Some(JournalEnd::MemoryOnly) => return Ok(()),
            Some(JournalEnd::Failed(error)) => return Err(error.clone()),
            None => {}
        }
        let payload = ChangePayload::of(changes);
        match self.log.append(payload.bytes(), at) {
            Ok(_) => {
                self.appended_bytes.fetch_add(payload.bytes().len() as u64, Ordering::Relaxed);
                Ok(())
            }
            Err(error @ (JournalError::LogFull { .. } | JournalError::PayloadTooLarge { .. })) => Err(error),
            Err(error) => {
                let error = self.broken.get_or_init(|| error).clone();
                self.request_work();
                match self.options.on_error {
                    DiskErrorPolicy::Stop => Err(error),
                    // The response waits in `commit` until the directory is invalid.
                    DiskErrorPolicy::ContinueMemoryOnly => Ok(()),
                }
            }
        }
    }

    /// The number of the newest change. For use with the table locked. `None`: the table has
    /// changes that the log does not have.
    pub(super) fn appended(&self) -> Option<u64> {
        let is_complete = self.broken.get().is_none() && self.end.get().is_none();
        is_complete.then(|| self.log.appended())
    }

    /// Whether [`MetadataJournal::commit`] has something to do before a response may leave.
    pub(super) fn needs_commit(&self) -> bool {
        match self.end.get() {
            Some(JournalEnd::MemoryOnly) => false,
            Some(JournalEnd::Failed(_)) => true,
            None => {
                let stored = if self.waits_for_sync() { self.log.durable() } else { self.log.flushed() };
                self.broken.get().is_some() || stored < self.log.appended()
            }
        }
    }

    fn waits_for_sync(&self) -> bool {
        self.options.sync == SyncMode::Always
    }

    /// Stores everything that was appended: in the kernel, and with [`SyncMode::Always`] on the
    /// disk. Waits for the disk.
    ///
    /// # Errors
    /// The disk reports an error, and the service does not continue without it.
    pub(super) fn commit(&self) -> Result<(), JournalError> {
        self.store(self.waits_for_sync())
    }

    /// Stores everything that was appended, on the disk as well if `durable`. An error of the disk
    /// ends the use of the log.
    ///
    /// # Errors
    /// As for [`MetadataJournal::commit`].
    pub(super) fn store(&self, durable: bool) -> Result<(), JournalError> {
        match self.end.get() {
            Some(end) => end.clone().into_result(),
            None => self.try_store(durable).or_else(|error| self.end_after(error)),
        }
    }

    fn try_store(&self, durable: bool) -> Result<(), JournalError> {
        if let Some(error) = self.broken.get() {
            return Err(error.clone());
        }
        let sequence = self.log.appended();
        if durable {
            return self.log.sync(sequence).map(|_| ());
        }
        while self.log.flush(sequence)? < sequence {
            self.log.prepare_next()?;
        }
        Ok(())
    }

    /// Whether the log has changes that are not durable.
    pub(super) fn has_undurable(&self) -> bool {
        self.end.get().is_none() && self.log.durable() < self.log.appended()
    }

    /// Creates the next log file if it will be needed soon. An error is only logged: the log still
    /// has room, and the next call tries again.
    pub(super) fn prepare_next(&self) {
        if self.end.get().is_some() || !self.log.needs_next() {
            return;
        }
        match self.log.prepare_next() {
            Ok(()) => self.warned_about_next_file.store(false, Ordering::Relaxed),
            Err(error) => {
                if !self.warned_about_next_file.swap(true, Ordering::Relaxed) {
                    tracing::warn!(%error, "cannot create the next log file of the metadata records yet; trying again");
                }
            }
        }
    }

    /// Decides what follows an error of the disk. Only the first error counts. Other callers wait
    /// for the decision.
    fn end_after(&self, error: JournalError) -> Result<(), JournalError> {
        let end = self.end.get_or_init(|| {
            if self.options.on_error == DiskErrorPolicy::ContinueMemoryOnly {
                match self.dir.invalidate() {
                    Ok(()) => {
                        tracing::error!(
                            %error,
                            "the metadata records cannot be stored: their data directory is marked as invalid, and the service continues \
                             in memory only"
                        );
                        return JournalEnd::MemoryOnly;
                    }
                    Err(second) => tracing::error!(
                        %error,
                        %second,
                        "the data directory of the metadata records can be neither written nor marked as invalid: the service stops"
                    ),
                }
            }
            JournalEnd::Failed(error)
        });
        if let JournalEnd::Failed(error) = end {
            self.failed.send_replace(Some(error.clone()));
        }
        end.clone().into_result()
    }

    /// Waits until the process must stop because of an error of the disk.
    pub(super) async fn failure(&self) -> JournalError {
        let mut failed = self.failed.subscribe();
        let error = failed.wait_for(Option::is_some).await.ok().and_then(|error| error.clone());
        match error {
            Some(error) => error,
            None => std::future::pending().await,
        }
    }

    /// Whether enough was appended since the last snapshot was attempted.
    pub(super) fn is_snapshot_due(&self) -> bool {
        let attempt = *lock(&self.attempt);
        let bytes = self.appended_bytes.load(Ordering::Relaxed);
        self.end.get().is_none()
            && (bytes - attempt.bytes >= self.options.snapshot_bytes
                || self.log.appended() - attempt.sequence >= self.options.snapshot_changes)
    }

    /// Writes a snapshot of `image`, the table after change `sequence`, unless the newest snapshot
    /// is this one. Waits for the disk. The log remains usable after an error, unless it reports
    /// the same error.
    ///
    /// # Errors
    /// The disk reports an error. Then the previous snapshot and the log are still complete.
    pub(super) fn write_snapshot(&self, sequence: u64, image: TableImage, at: Unix) -> Result<(), JournalError> {
        {
            let mut attempt = lock(&self.attempt);
            if attempt.written == Some(sequence) || sequence == 0 {
                return Ok(());
            }
            attempt.sequence = sequence;
            attempt.bytes = self.appended_bytes.load(Ordering::Relaxed);
        }
        let records = image.into_records();
        let mut snapshot = self.dir.begin_snapshot(sequence, at)?;
        let mut payload = ChangePayload::new();
        for (key, value) in &records {
            payload.push_put(key, value);
            if payload.bytes().len() >= CHUNK_BYTES {
                snapshot.chunk(RECORDS_CHUNK, payload.bytes())?;
                payload = ChangePayload::new();
            }
        }
        snapshot.chunk(RECORDS_CHUNK, payload.bytes())?;
        let summary = SnapshotTrailer { items: records.len() as u64, digest: restore::digest(&records) };
        self.dir.publish_snapshot(snapshot, summary, &self.log)?;
        lock(&self.attempt).written = Some(sequence);
        Ok(())
    }

    /// Makes the worker store what was appended.
    pub(super) fn request_work(&self) {
        self.signal.request(|requests| requests.changed = true);
    }

    /// Makes the worker end.
    pub(super) fn request_stop(&self, stop: WorkerStop) {
        self.signal.request(|requests| requests.stop = Some(requests.stop.unwrap_or(stop)));
    }

    /// Waits for a request to the worker, or until `limit` has passed.
    fn next_work(&self, limit: Option<Duration>) -> WorkerRequests {
        self.signal.next(limit)
    }

    /// When the log is synced.
    pub(super) fn sync_mode(&self) -> SyncMode {
        self.options.sync
    }
}

impl JournalEnd {
    fn into_result(self) -> Result<(), JournalError> {
        match self {
            JournalEnd::MemoryOnly => Ok(()),
            JournalEnd::Failed(error) => Err(error),
        }
    }
}

/// Locks `mutex`. A panic of another thread leaves nothing incomplete in what these mutexes
/// protect.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
