//! A running cluster, over the wire: its masters, its nodes, its metadata service, and an object through each node.
//!
//! It changes nothing that stays: the objects that it puts are removed, by force, whatever happens to them.

mod admin;
mod dial;
pub mod etcd;
pub mod facts;
mod gather;
mod journey;
mod judge;
mod room;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use crate::engine::base::{ByteSize, HostPort};
use crate::engine::check::{Check, Group, Report, Status};
use crate::engine::doctor::{Asked, reports};
use crate::engine::env::Env;
use crate::engine::metadata::MetadataUri;
use crate::engine::store::NodeConfig;

pub use etcd::Etcd;
pub use facts::Facts;

/// What is asked of a cluster.
#[derive(Clone, Debug)]
pub struct Question {
    /// Where the master is, or who knows.
    pub master: MasterAt,
    /// The admin HTTP of every master: one, or with HA all of them. None: what only it tells is skipped.
    pub admins: Vec<HostPort>,
    /// Where segments are found.
    pub metadata: MetadataUri,
    /// Is that only the default, which no flag, variable or master named?
    pub is_metadata_assumed: bool,
    /// `MC_METADATA_CLUSTER_ID`, part of every key there.
    pub metadata_cluster: Option<String>,
    /// How this host joins as a client (its segment is 0 bytes), or why it cannot; no bytes are moved then. The master in it is
    /// replaced by the one that is found.
    pub node: Asked<NodeConfig>,
    /// Names (`host:port`) under which nodes are to be started: are they free?
    pub planned: Vec<String>,
    /// What all segments should have together.
    pub expected: Option<ByteSize>,
    /// Bytes of the object that goes through each node; best a page as SGLang writes it.
    pub probe_bytes: u64,
    /// Longest wait for one answer, and for the bytes of one object.
    pub limit: Duration,
    /// Once it is set, no further object is put; what is on its way is removed as ever.
    pub stop: Arc<AtomicBool>,
}

/// Where the master is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MasterAt {
    Address(HostPort),
    /// Where etcd says that the leader is.
    Etcd(Etcd),
}

const fn check(id: &'static str, about: &'static str, problems: &'static [u8]) -> Check {
    Check { id, group: Group::Cluster, about, problems }
}

/// The catalogue.
pub const CHECKS: &[Check] = &[
    check("master-reached", "the master's name resolves, its RPC port connects and answers ServiceReady", &[18]),
    check("master-health", "of the masters named, one serves, and all agree who leads", &[20]),
    check("leader-record", "etcd names a leader for this cluster id, and it is the one that serves", &[20]),
    check("master-release", "the master takes this release's calls, a put included", &[3]),
    check("metadata-survives", "a fail-over or restart of the master keeps the keys", &[20, 21]),
    check("segments-mounted", "memory is mounted, as much as planned, in segments large enough", &[8, 15]),
    check("segment-names", "no two clients mounted segments under one name", &[11]),
    check("segment-endpoints", "every segment is reached by a name that other hosts can call", &[1]),
    check("one-protocol", "all segments are reached over one transport", &[25]),
    check("silent-tcp", "a node that was started for RDMA has not fallen back to TCP", &[2]),
    check("nodes-answer", "every node that the master lists is there and not standing still", &[14, 19]),
    check("metadata-records", "the metadata service has both records of every mounted segment", &[10]),
    check("planned-names", "no stale record stands in the way of a node that is to be started", &[11]),
    check("clients-alive", "the owners of the segments send heartbeats, and have not been lost before", &[13]),
    check("round-trip", "an object through each node: put, got, compared, removed", &[1, 2, 14, 25]),
    check("tcp-streams", "one transfer at a time uses what the connection gives", &[24]),
    check("counters-move", "the master counted what this check did", &[3]),
    check("puts-arrive", "who looks keys up also stores some, and who stores also reads", &[3, 16]),
    check("allocation", "puts find room, and what is evicted had a life", &[15]),
    check("ssd-tier", "the SSD tier is written and read, if there is one", &[26]),
    check("lookup-latency", "the master answers lookups quickly", &[17]),
];

/// Look at the cluster, and judge what was seen: the reports of the checks that are `wanted`, in the catalogue's order. What
/// only unwanted checks need is not asked for.
pub async fn run<E: Env>(env: &E, question: &Question, wanted: &dyn Fn(&str) -> bool) -> Vec<Report> {
    if !CHECKS.iter().any(|check| wanted(check.id)) {
        return Vec::new();
    }
    let facts = gather::gather(env, question, wanted).await;
    judge(&facts, wanted)
}

/// The same where no cluster can be looked at, since whoever should name its master names none: `origin` is what was written and
/// where, `why` what is wrong with it. Pure.
pub fn misnamed(origin: &str, why: &str, wanted: &dyn Fn(&str) -> bool) -> Vec<Report> {
    reports(CHECKS, wanted, |check| match check.id {
        "master-reached" => (judge::misnamed(origin, why), Duration::ZERO),
        _ => (Status::Skipped(format!("{origin} names no master")), Duration::ZERO),
    })
}

/// The same for what somebody has seen. Pure.
pub fn judge(facts: &Facts, wanted: &dyn Fn(&str) -> bool) -> Vec<Report> {
    reports(CHECKS, wanted, |check| judge::judge(check.id, facts))
}
