//! The connection message of the handshake port: what two RDMA endpoints tell each other about their queue pairs.
//!
//! One message serves as request, reply and ready ACK. Which fields there are tells the release: up to 0.3.10 the two paths, the
//! numbers and `reply_msg`; 0.3.11 adds the address, 0.3.12 `ready_ack`, 0.3.13 `payload`.

use serde_json::{Map, Value, json};

use crate::engine::wire::json::{At, DocumentError, NAME_BYTES_MAX, parse};

/// Most queue pairs of an endpoint (`MC_NUM_QP_PER_EP` is at most this).
pub const PAIRS_MAX: usize = 255;
/// Queue pair numbers have 24 bits.
pub const PAIR_NUMBER_MAX: u32 = (1 << 24) - 1;

/// A connection request, its reply, or a ready ACK. Paths are `<server name>@<device>`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Connection {
    /// The sender's end.
    pub local_nic_path: String,
    /// The end that it means to connect with.
    pub peer_nic_path: String,
    /// The sender's queue pairs; the i-th of one end pairs with the i-th of the other.
    pub qp_num: Vec<u32>,
    /// The sender's address as text ([`gid_text`]); empty before 0.3.11: the segment descriptor has it.
    pub local_gid: String,
    /// The sender's local identifier; 0 on Ethernet.
    pub local_lid: u16,
    /// Empty for RDMA.
    pub payload: String,
    /// `None`: the sender knows no ready ACK (before 0.3.12). `false`: it does. `true`: this is one.
    pub ready_ack: Option<bool>,
    /// In a reply, not empty: the request is refused, and why.
    pub reply_msg: String,
}

const DOCUMENT: &str = "the connection message";

impl Connection {
    /// A reply that refuses, with nothing else in it.
    pub fn refusal(why: impl Into<String>) -> Connection {
        Connection { reply_msg: why.into(), ..Connection::default() }
    }

    /// Is there nothing in it? So answers an engine without RDMA; and, without `ready_ack`, so is a ready ACK answered.
    pub fn is_empty(&self) -> bool {
        *self == Connection::default()
    }

    /// As 0.3.13 writes it, without a newline. Older releases ignore what they do not know.
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

    /// Read one, of any release; absent fields are empty.
    ///
    /// # Errors
    /// No JSON object, a field of another type, a name or a list that is too long, a number that no queue pair can have, or a
    /// request for 0.3.13's two-sided control channel, which is another thing under the same type.
    pub fn from_json(text: &[u8]) -> Result<Connection, DocumentError> {
        let value = parse(DOCUMENT, text)?;
        let root = At::root(DOCUMENT, &value)?;
        for name in ["ctrl_channel", "notify_qp_num"] {
            let member = root.member(name);
            if !matches!(member.value, Value::Null | Value::Bool(false)) {
                return Err(member.problem("asks for the two-sided control channel, which is not supported"));
            }
        }
        let numbers = root.member("qp_num");
        let qp_num = numbers.numbers(PAIRS_MAX)?;
        if qp_num.iter().any(|n| *n > PAIR_NUMBER_MAX) {
            return Err(numbers.problem("has a number above 24 bits"));
        }
        let lid = root.member("local_lid");
        let ready = root.member("ready_ack");
        let reply = root.member("reply_msg");
        let ready_ack = match ready.value {
            Value::Null => None,
            Value::Bool(ready) => Some(*ready),
            _ => return Err(ready.problem("is not true or false")),
        };
        // A refusal is worth hearing, however long.
        let reply_msg = match reply.value {
            Value::Null => "",
            Value::String(text) => &text[..text.floor_char_boundary(NAME_BYTES_MAX)],
            _ => return Err(reply.problem("is not a string")),
        };
        Ok(Connection {
            local_nic_path: root.member("local_nic_path").text()?.to_owned(),
            peer_nic_path: root.member("peer_nic_path").text()?.to_owned(),
            qp_num,
            local_gid: root.member("local_gid").text()?.to_owned(),
            local_lid: u16::try_from(lid.number()?.unwrap_or(0))
                .map_err(|_| lid.problem("is not a number of 16 bits"))?,
            payload: root.member("payload").text()?.to_owned(),
            ready_ack,
            reply_msg: reply_msg.to_owned(),
        })
    }
}

/// A GID as upstream writes it: 16 times two lower-case hex digits, joined by `:`.
pub fn gid_text(gid: &[u8; 16]) -> String {
    gid.map(|byte| format!("{byte:02x}")).join(":")
}

/// Read one: 16 times one or two hex digits.
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
    use crate::engine::wire::json::TCP_ONLY_CONNECTION;
    use proptest::prelude::*;

    /// Captured messages, one per line, after a comment that says who sent them.
    const CAPTURED: &str = include_str!("../../../../fixtures/te/connections.txt");

    fn captured() -> impl Iterator<Item = (&'static str, Connection)> {
        let lines = CAPTURED.lines().filter(|l| l.starts_with('{'));
        lines.map(|text| {
            (text, Connection::from_json(text.as_bytes()).unwrap_or_else(|error| panic!("{error}: {text}")))
        })
    }

    #[test]
    fn every_captured_message_is_read_and_those_of_0_3_13_are_written_byte_for_byte() {
        let (mut newest, mut old) = (0, 0);
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
    fn a_message_of_the_oldest_releases_has_paths_and_numbers_only() {
        let old = r#"{"local_nic_path":"127.0.0.1:15487@rxe1","peer_nic_path":"127.0.0.1:16896@rxe0","qp_num":[17,18],"reply_msg":""}"#;
        let expected = Connection {
            local_nic_path: "127.0.0.1:15487@rxe1".into(),
            peer_nic_path: "127.0.0.1:16896@rxe0".into(),
            qp_num: vec![17, 18],
            ..Connection::default()
        };
        assert_eq!(Connection::from_json(old.as_bytes()), Ok(expected));
    }

    #[test]
    fn nothing_is_what_an_engine_without_rdma_answers() {
        assert_eq!(Connection::default().to_json(), TCP_ONLY_CONNECTION);
        assert!(Connection::from_json(b"{}").unwrap().is_empty());
        assert!(!Connection::refusal("no").is_empty());
    }

    #[test]
    fn what_cannot_be_used_is_refused_with_the_field() {
        let many = format!(r#"{{"qp_num":[{}1]}}"#, "1,".repeat(PAIRS_MAX));
        let long = format!(r#"{{"local_nic_path":"{}"}}"#, "x".repeat(NAME_BYTES_MAX + 1));
        for (text, problem) in [
            ("[]", "the document is not an object"),
            (r#"{"qp_num":7}"#, "qp_num is not an array"),
            (r#"{"qp_num":[-1]}"#, "qp_num[0] is not a whole number in range"),
            (r#"{"qp_num":[16777216]}"#, "qp_num has a number above 24 bits"),
            (&many, "qp_num has too many elements"),
            (&long, "local_nic_path is too long"),
            (r#"{"local_lid":65536}"#, "local_lid is not a number of 16 bits"),
            (r#"{"ready_ack":1}"#, "ready_ack is not true or false"),
            (r#"{"ctrl_channel":true}"#, "ctrl_channel asks for the two-sided control channel, which is not supported"),
            (r#"{"notify_qp_num":5}"#, "notify_qp_num asks for the two-sided control channel, which is not supported"),
        ] {
            let error = Connection::from_json(text.as_bytes()).unwrap_err().to_string();
            assert_eq!(error, format!("the connection message: {problem}"));
        }
    }

    #[test]
    fn a_refusal_of_any_length_is_heard() {
        let text = Connection::refusal("é".repeat(NAME_BYTES_MAX)).to_json();
        let read = Connection::from_json(text.as_bytes()).unwrap();
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
        fn a_message_reads_back(
            local_nic_path in "[ -~é]{0,40}", peer_nic_path in "[ -~]{0,40}", payload in "[ -~]{0,9}", reply_msg in "[ -~é]{0,40}",
            qp_num in proptest::collection::vec(0..=PAIR_NUMBER_MAX, 0..5), gid: [u8; 16], local_lid: u16,
            ready_ack: Option<bool>,
        ) {
            let local_gid = gid_text(&gid);
            prop_assert_eq!(parse_gid(&local_gid), Some(gid));
            let message =
                Connection { local_nic_path, peer_nic_path, qp_num, local_gid, local_lid, payload, ready_ack, reply_msg };
            prop_assert_eq!(Connection::from_json(message.to_json().as_bytes()), Ok(message));
        }

        #[test]
        fn any_bytes_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = Connection::from_json(&bytes);
        }
    }
}
