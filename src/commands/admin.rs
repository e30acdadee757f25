//! A client of a master's admin HTTP: mcctl's own or mooncake_master's. Reading there grants no lease, which the RPC does.

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
use crate::engine::metadata::escape;

/// The admin port where nobody chose another.
pub const PORT: u16 = 9003;
/// The longest answer that is kept whole, bytes: 100,000 segments.
const ANSWER_BYTES_MAX: usize = 64 << 20;
/// The longest line of a list, bytes; longer ones are cut by the key limit anyway.
const LINE_BYTES_MAX: usize = 2 << 20;
/// A list of keys that brings so many bytes in the time of an answer goes on.
const PROGRESS_BYTES: usize = 64 << 10;
/// Keys of one question, so that the address stays short.
const KEYS_PER_QUESTION: usize = 64;
/// Bytes of escaped keys of one question.
const KEY_BYTES_PER_QUESTION: usize = 4 << 10;

/// A master's admin HTTP.
#[derive(Clone, Debug)]
pub struct Admin {
    http: reqwest::Client,
    at: HostPort,
    origin: String,
    limit: Duration,
}

/// `/health`.
#[derive(Clone, Debug, Deserialize)]
pub struct Health {
    /// `leader` or `standby`.
    pub role: String,
    /// `serving`, `standby`, ...
    pub ha_state: String,
    /// Does it answer clients?
    pub service_ready: bool,
}

/// One mounted segment, of `/get_segments_detail`.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Segment {
    /// Its name.
    pub segment_name: String,
    /// Its id.
    pub segment_id: String,
    /// Who mounted it.
    pub client_id: String,
    /// Size, bytes.
    pub size_bytes: u64,
    /// Where the transfer engine reaches it.
    pub te_endpoint: String,
    /// `tcp` or `rdma`.
    pub protocol: String,
    /// `OK`, `DRAINING`, ...
    pub status: String,
    /// Bytes in use in all segments of this name.
    pub allocator_used_bytes: u64,
    /// Bytes of all segments of this name.
    pub allocator_capacity_bytes: u64,
}

/// One complete memory replica of an object, as the master shows it.
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq, Eq)]
pub struct Replica {
    /// Length of the object, bytes.
    #[serde(rename(deserialize = "size_", serialize = "bytes"))]
    pub bytes: u64,
    /// Where it begins, in the owner's address space.
    #[serde(rename(deserialize = "buffer_address_", serialize = "address"))]
    pub address: u64,
    /// `tcp` or `rdma`.
    #[serde(rename(deserialize = "protocol_", serialize = "protocol"))]
    pub protocol: String,
    /// Where the transfer engine reaches it.
    #[serde(rename(deserialize = "transport_endpoint_", serialize = "endpoint"))]
    pub endpoint: String,
}

impl Admin {
    /// The admin HTTP at `at`, which `origin` chose. The answer to a question is there, whole, within `limit`;
    /// only a list of keys may take longer, see [`Admin::keys`]. Nothing is connected yet.
    ///
    /// # Errors
    /// The host's HTTP library cannot be set up.
    pub fn new(at: HostPort, origin: String, limit: Duration) -> Result<Admin, Failure> {
        let failed =
            |error: &dyn std::fmt::Display| Failure::host("cannot set up an HTTP client").found(error.to_string());
        let http = reqwest::Client::builder()
            .no_proxy()
            .redirect(reqwest::redirect::Policy::none())
            .tls_backend_preconfigured(no_certificates().map_err(|error| failed(&error))?)
            .build();
        Ok(Admin { http: http.map_err(|error| failed(&error))?, at, origin, limit })
    }

    /// Where it is.
    pub fn at(&self) -> &HostPort {
        &self.at
    }

    async fn send(&self, target: &str) -> Result<reqwest::Response, Failure> {
        let sent = self.http.get(format!("http://{}{target}", self.at)).send().await;
        sent.map_err(|error| self.unreachable(target, error))
    }

    fn unreachable(&self, target: &str, error: reqwest::Error) -> Failure {
        Failure::unreachable(format!("no answer from the master's admin HTTP at {}", self.at))
            .tried(format!("GET {} ({})", target.split('?').next().unwrap_or(target), self.origin))
            .found(root_cause(&error.without_url()))
            .next("start the master, or name its admin port with --admin HOST:PORT")
    }

    fn odd(&self, target: &str, found: String) -> Failure {
        Failure::unreachable(format!("{} does not answer like a Mooncake master's admin HTTP", self.at))
            .tried(format!("GET {} ({})", target.split('?').next().unwrap_or(target), self.origin))
            .found(found)
            .next("name the master's admin port (metrics_port, 9003 unless it was chosen) with --admin HOST:PORT")
    }

    fn late(&self, target: &str, what: &str) -> Failure {
        Failure::unreachable(format!("the master's admin HTTP at {} does not answer in time", self.at))
            .tried(format!("GET {} ({})", target.split('?').next().unwrap_or(target), self.origin))
            .found(format!("{what} within {}", show_duration(self.limit)))
            .next("see whether the master is overloaded or stopped, or wait longer with --timeout")
    }

    /// The whole answer to a question that must succeed, within the limit.
    async fn get(&self, target: &str) -> Result<Vec<u8>, Failure> {
        let answered = deadline(&RealEnv::new(), self.limit, self.whole(target)).await;
        answered.unwrap_or_else(|_| Err(self.late(target, "no whole answer")))
    }

    async fn whole(&self, target: &str) -> Result<Vec<u8>, Failure> {
        let (status, body) = self.answer(target).await?;
        if status.is_success() {
            return Ok(body);
        }
        let text: String = String::from_utf8_lossy(&body).chars().take(200).collect();
        Err(self.odd(target, format!("{status}: {text}")))
    }

    async fn answer(&self, target: &str) -> Result<(reqwest::StatusCode, Vec<u8>), Failure> {
        let mut response = self.send(target).await?;
        let status = response.status();
        let mut body = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(|error| self.unreachable(target, error))? {
            if body.len() + chunk.len() > ANSWER_BYTES_MAX {
                return Err(self.odd(target, format!("an answer of more than {ANSWER_BYTES_MAX} bytes")));
            }
            body.extend_from_slice(&chunk);
        }
        Ok((status, body))
    }

    async fn json<T: for<'a> Deserialize<'a>>(&self, target: &str) -> Result<T, Failure> {
        let body = self.get(target).await?;
        serde_json::from_slice(&body).map_err(|error| self.odd(target, error.to_string()))
    }

    /// What the master is at the moment.
    ///
    /// # Errors
    /// It does not answer.
    pub async fn health(&self) -> Result<Health, Failure> {
        const TARGET: &str = "/health";
        let answered = deadline(&RealEnv::new(), self.limit, self.answer(TARGET)).await;
        let (status, body) = answered.unwrap_or_else(|_| Err(self.late(TARGET, "no whole answer")))?;
        // A master whose RPC workers are stuck says so with 503 and the same document.
        serde_json::from_slice(&body).map_err(|error| self.odd(TARGET, format!("{status}: {error}")))
    }

    /// All mounted segments.
    ///
    /// # Errors
    /// It does not answer.
    pub async fn segments(&self) -> Result<Vec<Segment>, Failure> {
        #[derive(Deserialize)]
        struct Detail {
            segments: Vec<Segment>,
        }
        self.json::<Detail>("/get_segments_detail").await.map(|detail| detail.segments)
    }

    /// The metrics without labels, by name.
    ///
    /// # Errors
    /// It does not answer.
    pub async fn metrics(&self) -> Result<BTreeMap<String, f64>, Failure> {
        let body = self.get("/metrics").await?;
        let samples = Samples::parse(&String::from_utf8_lossy(&body));
        Ok(samples.plain().map(|(name, value)| (name.to_owned(), value)).collect())
    }

    /// Every key, as it comes, until `visit` breaks. All of them may take longer than the limit, as long as that time brings
    /// [`PROGRESS_BYTES`] or the end; the time that `visit` takes is not counted.
    ///
    /// # Errors
    /// It does not answer, or not fast enough, or `visit` fails.
    pub async fn keys(&self, mut visit: impl FnMut(&str) -> Result<ControlFlow<()>, Failure>) -> Result<(), Failure> {
        const TARGET: &str = "/get_all_keys";
        let env = RealEnv::new();
        let late =
            || self.late(TARGET, &format!("neither {} of the list nor its end", ByteSize(PROGRESS_BYTES as u64)));
        let mut response = deadline(&env, self.limit, self.send(TARGET)).await.map_err(|_| late())??;
        if !response.status().is_success() {
            return Err(self.odd(TARGET, response.status().to_string()));
        }
        let mut rest: Vec<u8> = Vec::new();
        let (mut waited, mut came) = (Duration::ZERO, 0);
        loop {
            let asked = env.now();
            let left = self.limit.saturating_sub(waited);
            let chunk = deadline(&env, left, response.chunk()).await.map_err(|_| late())?;
            let Some(chunk) = chunk.map_err(|error| self.unreachable(TARGET, error))? else { break };
            waited += env.now().since(asked);
            came += chunk.len();
            if came >= PROGRESS_BYTES {
                (waited, came) = (Duration::ZERO, 0);
            }
            rest.extend_from_slice(&chunk);
            let Some(end) = rest.iter().rposition(|byte| *byte == b'\n') else {
                if rest.len() > LINE_BYTES_MAX {
                    return Err(self.odd(TARGET, format!("a line of more than {LINE_BYTES_MAX} bytes")));
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

    /// The complete memory replicas of each of `keys`, in their order; `None` for one that is not there. No lease is granted.
    ///
    /// # Errors
    /// It does not answer.
    pub async fn replicas(&self, keys: &[String]) -> Result<Vec<Option<Vec<Replica>>>, Failure> {
        let mut found = Vec::with_capacity(keys.len());
        let mut rest = keys;
        while !rest.is_empty() {
            let (now, later) = rest.split_at(question(rest));
            found.extend(self.some_replicas(now).await?);
            rest = later;
        }
        Ok(found)
    }

    async fn some_replicas(&self, keys: &[String]) -> Result<Vec<Option<Vec<Replica>>>, Failure> {
        #[derive(Deserialize)]
        struct Answer {
            data: BTreeMap<String, Item>,
        }
        #[derive(Deserialize)]
        struct Item {
            ok: bool,
            values: Option<Vec<Replica>>,
        }
        let list: Vec<String> = keys.iter().map(|key| escape(key)).collect();
        let target = format!("/batch_query_keys?keys={}", list.join(","));
        let answer: Answer = self.json(&target).await?;
        // A key may be asked for twice, and stands in the answer once.
        let look = |key: &String| {
            let item = answer.data.get(key)?;
            item.ok.then(|| item.values.clone().unwrap_or_default())
        };
        Ok(keys.iter().map(look).collect())
    }
}

/// How many of the first `keys` fit into one question; at least one.
fn question(keys: &[String]) -> usize {
    let mut bytes = 0;
    let fit = keys.iter().take(KEYS_PER_QUESTION).take_while(|key| {
        bytes += 3 * key.len() + 1;
        bytes <= KEY_BYTES_PER_QUESTION
    });
    fit.count().max(1)
}

/// Can `key` be asked for over HTTP? Keys are separated by commas there, and the separation comes after the decoding.
pub fn can_ask(key: &str) -> bool {
    !key.contains(',') && !key.is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_question_holds_as_many_keys_as_fit_and_at_least_one() {
        assert_eq!(question(&vec!["k".to_owned(); 1000]), KEYS_PER_QUESTION);
        assert_eq!(question(&vec!["k".repeat(1000); 3]), 1);
        assert_eq!(question(&["k".repeat(100_000)]), 1);
    }

    #[test]
    fn a_key_with_a_comma_cannot_be_asked_for() {
        assert!(can_ask("a/b") && !can_ask("a,b") && !can_ask(""));
    }
}
