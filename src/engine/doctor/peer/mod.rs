//! Tests RDMA from each device of this host to each device of another engine: discovery, queue pair
//! connection, small packets, and large packets.
//!
//! The peer is any running Mooncake engine (a node, an SGLang server, a bench target). The test
//! does not affect it: it opens a connection like any client, writes 0 bytes, and reads. Every step
//! of a path is reported separately ([`PathProbes`]), so a failure is explained by its step,
//! attribute and errno. The rules for these explanations are in [`explain`].

pub mod explain;
mod judge;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use crate::{Fact, chain, reports};
use mcctl_base::check::{Check, CheckGroup, CheckReport};
use mcctl_sys::env::{Env, deadline};
use mcctl_transfer::path_probe::PathProbes;
use mcctl_transfer::{TransferConfig, TransferEngine};
use mcctl_wire::json::SegmentDescriptor;

/// Maximum time for removing this host's record from the metadata service.
const END_MAX: Duration = Duration::from_secs(5);

/// What to test, and how.
#[derive(Clone, Debug)]
pub struct PeerQuery {
    /// Segment names: `HOST:PORT` of the handshake port, or the name in the metadata service.
    pub segments: Vec<String>,
    /// The configuration of this host's engine, or the reason why the engine cannot start.
    pub config: Fact<TransferConfig>,
    /// Maximum wait for a response.
    pub limit: Duration,
    /// Once set, no more paths are tested.
    pub stop: Arc<AtomicBool>,
}

/// The observed facts of the peers.
#[derive(Clone, Debug, Default)]
pub struct PeerFacts {
    /// Why this host's engine could not start.
    pub no_start: Option<String>,
    /// The segments in the order specified; empty if this host's engine could not start.
    pub peers: Vec<PeerProbe>,
}

/// The facts of one peer.
#[derive(Clone, Debug)]
pub struct PeerProbe {
    /// The segment name, as specified by the user.
    pub segment: String,
    /// The segment descriptor of the peer, or the reason for which it could not be read.
    pub found: Fact<SegmentDescriptor>,
    /// The results of all paths to it; empty if it has no RDMA devices.
    pub probes: PathProbes,
    pub took: Duration,
}

const fn check(id: &'static str, about: &'static str) -> Check {
    Check { id, group: CheckGroup::Peer, about, problems: &[6] }
}

/// The checks of this group.
pub const CHECKS: &[Check] = &[
    check("peer-found", "the engine specified with --rdma-peer exists and announces RDMA devices with GIDs"),
    check(
        "peer-connected",
        "queue pairs from each RDMA device on this host to each of the peer's devices reach RTS on both sides",
    ),
    check("peer-answers", "a 0-byte write succeeds on each path"),
    check("peer-packets", "a multi-packet read succeeds on each path, so every MTU along the path is large enough"),
];

/// Tests the peers. Returns the reports of the `wanted` checks in the order of [`CHECKS`], and the
/// underlying facts.
pub async fn run<E: Env>(env: &E, query: &PeerQuery, wanted: &dyn Fn(&str) -> bool) -> (Vec<CheckReport>, PeerFacts) {
    if !CHECKS.iter().any(|check| wanted(check.id)) {
        return (Vec::new(), PeerFacts::default());
    }
    let facts = gather(env, query).await;
    (judge(&facts, wanted), facts)
}

/// Judges facts that were already gathered. Pure.
pub fn judge(facts: &PeerFacts, wanted: &dyn Fn(&str) -> bool) -> Vec<CheckReport> {
    let took: Duration = facts.peers.iter().map(|peer| peer.took).sum();
    reports(CHECKS, wanted, |check| (judge::judge(check.id, facts), took))
}

async fn gather<E: Env>(env: &E, query: &PeerQuery) -> PeerFacts {
    let failed = |why: String| PeerFacts { no_start: Some(why), peers: Vec::new() };
    let config = match &query.config {
        Ok(config) => config.clone(),
        Err(why) => return failed(why.into()),
    };
    let engine = match TransferEngine::start(config, env.clone()).await {
        Ok(engine) => engine,
        Err(error) => return failed(chain(&error)),
    };
    let mut peers = Vec::new();
    for segment in &query.segments {
        let begun = env.now();
        let found = engine.find(segment, query.limit).await.map_err(|error| chain(&error).into());
        let probes = match &found {
            Ok(descriptor) if judge::offers_rdma(descriptor) => {
                engine.probe_paths(descriptor.clone(), query.limit, Arc::clone(&query.stop)).await
            }
            _ => Ok(PathProbes::default()),
        };
        let (found, probes) = match probes {
            Ok(probes) => (found, probes),
            Err(error) => (Err(chain(&error).into()), PathProbes::default()),
        };
        peers.push(PeerProbe { segment: segment.clone(), found, probes, took: env.now().since(begun) });
    }
    // If a record remains in the metadata service, the next process with that name replaces it.
    let _ = deadline(env, END_MAX, engine.shutdown()).await;
    PeerFacts { no_start: None, peers }
}

#[cfg(test)]
mod tests;
