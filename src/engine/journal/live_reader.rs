//! Reads the log of the running process, while it is being written.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::error::{Corruption, JournalError};
use crate::frame;
use crate::header::{FILE_HEADER_BYTES, FileHeader, FileKind};
use crate::names;
use crate::storage::{JournalFile, StorageOperation, read_full};
use crate::writer::LogWriter;

/// Number of bytes that are read at once, unless a frame is larger.
const READ_BYTES: usize = 256 << 10;

/// Reads frames in order, up to the last one that the kernel has accepted.
pub struct LiveLogReader {
    /// The files up to the one that was current when they were listed, the first of which is read.
    files: VecDeque<LiveLogFile>,
    /// Offset of the next frame in the first file.
    offset: u64,
    /// The sequence number of the next frame.
    next: u64,
}

/// An open log file. It can be read after it was removed from the directory.
pub(super) struct LiveLogFile {
    pub number: u64,
    pub file: Arc<dyn JournalFile>,
}

impl LiveLogReader {
    /// A reader of the frames from number `next` on, which begins with the first of `files`.
    pub(super) fn new(files: VecDeque<LiveLogFile>, next: u64) -> LiveLogReader {
        LiveLogReader { files, offset: FILE_HEADER_BYTES as u64, next }
    }

    /// The sequence number of the next frame.
    pub fn next(&self) -> u64 {
        self.next
    }

    /// Passes the payloads of the next frames of this writer's log to `visit`: about 256 KiB, or
    /// fewer at the end. Returns their number; 0 if the kernel has not accepted another frame.
    ///
    /// # Errors
    /// A frame is damaged or missing, or the disk reports an error.
    pub fn read(&mut self, writer: &LogWriter, mut visit: impl FnMut(&[u8])) -> Result<u64, JournalError> {
        let mut count = 0;
        let mut bytes = Vec::new();
        // Frames up to this one are in their files.
        let flushed = writer.flushed();
        let mut wanted = READ_BYTES;
        let mut has_listed = false;
        while count == 0 && self.next <= flushed {
            let Some(file) = self.files.front() else {
                let missing = Corruption::Gap { expected: self.next, found: flushed };
                let files = writer.open_files_from(self.next)?.filter(|_| !has_listed);
                self.files = files.ok_or_else(|| JournalError::corrupt(&writer.current_file(), 0, missing))?;
                self.offset = FILE_HEADER_BYTES as u64;
                has_listed = true;
                continue;
            };
            let name = names::log_name(file.number);
            let seed = read_header(&name, &*file.file)?.seed();
            bytes.resize(wanted, 0);
            let failed = JournalError::storage(StorageOperation::Read, &name, Some(self.offset));
            let found = read_full(&*file.file, self.offset, &mut bytes).map_err(failed)?;
            bytes.truncate(found);
            let mut at = 0;
            while let Some(frame) = frame::parse(&bytes[at..], seed).filter(|frame| frame.sequence <= flushed) {
                if frame.sequence > self.next {
                    let what = Corruption::Gap { expected: self.next, found: frame.sequence };
                    return Err(JournalError::corrupt(&name, self.offset + at as u64, what));
                }
                if frame.sequence == self.next {
                    visit(frame.payload);
                    self.next += 1;
                    count += 1;
                }
                at += frame.bytes();
            }
            self.offset += at as u64;
            if at > 0 {
                continue;
            }
            // No complete frame was read: it is longer, or the file ends.
            match frame::size(&bytes).filter(|size| *size > found && found == wanted) {
                Some(size) => wanted = size,
                None => {
                    self.files.pop_front();
                    self.offset = FILE_HEADER_BYTES as u64;
                }
            }
        }
        Ok(count)
    }
}

/// The header of a log file.
fn read_header(name: &str, file: &dyn JournalFile) -> Result<FileHeader, JournalError> {
    let mut bytes = [0; FILE_HEADER_BYTES];
    let failed = JournalError::storage(StorageOperation::Read, name, Some(0));
    let count = read_full(file, 0, &mut bytes).map_err(failed)?;
    FileHeader::decode(FileKind::Log, name, &bytes[..count])
}
