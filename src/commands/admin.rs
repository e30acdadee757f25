//! A client for the admin HTTP endpoint of a master (mcctl or mooncake_master). Unlike reads over RPC, reads over HTTP grant no lease.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::commands::args::show_duration;
use crate::commands::error::Failure;
use crate::engine::base::{ByteSize, HostPort};
use crate::engine::env::{Env, RealEnv, deadline};
use crate::engine::http::Samples;
use crate::engine::http::client::no_certificates;
use crate::engine::http::fetch::root_cause;
use crate::engine::master::admin::CLIENTS_ROUTE;
use crate::engine::metadata::escape;

/// A master's default admin port.
pub const PORT: u16 = 9003;
/// Maximum size of a response that is read into memory, in bytes: enough for 100,000 segments.
const RESPONSE_BYTES_MAX: usize = 64 << 20;
/// Maximum line length in a list, in bytes. It exceeds the maximum key length.
const LINE_BYTES_MAX: usize = 2 << 20;
/// While a key list is read, at least this many bytes must arrive in each timeout interval.
const PROGRESS_BYTES: usize = 64 << 10;
/// Maximum number of keys per query, to limit the URL length.
const KEYS_PER_QUERY: usize = 64;
/// Maximum total length of the escaped keys in a query, in bytes.
const KEY_BYTES_PER_QUERY: usize = 4 << 10;

/// A client for a master's admin HTTP endpoint.
#[derive(Clone, Debug)]
pub struct AdminClient {
    http: reqwest::Client,
    at: HostPort,
    origin: String,
    limit: Duration,
}

/// The response from `/health`.
#[derive(Clone, Debug, Deserialize)]
pub struct MasterHealth {
    /// `leader` or `standby`.
    pub role: String,
    /// `serving`, `standby`, ...
    pub ha_state: String,
    /// Whether the master serves clients.
    pub service_ready: bool,
}

/// One mounted segment from `/get_segments_detail`.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct SegmentDetail {
    pub segment_name: String,
    pub segment_id: String,
    pub client_id: String,
    pub size_bytes: u64,
    /// The node's address or name in the transfer engine.
    pub te_endpoint: String,
    /// `tcp` or `rdma`.
    pub protocol: String,
    /// `OK`, `DRAINING`, ...
    pub status: String,
    /// Bytes in use in all segments with this name.
    pub allocator_used_bytes: u64,
    /// Total capacity of all segments with this name, in bytes.
    pub allocator_capacity_bytes: u64,
}

/// A client's last heartbeat, from `/api/v1/mcctl/clients`.
#[derive(Clone, Debug, Deserialize)]
pub struct ClientHeartbeat {
    pub client_id: String,
    /// Milliseconds since the client's last heartbeat or other call.
    pub last_heartbeat_ms: u64,
}

/// One complete memory replica of an object.
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq, Eq)]
pub struct MemoryReplica {
    #[serde(rename(deserialize = "size_", serialize = "bytes"))]
    pub bytes: u64,
    /// Start address, in the owner's address space.
    #[serde(rename(deserialize = "buffer_address_", serialize = "address"))]
    pub address: u64,
    /// `tcp` or `rdma`.
    #[serde(rename(deserialize = "protocol_", serialize = "protocol"))]
    pub protocol: String,
    /// The node's address or name in the transfer engine.
    #[serde(rename(deserialize = "transport_endpoint_", serialize = "endpoint"))]
    pub endpoint: String,
}

impl AdminClient {
    /// A client for the admin HTTP endpoint at `at`; `origin` names the setting that selected this address. No connection is opened yet.
    /// Each response must complete within `limit`; only a key list may take longer (see [`AdminClient::keys`]).
    ///
    /// # Errors
    /// The HTTP client cannot be set up.
    pub fn new(at: HostPort, origin: String, limit: Duration) -> Result<AdminClient, Failure> {
        let failed =
            |error: &dyn std::fmt::Display| Failure::host("cannot set up an HTTP client").found(error.to_string());
        let http = reqwest::Client::builder()
            .no_proxy()
            .redirect(reqwest::redirect::Policy::none())
            .tls_backend_preconfigured(no_certificates().map_err(|error| failed(&error))?)
            .build();
        Ok(AdminClient { http: http.map_err(|error| failed(&error))?, at, origin, limit })
    }

    /// The address of the admin HTTP endpoint.
    pub fn at(&self) -> &HostPort {
        &self.at
    }

    async fn send(&self, target: &str) -> Result<reqwest::Response, Failure> {
        let sent = self.http.get(format!("http://{}{target}", self.at)).send().await;
        sent.map_err(|error| self.unreachable(target, error))
    }

    fn unreachable(&self, target: &str, error: reqwest::Error) -> Failure {
        Failure::unreachable(format!("cannot reach the master's admin HTTP endpoint at {}", self.at))
            .tried(format!("GET {} ({})", target.split('?').next().unwrap_or(target), self.origin))
            .found(root_cause(&error.without_url()))
            .next("start the master, or pass its admin address with --admin HOST:PORT")
    }

    fn unexpected(&self, target: &str, found: String) -> Failure {
        Failure::unreachable(format!("{} is not the admin HTTP endpoint of a Mooncake master", self.at))
            .tried(format!("GET {} ({})", target.split('?').next().unwrap_or(target), self.origin))
            .found(found)
            .next("pass the master's admin address with --admin HOST:PORT (the port is the master's --metrics_port, 9003 by default)")
    }

    fn timeout(&self, target: &str, what: &str) -> Failure {
        Failure::unreachable(format!("the master's admin HTTP endpoint at {} did not respond in time", self.at))
            .tried(format!("GET {} ({})", target.split('?').next().unwrap_or(target), self.origin))
            .found(format!("{what} within {}", show_duration(self.limit)))
            .next("check whether the master is overloaded or suspended, or set a longer --timeout")
    }

    /// The complete response to a request that must succeed within the time limit.
    async fn get(&self, target: &str) -> Result<Vec<u8>, Failure> {
        let (status, body) = self.response_in_time(target).await?;
        if status.is_success() {
            return Ok(body);
        }
        let text: String = String::from_utf8_lossy(&body).chars().take(200).collect();
        Err(self.unexpected(target, format!("{status}: {text}")))
    }

    async fn response_in_time(&self, target: &str) -> Result<(reqwest::StatusCode, Vec<u8>), Failure> {
        let response = deadline(&RealEnv::new(), self.limit, self.response(target)).await;
        response.unwrap_or_else(|_| Err(self.timeout(target, "no complete response")))
    }

    async fn response(&self, target: &str) -> Result<(reqwest::StatusCode, Vec<u8>), Failure> {
        let mut response = self.send(target).await?;
        let status = response.status();
        let mut body = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(|error| self.unreachable(target, error))? {
            if body.len() + chunk.len() > RESPONSE_BYTES_MAX {
                return Err(self.unexpected(target, format!("the response is larger than {RESPONSE_BYTES_MAX} bytes")));
            }
            body.extend_from_slice(&chunk);
        }
        Ok((status, body))
    }

    async fn json<T: for<'a> Deserialize<'a>>(&self, target: &str) -> Result<T, Failure> {
        let body = self.get(target).await?;
        serde_json::from_slice(&body).map_err(|error| self.unexpected(target, error.to_string()))
    }

    /// The master's role and state.
    ///
    /// # Errors
    /// The admin HTTP endpoint does not respond, or it is not a Mooncake master's endpoint.
    pub async fn health(&self) -> Result<MasterHealth, Failure> {
        const TARGET: &str = "/health";
        let (status, body) = self.response_in_time(TARGET).await?;
        // A master with stuck RPC workers returns 503 with the same document.
        serde_json::from_slice(&body).map_err(|error| self.unexpected(TARGET, format!("{status}: {error}")))
    }

    /// The last heartbeat of each client with a segment; `None` if the master does not report heartbeats (mooncake_master does not).
    ///
    /// # Errors
    /// The admin HTTP endpoint does not respond, or it is not a Mooncake master's endpoint.
    pub async fn heartbeats(&self) -> Result<Option<Vec<ClientHeartbeat>>, Failure> {
        #[derive(Deserialize)]
        struct ClientList {
            clients: Vec<ClientHeartbeat>,
        }
        let (status, body) = self.response_in_time(CLIENTS_ROUTE).await?;
        if !status.is_success() {
            return Ok(None);
        }
        let list = serde_json::from_slice::<ClientList>(&body);
        list.map(|list| Some(list.clients)).map_err(|error| self.unexpected(CLIENTS_ROUTE, error.to_string()))
    }

    /// All mounted segments.
    ///
    /// # Errors
    /// The admin HTTP endpoint does not respond, or it is not a Mooncake master's endpoint.
    pub async fn segments(&self) -> Result<Vec<SegmentDetail>, Failure> {
        #[derive(Deserialize)]
        struct SegmentList {
            segments: Vec<SegmentDetail>,
        }
        self.json::<SegmentList>("/get_segments_detail").await.map(|detail| detail.segments)
    }

    /// The metrics without labels, by name.
    ///
    /// # Errors
    /// The admin HTTP endpoint does not respond, or it is not a Mooncake master's endpoint.
    pub async fn metrics(&self) -> Result<BTreeMap<String, f64>, Failure> {
        let body = self.get("/metrics").await?;
        let samples = Samples::parse(&String::from_utf8_lossy(&body));
        Ok(samples.plain().map(|(name, value)| (name.to_owned(), value)).collect())
    }

    /// Calls `visit` with each key as it arrives, until `visit` returns `Break`. Reading the whole list may take longer than the limit,
    /// provided that at least [`PROGRESS_BYTES`] arrive in each interval of that length. Time spent in `visit` does not count.
    ///
    /// # Errors
    /// The admin HTTP endpoint does not respond or is too slow, or `visit` fails.
    pub async fn keys(&self, mut visit: impl FnMut(&str) -> Result<ControlFlow<()>, Failure>) -> Result<(), Failure> {
        const TARGET: &str = "/get_all_keys";
        let env = RealEnv::new();
        let timeout =
            || self.timeout(TARGET, &format!("received less than {} of the list", ByteSize(PROGRESS_BYTES as u64)));
        let mut response = deadline(&env, self.limit, self.send(TARGET)).await.map_err(|_| timeout())??;
        if !response.status().is_success() {
            return Err(self.unexpected(TARGET, response.status().to_string()));
        }
        let mut rest: Vec<u8> = Vec::new();
        let (mut waited, mut received) = (Duration::ZERO, 0);
        loop {
            let began = env.now();
            let left = self.limit.saturating_sub(waited);
            let chunk = deadline(&env, left, response.chunk()).await.map_err(|_| timeout())?;
            let Some(chunk) = chunk.map_err(|error| self.unreachable(TARGET, error))? else { break };
            waited += env.now().since(began);
            received += chunk.len();
            if received >= PROGRESS_BYTES {
                (waited, received) = (Duration::ZERO, 0);
            }
            rest.extend_from_slice(&chunk);
            let Some(end) = rest.iter().rposition(|byte| *byte == b'\n') else {
                if rest.len() > LINE_BYTES_MAX {
                    return Err(self.unexpected(TARGET, format!("a line is longer than {LINE_BYTES_MAX} bytes")));
                }
                continue;
            };
            for line in rest[..end].split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
                if visit(&String::from_utf8_lossy(line))?.is_break() {
                    return Ok(());
                }
            }
            rest.drain(..=end);
        }
        if !rest.is_empty() {
            visit(&String::from_utf8_lossy(&rest))?.is_break();
        }
        Ok(())
    }

    /// The complete memory replicas of each key, in the same order as `keys`; `None` for a key that does not exist. Grants no lease.
    ///
    /// # Errors
    /// The admin HTTP endpoint does not respond, or it is not a Mooncake master's endpoint.
    pub async fn replicas(&self, keys: &[String]) -> Result<Vec<Option<Vec<MemoryReplica>>>, Failure> {
        let mut found = Vec::with_capacity(keys.len());
        let mut rest = keys;
        while !rest.is_empty() {
            let (query, later) = rest.split_at(query_len(rest));
            found.extend(self.query_replicas(query).await?);
            rest = later;
        }
        Ok(found)
    }

    async fn query_replicas(&self, keys: &[String]) -> Result<Vec<Option<Vec<MemoryReplica>>>, Failure> {
        #[derive(Deserialize)]
        struct BatchReply {
            data: BTreeMap<String, KeyReply>,
        }
        #[derive(Deserialize)]
        struct KeyReply {
            ok: bool,
            values: Option<Vec<MemoryReplica>>,
        }
        let list: Vec<String> = keys.iter().map(|key| escape(key)).collect();
        let target = format!("/batch_query_keys?keys={}", list.join(","));
        let reply: BatchReply = self.json(&target).await?;
        // If `keys` contains a key more than once, the response lists it only once.
        let replicas = |key: &String| {
            let entry = reply.data.get(key)?;
            entry.ok.then(|| entry.values.clone().unwrap_or_default())
        };
        Ok(keys.iter().map(replicas).collect())
    }
}

/// The number of leading `keys` that fit into one query, at least 1.
fn query_len(keys: &[String]) -> usize {
    let mut bytes = 0;
    let fit = keys.iter().take(KEYS_PER_QUERY).take_while(|key| {
        bytes += 3 * key.len() + 1;
        bytes <= KEY_BYTES_PER_QUERY
    });
    fit.count().max(1)
}

/// Whether `key` can be queried over HTTP. The endpoint splits the URL-decoded list at commas, so a key with a comma cannot be queried.
pub fn can_query(key: &str) -> bool {
    !key.contains(',') && !key.is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_holds_the_keys_that_fit_and_at_least_one() {
        assert_eq!(query_len(&vec!["k".to_owned(); 1000]), KEYS_PER_QUERY);
        assert_eq!(query_len(&vec!["k".repeat(1000); 3]), 1);
        assert_eq!(query_len(&["k".repeat(100_000)]), 1);
    }

    #[test]
    fn a_key_with_a_comma_cannot_be_queried() {
        assert!(can_query("a/b") && !can_query("a,b") && !can_query(""));
    }
}
