//! The interface of an election to a coordination service.

use std::future::Future;
use std::time::Duration;

use crate::ha::{CandidateOffer, ElectionTxn, HandOverTxn, MemberId, Observation, OfferTxn, SyncTxn, TxnOutcome};

/// The error of a request that had no effect on the election.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ElectionError {
    /// The service cannot be used.
    #[error("{0}")]
    Unavailable(String),
    /// A record is not what masters write. An operator must correct or remove it.
    #[error("{key} in the coordination service is not valid: {why}")]
    Invalid { key: String, why: String },
}

/// Keeps the leader's key and the sync record. All methods return within a limit.
pub trait ElectionBackend: Clone + Send + Sync + 'static {
    /// The type of a watch.
    type Watch: ElectionWatch;
    /// Reads both records at one moment.
    fn observe(&self) -> impl Future<Output = Result<Observation, ElectionError>> + Send;
    /// Grants a lease. Returns its id.
    fn grant_lease(&self, ttl: Duration) -> impl Future<Output = Result<i64, ElectionError>> + Send;
    /// Renews a lease. Returns false if it no longer exists.
    fn renew_lease(&self, lease: i64) -> impl Future<Output = Result<bool, ElectionError>> + Send;
    /// Revokes a lease, which deletes the key that belongs to it.
    fn revoke_lease(&self, lease: i64) -> impl Future<Output = Result<(), ElectionError>> + Send;
    /// Creates the leader's key and writes the sync record, if there is no key and the record was
    /// not changed.
    fn elect(&self, txn: &ElectionTxn) -> impl Future<Output = TxnOutcome> + Send;
    /// Stores an offer, and reads those of other candidates.
    fn offer(
        &self,
        txn: &OfferTxn,
    ) -> impl Future<Output = Result<Vec<(MemberId, CandidateOffer)>, ElectionError>> + Send;
    /// Writes the sync record, if neither it nor the leader was changed.
    fn write_sync(&self, txn: &SyncTxn) -> impl Future<Output = TxnOutcome> + Send;
    /// Deletes the leader's key and writes the sync record, if neither it nor the leader was
    /// changed.
    fn delete_key(&self, txn: &HandOverTxn) -> impl Future<Output = TxnOutcome> + Send;
    /// Watches the leader's key, from now on.
    fn watch(&self) -> impl Future<Output = Result<Self::Watch, ElectionError>> + Send;
}

/// Reports changes of the leader's key.
pub trait ElectionWatch: Send + 'static {
    /// Waits for a change. Observe after each one.
    ///
    /// # Errors
    /// The watch ended. Observe, and start another one.
    fn changed(&mut self) -> impl Future<Output = Result<(), ElectionError>> + Send;
}
