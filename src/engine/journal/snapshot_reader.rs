//! Reads snapshots, and checks that they are complete.

use std::sync::Arc;

use crate::error::{Corruption, JournalError};
use crate::header::{FILE_HEADER_BYTES, FileHeader, FileKind};
use crate::names;
use crate::planted::{JournalMistake, is_planted};
use crate::snapshot::{
    CHUNK_BYTES_MAX, CHUNK_HEADER_BYTES, SnapshotTrailer, TRAILER_BYTES, TRAILER_KIND, chunk_checksum,
};
use crate::storage::{JournalFile, JournalStorage, StorageOperation, read_full};
use crate::uuid::Uuid;
use mcctl_base::Unix;

/// The next part of a snapshot.
pub(super) enum SnapshotPart {
    /// A chunk of this kind.
    Chunk(u8),
    /// The trailer. The snapshot is complete.
    End(SnapshotTrailer),
}

/// Reads a snapshot from its beginning to its trailer.
pub(super) struct SnapshotReader {
    name: String,
    file: Arc<dyn JournalFile>,
    header: FileHeader,
    size: u64,
    offset: u64,
    chunks: u64,
}

impl SnapshotReader {
    /// Opens the snapshot after frame `sequence`.
    ///
    /// # Errors
    /// `Corrupt` or `UnknownFormat` because of the header, or the disk reports an error.
    pub(super) fn open(
        storage: &dyn JournalStorage,
        directory: Uuid,
        sequence: u64,
    ) -> Result<SnapshotReader, JournalError> {
        let name = names::snapshot_name(sequence);
        let error = |operation| JournalError::storage(operation, &name, None);
        let file = storage.open(&name).map_err(error(StorageOperation::Open))?;
        let size = file.size().map_err(error(StorageOperation::Read))?;
        let mut bytes = [0; FILE_HEADER_BYTES];
        let count = read_full(&*file, 0, &mut bytes).map_err(error(StorageOperation::Read))?;
        let header = FileHeader::decode(FileKind::Snapshot, &name, &bytes[..count])?;
        header.check(&name, directory, sequence)?;
        let offset = FILE_HEADER_BYTES as u64;
        Ok(SnapshotReader { name, file, header, size, offset, chunks: 0 })
    }

    /// The time at which the snapshot was begun.
    pub(super) fn written(&self) -> Unix {
        self.header.written
    }

    /// Reads the next part. The payload of a chunk is placed in `payload`.
    ///
    /// # Errors
    /// `Corrupt`, or the disk reports an error.
    pub(super) fn next(&mut self, payload: &mut Vec<u8>) -> Result<SnapshotPart, JournalError> {
        if self.offset == self.size && is_planted(JournalMistake::TrailerNotChecked) {
            return Ok(SnapshotPart::End(SnapshotTrailer { items: 0, digest: 0 }));
        }
        let mut header = [0; CHUNK_HEADER_BYTES];
        if self.read(self.offset, &mut header)? < CHUNK_HEADER_BYTES {
            return Err(self.corrupt(Corruption::Trailer));
        }
        let [c0, c1, c2, c3, l0, l1, l2, l3, kind] = header;
        let crc = u32::from_le_bytes([c0, c1, c2, c3]);
        let length = u32::from_le_bytes([l0, l1, l2, l3]);
        let end = self.offset + CHUNK_HEADER_BYTES as u64 + u64::from(length);
        if length as usize > CHUNK_BYTES_MAX || end > self.size {
            return Err(self.damaged());
        }
        payload.resize(length as usize, 0);
        let read = self.read(self.offset + CHUNK_HEADER_BYTES as u64, payload)?;
        if read < payload.len() || chunk_checksum(self.header.seed(), self.chunks, length, kind, payload) != crc {
            return Err(self.damaged());
        }
        if kind == TRAILER_KIND {
            return self.trailer(payload, end).map(SnapshotPart::End);
        }
        self.offset = end;
        self.chunks += 1;
        Ok(SnapshotPart::Chunk(kind))
    }

    /// Checks the trailer, which ends at `end`.
    fn trailer(&self, payload: &[u8], end: u64) -> Result<SnapshotTrailer, JournalError> {
        let incomplete = || self.corrupt(Corruption::Trailer);
        let bytes: &[u8; TRAILER_BYTES] = payload.try_into().map_err(|_| incomplete())?;
        let word = |index: usize| u64::from_le_bytes(std::array::from_fn(|byte| bytes[8 * index + byte]));
        if word(0) != self.chunks || end != self.size {
            return Err(incomplete());
        }
        Ok(SnapshotTrailer { items: word(1), digest: word(2) })
    }

    /// Reads and checks all chunks and the trailer.
    ///
    /// # Errors
    /// `Corrupt`, or the disk reports an error.
    pub(super) fn verify(mut self) -> Result<(), JournalError> {
        let mut payload = Vec::new();
        while let SnapshotPart::Chunk(_) = self.next(&mut payload)? {}
        Ok(())
    }

    fn read(&self, offset: u64, buffer: &mut [u8]) -> Result<usize, JournalError> {
        let failed = |cause| JournalError::storage(StorageOperation::Read, &self.name, Some(offset))(cause);
        read_full(&*self.file, offset, buffer).map_err(failed)
    }

    fn damaged(&self) -> JournalError {
        self.corrupt(Corruption::Chunk { index: self.chunks })
    }

    fn corrupt(&self, what: Corruption) -> JournalError {
        JournalError::corrupt(&self.name, self.offset, what)
    }
}
