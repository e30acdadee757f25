//! The requests of a simulated process to etcd.

use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use super::event::{EtcdReply, EtcdRequest, Event};
use super::fabric::{Answer, Fabric};
use mcctl_election::ha::{
    CandidateOffer, ElectionTxn, HandOverTxn, MemberId, Observation, OfferTxn, SyncTxn, TxnOutcome,
};
use mcctl_election::{ElectionBackend, ElectionError, ElectionWatch};

/// etcd, as one process reaches it.
#[derive(Clone)]
pub(super) struct SimElection {
    pub fabric: Arc<Fabric>,
    pub node: usize,
}

/// A watch of the leader's key.
pub(super) struct SimWatch {
    election: SimElection,
    /// Number of changes that were reported.
    seen: u64,
}

impl SimElection {
    /// Sends a request, and waits for its reply or the time limit.
    async fn request(&self, request: EtcdRequest) -> EtcdReply {
        let number = {
            let mut state = self.fabric.state();
            let number = state.number();
            state.replies.insert(number, Answer::default());
            let event = Event::EtcdSend { node: self.node, number, request };
            let now = self.fabric.now();
            state.posted.push((now, event));
            number
        };
        let reply = std::future::poll_fn(|context| match self.fabric.state().replies.get_mut(&number) {
            Some(answer) => answer.poll(context),
            None => Poll::Pending,
        });
        let reply = reply.await;
        self.fabric.state().replies.remove(&number);
        reply
    }
}

fn unavailable() -> ElectionError {
    ElectionError::Unavailable("no response".to_owned())
}

impl ElectionBackend for SimElection {
    type Watch = SimWatch;

    async fn observe(&self) -> Result<Observation, ElectionError> {
        self.request(EtcdRequest::Observe).await.seen.ok_or_else(unavailable)
    }

    async fn grant_lease(&self, _: Duration) -> Result<i64, ElectionError> {
        self.request(EtcdRequest::Grant).await.lease.ok_or_else(unavailable)
    }

    async fn renew_lease(&self, lease: i64) -> Result<bool, ElectionError> {
        let reply = self.request(EtcdRequest::Renew(lease)).await;
        if reply.outcome == TxnOutcome::Unknown { Err(unavailable()) } else { Ok(reply.lease.is_some()) }
    }

    async fn revoke_lease(&self, lease: i64) -> Result<(), ElectionError> {
        self.request(EtcdRequest::Revoke(lease)).await;
        Ok(())
    }

    async fn elect(&self, txn: &ElectionTxn) -> TxnOutcome {
        self.request(EtcdRequest::Elect(txn.clone())).await.outcome
    }

    async fn offer(&self, txn: &OfferTxn) -> Result<Vec<(MemberId, CandidateOffer)>, ElectionError> {
        let reply = self.request(EtcdRequest::Offer(txn.clone())).await;
        if reply.outcome == TxnOutcome::Unknown { Err(unavailable()) } else { Ok(reply.offers) }
    }

    async fn write_sync(&self, txn: &SyncTxn) -> TxnOutcome {
        self.request(EtcdRequest::WriteSync(txn.clone())).await.outcome
    }

    async fn delete_key(&self, txn: &HandOverTxn) -> TxnOutcome {
        self.request(EtcdRequest::DeleteKey(txn.clone())).await.outcome
    }

    async fn watch(&self) -> Result<SimWatch, ElectionError> {
        let seen = self.fabric.state().watches[self.node].changes;
        Ok(SimWatch { election: self.clone(), seen })
    }
}

impl ElectionWatch for SimWatch {
    async fn changed(&mut self) -> Result<(), ElectionError> {
        let election = &self.election;
        let seen = self.seen;
        let changed = std::future::poll_fn(|context| {
            let watch = &mut election.fabric.state().watches[election.node];
            if watch.changes > seen {
                return Poll::Ready(watch.changes);
            }
            watch.waker = Some(context.waker().clone());
            Poll::Pending
        });
        self.seen = changed.await;
        Ok(())
    }
}
