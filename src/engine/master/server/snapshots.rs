//! The thread that writes snapshots, so that a start reads only the newest part of the log.

use std::ops::Deref;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::server::data::CHUNK_KIND;
use crate::server::log::MasterLog;
use crate::server::shared::{MasterShared, YIELD_PAUSE};
use crate::server::snapshot_mark::{SNAPSHOT_LOG_BYTES, SnapshotMark};
use crate::snapshot::SLOTS_PER_SLICE;
use crate::{SnapshotStep, SnapshotSummary};
use mcctl_base::Mono;
use mcctl_base::time::RoundedDuration;
use mcctl_journal::{JournalError, SnapshotTrailer, SnapshotWriter};
use mcctl_sys::env::{Env, ThreadWork};

/// Time between two checks whether a snapshot is due.
const CHECK_PERIOD: Duration = Duration::from_secs(1);
/// Minimum time between two snapshots, for example after one failed.
const PAUSE_MIN: Duration = Duration::from_secs(10);
/// Length of the pause after a slice, in units of the slice's duration. A snapshot then uses a
/// fifth of a processor. It also is less often interrupted while it has the state locked, because
/// the scheduler prefers threads that have slept.
const PAUSE_PER_WORK: u32 = 4;
/// Maximum pause. A slice may take long because the thread waited for the disk, or for the
/// processor.
const PAUSE_MAX: Duration = Duration::from_millis(2);

/// A state of which snapshots are written. Its changes are in a log.
pub(super) trait SnapshotSource {
    type Env: Env;

    fn env(&self) -> &Self::Env;

    /// Begins a snapshot. Waits for others, if that is needed and `may_wait`.
    fn begin(&self, log: &MasterLog, may_wait: bool) -> SnapshotBegin;

    /// Continues the snapshot by up to `slots` object slots, or by none if others must do it and
    /// not `may_wait`. `None`: it was cancelled.
    fn slots(&self, slots: u32, may_wait: bool) -> Option<SnapshotStep>;

    /// Ends the snapshot in progress, whether or not it is complete, so that another one can begin.
    fn cancel(&self);
}

/// The result of beginning a snapshot.
pub(super) enum SnapshotBegin {
    /// No snapshot can begin now. The thread tries again later.
    NotNow,
    /// Begin again, to get the result.
    NotYet,
    /// It contains the changes up to `last`. The size of the log before it
    /// ([`MasterLog::log_bytes`]) was `log_bytes`.
    Begun { last: u64, log_bytes: u64 },
}

impl<E: Env> SnapshotSource for MasterShared<E> {
    type Env = E;

    fn env(&self) -> &E {
        &self.env
    }

    fn begin(&self, log: &MasterLog, _: bool) -> SnapshotBegin {
        self.with_guarded(|guarded, now, _| match guarded.state.begin_snapshot(now, log.options.format) {
            Some(last) => SnapshotBegin::Begun { last, log_bytes: log.log_bytes() },
            None => SnapshotBegin::NotNow,
        })
    }

    fn slots(&self, slots: u32, _: bool) -> Option<SnapshotStep> {
        self.with_guarded(|guarded, _, _| guarded.state.snapshot_slots(slots))
    }

    fn cancel(&self) {
        self.with_guarded(|guarded, _, _| guarded.state.cancel_snapshot());
    }
}

/// Writes snapshots when they are due, until the master stops.
pub(super) struct SnapshotThread<S, L> {
    writer: MasterSnapshots<S, L>,
    /// The snapshot in progress.
    run: Option<SnapshotRun>,
}

impl<S, L> SnapshotThread<S, L>
where
    S: Deref<Target: SnapshotSource>,
    L: Deref<Target = MasterLog>,
{
    /// Writes snapshots of the state in `source`, whose changes are in `log`.
    pub(super) fn new(source: S, log: L) -> SnapshotThread<S, L> {
        SnapshotThread { writer: MasterSnapshots::new(source, log), run: None }
    }
}

impl<S, L> ThreadWork for SnapshotThread<S, L>
where
    S: Deref<Target: SnapshotSource> + Send + 'static,
    L: Deref<Target = MasterLog> + Send + 'static,
{
    fn step(&mut self, may_wait: bool) -> bool {
        let Some(run) = &mut self.run else {
            if self.writer.log.wait_to_snapshot(if may_wait { CHECK_PERIOD } else { Duration::ZERO }) {
                return false;
            }
            self.writer.log.examine_space();
            if self.writer.is_due() {
                self.run = Some(self.writer.start());
            }
            return true;
        };
        let env = self.writer.source.env();
        let began = env.now();
        if self.writer.step(run, may_wait) {
            let slice = env.now().since(began);
            env.pause_thread((slice * PAUSE_PER_WORK).clamp(YIELD_PAUSE, PAUSE_MAX));
        } else {
            self.run = None;
        }
        true
    }
}

/// Ends the log of a master that sends no more responses: marks it as complete, and writes the last
/// snapshot.
///
/// # Errors
/// The log cannot be synced. An error of the snapshot is only logged.
pub(super) fn complete_log<E: Env>(shared: &MasterShared<E>, log: &MasterLog) -> Result<(), JournalError> {
    shared.with_guarded(|guarded, now, _| guarded.state.end_recording(now));
    log.writer.sync(log.writer.appended())?;
    let last = MasterSnapshots { is_final: true, ..MasterSnapshots::new(shared, log) };
    let mut run = last.start();
    while last.step(&mut run, true) {}
    Ok(())
}

/// Writes the snapshots of a state.
pub(super) struct MasterSnapshots<S, L> {
    source: S,
    log: L,
    /// Number of object slots that are visited while the state is locked once.
    pub slots: u32,
    /// The master has stopped. Other snapshots are cancelled when it begins to stop.
    is_final: bool,
}

/// A snapshot that is being written.
pub(super) struct SnapshotRun {
    began: Mono,
    mark: SnapshotMark,
    /// `None`: it has not begun.
    file: Option<SnapshotWriter>,
}

/// The result of a step of a snapshot.
enum RunStep {
    More,
    /// The master stops, or its log is unusable.
    Stopped,
    Done(SnapshotSummary),
}

impl<S, L> MasterSnapshots<S, L>
where
    S: Deref<Target: SnapshotSource>,
    L: Deref<Target = MasterLog>,
{
    /// Writes snapshots of the state in `source`, whose changes are in `log`.
    pub(super) fn new(source: S, log: L) -> MasterSnapshots<S, L> {
        MasterSnapshots { source, log, slots: SLOTS_PER_SLICE, is_final: false }
    }

    /// Whether a snapshot is due and can be written.
    pub(super) fn is_due(&self) -> bool {
        let last = *self.log.last_snapshot();
        let since = last.at.map_or(Duration::MAX, |at| self.source.env().now().since(at));
        let grown = self.log.log_bytes() - last.log_bytes;
        let interval = self.log.options.snapshot_interval;
        let is_time =
            since >= interval || since >= PAUSE_MIN.min(interval) && grown >= SNAPSHOT_LOG_BYTES.max(last.bytes);
        is_time && self.log.writer.appended() > last.sequence && !self.log.has_failed()
    }

    /// A snapshot that begins with the first [`step`](Self::step).
    pub(super) fn start(&self) -> SnapshotRun {
        let at = self.source.env().now();
        self.log.last_snapshot().at = Some(at);
        SnapshotRun { began: at, mark: SnapshotMark { sequence: 0, at: Some(at), log_bytes: 0, bytes: 0 }, file: None }
    }

    /// Continues a snapshot. Returns false at its end. After an error, the log and the previous
    /// snapshots are still complete.
    pub(super) fn step(&self, run: &mut SnapshotRun, may_wait: bool) -> bool {
        let counts = &self.log.counts;
        match self.try_step(run, may_wait) {
            Ok(RunStep::More) => return true,
            Ok(RunStep::Stopped) => self.cancel(),
            Ok(RunStep::Done(summary)) => {
                let took = self.source.env().now().since(run.began);
                let set = |count: &AtomicU64, value| count.store(value, Ordering::Relaxed);
                set(&counts.snapshot_us, u64::try_from(took.as_micros()).unwrap_or(u64::MAX));
                set(&counts.snapshot_objects, summary.objects);
                counts.snapshots.fetch_add(1, Ordering::Relaxed);
                let objects = summary.objects;
                let took = RoundedDuration(took);
                tracing::info!(bytes = run.mark.bytes, "snapshot written: {objects} objects in {took}");
                *self.log.last_snapshot() = run.mark;
            }
            Err(error) => {
                counts.snapshot_failures.fetch_add(1, Ordering::Relaxed);
                self.cancel();
                match self.log.writer.failure() {
                    Some(error) => self.log.fail(error),
                    None => tracing::warn!(
                        %error,
                        "cannot write a snapshot; the log contains all changes, and grows until one succeeds"
                    ),
                }
            }
        }
        false
    }

    fn cancel(&self) {
        self.source.cancel();
    }

    fn try_step(&self, run: &mut SnapshotRun, may_wait: bool) -> Result<RunStep, JournalError> {
        let Some(mut file) = run.file.take() else { return self.begin(run, may_wait) };
        match self.source.slots(self.slots, may_wait) {
            Some(SnapshotStep::More) => {}
            Some(SnapshotStep::Chunk(chunk)) => {
                file.chunk(CHUNK_KIND, &chunk)?;
                run.mark.bytes += chunk.len() as u64;
            }
            Some(SnapshotStep::Done(summary)) => {
                let trailer = SnapshotTrailer { items: summary.objects, digest: summary.digest };
                self.log.dir.publish_snapshot(file, trailer, &self.log.writer)?;
                return Ok(RunStep::Done(summary));
            }
            None => return Ok(RunStep::Stopped),
        }
        run.file = Some(file);
        if !self.is_final && self.log.is_stopping() { Ok(RunStep::Stopped) } else { Ok(RunStep::More) }
    }

    fn begin(&self, run: &mut SnapshotRun, may_wait: bool) -> Result<RunStep, JournalError> {
        let written = self.source.env().unix();
        match self.source.begin(&self.log, may_wait) {
            SnapshotBegin::NotNow => return Ok(RunStep::Stopped),
            SnapshotBegin::NotYet => {}
            SnapshotBegin::Begun { last, log_bytes } => {
                run.mark.sequence = last;
                run.mark.log_bytes = log_bytes;
                run.file = Some(self.log.dir.begin_snapshot(last, written)?);
            }
        }
        Ok(RunStep::More)
    }
}
