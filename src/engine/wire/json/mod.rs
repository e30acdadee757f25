//! The transfer engine's JSON documents: segment descriptors, `rpc_meta` records, handshake messages.
//!
//! Written as jsoncpp's FastWriter writes them (compact, keys sorted); read leniently where upstream reads leniently (unknown
//! fields are ignored, absent ones have defaults) and strictly where a wrong value would send bytes to the wrong place.
//! Pure; upstream: `transfer_metadata.cpp`. Checked against bytes that releases 0.3.6, 0.3.12 and 0.3.13 sent.

mod connection;
mod handshake;
mod rpc_meta;
mod segment;
mod timestamp;

pub use connection::{Connection, PAIR_NUMBER_MAX, PAIRS_MAX, gid_text, parse_gid};
pub use handshake::{
    Frame, FrameError, HEADER_BYTES, Kind, NotifyMessage, TCP_ONLY_CONNECTION, payload_len, probe_answer,
};
pub use rpc_meta::RpcMeta;
pub use segment::{Buffer, Device, PriorityMatrix, SegmentDescriptor};
pub use timestamp::timestamp;

use serde_json::Value;

/// Most buffers in a descriptor.
pub const BUFFERS_MAX: usize = 65_536;
/// Most RDMA devices in a descriptor.
pub const DEVICES_MAX: usize = 256;
/// Longest name of a segment, a host or a device, bytes.
pub const NAME_BYTES_MAX: usize = 4096;

/// Why a text is not the document that it should be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DocumentError {
    /// No JSON at all.
    #[error("{document} is not JSON (line {line}, column {column})")]
    NotJson {
        /// Which document.
        document: &'static str,
        /// Where the parser stopped.
        line: usize,
        /// Where the parser stopped.
        column: usize,
    },
    /// A field is missing, of the wrong type, or has a value that cannot be used.
    #[error("{document}: {path} {problem}")]
    Field {
        /// Which document.
        document: &'static str,
        /// Where in it, such as `buffers[3].addr`.
        path: String,
        /// What is wrong.
        problem: &'static str,
    },
}

/// A value and where it was found, for errors.
#[derive(Clone)]
struct At<'a> {
    document: &'static str,
    path: String,
    value: &'a Value,
}

static NULL: Value = Value::Null;

/// Is `text` any JSON at all?
pub fn is_json(text: &[u8]) -> bool {
    serde_json::from_slice::<serde::de::IgnoredAny>(text).is_ok()
}

fn parse(document: &'static str, text: &[u8]) -> Result<Value, DocumentError> {
    serde_json::from_slice(text).map_err(|e| DocumentError::NotJson { document, line: e.line(), column: e.column() })
}

impl<'a> At<'a> {
    fn root(document: &'static str, value: &'a Value) -> Result<At<'a>, DocumentError> {
        let at = At { document, path: "the document".to_owned(), value };
        if value.is_object() { Ok(At { path: String::new(), ..at }) } else { Err(at.problem("is not an object")) }
    }

    fn problem(&self, problem: &'static str) -> DocumentError {
        DocumentError::Field { document: self.document, path: self.path.clone(), problem }
    }

    /// The member `name`; null when it is absent.
    fn member(&self, name: &str) -> At<'a> {
        let path = if self.path.is_empty() { name.to_owned() } else { format!("{}.{name}", self.path) };
        At { document: self.document, path, value: self.value.get(name).unwrap_or(&NULL) }
    }

    /// The elements of an array of at most `max`; none when it is absent.
    fn elements(&self, max: usize) -> Result<impl Iterator<Item = At<'a>> + use<'a>, DocumentError> {
        let elements: &'a [Value] = match self.value {
            Value::Null => &[],
            Value::Array(elements) if elements.len() > max => return Err(self.problem("has too many elements")),
            Value::Array(elements) => elements,
            _ => return Err(self.problem("is not an array")),
        };
        let At { document, path, .. } = self.clone();
        Ok(elements.iter().enumerate().map(move |(i, value)| At { document, path: format!("{path}[{i}]"), value }))
    }

    /// A text; empty when it is absent.
    fn text(&self) -> Result<&'a str, DocumentError> {
        match self.value {
            Value::Null => Ok(""),
            Value::String(text) if text.len() > NAME_BYTES_MAX => Err(self.problem("is too long")),
            Value::String(text) => Ok(text),
            _ => Err(self.problem("is not a string")),
        }
    }

    /// A text with at least one character.
    fn some_text(&self) -> Result<&'a str, DocumentError> {
        Some(self.text()?).filter(|t| !t.is_empty()).ok_or_else(|| self.problem("is missing or empty"))
    }

    /// A number that is not negative; `None` when it is absent.
    fn number(&self) -> Result<Option<u64>, DocumentError> {
        match self.value {
            Value::Null => Ok(None),
            Value::Number(n) => n.as_u64().map(Some).ok_or_else(|| self.problem("is not a whole number in range")),
            _ => Err(self.problem("is not a number")),
        }
    }

    /// A number above zero.
    fn some_number(&self) -> Result<u64, DocumentError> {
        self.number()?.filter(|n| *n != 0).ok_or_else(|| self.problem("is missing or zero"))
    }

    /// Numbers of 32 bits, at most `max`.
    fn numbers(&self, max: usize) -> Result<Vec<u32>, DocumentError> {
        let number = |at: At<'a>| {
            let number = at.number()?.and_then(|n| u32::try_from(n).ok());
            number.ok_or_else(|| at.problem("is not a number of 32 bits"))
        };
        self.elements(max)?.map(number).collect()
    }
}
