//! Requests, their deadlines, and the choice of the server.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::json;
use tokio::sync::Mutex;

use crate::engine::env::{RealEnv, deadline};
use crate::engine::etcd::error::EtcdError;
use crate::engine::etcd::json::{
    ErrorJson, KeepAliveJson, LeaseJson, LoginJson, RangeJson, TokenJson, TxnJson, encoded, range_end, txn,
};
use crate::engine::etcd::options::{EtcdEndpoint, EtcdOptions};
use crate::engine::etcd::request::{EtcdOp, EtcdRange, EtcdTxn, EtcdTxnResult};
use crate::engine::etcd::watch::EtcdWatch;
use crate::engine::http::client::{ClientTls, builder};
use crate::engine::http::fetch::root_cause;

/// Maximum size of a response, in bytes.
const RESPONSE_BYTES_MAX: usize = 16 << 20;
/// Codes of gRPC: the request has no valid token; the outcome is unknown (deadline exceeded, unavailable).
const UNAUTHENTICATED: u32 = 16;
const UNKNOWN_OUTCOME: [u32; 2] = [4, 14];

/// A client of an etcd cluster. Cheap to clone.
#[derive(Clone)]
pub struct EtcdClient {
    shared: Arc<EtcdShared>,
}

struct EtcdShared {
    env: RealEnv,
    http: reqwest::Client,
    options: EtcdOptions,
    /// The server that answered last.
    current: AtomicUsize,
    token: Mutex<Option<String>>,
}

impl EtcdClient {
    /// Creates a client. Connects with the first request.
    ///
    /// # Errors
    /// TLS cannot be set up on this host.
    pub fn new(options: EtcdOptions) -> Result<EtcdClient, EtcdError> {
        let uses_tls = options.endpoints.iter().any(|endpoint| endpoint.tls);
        let tls = match &options.tls {
            Some(config) => ClientTls::Config(config.clone()),
            None if uses_tls => ClientTls::Host,
            None => ClientTls::None,
        };
        // A watch on a dead connection ends after the keep-alive probes.
        let http = builder(tls).map_err(|error| EtcdError::Unusable(error.to_string()))?;
        let http = http.tcp_keepalive(Duration::from_secs(2)).connect_timeout(options.request_timeout).build();
        let http = http.map_err(|error| EtcdError::Unusable(root_cause(&error)))?;
        let (current, token) = (AtomicUsize::new(0), Mutex::new(None));
        Ok(EtcdClient { shared: Arc::new(EtcdShared { env: RealEnv::new(), http, options, current, token }) })
    }

    /// Reads one key.
    ///
    /// # Errors
    /// See [`EtcdError`].
    pub async fn get(&self, key: &str) -> Result<EtcdRange, EtcdError> {
        self.range(json!({"key": encoded(key.as_bytes())})).await
    }

    /// Reads up to `limit` keys that begin with `prefix`.
    ///
    /// # Errors
    /// See [`EtcdError`].
    pub async fn get_prefix(&self, prefix: &str, limit: u32) -> Result<EtcdRange, EtcdError> {
        let (key, end) = (encoded(prefix.as_bytes()), encoded(&range_end(prefix)));
        self.range(json!({"key": key, "range_end": end, "limit": limit.to_string()})).await
    }

    async fn range(&self, body: serde_json::Value) -> Result<EtcdRange, EtcdError> {
        let read: RangeJson = self.send("kv/range", &body, true).await?;
        let pairs = read.kvs.into_iter().map(Into::into).collect();
        Ok(EtcdRange { revision: read.header.revision.revision(), pairs })
    }

    /// Performs a transaction.
    ///
    /// # Errors
    /// See [`EtcdError`]. A comparison that is false is not an error.
    pub async fn txn(&self, request: &EtcdTxn) -> Result<EtcdTxnResult, EtcdError> {
        let is_read = |ops: &[EtcdOp]| ops.iter().all(|op| matches!(op, EtcdOp::Get(_)));
        let may_repeat = is_read(&request.success) && is_read(&request.failure);
        let done: TxnJson = self.send("kv/txn", &txn(request), may_repeat).await?;
        let reads = done.responses.into_iter();
        let reads = reads.map(|read| read.response_range.kvs.into_iter().map(Into::into).collect()).collect();
        Ok(EtcdTxnResult { succeeded: done.succeeded, revision: done.header.revision.revision(), reads })
    }

    /// Grants a lease. etcd may raise a short TTL. Returns the lease and its TTL.
    ///
    /// # Errors
    /// See [`EtcdError`].
    pub async fn grant_lease(&self, ttl: Duration) -> Result<(i64, Duration), EtcdError> {
        let body = json!({"TTL": ttl.as_secs().max(1).to_string(), "ID": "0"});
        let lease: LeaseJson = self.send("lease/grant", &body, false).await?;
        Ok((lease.id.0, Duration::from_secs(lease.ttl.revision())))
    }

    /// Renews a lease. Returns false if it does not exist any more.
    ///
    /// # Errors
    /// See [`EtcdError`].
    pub async fn keep_alive(&self, lease: i64) -> Result<bool, EtcdError> {
        let body = json!({"ID": lease.to_string()});
        let kept: KeepAliveJson = self.send("lease/keepalive", &body, false).await?;
        Ok(kept.result.ttl.0 > 0)
    }

    /// Revokes a lease and deletes its keys. A lease that does not exist is not an error.
    ///
    /// # Errors
    /// See [`EtcdError`].
    pub async fn revoke_lease(&self, lease: i64) -> Result<(), EtcdError> {
        const NOT_FOUND: u32 = 5;
        match self.send::<_, serde_json::Value>("lease/revoke", &json!({"ID": lease.to_string()}), false).await {
            Ok(_) | Err(EtcdError::Refused { code: NOT_FOUND, .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Watches the keys that begin with `prefix`, from revision `from` on; 0: from now on.
    ///
    /// A connection that ends without notice is detected by TCP keep-alive probes, after about 20 s. Read the keys once in a while.
    ///
    /// # Errors
    /// See [`EtcdError`].
    pub async fn watch(&self, prefix: &str, from: u64) -> Result<EtcdWatch, EtcdError> {
        let (key, end) = (encoded(prefix.as_bytes()), encoded(&range_end(prefix)));
        let body = json!({"create_request": {"key": key, "range_end": end, "start_revision": from.to_string()}});
        let endpoint = self.endpoint(0);
        let request = self.request(endpoint, "watch", body.to_string()).await?;
        let limit = self.shared.options.request_timeout;
        let opened = deadline(&self.shared.env, limit, request.send()).await.map_err(|_| EtcdError::Timeout(limit));
        let response = opened.and_then(|sent| sent.map_err(|error| self.failed(&error)));
        match response {
            Ok(response) if response.status().is_success() => Ok(EtcdWatch::new(response)),
            Ok(response) => Err(EtcdError::Unexpected(format!("HTTP {} for a watch", response.status()))),
            Err(error) => {
                self.shared.current.fetch_add(1, Ordering::Relaxed);
                Err(error)
            }
        }
    }

    /// Sends a request to one server after the other, until one responds. Only a request that may be repeated is sent to another server
    /// after it was sent to one that did not respond.
    async fn send<Q: Serialize, R: DeserializeOwned>(
        &self,
        path: &str,
        body: &Q,
        may_repeat: bool,
    ) -> Result<R, EtcdError> {
        let limit = self.shared.options.request_timeout;
        let body = serde_json::to_string(body).map_err(|error| EtcdError::Unusable(error.to_string()))?;
        let attempts = async {
            let mut last = EtcdError::Unreachable("no server".to_owned());
            for nth in 0..self.shared.options.endpoints.len() {
                match self.send_to(self.endpoint(nth), path, &body).await {
                    Ok(text) => {
                        self.shared.current.fetch_add(nth, Ordering::Relaxed);
                        return serde_json::from_str(&text).map_err(|error| EtcdError::Unexpected(error.to_string()));
                    }
                    Err(error @ EtcdError::Unreachable(_)) => last = error,
                    Err(error) if error.outcome_is_unknown() && may_repeat => last = error,
                    Err(error) => return Err(error),
                }
            }
            Err(last)
        };
        match deadline(&self.shared.env, limit, attempts).await {
            Ok(done) => done,
            Err(_) => {
                // The next request begins with another server.
                self.shared.current.fetch_add(1, Ordering::Relaxed);
                Err(EtcdError::Timeout(limit))
            }
        }
    }

    async fn send_to(&self, endpoint: &EtcdEndpoint, path: &str, body: &str) -> Result<String, EtcdError> {
        let mut is_second = false;
        loop {
            let request = self.request(endpoint, path, body.to_owned()).await?;
            match self.response(endpoint, request).await {
                Err(EtcdError::Refused { code: UNAUTHENTICATED, .. })
                    if !is_second && self.shared.options.user.is_some() =>
                {
                    *self.shared.token.lock().await = None;
                    is_second = true;
                }
                done => return done,
            }
        }
    }

    async fn request(
        &self,
        endpoint: &EtcdEndpoint,
        path: &str,
        body: String,
    ) -> Result<reqwest::RequestBuilder, EtcdError> {
        let request = self.shared.http.post(url(endpoint, path)).body(body);
        Ok(match self.token(endpoint).await? {
            Some(token) => request.header("Authorization", token),
            None => request,
        })
    }

    /// The token of the user, if there is one.
    async fn token(&self, endpoint: &EtcdEndpoint) -> Result<Option<String>, EtcdError> {
        let Some(user) = &self.shared.options.user else { return Ok(None) };
        let mut token = self.shared.token.lock().await;
        if token.is_none() {
            let login = LoginJson { name: &user.name, password: &user.password };
            let body = serde_json::to_string(&login).map_err(|error| EtcdError::Unusable(error.to_string()))?;
            let request = self.shared.http.post(url(endpoint, "auth/authenticate")).body(body);
            let answer = self.response(endpoint, request).await?;
            let answer: TokenJson =
                serde_json::from_str(&answer).map_err(|error| EtcdError::Unexpected(error.to_string()))?;
            *token = Some(answer.token);
        }
        Ok(token.clone())
    }

    async fn response(&self, endpoint: &EtcdEndpoint, request: reqwest::RequestBuilder) -> Result<String, EtcdError> {
        let mut response = request.send().await.map_err(|error| self.failed(&error))?;
        let status = response.status();
        let mut body = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(|error| self.failed(&error))? {
            body.extend_from_slice(&chunk);
            if body.len() > RESPONSE_BYTES_MAX {
                return Err(EtcdError::Unexpected(format!("more than {RESPONSE_BYTES_MAX} bytes")));
            }
        }
        let text = String::from_utf8_lossy(&body).into_owned();
        if status.is_success() {
            return Ok(text);
        }
        let Ok(error) = serde_json::from_str::<ErrorJson>(&text) else {
            return Err(match status.as_u16() {
                404 => EtcdError::NoGateway(endpoint.at.to_string()),
                _ => EtcdError::Unexpected(format!("HTTP {status}")),
            });
        };
        let message =
            if error.message.is_empty() { error.error.as_str().unwrap_or("").to_owned() } else { error.message };
        if UNKNOWN_OUTCOME.contains(&error.code) {
            return Err(EtcdError::Unanswered(message));
        }
        Err(EtcdError::Refused { code: error.code, message })
    }

    fn failed(&self, error: &reqwest::Error) -> EtcdError {
        match error {
            _ if error.is_connect() => EtcdError::Unreachable(root_cause(error)),
            _ if error.is_timeout() => EtcdError::Timeout(self.shared.options.request_timeout),
            _ => EtcdError::Unanswered(root_cause(error)),
        }
    }

    /// The server `nth` after the one that answered last.
    fn endpoint(&self, nth: usize) -> &EtcdEndpoint {
        let endpoints = &self.shared.options.endpoints;
        let current = self.shared.current.load(Ordering::Relaxed);
        &endpoints[current.wrapping_add(nth) % endpoints.len()]
    }
}

fn url(endpoint: &EtcdEndpoint, path: &str) -> String {
    let scheme = if endpoint.tls { "https" } else { "http" };
    format!("{scheme}://{}/v3/{path}", endpoint.at)
}
