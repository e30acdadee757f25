//! The gateway's JSON.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::de::{Deserialize, Deserializer, Error};
use serde::{Deserialize as Derive, Serialize};
use serde_json::{Value, json};

use crate::engine::etcd::request::{EtcdCompare, EtcdKeyValue, EtcdOp, EtcdTxn};

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
    pub fn revision(self) -> u64 {
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

#[derive(Debug, Default, Derive)]
#[serde(default)]
pub(super) struct HeaderJson {
    pub revision: Number,
}

#[derive(Clone, Debug, Default, Derive)]
#[serde(default)]
pub(super) struct KeyValueJson {
    key: Blob,
    value: Blob,
    create_revision: Number,
    mod_revision: Number,
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

#[derive(Debug, Default, Derive)]
#[serde(default)]
pub(super) struct RangeJson {
    pub header: HeaderJson,
    pub kvs: Vec<KeyValueJson>,
}

#[derive(Debug, Default, Derive)]
#[serde(default)]
pub(super) struct TxnJson {
    pub header: HeaderJson,
    pub succeeded: bool,
    pub responses: Vec<TxnOpJson>,
}

#[derive(Debug, Default, Derive)]
#[serde(default)]
pub(super) struct TxnOpJson {
    pub response_range: RangeJson,
}

#[derive(Debug, Default, Derive)]
#[serde(default)]
pub(super) struct LeaseJson {
    #[serde(rename = "ID")]
    pub id: Number,
    #[serde(rename = "TTL")]
    pub ttl: Number,
}

#[derive(Debug, Default, Derive)]
#[serde(default)]
pub(super) struct KeepAliveJson {
    pub result: LeaseJson,
}

#[derive(Debug, Default, Derive)]
#[serde(default)]
pub(super) struct TokenJson {
    pub token: String,
}

/// An error of the gateway: a refused request, or the end of a stream.
#[derive(Debug, Default, Derive)]
#[serde(default)]
pub(super) struct ErrorJson {
    pub code: u32,
    pub message: String,
    pub error: Value,
}

#[derive(Serialize)]
pub(super) struct LoginJson<'a> {
    pub name: &'a str,
    pub password: &'a str,
}

#[derive(Debug, Default, Derive)]
#[serde(default)]
pub(super) struct WatchJson {
    pub result: Option<WatchResultJson>,
    pub error: Option<Value>,
}

#[derive(Debug, Default, Derive)]
#[serde(default)]
pub(super) struct WatchResultJson {
    pub canceled: bool,
    pub cancel_reason: String,
    pub compact_revision: Number,
    pub created: bool,
    pub events: Vec<EventJson>,
}

#[derive(Debug, Default, Derive)]
#[serde(default)]
pub(super) struct EventJson {
    #[serde(rename = "type")]
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
        assert!(serde_json::from_str::<RangeJson>(r#"{"kvs":[{"key":"?"}]}"#).is_err());
    }

    #[test]
    fn a_prefix_ends_before_the_next_one() {
        assert_eq!(range_end("a/"), b"a0");
        assert_eq!(range_end(""), [0]);
    }
}
