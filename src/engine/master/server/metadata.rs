//! The records of the metadata service in a running master: they are served like RPC calls.
//!
//! In a cluster, only the leader serves them. A standby cannot know whether its copy has everything
//! that was acknowledged: it may have been paused, and the leader may go on without it. Its copy is
//! for reads while no leader can be reached.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::BoxFuture;

use crate::call::access::StateAccess;
use crate::server::handle::MasterHandle;
use crate::server::shared::MasterShared;
use crate::state::MasterState;
use mcctl_election::ha::planted::{HaMistake, is_planted};
use mcctl_metadata::backend::{NotServed, RecordBackend, TablePlan};
use mcctl_metadata::records::SharedTable;
use mcctl_net::rpc::{Admitted, Receipt, RpcService};
use mcctl_sys::env::Env;
use mcctl_wire::Method;

/// A call that changes something, and one that does not: records are served when these are.
const LIKE_A_WRITE: Method = Method::PutStart;
const LIKE_A_READ: Method = Method::ExistKey;

impl<E: Env> MasterHandle<E> {
    /// The records of the metadata service, for a service that is embedded in this master.
    pub fn metadata_records(&self) -> Arc<dyn RecordBackend> {
        self.shared.clone()
    }
}

impl<E: Env> MasterShared<E> {
    /// Waits until a response to the call with this receipt may be sent. Returns false if it must
    /// not be.
    async fn committed(&self, receipt: Receipt) -> bool {
        match self.commit(receipt) {
            Some(stored) => stored.await,
            None => true,
        }
    }

    fn not_served(&self) -> NotServed {
        match &self.ha {
            Some(ha) => NotServed::NotLeading { leader: ha.leader_metadata() },
            None => NotServed::Stopping,
        }
    }

    fn record(&self, key: &[u8]) -> Option<Bytes> {
        self.metadata().lock().get(key)
    }
}

impl<E: Env> RecordBackend for MasterShared<E> {
    fn get<'a>(&'a self, key: &'a [u8]) -> BoxFuture<'a, Result<Option<Bytes>, NotServed>> {
        Box::pin(async move {
            // Before the read: a later term may belong to another state.
            let term = self.ha.as_ref().map_or(0, |ha| ha.gate.term());
            if self.ha.is_some() && !(term % 2 == 1 && self.admits(LIKE_A_READ)) {
                return match self.last_known(key).filter(|_| is_planted(HaMistake::RecordReadFromCopy)) {
                    Some(found) => Ok(found),
                    None => Err(self.not_served()),
                };
            }
            let found = self.record(key);
            match self.committed(Receipt { term, ..Receipt::default() }).await {
                true => Ok(found),
                false => Err(self.not_served()),
            }
        })
    }

    fn change<'a>(&'a self, plan: TablePlan<'a>) -> BoxFuture<'a, Result<(), NotServed>> {
        Box::pin(async move {
            match self.admission(LIKE_A_WRITE).await {
                Admitted::Proceed => {}
                Admitted::Close | Admitted::Forward(_) => return Err(self.not_served()),
            }
            let change = |state: &mut MasterState| state.change_metadata(plan);
            let ((), receipt) = self.call(None, |call| call.0.with_state(|state, _, _| change(state)));
            match self.committed(receipt).await {
                true => Ok(()),
                false if self.ha.is_some() => Err(NotServed::Unknown),
                false => Err(NotServed::Stopping),
            }
        })
    }

    fn last_known(&self, key: &[u8]) -> Option<Option<Bytes>> {
        let ha = self.ha.as_ref()?;
        ha.view(self.env.boottime()).in_sync.then(|| self.record(key))
    }

    /// The leader, and the standbys in sync. Kubernetes stops the leader only if another master is
    /// ready, and that one must have the leader's keys.
    fn is_ready(&self) -> bool {
        let Some(ha) = &self.ha else { return true };
        let view = ha.view(self.env.boottime());
        view.serving || view.in_sync
    }

    fn table(&self) -> SharedTable {
        self.metadata()
    }
}
