//! The interface between the admin HTTP API and the master's state, in terms of plain values.
//!
//! The state implements [`AdminView`]; `admin.rs` renders it. Only [`AdminView::remove_slice`]
//! changes the state. Reading a key through this trait grants no lease. (Upstream's `/query_key`
//! grants one, which makes the next remove fail.)

use std::pin::Pin;
use std::time::Duration;

pub use mcctl_journal::DataView;

use crate::metrics::{MasterCounters, MasterGauges};
use crate::remove::ObjectWalk;
use crate::tenant::TenantUsage;
use mcctl_base::{ClientId, ErrorCode, LatencySnapshot, SegmentId};
use mcctl_election::ha::{HaRole, HandOverProblem, MemberId};
use mcctl_net::rpc::ClientReleases;
use mcctl_net::rpc::{CommitWait, Receipt};
use mcctl_wire::Method;

/// Access to the master's state for the admin API. No call locks the state for long: lists are
/// returned in pages.
pub trait AdminView: Send + Sync + 'static {
    /// Run state, role and leader.
    fn service(&self) -> ServiceView;

    /// How long a worker thread of the RPC server has gone without polling its connections, if long
    /// enough to count as stuck. A stuck worker's clients get no responses.
    fn stuck_for(&self) -> Option<Duration> {
        None
    }

    /// How long RPC calls took, for each method that was called.
    fn rpc_latency(&self) -> Vec<(Method, LatencySnapshot)> {
        Vec::new()
    }

    /// What the clients' calls have shown about their releases; `None` without an RPC server.
    fn client_releases(&self) -> Option<&ClientReleases> {
        None
    }

    /// A snapshot of the counters and the gauges.
    fn metrics(&self) -> (MasterCounters, MasterGauges);

    /// Passes up to `limit` mounted segments, starting at `cursor`, to `visit`. The first cursor is
    /// 0. Returns the next cursor, or `None` at the end. A segment that stays mounted during the
    /// whole scan is visited exactly once. `visit` runs with the state locked.
    fn segments(&self, cursor: u64, limit: usize, visit: &mut dyn FnMut(SegmentView<'_>)) -> Option<u64>;

    /// Scans up to `limit` segment slots, starting at `cursor`, and passes the last heartbeat of
    /// each mounted segment's client to `visit`. The first cursor is 0. Returns the next cursor, or
    /// `None` at the end. A client with several segments is visited several times; one that has not
    /// called since a restore is not visited.
    fn heartbeats(&self, _cursor: u64, _limit: usize, _visit: &mut dyn FnMut(HeartbeatView)) -> Option<u64> {
        None
    }

    /// Passes up to `limit` object keys, starting at `cursor`, to `visit`. The first cursor is
    /// 0. Returns the next cursor, or `None` at the end. An object that exists during the whole
    /// scan is visited exactly once. `visit` runs with the state locked, so it should only copy.
    /// `limit` bounds the inspected slots as well as the keys, so that a sparse table does not keep
    /// the state locked for long.
    fn keys(&self, cursor: u64, limit: usize, visit: &mut dyn FnMut(&[u8])) -> Option<u64>;

    /// Scans the next slice of objects, starting at the position `walk` (`None` starts a new scan),
    /// and removes those that may be removed. With `force`, leased objects are removed as well.
    /// Each call locks the state for one slice.
    /// Only objects of `tenant`; `None` stands for all tenants.
    fn remove_slice(&self, walk: Option<ObjectWalk>, force: bool, tenant: Option<&[u8]>) -> RemovedSlice;

    /// The objects of each tenant but the default one.
    fn tenants(&self) -> Vec<(Vec<u8>, TenantUsage)> {
        Vec::new()
    }

    /// The master's part in its cluster; `None` without high availability.
    fn ha(&self) -> Option<HaView> {
        None
    }

    /// Hands over to a standby, which leads afterwards.
    ///
    /// # Errors
    /// No standby leads.
    fn step_down(&self) -> Pin<Box<dyn Future<Output = Result<(), HandOverProblem>> + Send + '_>> {
        Box::pin(std::future::ready(Err(HandOverProblem::NotLeading)))
    }

    /// Stores the changes of a receipt. For use before a response that reports them. See
    /// [`RpcService::commit`](mcctl_net::rpc::RpcService::commit).
    fn commit(&self, _receipt: Receipt) -> Option<CommitWait<'_>> {
        None
    }

    /// What is known about the log of changes; `None` if the state is only in memory.
    fn data(&self) -> Option<DataView> {
        None
    }

    /// Returns the complete memory replicas of `key`.
    ///
    /// # Errors
    /// `OBJECT_NOT_FOUND`, or `REPLICA_IS_NOT_READY` while the object is being written.
    fn replicas(&self, key: &[u8]) -> Result<Vec<ReplicaView>, ErrorCode>;
}

/// The result of one slice of a removal ([`AdminView::remove_slice`]).
#[derive(Debug)]
#[must_use]
pub struct RemovedSlice {
    /// Number of objects that were removed.
    pub removed: u64,
    /// The position at which to continue; `None` at the end.
    pub rest: Option<ObjectWalk>,
    /// What a response that reports the removal waits for. To be passed to [`AdminView::commit`].
    pub receipt: Receipt,
}

/// The part of a master in its cluster, as `/ha_status` and the metrics show it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HaView {
    pub role: HaRole,
    /// Whether clients are served.
    pub serving: bool,
    /// The create revision of the leader's key; 0 if no master leads.
    pub view: u64,
    /// `host:port` of the leader's RPC port.
    pub leader: Option<String>,
    /// The name of this copy of the state.
    pub member: Option<MemberId>,
    /// Whether this copy has everything that was acknowledged, according to the sync record.
    pub in_sync: bool,
    /// The last change that this standby, or the slowest standby of this leader, has.
    pub acked: u64,
    /// The leader's last change of which this master was informed.
    pub last: u64,
    /// Bytes of the changes that the slowest standby of this leader does not have.
    pub lag_bytes: u64,
    /// Number of objects that a promotion of this standby would keep.
    pub objects: u64,
    /// Why this standby cannot be promoted without loss.
    pub not_promotable: Option<String>,
    /// The leader's standbys that are connected or required.
    pub standbys: Vec<HaStandbyView>,
    /// Number of digests of the leader that agreed with this standby's copy.
    pub digests: u64,
    /// The last error of etcd, until it responds again.
    pub backend_error: Option<String>,
    /// While etcd does not respond: the time for which this leader can still serve, if that is
    /// limited.
    pub outage_left: Option<Duration>,
    /// Set if this leader was promoted without having been in sync: number of the former leader's
    /// announced changes that it does not have. Later ones may be missing, too.
    pub may_lack: Option<u64>,
    /// Number of objects that this process has dropped at promotions, because changes may have been
    /// missing.
    pub dropped_objects: u64,
    /// Number of times that this process has become the leader, and that it has stopped because
    /// another master was elected.
    pub promotions: u64,
    pub demotions: u64,
}

/// A standby, as its leader sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HaStandbyView {
    pub member: MemberId,
    /// The address of its RPC port, once it has connected.
    pub rpc: Option<String>,
    /// Whether responses wait for it.
    pub required: bool,
    /// Whether the sync record lists it.
    pub in_sync: bool,
    pub connected: bool,
    /// The last change that it has.
    pub acked: u64,
}

/// The run state of the process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceView {
    /// The run state, which also determines the role.
    pub state: RunState,
    /// The leader of the HA cluster; `None` without HA.
    pub leader: Option<LeaderView>,
}

/// The leader of an HA cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaderView {
    /// `host:port` of the leader's RPC port.
    pub address: String,
    /// Increases with every election.
    pub view_version: u64,
}

/// Upstream's run states, as named in `/ha_status`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunState {
    Starting,
    Standby,
    /// The master stands for election.
    Candidate,
    /// Loading the persisted state.
    Recovering,
    /// Applying the previous leader's log.
    CatchingUp,
    /// Elected, but not yet serving clients.
    LeaderWarmup,
    Serving,
}

impl RunState {
    /// Upstream's name for this state.
    pub fn name(self) -> &'static str {
        match self {
            RunState::Starting => "starting",
            RunState::Standby => "standby",
            RunState::Candidate => "candidate",
            RunState::Recovering => "recovering",
            RunState::CatchingUp => "catching_up",
            RunState::LeaderWarmup => "leader_warmup",
            RunState::Serving => "serving",
        }
    }

    /// Upstream's role in this state.
    pub fn role(self) -> &'static str {
        match self {
            RunState::LeaderWarmup | RunState::Serving => "leader",
            _ => "standby",
        }
    }

    /// Returns true if the master serves clients in this state.
    pub fn is_serving(self) -> bool {
        self == RunState::Serving
    }
}

/// The last heartbeat, or other call, of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeartbeatView {
    pub client: ClientId,
    /// Time since the call.
    pub age: Duration,
    /// Time until the client expires, unless it calls again.
    pub expires_in: Duration,
}

/// A restored segment whose client has not called since.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnconfirmedSegment {
    /// Number of replicas in it. They cannot be read until the client calls.
    pub replicas: u64,
    /// Time until the segment is dropped with its replicas, unless the client calls.
    pub dropped_in: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentView<'a> {
    pub id: SegmentId,
    pub client: ClientId,
    /// Several segments can have the same name.
    pub name: &'a str,
    /// First address, in the owner's address space.
    pub base: u64,
    pub bytes: u64,
    /// Sum of the requested sizes of the objects in this segment. Upstream counts requested sizes,
    /// too.
    pub used_bytes: u64,
    /// Transfer engine endpoint of the segment's owner.
    pub endpoint: &'a str,
    /// `tcp` or `rdma`.
    pub protocol: &'a str,
    /// The host that the node reports; empty if it reports none.
    pub host: &'a str,
    /// Upstream's `SegmentStatus`: 1 OK, 2 draining, 3 drained, 4 gracefully unmounting,
    /// 5 unmounting.
    pub status: i32,
    /// Time for which the segment accepts no new objects, because transfers to its earlier objects
    /// may be in progress.
    pub held_for: Option<Duration>,
    /// Set if the segment was restored and its client has not called since.
    pub unconfirmed: Option<UnconfirmedSegment>,
}

/// One complete memory replica.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicaView {
    /// Size of the object in bytes.
    pub bytes: u64,
    /// First address, in the owner's address space.
    pub address: u64,
    /// `tcp` or `rdma`.
    pub protocol: String,
    /// Transfer engine endpoint of the replica's owner.
    pub endpoint: String,
}

/// Upstream's name for a `SegmentStatus`.
pub fn segment_status_name(status: i32) -> &'static str {
    match status {
        0 => "UNDEFINED",
        1 => "OK",
        2 => "DRAINING",
        3 => "DRAINED",
        4 => "GRACEFULLY_UNMOUNTING",
        5 => "UNMOUNTING",
        _ => "UNKNOWN",
    }
}
