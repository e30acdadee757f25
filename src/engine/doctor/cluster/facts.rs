//! What was seen of a running cluster. Plain values: whoever judges them needs no socket.

use std::time::Duration;

use crate::engine::base::{ByteSize, HostPort};
use crate::engine::doctor::Asked;
use crate::engine::http::Samples;

/// All of it.
#[derive(Clone, Debug)]
pub struct Facts {
    /// The master's RPC address, as it was given.
    pub master: HostPort,
    /// Of its RPC port.
    pub rpc: Rpc,
    /// Of the admin HTTP of each master that was named.
    pub admins: Vec<Admin>,
    /// Of the leader's record, where the master is to be found through etcd.
    pub leader: Option<Leader>,
    /// The mounted segments; `None` when there was nobody to ask.
    pub segments: Option<Asked<Listing>>,
    /// The serving master's counters when the check began.
    pub before: Option<Samples>,
    /// The same when it had ended.
    pub after: Option<Samples>,
    /// One per endpoint that segments are reached by.
    pub nodes: Vec<Node>,
    /// Of the metadata service.
    pub metadata: Metadata,
    /// Of the objects that were sent through each node.
    pub journeys: Journeys,
    /// What all segments should have together.
    pub expected: Option<ByteSize>,
}

impl Facts {
    /// The mounted segments, as far as they are known.
    pub fn mounted(&self) -> &[Segment] {
        match &self.segments {
            Some(Ok(listing)) => &listing.segments,
            _ => &[],
        }
    }

    /// Is everything on this host, so that loopback names are right?
    pub fn is_one_host(&self) -> bool {
        self.master.is_loopback()
    }

    /// A counter or gauge of the master.
    pub fn metric(&self, name: &str) -> Option<f64> {
        self.after.as_ref().or(self.before.as_ref())?.sum(name)
    }
}

/// What the RPC port said.
#[derive(Clone, Debug)]
pub struct Rpc {
    /// How far it came.
    pub state: RpcState,
    /// How long that took.
    pub took: Duration,
    /// Times of lookups of a key that is not there, one after the other.
    pub lookups: Vec<Duration>,
}

/// How far the first call came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RpcState {
    /// The name has no address.
    Unresolved(String),
    /// No connection: refused, or no way there.
    Unconnected(String),
    /// Something took the connection and did not answer in time.
    Silent(String),
    /// An answer that no Mooncake master gives.
    Foreign(String),
    /// `ServiceReady` was refused.
    NotReady(String),
    /// `ServiceReady` was answered with this version.
    Ready(String),
}

/// What a master's admin HTTP said.
#[derive(Clone, Debug)]
pub struct Admin {
    pub at: HostPort,
    /// `/health`.
    pub health: Asked<Health>,
    /// How long that took.
    pub took: Duration,
    pub metrics: Option<Samples>,
    /// `/metrics/summary`, which alone counts snapshots.
    pub summary: Option<String>,
    /// Has it `/role`, as from 0.3.11 on?
    pub has_role: Option<bool>,
    /// Is it `mcctl serve master`, which alone has `/ready`?
    pub is_mcctl: Option<bool>,
}

/// `/health`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Health {
    /// `leader` or `standby`; empty before 0.3.11.
    pub role: String,
    /// `serving`, `standby`, ...
    pub state: String,
    /// Does it answer clients? (Before 0.3.11 a master that answers at all does.)
    pub is_ready: bool,
    /// Who leads, with HA.
    pub leader: Option<String>,
    pub view: Option<i64>,
}

/// The record in etcd that says who leads.
#[derive(Clone, Debug)]
pub struct Leader {
    pub key: String,
    /// Its value, if it has one.
    pub found: Asked<Option<String>>,
    /// Other clusters' keys that are there.
    pub others: Vec<String>,
}

/// Which form the list of segments came in.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listing {
    /// With sizes, endpoints and protocols (`/get_segments_detail`, from 0.3.12 on); else names alone.
    pub is_detailed: bool,
    pub segments: Vec<Segment>,
    /// How long it took to get them.
    pub took: Duration,
}

/// A mounted segment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Segment {
    pub name: String,
    /// Who mounted it; empty where it is not known.
    pub client: String,
    /// Its size, bytes.
    pub bytes: u64,
    /// How it is reached. The name, where it is not known.
    pub endpoint: String,
    /// `tcp`, `rdma`; empty where it is not known.
    pub protocol: String,
    /// `OK`, `DRAINING`.
    pub status: String,
    /// How full all segments of this name are, where it is known.
    pub usage: Option<Usage>,
}

/// How full a memory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// Bytes that objects have.
    pub used: u64,
    /// Bytes in all.
    pub capacity: u64,
}

/// A process that lends memory.
#[derive(Clone, Debug)]
pub struct Node {
    /// How the master says it is reached.
    pub endpoint: String,
    /// The names of its segments.
    pub names: Vec<String>,
    /// What the master says of its transport.
    pub protocol: String,
    /// Its handshake port, if that is known.
    pub at: Option<HostPort>,
    /// What came of asking there.
    pub dial: Dial,
    /// How long that took.
    pub took: Duration,
    /// The transport that its own descriptor names.
    pub described: Option<String>,
    /// Its records in the metadata service, where there is one.
    pub records: Option<Records>,
}

/// What came of asking a handshake port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Dial {
    Answers,
    /// The host is there and nobody listens.
    Refused(String),
    /// The kernel takes the connection, nobody answers: the process stands still.
    Hung(Duration),
    /// No connection in time, or no way there.
    Unreachable(String),
    /// The name has no address.
    Unresolved(String),
    /// Somebody answers, but no transfer engine.
    Foreign(String),
    /// It is not known where it is.
    Unknown(String),
}

/// The two records of a name in the metadata service.
#[derive(Clone, Debug)]
pub struct Records {
    /// `ram/NAME`: the transport it names.
    pub ram: Asked<Option<String>>,
    /// `rpc_meta/NAME`: where the handshake port is.
    pub rpc_meta: Asked<Option<HostPort>>,
}

/// Of the metadata service.
#[derive(Clone, Debug)]
pub struct Metadata {
    /// Its URL; `None` = `P2PHANDSHAKE`.
    pub url: Option<String>,
    /// Neither a flag nor a variable nor the master named it: the default was taken, and the nodes may use another one.
    pub is_assumed: bool,
    pub reached: Asked<()>,
    /// How long all its questions took.
    pub took: Duration,
    /// Names of nodes that are to be started.
    pub planned: Vec<Planned>,
}

/// A name that a node is to be started under.
#[derive(Clone, Debug)]
pub struct Planned {
    pub name: String,
    /// Where its record says that it is.
    pub rpc_meta: Asked<Option<HostPort>>,
    /// Does an engine answer there?
    pub dial: Option<Dial>,
}

/// Objects that were put through each node, read back, compared and removed.
#[derive(Clone, Debug)]
pub struct Journeys {
    /// Why none was made.
    pub none: Option<String>,
    /// Bytes of each.
    pub bytes: u64,
    pub made: Vec<Journey>,
    /// Segments that got none, with why.
    pub skipped: Vec<(String, String)>,
    /// Keys that could not be taken back.
    pub left: Vec<String>,
    /// How many objects were put, read and removed in all, for the comparison of the counters.
    pub done: Done,
    /// How long it all took.
    pub took: Duration,
    /// One object at a time and several at once, through the first node.
    pub lanes: Option<Lanes>,
}

/// How many steps of each kind succeeded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Done {
    pub puts: u64,
    /// Times that replicas were asked for.
    pub lookups: u64,
}

/// The times of reading the same objects one by one and all at once.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Lanes {
    pub objects: u32,
    /// Bytes of each.
    pub bytes: u64,
    /// One after the other.
    pub single: Duration,
    pub together: Duration,
}

/// An object's way through a segment.
#[derive(Clone, Debug)]
pub struct Journey {
    /// The segment that it was meant for.
    pub segment: String,
    /// How that is reached.
    pub endpoint: String,
    /// What came of it.
    pub end: Result<Moved, Fall>,
}

/// A journey that ended well.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Moved {
    /// Time of the put.
    pub put: Duration,
    /// Time of the get.
    pub get: Duration,
    /// The endpoint that it was really put to.
    pub landed: String,
}

/// A journey that did not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fall {
    /// `put`, `get`, `remove`.
    pub step: &'static str,
    /// What kind of failure.
    pub kind: FallKind,
    pub words: String,
    /// When it was given up.
    pub after: Duration,
}

/// Kinds of failure that mean different things.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FallKind {
    /// The master does not take our arguments, or answers with other types: another release.
    Release,
    /// The master did not answer.
    Master,
    /// No segment has room.
    NoRoom,
    /// The bytes could not be moved.
    Transfer,
    /// Other bytes came back.
    Bytes,
    Other,
}

#[cfg(test)]
pub mod made_up {
    //! A healthy cluster of two nodes, to be spoilt by tests.

    use super::*;

    /// Two nodes on two hosts, and a master on a third.
    pub fn healthy() -> Facts {
        let segment = |n: u8| Segment {
            name: format!("10.0.0.{n}:12345"),
            client: format!("{n}-{n}"),
            bytes: 1 << 30,
            endpoint: format!("10.0.0.{n}:15001"),
            protocol: "tcp".to_owned(),
            status: "OK".to_owned(),
            usage: None,
        };
        let node = |n: u8| Node {
            endpoint: format!("10.0.0.{n}:15001"),
            names: vec![format!("10.0.0.{n}:12345")],
            protocol: "tcp".to_owned(),
            at: Some(HostPort::new(format!("10.0.0.{n}"), 15_001)),
            dial: Dial::Answers,
            took: Duration::from_millis(1),
            described: Some("tcp".to_owned()),
            records: None,
        };
        let journey = |n: u8| Journey {
            segment: format!("10.0.0.{n}:12345"),
            endpoint: format!("10.0.0.{n}:15001"),
            end: Ok(Moved {
                put: Duration::from_millis(4),
                get: Duration::from_millis(4),
                landed: format!("10.0.0.{n}:15001"),
            }),
        };
        let page = |puts: u32, gets: u32| {
            Samples::parse(&format!(
                "master_active_clients 2\nmaster_key_count 0\nmaster_total_capacity_bytes 2147483648\nmaster_allocated_bytes 0\n\
                 master_batch_put_start_items_total {puts}\nmaster_put_start_requests_total 0\n\
                 master_batch_put_end_items_total {puts}\nmaster_put_end_requests_total 0\n\
                 master_batch_get_replica_list_items_total {gets}\nmaster_get_replica_list_requests_total 0\n"
            ))
        };
        Facts {
            master: HostPort::new("10.0.0.9", 50_051),
            rpc: Rpc {
                state: RpcState::Ready("2.0.0".to_owned()),
                took: Duration::from_millis(1),
                lookups: vec![Duration::from_micros(200); 200],
            },
            admins: vec![Admin {
                at: HostPort::new("10.0.0.9", 9003),
                health: Ok(Health {
                    role: "leader".to_owned(),
                    state: "serving".to_owned(),
                    is_ready: true,
                    leader: None,
                    view: None,
                }),
                took: Duration::from_millis(1),
                metrics: Some(page(2, 4)),
                summary: Some("Snapshots: Success=0, Fail=0".to_owned()),
                has_role: Some(true),
                is_mcctl: Some(false),
            }],
            leader: None,
            segments: Some(Ok(Listing {
                is_detailed: true,
                segments: vec![segment(1), segment(2)],
                took: Duration::from_millis(1),
            })),
            before: Some(page(0, 0)),
            after: Some(page(2, 4)),
            nodes: vec![node(1), node(2)],
            metadata: Metadata {
                url: None,
                is_assumed: false,
                reached: Ok(()),
                took: Duration::ZERO,
                planned: Vec::new(),
            },
            journeys: Journeys {
                none: None,
                bytes: 1 << 20,
                made: vec![journey(1), journey(2)],
                skipped: Vec::new(),
                left: Vec::new(),
                done: Done { puts: 2, lookups: 4 },
                took: Duration::from_millis(16),
                lanes: None,
            },
            expected: None,
        }
    }
}
