//! The thread that writes snapshots, so that a start reads only the newest part of the log.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::engine::env::Env;
use crate::engine::journal::{JournalError, SnapshotSummary as JournalSummary, SnapshotWriter};
use crate::engine::master::server::log::{MasterLog, SnapshotMark};
use crate::engine::master::server::shared::{MasterShared, YIELD_PAUSE};
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
/// The kind of the snapshot's chunks. There is only one.
const CHUNK_KIND: u8 = 1;

/// Writes snapshots when they are due, until the master stops.
pub(super) fn run_snapshots<E: Env>(shared: &MasterShared<E>, log: &MasterLog) {
    let writer = MasterSnapshots { shared, log, is_final: false };
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
pub(super) fn end_log<E: Env>(shared: &MasterShared<E>, log: &MasterLog) -> Result<(), JournalError> {
    shared.with_guarded(None, |guarded, now, _| guarded.state.end_recording(now));
    log.writer.sync(log.writer.appended())?;
    MasterSnapshots { shared, log, is_final: true }.write();
    Ok(())
}

struct MasterSnapshots<'a, E> {
    shared: &'a MasterShared<E>,
    log: &'a MasterLog,
    /// The master has stopped. Other snapshots are cancelled when it begins to stop.
    is_final: bool,
}

impl<E: Env> MasterSnapshots<'_, E> {
    fn is_due(&self) -> bool {
        let last = *self.log.last_snapshot();
        let since = self.shared.env.now().since(last.at);
        let grown = self.log.appended_bytes() - last.log_bytes;
        let interval = self.log.options.snapshot_interval;
        let is_time =
            since >= interval || since >= PAUSE_MIN.min(interval) && grown >= SNAPSHOT_LOG_BYTES.max(last.bytes);
        is_time && self.log.writer.appended() > last.sequence && !self.log.has_failed()
    }

    /// Writes a snapshot. After an error, the log and the previous snapshots are still complete.
    fn write(&self) {
        let began = self.shared.env.now();
        self.log.last_snapshot().at = began;
        let counts = &self.log.counts;
        match self.try_write() {
            Ok(None) => self.cancel(),
            Ok(Some((mark, summary))) => {
                let took = self.shared.env.now().since(began);
                let set = |count: &AtomicU64, value| count.store(value, Ordering::Relaxed);
                set(&counts.snapshot_us, u64::try_from(took.as_micros()).unwrap_or(u64::MAX));
                set(&counts.snapshot_objects, summary.objects);
                counts.snapshots.fetch_add(1, Ordering::Relaxed);
                tracing::info!(objects = summary.objects, bytes = mark.bytes, ?took, "snapshot written");
                *self.log.last_snapshot() = mark;
            }
            Err(error) => {
                counts.snapshot_failures.fetch_add(1, Ordering::Relaxed);
                self.cancel();
                tracing::warn!(%error, "cannot write a snapshot; the log contains all changes, and grows until one succeeds");
            }
        }
    }

    fn cancel(&self) {
        self.shared.with_guarded(None, |guarded, _, _| guarded.state.cancel_snapshot());
    }

    /// `None`: the master stops.
    fn try_write(&self) -> Result<Option<(SnapshotMark, SnapshotSummary)>, JournalError> {
        let format = self.log.options.format;
        let (at, written) = (self.shared.env.now(), self.shared.env.unix());
        let begun = self.shared.with_guarded(None, |guarded, now, _| {
            let sequence = guarded.state.begin_snapshot(now, format)?;
            Some((sequence, self.log.appended_bytes()))
        });
        let Some((sequence, log_bytes)) = begun else { return Ok(None) };
        let mut writer = self.log.dir.begin_snapshot(sequence, written)?;
        let Some((summary, bytes)) = self.copy(&mut writer)? else { return Ok(None) };
        let trailer = JournalSummary { items: summary.objects, digest: summary.digest };
        self.log.dir.publish_snapshot(writer, trailer, &self.log.writer)?;
        Ok(Some((SnapshotMark { sequence, at, log_bytes, bytes }, summary)))
    }

    /// Copies the state to the file, slice by slice. Returns the number of bytes. `None`: the master stops.
    fn copy(&self, writer: &mut SnapshotWriter) -> Result<Option<(SnapshotSummary, u64)>, JournalError> {
        let mut bytes = 0;
        loop {
            let began = self.shared.env.now();
            match self.shared.with_guarded(None, |guarded, _, _| guarded.state.snapshot_slice()) {
                Some(SnapshotStep::More) => {}
                Some(SnapshotStep::Chunk(chunk)) => {
                    writer.chunk(CHUNK_KIND, &chunk)?;
                    bytes += chunk.len() as u64;
                }
                Some(SnapshotStep::Done(summary)) => return Ok(Some((summary, bytes))),
                None => return Ok(None),
            }
            if self.is_final {
                continue;
            }
            if self.log.is_stopping() {
                return Ok(None);
            }
            let slice = self.shared.env.now().since(began);
            self.shared.env.pause_thread((slice * PAUSE_PER_WORK).clamp(YIELD_PAUSE, PAUSE_MAX));
        }
    }
}
