//! Keys, transactions, leases and watches.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;

use crate::etcd::error::EtcdError;
use crate::etcd::gateway::{EtcdGateway, Repeatable};
use crate::etcd::json::{
    DoneJson, LeaseJson, RangeJson, StreamErrorJson, StreamJson, TxnJson, TxnStepJson, encoded, range_end, txn,
};
use crate::etcd::options::EtcdOptions;
use crate::etcd::request::{EtcdKeyValue, EtcdOp, EtcdRange, EtcdTxn, EtcdTxnResult};
use crate::etcd::watch::EtcdWatch;
use mcctl_base::time::RoundedDuration;

/// A client of an etcd cluster. Cheap to clone.
#[derive(Clone)]
pub struct EtcdClient {
    gateway: Arc<EtcdGateway>,
}

impl EtcdClient {
    /// Creates a client. Connects with the first request.
    ///
    /// # Errors
    /// TLS cannot be set up on this host.
    pub fn new(options: EtcdOptions) -> Result<EtcdClient, EtcdError> {
        Ok(EtcdClient { gateway: Arc::new(EtcdGateway::new(options)?) })
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
        let key = encoded(prefix.as_bytes());
        let end = encoded(&range_end(prefix));
        self.range(json!({"key": key, "range_end": end, "limit": limit.to_string()})).await
    }

    async fn range(&self, body: serde_json::Value) -> Result<EtcdRange, EtcdError> {
        let read: RangeJson = self.gateway.send("kv/range", &body, Repeatable::Yes).await?;
        let pairs = read.kvs.into_iter().map(Into::into).collect();
        Ok(EtcdRange { revision: read.header.revision.revision(), pairs })
    }

    /// Performs a transaction.
    ///
    /// # Errors
    /// See [`EtcdError`]. A comparison that is false is not an error.
    pub async fn txn(&self, request: &EtcdTxn) -> Result<EtcdTxnResult, EtcdError> {
        let is_read = |ops: &[EtcdOp]| ops.iter().all(|op| matches!(op, EtcdOp::Get(_)));
        let repeatable =
            if is_read(&request.success) && is_read(&request.failure) { Repeatable::Yes } else { Repeatable::No };
        let done: TxnJson = self.gateway.send("kv/txn", &txn(request), repeatable).await?;
        let steps = if done.succeeded { &request.success } else { &request.failure };
        let reads = reads(steps, done.responses)?;
        Ok(EtcdTxnResult { succeeded: done.succeeded, revision: done.header.revision.revision(), reads })
    }

    /// Grants a lease of at least this TTL, in whole seconds: etcd raises a short one. Returns the
    /// lease and its TTL.
    ///
    /// # Errors
    /// See [`EtcdError`].
    pub async fn grant_lease(&self, ttl: Duration) -> Result<(i64, Duration), EtcdError> {
        let seconds = ttl.as_secs() + u64::from(ttl.subsec_nanos() > 0);
        let body = json!({"TTL": seconds.max(1).to_string(), "ID": "0"});
        let lease: LeaseJson = self.gateway.send("lease/grant", &body, Repeatable::No).await?;
        let granted = Duration::from_secs(lease.ttl.revision());
        if granted < ttl {
            return Err(EtcdError::Unexpected(format!(
                "a lease of {} instead of {}",
                RoundedDuration(granted),
                RoundedDuration(ttl)
            )));
        }
        Ok((lease.id.0, granted))
    }

    /// Renews a lease. Returns false if it no longer exists.
    ///
    /// # Errors
    /// See [`EtcdError`].
    pub async fn keep_alive(&self, lease: i64) -> Result<bool, EtcdError> {
        let body = json!({"ID": lease.to_string()});
        match self.gateway.send("lease/keepalive", &body, Repeatable::Yes).await? {
            StreamJson { result: Some(LeaseJson { id, ttl }), .. } if id.0 == lease => Ok(ttl.0 > 0),
            StreamJson { error: Some(StreamErrorJson { code: Some(code), message }), .. } => {
                Err(EtcdError::of_code(code, message))
            }
            _ => Err(EtcdError::Unexpected("a renewal without this lease".to_owned())),
        }
    }

    /// Revokes a lease and deletes its keys. A lease that does not exist is not an error.
    ///
    /// # Errors
    /// See [`EtcdError`].
    pub async fn revoke_lease(&self, lease: i64) -> Result<(), EtcdError> {
        const NOT_FOUND: u32 = 5;
        let body = json!({"ID": lease.to_string()});
        match self.gateway.send::<_, DoneJson>("lease/revoke", &body, Repeatable::Yes).await {
            Ok(_) | Err(EtcdError::Refused { code: NOT_FOUND, .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Watches the keys that begin with `prefix`, from revision `from` on; 0: from now on.
    ///
    /// A connection that ends without notice is detected by TCP keep-alive probes, after about
    /// 20 s. Read the keys once in a while.
    ///
    /// # Errors
    /// See [`EtcdError`].
    pub async fn watch(&self, prefix: &str, from: u64) -> Result<EtcdWatch, EtcdError> {
        let key = encoded(prefix.as_bytes());
        let end = encoded(&range_end(prefix));
        let body = json!({"create_request": {"key": key, "range_end": end, "start_revision": from.to_string()}});
        self.gateway.open("watch", &body).await.map(EtcdWatch::new)
    }
}

/// What each step has read.
fn reads(steps: &[EtcdOp], responses: Vec<TxnStepJson>) -> Result<Vec<Vec<EtcdKeyValue>>, EtcdError> {
    if responses.len() != steps.len() {
        let count = format!("{} responses to {} steps of a transaction", responses.len(), steps.len());
        return Err(EtcdError::Unexpected(count));
    }
    let read = |(step, response): (&EtcdOp, TxnStepJson)| match (step, response.response_range) {
        (EtcdOp::Get(_), None) => Err(EtcdError::Unexpected("a read without a response".to_owned())),
        (_, None) => Ok(Vec::new()),
        (_, Some(range)) => Ok(range.kvs.into_iter().map(Into::into).collect()),
    };
    steps.iter().zip(responses).map(read).collect()
}
