//! Whether the log keeps up with the changes: the room in its buffer and its files.

use std::sync::atomic::Ordering;

use crate::error::JournalError;
use crate::writer::LogWriter;

/// Divisor of a file's size. The result is kept free for changes that are being made when
/// [`LogWriter::has_room`] becomes false.
const RESERVE_PER_FILE: u64 = 16;

impl LogWriter {
    /// Number of bytes that are appended and not passed to the kernel.
    pub fn unflushed_bytes(&self) -> usize {
        self.buffered.load(Ordering::Relaxed)
    }

    /// Whether more changes should be made now. `false`: the disk is too slow. Half of the buffer
    /// is used, or the files that exist are almost full, so that changes would stay in the buffer.
    /// [`LogWriter::flush`] and [`LogWriter::prepare_next`] make room.
    #[inline]
    pub fn has_room(&self) -> bool {
        let buffered = self.unflushed_bytes();
        let reserve = self.config.file_bytes / RESERVE_PER_FILE;
        buffered <= self.config.buffer_bytes / 2 && buffered as u64 + reserve <= self.room.load(Ordering::Acquire)
    }

    /// Whether the buffer contains more than it should ever contain, so that a caller that appends
    /// many changes must itself wait for the disk.
    pub fn is_overfull(&self) -> bool {
        self.unflushed_bytes() > self.config.buffer_bytes
    }

    /// Passes everything to the kernel, and creates files until the log has room. Waits for the
    /// disk.
    ///
    /// # Errors
    /// The disk reports an error, or did so before. A full disk is one.
    pub fn make_room(&self) -> Result<(), JournalError> {
        loop {
            let last = self.appended();
            if self.flush(last)? >= last && self.has_room() {
                return Ok(());
            }
            self.prepare_next()?;
        }
    }
}
