//! Checks of running SGLang servers: whether HiCache is enabled, uses the store as L3, reads pages
//! from it, and shares them between servers.
//!
//! The checks only read. The exception is the probe, which must be requested: it sends a prompt and
//! empties the first server's caches.

pub mod facts;
mod gather;
mod judge;
mod metrics;
mod probe;

use std::time::Duration;

use crate::reports;
use mcctl_base::HostPort;
use mcctl_base::check::{Check, CheckGroup, CheckReport};
use mcctl_net::http::HttpCredentials;
use mcctl_sys::env::Env;

pub use facts::ServingFacts;

/// What to check, and how.
#[derive(Clone, Debug)]
pub struct ServingQuery {
    /// The servers' URLs: `http://HOST:PORT`.
    pub urls: Vec<String>,
    /// The API key for `Authorization: Bearer`, if any.
    pub api_key: Option<String>,
    /// Whether to send a prompt, empty the first server's caches, and send it again to that server
    /// and to the others.
    pub probe: bool,
    /// The master that the servers should use, for comparison.
    pub master: Option<HostPort>,
    /// The master's admin HTTP address, for its counters.
    pub admin: Option<HostPort>,
    /// What is shown to the admin port.
    pub credentials: HttpCredentials,
    /// Maximum wait for a response; a prompt may take longer.
    pub limit: Duration,
}

const fn check(id: &'static str, about: &'static str, problems: &'static [u8]) -> Check {
    Check { id, group: CheckGroup::Serving, about, problems }
}

/// The checks of this group.
pub const CHECKS: &[Check] = &[
    check("sglang-reached", "each server responds and reports its settings", &[]),
    check("hicache-on", "the hierarchical cache is enabled", &[16]),
    check("l3-attached", "the L3 tier is the Mooncake store", &[16]),
    check("l3-master", "the server uses the checked master, and its segment is large enough", &[8]),
    check("prefetch-policy", "the policy waits for L3 reads, and prompts exceed the threshold", &[16, 17]),
    check("serving-metrics", "per-tier counters are exported", &[]),
    check("l3-read", "pages are written to L3 and read from it", &[3, 16]),
    check("same-fingerprint", "all servers have the settings that are required to share pages", &[16]),
    check("l3-probe", "a prompt is loaded from L3 (only with --probe-serving)", &[16]),
];

/// Runs the `wanted` checks in the order of [`CHECKS`].
pub async fn run<E: Env>(env: &E, query: &ServingQuery, wanted: &dyn Fn(&str) -> bool) -> Vec<CheckReport> {
    if !CHECKS.iter().any(|check| wanted(check.id)) {
        return Vec::new();
    }
    let facts = gather::gather(env, query, wanted).await;
    judge(&facts, wanted)
}

/// Judges facts that were already gathered. Pure.
pub fn judge(facts: &ServingFacts, wanted: &dyn Fn(&str) -> bool) -> Vec<CheckReport> {
    reports(CHECKS, wanted, |check| judge::judge(check.id, facts))
}
