//! The log of the running process.
//!
//! Three kinds of threads use a [`LogWriter`]. A thread that changes the state calls
//! [`LogWriter::append`], which copies the payload to a buffer and never waits for a disk. Before
//! it sends its response, it calls [`LogWriter::flush`], which passes to the kernel everything that
//! was appended by any thread. A background thread calls [`LogWriter::sync`] and
//! [`LogWriter::prepare_next`].
//!
//! After an error of the disk, all functions return that error. What a failed sync did not write
//! may be lost even if a later sync succeeds.

mod room;

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::{io, mem};

use crate::error::JournalError;
use crate::flushed_mark::FlushedMark;
use crate::frame::{self, FRAME_HEADER_BYTES};
use crate::header::{FILE_HEADER_BYTES, FileHeader};
use crate::live_reader::LiveLogFile;
use crate::log_file::{KnownLogFile, LogFile, files_up_to};
use crate::log_files::LogFiles;
use crate::names;
use crate::planted::{JournalMistake, is_planted};
use crate::storage::{JournalFile, JournalStorage, StorageOperation};
use mcctl_base::Unix;
use mcctl_base::size::LOG_FILE_BYTES;

/// Minimum and maximum size of a log file, in bytes.
pub const LOG_FILE_SIZES: std::ops::RangeInclusive<u64> = 1024..=1 << 30;
/// A buffer with more room than this is freed after it is written.
const BUFFER_BYTES_KEPT: usize = 4 << 20;

/// The size limits of a log's files and buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogConfig {
    /// Size of a log file in bytes, within [`LOG_FILE_SIZES`].
    pub file_bytes: u64,
    /// Maximum number of appended bytes that are not written, for [`LogWriter::append`]. No more
    /// changes should be made if half of them are used.
    pub buffer_bytes: usize,
}

impl Default for LogConfig {
    fn default() -> LogConfig {
        LogConfig { file_bytes: LOG_FILE_BYTES, buffer_bytes: 64 << 20 }
    }
}

/// Frames that are appended and not yet passed to the kernel.
struct AppendBuffer {
    bytes: Vec<u8>,
    next: u64,
}

/// Appends frames to the log.
pub struct LogWriter {
    storage: Arc<dyn JournalStorage>,
    config: LogConfig,
    /// The header of the first file of this process. The next files differ in number and durable
    /// frames.
    header: FileHeader,
    append: Mutex<AppendBuffer>,
    files: Mutex<LogFiles>,
    /// Held during a sync, so that one sync serves all callers that wait for it.
    syncing: Mutex<()>,
    /// Held while a file is created.
    preparing: Mutex<()>,
    appended: AtomicU64,
    flushed: AtomicU64,
    durable: AtomicU64,
    /// Bytes that are appended and not written.
    buffered: AtomicUsize,
    /// Bytes that fit into the files that exist, as of the last flush.
    room: AtomicU64,
    needs_next: AtomicBool,
    failure: OnceLock<JournalError>,
}

impl LogWriter {
    /// Begins a log after the frame `last`, which is durable. `older` are the log files of earlier
    /// processes, in order.
    ///
    /// # Errors
    /// The first file cannot be created.
    pub(super) fn start(
        storage: Arc<dyn JournalStorage>,
        config: LogConfig,
        header: FileHeader,
        older: &[KnownLogFile],
    ) -> Result<LogWriter, JournalError> {
        assert!(LOG_FILE_SIZES.contains(&config.file_bytes), "log files of {} bytes", config.file_bytes);
        let last = header.durable;
        let current = LogFile::create(&*storage, &header)?;
        // The header states that the frames up to `last` are durable, so the mark of an earlier
        // process is no longer needed.
        let mark = FlushedMark::create(&*storage, header.directory, header.boot)?;
        let files = LogFiles::new(current, older, mark);
        let room = AtomicU64::new(files.room());
        Ok(LogWriter {
            storage,
            config,
            header,
            append: Mutex::new(AppendBuffer { bytes: Vec::new(), next: last + 1 }),
            files: Mutex::new(files),
            syncing: Mutex::new(()),
            preparing: Mutex::new(()),
            appended: AtomicU64::new(last),
            flushed: AtomicU64::new(last),
            durable: AtomicU64::new(last),
            buffered: AtomicUsize::new(0),
            room,
            needs_next: AtomicBool::new(false),
            failure: OnceLock::new(),
        })
    }

    /// Adds a frame to the buffer, and returns its sequence number. Does not wait for the disk.
    ///
    /// # Errors
    /// `LogFull` and `PayloadTooLarge`: the frame is not in the log. An earlier error of the disk.
    pub fn append(&self, payload: &[u8], at: Unix) -> Result<u64, JournalError> {
        self.append_within(payload, at, self.config.buffer_bytes)
    }

    /// Like [`append`](LogWriter::append), but without a limit on the buffer. The caller makes few
    /// changes while the log has no room ([`has_room`](LogWriter::has_room)).
    ///
    /// # Errors
    /// `PayloadTooLarge`: the frame is not in the log. An earlier error of the disk.
    pub fn append_admitted(&self, payload: &[u8], at: Unix) -> Result<u64, JournalError> {
        self.append_within(payload, at, usize::MAX)
    }

    fn append_within(&self, payload: &[u8], at: Unix, buffer_bytes: usize) -> Result<u64, JournalError> {
        self.check()?;
        let bytes = FRAME_HEADER_BYTES + payload.len();
        let limit = self.payload_bytes_max();
        if payload.len() > limit {
            return Err(JournalError::PayloadTooLarge { bytes: payload.len(), limit });
        }
        let mut append = lock(&self.append);
        let buffered = self.buffered.fetch_add(bytes, Ordering::Relaxed);
        if buffered + bytes > buffer_bytes {
            self.buffered.fetch_sub(bytes, Ordering::Relaxed);
            return Err(JournalError::LogFull { buffered, limit: buffer_bytes });
        }
        let sequence = append.next;
        append.next += 1;
        frame::push(&mut append.bytes, sequence, at, payload);
        self.appended.store(sequence, Ordering::Release);
        Ok(sequence)
    }

    /// Maximum size of a payload, in bytes. A frame does not span two files.
    pub fn payload_bytes_max(&self) -> usize {
        let file = usize::try_from(self.config.file_bytes).unwrap_or(usize::MAX);
        (file - FILE_HEADER_BYTES).min(self.config.buffer_bytes).saturating_sub(FRAME_HEADER_BYTES)
    }

    /// Passes everything that was appended to the kernel. Does nothing if this was done for the
    /// frame `sequence` before. Returns the sequence number up to which frames are in the kernel: a
    /// crash of the process does not lose them.
    ///
    /// The result is below `sequence` only if the current file is full and the next one is not
    /// created. Then [`LogWriter::prepare_next`] or [`LogWriter::sync`] must run first.
    ///
    /// # Errors
    /// The disk reports an error, or did so before.
    pub fn flush(&self, sequence: u64) -> Result<u64, JournalError> {
        if self.flushed() >= sequence {
            return Ok(self.flushed());
        }
        let mut files = lock(&self.files);
        self.check()?;
        if self.flushed() < sequence {
            let mut pending = mem::take(&mut files.pending);
            self.take_appended(&mut pending);
            if is_planted(JournalMistake::MarkWrittenBeforeFrames) {
                files.mark.write(self.appended()).map_err(|error| self.fail(error))?;
            }
            let written = self.write(&mut files, &mut pending)?;
            self.buffered.fetch_sub(written, Ordering::Relaxed);
            pending.drain(..written);
            if pending.is_empty() && pending.capacity() > BUFFER_BYTES_KEPT {
                pending = Vec::new();
            }
            files.pending = pending;
            self.note_files(&files);
        }
        Ok(self.flushed())
    }

    /// Appends all frames in the buffer to those in `pending`.
    fn take_appended(&self, pending: &mut Vec<u8>) {
        let mut append = lock(&self.append);
        if pending.is_empty() {
            mem::swap(pending, &mut append.bytes);
        } else {
            pending.append(&mut append.bytes);
        }
    }

    /// Writes as many frames as the current file and the next one have room for, and then the mark
    /// of the last one. Returns the number of bytes written.
    fn write(&self, files: &mut LogFiles, frames: &mut [u8]) -> Result<usize, JournalError> {
        let mut written = 0;
        let mut last = None;
        while written < frames.len() {
            let rest = &mut frames[written..];
            let Some(run) = frame::seal_run(rest, files.current.room(), files.current.seed, self.durable()) else {
                if files.rotate() {
                    continue;
                }
                break;
            };
            files.current.write(&rest[..run.bytes], run).map_err(|error| self.fail(error))?;
            written += run.bytes;
            last = Some(run.last);
        }
        if let Some(last) = last {
            files.mark.write(last).map_err(|error| self.fail(error))?;
            self.flushed.store(last, Ordering::Release);
        }
        Ok(written)
    }

    /// Makes all frames up to `sequence` durable, and everything else that is in the kernel.
    /// Creates the next file if the frames need it. Waits for the disk. Returns the sequence number
    /// up to which frames are durable.
    ///
    /// # Errors
    /// The disk reports an error, or did so before.
    pub fn sync(&self, sequence: u64) -> Result<u64, JournalError> {
        let sequence = sequence.min(self.appended());
        if self.durable() >= sequence {
            return Ok(self.durable());
        }
        while self.flush(sequence)? < sequence {
            self.prepare_next()?;
        }
        let _one = lock(&self.syncing);
        self.check()?;
        if self.durable() >= sequence {
            return Ok(self.durable());
        }
        let (flushed, full, current) = {
            let files = lock(&self.files);
            let current = (files.current.name.clone(), files.current.file.clone());
            (self.flushed(), files.unsynced.clone(), current)
        };
        for (name, file) in full.iter().chain([&current]) {
            let failed = JournalError::storage(StorageOperation::Sync, name, None);
            file.sync().map_err(|cause| self.fail(failed(cause)))?;
        }
        lock(&self.files).unsynced.drain(..full.len());
        self.durable.store(flushed, Ordering::Release);
        Ok(flushed)
    }

    /// Whether [`LogWriter::prepare_next`] should be called soon: at least half of the current file
    /// is used, and no next file exists.
    pub fn needs_next(&self) -> bool {
        self.needs_next.load(Ordering::Relaxed)
    }

    /// Creates the file that the log continues in, unless it exists. Waits for the disk. The log
    /// remains usable after an error, until its buffer is full.
    ///
    /// # Errors
    /// The file cannot be created, for example because the disk is full.
    pub fn prepare_next(&self) -> Result<(), JournalError> {
        let _one = lock(&self.preparing);
        self.check()?;
        let previous = {
            let files = lock(&self.files);
            if files.next.is_some() {
                return Ok(());
            }
            files.current.number
        };
        let number = previous + 1;
        let durable = self.durable();
        let header = FileHeader { number, previous, durable, starts_log: false, ..self.header };
        let next = LogFile::create(&*self.storage, &header)?;
        let mut files = lock(&self.files);
        files.next = Some(next);
        self.note_files(&files);
        Ok(())
    }

    /// Publishes the number of bytes that fit into the files.
    fn note_files(&self, files: &LogFiles) {
        self.room.store(files.room(), Ordering::Release);
        self.needs_next.store(files.needs_next(), Ordering::Relaxed);
    }

    /// Removes the files that contain only frames up to `sequence`. Waits for the disk.
    ///
    /// # Errors
    /// A file cannot be removed. It is tried again with the next snapshot.
    pub(super) fn trim(&self, sequence: u64) -> Result<(), JournalError> {
        let sequence = if is_planted(JournalMistake::LogCutOneRecordLate) { sequence + 1 } else { sequence };
        let removable: Vec<KnownLogFile> = {
            let mut files = lock(&self.files);
            let current = KnownLogFile { number: files.current.number, first: files.current.first };
            files.older.push_back(current);
            let count = files_up_to(files.older.make_contiguous(), sequence);
            files.older.pop_back();
            files.older.range(..count).copied().collect()
        };
        for file in removable {
            let name = names::log_name(file.number);
            self.storage.remove(&name).map_err(JournalError::storage(StorageOperation::Remove, &name, None))?;
            // Only this function removes files, and one snapshot is written at a time.
            lock(&self.files).older.pop_front();
        }
        Ok(())
    }

    /// Whether the log of this process has the frame `next`, or will have it next.
    pub fn has(&self, next: u64) -> bool {
        self.files_from(next).is_some()
    }

    /// The file with the frame `next`, the files after it, and the last one's handle. The files of
    /// earlier processes do not count: they may have frames that this log does not continue.
    fn files_from(&self, next: u64) -> Option<(Vec<KnownLogFile>, Arc<dyn JournalFile>)> {
        let files = lock(&self.files);
        let current = KnownLogFile { number: files.current.number, first: files.current.first };
        let mut known: Vec<KnownLogFile> = files.older.iter().copied().chain([current]).collect();
        known.retain(|file| file.number >= self.header.number);
        let first = known.iter().rposition(|file| file.first.is_some_and(|first| first <= next))?;
        Some((known.split_off(first), files.current.file.clone()))
    }

    /// Opens these files. `None`: the log does not have the frame, or a file was removed.
    pub(super) fn open_files_from(&self, next: u64) -> Result<Option<VecDeque<LiveLogFile>>, JournalError> {
        let Some((known, current)) = self.files_from(next) else { return Ok(None) };
        let newest = known.last().map_or(0, |file| file.number);
        let mut opened = VecDeque::new();
        for KnownLogFile { number, .. } in known {
            let name = names::log_name(number);
            let file = match self.storage.open(&name) {
                _ if number == newest => current.clone(),
                Ok(file) => file,
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
                Err(error) => return Err(JournalError::storage(StorageOperation::Open, &name, None)(error)),
            };
            opened.push_back(LiveLogFile { number, file });
        }
        Ok(Some(opened))
    }

    /// The name of the file that is written.
    pub(super) fn current_file(&self) -> String {
        lock(&self.files).current.name.clone()
    }

    /// The sequence number of the newest frame.
    pub fn appended(&self) -> u64 {
        self.appended.load(Ordering::Acquire)
    }

    /// The sequence number up to which a crash of the process loses no frame.
    pub fn flushed(&self) -> u64 {
        self.flushed.load(Ordering::Acquire)
    }

    /// The sequence number up to which a power loss loses no frame.
    pub fn durable(&self) -> u64 {
        self.durable.load(Ordering::Acquire)
    }

    /// The error after which the log is unusable, if there was one.
    pub fn failure(&self) -> Option<JournalError> {
        self.failure.get().cloned()
    }

    fn check(&self) -> Result<(), JournalError> {
        self.failure().map_or(Ok(()), Err)
    }

    /// Makes the log unusable.
    fn fail(&self, error: JournalError) -> JournalError {
        self.failure.get_or_init(|| error).clone()
    }
}

/// Locks `mutex`. After a panic in another thread, frames may be missing from the buffers, so no
/// thread continues.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("no thread panics while it changes the log")
}
