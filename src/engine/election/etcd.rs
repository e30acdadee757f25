//! The election's records in etcd.

use std::time::Duration;

use crate::backend::{ElectionBackend, ElectionError, ElectionWatch};
use crate::ha::{
    CandidateOffer, ElectionTxn, HandOverTxn, LeaderKey, MemberId, Observation, OfferTxn, SyncRecord, SyncTxn,
    TxnOutcome,
};
use mcctl_base::time::RoundedDuration;
use mcctl_net::etcd::{EtcdClient, EtcdCompare, EtcdError, EtcdKeyValue, EtcdOp, EtcdTxn, EtcdTxnResult, EtcdWatch};

/// The name of the cluster with this ID, which upstream calls `--cluster_id`. Upstream ignores one
/// slash at its end.
pub fn cluster_name(id: &str) -> &str {
    id.strip_suffix('/').unwrap_or(id)
}

/// The records of one cluster. Cheap to clone.
#[derive(Clone)]
pub struct EtcdElection {
    client: EtcdClient,
    leader_key: String,
    sync_key: String,
    /// The offer of a candidate has this prefix and the candidate's ID.
    offers: String,
}

impl EtcdElection {
    /// The records of the cluster with this [name](cluster_name).
    pub fn new(client: EtcdClient, cluster: &str) -> EtcdElection {
        EtcdElection {
            client,
            leader_key: format!("mooncake-store/{cluster}/master_view"),
            sync_key: format!("mcctl/{cluster}/sync"),
            offers: format!("mcctl/{cluster}/candidates/"),
        }
    }

    /// The key that upstream's clients read.
    pub fn leader_key(&self) -> &str {
        &self.leader_key
    }

    /// Watches the leader's key from `revision` on.
    pub(super) async fn watch_leader(&self, revision: u64) -> Result<EtcdWatch, EtcdError> {
        self.client.watch(&self.leader_key, revision).await
    }

    async fn run(&self, txn: &EtcdTxn) -> TxnOutcome {
        match self.client.txn(txn).await {
            Ok(EtcdTxnResult { succeeded: true, revision, .. }) => TxnOutcome::Done(revision),
            Ok(_) => TxnOutcome::Refused,
            Err(error) => {
                tracing::debug!(%error, "a transaction of the election failed");
                if error.outcome_is_unknown() { TxnOutcome::Unknown } else { TxnOutcome::Refused }
            }
        }
    }

    fn put_sync(&self, sync: &SyncRecord) -> EtcdOp {
        let value = serde_json::to_vec(sync).expect("a record is valid JSON");
        EtcdOp::Put { key: self.sync_key.clone(), value, lease: 0 }
    }

    fn put_leader(&self, address: &str, lease: i64) -> EtcdOp {
        EtcdOp::Put { key: self.leader_key.clone(), value: address.as_bytes().to_vec(), lease }
    }

    fn is_sync(&self, revision: u64) -> EtcdCompare {
        EtcdCompare::ModRevision(self.sync_key.clone(), revision)
    }

    fn is_leader(&self, view: u64, address: &str) -> [EtcdCompare; 2] {
        let key = &self.leader_key;
        let is_value = EtcdCompare::Value(key.clone(), address.as_bytes().to_vec());
        [EtcdCompare::CreateRevision(key.clone(), view), is_value]
    }
}

impl ElectionBackend for EtcdElection {
    type Watch = EtcdElectionWatch;

    async fn observe(&self) -> Result<Observation, ElectionError> {
        let gets = vec![EtcdOp::Get(self.leader_key.clone()), EtcdOp::Get(self.sync_key.clone())];
        let read = self.client.txn(&EtcdTxn { success: gets, ..EtcdTxn::default() }).await.map_err(unavailable)?;
        let first = |nth: usize| read.reads.get(nth).and_then(|pairs| pairs.first());
        let sync = match first(1) {
            None => None,
            Some(pair) => Some((self.sync_record(pair)?, pair.mod_revision)),
        };
        Ok(Observation { revision: read.revision, leader: first(0).map(leader), sync })
    }

    async fn grant_lease(&self, ttl: Duration) -> Result<i64, ElectionError> {
        let (lease, granted) = self.client.grant_lease(ttl).await.map_err(unavailable)?;
        if granted > ttl {
            let granted = RoundedDuration(granted);
            let ttl = RoundedDuration(ttl);
            tracing::warn!("etcd granted a lease of {granted} instead of {ttl}, so a failover takes longer");
        }
        Ok(lease)
    }

    async fn renew_lease(&self, lease: i64) -> Result<bool, ElectionError> {
        self.client.keep_alive(lease).await.map_err(unavailable)
    }

    async fn revoke_lease(&self, lease: i64) -> Result<(), ElectionError> {
        self.client.revoke_lease(lease).await.map_err(unavailable)
    }

    async fn elect(&self, txn: &ElectionTxn) -> TxnOutcome {
        let key = self.put_leader(&txn.address, txn.lease);
        let is_free = EtcdCompare::CreateRevision(self.leader_key.clone(), 0);
        let compare = vec![is_free, self.is_sync(txn.expected_sync)];
        self.run(&EtcdTxn { compare, success: vec![key, self.put_sync(&txn.sync)], failure: Vec::new() }).await
    }

    async fn offer(&self, txn: &OfferTxn) -> Result<Vec<(MemberId, CandidateOffer)>, ElectionError> {
        let key = |id: MemberId| format!("{}{id}", self.offers);
        let mut success: Vec<EtcdOp> = txn.others.iter().map(|id| EtcdOp::Get(key(*id))).collect();
        if let Some(offer) = &txn.offer {
            let value = serde_json::to_vec(offer).expect("an offer is valid JSON");
            success.push(EtcdOp::Put { key: key(txn.candidate), value, lease: txn.lease });
        }
        let read = self.client.txn(&EtcdTxn { success, ..EtcdTxn::default() }).await.map_err(unavailable)?;
        let pairs = read.reads.iter().map(|pairs| pairs.first());
        let offers = txn.others.iter().zip(pairs).filter_map(|(id, pair)| {
            // An offer that cannot be read does not count.
            Some((*id, serde_json::from_slice(&pair?.value).ok()?))
        });
        Ok(offers.collect())
    }

    async fn write_sync(&self, txn: &SyncTxn) -> TxnOutcome {
        let mut compare = self.is_leader(txn.view, &txn.address).to_vec();
        compare.push(self.is_sync(txn.expected_sync));
        let mut success = vec![self.put_sync(&txn.sync)];
        success.extend(txn.lease.map(|lease| self.put_leader(&txn.address, lease)));
        self.run(&EtcdTxn { compare, success, failure: Vec::new() }).await
    }

    async fn delete_key(&self, txn: &HandOverTxn) -> TxnOutcome {
        let mut compare = self.is_leader(txn.view, &txn.address).to_vec();
        compare.push(self.is_sync(txn.expected_sync));
        let success = vec![EtcdOp::Delete(self.leader_key.clone()), self.put_sync(&txn.sync)];
        self.run(&EtcdTxn { compare, success, failure: Vec::new() }).await
    }

    async fn watch(&self) -> Result<EtcdElectionWatch, ElectionError> {
        self.client.watch(&self.leader_key, 0).await.map(EtcdElectionWatch).map_err(unavailable)
    }
}

impl EtcdElection {
    fn sync_record(&self, pair: &EtcdKeyValue) -> Result<SyncRecord, ElectionError> {
        let invalid = |why: String| ElectionError::Invalid { key: self.sync_key.clone(), why };
        // A newer format may lack fields of this one.
        let SyncFormat { format } = serde_json::from_slice(&pair.value).map_err(|error| invalid(error.to_string()))?;
        if format != SyncRecord::FORMAT {
            return Err(invalid(format!("format {format} is unknown; this release supports {}", SyncRecord::FORMAT)));
        }
        serde_json::from_slice(&pair.value).map_err(|error| invalid(error.to_string()))
    }
}

/// The part of a sync record that all formats have.
#[derive(serde::Deserialize)]
struct SyncFormat {
    format: u32,
}

fn leader(pair: &EtcdKeyValue) -> LeaderKey {
    let address = String::from_utf8_lossy(&pair.value).into_owned();
    LeaderKey { address, view: pair.create_revision, lease: pair.lease }
}

#[expect(clippy::needless_pass_by_value, reason = "for map_err")]
fn unavailable(error: EtcdError) -> ElectionError {
    ElectionError::Unavailable(error.to_string())
}

/// A watch of the leader's key.
#[derive(Debug)]
pub struct EtcdElectionWatch(EtcdWatch);

impl ElectionWatch for EtcdElectionWatch {
    async fn changed(&mut self) -> Result<(), ElectionError> {
        // The first message, when the watch begins, has no events. An observation then closes the
        // gap before it.
        self.0.next().await.map(|_| ()).map_err(unavailable)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use mcctl_net::etcd::EtcdOptions;

    #[test]
    fn the_format_of_a_record_is_checked_before_its_fields() {
        let options = EtcdOptions::parse("a:1", Duration::from_secs(1)).expect("an address");
        let election = EtcdElection::new(EtcdClient::new(options).expect("a client"), "c");
        let why = |value: &str| {
            let pair = EtcdKeyValue { value: value.as_bytes().to_vec(), ..EtcdKeyValue::default() };
            match election.sync_record(&pair) {
                Err(ElectionError::Invalid { why, .. }) => why,
                other => panic!("{other:?}"),
            }
        };
        assert!(why(r#"{"format":2,"members":[]}"#).contains("format 2"));
        assert!(why(r#"{"format":1}"#).contains("missing field"));
        assert!(why("text").contains("expected"));
    }
}
