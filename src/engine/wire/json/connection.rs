//! The connection message on the handshake port, with which two RDMA endpoints exchange their queue
//! pairs.
//!
//! One message type serves as request, reply and ready ACK. Its fields show the sender's release:
//! releases up to 0.3.10 send the two paths, the queue pair numbers and `reply_msg`; 0.3.11 adds
//! the address, 0.3.12 `ready_ack`, 0.3.13 `payload`.

use serde_json::{Map, Value, json};

use crate::json::{DocumentError, JsonCursor, NAME_BYTES_MAX, parse};

/// Maximum number of queue pairs per endpoint (the upper limit for `MC_NUM_QP_PER_EP`).
pub const PAIRS_MAX: usize = 255;
/// The largest queue pair number: queue pair numbers have 24 bits.
pub const PAIR_NUMBER_MAX: u32 = (1 << 24) - 1;

/// A connection request, its reply, or a ready ACK. Paths are `<server name>@<device>`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConnectionMessage {
    pub local_nic_path: String,
    /// The NIC path of the peer to connect to.
    pub peer_nic_path: String,
    /// The sender's queue pair numbers. The i-th queue pair of one endpoint connects to the i-th
    /// queue pair of the other.
    pub qp_num: Vec<u32>,
    /// The sender's GID as text ([`gid_text`]). Empty in messages from releases before
    /// 0.3.11, whose segment descriptors contain the GID.
    pub local_gid: String,
    /// The sender's local identifier (LID); 0 on Ethernet.
    pub local_lid: u16,
    pub payload: String,
    /// `None`: the sender does not support ready ACKs (before 0.3.12). `false`: the sender supports
    /// ready ACKs. `true`: this message is a ready ACK.
    pub ready_ack: Option<bool>,
    /// In a reply, if not empty: why the request was refused.
    pub reply_msg: String,
}

const DOCUMENT: &str = "the connection message";

impl ConnectionMessage {
    /// Creates a reply that only refuses the request.
    pub fn refusal(why: impl Into<String>) -> ConnectionMessage {
        ConnectionMessage { reply_msg: why.into(), ..ConnectionMessage::default() }
    }

    /// Returns true for an empty message. An engine without RDMA sends an empty message. An empty
    /// message without `ready_ack` is also the reply to a ready ACK.
    pub fn is_empty(&self) -> bool {
        *self == ConnectionMessage::default()
    }

    /// Encodes the message as 0.3.13 does, without a newline. Older releases ignore unknown fields.
    pub fn to_json(&self) -> String {
        let mut message = Map::new();
        let mut set = |name: &str, value: Value| message.insert(name.to_owned(), value);
        set("local_gid", json!(self.local_gid));
        set("local_lid", json!(self.local_lid));
        set("local_nic_path", json!(self.local_nic_path));
        set("payload", json!(self.payload));
        set("peer_nic_path", json!(self.peer_nic_path));
        set("qp_num", json!(self.qp_num));
        if let Some(ready) = self.ready_ack {
            set("ready_ack", json!(ready));
        }
        set("reply_msg", json!(self.reply_msg));
        Value::Object(message).to_string()
    }

    /// Decodes a message from any release. Missing fields are empty.
    ///
    /// # Errors
    /// The input is not a JSON object, a field has the wrong type, a name or list is too long, a
    /// queue pair number is invalid, or the message is a request for 0.3.13's two-sided control
    /// channel, which uses the same message type.
    pub fn from_json(text: &[u8]) -> Result<ConnectionMessage, DocumentError> {
        let value = parse(DOCUMENT, text)?;
        let root = JsonCursor::root(DOCUMENT, &value)?;
        for name in ["ctrl_channel", "notify_qp_num"] {
            let member = root.member(name);
            if !matches!(member.value, Value::Null | Value::Bool(false)) {
                return Err(member.problem("requests the two-sided control channel, which is not supported"));
            }
        }
        let numbers = root.member("qp_num");
        let qp_num = numbers.numbers(PAIRS_MAX)?;
        if qp_num.iter().any(|n| *n > PAIR_NUMBER_MAX) {
            return Err(numbers.problem("contains a number of more than 24 bits"));
        }
        let lid = root.member("local_lid");
        let ready = root.member("ready_ack");
        let reply = root.member("reply_msg");
        let ready_ack = match ready.value {
            Value::Null => None,
            Value::Bool(ready) => Some(*ready),
            _ => return Err(ready.problem("is not true or false")),
        };
        // The reason for a refusal is useful even if it is long.
        let reply_msg = match reply.value {
            Value::Null => "",
            Value::String(text) => &text[..text.floor_char_boundary(NAME_BYTES_MAX)],
            _ => return Err(reply.problem("is not a string")),
        };
        Ok(ConnectionMessage {
            local_nic_path: root.member("local_nic_path").text()?.to_owned(),
            peer_nic_path: root.member("peer_nic_path").text()?.to_owned(),
            qp_num,
            local_gid: root.member("local_gid").text()?.to_owned(),
            local_lid: u16::try_from(lid.number()?.unwrap_or(0)).map_err(|_| lid.problem("is not a 16-bit number"))?,
            payload: root.member("payload").text()?.to_owned(),
            ready_ack,
            reply_msg: reply_msg.to_owned(),
        })
    }
}

/// Formats a GID like upstream: 16 pairs of lower-case hexadecimal digits, separated by `:`.
pub fn gid_text(gid: &[u8; 16]) -> String {
    gid.map(|byte| format!("{byte:02x}")).join(":")
}

/// Parses a GID: 16 groups of one or two hexadecimal digits, separated by `:`.
pub fn parse_gid(text: &str) -> Option<[u8; 16]> {
    let mut gid = [0; 16];
    let mut bytes = text.split(':');
    for byte in &mut gid {
        let digits = bytes.next().filter(|d| matches!(d.len(), 1 | 2) && d.bytes().all(|c| c.is_ascii_hexdigit()))?;
        *byte = u8::from_str_radix(digits, 16).ok()?;
    }
    bytes.next().is_none().then_some(gid)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json::TCP_ONLY_CONNECTION;
    use proptest::prelude::*;

    /// Captured messages, one per line, each after a comment with its sender.
    const CAPTURED: &str = include_str!("../../../../fixtures/te/connections.txt");

    fn captured() -> impl Iterator<Item = (&'static str, ConnectionMessage)> {
        let lines = CAPTURED.lines().filter(|l| l.starts_with('{'));
        lines.map(|text| {
            (text, ConnectionMessage::from_json(text.as_bytes()).unwrap_or_else(|error| panic!("{error}: {text}")))
        })
    }

    #[test]
    fn captured_messages_decode_and_those_of_0_3_13_round_trip() {
        let mut newest = 0;
        let mut old = 0;
        for (text, read) in captured() {
            if text.contains("\"payload\"") {
                assert_eq!(read.to_json(), text);
                newest += 1;
            } else {
                old += 1;
            }
            assert_eq!(read.ready_ack.is_some(), text.contains("ready_ack"));
            assert_eq!(read.local_gid.is_empty(), parse_gid(&read.local_gid).is_none());
            assert!(read.is_empty() || read.qp_num.len() == 2);
        }
        assert!(newest >= 12 && old >= 6, "{newest} {old}");
    }

    #[test]
    fn a_message_of_the_oldest_releases_has_only_paths_and_numbers() {
        let old = r#"{"local_nic_path":"127.0.0.1:15487@rxe1","peer_nic_path":"127.0.0.1:16896@rxe0","qp_num":[17,18],"reply_msg":""}"#;
        let expected = ConnectionMessage {
            local_nic_path: "127.0.0.1:15487@rxe1".into(),
            peer_nic_path: "127.0.0.1:16896@rxe0".into(),
            qp_num: vec![17, 18],
            ..ConnectionMessage::default()
        };
        assert_eq!(ConnectionMessage::from_json(old.as_bytes()), Ok(expected));
    }

    #[test]
    fn an_engine_without_rdma_sends_an_empty_message() {
        assert_eq!(ConnectionMessage::default().to_json(), TCP_ONLY_CONNECTION);
        assert!(ConnectionMessage::from_json(b"{}").unwrap().is_empty());
        assert!(!ConnectionMessage::refusal("no").is_empty());
    }

    #[test]
    fn an_invalid_message_is_refused_with_the_field() {
        let many = format!(r#"{{"qp_num":[{}1]}}"#, "1,".repeat(PAIRS_MAX));
        let long = format!(r#"{{"local_nic_path":"{}"}}"#, "x".repeat(NAME_BYTES_MAX + 1));
        for (text, field) in [
            ("[]", "the document"),
            (r#"{"qp_num":7}"#, "qp_num"),
            (r#"{"qp_num":[-1]}"#, "qp_num[0]"),
            (r#"{"qp_num":[16777216]}"#, "qp_num"),
            (&many, "qp_num"),
            (&long, "local_nic_path"),
            (r#"{"local_lid":65536}"#, "local_lid"),
            (r#"{"ready_ack":1}"#, "ready_ack"),
            (r#"{"ctrl_channel":true}"#, "ctrl_channel"),
            (r#"{"notify_qp_num":5}"#, "notify_qp_num"),
        ] {
            let error = ConnectionMessage::from_json(text.as_bytes()).unwrap_err();
            assert!(matches!(&error, DocumentError::Field { path, .. } if path == field), "{field}: {error}");
        }
    }

    #[test]
    fn a_long_refusal_is_truncated() {
        let text = ConnectionMessage::refusal("é".repeat(NAME_BYTES_MAX)).to_json();
        let read = ConnectionMessage::from_json(text.as_bytes()).unwrap();
        assert_eq!(read.reply_msg.len(), NAME_BYTES_MAX);
    }

    #[test]
    fn a_gid_has_16_bytes_of_one_or_two_digits() {
        let text = "00:00:00:00:00:00:00:00:00:00:ff:ff:c0:a8:64:01";
        let gid = parse_gid(text).unwrap();
        assert_eq!((gid[10], gid[15], gid_text(&gid).as_str()), (255, 1, text));
        assert_eq!(parse_gid("0:0:0:0:0:0:0:0:0:0:FF:ff:c0:a8:64:1"), Some(gid));
        for wrong in
            ["", "zz", &text[3..], &format!("{text}:00"), "+1:0:0:0:0:0:0:0:0:0:0:0:0:0:0:0", &format!("0{text}")]
        {
            assert_eq!(parse_gid(wrong), None, "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn a_message_round_trips(
            local_nic_path in "[ -~é]{0,40}", peer_nic_path in "[ -~]{0,40}", payload in "[ -~]{0,9}", reply_msg in "[ -~é]{0,40}",
            qp_num in proptest::collection::vec(0..=PAIR_NUMBER_MAX, 0..5), gid: [u8; 16], local_lid: u16,
            ready_ack: Option<bool>,
        ) {
            let local_gid = gid_text(&gid);
            prop_assert_eq!(parse_gid(&local_gid), Some(gid));
            let message =
                ConnectionMessage { local_nic_path, peer_nic_path, qp_num, local_gid, local_lid, payload, ready_ack, reply_msg };
            prop_assert_eq!(ConnectionMessage::from_json(message.to_json().as_bytes()), Ok(message));
        }

        #[test]
        fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = ConnectionMessage::from_json(&bytes);
        }
    }
}
