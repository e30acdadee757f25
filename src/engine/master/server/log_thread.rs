//! The thread that waits for the disk: it syncs the log, creates the next log file ahead of need,
//! and decides whether the master continues after an error.

use std::ops::Deref;
use std::time::Duration;

use crate::server::log::{LogOutcome, LogWork, MasterLog};
use crate::server::shared::MasterShared;
use mcctl_base::Mono;
use mcctl_journal::{DiskErrorPolicy, JournalError, SyncMode};
use mcctl_sys::env::{Env, ThreadWork};

/// Maximum time between two checks whether the log needs another file.
const PERIOD_MAX: Duration = Duration::from_millis(50);
/// Maximum time for which freed memory waits for a sync, in every mode.
const FREED_MEMORY_PERIOD: Duration = Duration::from_secs(1);
/// Time between two attempts to create the next log file.
const NEXT_FILE_RETRY: Duration = Duration::from_secs(1);

/// Serves the log until the master stops, or the log is unusable. `S` and `L` are references to the
/// state and its log.
pub(super) struct LogThread<S, L> {
    shared: S,
    log: L,
    /// The state has received that the changes up to this one are durable.
    reported: u64,
    last_sync: Mono,
    /// Earliest time for the next attempt to create a log file, after an error.
    retry_at: Mono,
}

impl<E, S, L> ThreadWork for LogThread<S, L>
where
    E: Env,
    S: Deref<Target = MasterShared<E>> + Send + 'static,
    L: Deref<Target = MasterLog> + Send + 'static,
{
    fn step(&mut self, may_wait: bool) -> bool {
        let period = match self.log.options.sync {
            _ if !may_wait => Duration::ZERO,
            SyncMode::Interval(interval) => interval.min(PERIOD_MAX),
            SyncMode::Always | SyncMode::Never => PERIOD_MAX,
        };
        let work = self.log.next_work(period);
        self.run(work)
    }
}

impl<E, S, L> LogThread<S, L>
where
    E: Env,
    S: Deref<Target = MasterShared<E>>,
    L: Deref<Target = MasterLog>,
{
    /// Serves `log`, whose changes are those of `shared`.
    pub(super) fn new(shared: S, log: L) -> LogThread<S, L> {
        let last_sync = shared.env.now();
        LogThread { shared, log, reported: 0, last_sync, retry_at: Mono::ZERO }
    }

    /// Performs this task. Returns false if it was the last: the master stops, or the log is
    /// unusable.
    pub(super) fn run(&mut self, work: LogWork) -> bool {
        self.log.room.begin_work(self.shared.env.now());
        let done = match work {
            LogWork::Sync(sequence) => self.sync(sequence),
            LogWork::MakeRoom => self.make_room(),
            LogWork::Periodic => self.periodic(),
            LogWork::Fail(error) => Err(error),
            LogWork::Stop => return false,
        };
        self.log.room.end_work();
        match done {
            Ok(()) => {
                if self.log.has_room() {
                    self.log.room.end_waits(self.shared.env.now());
                }
                true
            }
            Err(error) => {
                handle_disk_error(&self.shared, &self.log, error);
                false
            }
        }
    }

    fn sync(&mut self, sequence: u64) -> Result<(), JournalError> {
        let began = self.shared.env.now();
        let before = self.log.writer.durable();
        let durable = self.log.writer.sync(sequence)?;
        self.last_sync = self.shared.env.now();
        if durable > before {
            self.log.counts.syncs.record(self.last_sync.since(began), 1);
        }
        self.log.publish_progress();
        self.report_durable();
        Ok(())
    }

    /// Reports to the state which changes are durable, so that freed memory becomes available.
    fn report_durable(&mut self) {
        let durable = self.log.writer.durable();
        if durable > self.reported {
            self.reported = durable;
            if self.shared.ha.is_some() {
                // The standbys must have the changes as well, so the driver reports this to the
                // state.
                return;
            }
            self.shared.with_guarded(|guarded, _, _| guarded.state.durable(durable));
        }
    }

    fn make_room(&mut self) -> Result<(), JournalError> {
        self.log.writer.make_room()?;
        self.log.room.end_waits(self.shared.env.now());
        self.log.publish_progress();
        Ok(())
    }

    fn periodic(&mut self) -> Result<(), JournalError> {
        let now = self.shared.env.now();
        if self.log.writer.needs_next() && now >= self.retry_at {
            // The log still has room. If the file cannot be created until it is full, the log
            // fails.
            if let Err(error) = self.log.writer.prepare_next() {
                tracing::warn!(%error, "cannot create the next log file yet; trying again. If the present one is full before, the master stops, or continues in memory only \
                     (--on-disk-error)");
                self.retry_at = now + NEXT_FILE_RETRY;
            }
        }
        // A snapshot may have synced the log.
        self.report_durable();
        let last = self.log.writer.appended();
        if last == self.log.writer.durable() {
            return Ok(());
        }
        let since = now.since(self.last_sync);
        let is_due = match self.log.options.sync {
            SyncMode::Interval(interval) => since >= interval,
            SyncMode::Always => since >= PERIOD_MAX,
            SyncMode::Never => false,
        };
        let is_freed_memory_due = || {
            let is_waiting = || self.shared.with_guarded(|guarded, _, _| guarded.state.has_freed_memory_waiting());
            since >= FREED_MEMORY_PERIOD && is_waiting()
        };
        if is_due || is_freed_memory_due() { self.sync(last) } else { Ok(()) }
    }
}

/// Decides whether the master stops or continues without the log after an error of the disk.
fn handle_disk_error<E: Env>(shared: &MasterShared<E>, log: &MasterLog, error: JournalError) {
    let stop = |error: JournalError| {
        log.publish_outcome(LogOutcome::Failed(error.clone()));
        if let Some(disk) = shared.disk() {
            disk.log_failed(Some(error));
        }
    };
    if log.options.on_error == DiskErrorPolicy::Stop {
        return stop(error);
    }
    if let Err(second) = log.dir.invalidate() {
        tracing::error!(%error, %second, "the data directory can be neither written nor marked as invalid: the master stops");
        return stop(error);
    }
    tracing::error!(
        %error,
        "the data directory cannot be written: it is marked as invalid, and the master continues in memory only. Its next restart loses all keys"
    );
    match shared.disk() {
        // The standbys still need the records.
        Some(disk) => disk.log_failed(None),
        None => shared.with_guarded(|guarded, _, _| guarded.state.stop_recording()),
    }
    log.publish_outcome(LogOutcome::MemoryOnly);
}
