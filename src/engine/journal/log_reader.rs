//! Reads the log after a start, and decides whether a damaged frame is the end of the log or
//! corruption.
//!
//! A frame that is damaged or missing is the end of the log if no valid frame follows: the process
//! or the kernel died while it was being written. It is also the end if only frames follow that
//! were written without knowing whether this one is durable, and the kernel that wrote them died:
//! the disk may write in any order. Everything else is corruption.
//!
//! Frames before the position of a snapshot are not needed. Damage among them is skipped.

use crate::error::{Corruption, JournalError};
use crate::frame::{self, FRAME_HEADER_BYTES, Frame};
use crate::header::{FILE_HEADER_BYTES, FileHeader, FileKind};
use crate::log_end::{Durable, DurableFrames, LogEnd, TornTail};
use crate::log_file::KnownLogFile;
use crate::names;
use crate::storage::{JournalStorage, StorageOperation, read_full};
use crate::uuid::Uuid;
use crate::writer::LOG_FILE_SIZES;

/// A frame of the log and its position.
pub(super) struct LoggedFrame<'a> {
    pub frame: Frame<'a>,
    pub file: &'a str,
    pub offset: u64,
}

/// Reads the log files of a data directory.
pub(super) struct LogReader<'a> {
    storage: &'a dyn JournalStorage,
    directory: Uuid,
    boot: Uuid,
    /// The numbers of the files of the log, in order, and their headers. `None`: the header is
    /// damaged.
    files: Vec<(u64, Option<FileHeader>)>,
    foreign: Vec<u64>,
    /// The number of the file before the first one, or 0.
    previous: u64,
}

/// The contents of a log file.
struct LoadedLogFile {
    name: String,
    header: FileHeader,
    seed: u32,
    bytes: Vec<u8>,
}

/// A position in the log: the index of a file, and an offset in it.
struct LogPosition {
    index: usize,
    file: LoadedLogFile,
    offset: usize,
    /// The sequence number of the next frame. `None`: any up to the first needed one.
    expected: Option<u64>,
}

impl LogPosition {
    /// The frame at the position, if it is the next one.
    fn frame(&self, needed: u64) -> Option<Frame<'_>> {
        let frame = frame::parse(&self.file.bytes[self.offset..], self.file.seed)?;
        let is_next = self.expected.map_or(frame.sequence <= needed, |expected| frame.sequence == expected);
        is_next.then_some(frame)
    }
}

impl<'a> LogReader<'a> {
    /// Finds the files of the log among those with these numbers. `boot` is the boot ID of the
    /// running kernel.
    ///
    /// # Errors
    /// `UnknownFormat`, or the disk reports an error.
    pub(super) fn new(
        storage: &'a dyn JournalStorage,
        directory: Uuid,
        boot: Uuid,
        mut all: Vec<u64>,
    ) -> Result<LogReader<'a>, JournalError> {
        all.sort_unstable();
        let mut reader = LogReader { storage, directory, boot, files: Vec::new(), foreign: Vec::new(), previous: 0 };
        let mut is_last = true;
        while let Some(number) = all.pop() {
            if !is_last && number != reader.previous {
                reader.foreign.push(number);
                continue;
            }
            let header = reader.header(&names::log_name(number))?;
            let next_lower = all.last().copied().unwrap_or(0);
            reader.previous = header.as_ref().map_or(next_lower, |header| header.previous);
            reader.files.push((number, header));
            is_last = false;
        }
        reader.files.reverse();
        Ok(reader)
    }

    /// The header of a file. `None`: it is damaged, which is an error only if the file is needed.
    fn header(&self, name: &str) -> Result<Option<FileHeader>, JournalError> {
        let error = |operation| JournalError::storage(operation, name, None);
        let file = self.storage.open(name).map_err(error(StorageOperation::Open))?;
        let mut bytes = [0; FILE_HEADER_BYTES];
        let count = read_full(&*file, 0, &mut bytes).map_err(error(StorageOperation::Read))?;
        match FileHeader::decode(FileKind::Log, name, &bytes[..count]) {
            Ok(header) => Ok(Some(header)),
            Err(JournalError::Corrupt { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Delivers the frames from `needed` on. `read_from` is the result of
    /// [`LogReader::first_needed_file`].
    ///
    /// # Errors
    /// Errors of `visit`; `Corrupt`; `UnknownFormat`; the disk reports an error.
    pub(super) fn read<E: From<JournalError>>(
        &self,
        needed: u64,
        read_from: usize,
        mut visit: impl FnMut(LoggedFrame<'_>) -> Result<(), E>,
    ) -> Result<LogEnd, E> {
        let mut end = LogEnd {
            last: needed - 1,
            frames: 0,
            torn: None,
            position: (self.files.get(read_from).map_or(0, |(number, _)| *number), FILE_HEADER_BYTES as u64),
            same_boot: true,
            files: self.files.iter().map(|(number, _)| KnownLogFile { number: *number, first: None }).collect(),
            foreign: self.foreign.clone(),
            newest: self.files.last().map_or(0, |(number, _)| *number),
            read_from,
            kept: read_from,
            unproved: Vec::new(),
        };
        let mut frames = DurableFrames::default();
        // The frames that were durable when a file was created: the most that any file states.
        let mut durable = Durable::default();
        let Some(file) = self.load(read_from, &mut durable)? else { return Ok(end) };
        let mut at = LogPosition { index: read_from, file, offset: FILE_HEADER_BYTES, expected: None };
        loop {
            let limit = self.limit(at.index);
            let is_needed = limit.is_none_or(|limit| limit >= needed);
            let is_over = !is_needed || at.expected.zip(limit).is_some_and(|(expected, limit)| expected > limit);
            if let Some(frame) = at.frame(needed).filter(|_| !is_over) {
                if frame.sequence >= needed {
                    visit(LoggedFrame { frame, file: &at.file.name, offset: at.offset as u64 })?;
                    end.last = frame.sequence;
                    end.frames += 1;
                }
                end.same_boot = at.file.header.boot == self.boot;
                if end.same_boot {
                    frames.add(&frame, at.index, at.offset as u64);
                }
                end.files[at.index].first.get_or_insert(frame.sequence);
                end.kept = at.index + 1;
                let next = at.offset + frame.bytes();
                at.expected = Some(frame.sequence + 1);
                at.offset = next;
                end.position = (self.files[at.index].0, at.offset as u64);
            } else if is_over || frame::used_bytes(&at.file.bytes[at.offset..]) == 0 {
                let index = at.index + 1;
                if is_over {
                    // The previous snapshot may need this file.
                    end.kept = index;
                }
                if !is_needed && at.frame(needed).is_some() {
                    end.same_boot = at.file.header.boot == self.boot;
                }
                let Some(file) = self.load(index, &mut durable)? else { break };
                let expected = at.expected.filter(|_| is_needed);
                at = LogPosition { index, file, offset: FILE_HEADER_BYTES, expected };
            } else if let Some(next) = self.frame_behind(&at, needed, &mut durable)? {
                at = next;
            } else {
                end.kept = at.index + 1;
                end.torn = Some(self.torn_tail(&at)?);
                break;
            }
        }
        durable.check(end.last)?;
        end.unproved = frames.unproved(&end.files);
        Ok(end)
    }

    /// The index of the last file whose first frame is not after `needed`. The files before it need
    /// not be read.
    ///
    /// # Errors
    /// `Corrupt`: the log begins after `needed`. The disk reports an error.
    pub(super) fn first_needed_file(&self, needed: u64) -> Result<usize, JournalError> {
        for index in (0..self.files.len()).rev() {
            if self.first_sequence(index)?.is_some_and(|first| first <= needed) {
                return Ok(index);
            }
        }
        match self.files.first() {
            Some((first, _)) if self.previous != 0 => {
                let what = Corruption::NoPrevious { number: self.previous };
                Err(JournalError::corrupt(&names::log_name(*first), 0, what))
            }
            _ => Ok(0),
        }
    }

    /// The sequence number of the first frame in a file. `None`: the file does not begin with a
    /// valid frame.
    fn first_sequence(&self, index: usize) -> Result<Option<u64>, JournalError> {
        let (number, Some(header)) = &self.files[index] else { return Ok(None) };
        let name = names::log_name(*number);
        let open = JournalError::storage(StorageOperation::Open, &name, None);
        let file = self.storage.open(&name).map_err(open)?;
        let read = |length: usize| -> Result<Vec<u8>, JournalError> {
            let mut bytes = vec![0; length];
            let failed = JournalError::storage(StorageOperation::Read, &name, Some(FILE_HEADER_BYTES as u64));
            let count = read_full(&*file, FILE_HEADER_BYTES as u64, &mut bytes).map_err(failed)?;
            bytes.truncate(count);
            Ok(bytes)
        };
        let size = frame::size(&read(FRAME_HEADER_BYTES)?).unwrap_or(usize::MAX);
        if size as u64 > header.size.min(*LOG_FILE_SIZES.end()) {
            return Ok(None);
        }
        Ok(frame::parse(&read(size)?, header.seed()).map(|frame| frame.sequence))
    }

    /// Reads a whole file. `None`: no file has this index.
    fn load(&self, index: usize, durable: &mut Durable) -> Result<Option<LoadedLogFile>, JournalError> {
        let Some(&(number, _)) = self.files.get(index) else { return Ok(None) };
        let name = names::log_name(number);
        let error = |operation| JournalError::storage(operation, &name, None);
        let file = self.storage.open(&name).map_err(error(StorageOperation::Open))?;
        let found = file.size().map_err(error(StorageOperation::Read))?;
        let mut bytes = vec![0; FILE_HEADER_BYTES];
        let count = read_full(&*file, 0, &mut bytes).map_err(error(StorageOperation::Read))?;
        let header = FileHeader::decode(FileKind::Log, &name, &bytes[..count])?;
        header.check(&name, self.directory, number)?;
        if found != header.size || !LOG_FILE_SIZES.contains(&found) {
            let offset = found.min(header.size);
            let expected = header.size;
            return Err(JournalError::corrupt(&name, offset, Corruption::FileSize { found, expected }));
        }
        bytes.resize(usize::try_from(found).unwrap_or(usize::MAX), 0);
        read_full(&*file, 0, &mut bytes).map_err(error(StorageOperation::Read))?;
        durable.add(&name, header.durable);
        Ok(Some(LoadedLogFile { name, seed: header.seed(), header, bytes }))
    }

    /// Looks for valid frames after a position without one. Returns where reading continues, if
    /// only frames that are not needed are damaged. `None`: the log ends.
    ///
    /// # Errors
    /// `Corrupt`: a needed frame is damaged or missing, and it was durable.
    fn frame_behind(
        &self,
        at: &LogPosition,
        needed: u64,
        durable: &mut Durable,
    ) -> Result<Option<LogPosition>, JournalError> {
        let missing = at.expected.unwrap_or(needed).max(needed);
        let mut is_first = true;
        let mut loaded = None;
        for index in at.index..self.files.len() {
            if index > at.index {
                loaded = self.load(index, durable)?;
            }
            let file = loaded.as_ref().unwrap_or(&at.file);
            let mut from = if index == at.index { at.offset } else { FILE_HEADER_BYTES };
            let limit = self.limit(index).unwrap_or(u64::MAX);
            while let Some((offset, frame)) = frame::find(&file.bytes, from, file.seed, at.expected.unwrap_or(1)) {
                from = offset + frame.bytes();
                if frame.sequence > limit {
                    continue;
                }
                if is_first && frame.sequence <= needed {
                    let expected = Some(frame.sequence);
                    let file = self.load(index, durable)?;
                    return Ok(file.map(|file| LogPosition { index, file, offset, expected }));
                }
                // The kernel that accepted this frame had accepted all frames before it.
                let is_kernel_alive = file.header.boot == self.boot;
                if is_kernel_alive || frame.sequence <= missing || frame.proves_durable(missing) {
                    let what = if index == at.index && offset == at.offset {
                        Corruption::Gap { expected: missing, found: frame.sequence }
                    } else {
                        Corruption::Frame { expected: missing, next: frame.sequence }
                    };
                    return Err(JournalError::corrupt(&at.file.name, at.offset as u64, what));
                }
                is_first = false;
            }
        }
        Ok(None)
    }

    /// The last frame of the log that is in a file, if later frames are ignored.
    fn limit(&self, index: usize) -> Option<u64> {
        let header = self.files.get(index + 1)?.1.as_ref()?;
        header.starts_log.then_some(header.durable)
    }

    /// Describes the bytes after the position at which the log ends.
    fn torn_tail(&self, at: &LogPosition) -> Result<TornTail, JournalError> {
        let mut bytes = frame::used_bytes(&at.file.bytes[at.offset..]) as u64;
        for index in at.index + 1..self.files.len() {
            let file = self.load(index, &mut Durable::default())?;
            bytes += file.map_or(0, |file| frame::used_bytes(&file.bytes[FILE_HEADER_BYTES..]) as u64);
        }
        Ok(TornTail { file: at.file.name.clone(), offset: at.offset as u64, bytes })
    }
}
