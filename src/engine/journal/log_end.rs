//! The result of reading the log: its end, its files, and which frames are durable.

use crate::error::{Corruption, JournalError};
use crate::frame::Frame;
use crate::header::FILE_HEADER_BYTES;
use crate::log_file::KnownLogFile;

/// The incomplete end of a log. It contains no frame that was known to be durable, and is ignored
/// from now on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TornTail {
    pub file: String,
    pub offset: u64,
    /// Number of bytes up to the last one that is not zero, in this file and the files after it.
    pub bytes: u64,
}

/// The result of reading the log, and the work that is left before the log continues.
#[derive(Clone, Debug)]
pub(super) struct LogEnd {
    /// The sequence number up to which the state was recovered.
    pub last: u64,
    /// Number of frames that were delivered.
    pub frames: u64,
    pub torn: Option<TornTail>,
    /// The position of the next frame: the number of a file, and an offset in it.
    pub position: (u64, u64),
    /// The files of the log, in order.
    pub files: Vec<KnownLogFile>,
    /// The numbers of files that are not part of the log, because an earlier process did not use
    /// them.
    pub foreign: Vec<u64>,
    /// The last frame was written since the kernel started, or there is none.
    pub same_boot: bool,
    /// The highest number of a file, or 0.
    pub newest: u64,
    /// The files that were read begin at this index.
    pub read_from: usize,
    /// The files from this index on contain no frame.
    pub kept: usize,
    /// Frames that were not known to be durable, by file. They are the last ones.
    pub unproved: Vec<UnprovedRange>,
}

/// A range of a log file that this kernel has accepted. An earlier process may have failed to sync
/// it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct UnprovedRange {
    /// The number of the file.
    pub number: u64,
    pub offset: u64,
    pub end: u64,
}

/// Finds the frames that are not known to be durable.
#[derive(Default)]
pub(super) struct DurableFrames {
    durable: u64,
    /// The positions of some frames: sequence number, index of the file, offset.
    marks: Vec<(u64, usize, u64)>,
    /// The end of the last frame in each file that was read, with the index of the file.
    ends: Vec<(usize, u64)>,
}

impl DurableFrames {
    /// Number of frames between two marks.
    const SPACING: u64 = 64;

    pub(super) fn add(&mut self, frame: &Frame<'_>, index: usize, offset: u64) {
        if frame.unsynced != u32::MAX {
            self.durable = self.durable.max(frame.sequence.saturating_sub(u64::from(frame.unsynced) + 1));
        }
        let is_first = self.ends.last().is_none_or(|(last, _)| *last != index);
        if is_first {
            self.ends.push((index, 0));
        }
        if is_first || frame.sequence.is_multiple_of(DurableFrames::SPACING) {
            self.marks.push((frame.sequence, index, offset));
        }
        if let Some((_, end)) = self.ends.last_mut() {
            *end = offset + frame.bytes() as u64;
        }
    }

    /// The ranges from the last mark before the first frame that is not known to be durable.
    pub(super) fn unproved(&self, files: &[KnownLogFile]) -> Vec<UnprovedRange> {
        let behind = self.marks.iter().rev().find(|(sequence, ..)| *sequence <= self.durable + 1);
        let Some(&(_, first, begin)) = behind.or(self.marks.first()) else { return Vec::new() };
        let ends = self.ends.iter().filter(|(index, _)| *index >= first);
        let range = |&(index, end): &(usize, u64)| {
            let offset = if index == first { begin } else { FILE_HEADER_BYTES as u64 };
            UnprovedRange { number: files[index].number, offset, end }
        };
        ends.map(range).collect()
    }
}

/// The file that states the highest durable sequence number.
#[derive(Default)]
pub(super) struct Durable {
    file: String,
    sequence: u64,
}

impl Durable {
    pub(super) fn add(&mut self, file: &str, sequence: u64) {
        if sequence > self.sequence {
            *self = Durable { file: file.to_owned(), sequence };
        }
    }

    /// Checks that a log up to `last` is complete.
    pub(super) fn check(&self, last: u64) -> Result<(), JournalError> {
        if self.sequence <= last {
            return Ok(());
        }
        let what = Corruption::LogEnd { last, durable: self.sequence };
        Err(JournalError::corrupt(&self.file, 0, what))
    }
}
