//! The data directory of a master in a cluster: it contains the copy of the state, of a leader and
//! of a standby.
//!
//! The log has the changes with their numbers, those of other leaders as well. A copy that is
//! replaced by a leader's snapshot empties the directory: see [`HaDisk::begin`]. The [`CopyNote`]
//! identifies the copy.

pub(in crate::server::ha) mod copy_note;
pub(in crate::server::ha) mod threads;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockWriteGuard};

use tokio::sync::{OwnedMutexGuard, watch};

use crate::config::StorePolicy;
use crate::server::data::{MasterData, MasterDataError, read_copy};
use crate::server::ha::disk::copy_note::{CopyNote, CopyStored};
use crate::server::log::MasterLog;
use crate::snapshot::SLOTS_PER_SLICE;
use crate::{SnapshotStep, StandbyState};
use mcctl_election::ha::{HistoryId, MemberId};
use mcctl_journal::{CHUNK_KIND, DataDir, DiskErrorPolicy, FoundData, JournalError, SnapshotTrailer, SyncMode, Uuid};
use mcctl_sys::env::Env;

/// The data directory, and its log.
pub(in crate::server) struct HaDisk {
    current: RwLock<CurrentLog>,
    newest: Mutex<DiskLog>,
    /// Locked while the directory is being emptied, from the end of its log on.
    emptying: Arc<tokio::sync::Mutex<()>>,
    /// The disk has reported an error, so the directory is no longer used.
    has_failed: AtomicBool,
    /// The error that ends the process.
    failure: watch::Sender<Option<JournalError>>,
}

/// The log that is in use.
struct CurrentLog {
    /// `None` while the directory is being emptied, and after an error of the disk.
    log: Option<Arc<MasterLog>>,
    /// Counts the notes that were requested and the copies that were discarded. A note is stored
    /// only while its number is the last one.
    notes: u64,
}

/// The newest log, which may be closed, and its threads.
struct DiskLog {
    log: Arc<MasterLog>,
    /// The directory after it was emptied, until it has a log again.
    emptied: Option<DataDir>,
    /// Nothing is sent. Each thread has a receiver, so the channel is closed when the last one has
    /// ended.
    threads: watch::Sender<()>,
    /// The receiver for the threads to be started.
    to_start: Option<watch::Receiver<()>>,
}

/// The log has ended, and its threads as well. No other log begins while this value exists.
pub(in crate::server) struct EndedLog(#[expect(dead_code, reason = "held")] OwnedMutexGuard<()>);

/// A copy that was read from the directory.
pub(in crate::server) struct FoundCopy {
    pub standby: StandbyState,
    pub last: u64,
    /// The note, with the ID that the copy now has.
    pub note: CopyNote,
    /// Whether its last changes may be missing.
    pub is_uncertain: bool,
}

/// Reads the copy in a data directory, and continues its log. `new_id`: the ID of a copy that does
/// not have one, or cannot keep it.
///
/// # Errors
/// The directory is damaged or of an unknown version, or the disk reports an error.
pub(in crate::server) fn open<E: Env>(
    mut data: MasterData,
    policy: StorePolicy,
    env: &E,
    new_id: MemberId,
) -> Result<(HaDisk, FoundCopy), MasterDataError> {
    let found = data.dir.note()?.and_then(|bytes| CopyNote::decode(&bytes));
    let copy = read_copy(&mut data, policy, env)?;
    let stored = CopyStored::of(data.options.sync, data.dir.boot());
    // Without a note, the records are those of a master without a cluster. They show whether they
    // are complete.
    let is_uncertain = match found {
        Some(note) => {
            note.stored != CopyStored::OnDisk && note.stored != CopyStored::of(SyncMode::Never, data.dir.boot())
        }
        None => copy.last > 0 && !copy.same_boot && !copy.standby.is_complete(),
    };
    let note = match found {
        Some(note) if !is_uncertain => CopyNote { stored, ..note },
        Some(note) => CopyNote { member: new_id, stored, ..note },
        None => CopyNote::new(new_id, None, None, stored),
    };
    data.dir.store_note(&note.encode(), true)?;
    tracing::info!(
        objects = copy.standby.objects(),
        change = copy.last,
        member = %note.member,
        keeps_id = found.is_some_and(|found| found.member == note.member),
        last_changes_may_be_missing = is_uncertain,
        "the copy of the state was read from the data directory"
    );
    let log = Arc::new(MasterLog::new(data, copy.writer, &copy.found, env.now()));
    let failure = watch::Sender::new(None);
    let newest = Mutex::new(DiskLog::new(log.clone()));
    let disk = HaDisk {
        current: RwLock::new(CurrentLog { log: Some(log), notes: 0 }),
        newest,
        emptying: Arc::default(),
        has_failed: AtomicBool::new(false),
        failure,
    };
    Ok((disk, FoundCopy { standby: copy.standby, last: copy.last, note, is_uncertain }))
}

impl DiskLog {
    fn new(log: Arc<MasterLog>) -> DiskLog {
        let (threads, to_start) = watch::channel(());
        DiskLog { log, emptied: None, threads, to_start: Some(to_start) }
    }

    /// The directory in use, which is marked as invalid after an error.
    fn dir(&self) -> &DataDir {
        self.emptied.as_ref().unwrap_or(&self.log.dir)
    }
}

impl HaDisk {
    /// The log that is in use.
    pub(crate) fn log(&self) -> Option<Arc<MasterLog>> {
        self.current.read().unwrap_or_else(PoisonError::into_inner).log.clone()
    }

    /// Whether the log in use, if there is one, has room for changes.
    pub(crate) fn log_has_room(&self) -> bool {
        let current = self.current.read().unwrap_or_else(PoisonError::into_inner);
        current.log.as_ref().is_none_or(|log| log.has_room())
    }

    /// The number of a new note, for [`store_note`](Self::store_note) and [`begin`](Self::begin).
    /// It cancels those with an earlier number that have not ended: their notes are not stored, and
    /// a log that `begin` has written is not used. So request none while a copy is being stored.
    pub(crate) fn number_note(&self) -> u64 {
        let mut current = self.current();
        current.notes += 1;
        current.notes
    }

    fn is_newest_note(&self, number: u64) -> bool {
        self.current.read().unwrap_or_else(PoisonError::into_inner).notes == number
    }

    fn current(&self) -> RwLockWriteGuard<'_, CurrentLog> {
        self.current.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether this log is in use.
    pub(crate) fn is_current(&self, log: &MasterLog) -> bool {
        self.log().is_some_and(|current| std::ptr::eq(&raw const *current, log))
    }

    /// The newest log, if its threads have not been started yet. A thread keeps the receiver until
    /// it ends.
    pub(crate) fn to_start(&self) -> Option<(Arc<MasterLog>, watch::Receiver<()>)> {
        // `newest` is locked while the directory is being emptied.
        let mut newest = self.newest.try_lock().ok()?;
        newest.to_start.take().map(|running| (newest.log.clone(), running))
    }

    /// Ends the use of the log, because the copy is discarded.
    pub(crate) fn discard(&self) {
        self.current().notes += 1;
        self.close();
    }

    fn close(&self) {
        let log = self.current().log.take();
        if let Some(log) = log {
            log.close();
        }
    }

    /// Ends the threads for the log.
    pub(crate) fn stop_threads(&self) {
        self.newest().log.stop_threads();
    }

    /// Ends the use of the log, and waits until its threads have ended, because they use its files.
    pub(crate) async fn end_log(&self) -> EndedLog {
        let emptying = self.emptying.clone().lock_owned().await;
        self.close();
        let threads = {
            let mut newest = self.newest();
            newest.to_start = None;
            newest.threads.clone()
        };
        threads.closed().await;
        EndedLog(emptying)
    }

    /// Empties the directory, whose log has `_ended`, writes a snapshot of the copy, whose last
    /// change is number `last`, and begins a log after it. Waits for the disk. `slices` continues
    /// the snapshot. The log is not used if the snapshot is cancelled, if the copy was discarded or
    /// another note was requested since (`number` is not the last one), or after an error of the
    /// disk in this process.
    ///
    /// # Errors
    /// The disk reports an error.
    pub(crate) fn begin<E: Env>(
        &self,
        _ended: EndedLog,
        env: &E,
        slices: impl FnMut(u32) -> Option<SnapshotStep>,
        last: u64,
        note: CopyNote,
        number: u64,
    ) -> Result<(), JournalError> {
        let mut newest = self.newest();
        let newest = &mut *newest;
        if self.has_failed.load(Ordering::Acquire) {
            return Ok(());
        }
        let options = newest.log.options;
        let format = newest.log.format;
        let uuid = Uuid(u128::from(env.rng()) << 64 | u128::from(env.rng()));
        // After an error, this directory is marked as invalid.
        let dir = newest.emptied.insert(newest.dir().reopen_empty(uuid)?);
        let stored = CopyStored::of(options.sync, dir.boot());
        // Until the copy is complete, the directory contains one that no record lists and that no
        // other one equals.
        let unfinished = CopyNote::new(MemberId(env.rng()), Some(HistoryId(env.rng())), None, stored);
        dir.store_note(&unfinished.encode(), true)?;
        let Some(bytes) = write_copy(dir, env, slices, last)? else { return Ok(()) };
        let recovered = dir.recover(|_| Ok::<(), JournalError>(()))?;
        let writer = dir.start_log(&recovered, options.log)?;
        dir.store_note(&CopyNote { stored, ..note }.encode(), true)?;
        let found = FoundData { snapshot: last, snapshot_bytes: bytes, log_bytes: 0 };
        let Some(dir) = newest.emptied.take() else { return Ok(()) };
        let log = Arc::new(MasterLog::new(MasterData { dir, options, format }, writer, &found, env.now()));
        *newest = DiskLog::new(log.clone());
        let mut current = self.current();
        if current.notes == number {
            current.log = Some(log);
        } else {
            log.close();
        }
        Ok(())
    }

    /// Replaces the note of the copy, if `number` is the last one. Otherwise, the copy was
    /// discarded, or a later note replaces this one. Returns `Ok` also if the note was not stored.
    ///
    /// # Errors
    /// The disk reports an error.
    pub(crate) fn store_note(&self, note: CopyNote, durable: bool, number: u64) -> Result<(), JournalError> {
        // The directory is not emptied meanwhile.
        let _newest = self.newest();
        let Some(log) = self.log().filter(|_| self.is_newest_note(number)) else { return Ok(()) };
        let stored = CopyStored::of(log.options.sync, log.dir.boot());
        let note = CopyNote { stored, ..note };
        log.dir.store_note(&note.encode(), durable)
    }

    /// Makes the copy durable, at the end of the process.
    ///
    /// # Errors
    /// The disk reports an error.
    pub(crate) fn complete(&self) -> Result<(), JournalError> {
        let Some(log) = self.log().filter(|log| !log.has_failed()) else { return Ok(()) };
        log.writer.sync(log.writer.appended())?;
        let Some(note) = log.dir.note()?.and_then(|bytes| CopyNote::decode(&bytes)) else { return Ok(()) };
        log.dir.store_note(&CopyNote { stored: CopyStored::OnDisk, ..note }.encode(), true)
    }

    /// Reports an error of the disk outside the log: the process ends, or it continues without its
    /// directory.
    ///
    /// # Errors
    /// The process ends.
    pub(crate) fn fail(&self, error: JournalError) -> Result<(), JournalError> {
        let (policy, invalidated) = {
            let newest = self.newest();
            self.has_failed.store(true, Ordering::Release);
            (newest.log.options.on_error, newest.dir().invalidate())
        };
        self.close();
        match (policy, invalidated) {
            (DiskErrorPolicy::ContinueMemoryOnly, Ok(())) => {
                tracing::error!(
                    %error,
                    "the data directory cannot be written: it is marked as invalid, and the master continues in memory only"
                );
                Ok(())
            }
            _ => {
                self.failure.send_replace(Some(error.clone()));
                Err(error)
            }
        }
    }

    /// The log in use has failed. The process ends with this error, or continues without its
    /// directory.
    pub(crate) fn log_failed(&self, error: Option<JournalError>) {
        self.has_failed.store(true, Ordering::Release);
        self.failure.send_replace(error);
    }

    /// Waits until the master must stop because of an error of the disk.
    pub(crate) async fn failure(&self) -> JournalError {
        let mut failure = self.failure.subscribe();
        loop {
            if let Some(error) = &*failure.borrow_and_update() {
                return error.clone();
            }
            if failure.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    fn newest(&self) -> MutexGuard<'_, DiskLog> {
        self.newest.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Writes a snapshot of the copy, whose last change is number `last`, to an empty directory.
/// Returns its size in bytes; `None` if it was cancelled.
fn write_copy<E: Env>(
    dir: &DataDir,
    env: &E,
    mut slices: impl FnMut(u32) -> Option<SnapshotStep>,
    last: u64,
) -> Result<Option<u64>, JournalError> {
    if last == 0 {
        return Ok(Some(0));
    }
    let mut bytes = 0;
    let mut file = dir.begin_snapshot(last, env.unix())?;
    loop {
        match slices(SLOTS_PER_SLICE) {
            None => return Ok(None),
            Some(SnapshotStep::More) => {}
            Some(SnapshotStep::Chunk(chunk)) => {
                file.chunk(CHUNK_KIND, &chunk)?;
                bytes += chunk.len() as u64;
            }
            Some(SnapshotStep::Done(summary)) => {
                let trailer = SnapshotTrailer { items: summary.objects, digest: summary.digest };
                dir.publish_first_snapshot(file, trailer)?;
                return Ok(Some(bytes));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DATA_FORMAT;
    use mcctl_journal::{
        CommitLogOptions, Crash, DataDirOptions, DiskFault, ExistingData, SimulatedStorage, StorageOperation,
    };
    use mcctl_sys::env::RealEnv;

    const NO_SPACE: i32 = 28;

    fn open_dir(storage: &SimulatedStorage) -> Result<DataDir, JournalError> {
        let boot_id = storage.boot_id();
        let existing = ExistingData::Keep;
        let options = DataDirOptions { cluster_id: "c", boot_id, new_uuid: Uuid(1), existing };
        DataDir::open(Arc::new(storage.clone()), &options)
    }

    #[tokio::test]
    async fn the_directory_is_invalid_if_a_received_copy_cannot_be_written() {
        let storage = SimulatedStorage::new(1);
        let env = RealEnv::new();
        let options = CommitLogOptions { on_error: DiskErrorPolicy::ContinueMemoryOnly, ..CommitLogOptions::default() };
        let data = MasterData { dir: open_dir(&storage).unwrap(), options, format: DATA_FORMAT };
        let (disk, found) = open(data, StorePolicy::default(), &env, MemberId(1)).unwrap();
        let slices = |_| {
            let operation = StorageOperation::Write;
            storage.set_fault(Some(DiskFault { operation, after: 0, errno: NO_SPACE, is_permanent: false }));
            Some(SnapshotStep::Chunk(vec![0; 4 << 20]))
        };
        let ended = disk.end_log().await;
        let error = disk.begin(ended, &env, slices, 7, found.note, 0).unwrap_err();
        disk.fail(error).expect("the master continues in memory");
        assert!(disk.log().is_none());
        let storage = storage.crash(Crash::Kill);
        assert!(matches!(open_dir(&storage).map(drop), Err(JournalError::Invalidated { .. })));
    }
}
