//! Checks of a running cluster over the network: its masters, nodes and metadata service, and a
//! probe object through each node.
//!
//! The objects are force-removed afterwards, even after a failure. The checks change nothing else.

mod admin;
mod dial;
pub mod etcd;
pub mod facts;
mod gather;
mod headroom;
mod judge;
mod probe_object;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use crate::{Fact, reports};
use mcctl_base::check::{Check, CheckGroup, CheckReport, CheckStatus};
use mcctl_base::{ByteSize, HostPort};
use mcctl_metadata::MetadataUri;
use mcctl_net::http::HttpCredentials;
use mcctl_store::ClientConfig;
use mcctl_sys::env::Env;

pub use etcd::Etcd;
pub use facts::ClusterFacts;

/// What to check, and how.
#[derive(Clone, Debug)]
pub struct ClusterQuery {
    /// The master's address, or the etcd cluster that stores it.
    pub master: MasterAt,
    /// The admin HTTP addresses of the single master, or of all masters in an HA cluster. If empty,
    /// the checks that need it are skipped.
    pub admins: Vec<HostPort>,
    /// What is shown to the admin ports and the metadata service.
    pub credentials: HttpCredentials,
    /// The metadata service of the segments.
    pub metadata: MetadataUri,
    /// Whether `metadata` is only the default, because no flag, variable or master specified one.
    pub is_metadata_assumed: bool,
    /// `MC_METADATA_CLUSTER_ID`, part of every key in the metadata service.
    pub metadata_cluster: Option<String>,
    /// The configuration for joining as a client, or why this host does not join. Without a
    /// configuration, no objects are sent. The discovered address replaces the configuration's
    /// master address.
    pub client: Fact<ClientConfig>,
    /// Names (`host:port`) under which nodes will be started, to check that they are free.
    pub planned: Vec<String>,
    /// The HTTP ports of mcctl's nodes, to read which damaged objects their clients have found.
    pub nodes: Vec<HostPort>,
    /// The expected total capacity of all segments.
    pub expected: Option<ByteSize>,
    /// Size of the probe objects; ideally the size of the pages that SGLang writes.
    pub probe_bytes: u64,
    /// Maximum wait for a response, and for the transfer of an object.
    pub limit: Duration,
    /// Once set, no more objects are put. The one in progress is still removed.
    pub stop: Arc<AtomicBool>,
}

/// How to find the master.
#[derive(Clone, Debug)]
pub enum MasterAt {
    Address(HostPort),
    /// Through the leader's record in etcd.
    Etcd(Etcd),
}

const fn check(id: &'static str, about: &'static str, problems: &'static [u8]) -> Check {
    Check { id, group: CheckGroup::Cluster, about, problems }
}

/// The checks of this group.
pub const CHECKS: &[Check] = &[
    check("master-reached", "the master's name resolves, and its RPC port responds to ServiceReady", &[18]),
    check("master-health", "exactly one of the specified masters is serving, and all report the same leader", &[20]),
    check("leader-record", "etcd has a leader for this cluster id, and that leader is serving", &[20]),
    check("standby-ready", "mcctl's leader has a standby in sync, and reaches etcd", &[20]),
    check("master-release", "the master's release is known, and it accepts a put", &[3]),
    check("known-requests", "the master can decode the requests of all clients", &[3]),
    check("metadata-survives", "the keys survive a failover or restart of the master", &[20, 21]),
    check("segments-mounted", "the planned memory is mounted, in segments that are large enough", &[8, 15]),
    check("segment-names", "segment names are unique across clients", &[11]),
    check("segment-endpoints", "other hosts can connect to the endpoint of every segment", &[1]),
    check("copy-hosts", "segments are on several hosts, so that a second copy survives the loss of one", &[]),
    check("one-protocol", "all segments use the same transport", &[25]),
    check("silent-tcp", "nodes started for RDMA have not fallen back to TCP", &[2]),
    check("nodes-answer", "every node that the master lists is running and not stalled", &[14, 19]),
    check("metadata-records", "the metadata service has both records of every mounted segment", &[10]),
    check("planned-names", "no stale record prevents a planned node from starting", &[11]),
    check("clients-alive", "segment owners send heartbeats and have not expired", &[13]),
    check("round-trip", "an object can be put, read back and removed through each node", &[1, 2, 14, 25]),
    check("tcp-streams", "a single transfer uses the full bandwidth of the connection", &[24]),
    check("counters-move", "the master's counters include this check's operations", &[3]),
    check("puts-arrive", "clients that look up keys also store some, and stored keys are read", &[3, 16]),
    check("allocation", "puts find free space, and data is read before it is evicted", &[15]),
    check("object-integrity", "writes have checksums, and no node has read a damaged object", &[]),
    check("ssd-tier", "the SSD tier, if any, is written to and read from", &[26]),
    check("lookup-latency", "the master responds to lookups quickly", &[17]),
];

/// Runs the `wanted` checks in the order of [`CHECKS`]. Facts that only other checks need are not
/// gathered.
pub async fn run<E: Env>(env: &E, query: &ClusterQuery, wanted: &dyn Fn(&str) -> bool) -> Vec<CheckReport> {
    if !CHECKS.iter().any(|check| wanted(check.id)) {
        return Vec::new();
    }
    let facts = gather::gather(env, query, wanted).await;
    judge(&facts, wanted)
}

/// The reports for an invalid master address: `origin` is the setting with its value, and `why` is
/// the error. Pure.
pub fn misnamed(origin: &str, why: &str, wanted: &dyn Fn(&str) -> bool) -> Vec<CheckReport> {
    reports(CHECKS, wanted, |check| match check.id {
        "master-reached" => (judge::misnamed(origin, why), Duration::ZERO),
        _ => (CheckStatus::Skipped(format!("{origin} is not a valid master address")), Duration::ZERO),
    })
}

/// Judges facts that were already gathered. Pure.
pub fn judge(facts: &ClusterFacts, wanted: &dyn Fn(&str) -> bool) -> Vec<CheckReport> {
    reports(CHECKS, wanted, |check| judge::judge(check.id, facts))
}
