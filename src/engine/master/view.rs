//! What the admin HTTP surface asks of the master's state, and the plain values it gets.
//!
//! The state implements [`AdminView`]; `admin.rs` renders it. Only [`AdminView::remove_slice`] changes the state: reading a key
//! through this trait grants no lease (upstream's `/query_key` grants one, which makes the next remove fail).

use std::time::Duration;

use crate::engine::base::{ClientId, ErrorCode, SegmentId};
use crate::engine::master::metrics::{Counters, Gauges};
use crate::engine::master::remove::Walk;

/// Read access to the master's state. Each call holds the state for as short as its answer is: lists come in pages.
pub trait AdminView: Send + Sync + 'static {
    /// Role, run state and leader.
    fn service(&self) -> ServiceView;

    /// How long a worker thread of the RPC server has not polled its connections, when that is so long that it must be stuck: clients
    /// of that worker are not answered.
    fn stuck(&self) -> Option<Duration> {
        None
    }

    /// The counters as they stand, and the gauges.
    fn figures(&self) -> (Counters, Gauges);

    /// Up to `limit` mounted segments from `cursor` on (0 is the beginning) are given to `visit`; the answer is where to go on,
    /// `None` at the end. A segment that is mounted all the while is seen exactly once. `visit` runs while the state is held.
    fn segments(&self, cursor: u64, limit: usize, visit: &mut dyn FnMut(SegmentView<'_>)) -> Option<u64>;

    /// Up to `limit` object keys from `cursor` on (0 is the beginning) are given to `visit`; the answer is where to go on, `None`
    /// at the end. An object that exists all the while is seen exactly once. `visit` runs while the state is held: it only
    /// copies. `limit` bounds the slots looked at as much as the keys given, so that a sparse table does not hold the state long.
    fn keys(&self, cursor: u64, limit: usize, visit: &mut dyn FnMut(&[u8])) -> Option<u64>;

    /// Remove what can be removed of the next slice of the objects; how many went, and where to go on, `None` at the end. `walk` is
    /// `None` at the beginning. With `force` leased objects go too. Each call holds the state for one slice.
    fn remove_slice(&self, walk: Option<Walk>, force: bool) -> (u64, Option<Walk>);

    /// The complete memory replicas of `key`.
    ///
    /// # Errors
    /// `OBJECT_NOT_FOUND`, or `REPLICA_IS_NOT_READY` while the object is being written.
    fn replicas(&self, key: &[u8]) -> Result<Vec<ReplicaView>, ErrorCode>;
}

/// What the process is at the moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceView {
    /// Run state; the role follows from it.
    pub state: RunState,
    /// The leader that is known to an HA cluster; `None` without HA.
    pub leader: Option<LeaderView>,
}

/// Who leads an HA cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaderView {
    /// `host:port` of its RPC port.
    pub address: String,
    /// Grows with every election.
    pub view_version: u64,
}

/// Upstream's run states, as `/ha_status` names them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunState {
    /// Not yet anything.
    Starting,
    /// Follows a leader.
    Standby,
    /// Tries to become the leader.
    Candidate,
    /// Reads back what was kept.
    Recovering,
    /// Applies what the last leader left.
    CatchingUp,
    /// Elected, not yet answering.
    LeaderWarmup,
    /// Answers.
    Serving,
}

impl RunState {
    /// Upstream's word.
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

    /// Does it answer clients?
    pub fn is_serving(self) -> bool {
        self == RunState::Serving
    }
}

/// One mounted segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentView<'a> {
    /// Its id.
    pub id: SegmentId,
    /// Who mounted it.
    pub client: ClientId,
    /// Its name; several segments can have one name.
    pub name: &'a str,
    /// First address, in the owner's address space.
    pub base: u64,
    /// Size, bytes.
    pub bytes: u64,
    /// Bytes asked for by the objects that are in this segment now (requested sizes, as upstream counts).
    pub used_bytes: u64,
    /// Where the transfer engine reaches it.
    pub endpoint: &'a str,
    /// `tcp` or `rdma`.
    pub protocol: &'a str,
    /// Upstream's `SegmentStatus`: 1 OK, 2 draining, 3 drained, 4 gracefully unmounting, 5 unmounting.
    pub status: i32,
}

/// One complete replica in memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicaView {
    /// Length of the object, bytes.
    pub bytes: u64,
    /// Where it begins, in the owner's address space.
    pub address: u64,
    /// `tcp` or `rdma`.
    pub protocol: String,
    /// Where the transfer engine reaches it.
    pub endpoint: String,
}

/// Upstream's name of a `SegmentStatus`.
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
