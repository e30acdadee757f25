//! The mark of the last change that the kernel has accepted. It protects the end of the log while
//! the kernel runs.
//!
//! At the end of the log, a write that a kill has interrupted looks like damage. The mark
//! distinguishes the two: it is written after the frames and before a change counts as stored. So a
//! log that ends before its mark has lost frames, and one that ends at or after it has not.
//!
//! The mark is not synced. After a restart of the host, it may be older or newer than the log on
//! the disk, so it counts only while the boot ID is the same. It has two slots, which are written
//! in turn: if a kill interrupts a write, the other slot has the mark before it.

use std::io;
use std::sync::Arc;

use crc32c::crc32c;

use crate::error::JournalError;
use crate::names;
use crate::storage::{JournalFile, JournalStorage, StorageOperation, read_full};
use crate::uuid::Uuid;

const MAGIC: &[u8; 8] = b"MCCTLFLU";
/// Size of a slot: magic number, directory, boot ID, sequence number and checksum.
const SLOT_BYTES: usize = 52;
const CRC_AT: usize = SLOT_BYTES - 4;
const SLOTS: u64 = 2;
#[expect(clippy::cast_possible_truncation, reason = "a small constant")]
const FILE_BYTES: usize = SLOT_BYTES * SLOTS as usize;

/// The open file of a running log.
pub(super) struct FlushedMark {
    file: Arc<dyn JournalFile>,
    directory: Uuid,
    boot: Uuid,
    /// Number of marks that were written.
    written: u64,
}

impl FlushedMark {
    /// Creates the file, without a mark. A mark of an earlier process is lost, so the header of the
    /// log must state which changes that process has stored.
    ///
    /// # Errors
    /// The file cannot be created.
    pub(super) fn create(
        storage: &dyn JournalStorage,
        directory: Uuid,
        boot: Uuid,
    ) -> Result<FlushedMark, JournalError> {
        let failed = JournalError::storage(StorageOperation::Create, names::FLUSHED, None);
        let file = storage.create(names::FLUSHED, FILE_BYTES as u64).map_err(failed)?;
        Ok(FlushedMark { file, directory, boot, written: 0 })
    }

    /// States that the kernel has all frames up to `sequence`.
    ///
    /// # Errors
    /// The disk reports an error.
    pub(super) fn write(&mut self, sequence: u64) -> Result<(), JournalError> {
        let offset = self.written % SLOTS * SLOT_BYTES as u64;
        let failed = |cause| JournalError::storage(StorageOperation::Write, names::FLUSHED, Some(offset))(cause);
        self.file.write_at(offset, &encode(self.directory, self.boot, sequence)).map_err(failed)?;
        self.written += 1;
        Ok(())
    }

    /// The last change that a process has stored under this kernel. `None`: not known.
    ///
    /// # Errors
    /// The disk reports an error.
    pub(super) fn load(storage: &dyn JournalStorage, directory: Uuid, boot: Uuid) -> Result<Option<u64>, JournalError> {
        let file = match storage.open(names::FLUSHED) {
            Ok(file) => file,
            // An earlier release, or a process that ended before it began a log.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(JournalError::storage(StorageOperation::Open, names::FLUSHED, None)(error)),
        };
        let mut bytes = [0; FILE_BYTES];
        let failed = JournalError::storage(StorageOperation::Read, names::FLUSHED, Some(0));
        read_full(&*file, 0, &mut bytes).map_err(failed)?;
        Ok(bytes.chunks_exact(SLOT_BYTES).filter_map(|slot| decode(slot, directory, boot)).max())
    }
}

fn encode(directory: Uuid, boot: Uuid, sequence: u64) -> [u8; SLOT_BYTES] {
    let mut slot = [0; SLOT_BYTES];
    slot[..8].copy_from_slice(MAGIC);
    slot[8..24].copy_from_slice(&directory.0.to_le_bytes());
    slot[24..40].copy_from_slice(&boot.0.to_le_bytes());
    slot[40..CRC_AT].copy_from_slice(&sequence.to_le_bytes());
    let crc = crc32c(&slot[..CRC_AT]);
    slot[CRC_AT..].copy_from_slice(&crc.to_le_bytes());
    slot
}

/// The sequence number in a slot. `None`: the slot is empty, damaged, or of another directory or
/// kernel.
fn decode(slot: &[u8], directory: Uuid, boot: Uuid) -> Option<u64> {
    let sequence = u64::from_le_bytes(slot.get(40..CRC_AT)?.try_into().ok()?);
    (slot == encode(directory, boot, sequence)).then_some(sequence)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Crash, SimulatedStorage};

    const DIRECTORY: Uuid = Uuid(7);
    const BOOT: Uuid = Uuid(8);

    fn load(storage: &SimulatedStorage) -> Option<u64> {
        FlushedMark::load(storage, DIRECTORY, BOOT).unwrap()
    }

    #[test]
    fn a_mark_counts_in_its_directory_under_its_kernel() {
        let storage = SimulatedStorage::new(1);
        assert_eq!(load(&storage), None, "an earlier release has no mark");
        let mut mark = FlushedMark::create(&storage, DIRECTORY, BOOT).unwrap();
        assert_eq!(load(&storage), None);
        for sequence in [3, 4, 9] {
            mark.write(sequence).unwrap();
            assert_eq!(load(&storage), Some(sequence));
        }
        assert_eq!(FlushedMark::load(&storage, Uuid(1), BOOT).unwrap(), None);
        assert_eq!(FlushedMark::load(&storage, DIRECTORY, Uuid(1)).unwrap(), None);
        FlushedMark::create(&storage, DIRECTORY, BOOT).unwrap();
        assert_eq!(load(&storage), None, "a new log");
    }

    #[test]
    fn an_interrupted_write_leaves_the_mark_before_it() {
        for seed in 0..200 {
            let storage = SimulatedStorage::new(seed);
            let mut mark = FlushedMark::create(&storage, DIRECTORY, BOOT).unwrap();
            (1..=4).for_each(|sequence| mark.write(sequence).unwrap());
            let count: u64 = storage.operations().values().sum();
            storage.stop_at(count + 1);
            assert!(mark.write(5).is_err());
            let found = load(&storage.crash(Crash::Kill));
            assert!([Some(4), Some(5)].contains(&found), "{seed}: {found:?}");
        }
    }

    #[test]
    fn every_flipped_bit_of_a_mark_is_detected() {
        let slot = encode(DIRECTORY, BOOT, 5);
        for bit in 0..SLOT_BYTES * 8 {
            let mut bytes = slot;
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(decode(&bytes, DIRECTORY, BOOT), None, "{bit}");
        }
        assert_eq!(decode(&[0; SLOT_BYTES], DIRECTORY, BOOT), None);
    }
}
