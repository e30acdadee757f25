//! The handshake port's frames and messages: one request and one reply per connection.
//!
//! ```text
//! offset 0  u64 little-endian  bytes that follow: the type byte and the JSON text
//! offset 8  u8                 type: 0 connection (RDMA queue pairs), 1 metadata, 2 notify, 3 probe
//! offset 9  JSON text with a trailing newline
//! ```
//! A payload whose first byte is above 3 has no type byte: it is the oldest protocol, means a connection request, and is answered
//! without a type byte. (JSON begins with `{`.)

use serde_json::json;

use crate::engine::wire::json::{At, DocumentError, parse};

/// Bytes of a frame's length field.
pub const HEADER_BYTES: usize = 8;

/// What a frame asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Connect RDMA queue pairs.
    Connection,
    /// Give me your segment descriptor.
    Metadata,
    /// A text from one engine to another.
    Notify,
    /// Are you there?
    Probe,
}

impl Kind {
    const fn byte(self) -> u8 {
        match self {
            Kind::Connection => 0,
            Kind::Metadata => 1,
            Kind::Notify => 2,
            Kind::Probe => 3,
        }
    }
}

/// The form of a frame's payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Frame<'a> {
    /// With a type byte.
    Typed(Kind, &'a [u8]),
    /// The oldest form: a connection request without a type byte.
    Untyped(&'a [u8]),
}

/// Why a frame cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// The length field is zero.
    #[error("a handshake frame of 0 bytes")]
    Empty,
    /// The length field is above the limit (`MC_HANDSHAKE_MAX_LENGTH`).
    #[error("a handshake frame of {len} bytes, above the limit of {limit} (MC_HANDSHAKE_MAX_LENGTH)")]
    TooLong {
        /// What the frame claims.
        len: u64,
        /// What is allowed.
        limit: usize,
    },
}

/// How many bytes follow this length field.
///
/// # Errors
/// None, or more than `limit`.
pub fn payload_len(header: [u8; HEADER_BYTES], limit: usize) -> Result<usize, FrameError> {
    let len = u64::from_le_bytes(header);
    match usize::try_from(len) {
        Ok(0) => Err(FrameError::Empty),
        Ok(len) if len <= limit => Ok(len),
        _ => Err(FrameError::TooLong { len, limit }),
    }
}

impl<'a> Frame<'a> {
    /// Take a payload apart. An empty one is untyped and empty.
    pub fn split(payload: &'a [u8]) -> Frame<'a> {
        match payload {
            [0, json @ ..] => Frame::Typed(Kind::Connection, json),
            [1, json @ ..] => Frame::Typed(Kind::Metadata, json),
            [2, json @ ..] => Frame::Typed(Kind::Notify, json),
            [3, json @ ..] => Frame::Typed(Kind::Probe, json),
            json => Frame::Untyped(json),
        }
    }

    /// What is asked for.
    pub fn kind(&self) -> Kind {
        match self {
            Frame::Typed(kind, _) => *kind,
            Frame::Untyped(_) => Kind::Connection,
        }
    }

    /// The JSON text.
    pub fn json(&self) -> &'a [u8] {
        match self {
            Frame::Typed(_, json) | Frame::Untyped(json) => json,
        }
    }

    /// The frame's bytes, length field and trailing newline included.
    pub fn encode(&self) -> Vec<u8> {
        let json = self.json();
        let typed = usize::from(matches!(self, Frame::Typed(..)));
        let mut bytes = Vec::with_capacity(HEADER_BYTES + typed + json.len() + 1);
        bytes.extend_from_slice(&((typed + json.len() + 1) as u64).to_le_bytes());
        if let Frame::Typed(kind, _) = self {
            bytes.push(kind.byte());
        }
        bytes.extend_from_slice(json);
        bytes.push(b'\n');
        bytes
    }
}

/// A text from one engine to another.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NotifyMessage {
    /// Who or what it is about; free text.
    pub name: String,
    /// The text. In a reply, empty means that the message was refused.
    pub message: String,
}

impl NotifyMessage {
    /// What accepts a message.
    pub fn accepted() -> NotifyMessage {
        NotifyMessage { name: String::new(), message: "success".to_owned() }
    }

    /// As upstream writes it.
    pub fn to_json(&self) -> String {
        json!({ "name": self.name, "notify_msg": self.message }).to_string()
    }

    /// Read one; absent fields are empty.
    ///
    /// # Errors
    /// No JSON object, or a field is not a text.
    pub fn from_json(text: &[u8]) -> Result<NotifyMessage, DocumentError> {
        let value = parse("the notify message", text)?;
        let root = At::root("the notify message", &value)?;
        let message = root.member("notify_msg");
        // The text itself is as long as its frame allows.
        let text = if message.value.is_null() { Some("") } else { message.value.as_str() };
        let text = text.ok_or_else(|| message.problem("is not a string"))?;
        Ok(NotifyMessage { name: root.member("name").text()?.to_owned(), message: text.to_owned() })
    }
}

/// What answers a probe.
pub fn probe_answer() -> &'static str {
    r#"{"status":"success"}"#
}

/// How an engine that speaks only TCP answers a connection request: no device, no queue pairs.
pub const TCP_ONLY_CONNECTION: &str =
    r#"{"local_gid":"","local_lid":0,"local_nic_path":"","payload":"","peer_nic_path":"","qp_num":[],"reply_msg":""}"#;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn frames_are_those_that_the_real_engine_sent() {
        // From a 0.3.13 engine's answers to a hand-made initiator.
        let notify = NotifyMessage { name: "n1".into(), message: "hello".into() };
        let request = b"$\x00\x00\x00\x00\x00\x00\x00\x02{\"name\":\"n1\",\"notify_msg\":\"hello\"}\n";
        assert_eq!(Frame::Typed(Kind::Notify, notify.to_json().as_bytes()).encode(), request);
        let reply = b"$\x00\x00\x00\x00\x00\x00\x00\x02{\"name\":\"\",\"notify_msg\":\"success\"}\n";
        assert_eq!(Frame::Typed(Kind::Notify, NotifyMessage::accepted().to_json().as_bytes()).encode(), reply);
        assert_eq!(payload_len(reply[..8].try_into().unwrap(), 1 << 20), Ok(36));
        let frame = Frame::split(&reply[8..]);
        assert_eq!(
            (frame.kind(), NotifyMessage::from_json(frame.json())),
            (Kind::Notify, Ok(NotifyMessage::accepted()))
        );
    }

    #[test]
    fn a_payload_without_a_type_byte_is_a_connection_request_of_the_oldest_protocol() {
        assert_eq!(Frame::split(b"{}\n"), Frame::Untyped(b"{}\n"));
        assert_eq!(Frame::split(b"\x04{}"), Frame::Untyped(b"\x04{}"));
        assert_eq!(Frame::Untyped(b"{}").kind(), Kind::Connection);
        assert_eq!(Frame::Untyped(b"{}").encode(), b"\x03\0\0\0\0\0\0\0{}\n");
        assert_eq!(Frame::split(b""), Frame::Untyped(b""));
    }

    #[test]
    fn a_length_of_zero_or_above_the_limit_is_refused_before_anything_is_allocated() {
        assert_eq!(payload_len([0; 8], 100), Err(FrameError::Empty));
        assert_eq!(payload_len(101u64.to_le_bytes(), 100), Err(FrameError::TooLong { len: 101, limit: 100 }));
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
        fn a_frame_reads_back(kind in 0u8..4, json in "\\{[ -~]{0,80}\\}") {
            let kind = [Kind::Connection, Kind::Metadata, Kind::Notify, Kind::Probe][usize::from(kind)];
            let bytes = Frame::Typed(kind, json.as_bytes()).encode();
            let (header, payload) = bytes.split_at(HEADER_BYTES);
            prop_assert_eq!(payload_len(header.try_into().unwrap(), 1 << 20), Ok(payload.len()));
            let frame = Frame::split(payload);
            prop_assert_eq!(frame.kind(), kind);
            let with_newline = format!("{json}\n");
            prop_assert_eq!(frame.json(), with_newline.as_bytes());
        }
    }
}
