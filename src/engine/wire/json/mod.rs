//! The transfer engine's JSON documents: segment descriptors, `rpc_meta` records, handshake
//! messages.
//!
//! They are written in the style of jsoncpp's FastWriter (compact, sorted keys). Parsing is lenient
//! where upstream is (unknown fields are ignored, missing ones get default values), and strict
//! where an invalid value could send data to the wrong place. Pure. Upstream:
//! `transfer_metadata.cpp`. Checked against messages captured from releases 0.3.6, 0.3.12 and
//! 0.3.13.

mod connection;
mod handshake;
mod rpc_meta;
mod segment;
mod timestamp;

pub use connection::{ConnectionMessage, PAIR_NUMBER_MAX, PAIRS_MAX, gid_text, parse_gid};
pub use handshake::{
    HEADER_BYTES, HandshakeFrame, HandshakeFrameError, HandshakeKind, NotifyMessage, TCP_ONLY_CONNECTION, payload_len,
    probe_answer,
};
pub use rpc_meta::RpcMeta;
pub use segment::{
    DeviceDescriptor, PriorityMatrix, RegionDescriptor, SHARED_MEMORY_TOKEN_BYTES, SegmentDescriptor,
    SharedMemoryDescriptor,
};
pub use timestamp::{file_name_of, timestamp};

use serde_json::Value;

/// Maximum number of buffers in a descriptor.
pub const BUFFERS_MAX: usize = 65_536;
/// Maximum number of RDMA devices in a descriptor.
pub const DEVICES_MAX: usize = 256;
/// Maximum length of a segment, host or device name, in bytes.
pub const NAME_BYTES_MAX: usize = 4096;

/// Why a document is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DocumentError {
    #[error("{document} is not valid JSON (line {line}, column {column})")]
    NotJson {
        document: &'static str,
        /// Line at which the parser stopped.
        line: usize,
        /// Column at which the parser stopped.
        column: usize,
    },
    /// A field is missing, has the wrong type, or has an invalid value.
    #[error("{document}: {path} {problem}")]
    Field {
        document: &'static str,
        /// Path of the field, such as `buffers[3].addr`.
        path: String,
        problem: &'static str,
    },
}

/// A value and its path in the document, for error messages.
#[derive(Clone)]
struct JsonCursor<'a> {
    document: &'static str,
    path: String,
    value: &'a Value,
}

static NULL: Value = Value::Null;

/// Returns true if `text` is valid JSON.
pub fn is_json(text: &[u8]) -> bool {
    serde_json::from_slice::<serde::de::IgnoredAny>(text).is_ok()
}

fn parse(document: &'static str, text: &[u8]) -> Result<Value, DocumentError> {
    serde_json::from_slice(text).map_err(|e| DocumentError::NotJson { document, line: e.line(), column: e.column() })
}

impl<'a> JsonCursor<'a> {
    fn root(document: &'static str, value: &'a Value) -> Result<JsonCursor<'a>, DocumentError> {
        let at = JsonCursor { document, path: "the document".to_owned(), value };
        if value.is_object() {
            Ok(JsonCursor { path: String::new(), ..at })
        } else {
            Err(at.problem("is not an object"))
        }
    }

    fn problem(&self, problem: &'static str) -> DocumentError {
        DocumentError::Field { document: self.document, path: self.path.clone(), problem }
    }

    /// Returns the member `name`; null if it is missing.
    fn member(&self, name: &str) -> JsonCursor<'a> {
        let path = if self.path.is_empty() { name.to_owned() } else { format!("{}.{name}", self.path) };
        JsonCursor { document: self.document, path, value: self.value.get(name).unwrap_or(&NULL) }
    }

    /// Iterates over the elements of an array of at most `max` elements; empty if it is missing.
    fn elements(&self, max: usize) -> Result<impl Iterator<Item = JsonCursor<'a>> + use<'a>, DocumentError> {
        let elements: &'a [Value] = match self.value {
            Value::Null => &[],
            Value::Array(elements) if elements.len() > max => return Err(self.problem("has too many elements")),
            Value::Array(elements) => elements,
            _ => return Err(self.problem("is not an array")),
        };
        let JsonCursor { document, path, .. } = self.clone();
        Ok(elements.iter().enumerate().map(move |(i, value)| JsonCursor {
            document,
            path: format!("{path}[{i}]"),
            value,
        }))
    }

    /// Returns a string; empty if it is missing.
    fn text(&self) -> Result<&'a str, DocumentError> {
        match self.value {
            Value::Null => Ok(""),
            Value::String(text) if text.len() > NAME_BYTES_MAX => Err(self.problem("is too long")),
            Value::String(text) => Ok(text),
            _ => Err(self.problem("is not a string")),
        }
    }

    /// Returns a string with at least one character.
    fn some_text(&self) -> Result<&'a str, DocumentError> {
        Some(self.text()?).filter(|t| !t.is_empty()).ok_or_else(|| self.problem("is missing or empty"))
    }

    /// Returns an unsigned integer; `None` if it is missing.
    fn number(&self) -> Result<Option<u64>, DocumentError> {
        match self.value {
            Value::Null => Ok(None),
            Value::Number(n) => n.as_u64().map(Some).ok_or_else(|| self.problem("is not an integer in range")),
            _ => Err(self.problem("is not a number")),
        }
    }

    /// Returns an unsigned integer above zero.
    fn some_number(&self) -> Result<u64, DocumentError> {
        self.number()?.filter(|n| *n != 0).ok_or_else(|| self.problem("is missing or zero"))
    }

    /// Returns an array of at most `max` 32-bit numbers.
    fn numbers(&self, max: usize) -> Result<Vec<u32>, DocumentError> {
        let number = |at: JsonCursor<'a>| {
            let number = at.number()?.and_then(|n| u32::try_from(n).ok());
            number.ok_or_else(|| at.problem("is not a 32-bit number"))
        };
        self.elements(max)?.map(number).collect()
    }
}
