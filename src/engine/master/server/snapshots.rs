//! The thread that writes snapshots, so that a start reads only the newest part of the log.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::engine::base::Mono;
use crate::engine::env::Env;
use crate::engine::journal::{JournalError, SnapshotTrailer, SnapshotWriter};
use crate::engine::master::server::data::{CHUNK_KIND, RestoredMaster};
use crate::engine::master::server::log::{MasterLog, SnapshotMark};
use crate::engine::master::server::shared::{MasterShared, YIELD_PAUSE};
use crate::engine::master::snapshot::SLOTS_PER_SLICE;
use crate::engine::master::{SnapshotStep, SnapshotSummary};

/// Number of bytes of changes after which a snapshot is written before its time. A start reads at most about this much of the log. A larger
/// snapshot raises the limit to its own size, so that snapshots write at most as much as the log.
pub(super) const SNAPSHOT_LOG_BYTES: u64 = 128 << 20;

/// Time between two checks whether a snapshot is due.
const CHECK_PERIOD: Duration = Duration::from_secs(1);
/// Minimum time between two snapshots, for example after one failed.
const PAUSE_MIN: Duration = Duration::from_secs(10);
/// Length of the pause after a slice, in units of the slice's duration. A snapshot then uses a fifth of a processor. It also is less often
/// interrupted while it has the state locked, because the scheduler prefers threads that have slept.
const PAUSE_PER_WORK: u32 = 4;
/// Maximum pause. A slice may take long because the thread waited for the disk, or for the processor.
const PAUSE_MAX: Duration = Duration::from_millis(2);

/// The snapshot that was restored, as if it had been written at `now`. If the log has grown too large, because the masters before were killed
/// before they wrote one, the next one is due at once.
pub(super) fn restored_mark(restored: &RestoredMaster, now: Mono) -> SnapshotMark {
    let is_overdue = restored.found_bytes >= SNAPSHOT_LOG_BYTES.max(restored.snapshot_bytes);
    let at = (!is_overdue).then_some(now);
    SnapshotMark { sequence: restored.snapshot, at, log_bytes: 0, bytes: restored.snapshot_bytes }
}

/// Writes snapshots when they are due, until the master stops.
pub(super) fn run_snapshots<E: Env>(shared: &MasterShared<E>, log: &MasterLog) {
    let writer = MasterSnapshots::new(shared, log);
    while !log.wait_to_snapshot(CHECK_PERIOD) {
        if writer.is_due() {
            writer.write();
        }
    }
}

/// Ends the log of a master that sends no more responses: marks it as complete, and writes the last snapshot.
///
/// # Errors
/// The log cannot be synced. An error of the snapshot is only logged.
pub(super) fn complete_log<E: Env>(shared: &MasterShared<E>, log: &MasterLog) -> Result<(), JournalError> {
    shared.with_guarded(None, |guarded, now, _| guarded.state.end_recording(now));
    log.writer.sync(log.writer.appended())?;
    MasterSnapshots { is_final: true, ..MasterSnapshots::new(shared, log) }.write();
    Ok(())
}

/// Writes the snapshots of a state.
pub(super) struct MasterSnapshots<'a, E> {
    shared: &'a MasterShared<E>,
    log: &'a MasterLog,
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

impl<'a, E: Env> MasterSnapshots<'a, E> {
    /// Writes snapshots of the state in `shared`, whose changes are in `log`.
    pub(super) fn new(shared: &'a MasterShared<E>, log: &'a MasterLog) -> MasterSnapshots<'a, E> {
        MasterSnapshots { shared, log, slots: SLOTS_PER_SLICE, is_final: false }
    }

    /// Whether it is time for a snapshot, and one can be written.
    pub(super) fn is_due(&self) -> bool {
        let last = *self.log.last_snapshot();
        let since = last.at.map_or(Duration::MAX, |at| self.shared.env.now().since(at));
        let grown = self.log.log_bytes() - last.log_bytes;
        let interval = self.log.options.snapshot_interval;
        let is_time =
            since >= interval || since >= PAUSE_MIN.min(interval) && grown >= SNAPSHOT_LOG_BYTES.max(last.bytes);
        is_time && self.log.writer.appended() > last.sequence && !self.log.has_failed()
    }

    /// Writes a snapshot.
    fn write(&self) {
        let (mut run, mut began) = (self.start(), self.shared.env.now());
        while self.step(&mut run) {
            if !self.is_final {
                let slice = self.shared.env.now().since(began);
                self.shared.env.pause_thread((slice * PAUSE_PER_WORK).clamp(YIELD_PAUSE, PAUSE_MAX));
            }
            began = self.shared.env.now();
        }
    }

    /// A snapshot that begins with the first [`step`](Self::step).
    pub(super) fn start(&self) -> SnapshotRun {
        let at = self.shared.env.now();
        self.log.last_snapshot().at = Some(at);
        SnapshotRun { began: at, mark: SnapshotMark { sequence: 0, at: Some(at), log_bytes: 0, bytes: 0 }, file: None }
    }

    /// Continues a snapshot. Returns false at its end. After an error, the log and the previous snapshots are still complete.
    pub(super) fn step(&self, run: &mut SnapshotRun) -> bool {
        let counts = &self.log.counts;
        match self.try_step(run) {
            Ok(RunStep::More) => return true,
            Ok(RunStep::Stopped) => self.cancel(),
            Ok(RunStep::Done(summary)) => {
                let took = self.shared.env.now().since(run.began);
                let set = |count: &AtomicU64, value| count.store(value, Ordering::Relaxed);
                set(&counts.snapshot_us, u64::try_from(took.as_micros()).unwrap_or(u64::MAX));
                set(&counts.snapshot_objects, summary.objects);
                counts.snapshots.fetch_add(1, Ordering::Relaxed);
                tracing::info!(objects = summary.objects, bytes = run.mark.bytes, ?took, "snapshot written");
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
        self.shared.with_guarded(None, |guarded, _, _| guarded.state.cancel_snapshot());
    }

    fn try_step(&self, run: &mut SnapshotRun) -> Result<RunStep, JournalError> {
        let Some(mut file) = run.file.take() else { return self.begin(run) };
        match self.shared.with_guarded(None, |guarded, _, _| guarded.state.snapshot_slots(self.slots)) {
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

    fn begin(&self, run: &mut SnapshotRun) -> Result<RunStep, JournalError> {
        let (format, written) = (self.log.options.format, self.shared.env.unix());
        let begun = self.shared.with_guarded(None, |guarded, now, _| {
            let sequence = guarded.state.begin_snapshot(now, format)?;
            Some((sequence, self.log.log_bytes()))
        });
        let Some((sequence, log_bytes)) = begun else { return Ok(RunStep::Stopped) };
        (run.mark.sequence, run.mark.log_bytes) = (sequence, log_bytes);
        run.file = Some(self.log.dir.begin_snapshot(sequence, written)?);
        Ok(RunStep::More)
    }
}
