//! Reads the record of the leading master from etcd over its HTTP gateway (`/v3/kv/range`, since etcd 3.4).
//!
//! The key is `mooncake-store/<cluster id>/master_view`, and the value is `host:port`. The key `/oplog/<cluster id>/durable_prefix` exists
//! if the leader replicates its metadata (Mooncake 0.3.13, `enable_oplog`).

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;

use crate::engine::base::HostPort;
use crate::engine::base::text::escaped;
use crate::engine::doctor::cluster::facts::LeaderRecord;
use crate::engine::doctor::{Fact, Unavailable};
use crate::engine::http::Fetcher;

/// The common prefix of all clusters' keys.
const PREFIX: &str = "mooncake-store/";
/// The end of the key range, exclusive.
const PREFIX_END: &str = "mooncake-store0";

/// The etcd cluster and the Mooncake cluster to look up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Etcd {
    /// The etcd servers, in the order to try.
    pub endpoints: Vec<HostPort>,
    /// `MC_STORE_CLUSTER_ID`; the default is `mooncake_cluster`.
    pub cluster: String,
}

impl Etcd {
    /// Parses `h:p;h:p`, the part after `etcd://`.
    ///
    /// # Errors
    /// An entry in the list is not an address, or the list is empty.
    pub fn parse(list: &str, cluster: &str) -> Fact<Etcd> {
        let parts = list.split(';').map(str::trim).filter(|part| !part.is_empty());
        let endpoints: Result<Vec<HostPort>, _> = parts.map(|part| part.parse::<HostPort>()).collect();
        let endpoints = endpoints.map_err(Unavailable::new)?;
        if endpoints.is_empty() {
            return Err("the list of etcd servers is empty".into());
        }
        Ok(Etcd { endpoints, cluster: cluster.to_owned() })
    }
}

/// Reads the leader's record.
pub async fn leader(fetcher: &Fetcher, etcd: &Etcd) -> LeaderRecord {
    let key = format!("{PREFIX}{}/master_view", etcd.cluster);
    match range(fetcher, etcd, PREFIX, PREFIX_END).await {
        Err(why) => LeaderRecord { key, found: Err(why), others: Vec::new() },
        Ok(pairs) => {
            let found = pairs.iter().find(|(k, _)| *k == key).map(|(_, value)| escaped(value));
            let others = pairs.iter().map(|(k, _)| escaped(k)).filter(|k| *k != key && k.ends_with("/master_view"));
            LeaderRecord { others: others.collect(), found: Ok(found), key }
        }
    }
}

/// The key-value pairs of the range `from..to`, from the first server that responds.
async fn range(fetcher: &Fetcher, etcd: &Etcd, from: &str, to: &str) -> Fact<Vec<(String, String)>> {
    let body = serde_json::json!({"key": encode(from.as_bytes()), "range_end": encode(to.as_bytes()), "limit": 64});
    let mut why = String::new();
    for at in &etcd.endpoints {
        let answer = fetcher.post(&format!("http://{at}/v3/kv/range"), body.to_string()).await;
        match answer {
            Ok(answer) if answer.is_ok() => return pairs(&answer.body),
            Ok(answer) => why = format!("{at}: {}", answer.shown()),
            Err(error) => why = format!("{at}: {error}"),
        }
    }
    Err(why.into())
}

fn pairs(body: &str) -> Fact<Vec<(String, String)>> {
    #[derive(Deserialize)]
    struct RangeJson {
        #[serde(default)]
        kvs: Vec<KeyValueJson>,
    }
    #[derive(Deserialize)]
    struct KeyValueJson {
        key: String,
        #[serde(default)]
        value: String,
    }
    let body: RangeJson = serde_json::from_str(body)
        .map_err(|error| Unavailable::from(format!("invalid response from etcd: {error}")))?;
    let text = |b64: &str| decode(b64).map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    let pair = |pair: &KeyValueJson| Some((text(&pair.key)?, text(&pair.value)?));
    Ok(body.kvs.iter().filter_map(pair).collect())
}

/// Encodes base64, which etcd's gateway uses for bytes in JSON.
fn encode(bytes: &[u8]) -> String {
    STANDARD.encode(bytes)
}

fn decode(text: &str) -> Option<Vec<u8>> {
    STANDARD.decode(text).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_round_trips_for_every_length() {
        for text in ["", "a", "ab", "abc", "mooncake-store/mooncake_cluster/master_view", "ü\u{1}\0"] {
            assert_eq!(decode(&encode(text.as_bytes())).as_deref(), Some(text.as_bytes()), "{text}");
        }
        assert_eq!(encode(b"abcd"), "YWJjZA==");
        assert_eq!(decode("a!"), None);
    }

    #[test]
    fn etcd_pairs_are_parsed_and_an_empty_result_is_valid() {
        let body = format!(
            r#"{{"header":{{"cluster_id":"1"}},"kvs":[{{"key":"{}","value":"{}","create_revision":"2"}}],"count":"1"}}"#,
            encode(b"mooncake-store/a/master_view"),
            encode(b"10.0.0.1:50051")
        );
        assert_eq!(pairs(&body), Ok(vec![("mooncake-store/a/master_view".to_owned(), "10.0.0.1:50051".to_owned())]));
        assert_eq!(pairs("{}"), Ok(Vec::new()));
    }

    #[test]
    fn servers_are_separated_by_semicolons() {
        let etcd = Etcd::parse("10.0.0.1:2379;10.0.0.2:2379", "blue").expect("addresses");
        assert_eq!(etcd.endpoints.len(), 2);
        assert!(Etcd::parse("", "blue").is_err() && Etcd::parse("10.0.0.1:2379/", "blue").is_err());
    }
}
