//! The gateway's JSON.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::de::{Deserialize, Deserializer, Error};
use serde::{Deserialize as Derive, Serialize};
use serde_json::{Value, json};

use crate::etcd::request::{EtcdCompare, EtcdKeyValue, EtcdOp, EtcdTxn};

/// Encodes bytes in base64, as the gateway requires.
pub(super) fn encoded(bytes: &[u8]) -> String {
    STANDARD.encode(bytes)
}

/// The end of the range of keys that begin with `prefix`.
pub(super) fn range_end(prefix: &str) -> Vec<u8> {
    let mut end = prefix.as_bytes().to_vec();
    while let Some(last) = end.pop() {
        if last < u8::MAX {
            end.push(last + 1);
            return end;
        }
    }
    vec![0]
}

/// A transaction as the gateway expects it.
pub(super) fn txn(txn: &EtcdTxn) -> Value {
    json!({
        "compare": txn.compare.iter().map(compare).collect::<Vec<Value>>(),
        "success": txn.success.iter().map(op).collect::<Vec<Value>>(),
        "failure": txn.failure.iter().map(op).collect::<Vec<Value>>(),
    })
}

fn compare(compare: &EtcdCompare) -> Value {
    let (key, target, name, value) = match compare {
        EtcdCompare::CreateRevision(key, at) => (key, "CREATE", "create_revision", json!(at.to_string())),
        EtcdCompare::ModRevision(key, at) => (key, "MOD", "mod_revision", json!(at.to_string())),
        EtcdCompare::Value(key, value) => (key, "VALUE", "value", json!(encoded(value))),
    };
    json!({"key": encoded(key.as_bytes()), "target": target, "result": "EQUAL", name: value})
}

fn op(op: &EtcdOp) -> Value {
    match op {
        EtcdOp::Get(key) => json!({"request_range": {"key": encoded(key.as_bytes())}}),
        EtcdOp::Put { key, value, lease } => json!({"request_put":
            {"key": encoded(key.as_bytes()), "value": encoded(value), "lease": lease.to_string()}}),
        EtcdOp::Delete(key) => json!({"request_delete_range": {"key": encoded(key.as_bytes())}}),
    }
}

/// A number that is a string, or a number.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Number(pub i64);

impl Number {
    /// The number as a revision; a negative one is 0.
    pub(super) fn revision(self) -> u64 {
        self.0.max(0).cast_unsigned()
    }
}

impl<'de> Deserialize<'de> for Number {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Number, D::Error> {
        match Value::deserialize(deserializer)? {
            Value::String(text) => text.parse().map(Number).map_err(D::Error::custom),
            Value::Number(number) => number.as_i64().map(Number).ok_or_else(|| D::Error::custom("not a 64-bit number")),
            _ => Err(D::Error::custom("expected a number")),
        }
    }
}

/// Bytes that the gateway sends in base64.
#[derive(Clone, Debug, Default)]
pub(super) struct Blob(pub Vec<u8>);

impl<'de> Deserialize<'de> for Blob {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Blob, D::Error> {
        let text = String::deserialize(deserializer)?;
        STANDARD.decode(text).map(Blob).map_err(D::Error::custom)
    }
}

/// A number that etcd always sets. Zeros are left out of responses, so a response without it comes
/// from another program.
fn positive<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Number, D::Error> {
    match Number::deserialize(deserializer)? {
        number @ Number(1..) => Ok(number),
        Number(other) => Err(D::Error::custom(format!("expected a positive number, not {other}"))),
    }
}

#[derive(Debug, Derive)]
pub(super) struct HeaderJson {
    #[serde(deserialize_with = "positive")]
    pub revision: Number,
}

/// A response of which only the header matters.
#[derive(Debug, Derive)]
pub(super) struct DoneJson {
    #[serde(rename = "header")]
    _header: HeaderJson,
}

#[derive(Clone, Debug, Derive)]
pub(super) struct KeyValueJson {
    #[serde(default)]
    key: Blob,
    #[serde(default)]
    value: Blob,
    #[serde(default)]
    create_revision: Number,
    #[serde(deserialize_with = "positive")]
    mod_revision: Number,
    #[serde(default)]
    lease: Number,
}

impl From<KeyValueJson> for EtcdKeyValue {
    fn from(json: KeyValueJson) -> EtcdKeyValue {
        EtcdKeyValue {
            key: json.key.0,
            value: json.value.0,
            create_revision: json.create_revision.revision(),
            mod_revision: json.mod_revision.revision(),
            lease: json.lease.0,
        }
    }
}

#[derive(Debug, Derive)]
pub(super) struct RangeJson {
    pub header: HeaderJson,
    #[serde(default)]
    pub kvs: Vec<KeyValueJson>,
}

#[derive(Debug, Derive)]
pub(super) struct TxnJson {
    pub header: HeaderJson,
    #[serde(default)]
    pub succeeded: bool,
    /// One for each step.
    #[serde(default)]
    pub responses: Vec<TxnStepJson>,
}

#[derive(Debug, Derive)]
pub(super) struct TxnStepJson {
    /// The response to a read.
    pub response_range: Option<RangeJson>,
}

#[derive(Debug, Derive)]
pub(super) struct LeaseJson {
    #[serde(rename = "ID", deserialize_with = "positive")]
    pub id: Number,
    /// In seconds; 0: the lease does not exist.
    #[serde(rename = "TTL", default)]
    pub ttl: Number,
}

/// A message of a stream: a result or an error.
#[derive(Debug, Derive)]
pub(super) struct StreamJson<T> {
    pub result: Option<T>,
    pub error: Option<StreamErrorJson>,
}

/// The error of a stream. Its code is `grpc_code` up to etcd 3.5, whose gateway is of version
/// 1, and `code` in version 2.
#[derive(Debug, Derive)]
pub(super) struct StreamErrorJson {
    #[serde(alias = "grpc_code")]
    pub code: Option<u32>,
    #[serde(default)]
    pub message: String,
}

#[derive(Debug, Derive)]
pub(super) struct TokenJson {
    pub token: String,
}

/// The body of a response that is not a success. `error` repeats the message, or is the error of a
/// stream.
#[derive(Debug, Derive)]
pub(super) struct ErrorJson {
    code: Option<u32>,
    #[serde(default)]
    message: String,
    error: Option<ErrorFieldJson>,
}

#[derive(Debug, Derive)]
#[serde(untagged)]
enum ErrorFieldJson {
    Message(String),
    Stream(StreamErrorJson),
}

impl ErrorJson {
    /// The gRPC code, if there is one, and the message.
    pub(super) fn into_parts(self) -> (Option<u32>, String) {
        match self.error {
            Some(ErrorFieldJson::Stream(error)) => (error.code, error.message),
            Some(ErrorFieldJson::Message(message)) if self.message.is_empty() => (self.code, message),
            _ => (self.code, self.message),
        }
    }
}

#[derive(Serialize)]
pub(super) struct LoginJson<'a> {
    pub name: &'a str,
    pub password: &'a str,
}

#[derive(Debug, Default, Derive)]
#[serde(default)]
pub(super) struct WatchResultJson {
    pub canceled: bool,
    pub cancel_reason: String,
    pub compact_revision: Number,
    pub events: Vec<EventJson>,
}

#[derive(Debug, Derive)]
pub(super) struct EventJson {
    #[serde(rename = "type", default)]
    pub kind: String,
    pub kv: KeyValueJson,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_transaction_has_the_gateways_form() {
        let put = EtcdOp::Put { key: "k".to_owned(), value: b"v".to_vec(), lease: 7 };
        let compare =
            vec![EtcdCompare::CreateRevision("k".to_owned(), 0), EtcdCompare::Value("a".to_owned(), b"b".to_vec())];
        let json = txn(&EtcdTxn { compare, success: vec![put], failure: vec![EtcdOp::Get("k".to_owned())] });
        let expected = json!({
            "compare": [
                {"key": "aw==", "target": "CREATE", "result": "EQUAL", "create_revision": "0"},
                {"key": "YQ==", "target": "VALUE", "result": "EQUAL", "value": "Yg=="},
            ],
            "success": [{"request_put": {"key": "aw==", "value": "dg==", "lease": "7"}}],
            "failure": [{"request_range": {"key": "aw=="}}],
        });
        assert_eq!(json, expected);
    }

    #[test]
    fn zeros_are_left_out_of_responses() {
        let text = r#"{"header":{"revision":"5"},"kvs":[{"key":"aw==","create_revision":"2","mod_revision":"3","version":"1"}]}"#;
        let range: RangeJson = serde_json::from_str(text).unwrap();
        assert_eq!(range.header.revision.revision(), 5);
        let pair = EtcdKeyValue::from(range.kvs[0].clone());
        let expected =
            EtcdKeyValue { key: b"k".to_vec(), create_revision: 2, mod_revision: 3, ..EtcdKeyValue::default() };
        assert_eq!(pair, expected);
    }

    #[test]
    fn a_response_without_what_etcd_always_sets_is_invalid() {
        fn is_valid<T: serde::de::DeserializeOwned>(text: &str) -> bool {
            serde_json::from_str::<T>(text).is_ok()
        }
        let header = r#""header":{"revision":"5"}"#;
        for text in ["{}", r#"{"header":{}}"#, r#"{"header":{"revision":"0"}}"#, r#"{"header":{"revision":"-1"}}"#] {
            assert!(
                !is_valid::<RangeJson>(text) && !is_valid::<TxnJson>(text) && !is_valid::<DoneJson>(text),
                "{text}"
            );
        }
        assert!(is_valid::<RangeJson>(&format!("{{{header}}}")));
        for pair in [r#"{"key":"?","mod_revision":"1"}"#, r#"{"key":"aw=="}"#] {
            assert!(!is_valid::<RangeJson>(&format!(r#"{{{header},"kvs":[{pair}]}}"#)), "{pair}");
        }
        assert!(!is_valid::<LeaseJson>(r#"{"TTL":"2"}"#) && is_valid::<LeaseJson>(r#"{"ID":"7"}"#));
    }

    #[test]
    fn errors_of_calls_and_of_both_kinds_of_streams_are_read() {
        let parts = |text: &str| serde_json::from_str::<ErrorJson>(text).ok().map(ErrorJson::into_parts);
        let error = |code| Some((code, "why".to_owned()));
        assert_eq!(parts(r#"{"error":"why","message":"why","code":5}"#), error(Some(5)));
        assert_eq!(parts(r#"{"error":"why","code":5}"#), error(Some(5)));
        assert_eq!(parts(r#"{"error":{"grpc_code":14,"http_code":503,"message":"why"}}"#), error(Some(14)));
        assert_eq!(parts(r#"{"error":{"code":14,"message":"why","details":[]}}"#), error(Some(14)));
        assert_eq!(parts(r#"{"message":"why"}"#), error(None));
        assert_eq!(parts("<html>"), None);
    }

    #[test]
    fn a_prefix_ends_before_the_next_one() {
        assert_eq!(range_end("a/"), b"a0");
        assert_eq!(range_end(""), [0]);
    }
}
