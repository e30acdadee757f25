//! Frames and messages on the handshake port: one request and one reply per connection.
//!
//! ```text
//! offset 0  u64 little-endian  bytes that follow: the type byte and the JSON text
//! offset 8  u8                 type: 0 connection (RDMA queue pairs), 1 metadata, 2 notify, 3 probe
//! offset 9  JSON text with a trailing newline
//! ```
//! A payload whose first byte is above 3 has no type byte. It is a connection request in the oldest
//! protocol version, and the reply to it has no type byte either. (JSON starts with `{`.)

use serde_json::json;

use crate::json::{DocumentError, JsonCursor, parse};

/// Size of the frame length field in bytes.
pub const HEADER_BYTES: usize = 8;

/// The type of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HandshakeKind {
    /// Connects RDMA queue pairs.
    Connection,
    /// Requests the segment descriptor.
    Metadata,
    /// Sends a text message from one engine to another.
    Notify,
    Probe,
}

impl HandshakeKind {
    const fn byte(self) -> u8 {
        match self {
            HandshakeKind::Connection => 0,
            HandshakeKind::Metadata => 1,
            HandshakeKind::Notify => 2,
            HandshakeKind::Probe => 3,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HandshakeFrame<'a> {
    /// With a type byte.
    Typed(HandshakeKind, &'a [u8]),
    /// The oldest format: a connection request without a type byte.
    Untyped(&'a [u8]),
}

/// Why a frame is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HandshakeFrameError {
    /// The length field is zero.
    #[error("empty handshake frame")]
    Empty,
    /// The length field is above the limit (`MC_HANDSHAKE_MAX_LENGTH`).
    #[error("a handshake frame of {len} bytes exceeds the limit of {limit} (MC_HANDSHAKE_MAX_LENGTH)")]
    TooLong {
        /// Length from the frame header.
        len: u64,
        limit: usize,
    },
}

/// Decodes a length field.
///
/// # Errors
/// The length is 0, or more than `limit`.
pub fn payload_len(header: [u8; HEADER_BYTES], limit: usize) -> Result<usize, HandshakeFrameError> {
    let len = u64::from_le_bytes(header);
    match usize::try_from(len) {
        Ok(0) => Err(HandshakeFrameError::Empty),
        Ok(len) if len <= limit => Ok(len),
        _ => Err(HandshakeFrameError::TooLong { len, limit }),
    }
}

impl<'a> HandshakeFrame<'a> {
    /// Splits a payload. An empty payload is untyped.
    pub fn split(payload: &'a [u8]) -> HandshakeFrame<'a> {
        match payload {
            [0, json @ ..] => HandshakeFrame::Typed(HandshakeKind::Connection, json),
            [1, json @ ..] => HandshakeFrame::Typed(HandshakeKind::Metadata, json),
            [2, json @ ..] => HandshakeFrame::Typed(HandshakeKind::Notify, json),
            [3, json @ ..] => HandshakeFrame::Typed(HandshakeKind::Probe, json),
            json => HandshakeFrame::Untyped(json),
        }
    }

    /// Returns the frame's type.
    pub fn kind(&self) -> HandshakeKind {
        match self {
            HandshakeFrame::Typed(kind, _) => *kind,
            HandshakeFrame::Untyped(_) => HandshakeKind::Connection,
        }
    }

    /// Returns the payload's JSON text.
    pub fn json(&self) -> &'a [u8] {
        match self {
            HandshakeFrame::Typed(_, json) | HandshakeFrame::Untyped(json) => json,
        }
    }

    /// Encodes the frame, including the length field and a trailing newline.
    pub fn encode(&self) -> Vec<u8> {
        let json = self.json();
        let typed = usize::from(matches!(self, HandshakeFrame::Typed(..)));
        let mut bytes = Vec::with_capacity(HEADER_BYTES + typed + json.len() + 1);
        bytes.extend_from_slice(&((typed + json.len() + 1) as u64).to_le_bytes());
        if let HandshakeFrame::Typed(kind, _) = self {
            bytes.push(kind.byte());
        }
        bytes.extend_from_slice(json);
        bytes.push(b'\n');
        bytes
    }
}

/// A text message from one engine to another.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NotifyMessage {
    /// The subject of the message; free text.
    pub name: String,
    /// The message text. In a reply, an empty string means that the message was refused.
    pub message: String,
}

impl NotifyMessage {
    /// The reply that accepts a message.
    pub fn accepted() -> NotifyMessage {
        NotifyMessage { name: String::new(), message: "success".to_owned() }
    }

    /// Encodes the message as upstream does.
    pub fn to_json(&self) -> String {
        json!({ "name": self.name, "notify_msg": self.message }).to_string()
    }

    /// Decodes a message. Missing fields are empty.
    ///
    /// # Errors
    /// The input is not a JSON object, or a field is not a string.
    pub fn from_json(text: &[u8]) -> Result<NotifyMessage, DocumentError> {
        let value = parse("the notify message", text)?;
        let root = JsonCursor::root("the notify message", &value)?;
        let message = root.member("notify_msg");
        // The message may be as long as its frame.
        let text = if message.value.is_null() { Some("") } else { message.value.as_str() };
        let text = text.ok_or_else(|| message.problem("is not a string"))?;
        Ok(NotifyMessage { name: root.member("name").text()?.to_owned(), message: text.to_owned() })
    }
}

/// The reply to a probe.
pub fn probe_answer() -> &'static str {
    r#"{"status":"success"}"#
}

/// A TCP-only engine's reply to a connection request: no device, no queue pairs.
pub const TCP_ONLY_CONNECTION: &str =
    r#"{"local_gid":"","local_lid":0,"local_nic_path":"","payload":"","peer_nic_path":"","qp_num":[],"reply_msg":""}"#;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn frames_match_captured_engine_bytes() {
        // Captured from a 0.3.13 engine's replies to a hand-written initiator.
        let notify = NotifyMessage { name: "n1".into(), message: "hello".into() };
        let request = b"$\x00\x00\x00\x00\x00\x00\x00\x02{\"name\":\"n1\",\"notify_msg\":\"hello\"}\n";
        assert_eq!(HandshakeFrame::Typed(HandshakeKind::Notify, notify.to_json().as_bytes()).encode(), request);
        let reply = b"$\x00\x00\x00\x00\x00\x00\x00\x02{\"name\":\"\",\"notify_msg\":\"success\"}\n";
        assert_eq!(
            HandshakeFrame::Typed(HandshakeKind::Notify, NotifyMessage::accepted().to_json().as_bytes()).encode(),
            reply
        );
        assert_eq!(payload_len(reply[..8].try_into().unwrap(), 1 << 20), Ok(36));
        let frame = HandshakeFrame::split(&reply[8..]);
        assert_eq!(
            (frame.kind(), NotifyMessage::from_json(frame.json())),
            (HandshakeKind::Notify, Ok(NotifyMessage::accepted()))
        );
    }

    #[test]
    fn a_payload_without_a_type_byte_is_a_connection_request() {
        assert_eq!(HandshakeFrame::split(b"{}\n"), HandshakeFrame::Untyped(b"{}\n"));
        assert_eq!(HandshakeFrame::split(b"\x04{}"), HandshakeFrame::Untyped(b"\x04{}"));
        assert_eq!(HandshakeFrame::Untyped(b"{}").kind(), HandshakeKind::Connection);
        assert_eq!(HandshakeFrame::Untyped(b"{}").encode(), b"\x03\0\0\0\0\0\0\0{}\n");
        assert_eq!(HandshakeFrame::split(b""), HandshakeFrame::Untyped(b""));
    }

    #[test]
    fn a_length_of_zero_or_above_the_limit_is_refused() {
        assert_eq!(payload_len([0; 8], 100), Err(HandshakeFrameError::Empty));
        assert_eq!(payload_len(101u64.to_le_bytes(), 100), Err(HandshakeFrameError::TooLong { len: 101, limit: 100 }));
        assert!(payload_len([255; 8], usize::MAX >> 1).is_err());
        assert_eq!(payload_len(100u64.to_le_bytes(), 100), Ok(100));
    }

    #[test]
    fn a_notify_message_without_its_fields_is_empty() {
        assert_eq!(NotifyMessage::from_json(b"{}"), Ok(NotifyMessage::default()));
        assert!(NotifyMessage::from_json(b"[]").is_err());
        assert!(NotifyMessage::from_json(br#"{"notify_msg":1}"#).is_err());
    }

    proptest! {
        #[test]
        fn a_frame_round_trips(kind in 0u8..4, json in "\\{[ -~]{0,80}\\}") {
            let kind = [HandshakeKind::Connection, HandshakeKind::Metadata, HandshakeKind::Notify, HandshakeKind::Probe][usize::from(kind)];
            let bytes = HandshakeFrame::Typed(kind, json.as_bytes()).encode();
            let (header, payload) = bytes.split_at(HEADER_BYTES);
            prop_assert_eq!(payload_len(header.try_into().unwrap(), 1 << 20), Ok(payload.len()));
            let frame = HandshakeFrame::split(payload);
            prop_assert_eq!(frame.kind(), kind);
            let with_newline = format!("{json}\n");
            prop_assert_eq!(frame.json(), with_newline.as_bytes());
        }
    }
}
