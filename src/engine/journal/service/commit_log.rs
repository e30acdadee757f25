//! The log of a running service: changes are appended while the state is locked, and responses are
//! sent when their changes are stored.
//!
//! [`CommitLog::append`] is called before the state is unlocked, and [`CommitLog::store`] before
//! the response is sent. In every mode, the future that `store` returns passes all changes to the
//! kernel, in one write for all connections whose requests the worker has processed by then. It
//! waits for the disk only for changes that must be durable, and while no log file has room. With
//! `--fsync always`, all changes must be durable. `log_thread` does that waiting.
//!
//! After an error of the disk, no response is sent until `log_thread` has decided: the process
//! stops, or it continues without a log.

use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard};
use std::task::Poll;
use std::time::Duration;

use tokio::sync::watch;

use crate::data_dir::DataDir;
use crate::error::JournalError;
use crate::options::SyncMode;
use crate::service::log_room::LogRoom;
use crate::service::options::{CommitLogOptions, LogSubject};
use crate::service::snapshot_mark::{FoundData, SnapshotMark};
use crate::storage::DiskSpace;
use crate::writer::LogWriter;
use mcctl_base::{ByteSize, LatencyHistogram, Mono, Unix};

/// The log, and the values that its threads share.
pub struct CommitLog {
    pub dir: DataDir,
    pub writer: LogWriter,
    pub options: CommitLogOptions,
    pub(super) subject: LogSubject,
    /// Set by the first error of the disk. From then on, no response is sent until the progress
    /// leaves `Working`.
    failed: AtomicBool,
    /// The service continues without the log.
    memory_only: AtomicBool,
    /// The requests that wait for room.
    pub room: LogRoom,
    requests: Mutex<LogRequests>,
    /// Whether the next file was requested from the log thread.
    is_next_requested: AtomicBool,
    /// Wakes the log thread.
    log_wake: Condvar,
    /// Wakes the snapshot thread.
    snapshot_wake: Condvar,
    progress: watch::Sender<LogProgress>,
    /// Size of the log files that the start has read, in bytes.
    found_bytes: u64,
    /// Total size of the appended payloads, in bytes. Changed with the state locked.
    appended_bytes: AtomicU64,
    pub(super) counts: LogCounts,
    /// The last snapshot, written or attempted.
    last_snapshot: Mutex<SnapshotMark>,
    /// The file system when it was last examined.
    space: Mutex<Option<DiskSpace>>,
    /// A warning was logged that the disk is almost full.
    is_short_of_space: AtomicBool,
}

/// Counters for the metrics.
#[derive(Debug, Default)]
pub(super) struct LogCounts {
    pub syncs: LatencyHistogram,
    pub snapshots: AtomicU64,
    pub snapshot_failures: AtomicU64,
    pub snapshot_us: AtomicU64,
    pub snapshot_objects: AtomicU64,
}

/// The requests to the background threads.
#[derive(Debug, Default)]
struct LogRequests {
    /// A response waits until the progress shows that this change is durable.
    sync: u64,
    /// A response waits until the progress shows that this change is in the kernel. No log file had
    /// room for it.
    flush: u64,
    /// A request waits until the log has room for changes.
    room: bool,
    /// The next file should be created.
    next_file: bool,
    failure: Option<JournalError>,
    stopping: bool,
}

/// The changes that are stored.
#[derive(Clone, Debug)]
pub(super) struct LogProgress {
    flushed: u64,
    durable: u64,
    outcome: LogOutcome,
}

/// Whether changes are stored.
#[derive(Clone, Debug)]
pub enum LogOutcome {
    Working,
    MemoryOnly,
    /// The process must stop, because of this error.
    Failed(JournalError),
}

/// The next task of the log thread.
#[derive(Debug)]
pub enum LogWork {
    /// Sync up to this change, because responses wait for it.
    Sync(u64),
    /// Responses wait for a log file with room, or requests for room in the log.
    MakeRoom,
    /// No request came within the period.
    Periodic,
    Fail(JournalError),
    Stop,
}

impl AsRef<CommitLog> for CommitLog {
    fn as_ref(&self) -> &CommitLog {
        self
    }
}

impl CommitLog {
    /// The log that `writer` continues at `now` after the data that was `found` in `dir`.
    pub fn new(
        dir: DataDir,
        writer: LogWriter,
        options: CommitLogOptions,
        subject: LogSubject,
        found: &FoundData,
        now: Mono,
    ) -> CommitLog {
        let flushed = writer.flushed();
        let durable = writer.durable();
        let outcome = LogOutcome::Working;
        CommitLog {
            space: Mutex::new(dir.space()),
            dir,
            writer,
            options,
            subject,
            failed: AtomicBool::new(false),
            memory_only: AtomicBool::new(false),
            is_short_of_space: AtomicBool::new(false),
            room: LogRoom::new(options.stall_timeout),
            requests: Mutex::default(),
            is_next_requested: AtomicBool::new(false),
            log_wake: Condvar::new(),
            snapshot_wake: Condvar::new(),
            progress: watch::Sender::new(LogProgress { flushed, durable, outcome }),
            found_bytes: found.log_bytes,
            appended_bytes: AtomicU64::new(0),
            counts: LogCounts::default(),
            last_snapshot: Mutex::new(SnapshotMark::restored(found, &options, now)),
        }
    }

    /// Appends change number `sequence`, which must be the next one and fit into a file. Call it
    /// with the state locked.
    #[inline]
    pub fn append(&self, sequence: u64, payload: &[u8], now: Unix) {
        self.count_appended(payload);
        match self.writer.append_admitted(payload, now) {
            Ok(number) => debug_assert_eq!(number, sequence, "changes are numbered in order"),
            // The state contains a change that the log does not.
            Err(error) => self.fail(error),
        }
    }

    /// Appends a change before it is made, for a service that does not wait for
    /// [`has_room`](Self::has_room). Call it with the state locked. If the log is unusable and
    /// `log_thread` has not decided yet, the change can be made, and its response waits for the
    /// decision.
    ///
    /// # Errors
    /// The change is not in the log and must not be made: `LogFull`, `PayloadTooLarge`, or the
    /// error because of which the process must stop.
    pub fn try_append(&self, payload: &[u8], now: Unix) -> Result<(), JournalError> {
        if self.has_failed() {
            return self.outcome().into_result();
        }
        match self.writer.append(payload, now) {
            Ok(_) => self.count_appended(payload),
            Err(error @ (JournalError::LogFull { .. } | JournalError::PayloadTooLarge { .. })) => return Err(error),
            Err(error) => self.fail(error),
        }
        Ok(())
    }

    /// The state is locked, so no other thread writes the number.
    #[inline]
    fn count_appended(&self, payload: &[u8]) {
        let bytes = self.appended_bytes.load(Ordering::Relaxed) + payload.len() as u64;
        self.appended_bytes.store(bytes, Ordering::Relaxed);
    }

    /// Waits until everything that was appended is stored as the sync mode requires it before a
    /// response.
    ///
    /// # Errors
    /// The error of the disk because of which the process must stop.
    pub async fn commit(&self) -> Result<(), JournalError> {
        match self.unstored(self.sync_before_response(self.writer.appended())) {
            Some((last, sync)) if !self.store(last, sync).await => Err(self.failure().await),
            _ => Ok(()),
        }
    }

    /// The last changes that must be in the kernel and on the disk before a response is sent that
    /// requires durable changes up to `sync`; `None` if they are. The response may show changes of
    /// other calls, so it waits until all of them are in the kernel.
    #[inline]
    pub fn unstored(&self, sync: u64) -> Option<(u64, u64)> {
        let last = self.writer.appended();
        if self.memory_only() {
            return None;
        }
        let is_stored = self.writer.flushed() >= last && self.writer.durable() >= sync;
        if is_stored && !self.has_failed() {
            return None;
        }
        Some((last, sync))
    }

    /// Stores the changes of another process up to `last`, before they are acknowledged to it.
    /// Returns false if they cannot be stored.
    pub async fn store_copied(&self, last: u64) -> bool {
        self.memory_only() || self.store(last, self.sync_before_response(last)).await
    }

    /// Like [`store_copied`](Self::store_copied), without waiting. Returns false if that is not
    /// possible.
    #[inline]
    pub fn try_store_copied(&self, last: u64) -> bool {
        self.memory_only() || self.try_store(last, self.sync_before_response(last))
    }

    /// The last change that must be durable before a response that follows from the changes up to
    /// `last`, or 0.
    #[inline]
    fn sync_before_response(&self, last: u64) -> u64 {
        if self.options.sync == SyncMode::Always { last } else { 0 }
    }

    /// Ends the use of the log. Responses no longer wait for it.
    pub fn close(&self) {
        self.publish_outcome(LogOutcome::MemoryOnly);
        self.stop_threads();
    }

    /// Passes all changes to the kernel, and waits until it has those up to `last`, and those up to
    /// `sync` are durable. Returns false if they cannot be stored.
    pub async fn store(&self, last: u64, sync: u64) -> bool {
        run_ready_tasks().await;
        self.try_store(last, sync) || self.wait(last, sync).await
    }

    /// Passes all changes to the kernel. Returns true if it then has those up to `last`, and those
    /// up to `sync` are durable.
    fn try_store(&self, last: u64, sync: u64) -> bool {
        if self.has_failed() {
            return false;
        }
        match self.writer.flush(last) {
            Ok(flushed) => {
                self.request_next_file();
                flushed >= last && self.writer.durable() >= sync
            }
            Err(error) => {
                self.fail(error);
                false
            }
        }
    }

    /// Waits until all changes up to `last` are in the kernel, and those up to `sync` are durable.
    async fn wait(&self, last: u64, sync: u64) -> bool {
        let mut progress = self.progress.subscribe();
        {
            let mut requests = self.requests();
            requests.sync = requests.sync.max(sync);
            requests.flush = requests.flush.max(last);
        }
        self.log_wake.notify_one();
        let is_stored = |progress: &LogProgress| match progress.outcome {
            // Changes after an error are not in the log, so the progress does not include them.
            LogOutcome::Working => !self.has_failed() && progress.flushed >= last && progress.durable >= sync,
            LogOutcome::MemoryOnly | LogOutcome::Failed(_) => true,
        };
        let stored = progress.wait_for(is_stored).await;
        stored.is_ok_and(|progress| !matches!(progress.outcome, LogOutcome::Failed(_)))
    }

    /// Requests the next file from the log thread if it will be needed soon. Without a request, the
    /// thread checks this at its next period.
    fn request_next_file(&self) {
        if self.writer.needs_next() {
            if !self.is_next_requested.swap(true, Ordering::Relaxed) {
                self.requests().next_file = true;
                self.log_wake.notify_one();
            }
        } else if self.is_next_requested.load(Ordering::Relaxed) {
            self.is_next_requested.store(false, Ordering::Relaxed);
        }
    }

    /// Requests room for changes from the log thread.
    pub(super) fn request_room(&self) {
        self.requests().room = true;
        self.log_wake.notify_one();
    }

    /// Receives which changes are stored. An update is also sent when the log has room again.
    pub(super) fn subscribe(&self) -> watch::Receiver<LogProgress> {
        self.progress.subscribe()
    }

    /// Whether responses wait for the log thread.
    pub(super) fn has_waiting_responses(&self) -> bool {
        let requests = self.requests();
        let (flushed, durable) = self.published();
        requests.sync > durable || requests.flush > flushed
    }

    /// Reports an error after which the log is unusable.
    #[cold]
    pub fn fail(&self, error: JournalError) {
        self.failed.store(true, Ordering::Release);
        self.requests().failure.get_or_insert(error);
        self.log_wake.notify_one();
    }

    /// Waits for work, for at most `period`.
    pub fn next_work(&self, period: Duration) -> LogWork {
        let mut requests = self.requests();
        // A wait of no length would still cost a system call.
        let mut is_over = period.is_zero();
        loop {
            if let Some(error) = requests.failure.take() {
                return LogWork::Fail(error);
            }
            // A snapshot, or the commit of another thread, may have stored the changes. The
            // responses still wait for the progress.
            let (flushed, durable) = self.published();
            if std::mem::take(&mut requests.room) {
                return LogWork::MakeRoom;
            }
            if requests.sync > durable {
                return LogWork::Sync(requests.sync);
            }
            if requests.flush > flushed {
                return LogWork::MakeRoom;
            }
            if requests.stopping {
                return LogWork::Stop;
            }
            if is_over || std::mem::take(&mut requests.next_file) {
                return LogWork::Periodic;
            }
            let (guard, result) = self.log_wake.wait_timeout(requests, period).expect(NO_PANIC);
            requests = guard;
            is_over = result.timed_out();
        }
    }

    /// Waits for at most `period`. Returns true when the service stops.
    pub(super) fn wait_to_snapshot(&self, period: Duration) -> bool {
        let waited = self.snapshot_wake.wait_timeout_while(self.requests(), period, |requests| !requests.stopping);
        waited.expect(NO_PANIC).0.stopping
    }

    /// Examines the free space of the file system. It may wait for the disk, so requests for
    /// metrics use the last result.
    pub(super) fn examine_space(&self) {
        let found = self.dir.space();
        *self.space() = found;
        let Some(found) = found else { return };
        let needed = self.options.space_needed(self.last_snapshot().bytes);
        let is_short = found.free < needed;
        if is_short && !self.is_short_of_space.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                "the data directory's disk is almost full: {} free. Until the next snapshot is complete, {} may need {}. On a full \
                 disk, it stops, or continues without the directory (--on-disk-error)",
                ByteSize(found.free),
                self.subject.service,
                ByteSize(needed)
            );
        }
        // A little more, so that a disk at the limit does not repeat the warning.
        if found.free > needed + needed / 8 {
            self.is_short_of_space.store(false, Ordering::Relaxed);
        }
    }

    pub(super) fn space(&self) -> MutexGuard<'_, Option<DiskSpace>> {
        self.space.lock().expect(NO_PANIC)
    }

    /// Whether the service stops.
    pub(super) fn is_stopping(&self) -> bool {
        self.requests().stopping
    }

    /// The last snapshot, for the snapshot thread.
    pub(super) fn last_snapshot(&self) -> MutexGuard<'_, SnapshotMark> {
        self.last_snapshot.lock().expect(NO_PANIC)
    }

    /// Ends the background threads.
    pub fn stop_threads(&self) {
        self.requests().stopping = true;
        self.log_wake.notify_one();
        self.snapshot_wake.notify_one();
    }

    /// Reports to the waiting responses which changes are stored.
    pub(super) fn publish_progress(&self) {
        let flushed = self.writer.flushed();
        let durable = self.writer.durable();
        self.progress.send_modify(|progress| (progress.flushed, progress.durable) = (flushed, durable));
    }

    /// The last changes that the waiting responses see as flushed and as durable.
    fn published(&self) -> (u64, u64) {
        let progress = self.progress.borrow();
        (progress.flushed, progress.durable)
    }

    /// Ends the use of the log.
    pub(super) fn publish_outcome(&self, outcome: LogOutcome) {
        self.failed.store(true, Ordering::Release);
        if matches!(outcome, LogOutcome::MemoryOnly) {
            self.memory_only.store(true, Ordering::Release);
        }
        self.progress.send_modify(|progress| progress.outcome = outcome);
    }

    /// Whether changes are stored.
    pub fn outcome(&self) -> LogOutcome {
        self.progress.borrow().outcome.clone()
    }

    /// Whether the service continues without the log.
    #[inline]
    pub fn memory_only(&self) -> bool {
        self.memory_only.load(Ordering::Acquire)
    }

    /// Whether an error of the disk has made the log unusable.
    #[inline]
    pub fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Acquire)
    }

    /// Waits until the process must stop because of an error of the disk.
    pub async fn failure(&self) -> JournalError {
        let mut progress = self.progress.subscribe();
        loop {
            if let LogOutcome::Failed(error) = &progress.borrow_and_update().outcome {
                return error.clone();
            }
            if progress.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    /// Total size of the changes that this process has appended, in bytes.
    pub(super) fn appended_bytes(&self) -> u64 {
        self.appended_bytes.load(Ordering::Relaxed)
    }

    /// Size of the log, in bytes, as if nothing had been removed since the start.
    pub fn log_bytes(&self) -> u64 {
        self.found_bytes + self.appended_bytes()
    }

    fn requests(&self) -> MutexGuard<'_, LogRequests> {
        self.requests.lock().expect(NO_PANIC)
    }
}

impl LogOutcome {
    /// The error because of which the process must stop, if there is one.
    fn into_result(self) -> Result<(), JournalError> {
        match self {
            LogOutcome::Working | LogOutcome::MemoryOnly => Ok(()),
            LogOutcome::Failed(error) => Err(error),
        }
    }
}

/// Lets the worker run its other tasks that are ready. Their changes are then passed to the kernel
/// with those of this one, in one write. Unlike [`tokio::task::yield_now`], it does not make the
/// worker look for new input first, which costs a system call.
async fn run_ready_tasks() {
    let mut is_second = false;
    poll_fn(|context| {
        if std::mem::replace(&mut is_second, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

const NO_PANIC: &str = "no thread panics while it has this locked";
