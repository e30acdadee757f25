//! Reads the log of the running process, while it is being written.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::error::{Corruption, JournalError};
use crate::frame::{self, FRAME_HEADER_BYTES};
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
    /// A reader of the frames from number `next` on. Its first read opens the files.
    pub fn new(next: u64) -> LiveLogReader {
        LiveLogReader { files: VecDeque::new(), offset: FILE_HEADER_BYTES as u64, next }
    }

    /// The sequence number of the next frame.
    pub fn next(&self) -> u64 {
        self.next
    }

    /// Passes the payloads of the next frames of this writer's log to `visit`: about 256 KiB, or
    /// fewer at the end. Returns their number; 0 if the kernel has not accepted another frame, and
    /// `None` if the log does not have the next frame, or no longer: a snapshot has replaced it.
    ///
    /// # Errors
    /// A frame is damaged or missing, or the disk reports an error.
    pub fn read(&mut self, writer: &LogWriter, mut visit: impl FnMut(&[u8])) -> Result<Option<u64>, JournalError> {
        let mut count = 0;
        let mut bytes = Vec::new();
        // Frames up to this one are in their files.
        let flushed = writer.flushed();
        let mut wanted = READ_BYTES;
        let mut has_listed = false;
        while count == 0 && self.next <= flushed {
            let Some(file) = self.files.front() else {
                if has_listed {
                    let missing = Corruption::Gap { expected: self.next, found: flushed };
                    return Err(JournalError::corrupt(&writer.current_file(), 0, missing));
                }
                let Some(files) = writer.open_files_from(self.next)? else { return Ok(None) };
                self.files = files;
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
            let longest = FRAME_HEADER_BYTES + writer.payload_bytes_max();
            match frame::size(&bytes).filter(|size| *size > found && found == wanted && *size <= longest) {
                Some(size) => wanted = size,
                None => {
                    self.files.pop_front();
                    self.offset = FILE_HEADER_BYTES as u64;
                }
            }
        }
        Ok(Some(count))
    }
}

/// The header of a log file.
fn read_header(name: &str, file: &dyn JournalFile) -> Result<FileHeader, JournalError> {
    let mut bytes = [0; FILE_HEADER_BYTES];
    let failed = JournalError::storage(StorageOperation::Read, name, Some(0));
    let count = read_full(file, 0, &mut bytes).map_err(failed)?;
    FileHeader::decode(FileKind::Log, name, &bytes[..count])
}
