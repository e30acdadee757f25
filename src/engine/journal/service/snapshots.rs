//! The thread that writes snapshots, so that a start reads only the newest part of the log.

use std::ops::Deref;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::error::JournalError;
use crate::service::commit_log::CommitLog;
use crate::service::logged_state::{SnapshotBegin, SnapshotSlice, SnapshotSource};
use crate::service::options::LogSubject;
use crate::service::snapshot_mark::SnapshotMark;
use crate::snapshot::{SnapshotTrailer, SnapshotWriter};
use mcctl_base::Mono;
use mcctl_base::time::RoundedDuration;
use mcctl_sys::env::{Env, ThreadWork};

/// Time between two checks whether a snapshot is due.
const CHECK_PERIOD: Duration = Duration::from_secs(1);
/// Minimum time between two snapshots, for example after one failed.
const PAUSE_MIN: Duration = Duration::from_secs(10);
/// Length of the pause after a slice, in units of the slice's duration. A snapshot then uses a
/// fifth of a processor. It also is less often interrupted while it has the state locked, because
/// the scheduler prefers threads that have slept.
const PAUSE_PER_WORK: u32 = 4;
/// Minimum pause after a slice.
const SLICE_PAUSE_MIN: Duration = Duration::from_micros(20);
/// Maximum pause after a slice. A slice may take long because the thread waited for the disk, or
/// for the processor.
const SLICE_PAUSE_MAX: Duration = Duration::from_millis(2);

/// The kind of a snapshot's chunks. There is only one.
pub const CHUNK_KIND: u8 = 1;

/// Writes snapshots when they are due, until the service stops.
pub struct SnapshotThread<E, S, L> {
    writer: StateSnapshots<E, S, L>,
    /// The snapshot in progress.
    run: Option<SnapshotRun>,
}

impl<E, S, L> SnapshotThread<E, S, L>
where
    E: Env,
    S: Deref<Target: SnapshotSource>,
    L: Deref<Target = LogOf<S>>,
{
    /// Writes snapshots of the state in `source`, whose changes are in `log`.
    pub fn new(env: E, source: S, log: L) -> SnapshotThread<E, S, L> {
        SnapshotThread { writer: StateSnapshots::new(env, source, log), run: None }
    }
}

impl<E, S, L> ThreadWork for SnapshotThread<E, S, L>
where
    E: Env,
    S: Deref<Target: SnapshotSource> + Send + 'static,
    L: Deref<Target = LogOf<S>> + Send + 'static,
{
    fn step(&mut self, may_wait: bool) -> bool {
        let Some(run) = &mut self.run else {
            if self.writer.log().wait_to_snapshot(if may_wait { CHECK_PERIOD } else { Duration::ZERO }) {
                return false;
            }
            self.writer.log().examine_space();
            if self.writer.is_due() {
                self.run = Some(self.writer.start());
            }
            return true;
        };
        let env = &self.writer.env;
        let began = env.now();
        if self.writer.step(run, may_wait) {
            let slice = env.now().since(began);
            env.pause_thread((slice * PAUSE_PER_WORK).clamp(SLICE_PAUSE_MIN, SLICE_PAUSE_MAX));
        } else {
            self.run = None;
        }
        true
    }
}

/// Ends the log of a state that no longer changes: makes it durable, and writes the last snapshot,
/// unless the state is that of the previous one.
///
/// # Errors
/// The log cannot be synced. An error of the snapshot is only logged.
pub fn complete_log<S: SnapshotSource>(env: &impl Env, source: &S, log: &S::Log) -> Result<(), JournalError> {
    let last = StateSnapshots { is_final: true, ..StateSnapshots::new(env.clone(), source, log) };
    let log = last.log();
    let appended = log.writer.appended();
    log.writer.sync(appended)?;
    if appended > log.last_snapshot().sequence {
        let mut run = last.start();
        while last.step(&mut run, true) {}
    }
    Ok(())
}

/// The log of the state that `S` refers to.
type LogOf<S> = <<S as Deref>::Target as SnapshotSource>::Log;

/// Writes the snapshots of a state.
pub struct StateSnapshots<E, S, L> {
    env: E,
    source: S,
    log: L,
    /// Number of slots of the state that one step visits while the state is locked.
    pub slots: u32,
    /// The service has stopped. Other snapshots are cancelled when it begins to stop.
    is_final: bool,
}

/// A snapshot that is being written.
pub struct SnapshotRun {
    began: Mono,
    mark: SnapshotMark,
    /// `None`: it has not begun.
    file: Option<SnapshotWriter>,
}

/// The result of a step of a snapshot.
enum RunStep {
    More,
    /// The service stops, or its log is unusable.
    Stopped,
    Done(SnapshotTrailer),
}

impl<E, S, L> StateSnapshots<E, S, L>
where
    E: Env,
    S: Deref<Target: SnapshotSource>,
    L: Deref<Target = LogOf<S>>,
{
    /// Writes snapshots of the state in `source`, whose changes are in `log`.
    pub fn new(env: E, source: S, log: L) -> StateSnapshots<E, S, L> {
        StateSnapshots { env, source, log, slots: <S::Target as SnapshotSource>::SLOTS_PER_STEP, is_final: false }
    }

    fn log(&self) -> &CommitLog {
        (*self.log).as_ref()
    }

    /// Whether a snapshot is due and can be written.
    pub fn is_due(&self) -> bool {
        let log = self.log();
        let last = *log.last_snapshot();
        let since = last.at.map_or(Duration::MAX, |at| self.env.now().since(at));
        let grown = log.log_bytes() - last.log_bytes;
        let interval = log.options.snapshot_interval;
        let is_large = grown >= log.options.log_bytes_before_snapshot(last.bytes);
        let is_time = since >= interval || since >= PAUSE_MIN.min(interval) && is_large;
        is_time && log.writer.appended() > last.sequence && !log.has_failed()
    }

    /// A snapshot that begins with the first [`step`](Self::step).
    pub fn start(&self) -> SnapshotRun {
        let at = self.env.now();
        self.log().last_snapshot().at = Some(at);
        SnapshotRun { began: at, mark: SnapshotMark { sequence: 0, at: Some(at), log_bytes: 0, bytes: 0 }, file: None }
    }

    /// Continues a snapshot. Returns false at its end. After an error, the log and the previous
    /// snapshots are still complete.
    pub fn step(&self, run: &mut SnapshotRun, may_wait: bool) -> bool {
        let LogSubject { of, items, .. } = self.log().subject;
        let counts = &self.log().counts;
        match self.try_step(run, may_wait) {
            Ok(RunStep::More) => return true,
            Ok(RunStep::Stopped) => self.source.cancel(),
            Ok(RunStep::Done(summary)) => {
                let took = self.env.now().since(run.began);
                let set = |count: &AtomicU64, value| count.store(value, Ordering::Relaxed);
                set(&counts.snapshot_us, u64::try_from(took.as_micros()).unwrap_or(u64::MAX));
                set(&counts.snapshot_objects, summary.items);
                counts.snapshots.fetch_add(1, Ordering::Relaxed);
                let took = RoundedDuration(took);
                tracing::info!(bytes = run.mark.bytes, "snapshot{of} written: {} {items} in {took}", summary.items);
                *self.log().last_snapshot() = run.mark;
            }
            Err(error) => {
                counts.snapshot_failures.fetch_add(1, Ordering::Relaxed);
                self.source.cancel();
                match self.log().writer.failure() {
                    Some(error) => self.log().fail(error),
                    None => tracing::warn!(
                        %error,
                        "cannot write a snapshot{of}; the log contains all changes, and grows until one succeeds"
                    ),
                }
            }
        }
        false
    }

    fn try_step(&self, run: &mut SnapshotRun, may_wait: bool) -> Result<RunStep, JournalError> {
        let Some(mut file) = run.file.take() else { return self.begin(run, may_wait) };
        match self.source.slots(self.slots, may_wait) {
            Some(SnapshotSlice::More) => {}
            Some(SnapshotSlice::Chunk(chunk)) => {
                file.chunk(CHUNK_KIND, &chunk)?;
                run.mark.bytes += chunk.len() as u64;
            }
            Some(SnapshotSlice::Done(summary)) => {
                self.log().dir.publish_snapshot(file, summary, &self.log().writer)?;
                return Ok(RunStep::Done(summary));
            }
            None => return Ok(RunStep::Stopped),
        }
        run.file = Some(file);
        if !self.is_final && self.log().is_stopping() { Ok(RunStep::Stopped) } else { Ok(RunStep::More) }
    }

    fn begin(&self, run: &mut SnapshotRun, may_wait: bool) -> Result<RunStep, JournalError> {
        let written = self.env.unix();
        match self.source.begin(&self.log, may_wait) {
            SnapshotBegin::NotNow => return Ok(RunStep::Stopped),
            SnapshotBegin::NotYet => {}
            SnapshotBegin::Begun { last, log_bytes } => {
                run.mark.sequence = last;
                run.mark.log_bytes = log_bytes;
                run.file = Some(self.log().dir.begin_snapshot(last, written)?);
            }
        }
        Ok(RunStep::More)
    }
}
