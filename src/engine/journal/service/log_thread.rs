//! The thread that waits for the disk: it syncs the log, creates the next log file ahead of need,
//! and decides whether the service continues after an error.

use std::ops::Deref;
use std::time::Duration;

use crate::error::JournalError;
use crate::options::{DiskErrorPolicy, SyncMode};
use crate::service::commit_log::{CommitLog, LogOutcome, LogWork};
use crate::service::logged_state::LoggedState;
use crate::service::options::LogSubject;
use mcctl_base::Mono;
use mcctl_sys::env::{Env, ThreadWork};

/// Maximum time between two checks whether the log needs another file.
const PERIOD_MAX: Duration = Duration::from_millis(50);
/// Maximum time for which the state waits for a sync, in every mode
/// ([`LoggedState::awaits_durable`]).
const AWAITED_PERIOD: Duration = Duration::from_secs(1);
/// Time between two attempts to create the next log file.
const NEXT_FILE_RETRY: Duration = Duration::from_secs(1);

/// Serves the log until the service stops, or the log is unusable. `S` and `L` are references to
/// the state and its log.
pub struct LogThread<E, S, L> {
    env: E,
    state: S,
    log: L,
    /// The state has received that the changes up to this one are durable.
    reported: u64,
    last_sync: Mono,
    /// Earliest time for the next attempt to create a log file, after an error.
    retry_at: Mono,
}

impl<E, S, L> ThreadWork for LogThread<E, S, L>
where
    E: Env,
    S: Deref<Target: LoggedState> + Send + 'static,
    L: Deref<Target: AsRef<CommitLog>> + Send + 'static,
{
    fn step(&mut self, may_wait: bool) -> bool {
        let log = self.log();
        let period = match log.options.sync {
            _ if !may_wait => Duration::ZERO,
            SyncMode::Interval(interval) => interval.min(PERIOD_MAX),
            SyncMode::Always | SyncMode::Never => PERIOD_MAX,
        };
        let work = log.next_work(period);
        self.run(work)
    }
}

impl<E, S, L> LogThread<E, S, L>
where
    E: Env,
    S: Deref<Target: LoggedState>,
    L: Deref<Target: AsRef<CommitLog>>,
{
    /// Serves `log`, whose changes are those of `state`.
    pub fn new(env: E, state: S, log: L) -> LogThread<E, S, L> {
        let last_sync = env.now();
        LogThread { env, state, log, reported: 0, last_sync, retry_at: Mono::ZERO }
    }

    fn log(&self) -> &CommitLog {
        self.log.as_ref()
    }

    /// Performs this task. Returns false if it was the last: the service stops, or the log is
    /// unusable.
    pub fn run(&mut self, work: LogWork) -> bool {
        self.log().room.begin_work(self.env.now());
        let done = match work {
            LogWork::Sync(sequence) => self.sync(sequence),
            LogWork::MakeRoom => self.make_room(),
            LogWork::Periodic => self.periodic(),
            LogWork::Fail(error) => Err(error),
            LogWork::Stop => return false,
        };
        self.log().room.end_work();
        match done {
            Ok(()) => {
                if self.log().has_room() {
                    self.log().room.end_waits(self.env.now());
                }
                true
            }
            Err(error) => {
                self.end_log(error);
                false
            }
        }
    }

    fn sync(&mut self, sequence: u64) -> Result<(), JournalError> {
        let began = self.env.now();
        let before = self.log().writer.durable();
        let durable = self.log().writer.sync(sequence)?;
        self.last_sync = self.env.now();
        if durable > before {
            self.log().counts.syncs.record(self.last_sync.since(began), 1);
        }
        self.log().publish_progress();
        self.report_durable();
        Ok(())
    }

    /// Reports to the state which changes are durable, so that freed memory becomes available.
    fn report_durable(&mut self) {
        let durable = self.log().writer.durable();
        if durable > self.reported {
            self.reported = durable;
            self.state.durable(durable);
        }
    }

    fn make_room(&mut self) -> Result<(), JournalError> {
        self.log().writer.make_room()?;
        self.log().room.end_waits(self.env.now());
        self.log().publish_progress();
        Ok(())
    }

    fn periodic(&mut self) -> Result<(), JournalError> {
        let now = self.env.now();
        if self.log().writer.needs_next() && now >= self.retry_at {
            // The log still has room. If the file cannot be created until it is full, the log
            // fails.
            if let Err(error) = self.log().writer.prepare_next() {
                let LogSubject { service, of, .. } = self.log().subject;
                tracing::warn!(
                    %error,
                    "cannot create the next log file{of} yet; trying again. If the present one is full before, {service} stops, or \
                     continues in memory only (--on-disk-error)"
                );
                self.retry_at = now + NEXT_FILE_RETRY;
            }
        }
        // A snapshot may have synced the log.
        self.report_durable();
        let last = self.log().writer.appended();
        if last == self.log().writer.durable() {
            return Ok(());
        }
        let since = now.since(self.last_sync);
        let is_due = match self.log().options.sync {
            SyncMode::Interval(interval) => since >= interval,
            SyncMode::Always => since >= PERIOD_MAX,
            SyncMode::Never => false,
        };
        let is_awaited = || since >= AWAITED_PERIOD && self.state.awaits_durable();
        if is_due || is_awaited() { self.sync(last) } else { Ok(()) }
    }

    /// Decides whether the service stops or continues without the log after an error of the disk.
    fn end_log(&self, error: JournalError) {
        let log = self.log();
        let LogSubject { service, of, lost, .. } = log.subject;
        if log.options.on_error == DiskErrorPolicy::ContinueMemoryOnly {
            match log.dir.invalidate() {
                Ok(()) => {
                    tracing::error!(
                        %error,
                        "the data directory{of} cannot be written: it is marked as invalid, and {service} continues in memory only. Its \
                         next restart loses all {lost}"
                    );
                    self.state.log_ended(None);
                    return log.publish_outcome(LogOutcome::MemoryOnly);
                }
                Err(second) => tracing::error!(
                    %error,
                    %second,
                    "the data directory{of} can be neither written nor marked as invalid: {service} stops"
                ),
            }
        }
        log.publish_outcome(LogOutcome::Failed(error.clone()));
        self.state.log_ended(Some(error));
    }
}
