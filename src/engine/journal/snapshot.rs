//! The file of a snapshot, and its writer.
//!
//! A snapshot is a header, chunks and a trailer. A chunk is a checksum, the length of the payload,
//! a kind and the payload. The trailer is a chunk of its own kind with the number of chunks, the
//! number of items and the caller's digest of the state. The checksum covers the chunk's position,
//! too, so that a missing or repeated chunk is detected.

use std::sync::Arc;

use crc32c::crc32c_append;

use crate::error::JournalError;
use crate::header::FileHeader;
use crate::names;
use crate::planted::{JournalMistake, is_planted};
use crate::storage::{JournalFile, JournalStorage, StorageOperation};

/// Size of a chunk's header.
pub(super) const CHUNK_HEADER_BYTES: usize = 9;
/// The kind of the trailer. A caller's kinds are below.
pub(super) const TRAILER_KIND: u8 = u8::MAX;
/// Size of the trailer's payload.
pub(super) const TRAILER_BYTES: usize = 24;
/// Maximum size of a chunk's payload, in bytes.
pub const CHUNK_BYTES_MAX: usize = 64 << 20;

/// Number of bytes after which the file is synced while it is written, so that the last sync does
/// not take long.
const SYNC_EVERY_BYTES: u64 = 8 << 20;
/// Number of bytes that are collected for one write.
const WRITE_BYTES: usize = 256 << 10;

/// The caller's summary of the contents of a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SnapshotTrailer {
    /// The number of items in all chunks, counted by the caller.
    pub items: u64,
    /// The digest of the state, calculated by the caller.
    pub digest: u64,
}

/// The checksum of the chunk at position `index`, from its length to the end of its payload.
pub(super) fn chunk_checksum(seed: u32, index: u64, length: u32, kind: u8, payload: &[u8]) -> u32 {
    let mut prefix = [0; 13];
    prefix[..8].copy_from_slice(&index.to_le_bytes());
    prefix[8..12].copy_from_slice(&length.to_le_bytes());
    prefix[12] = kind;
    crc32c_append(crc32c_append(seed, &prefix), payload)
}

/// Writes a snapshot. It has a temporary name until [`DataDir::publish_snapshot`].
///
/// [`DataDir::publish_snapshot`]: crate::DataDir::publish_snapshot
pub struct SnapshotWriter {
    storage: Arc<dyn JournalStorage>,
    file: Arc<dyn JournalFile>,
    temporary: String,
    name: String,
    seed: u32,
    sequence: u64,
    chunks: u64,
    buffer: Vec<u8>,
    written: u64,
    synced: u64,
    /// The file has its final name.
    renamed: bool,
}

impl Drop for SnapshotWriter {
    /// Removes the file of a snapshot that was not completed. If that fails, the next start removes
    /// it.
    fn drop(&mut self) {
        if !self.renamed {
            let _ = self.storage.remove(&self.temporary);
        }
    }
}

impl SnapshotWriter {
    /// Creates the temporary file.
    ///
    /// # Errors
    /// The disk reports an error.
    pub(super) fn create(
        storage: Arc<dyn JournalStorage>,
        header: &FileHeader,
    ) -> Result<SnapshotWriter, JournalError> {
        let name = names::snapshot_name(header.number);
        let temporary = names::temporary(&name);
        let file =
            storage.create(&temporary, 0).map_err(JournalError::storage(StorageOperation::Create, &temporary, None))?;
        Ok(SnapshotWriter {
            storage,
            file,
            temporary,
            name,
            seed: header.seed(),
            sequence: header.number,
            chunks: 0,
            buffer: header.encode().to_vec(),
            written: 0,
            synced: 0,
            renamed: false,
        })
    }

    /// The sequence number of the last frame whose effect is in the snapshot.
    pub fn sequence(&self) -> u64 {
        self.sequence
    }

    /// Adds a chunk. `kind` is passed to the reader unchanged; 255 is reserved.
    ///
    /// # Errors
    /// `PayloadTooLarge`, or the disk reports an error.
    pub fn chunk(&mut self, kind: u8, payload: &[u8]) -> Result<(), JournalError> {
        assert!(kind != TRAILER_KIND, "the kind {kind} is reserved");
        if payload.len() > CHUNK_BYTES_MAX {
            return Err(JournalError::PayloadTooLarge { bytes: payload.len(), limit: CHUNK_BYTES_MAX });
        }
        self.add(kind, payload)
    }

    fn add(&mut self, kind: u8, payload: &[u8]) -> Result<(), JournalError> {
        #[expect(clippy::cast_possible_truncation, reason = "at most CHUNK_BYTES_MAX")]
        let length = payload.len() as u32;
        let crc = chunk_checksum(self.seed, self.chunks, length, kind, payload);
        self.buffer.extend_from_slice(&crc.to_le_bytes());
        self.buffer.extend_from_slice(&length.to_le_bytes());
        self.buffer.push(kind);
        self.buffer.extend_from_slice(payload);
        self.chunks += 1;
        if self.buffer.len() >= WRITE_BYTES { self.write() } else { Ok(()) }
    }

    fn write(&mut self) -> Result<(), JournalError> {
        let failed = JournalError::storage(StorageOperation::Write, &self.temporary, Some(self.written));
        self.file.write_at(self.written, &self.buffer).map_err(failed)?;
        self.written += self.buffer.len() as u64;
        self.buffer.clear();
        if self.written - self.synced >= SYNC_EVERY_BYTES { self.sync() } else { Ok(()) }
    }

    fn sync(&mut self) -> Result<(), JournalError> {
        self.file.sync().map_err(JournalError::storage(StorageOperation::Sync, &self.temporary, None))?;
        self.synced = self.written;
        Ok(())
    }

    /// Adds the trailer, makes the file durable, and gives it its name. The snapshot is durable
    /// when this returns.
    ///
    /// # Errors
    /// The disk reports an error. Then the temporary file is removed, or the snapshot may be
    /// complete.
    pub(super) fn finish(mut self, summary: SnapshotTrailer) -> Result<(), JournalError> {
        let numbers = [self.chunks, summary.items, summary.digest];
        let trailer: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
        self.add(TRAILER_KIND, &trailer)?;
        self.write()?;
        let sync_late = is_planted(JournalMistake::SnapshotRenamedBeforeSync);
        if !sync_late {
            self.sync()?;
        }
        let rename = JournalError::storage(StorageOperation::Rename, &self.temporary, None);
        self.storage.rename(&self.temporary, &self.name).map_err(rename)?;
        self.renamed = true;
        let sync_directory = JournalError::storage(StorageOperation::SyncDirectory, &self.storage.path(), None);
        self.storage.sync_directory("").map_err(sync_directory)?;
        if sync_late { self.sync() } else { Ok(()) }
    }
}
