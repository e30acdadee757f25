//! The observed facts of a running cluster. They are plain values, so they can be judged without a
//! socket.

use std::time::Duration;

use crate::Fact;
use mcctl_base::{ByteSize, HostPort};
use mcctl_metadata::admin::types::{HaStatusReport, MasterHealth, MemoryUsage};
use mcctl_net::http::Samples;
use mcctl_store::transport_stats::TransportStats;
use mcctl_wire::Release;

/// All facts of a cluster.
#[derive(Clone, Debug)]
pub struct ClusterFacts {
    /// The master's RPC address, as specified by the user.
    pub master: HostPort,
    pub rpc: RpcFacts,
    /// One entry per master whose admin HTTP address was specified.
    pub admins: Vec<AdminFacts>,
    /// The leader's record, if the master is discovered through etcd.
    pub leader: Option<LeaderRecord>,
    /// The mounted segments; `None` if no master could be queried.
    pub segments: Option<Fact<SegmentListing>>,
    /// The serving master's counters at the start of the check.
    pub before: Option<Samples>,
    /// The same counters at the end of the check.
    pub after: Option<Samples>,
    /// One entry per segment endpoint.
    pub nodes: Vec<NodeFacts>,
    /// The transport statistics of the nodes whose HTTP ports were specified.
    pub transports: Vec<(HostPort, Fact<TransportStats>)>,
    pub metadata: MetadataFacts,
    /// The results of sending probe objects through the nodes.
    pub probes: ProbeResults,
    /// The expected total capacity of all segments.
    pub expected: Option<ByteSize>,
}

impl ClusterFacts {
    /// The mounted segments; empty if unknown.
    pub fn mounted(&self) -> &[ListedSegment] {
        match &self.segments {
            Some(Ok(listing)) => &listing.segments,
            _ => &[],
        }
    }

    /// Whether the whole cluster runs on this host, so that loopback names are correct.
    pub fn is_one_host(&self) -> bool {
        self.master.is_loopback()
    }

    /// The value of a counter or gauge of the master.
    pub fn metric(&self, name: &str) -> Option<f64> {
        self.after.as_ref().or(self.before.as_ref())?.sum(name)
    }
}

/// The facts about the master's RPC port.
#[derive(Clone, Debug)]
pub struct RpcFacts {
    pub state: RpcState,
    /// The release of the master's messages; `None` if it did not respond.
    pub release: Option<Release>,
    /// Time until the first result.
    pub took: Duration,
    /// Latencies of sequential lookups of a missing key.
    pub lookups: Vec<Duration>,
}

/// The result of the first RPC.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RpcState {
    /// The address is unknown: etcd has no usable record, or cannot be read.
    /// [`ClusterFacts::leader`] has the details.
    Unknown(String),
    /// The name does not resolve.
    Unresolved(String),
    /// No connection: refused, or unreachable.
    Unconnected(String),
    /// The connection was accepted, but no response came in time.
    Silent(String),
    /// The connection was accepted, and closed without a response.
    Closed(String),
    /// The response is not in the master's protocol.
    Foreign(String),
    /// The master rejected `ServiceReady`.
    NotReady(String),
    /// The master responded to `ServiceReady` with this version.
    Ready(String),
}

/// The facts from a master's admin HTTP endpoints.
#[derive(Clone, Debug)]
pub struct AdminFacts {
    pub at: HostPort,
    pub health: Fact<MasterHealth>,
    pub took: Duration,
    pub metrics: Option<Samples>,
    /// `/metrics/summary`, the only endpoint that counts snapshots.
    pub summary: Option<String>,
    /// Whether the master serves `/role`, like all masters since 0.3.11.
    pub has_role: Option<bool>,
    /// Whether it is `mcctl serve master`, the only master that serves `/ready`.
    pub is_mcctl: Option<bool>,
    /// The master's part in its cluster, if it is mcctl's.
    pub ha: Option<HaStatusReport>,
}

/// The leader's record in etcd.
#[derive(Clone, Debug)]
pub struct LeaderRecord {
    pub key: String,
    /// The record's value, if the record exists.
    pub found: Fact<Option<String>>,
    /// The records of other clusters.
    pub others: Vec<String>,
}

/// The segment list, and how detailed it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SegmentListing {
    /// Whether sizes, endpoints and protocols are included (`/get_segments_detail`, since 0.3.12).
    pub is_detailed: bool,
    pub segments: Vec<ListedSegment>,
    /// Latency of the request.
    pub took: Duration,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListedSegment {
    pub name: String,
    /// The client that mounted the segment; empty if unknown.
    pub client: String,
    /// Size of the segment, in bytes.
    pub bytes: u64,
    /// The endpoint of the transfer engine; the segment's name if unknown.
    pub endpoint: String,
    /// `tcp` or `rdma`; empty if unknown.
    pub protocol: String,
    /// The host that the node reports to mcctl's master; empty if unknown.
    pub host: String,
    /// The state, for example `OK` or `DRAINING`.
    pub status: String,
    /// Combined usage of all segments with this name, if known.
    pub usage: Option<MemoryUsage>,
}

/// A process that contributes memory.
#[derive(Clone, Debug)]
pub struct NodeFacts {
    /// The endpoint that the master reports.
    pub endpoint: String,
    pub names: Vec<String>,
    /// The transport that the master reports.
    pub protocol: String,
    /// The handshake port, if known.
    pub at: Option<HostPort>,
    pub dial: DialResult,
    /// Latency of the probe.
    pub took: Duration,
    /// The transport in the node's own descriptor.
    pub described: Option<String>,
    /// The node's records in the metadata service, if one is used.
    pub records: Option<MetadataRecords>,
}

impl NodeFacts {
    /// The endpoint `at` with the names of the node's segments, as `mcctl status` shows them, if
    /// they differ.
    pub fn shown_at(&self, at: &str) -> String {
        match self.names.as_slice() {
            [] => at.to_owned(),
            names if names.iter().all(|name| name == at) => at.to_owned(),
            [name] => format!("segment {name} at {at}"),
            [name, more @ ..] => format!("segment {name} and {} more at {at}", more.len()),
        }
    }
}

/// The result of probing a handshake port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DialResult {
    Answers,
    /// The host is up, but nothing listens on the port.
    Refused(String),
    /// The kernel accepted the connection, but the process did not respond: it is stalled.
    Hung(Duration),
    /// No connection in time, or no route.
    Unreachable(String),
    /// The name does not resolve.
    Unresolved(String),
    /// A program other than a transfer engine responded.
    Foreign(String),
    /// The address is unknown.
    Unknown(String),
}

/// The two records of a name in the metadata service.
#[derive(Clone, Debug)]
pub struct MetadataRecords {
    /// `ram/NAME`: the transport in the descriptor.
    pub ram: Fact<Option<String>>,
    /// `rpc_meta/NAME`: the address of the handshake port.
    pub rpc_meta: Fact<Option<HostPort>>,
}

/// The facts about the metadata service.
#[derive(Clone, Debug)]
pub struct MetadataFacts {
    /// The URL; `None` means `P2PHANDSHAKE`.
    pub url: Option<String>,
    /// Whether the default was assumed, because no flag, variable or master specified it. The nodes
    /// may use a different service.
    pub is_assumed: bool,
    pub reached: Fact<()>,
    /// Total latency of the requests.
    pub took: Duration,
    /// Nodes that will be started.
    pub planned: Vec<PlannedNode>,
}

/// A name under which a node will be started.
#[derive(Clone, Debug)]
pub struct PlannedNode {
    pub name: String,
    /// The address in its existing record.
    pub rpc_meta: Fact<Option<HostPort>>,
    /// The result of probing that address.
    pub dial: Option<DialResult>,
}

/// The results of putting probe objects through each node, reading them back, comparing the data
/// and removing the objects.
#[derive(Clone, Debug)]
pub struct ProbeResults {
    /// The reason why no object was sent.
    pub none: Option<String>,
    /// Size of each object.
    pub bytes: u64,
    pub made: Vec<ObjectProbe>,
    /// Segments that were not probed, with the reason.
    pub skipped: Vec<(String, String)>,
    /// Keys that could not be removed.
    pub left: Vec<String>,
    /// How many operations succeeded, for comparison with the master's counters.
    pub done: ProbeCounts,
    pub took: Duration,
    /// Sequential and parallel reads through the first node.
    pub parallel_read: Option<ParallelRead>,
}

/// The number of successful operations of each type.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProbeCounts {
    pub puts: u64,
    /// Requests for a replica list.
    pub lookups: u64,
}

/// How long it took to read the same objects sequentially and in parallel.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ParallelRead {
    pub objects: u32,
    /// Size of each object.
    pub bytes: u64,
    /// Total time of sequential reads.
    pub single: Duration,
    /// Total time of one batch read.
    pub together: Duration,
}

/// The probe of one segment.
#[derive(Clone, Debug)]
pub struct ObjectProbe {
    /// The preferred segment of the object.
    pub segment: String,
    /// The endpoint of the preferred segment.
    pub endpoint: String,
    pub end: Result<ProbeTiming, ObjectProbeFailure>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProbeTiming {
    /// Duration of the put.
    pub put: Duration,
    /// Duration of the get.
    pub get: Duration,
    /// The endpoint of the replica that was actually written.
    pub stored_at: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectProbeFailure {
    /// `put`, `get` or `remove`.
    pub step: &'static str,
    pub kind: ProbeFailureKind,
    pub message: String,
    /// Time until the failure.
    pub after: Duration,
}

/// The type of failure, which determines the remedy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProbeFailureKind {
    /// The master rejects the arguments or returns unexpected types, because it runs a different
    /// release.
    Release,
    /// The master did not respond.
    Master,
    /// No segment has enough free space.
    NoRoom,
    Transfer,
    /// The data read differs from the data written.
    Bytes,
    Other,
}

#[cfg(test)]
pub mod test_facts {
    //! A healthy two-node cluster, the starting point for tests.

    use super::*;

    /// Two nodes on two hosts, and a master on a third host.
    pub fn healthy() -> ClusterFacts {
        let segment = |n: u8| ListedSegment {
            name: format!("10.0.0.{n}:12345"),
            client: format!("{n}-{n}"),
            bytes: 1 << 30,
            endpoint: format!("10.0.0.{n}:15001"),
            protocol: "tcp".to_owned(),
            host: String::new(),
            status: "OK".to_owned(),
            usage: None,
        };
        let node = |n: u8| NodeFacts {
            endpoint: format!("10.0.0.{n}:15001"),
            names: vec![format!("10.0.0.{n}:12345")],
            protocol: "tcp".to_owned(),
            at: Some(HostPort::new(format!("10.0.0.{n}"), 15_001)),
            dial: DialResult::Answers,
            took: Duration::from_millis(1),
            described: Some("tcp".to_owned()),
            records: None,
        };
        let probe_object = |n: u8| ObjectProbe {
            segment: format!("10.0.0.{n}:12345"),
            endpoint: format!("10.0.0.{n}:15001"),
            end: Ok(ProbeTiming {
                put: Duration::from_millis(4),
                get: Duration::from_millis(4),
                stored_at: format!("10.0.0.{n}:15001"),
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
        ClusterFacts {
            master: HostPort::new("10.0.0.9", 50_051),
            rpc: RpcFacts {
                release: Some(Release::LATEST),
                state: RpcState::Ready("2.0.0".to_owned()),
                took: Duration::from_millis(1),
                lookups: vec![Duration::from_micros(200); 200],
            },
            admins: vec![AdminFacts {
                at: HostPort::new("10.0.0.9", 9003),
                health: Ok(MasterHealth {
                    status: "ok".to_owned(),
                    role: "leader".to_owned(),
                    ha_state: "serving".to_owned(),
                    service_ready: true,
                    leader_address: None,
                    view_version: None,
                }),
                took: Duration::from_millis(1),
                metrics: Some(page(2, 4)),
                summary: Some("Snapshots: Success=0, Fail=0".to_owned()),
                has_role: Some(true),
                is_mcctl: Some(false),
                ha: None,
            }],
            leader: None,
            segments: Some(Ok(SegmentListing {
                is_detailed: true,
                segments: vec![segment(1), segment(2)],
                took: Duration::from_millis(1),
            })),
            before: Some(page(0, 0)),
            after: Some(page(2, 4)),
            nodes: vec![node(1), node(2)],
            transports: Vec::new(),
            metadata: MetadataFacts {
                url: None,
                is_assumed: false,
                reached: Ok(()),
                took: Duration::ZERO,
                planned: Vec::new(),
            },
            probes: ProbeResults {
                none: None,
                bytes: 1 << 20,
                made: vec![probe_object(1), probe_object(2)],
                skipped: Vec::new(),
                left: Vec::new(),
                done: ProbeCounts { puts: 2, lookups: 4 },
                took: Duration::from_millis(16),
                parallel_read: None,
            },
            expected: None,
        }
    }
}
