//! The start from a data directory: reads the newest snapshot and the log after it, and begins a
//! new log.

use std::time::Duration;

use crate::config::StorePolicy;
use crate::record::DataFormat;
use crate::server::log::SUBJECT;
use crate::state::MasterState;
use crate::{ApplyError, RecordBuffer, RestoreError, RestoreReport, StandbyState};
use mcctl_base::Unix;
use mcctl_base::time::RoundedDuration;
use mcctl_journal::{
    CHUNK_KIND, CommitLogOptions, DataDir, FoundData, JournalError, LogWriter, RecoveredItem, RecoveryReport, SyncMode,
    WrittenBy,
};
use mcctl_sys::env::Env;

/// A data directory that the master uses, and its options.
pub struct MasterData {
    pub dir: DataDir,
    pub options: CommitLogOptions,
    /// The format of the records that are written.
    pub format: DataFormat,
}

/// The errors with which a master cannot start from its data directory.
#[derive(Debug, thiserror::Error)]
pub enum MasterDataError {
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// A change in the log does not fit the state, or was written by an unknown version.
    #[error("{file}: cannot apply change {sequence} at offset {offset}{}: {source}", WrittenBy(.writer))]
    Change { file: String, offset: u64, sequence: u64, writer: Option<String>, source: ApplyError },
    /// A chunk of a snapshot does not fit the state, or was written by an unknown version.
    #[error("{file}: cannot apply chunk {chunk}{}: {source}", WrittenBy(.writer))]
    Chunk { file: String, chunk: u64, writer: Option<String>, source: ApplyError },
    /// The state in a snapshot differs from the one that was written.
    #[error("{file}: the snapshot contains {found} objects instead of {expected}, or their digest is different")]
    Digest { file: String, expected: u64, found: u64 },
    #[error(transparent)]
    Restore(#[from] RestoreError),
    /// The copy cannot be used without its objects.
    #[error("the segments and clients of the copy do not fit together: {0}")]
    Tables(#[from] ApplyError),
}

/// A state read from a data directory, and the log that continues it.
pub(super) struct RestoredMaster {
    pub state: MasterState,
    pub writer: LogWriter,
    pub found: FoundData,
    pub report: RestoreSummary,
}

/// A copy of the state read from a data directory, and the log that continues it.
pub(super) struct ReadCopy {
    pub standby: StandbyState,
    pub writer: LogWriter,
    pub found: FoundData,
    /// The number of the last change that the copy contains.
    pub last: u64,
    /// The kernel has not restarted since the last change was written, so none is missing.
    pub same_boot: bool,
}

/// Reads a copy of the state, and begins a new log after it.
///
/// # Errors
/// The directory is damaged or of an unknown version, or the disk reports an error.
pub(super) fn read_copy<E: Env>(
    data: &mut MasterData,
    policy: StorePolicy,
    env: &E,
) -> Result<ReadCopy, MasterDataError> {
    let mut standby = StandbyState::new(policy);
    let (recovery, snapshot_bytes) = read(&data.dir, &mut standby, env)?;
    recovery.log_damage(SUBJECT.of);
    standby.follow(env.now())?;
    let writer = data.dir.start_log(&recovery, data.options.log)?;
    let found = FoundData::new(&recovery, snapshot_bytes, data.options.log);
    let last = recovery.last_sequence;
    let same_boot = recovery.same_boot;
    Ok(ReadCopy { standby, writer, found, last, same_boot })
}

/// The result of restoring a master's state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct RestoreSummary {
    pub restored: RestoreReport,
    /// Number of changes read from the log.
    pub changes: u64,
    /// Time for which restored segments accept no new objects.
    pub hold: Duration,
    /// Duration of reading the data.
    pub took: Duration,
}

/// Restores the state of `data`, and begins a new log whose first change is durable. All wall-clock
/// ages come from `env`.
///
/// # Errors
/// The directory is damaged or of an unknown version, or the disk reports an error.
pub(super) fn restore<E: Env>(
    data: &mut MasterData,
    policy: StorePolicy,
    env: &E,
) -> Result<RestoredMaster, MasterDataError> {
    let began = env.now();
    let mut standby = StandbyState::new(policy.clone());
    let (recovery, snapshot_bytes) = read(&data.dir, &mut standby, env)?;
    recovery.log_damage(SUBJECT.of);
    // The note describes a copy of a cluster's history, which this master does not continue.
    data.dir.remove_note()?;
    let writer = data.dir.start_log(&recovery, data.options.log)?;
    let hold = if recovery.same_boot || standby.is_complete() { Duration::ZERO } else { hold(&policy, &standby) };
    let now = env.now();
    let (mut state, restored) = standby.activate(now, hold)?;
    let buffer = RecordBuffer::new(data.format, recovery.last_sequence + 1);
    state.start_recording(now, buffer, data.options.sync == SyncMode::Always);
    loop {
        let more = !hold.is_zero() && state.discard_restored_writes(now);
        state.close_change(|change| writer.append_admitted(change.payload, env.unix())).transpose()?;
        if !more {
            break;
        }
    }
    writer.sync(writer.appended())?;
    let took = env.now().since(began);
    let report = RestoreSummary { restored, changes: recovery.records, hold, took };
    let found = FoundData::new(&recovery, snapshot_bytes, data.options.log);
    Ok(RestoredMaster { state, writer, found, report })
}

/// Time for which restored segments accept no new objects if the last changes may be missing. The
/// client of an unfinished put whose start is missing may still write to memory that is free
/// according to the records, and readers may have leases on removed objects.
fn hold(policy: &StorePolicy, standby: &StandbyState) -> Duration {
    policy.put_release_after.max(policy.lease_ttl).max(standby.earlier_lease())
}

/// Reads all data. Also returns the size of the snapshot's chunks.
fn read<E: Env>(dir: &DataDir, standby: &mut StandbyState, env: &E) -> Result<(RecoveryReport, u64), MasterDataError> {
    let now = env.now();
    let today = env.unix();
    let age = |at: Unix| Duration::from_millis(u64::try_from(today.0.saturating_sub(at.0)).unwrap_or(0));
    let mut snapshot_file = String::new();
    let mut snapshot_age = Duration::ZERO;
    let mut chunk = 0;
    let mut bytes = 0;
    let report = dir.recover(|item| {
        match item {
            RecoveredItem::SnapshotBegin { written, file, .. } => {
                snapshot_file = file.to_owned();
                snapshot_age = age(written);
            }
            RecoveredItem::SnapshotChunk { kind, payload } => {
                let applied = match kind {
                    CHUNK_KIND => standby.apply_payload(now, snapshot_age, payload),
                    other => Err(ApplyError::UnknownChunk(other)),
                };
                applied.map_err(|source| {
                    let file = snapshot_file.clone();
                    let writer = dir.writer_of(&snapshot_file);
                    MasterDataError::Chunk { file, chunk, writer, source }
                })?;
                chunk += 1;
                bytes += payload.len() as u64;
            }
            RecoveredItem::SnapshotEnd(summary) => {
                let found = standby.objects();
                if (found, standby.snapshot_digest()) != (summary.items, summary.digest) {
                    let file = snapshot_file.clone();
                    return Err(MasterDataError::Digest { file, expected: summary.items, found });
                }
            }
            RecoveredItem::Record { sequence, at, payload, file, offset } => {
                standby.apply_payload(now, age(at), payload).map_err(|source| {
                    let (file, writer) = (file.to_owned(), dir.writer_of(file));
                    MasterDataError::Change { file, offset, sequence, writer, source }
                })?;
            }
        }
        Ok(())
    })?;
    Ok((report, bytes))
}

/// Logs the result of restoring the state.
pub(super) fn log_restored(report: &RestoreSummary) {
    let RestoreSummary { restored, changes, hold, took } = report;
    tracing::info!(
        objects = restored.objects,
        unfinished = restored.writing,
        segments = restored.segments,
        clients = restored.clients,
        log_changes = changes,
        took = %RoundedDuration(*took),
        "state restored: objects are readable when their nodes have sent a heartbeat; those of nodes that send none within --client-ttl are lost"
    );
    if !hold.is_zero() {
        tracing::warn!(
            hold = %RoundedDuration(*hold),
            "the boot ID differs from that of the last master (the host restarted, or this is another host), so the last changes may be \
             missing: unfinished writes were discarded, and restored segments accept no new objects for this time"
        );
    }
}
