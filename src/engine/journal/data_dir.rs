//! A data directory: who may use it, its recovery, its log and its snapshots.

use std::sync::{Arc, Mutex, PoisonError};

use crate::emptying::{self, list};
use crate::error::{Corruption, JournalError};
use crate::flushed_mark::FlushedMark;
use crate::header::{FILE_HEADER_BYTES, FileHeader, FileKind, writer_of};
use crate::identity::DirectoryIdentity;
use crate::log_end::UnprovedRange;
use crate::marker::ValidityMarker;
use crate::names;
use crate::note;
use crate::planted::{JournalMistake, is_planted};
use crate::recovery::{RecoveredItem, RecoveryReport, RecoverySource};
use crate::snapshot::{SnapshotTrailer, SnapshotWriter};
use crate::storage::{DiskSpace, JournalStorage, StorageOperation, read_full};
use crate::uuid::Uuid;
use crate::writer::{LogConfig, LogWriter};
use mcctl_base::Unix;

/// Number of snapshots that are kept.
const GENERATIONS: usize = 2;
/// Number of bytes that one write copies.
const COPY_BYTES: usize = 256 << 10;

/// The treatment of data that is in the directory when it is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExistingData<'a> {
    /// Keep it. [`DataDir::recover`] reads it.
    Keep,
    /// Move it to a subdirectory with this name. If that exists, a number is added.
    SetAside { date: &'a str },
    /// Remove it, without a copy.
    Discard,
}

/// The options for opening a data directory.
#[derive(Clone, Copy, Debug)]
pub struct DataDirOptions<'a> {
    /// The cluster that the directory must belong to.
    pub cluster_id: &'a str,
    /// The kernel's boot ID. If it differs from that of the last process, data that was never
    /// synced may be missing.
    pub boot_id: Uuid,
    /// The UUID of the directory, if it is new.
    pub new_uuid: Uuid,
    pub existing: ExistingData<'a>,
}

/// A data directory that this process has locked.
pub struct DataDir {
    storage: Arc<dyn JournalStorage>,
    identity: DirectoryIdentity,
    directory: Uuid,
    boot: Uuid,
    marker: ValidityMarker,
    set_aside: Option<String>,
    /// Sequence numbers of the snapshots that are kept, oldest first.
    generations: Mutex<Vec<u64>>,
}

impl DataDir {
    /// Locks and checks the directory. Creates its identity if it is empty.
    ///
    /// # Errors
    /// `Locked`; `OtherCluster`; `Invalidated` and `Corrupt` only if existing data is kept;
    /// `UnknownFormat`; the disk reports an error.
    pub fn open(storage: Arc<dyn JournalStorage>, options: &DataDirOptions<'_>) -> Result<DataDir, JournalError> {
        let directory = storage.path();
        if !storage.lock().map_err(JournalError::storage(
            StorageOperation::Lock,
            &format!("{directory}/{}", names::LOCK),
            None,
        ))? {
            return Err(JournalError::Locked { directory });
        }
        emptying::complete(&*storage)?;
        let found = match load_identity(&*storage) {
            Err(error) if options.existing == ExistingData::Keep => return Err(error),
            found => found,
        };
        let identity = found.as_ref().ok().and_then(Option::as_ref);
        if let Some(other) = identity.filter(|found| found.cluster_id != options.cluster_id) {
            let found = other.cluster_id.clone();
            let expected = options.cluster_id.to_owned();
            return Err(JournalError::OtherCluster { directory, found, expected });
        }
        let set_aside = match options.existing {
            ExistingData::SetAside { date } if found.is_err() || has_data(&*storage)? => {
                Some(emptying::set_aside(&*storage, date)?)
            }
            ExistingData::Discard => {
                emptying::discard(&*storage)?;
                None
            }
            ExistingData::Keep | ExistingData::SetAside { .. } => None,
        };
        remove_temporary(&*storage)?;
        let identity = load_identity(&*storage)?;
        let has_marker = list(&*storage)?.iter().any(|name| name == names::VALIDITY);
        let is_new = identity.is_none() && !has_data(&*storage)?;
        // It exists before the identity.
        let marker = ValidityMarker::open(&*storage, has_marker, is_new)?;
        let identity = match identity {
            Some(identity) => {
                if !identity.started {
                    // The process that stored it may have ended before its name was durable. A log
                    // file's name must not be durable first.
                    sync_directory(&*storage)?;
                }
                identity
            }
            None if has_data(&*storage)? => {
                return Err(JournalError::corrupt(names::IDENTITY, 0, Corruption::NoIdentity));
            }
            None => {
                let identity = DirectoryIdentity::new(options.cluster_id, options.new_uuid);
                identity.store(&*storage)?;
                identity
            }
        };
        let directory = identity.uuid()?;
        let boot = options.boot_id;
        let generations = Mutex::new(Vec::new());
        Ok(DataDir { storage, identity, directory, boot, marker, set_aside, generations })
    }

    /// The kernel's boot ID, as it was given when the directory was opened.
    pub fn boot(&self) -> Uuid {
        self.boot
    }

    /// The space on the file system; `None` if it cannot be read.
    pub fn space(&self) -> Option<DiskSpace> {
        self.storage.space()
    }

    /// Whether no process has begun a log in the directory since it was created or emptied.
    pub fn is_new(&self) -> bool {
        !self.identity.started
    }

    /// The subdirectory that existing data was moved to when the directory was opened.
    pub fn set_aside(&self) -> Option<&str> {
        self.set_aside.as_deref()
    }

    /// Delivers the newest valid snapshot and the log after it. Changes nothing on the disk.
    ///
    /// # Errors
    /// Errors of `visit`; `Corrupt` if no snapshot and log together are complete; `UnknownFormat`;
    /// the disk reports an error. After an error, the delivered items are not the complete state.
    pub fn recover<E: From<JournalError>>(
        &self,
        visit: impl FnMut(RecoveredItem<'_>) -> Result<(), E>,
    ) -> Result<RecoveryReport, E> {
        let source = RecoverySource { storage: &*self.storage, directory: self.directory, boot: self.boot };
        let report = source.recover(visit)?;
        if self.identity.started && report.log.newest == 0 {
            return Err(JournalError::corrupt(&self.storage.path(), 0, Corruption::NoLog).into());
        }
        let last = report.last_sequence;
        let flushed = FlushedMark::load(&*self.storage, self.directory, self.boot)?;
        if let Some(flushed) = flushed.filter(|flushed| *flushed > last) {
            let what = Corruption::LostEnd { last, flushed };
            let (number, offset) = report.log.position;
            return Err(match &report.torn {
                Some(torn) => JournalError::corrupt(&torn.file, torn.offset, what),
                None => JournalError::corrupt(&names::log_name(number), offset, what),
            }
            .into());
        }
        Ok(report)
    }

    /// The program that wrote a log file or a snapshot, for error messages. `None`: the file cannot
    /// be read.
    pub fn writer_of(&self, file: &str) -> Option<String> {
        let mut header = [0; FILE_HEADER_BYTES];
        let count = read_full(&*self.storage.open(file).ok()?, 0, &mut header).ok()?;
        (count == FILE_HEADER_BYTES).then(|| writer_of(&header))
    }

    /// Begins a log that continues what was recovered, and makes that durable. A torn tail is
    /// ignored from now on.
    ///
    /// # Errors
    /// The disk reports an error.
    pub fn start_log(&mut self, recovered: &RecoveryReport, config: LogConfig) -> Result<LogWriter, JournalError> {
        let log = &recovered.log;
        let (kept, unused) = log.files.split_at(log.kept);
        for file in kept.iter().skip(log.read_from) {
            let unproved = log.unproved.iter().find(|range| range.number == file.number);
            self.make_durable(file.number, unproved.copied())?;
        }
        let header = FileHeader {
            kind: FileKind::Log,
            directory: self.directory,
            boot: self.boot,
            number: log.newest + 1,
            previous: kept.last().map_or(0, |file| file.number),
            durable: recovered.last_sequence,
            starts_log: true,
            size: config.file_bytes,
            written: Unix(0),
        };
        // A file number is not used twice, because checksums depend on it. So the new file exists
        // before unused ones are removed.
        let writer = LogWriter::start(self.storage.clone(), config, header, kept)?;
        for number in unused.iter().map(|file| file.number).chain(log.foreign.iter().copied()) {
            remove(&*self.storage, &names::log_name(number))?;
        }
        sync_directory(&*self.storage)?;
        if !self.identity.started {
            self.identity.started = true;
            self.identity.store(&*self.storage)?;
        }
        self.generations.lock().unwrap_or_else(PoisonError::into_inner).clone_from(&recovered.generations);
        Ok(writer)
    }

    /// Writes the unproved frames of an earlier process again, and syncs their log file.
    fn make_durable(&self, number: u64, unproved: Option<UnprovedRange>) -> Result<(), JournalError> {
        let name = names::log_name(number);
        let error = |operation, offset: Option<u64>| JournalError::storage(operation, &name, offset);
        let file = self.storage.open(&name).map_err(error(StorageOperation::Open, None))?;
        let mut bytes = vec![0; COPY_BYTES];
        // A sync that failed in an earlier process may have left bytes that are only in memory. A
        // later sync skips them.
        let range = unproved.map_or(0..0, |range| range.offset..range.end);
        for (offset, count) in pieces(range.start, range.end) {
            let read =
                read_full(&*file, offset, &mut bytes[..count]).map_err(error(StorageOperation::Read, Some(offset)))?;
            file.write_at(offset, &bytes[..read]).map_err(error(StorageOperation::Write, Some(offset)))?;
        }
        file.sync().map_err(error(StorageOperation::Sync, None))
    }

    /// Begins a snapshot of the state after frame `sequence`, at the time `at`. One snapshot can be
    /// written at a time.
    ///
    /// # Errors
    /// The disk reports an error.
    pub fn begin_snapshot(&self, sequence: u64, at: Unix) -> Result<SnapshotWriter, JournalError> {
        let kind = FileKind::Snapshot;
        let directory = self.directory;
        let boot = self.boot;
        let number = sequence;
        let written = at;
        let header =
            FileHeader { kind, directory, boot, number, previous: 0, durable: 0, starts_log: false, size: 0, written };
        SnapshotWriter::create(self.storage.clone(), &header)
    }

    /// Completes a snapshot, and removes all files older than the previous one. Waits for the disk.
    ///
    /// The log up to the snapshot becomes durable first, so that the previous snapshot and the log
    /// can replace this one. An error while older files are removed is only logged.
    ///
    /// # Errors
    /// The disk reports an error. Then the previous snapshot and the log are still complete.
    pub fn publish_snapshot(
        &self,
        snapshot: SnapshotWriter,
        summary: SnapshotTrailer,
        log: &LogWriter,
    ) -> Result<(), JournalError> {
        let sequence = snapshot.sequence();
        log.sync(sequence)?;
        if is_planted(JournalMistake::LogTrimmedBeforeSnapshot) {
            self.remove_older(sequence, log)?;
            return snapshot.finish(summary);
        }
        snapshot.finish(summary)?;
        if let Err(error) = self.remove_older(sequence, log) {
            tracing::warn!(%error, "cannot remove older snapshots and log files; trying again after the next snapshot");
        }
        Ok(())
    }

    /// Removes all snapshots except for the one after `sequence` and the valid one before it, and
    /// the log before the latter.
    fn remove_older(&self, sequence: u64, log: &LogWriter) -> Result<(), JournalError> {
        let kept = {
            let mut generations = self.generations.lock().unwrap_or_else(PoisonError::into_inner);
            generations.retain(|older| *older != sequence);
            generations.push(sequence);
            let first = generations.len().saturating_sub(GENERATIONS);
            generations.drain(..first);
            generations.clone()
        };
        for name in list(&*self.storage)? {
            if names::snapshot_sequence(&name).is_some_and(|sequence| !kept.contains(&sequence)) {
                remove(&*self.storage, &name)?;
            }
        }
        match kept[..] {
            [previous, _] => log.trim(previous),
            _ => Ok(()),
        }
    }

    /// Completes a snapshot in a directory without a log. [`DataDir::recover`] and
    /// [`DataDir::start_log`] continue after it.
    ///
    /// # Errors
    /// The disk reports an error.
    pub fn publish_first_snapshot(
        &self,
        snapshot: SnapshotWriter,
        summary: SnapshotTrailer,
    ) -> Result<(), JournalError> {
        snapshot.finish(summary)
    }

    /// Empties the directory and opens it again, with this UUID. Call it when this value and its
    /// log are no longer used.
    ///
    /// # Errors
    /// The disk reports an error.
    pub fn reopen_empty(&self, new_uuid: Uuid) -> Result<DataDir, JournalError> {
        let options = DataDirOptions {
            cluster_id: &self.identity.cluster_id,
            boot_id: self.boot,
            new_uuid,
            existing: ExistingData::Discard,
        };
        DataDir::open(self.storage.clone(), &options)
    }

    /// Replaces the note: a few bytes for the directory's user. With `durable`, it is on the disk
    /// when this returns; otherwise, a loss of power may damage it.
    ///
    /// # Errors
    /// The disk reports an error. Then the note is unchanged or replaced.
    pub fn store_note(&self, note: &[u8], durable: bool) -> Result<(), JournalError> {
        note::store(&*self.storage, note, durable)
    }

    /// The note; `None` if there is none, or it is damaged.
    ///
    /// # Errors
    /// The disk reports an error.
    pub fn note(&self) -> Result<Option<Vec<u8>>, JournalError> {
        note::load(&*self.storage)
    }

    /// Removes the note.
    ///
    /// # Errors
    /// The disk reports an error.
    pub fn remove_note(&self) -> Result<(), JournalError> {
        note::remove(&*self.storage)
    }

    /// Marks the directory as incomplete, because this process continues without it.
    /// [`DataDir::open`] refuses it from now on. Needs no space on the disk.
    ///
    /// # Errors
    /// The disk reports an error. Then the directory is not marked, unless the disk has stored the
    /// mark in spite of the error.
    pub fn invalidate(&self) -> Result<(), JournalError> {
        self.marker.invalidate()
    }
}

/// Divides a range of a file into offsets and lengths of at most [`COPY_BYTES`].
fn pieces(begin: u64, end: u64) -> impl Iterator<Item = (u64, usize)> {
    let length = |rest| usize::try_from(rest).map_or(COPY_BYTES, |rest| rest.min(COPY_BYTES));
    (begin..end).step_by(COPY_BYTES).map(move |offset| (offset, length(end - offset)))
}

fn load_identity(storage: &dyn JournalStorage) -> Result<Option<DirectoryIdentity>, JournalError> {
    if !list(storage)?.iter().any(|name| name == names::IDENTITY) {
        return Ok(None);
    }
    DirectoryIdentity::load(storage).map(Some)
}

/// Whether the directory contains log files or snapshots.
fn has_data(storage: &dyn JournalStorage) -> Result<bool, JournalError> {
    Ok(list(storage)?.iter().any(|name| names::is_data(name)))
}

/// Removes what an interrupted process was writing.
fn remove_temporary(storage: &dyn JournalStorage) -> Result<(), JournalError> {
    let is_temporary = |name: &&String| names::is_of_journal(name) && name.ends_with(names::TEMPORARY);
    list(storage)?.iter().filter(is_temporary).try_for_each(|name| remove(storage, name))
}

fn remove(storage: &dyn JournalStorage, name: &str) -> Result<(), JournalError> {
    storage.remove(name).map_err(JournalError::storage(StorageOperation::Remove, name, None))
}

fn sync_directory(storage: &dyn JournalStorage) -> Result<(), JournalError> {
    let failed = JournalError::storage(StorageOperation::SyncDirectory, &storage.path(), None);
    storage.sync_directory("").map_err(failed)
}
