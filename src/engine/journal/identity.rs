//! The file that identifies a data directory: its UUID, and the cluster that it belongs to.

use crc32c::crc32c;
use serde::{Deserialize, Serialize};

use crate::error::{Corruption, JournalError};
use crate::header::WRITER;
use crate::names;
use crate::storage::{JournalStorage, StorageOperation, read_full};
use crate::uuid::Uuid;

/// The format of the identity file.
const IDENTITY_FORMAT: u32 = 1;
/// Maximum size of the identity file, in bytes.
const IDENTITY_BYTES_MAX: usize = 64 << 10;

/// The contents of the identity file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct DirectoryIdentity {
    format: u32,
    pub cluster_id: String,
    uuid: String,
    writer: String,
    /// Whether a log was ever begun in the directory. Then at least one log file exists.
    pub started: bool,
}

/// Size of the end of the file: the checksum's field and the closing brace.
const CHECKSUM_BYTES: usize = r#","checksum":"00000000"}"#.len();

/// The end of the file for these fields.
fn checksum_field(fields: &[u8]) -> String {
    format!(r#","checksum":"{:08x}"}}"#, crc32c(fields))
}

/// The fields that all formats have.
#[derive(Deserialize)]
struct IdentityFormat {
    format: u32,
    writer: String,
}

impl DirectoryIdentity {
    pub(super) fn new(cluster_id: &str, uuid: Uuid) -> DirectoryIdentity {
        let cluster_id = cluster_id.to_owned();
        let uuid = uuid.to_string();
        let writer = WRITER.to_owned();
        DirectoryIdentity { format: IDENTITY_FORMAT, cluster_id, uuid, writer, started: false }
    }

    /// The contents of the file.
    fn encode(&self) -> String {
        let fields = serde_json::to_string(self).expect("strings and numbers are valid JSON");
        let fields = fields.trim_end_matches('}');
        format!("{fields}{}\n", checksum_field(fields.as_bytes()))
    }

    /// Reads the file.
    ///
    /// # Errors
    /// `Corrupt`, `UnknownFormat`, or the disk reports an error.
    pub(super) fn load(storage: &dyn JournalStorage) -> Result<DirectoryIdentity, JournalError> {
        let file = storage.open(names::IDENTITY).map_err(JournalError::storage(
            StorageOperation::Open,
            names::IDENTITY,
            None,
        ))?;
        let mut bytes = vec![0; IDENTITY_BYTES_MAX];
        let count = read_full(&*file, 0, &mut bytes).map_err(JournalError::storage(
            StorageOperation::Read,
            names::IDENTITY,
            Some(0),
        ))?;
        let identity = DirectoryIdentity::parse(&bytes[..count])?;
        identity.uuid()?;
        Ok(identity)
    }

    fn parse(bytes: &[u8]) -> Result<DirectoryIdentity, JournalError> {
        let invalid = |error: serde_json::Error| {
            let offset = offset_of(bytes, error.line(), error.column());
            JournalError::corrupt(names::IDENTITY, offset, Corruption::Identity(error.to_string()))
        };
        let text = bytes.strip_suffix(b"\n").unwrap_or(bytes);
        let format: IdentityFormat = serde_json::from_slice(text).map_err(invalid)?;
        // All formats end with the checksum of what precedes it.
        let (fields, checksum) = text.split_at(text.len().saturating_sub(CHECKSUM_BYTES));
        if checksum != checksum_field(fields).as_bytes() {
            let what = Corruption::Identity("the checksum is wrong".to_owned());
            return Err(JournalError::corrupt(names::IDENTITY, 0, what));
        }
        if format.format != IDENTITY_FORMAT {
            let file = names::IDENTITY.to_owned();
            let writer = format.writer;
            return Err(JournalError::UnknownFormat { file, found: format.format, writer });
        }
        serde_json::from_slice(&[fields, b"}"].concat()).map_err(invalid)
    }

    /// The directory's UUID.
    ///
    /// # Errors
    /// `Corrupt`. Does not occur after [`DirectoryIdentity::load`].
    pub(super) fn uuid(&self) -> Result<Uuid, JournalError> {
        let invalid = |error: crate::uuid::ParseUuidError| {
            JournalError::corrupt(names::IDENTITY, 0, Corruption::Identity(error.to_string()))
        };
        self.uuid.parse().map_err(invalid)
    }

    /// Replaces the file. It is durable when this returns.
    ///
    /// # Errors
    /// The disk reports an error. Then the file is unchanged or replaced.
    pub(super) fn store(&self, storage: &dyn JournalStorage) -> Result<(), JournalError> {
        let text = self.encode();
        let temporary = names::temporary(names::IDENTITY);
        let error = |operation| JournalError::storage(operation, &temporary, None);
        let file = storage.create(&temporary, 0).map_err(error(StorageOperation::Create))?;
        file.write_at(0, text.as_bytes()).map_err(error(StorageOperation::Write))?;
        file.sync().map_err(error(StorageOperation::Sync))?;
        storage.rename(&temporary, names::IDENTITY).map_err(error(StorageOperation::Rename))?;
        let sync = JournalError::storage(StorageOperation::SyncDirectory, &storage.path(), None);
        storage.sync_directory("").map_err(sync)
    }
}

/// The offset of a line and column, which are counted from 1.
fn offset_of(bytes: &[u8], line: usize, column: usize) -> u64 {
    let begin: usize = bytes.split_inclusive(|byte| *byte == b'\n').take(line.saturating_sub(1)).map(<[u8]>::len).sum();
    (begin + column.saturating_sub(1)) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<DirectoryIdentity, JournalError> {
        DirectoryIdentity::parse(text.as_bytes())
    }

    #[test]
    fn an_identity_round_trips() {
        let identity = DirectoryIdentity::new("cluster \"a\"", Uuid(7));
        assert_eq!(parse(&identity.encode()).unwrap(), identity);
        assert_eq!(identity.uuid().unwrap(), Uuid(7));
    }

    #[test]
    fn an_invalid_identity_is_corrupt_at_its_offset() {
        match parse("{\n  \"format\": x}").unwrap_err() {
            JournalError::Corrupt { file, offset, what: Corruption::Identity(_) } => {
                assert_eq!((&*file, offset), (names::IDENTITY, 14));
            }
            other => panic!("{other}"),
        }
        for bad in ["", "{}", r#"{"format":1,"writer":"w"}"#, "\0\0\0"] {
            assert!(matches!(parse(bad), Err(JournalError::Corrupt { .. })), "{bad}");
        }
    }

    #[test]
    fn every_flipped_bit_of_an_identity_is_detected() {
        let text = DirectoryIdentity::new("cluster", Uuid(7)).encode();
        for bit in 0..(text.len() - 1) * 8 {
            let mut bytes = text.clone().into_bytes();
            bytes[bit / 8] ^= 1 << (bit % 8);
            let error = DirectoryIdentity::parse(&bytes).unwrap_err();
            assert!(matches!(&error, JournalError::Corrupt { file, .. } if file == names::IDENTITY), "{bit}: {error}");
        }
    }

    #[test]
    fn an_identity_of_an_unknown_format_names_its_writer() {
        let fields = r#"{"format":9,"writer":"mcctl 8.0.0","shards":[]"#;
        match parse(&format!("{fields}{}", checksum_field(fields.as_bytes()))).unwrap_err() {
            JournalError::UnknownFormat { found, writer, .. } => assert_eq!((found, &*writer), (9, "mcctl 8.0.0")),
            other => panic!("{other}"),
        }
    }
}
