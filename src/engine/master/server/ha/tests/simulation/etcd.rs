//! A simulated etcd: two keys, leases, and transactions.

use std::collections::BTreeMap;

use mcctl_election::ha::planted::{HaMistake, is_planted};
use mcctl_election::ha::{
    CandidateOffer, ElectionTxn, HandOverTxn, LeaderKey, MemberId, Observation, OfferTxn, SyncRecord, SyncTxn,
    TxnOutcome,
};

/// Times are those of the simulation, in microseconds.
#[derive(Clone, Default)]
pub(crate) struct SimEtcd {
    revision: u64,
    key: Option<LeaderKey>,
    sync: Option<(SyncRecord, u64)>,
    leases: BTreeMap<i64, u64>,
    /// The offers of candidates, and their leases.
    offers: BTreeMap<MemberId, (i64, CandidateOffer)>,
    next_lease: i64,
    /// The elections, in order, and the creations of a leader's expired key.
    pub elected: Vec<Election>,
    /// Number of transactions that have written a record.
    pub writes: u64,
}

/// An election: the leader's copy, and the view in which it serves.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Election {
    pub leader: MemberId,
    pub view: u64,
}

impl SimEtcd {
    /// Reads both records, as a master does.
    pub(crate) fn observation(&self) -> Observation {
        Observation { revision: self.revision, leader: self.key.clone(), sync: self.sync.clone() }
    }

    /// The revision of the last change.
    pub(crate) fn revision(&self) -> u64 {
        self.revision
    }

    /// The key that names the leader; `None` if no master leads.
    pub(crate) fn leader(&self) -> Option<&LeaderKey> {
        self.key.as_ref()
    }

    /// The record that lists the standbys in sync; `None` if there is none.
    pub(crate) fn sync(&self) -> Option<&SyncRecord> {
        self.sync.as_ref().map(|(sync, _)| sync)
    }

    /// Grants a lease. `expires` is in microseconds of the simulation.
    pub(crate) fn grant(&mut self, expires: u64) -> i64 {
        self.next_lease += 1;
        self.leases.insert(self.next_lease, expires);
        self.next_lease
    }

    /// Returns false if the lease has expired.
    pub(crate) fn renew(&mut self, lease: i64, expires: u64) -> bool {
        self.leases.get_mut(&lease).is_some_and(|at| {
            *at = expires;
            true
        })
    }

    /// Returns true if the key was deleted.
    pub(crate) fn revoke(&mut self, lease: i64) -> bool {
        self.leases.remove(&lease);
        let is_hit = self.key.as_ref().is_some_and(|key| key.lease == lease);
        if is_hit {
            self.revision += 1;
            self.key = None;
        }
        is_hit
    }

    /// Expires leases. Returns true if the key was deleted.
    pub(crate) fn expire(&mut self, now: u64) -> bool {
        let over: Vec<i64> = self.leases.iter().filter(|(_, at)| **at <= now).map(|(id, _)| *id).collect();
        over.into_iter().filter(|lease| self.revoke(*lease)).count() > 0
    }

    /// Returns to the data of `backup`. No lease expires before `expires`.
    pub(crate) fn restore(&mut self, backup: &SimEtcd, expires: u64) {
        let next_lease = self.next_lease;
        let elected = std::mem::take(&mut self.elected);
        let writes = self.writes;
        *self = SimEtcd { next_lease, elected, writes, ..backup.clone() };
        self.extend_all(expires);
    }

    /// An operator deletes the sync record.
    pub(crate) fn delete_sync(&mut self) {
        self.revision += 1;
        self.sync = None;
    }

    /// After a restart, every lease lasts for its TTL at least.
    pub(crate) fn extend_all(&mut self, expires: u64) {
        self.leases.values_mut().for_each(|at| *at = expires.max(*at));
    }

    /// Creates the key and writes the sync record, if there is no key and the record is unchanged.
    pub(crate) fn elect(&mut self, txn: &ElectionTxn) -> TxnOutcome {
        let is_free = self.key.is_none() && self.sync_revision() == txn.expected_sync;
        if !(is_free || is_planted(HaMistake::KeyOverwritten)) || !self.leases.contains_key(&txn.lease) {
            return TxnOutcome::Refused;
        }
        self.writes += 1;
        self.revision += 1;
        self.elected.push(Election { leader: txn.sync.leader, view: self.revision });
        self.key = Some(LeaderKey { address: txn.address.clone(), view: self.revision, lease: txn.lease });
        self.sync = Some((txn.sync.clone(), self.revision));
        TxnOutcome::Done(self.revision)
    }

    /// Stores an offer, and reads those of other candidates.
    pub(crate) fn offer(&mut self, txn: &OfferTxn) -> Vec<(MemberId, CandidateOffer)> {
        self.offers.retain(|_, (lease, _)| self.leases.contains_key(lease));
        if let Some(offer) = txn.offer {
            self.offers.insert(txn.candidate, (txn.lease, offer));
        }
        txn.others.iter().filter_map(|id| Some((*id, self.offers.get(id)?.1))).collect()
    }

    fn sync_revision(&self) -> u64 {
        self.sync.as_ref().map_or(0, |(_, revision)| *revision)
    }

    /// Whether the key has this view and address, and the sync record this revision.
    fn is_unchanged(&self, view: u64, address: &str, expected_sync: u64) -> bool {
        let is_leader = self.key.as_ref().is_some_and(|key| key.view == view && key.address == address);
        is_leader && self.sync_revision() == expected_sync
    }

    /// Writes the sync record, if the key is that of the transaction and the record is unchanged.
    pub(crate) fn write_sync(&mut self, txn: &SyncTxn) -> TxnOutcome {
        if !self.is_unchanged(txn.view, &txn.address, txn.expected_sync) {
            return TxnOutcome::Refused;
        }
        if let Some(lease) = txn.lease {
            if !self.leases.contains_key(&lease) {
                return TxnOutcome::Refused;
            }
            self.key = self.key.take().map(|key| LeaderKey { lease, ..key });
        }
        self.writes += 1;
        self.revision += 1;
        self.sync = Some((txn.sync.clone(), self.revision));
        TxnOutcome::Done(self.revision)
    }

    /// Deletes the key and writes the sync record, if the key is that of the transaction and the
    /// record is unchanged.
    pub(crate) fn delete_key(&mut self, txn: &HandOverTxn) -> TxnOutcome {
        if !self.is_unchanged(txn.view, &txn.address, txn.expected_sync) {
            return TxnOutcome::Refused;
        }
        self.writes += 1;
        self.revision += 1;
        self.key = None;
        self.sync = Some((txn.sync.clone(), self.revision));
        TxnOutcome::Done(self.revision)
    }
}
