//! The records of the metadata service in a running master: they are served like RPC calls.
//!
//! A master of a cluster that does not lead reads its copy while it is in sync: the leader waits
//! for its acknowledgement before it answers a write. It leaves everything else to the leader.

use bytes::Bytes;
use futures_util::future::BoxFuture;

use crate::call::access::StateAccess;
use crate::server::ha::HaHub;
use crate::server::handle::MasterHandle;
use crate::state::MasterState;
use mcctl_metadata::backend::{NotServed, RecordBackend, TablePlan};
use mcctl_metadata::records::SharedTable;
use mcctl_net::rpc::{Admitted, Receipt, RpcService};
use mcctl_sys::env::Env;
use mcctl_wire::Method;

/// A call that changes something, and one that does not: records are served when these are.
const LIKE_A_WRITE: Method = Method::PutStart;
const LIKE_A_READ: Method = Method::ExistKey;

impl<E: Env> MasterHandle<E> {
    /// Waits until a response to the call with this receipt may be sent. Returns false if it must
    /// not be.
    async fn committed(&self, receipt: Receipt) -> bool {
        match RpcService::commit(&*self.shared, receipt) {
            Some(stored) => stored.await,
            None => true,
        }
    }

    fn not_served(&self) -> NotServed {
        match &self.shared.ha {
            Some(ha) => NotServed::NotLeading { leader: ha.leader_metadata() },
            None => NotServed::Stopping,
        }
    }
}

impl HaHub {
    /// The term of the state, if it serves reads.
    fn reading_term(&self) -> Option<u64> {
        let term = self.gate.term();
        (term % 2 == 1 && self.gate.admits(LIKE_A_READ)).then_some(term)
    }

    /// Whether the copy of this master, which does not lead, has everything that was acknowledged.
    /// This is not known while etcd does not respond.
    fn has_current_copy(&self, env: &impl Env) -> bool {
        let view = self.view(env.boottime());
        view.in_sync && view.backend_error.is_none()
    }
}

impl<E: Env> RecordBackend for MasterHandle<E> {
    fn get<'a>(&'a self, key: &'a [u8]) -> BoxFuture<'a, Result<Option<Bytes>, NotServed>> {
        Box::pin(async move {
            let shared = &self.shared;
            let term = match &shared.ha {
                None => 0,
                Some(ha) => match ha.reading_term() {
                    Some(term) => term,
                    None if ha.has_current_copy(&shared.env) => return Ok(shared.metadata().lock().get(key)),
                    None => return Err(self.not_served()),
                },
            };
            let found = shared.metadata().lock().get(key);
            match self.committed(Receipt { term, ..Receipt::default() }).await {
                true => Ok(found),
                false => Err(self.not_served()),
            }
        })
    }

    fn change<'a>(&'a self, plan: TablePlan<'a>) -> BoxFuture<'a, Result<(), NotServed>> {
        Box::pin(async move {
            match self.shared.request_admission(LIKE_A_WRITE).await {
                Admitted::Proceed => {}
                Admitted::Close | Admitted::Forward(_) => return Err(self.not_served()),
            }
            let change = |state: &mut MasterState| state.change_metadata(plan);
            let ((), receipt) = self.shared.call(None, |call| call.0.with_state(|state, _, _| change(state)));
            match self.committed(receipt).await {
                true => Ok(()),
                false if self.shared.ha.is_some() => Err(NotServed::Unknown),
                false => Err(NotServed::Stopping),
            }
        })
    }

    fn table(&self) -> SharedTable {
        self.shared.metadata()
    }
}
