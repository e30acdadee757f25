//! A client for the admin HTTP endpoint of a master (mcctl or mooncake_master). Unlike reads over
//! RPC, reads over HTTP grant no lease.

use std::time::Duration;

use serde::de::DeserializeOwned;

use crate::admin::error::{AdminError, AdminErrorKind};
use crate::admin::keys::KeyList;
use crate::admin::routes;
use crate::admin::types::{
    Announcement, ClientHeartbeats, HaStatusReport, KeyBatch, MasterHealth, MasterLeader, MemoryReplica, SegmentDetail,
    SegmentsDetail, SteppedDown,
};
use mcctl_base::HostPort;
use mcctl_net::http::{FetchError, FetchResponse, Fetcher, HttpCredentials, Samples, escape_in_query};
use mcctl_sys::env::{RealEnv, deadline};

/// Maximum size of a response that is read into memory, in bytes: enough for 100,000 segments.
const RESPONSE_BYTES_MAX: usize = 64 << 20;
/// Maximum number of keys per query, to limit the URL length.
const KEYS_PER_QUERY: usize = 64;
/// Maximum total length of the escaped keys in a query, in bytes.
const KEY_BYTES_PER_QUERY: usize = 4 << 10;

/// Maximum duration of a hand-over. It continues as long as the standby makes progress.
const STEP_DOWN_MAX: Duration = Duration::from_secs(600);

/// A client for a master's admin HTTP endpoint. Cheap to clone; clones share the connections.
#[derive(Clone, Debug)]
pub struct AdminClient {
    fetcher: Fetcher,
    scheme: &'static str,
    at: HostPort,
    limit: Duration,
}

impl AdminClient {
    /// A client for the admin HTTP endpoint at `at`. It does not connect yet. Each response must be
    /// complete within `limit`; only a key list may take longer (see [`AdminClient::keys`]).
    ///
    /// # Errors
    /// [`FetchError::Unusable`] if the HTTP client cannot be set up on this host.
    pub fn new(at: HostPort, limit: Duration) -> Result<AdminClient, FetchError> {
        AdminClient::with_credentials(at, limit, &HttpCredentials::default())
    }

    /// Like [`new`](AdminClient::new), for an endpoint that requires a token or TLS.
    ///
    /// # Errors
    /// The same as [`new`](AdminClient::new).
    pub fn with_credentials(
        at: HostPort,
        limit: Duration,
        credentials: &HttpCredentials,
    ) -> Result<AdminClient, FetchError> {
        let fetcher = Fetcher::with_credentials(credentials, limit, RESPONSE_BYTES_MAX)?;
        Ok(AdminClient { fetcher, scheme: credentials.scheme(), at, limit })
    }

    /// The address of the endpoint.
    pub fn at(&self) -> &HostPort {
        &self.at
    }

    /// The master's role and state.
    ///
    /// # Errors
    /// No response, or not from a Mooncake master.
    pub async fn health(&self) -> Result<MasterHealth, AdminError> {
        const STUCK: u16 = 503;
        let response = self.fetch(routes::HEALTH, routes::HEALTH).await?;
        // If the master's RPC workers are stuck, it returns status 503 with the same document.
        if !response.is_ok() && response.status != STUCK {
            return Err(self.failed(routes::HEALTH, AdminErrorKind::status(&response)));
        }
        let health = MasterHealth::parse(&response.body);
        health.map_err(|error| self.failed(routes::HEALTH, AdminErrorKind::unexpected(&response, &error)))
    }

    /// Whether the master is ready; `None` if it does not say (`mooncake_master` up to 0.3.13 does
    /// not).
    ///
    /// # Errors
    /// No response.
    pub async fn ready(&self) -> Result<Option<bool>, AdminError> {
        const NOT_READY: u16 = 503;
        let response = self.fetch(routes::READY, routes::READY).await?;
        Ok(match response.status {
            NOT_READY => Some(false),
            _ => response.is_ok().then_some(true),
        })
    }

    /// `leader` or `standby`; `None` if the response does not contain it (before 0.3.11).
    ///
    /// # Errors
    /// No response, or the request was refused.
    pub async fn role(&self) -> Result<Option<String>, AdminError> {
        let response = self.fetch(routes::ROLE, routes::ROLE).await?;
        match response.status {
            401 | 403 => Err(self.failed(routes::ROLE, AdminErrorKind::status(&response))),
            _ => Ok(response.is_ok().then_some(response.body)),
        }
    }

    /// The leader of the HA cluster.
    ///
    /// # Errors
    /// No response, or not from a Mooncake master.
    pub async fn leader(&self) -> Result<MasterLeader, AdminError> {
        self.json(routes::LEADER, routes::LEADER).await
    }

    /// The master's part in its cluster; `None` if it does not say: it is not in a cluster, or not
    /// mcctl's.
    ///
    /// # Errors
    /// No response.
    pub async fn ha_status(&self) -> Result<Option<HaStatusReport>, AdminError> {
        let target = format!("{}?format=json", routes::HA_STATUS);
        let response = self.fetch(routes::HA_STATUS, &target).await?;
        let found = response.is_ok().then(|| serde_json::from_str::<HaStatusReport>(&response.body).ok()).flatten();
        Ok(found.filter(|found| found.schema == HaStatusReport::SCHEMA))
    }

    /// Asks the leader of a cluster to hand over to a standby.
    ///
    /// # Errors
    /// No response, or not from an mcctl master.
    pub async fn step_down(&self) -> Result<SteppedDown, AdminError> {
        let url = self.url(routes::STEP_DOWN);
        let response = self.fetcher.clone().with_limit(STEP_DOWN_MAX).post(&url, String::new()).await;
        let response = response.map_err(|error| self.failed(routes::STEP_DOWN, error.into()))?;
        let stepped = serde_json::from_str::<SteppedDown>(&response.body);
        stepped.map_err(|error| self.failed(routes::STEP_DOWN, AdminErrorKind::unexpected(&response, &error)))
    }

    /// The announcement of the nodes' metadata mode; `None` if the master makes none that this
    /// release understands (`mooncake_master` makes none).
    ///
    /// # Errors
    /// No response, or the request was refused.
    pub async fn announcement(&self) -> Result<Option<Announcement>, AdminError> {
        let response = self.fetch(routes::DISCOVERY, routes::DISCOVERY).await?;
        if let 401 | 403 = response.status {
            return Err(self.failed(routes::DISCOVERY, AdminErrorKind::status(&response)));
        }
        let found = response.is_ok().then(|| serde_json::from_str::<Announcement>(&response.body).ok()).flatten();
        Ok(found.filter(|found| found.schema == Announcement::SCHEMA))
    }

    /// The last heartbeat of each client with a segment, and the clients' releases; `None` if the
    /// master does not report them (`mooncake_master` does not).
    ///
    /// # Errors
    /// No response, or not from a Mooncake master.
    pub async fn heartbeats(&self) -> Result<Option<ClientHeartbeats>, AdminError> {
        let response = self.fetch(routes::CLIENTS, routes::CLIENTS).await?;
        if !response.is_ok() {
            return Ok(None);
        }
        self.parse(routes::CLIENTS, &response).map(Some)
    }

    /// All mounted segments. Releases before 0.3.12 respond with status 404; see
    /// [`AdminClient::segment_names`].
    ///
    /// # Errors
    /// No response, or not from a Mooncake master.
    pub async fn segments(&self) -> Result<Vec<SegmentDetail>, AdminError> {
        let detail: SegmentsDetail = self.json(routes::SEGMENTS_DETAIL, routes::SEGMENTS_DETAIL).await?;
        Ok(detail.segments)
    }

    /// The names of all mounted segments, one entry per segment.
    ///
    /// # Errors
    /// No response, or not from a Mooncake master.
    pub async fn segment_names(&self) -> Result<Vec<String>, AdminError> {
        let names = self.get(routes::ALL_SEGMENTS, routes::ALL_SEGMENTS).await?.body;
        Ok(names.lines().map(str::trim).filter(|name| !name.is_empty()).map(str::to_owned).collect())
    }

    /// The master's metrics.
    ///
    /// # Errors
    /// No response, or not from a Mooncake master.
    pub async fn metrics(&self) -> Result<Samples, AdminError> {
        Ok(Samples::parse(&self.get(routes::METRICS, routes::METRICS).await?.body))
    }

    /// The line that summarizes the master's metrics.
    ///
    /// # Errors
    /// No response, or not from a Mooncake master.
    pub async fn summary(&self) -> Result<String, AdminError> {
        Ok(self.get(routes::SUMMARY, routes::SUMMARY).await?.body)
    }

    /// Requests the list of all keys, in the master's order. Reading the whole list may take longer
    /// than the limit, provided that at least [`PROGRESS_BYTES`](KeyList::PROGRESS_BYTES) arrive in
    /// each interval of that length.
    ///
    /// # Errors
    /// No response, or not from a Mooncake master.
    pub async fn keys(&self) -> Result<KeyList, AdminError> {
        let url = self.url(routes::ALL_KEYS);
        let stream = match deadline(&RealEnv::new(), self.limit, self.fetcher.open(&url)).await {
            Ok(opened) => opened.map_err(|error| self.failed(routes::ALL_KEYS, error.into()))?,
            Err(_) => return Err(self.failed(routes::ALL_KEYS, AdminErrorKind::TooSlow(self.limit))),
        };
        match stream.status() {
            200..300 => Ok(KeyList::new((self.scheme, self.at.clone()), stream, self.limit)),
            status => Err(self.failed(routes::ALL_KEYS, AdminErrorKind::Status { status, body: String::new() })),
        }
    }

    /// The complete memory replicas of each key, in the same order as `keys`; `None` for a key that
    /// does not exist. Grants no lease. See [`AdminClient::can_query`].
    ///
    /// # Errors
    /// No response, or not from a Mooncake master.
    pub async fn replicas(&self, keys: &[String]) -> Result<Vec<Option<Vec<MemoryReplica>>>, AdminError> {
        let mut found = Vec::with_capacity(keys.len());
        let mut rest = keys;
        while !rest.is_empty() {
            let (query, later) = rest.split_at(query_len(rest));
            found.extend(self.query_replicas(query).await?);
            rest = later;
        }
        Ok(found)
    }

    /// Whether the replicas of `key` can be queried. The endpoint splits the URL-decoded list at
    /// commas, so a key with a comma cannot be queried.
    pub fn can_query(key: &str) -> bool {
        !key.contains(',') && !key.is_empty()
    }

    async fn query_replicas(&self, keys: &[String]) -> Result<Vec<Option<Vec<MemoryReplica>>>, AdminError> {
        let list: Vec<String> = keys.iter().map(|key| escape_in_query(key)).collect();
        let target = format!("{}?keys={}", routes::BATCH_QUERY_KEYS, list.join(","));
        let batch: KeyBatch = self.json(routes::BATCH_QUERY_KEYS, &target).await?;
        let entries = batch.data.by_key();
        // If `keys` contains a key more than once, the response lists it only once.
        let replicas = |key: &String| {
            let entry = entries.get(key)?;
            entry.ok.then(|| entry.values.clone().unwrap_or_default())
        };
        Ok(keys.iter().map(replicas).collect())
    }

    fn url(&self, target: &str) -> String {
        format!("{}://{}{target}", self.scheme, self.at)
    }

    /// The complete response to a request for `target`, which has the path `route`.
    async fn fetch(&self, route: &'static str, target: &str) -> Result<FetchResponse, AdminError> {
        let response = self.fetcher.get(&self.url(target)).await;
        response.map_err(|error| self.failed(route, error.into()))
    }

    /// Like [`fetch`](AdminClient::fetch), for a request that must succeed.
    async fn get(&self, route: &'static str, target: &str) -> Result<FetchResponse, AdminError> {
        let response = self.fetch(route, target).await?;
        match response.is_ok() {
            true => Ok(response),
            false => Err(self.failed(route, AdminErrorKind::status(&response))),
        }
    }

    async fn json<T: DeserializeOwned>(&self, route: &'static str, target: &str) -> Result<T, AdminError> {
        let response = self.get(route, target).await?;
        self.parse(route, &response)
    }

    fn parse<T: DeserializeOwned>(&self, route: &'static str, response: &FetchResponse) -> Result<T, AdminError> {
        let parsed = serde_json::from_str(&response.body);
        parsed.map_err(|error| self.failed(route, AdminErrorKind::unexpected(response, &error)))
    }

    fn failed(&self, route: &'static str, kind: AdminErrorKind) -> AdminError {
        AdminError { at: self.at.clone(), scheme: self.scheme, route, kind }
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
        assert!(AdminClient::can_query("a/b") && !AdminClient::can_query("a,b") && !AdminClient::can_query(""));
    }
}
