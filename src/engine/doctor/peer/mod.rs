//! Another engine over RDMA, from each device of this host to each of its: is it found, do queue pairs connect, do packets come back,
//! and large ones, too?
//!
//! The other end is any Mooncake engine that runs (a node, a SGLang server, the target of a bench) and takes no harm: a connection as
//! any client makes it, writes of no bytes, and a read. Every step of a way is told from the others ([`PathProbes`]), so that a way that
//! fails is explained by the step, the attribute and the system's number; [`explain`] has those rules.

pub mod explain;
mod judge;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use crate::engine::check::{Check, Group, Report};
use crate::engine::doctor::{Asked, chain, reports};
use crate::engine::env::{Env, deadline};
use crate::engine::transfer::rdma::path_probe::PathProbes;
use crate::engine::transfer::{TransferConfig, TransferEngine};
use crate::engine::wire::json::SegmentDescriptor;

/// How long taking our name out of a metadata service may take.
const END_MAX: Duration = Duration::from_secs(5);

/// What is asked.
#[derive(Clone, Debug)]
pub struct Question {
    /// The segments' names: `HOST:PORT` of the handshake port, or the name in the metadata service.
    pub segments: Vec<String>,
    /// How this host joins, over RDMA; or why it cannot.
    pub config: Asked<TransferConfig>,
    /// Longest wait for one answer.
    pub limit: Duration,
    /// Once it is set, no further way is tried.
    pub stop: Arc<AtomicBool>,
}

/// What was seen.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    /// Why this host's own end could not be started.
    pub no_start: Option<String>,
    /// The segments, in the order they were named; none without an own end.
    pub peers: Vec<Peer>,
}

/// A segment.
#[derive(Clone, Debug)]
pub struct Peer {
    /// Its name, as given.
    pub segment: String,
    /// What it says of itself.
    pub found: Asked<SegmentDescriptor>,
    /// What came of trying every way to it; nothing where it offers none.
    pub trials: PathProbes,
    /// How long all of it took.
    pub took: Duration,
}

const fn check(id: &'static str, about: &'static str) -> Check {
    Check { id, group: Group::Peer, about, problems: &[6] }
}

/// The catalogue.
pub const CHECKS: &[Check] = &[
    check("peer-found", "the engine that --rdma-peer names is found, and announces RDMA devices with addresses"),
    check(
        "peer-connected",
        "queue pairs from each RDMA device of this host to each of the peer's reach RTS at both ends",
    ),
    check("peer-answers", "a write of no bytes comes through on each of these ways"),
    check("peer-packets", "so does a read of several packets: every MTU on the way is large enough"),
];

/// Try the peers: the reports of the checks that are `wanted`, in the catalogue's order, and what they rest on.
pub async fn run<E: Env>(env: &E, question: &Question, wanted: &dyn Fn(&str) -> bool) -> (Vec<Report>, Facts) {
    if !CHECKS.iter().any(|check| wanted(check.id)) {
        return (Vec::new(), Facts::default());
    }
    let facts = gather(env, question).await;
    (judge(&facts, wanted), facts)
}

/// The same for what somebody has seen. Pure.
pub fn judge(facts: &Facts, wanted: &dyn Fn(&str) -> bool) -> Vec<Report> {
    let took: Duration = facts.peers.iter().map(|peer| peer.took).sum();
    reports(CHECKS, wanted, |check| (judge::judge(check.id, facts), took))
}

async fn gather<E: Env>(env: &E, question: &Question) -> Facts {
    let failed = |why: String| Facts { no_start: Some(why), peers: Vec::new() };
    let config = match &question.config {
        Ok(config) => config.clone(),
        Err(why) => return failed(why.clone()),
    };
    let engine = match TransferEngine::start(config, env.clone()).await {
        Ok(engine) => engine,
        Err(error) => return failed(chain(&error)),
    };
    let mut peers = Vec::new();
    for segment in &question.segments {
        let begun = env.now();
        let found = engine.find(segment, question.limit).await.map_err(|error| chain(&error));
        let trials = match &found {
            Ok(descriptor) if judge::offers_rdma(descriptor) => {
                engine.probe_paths(descriptor.clone(), question.limit, Arc::clone(&question.stop)).await
            }
            _ => Ok(PathProbes::default()),
        };
        let (found, trials) = match trials {
            Ok(trials) => (found, trials),
            Err(error) => (Err(chain(&error)), PathProbes::default()),
        };
        peers.push(Peer { segment: segment.clone(), found, trials, took: env.now().since(begun) });
    }
    // What is left of it in a metadata service then is replaced by whoever takes the name next.
    let _ = deadline(env, END_MAX, engine.shutdown()).await;
    Facts { no_start: None, peers }
}

#[cfg(test)]
mod tests;
