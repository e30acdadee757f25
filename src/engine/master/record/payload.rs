//! A payload that is being written.

use crate::record::{DataFormat, MasterRecord};
use mcctl_base::ClientId;

/// One byte with the data format, followed by records. Without records, it is empty.
#[derive(Debug)]
pub(crate) struct PayloadWriter {
    format: DataFormat,
    bytes: Vec<u8>,
    /// The client of the last object in the payload.
    last_client: Option<ClientId>,
}

impl PayloadWriter {
    /// Creates an empty payload of this format.
    pub(crate) fn new(format: DataFormat) -> PayloadWriter {
        PayloadWriter { format, bytes: Vec::new(), last_client: None }
    }

    /// Appends a record, and the data format before the first one.
    #[inline]
    pub(crate) fn add(&mut self, record: &MasterRecord<'_>) {
        if self.bytes.is_empty() {
            self.bytes.push(self.format.number());
        }
        record.encode(self.format, &mut self.last_client, &mut self.bytes);
        if record.is_of_metadata() && self.format < DataFormat::V3 {
            // What the earlier formats encode, this one decodes.
            self.bytes[0] = DataFormat::V3.number();
        }
    }

    /// The payload so far.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Returns the payload and begins an empty one.
    pub(crate) fn take(&mut self) -> Vec<u8> {
        self.last_client = None;
        std::mem::take(&mut self.bytes)
    }

    /// Begins an empty payload. Keeps at most this much memory.
    pub(crate) fn clear(&mut self, kept: usize) {
        self.last_client = None;
        self.bytes.clear();
        self.bytes.shrink_to(kept);
    }
}
