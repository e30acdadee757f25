//! Watches: a response that does not end, with a JSON object per line.

use crate::etcd::error::EtcdError;
use crate::etcd::json::{EventJson, StreamJson, WatchResultJson};
use crate::etcd::request::EtcdKeyValue;
use crate::http::fetch::root_cause;

/// Maximum size of a line, in bytes.
const LINE_BYTES_MAX: usize = 16 << 20;

/// A change of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EtcdEvent {
    Put(EtcdKeyValue),
    /// The key, and the revision of its deletion in `mod_revision`.
    Delete(EtcdKeyValue),
}

/// A watch. Dropping it ends it.
#[derive(Debug)]
pub struct EtcdWatch {
    response: reqwest::Response,
    buffer: Vec<u8>,
}

impl EtcdWatch {
    /// Reads the events of this response.
    pub(super) fn new(response: reqwest::Response) -> EtcdWatch {
        EtcdWatch { response, buffer: Vec::new() }
    }

    /// Waits for the next changes. The first result, when the watch begins, is empty.
    ///
    /// # Errors
    /// The watch ended. Changes may be missing: read the keys again, and start another one.
    pub async fn next(&mut self) -> Result<Vec<EtcdEvent>, EtcdError> {
        loop {
            if let Some(end) = self.buffer.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.buffer.drain(..=end).collect();
                return events(&line);
            }
            if self.buffer.len() > LINE_BYTES_MAX {
                return Err(EtcdError::Unexpected(format!("a line of more than {LINE_BYTES_MAX} bytes")));
            }
            match self.response.chunk().await {
                Ok(Some(chunk)) => self.buffer.extend_from_slice(&chunk),
                Ok(None) => return Err(EtcdError::WatchEnded("etcd closed the connection".to_owned())),
                Err(error) => return Err(EtcdError::WatchEnded(root_cause(&error))),
            }
        }
    }
}

fn events(line: &[u8]) -> Result<Vec<EtcdEvent>, EtcdError> {
    let message: StreamJson<WatchResultJson> =
        serde_json::from_slice(line).map_err(|error| EtcdError::Unexpected(error.to_string()))?;
    if let Some(error) = message.error {
        return Err(EtcdError::WatchEnded(error.message));
    }
    let Some(result) = message.result else {
        return Err(EtcdError::Unexpected("a message of a watch without a result".to_owned()));
    };
    if result.canceled || result.compact_revision.0 > 0 {
        let compacted = result.compact_revision.revision();
        return Err(EtcdError::WatchEnded(match result.cancel_reason.as_str() {
            "" => format!("the revisions before {compacted} were compacted"),
            reason => reason.to_owned(),
        }));
    }
    let event = |event: EventJson| match event.kind.as_str() {
        "DELETE" => EtcdEvent::Delete(event.kv.into()),
        _ => EtcdEvent::Put(event.kv.into()),
    };
    Ok(result.events.into_iter().map(event).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_a_list_of_events_or_the_end() {
        assert_eq!(events(br#"{"result":{"header":{},"created":true}}"#), Ok(Vec::new()));
        let line = br#"{"result":{"events":[{"kv":{"key":"aw==","value":"dg==","mod_revision":"4"}},
            {"type":"DELETE","kv":{"key":"aw==","mod_revision":"5"}}]}}"#;
        let kv = |value: &[u8], mod_revision| EtcdKeyValue {
            key: b"k".to_vec(),
            value: value.to_vec(),
            mod_revision,
            ..EtcdKeyValue::default()
        };
        assert_eq!(events(line), Ok(vec![EtcdEvent::Put(kv(b"v", 4)), EtcdEvent::Delete(kv(b"", 5))]));
        let compacted = br#"{"result":{"canceled":true,"compact_revision":"9"}}"#;
        assert!(matches!(events(compacted), Err(EtcdError::WatchEnded(why)) if why.contains('9')));
        let ended = EtcdError::WatchEnded("gone".to_owned());
        assert_eq!(events(br#"{"error":{"grpc_code":14,"message":"gone"}}"#), Err(ended));
        for other in ["no json", "{}", r#"{"result":{"events":[{"kv":{}}]}}"#] {
            assert!(matches!(events(other.as_bytes()), Err(EtcdError::Unexpected(_))), "{other}");
        }
    }
}
