//! Changes of the metadata table, and their encoding in the log and in snapshots.
//!
//! A payload is one byte with the format, followed by the changes of one write. A change is one
//! byte with its tag, followed by the key and, for a put, the value. A key or value is its length
//! in four bytes, lowest first, and its bytes.

use std::borrow::Cow;

/// The format that this build reads and writes.
pub const CHANGE_FORMAT: u8 = 1;

mod tag {
    pub(super) const PUT: u8 = 1;
    pub(super) const REMOVE: u8 = 2;
}

/// A step of a write. It states a result, so that another table needs no rules and no probe to
/// repeat it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MetadataChange<'a> {
    /// A record was created or replaced.
    Put { key: Cow<'a, [u8]>, value: Cow<'a, [u8]> },
    /// A record that existed was removed.
    Remove { key: Cow<'a, [u8]> },
}

/// Why a payload cannot be decoded or applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{problem} at byte {position} of the payload")]
pub struct MetadataChangeError {
    /// Offset in the payload, in bytes.
    pub position: usize,
    pub problem: MetadataChangeProblem,
}

/// What is wrong with a payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MetadataChangeProblem {
    #[error("unknown format {0}")]
    UnknownFormat(u8),
    #[error("unknown change {0}")]
    UnknownTag(u8),
    #[error("end of data inside a change")]
    Short,
    #[error("unknown kind of chunk {0}")]
    UnknownChunk(u8),
    #[error("removal of a record that does not exist")]
    NoRecord,
}

/// A payload that is being encoded.
#[derive(Debug)]
pub(super) struct ChangePayload(Vec<u8>);

impl ChangePayload {
    pub(super) fn new() -> ChangePayload {
        ChangePayload(vec![CHANGE_FORMAT])
    }

    pub(super) fn of(changes: &[MetadataChange<'_>]) -> ChangePayload {
        let mut payload = ChangePayload::new();
        changes.iter().for_each(|change| payload.push(change));
        payload
    }

    pub(super) fn push(&mut self, change: &MetadataChange<'_>) {
        match change {
            MetadataChange::Put { key, value } => self.push_put(key, value),
            MetadataChange::Remove { key } => {
                self.0.push(tag::REMOVE);
                self.push_bytes(key);
            }
        }
    }

    pub(super) fn push_put(&mut self, key: &[u8], value: &[u8]) {
        self.0.push(tag::PUT);
        self.push_bytes(key);
        self.push_bytes(value);
    }

    fn push_bytes(&mut self, bytes: &[u8]) {
        let length = u32::try_from(bytes.len()).expect("the table limits keys and values");
        self.0.extend_from_slice(&length.to_le_bytes());
        self.0.extend_from_slice(bytes);
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.0
    }

    pub(super) fn into_bytes(self) -> Vec<u8> {
        self.0
    }
}

/// Reads the changes of a payload, in order.
#[derive(Clone, Debug)]
pub(super) struct ChangeReader<'a> {
    payload: &'a [u8],
    position: usize,
}

impl<'a> ChangeReader<'a> {
    /// # Errors
    /// The payload is empty, or its format is unknown.
    pub(super) fn new(payload: &'a [u8]) -> Result<ChangeReader<'a>, MetadataChangeError> {
        let mut reader = ChangeReader { payload, position: 0 };
        match reader.take(1)?[0] {
            CHANGE_FORMAT => Ok(reader),
            other => Err(MetadataChangeError { position: 0, problem: MetadataChangeProblem::UnknownFormat(other) }),
        }
    }

    /// Where the next change begins.
    pub(super) fn position(&self) -> usize {
        self.position
    }

    /// The next change, or `None` at the end.
    ///
    /// # Errors
    /// The change is incomplete or unknown. The rest of the payload is then not readable.
    pub(super) fn next(&mut self) -> Result<Option<MetadataChange<'a>>, MetadataChangeError> {
        if self.position == self.payload.len() {
            return Ok(None);
        }
        let position = self.position;
        let change = match self.take(1)?[0] {
            tag::PUT => MetadataChange::Put { key: self.take_bytes()?, value: self.take_bytes()? },
            tag::REMOVE => MetadataChange::Remove { key: self.take_bytes()? },
            other => {
                return Err(MetadataChangeError { position, problem: MetadataChangeProblem::UnknownTag(other) });
            }
        };
        Ok(Some(change))
    }

    fn take_bytes(&mut self) -> Result<Cow<'a, [u8]>, MetadataChangeError> {
        let mut length = [0; 4];
        length.copy_from_slice(self.take(4)?);
        self.take(u32::from_le_bytes(length) as usize).map(Cow::Borrowed)
    }

    fn take(&mut self, count: usize) -> Result<&'a [u8], MetadataChangeError> {
        let rest = self.payload.get(self.position..).unwrap_or_default();
        let short = MetadataChangeError { position: self.position, problem: MetadataChangeProblem::Short };
        let taken = rest.get(..count).ok_or(short)?;
        self.position += count;
        Ok(taken)
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    fn put(key: impl Into<Vec<u8>>, value: impl Into<Vec<u8>>) -> MetadataChange<'static> {
        MetadataChange::Put { key: Cow::Owned(key.into()), value: Cow::Owned(value.into()) }
    }

    fn remove(key: impl Into<Vec<u8>>) -> MetadataChange<'static> {
        MetadataChange::Remove { key: Cow::Owned(key.into()) }
    }

    fn read(payload: &[u8]) -> Result<Vec<MetadataChange<'_>>, MetadataChangeError> {
        let mut reader = ChangeReader::new(payload)?;
        std::iter::from_fn(|| reader.next().transpose()).collect()
    }

    fn error(payload: &[u8]) -> (usize, MetadataChangeProblem) {
        let MetadataChangeError { position, problem } = read(payload).unwrap_err();
        (position, problem)
    }

    #[test]
    fn a_payload_has_the_documented_bytes() {
        let payload = ChangePayload::of(&[remove("ab"), put("k", "")]);
        assert_eq!(payload.bytes(), b"\x01\x02\x02\0\0\0ab\x01\x01\0\0\0k\0\0\0\0");
    }

    #[test]
    fn unknown_formats_and_changes_are_refused_with_their_position() {
        assert_eq!(error(b""), (0, MetadataChangeProblem::Short));
        assert_eq!(error(b"\x02\x02\x01\0\0\0k"), (0, MetadataChangeProblem::UnknownFormat(2)));
        let first = ChangePayload::of(&[remove("k")]);
        let second = [first.bytes(), b"\x03"].concat();
        assert_eq!(error(&second), (7, MetadataChangeProblem::UnknownTag(3)));
    }

    #[test]
    fn a_payload_that_ends_inside_a_change_is_refused() {
        let payload = ChangePayload::of(&[remove("key"), put("key", "value")]);
        let whole = payload.bytes();
        let ends = [1, 9, whole.len()];
        for end in (1..=whole.len()).filter(|end| !ends.contains(end)) {
            assert_eq!(error(&whole[..end]).1, MetadataChangeProblem::Short, "{end}");
        }
        assert_eq!(error(b"\x01\x02\xff\xff\xff\xffkey"), (6, MetadataChangeProblem::Short));
    }

    fn change() -> impl Strategy<Value = MetadataChange<'static>> {
        let bytes = || vec(any::<u8>(), 0..40);
        prop_oneof![(bytes(), bytes()).prop_map(|(key, value)| put(key, value)), bytes().prop_map(remove)]
    }

    proptest! {
        #[test]
        fn changes_round_trip(changes in vec(change(), 0..8)) {
            let payload = ChangePayload::of(&changes);
            prop_assert_eq!(read(payload.bytes()), Ok(changes));
        }

        #[test]
        fn any_bytes_are_read_or_refused(mut bytes in vec(any::<u8>(), 0..60)) {
            let _ = read(&bytes);
            if let Some(first) = bytes.first_mut() {
                *first = CHANGE_FORMAT;
            }
            let _ = read(&bytes);
        }
    }
}
