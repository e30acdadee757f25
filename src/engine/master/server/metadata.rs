//! The records of the metadata service in a running master: they are served like RPC calls.
//!
//! In a cluster, only the leader serves them. A standby cannot know whether its copy has everything
//! that was acknowledged: it may have been paused, and the leader may go on without it. Its copy is
//! for reads while no leader can be reached.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;

use crate::call::access::StateAccess;
use crate::server::handle::MasterHandle;
use crate::server::shared::MasterShared;
use crate::state::MasterState;
use mcctl_election::ha::planted::{HaMistake, is_planted};
use mcctl_journal::LogOutcome;
use mcctl_metadata::backend::{NotServed, RecordBackend, TablePlan};
use mcctl_metadata::records::SharedTable;
use mcctl_net::rpc::{Admitted, Receipt, RpcService};
use mcctl_sys::env::{Env, deadline};
use mcctl_wire::Method;

/// Maximum time for which a write waits for a hand-over, an election or the disk of the log.
const ADMISSION_MAX: Duration = Duration::from_secs(1);
/// A call that changes something, and one that does not: records are served when these are.
const LIKE_A_WRITE: Method = Method::PutStart;
const LIKE_A_READ: Method = Method::ExistKey;

impl<E: Env> MasterHandle<E> {
    /// The records of the metadata service, for a service that is embedded in this master.
    pub fn metadata_records(&self) -> Arc<dyn RecordBackend> {
        match (&self.shared.ha, &self.shared.log) {
            // Nothing stores or copies the changes of the state.
            (None, None) => Arc::new(self.shared.metadata_table()),
            _ => self.shared.clone(),
        }
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

    /// Why the log of a single master does not store changes.
    fn log_problem(&self) -> String {
        match self.current_log().map(|log| log.outcome()) {
            Some(LogOutcome::Failed(error)) => error.to_string(),
            _ => "the log cannot be written".to_owned(),
        }
    }

    /// Waits until a call like this one can be processed.
    ///
    /// # Errors
    /// This master does not lead, or the wait is too long.
    async fn admitted(&self, like: Method) -> Result<(), NotServed> {
        match deadline(&self.env, ADMISSION_MAX, self.admission(like)).await {
            Ok(Admitted::Proceed) => Ok(()),
            Ok(Admitted::Close | Admitted::Forward(_)) => Err(self.not_served()),
            Err(_) => Err(NotServed::Waiting),
        }
    }
}

impl<E: Env> RecordBackend for MasterShared<E> {
    fn get<'a>(&'a self, key: &'a [u8]) -> BoxFuture<'a, Result<Option<Bytes>, NotServed>> {
        Box::pin(async move {
            // A master that does not lead answers at once: the leader does not wait.
            if self.ha.is_some() && !self.admits(LIKE_A_READ) {
                let planted = is_planted(HaMistake::RecordReadFromCopy);
                return self.last_known(key).filter(|_| planted).ok_or_else(|| self.not_served());
            }
            let read = |state: &mut MasterState| state.metadata_record(key);
            let (found, receipt) = self.call(None, |call| call.0.with_state(|state, _, _| read(state)));
            if self.committed(receipt).await { Ok(found) } else { Err(self.not_served()) }
        })
    }

    fn change<'a>(&'a self, plan: TablePlan<'a>) -> BoxFuture<'a, Result<(), NotServed>> {
        Box::pin(async move {
            self.admitted(LIKE_A_WRITE).await?;
            let change = |state: &mut MasterState| state.change_metadata(plan);
            let ((), receipt) = self.call(None, |call| call.0.with_state(|state, _, _| change(state)));
            match self.committed(receipt).await {
                true => Ok(()),
                false if self.ha.is_some() => {
                    Err(NotServed::Unknown { cause: "this master no longer leads the cluster".to_owned() })
                }
                false => Err(NotServed::Unknown { cause: self.log_problem() }),
            }
        })
    }

    fn last_known(&self, key: &[u8]) -> Option<Option<Bytes>> {
        let ha = self.ha.as_ref()?;
        let now = self.env.boottime();
        (ha.view(now).in_sync && ha.is_informed(now)).then(|| self.metadata_table().lock().get(key))
    }

    /// The leader, and the standbys in sync. Kubernetes stops the leader only if another master is
    /// ready, and that one must have the leader's keys.
    fn is_ready(&self) -> bool {
        let Some(ha) = &self.ha else { return true };
        let view = ha.view(self.env.boottime());
        view.serving || view.in_sync
    }

    fn table(&self) -> SharedTable {
        self.metadata_table()
    }
}
