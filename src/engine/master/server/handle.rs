//! Access to a running master's state, for this process: calls without a connection, and the admin
//! API's view.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::broadcast;

use crate::call::access::StateAccess;
use crate::effect::StateEffect;
use crate::metrics::{MasterCounters, MasterGauges};
use crate::remove::ObjectWalk;
use crate::server::shared::MasterShared;
use crate::state::MasterState;
use crate::tenant::{TENANTS_MAX, TenantKeys, TenantUsage};
use crate::view::{
    AdminView, DataView, HaView, HeartbeatView, LeaderView, RemovedSlice, ReplicaView, RunState, SegmentView,
    ServiceView,
};
use mcctl_base::{ErrorCode, LatencySnapshot, Mono};
use mcctl_election::ha::{HaRole, HandOverProblem};
use mcctl_net::rpc::{ClientReleases, CommitWait, Receipt, RpcLatency, RpcService, WorkerPolls};
use mcctl_sys::env::Env;
use mcctl_wire::types::Tenant;
use mcctl_wire::{MasterApi, Method, Text};

/// A worker counts as stuck if it has not polled its connections for this long. `/health` and
/// `/ready` then return 503. Polls are half a second apart, and no call on a worker takes as long
/// as a second.
pub const WORKER_STUCK_AFTER: Duration = Duration::from_secs(5);

/// Access to a running master's state. Cheap to clone.
pub struct MasterHandle<E> {
    pub(super) shared: Arc<MasterShared<E>>,
    pub(super) polls: WorkerPolls,
    pub(super) latency: RpcLatency,
    pub(super) releases: ClientReleases,
}

impl<E> Clone for MasterHandle<E> {
    fn clone(&self) -> MasterHandle<E> {
        MasterHandle {
            shared: self.shared.clone(),
            polls: self.polls.clone(),
            latency: self.latency.clone(),
            releases: self.releases.clone(),
        }
    }
}

impl<E: Env> MasterHandle<E> {
    /// Subscribes to unmounted segments and expired clients, for components that store related
    /// records.
    pub fn unmount_events(&self) -> broadcast::Receiver<StateEffect> {
        self.shared.unmount_events.subscribe()
    }

    /// Hands over to a standby in sync, which leads afterwards. `is_ending`: this process is about
    /// to end, so the hand-over is not cancelled if it takes long.
    ///
    /// # Errors
    /// No standby leads.
    pub async fn hand_over(&self, is_ending: bool) -> Result<(), HandOverProblem> {
        match &self.shared.ha {
            Some(ha) => ha.step_down(is_ending).await,
            None => Err(HandOverProblem::NotLeading),
        }
    }

    /// Returns true if a segment with this name is mounted.
    pub fn has_segment_named(&self, name: &str) -> bool {
        self.read(|state, _| state.has_segment_named(name.as_bytes()))
    }

    /// Calls RPC methods without a connection. Returns the result of `work`, and the receipt of its
    /// calls. A caller that reports their results passes the receipt to [`AdminView::commit`]
    /// first.
    pub fn call<R>(&self, work: impl FnOnce(&mut dyn MasterApi) -> R) -> (R, Receipt) {
        self.shared.call(None, |call| work(call))
    }

    /// Waits until all changes so far are durable. Returns false if they cannot be stored, or are
    /// only in memory.
    pub(crate) async fn sync(&self) -> bool {
        let Some(log) = self.shared.current_log() else { return false };
        let last = log.writer.appended();
        let is_stored = match log.commit(Receipt { last, needs_sync: last, ..Receipt::default() }) {
            Some(stored) => stored.await,
            None => true,
        };
        is_stored && !log.memory_only()
    }

    /// Reads the state. The result may show changes that are not stored yet.
    fn read<R>(&self, work: impl FnOnce(&mut MasterState, Mono) -> R) -> R {
        self.shared.with_guarded(|guarded, now, _| work(&mut guarded.state, now))
    }
}

impl<E: Env> AdminView for MasterHandle<E> {
    fn service(&self) -> ServiceView {
        let Some(ha) = self.ha() else { return ServiceView { state: RunState::Serving, leader: None } };
        let state = match ha.role {
            _ if ha.serving => RunState::Serving,
            HaRole::Candidate => RunState::Candidate,
            // It cannot prove that it leads.
            HaRole::Leader => RunState::LeaderWarmup,
            _ => RunState::Standby,
        };
        let leader = ha.leader.map(|address| LeaderView { address, view_version: ha.view });
        ServiceView { state, leader }
    }

    fn stuck_for(&self) -> Option<Duration> {
        let silent = self.shared.env.now().since(self.polls.oldest()?);
        (silent >= WORKER_STUCK_AFTER).then_some(silent)
    }

    fn rpc_latency(&self) -> Vec<(Method, LatencySnapshot)> {
        self.latency.by_method()
    }

    fn client_releases(&self) -> Option<&ClientReleases> {
        Some(&self.releases)
    }

    fn metrics(&self) -> (MasterCounters, MasterGauges) {
        let (counters, mut gauges) = self.read(|state, _| (state.counters.clone(), state.gauges()));
        if let Some(ha) = self.ha().filter(|ha| !ha.serving) {
            gauges.keys = ha.objects;
        }
        (counters, gauges)
    }

    fn segments(&self, cursor: u64, limit: usize, visit: &mut dyn FnMut(SegmentView<'_>)) -> Option<u64> {
        self.read(|state, now| state.view_segments(now, cursor, limit, visit))
    }

    fn heartbeats(&self, cursor: u64, limit: usize, visit: &mut dyn FnMut(HeartbeatView)) -> Option<u64> {
        self.read(|state, now| state.view_heartbeats(now, cursor, limit, visit))
    }

    fn keys(&self, cursor: u64, limit: usize, visit: &mut dyn FnMut(&[u8])) -> Option<u64> {
        self.read(|state, _| state.keys(cursor, limit, visit))
    }

    fn remove_slice(&self, walk: Option<ObjectWalk>, force: bool, tenant: Option<&[u8]>) -> RemovedSlice {
        // An invalid tenant has no objects.
        let tenant = match tenant.map(|tenant| TenantKeys::of(Tenant(Text(tenant)))).transpose() {
            Ok(tenant) => tenant,
            Err(_) => return RemovedSlice { removed: 0, rest: None, receipt: Receipt::default() },
        };
        let ((removed, walk), receipt) = self.shared.call(None, |call| {
            let slice = call.0.with_state(|state, now, _| {
                let mut walk = walk.unwrap_or_else(|| {
                    state.counters.remove_all.add(true);
                    state.walk()
                });
                (state.remove_slice(now, &mut walk, force, tenant), walk)
            });
            call.0.yield_to_waiters();
            slice
        });
        RemovedSlice { removed, rest: (!walk.is_done()).then_some(walk), receipt }
    }

    fn tenants(&self) -> Vec<(Vec<u8>, TenantUsage)> {
        self.read(|state, _| {
            state.tenants().take(TENANTS_MAX).map(|(tenant, usage)| (tenant.to_vec(), usage)).collect()
        })
    }

    fn commit(&self, receipt: Receipt) -> Option<CommitWait<'_>> {
        self.shared.commit(receipt)
    }

    fn ha(&self) -> Option<HaView> {
        self.shared.ha.as_ref().map(|ha| ha.view(self.shared.env.boottime()))
    }

    fn step_down(&self) -> Pin<Box<dyn Future<Output = Result<(), HandOverProblem>> + Send + '_>> {
        Box::pin(self.hand_over(false))
    }

    fn data(&self) -> Option<DataView> {
        let log = self.shared.current_log()?;
        Some(DataView { stalled_for: log.stalled_for(self.shared.env.now()), ..log.view() })
    }

    fn replicas(&self, key: &[u8]) -> Result<Vec<ReplicaView>, ErrorCode> {
        self.read(|state, _| state.peek(key)).map_err(|refusal| refusal.code())
    }
}
