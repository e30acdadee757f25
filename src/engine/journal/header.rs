//! The header of log files and snapshots: the type of the file, the program that wrote it, and the
//! directory that it belongs to.

use crc32c::crc32c;

use crate::error::{Corruption, JournalError};
use crate::uuid::Uuid;
use mcctl_base::Unix;

/// The format of log files and snapshots that this version writes and reads.
pub const JOURNAL_FORMAT: u16 = 1;
/// The program that writes, as text for the header.
pub(super) const WRITER: &str = concat!("mcctl ", env!("CARGO_PKG_VERSION"));

/// Size of a header: one sector, so that no write of the contents shares a sector with it.
pub(super) const FILE_HEADER_BYTES: usize = 512;

const WRITER_BYTES_MAX: usize = 64;
const CRC_AT: usize = FILE_HEADER_BYTES - 4;

/// The type of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FileKind {
    Log,
    Snapshot,
}

impl FileKind {
    fn magic(self) -> [u8; 8] {
        match self {
            FileKind::Log => *b"MCCTLLOG",
            FileKind::Snapshot => *b"MCCTLSNP",
        }
    }
}

/// The header of a log file or a snapshot.
///
/// All formats have the magic number, the format, the writer and the checksum at the same offsets,
/// so that the writer of an unknown format can be named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FileHeader {
    pub kind: FileKind,
    /// The data directory's UUID.
    pub directory: Uuid,
    /// The kernel's boot ID when the file was created.
    pub boot: Uuid,
    /// The number of the log file, or the sequence number of the snapshot.
    pub number: u64,
    /// Log files: the number of the file that precedes this one, or 0. Files between the two are
    /// not part of the log. 0 in snapshots.
    pub previous: u64,
    /// Log files: frames up to this one were durable when the file was created. 0 in snapshots.
    pub durable: u64,
    /// Log files: this is the first file of a process, and `durable` is the last frame before it.
    /// Frames after `durable` in earlier files are not part of the log. `false` in snapshots.
    pub starts_log: bool,
    /// Log files: the size with which the file was created. 0 in snapshots.
    pub size: u64,
    /// Snapshots: when the snapshot was begun. 0 in log files.
    pub written: Unix,
}

impl FileHeader {
    pub(super) fn encode(&self) -> [u8; FILE_HEADER_BYTES] {
        let mut out = Vec::with_capacity(FILE_HEADER_BYTES);
        let writer = &WRITER.as_bytes()[..WRITER.len().min(WRITER_BYTES_MAX)];
        out.extend_from_slice(&self.kind.magic());
        out.extend_from_slice(&JOURNAL_FORMAT.to_le_bytes());
        #[expect(clippy::cast_possible_truncation, reason = "at most WRITER_BYTES_MAX")]
        out.extend_from_slice(&(writer.len() as u16).to_le_bytes());
        out.extend_from_slice(writer);
        out.resize(12 + WRITER_BYTES_MAX, 0);
        out.extend_from_slice(&self.directory.0.to_le_bytes());
        out.extend_from_slice(&self.boot.0.to_le_bytes());
        let starts_log = u64::from(self.starts_log);
        for word in [self.number, self.previous, self.durable, starts_log, self.size, self.written.0.cast_unsigned()] {
            out.extend_from_slice(&word.to_le_bytes());
        }
        let mut bytes = [0; FILE_HEADER_BYTES];
        bytes[..out.len()].copy_from_slice(&out);
        let crc = crc32c(&bytes[..CRC_AT]);
        bytes[CRC_AT..].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Decodes the header of `file`, which must be of `kind`. `bytes` is the beginning of the file.
    ///
    /// # Errors
    /// `Corrupt` if the bytes are not a header of this kind; `UnknownFormat`.
    pub(super) fn decode(kind: FileKind, file: &str, bytes: &[u8]) -> Result<FileHeader, JournalError> {
        let damaged = || JournalError::corrupt(file, 0, Corruption::FileHeader);
        let bytes: &[u8; FILE_HEADER_BYTES] =
            bytes.get(..FILE_HEADER_BYTES).and_then(|bytes| bytes.try_into().ok()).ok_or_else(damaged)?;
        let crc = u32::from_le_bytes(take(bytes, CRC_AT));
        if take(bytes, 0) != kind.magic() || crc != crc32c(&bytes[..CRC_AT]) {
            return Err(damaged());
        }
        let format = u16::from_le_bytes(take(bytes, 8));
        if format != JOURNAL_FORMAT {
            let file = file.to_owned();
            let writer = writer_of(bytes);
            return Err(JournalError::UnknownFormat { file, found: format.into(), writer });
        }
        let word = |index: usize| u64::from_le_bytes(take(bytes, 108 + 8 * index));
        Ok(FileHeader {
            kind,
            directory: Uuid(u128::from_le_bytes(take(bytes, 76))),
            boot: Uuid(u128::from_le_bytes(take(bytes, 92))),
            number: word(0),
            previous: word(1),
            durable: word(2),
            starts_log: word(3) != 0,
            size: word(4),
            written: Unix(word(5).cast_signed()),
        })
    }

    /// Checks that the header belongs to this directory and to the file with this number.
    ///
    /// # Errors
    /// `Corrupt`.
    pub(super) fn check(&self, file: &str, directory: Uuid, number: u64) -> Result<(), JournalError> {
        if self.directory != directory {
            let found = self.directory.to_string();
            return Err(JournalError::corrupt(file, 76, Corruption::OtherDirectory { found }));
        }
        if self.number != number {
            return Err(JournalError::corrupt(file, 108, Corruption::FileNumber { found: self.number }));
        }
        Ok(())
    }

    /// The first value of the checksums in this file. Bytes of another file, which a disk may show
    /// after a power loss, do not match it.
    pub(super) fn seed(&self) -> u32 {
        crc32c::crc32c_append(crc32c(&self.directory.0.to_le_bytes()), &self.number.to_le_bytes())
    }
}

/// The program that wrote a header whose checksum is right.
pub(super) fn writer_of(bytes: &[u8; FILE_HEADER_BYTES]) -> String {
    let length = usize::from(u16::from_le_bytes(take(bytes, 10))).min(WRITER_BYTES_MAX);
    String::from_utf8_lossy(&bytes[12..12 + length]).into_owned()
}

/// The `N` bytes at `at`. The caller has checked the length.
fn take<const N: usize>(bytes: &[u8; FILE_HEADER_BYTES], at: usize) -> [u8; N] {
    std::array::from_fn(|index| bytes[at + index])
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: FileHeader = FileHeader {
        kind: FileKind::Log,
        directory: Uuid(7),
        boot: Uuid(u128::MAX),
        number: 3,
        previous: 1,
        durable: 1 << 40,
        starts_log: true,
        size: 8192,
        written: Unix(-1),
    };

    #[test]
    fn a_header_round_trips() {
        assert_eq!(FileHeader::decode(FileKind::Log, "f", &LOG.encode()).unwrap(), LOG);
        LOG.check("f", Uuid(7), 3).unwrap();
    }

    #[test]
    fn every_flipped_bit_of_a_header_is_detected() {
        for bit in 0..FILE_HEADER_BYTES * 8 {
            let mut bytes = LOG.encode();
            bytes[bit / 8] ^= 1 << (bit % 8);
            let error = FileHeader::decode(FileKind::Log, "f", &bytes).unwrap_err();
            assert!(
                matches!(error, JournalError::Corrupt { offset: 0, what: Corruption::FileHeader, .. }),
                "{bit}: {error}"
            );
        }
    }

    #[test]
    fn a_header_of_another_kind_or_length_is_refused() {
        assert!(FileHeader::decode(FileKind::Snapshot, "f", &LOG.encode()).is_err());
        assert!(FileHeader::decode(FileKind::Log, "f", &LOG.encode()[..511]).is_err());
        assert!(FileHeader::decode(FileKind::Log, "f", &[]).is_err());
    }

    #[test]
    fn an_unknown_format_names_its_writer() {
        let mut bytes = LOG.encode();
        bytes[8] = 2;
        let crc = crc32c(&bytes[..CRC_AT]);
        bytes[CRC_AT..].copy_from_slice(&crc.to_le_bytes());
        match FileHeader::decode(FileKind::Log, "f", &bytes).unwrap_err() {
            JournalError::UnknownFormat { file, found, writer } => {
                assert_eq!((&*file, found, &*writer), ("f", 2, WRITER))
            }
            other => panic!("{other}"),
        }
    }

    #[test]
    fn a_file_of_another_directory_or_number_is_corrupt() {
        let what = |result: Result<(), JournalError>| match result.unwrap_err() {
            JournalError::Corrupt { what, .. } => what,
            other => panic!("{other}"),
        };
        assert_eq!(what(LOG.check("f", Uuid(8), 3)), Corruption::OtherDirectory { found: Uuid(7).to_string() });
        assert_eq!(what(LOG.check("f", Uuid(7), 4)), Corruption::FileNumber { found: 3 });
    }
}
