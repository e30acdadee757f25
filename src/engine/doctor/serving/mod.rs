//! Running SGLang servers: is HiCache on, is its third tier the store, is that read, and do several servers share it?
//!
//! Looking changes nothing. Only the probe, which has to be asked for, sends a prompt and empties the first server's own caches.

pub mod facts;
mod gather;
mod judge;
mod probe;

use std::time::Duration;

use crate::engine::base::HostPort;
use crate::engine::check::{Check, Group, Report};
use crate::engine::doctor::reports;
use crate::engine::env::Env;

pub use facts::Facts;

/// What is asked of servers.
#[derive(Clone, Debug)]
pub struct Question {
    /// Their URLs: `http://HOST:PORT`.
    pub urls: Vec<String>,
    /// The key that they want in `Authorization: Bearer`, if any.
    pub api_key: Option<String>,
    /// Send a prompt, empty the first server's caches, send it again: to that one, and to the others.
    pub probe: bool,
    /// The master that the servers should use, for comparison.
    pub master: Option<HostPort>,
    /// Its admin HTTP, for its counters.
    pub admin: Option<HostPort>,
    /// Longest wait for one answer; a prompt may take a minute.
    pub limit: Duration,
}

const fn check(id: &'static str, about: &'static str, problems: &'static [u8]) -> Check {
    Check { id, group: Group::Serving, about, problems }
}

/// The catalogue.
pub const CHECKS: &[Check] = &[
    check("sglang-reached", "each server answers and tells its settings", &[]),
    check("hicache-on", "the hierarchical cache is on", &[16]),
    check("l3-attached", "its third tier is the Mooncake store", &[16]),
    check("l3-master", "it uses the master that is checked here, and its segment is large enough", &[8]),
    check(
        "prefetch-policy",
        "reads from the third tier are waited for, and prompts are long enough for them",
        &[16, 17],
    ),
    check("serving-metrics", "its counters by tier can be read", &[]),
    check("l3-read", "pages are written to the third tier, and read from there", &[3, 16]),
    check("same-fingerprint", "several servers have the settings that make them share pages", &[16]),
    check("l3-probe", "a prompt comes back from the third tier (only with the flag for it)", &[16]),
];

/// Look at the servers, and judge what was seen: the reports of the checks that are `wanted`, in the catalogue's order.
pub async fn run<E: Env>(env: &E, question: &Question, wanted: &dyn Fn(&str) -> bool) -> Vec<Report> {
    if !CHECKS.iter().any(|check| wanted(check.id)) {
        return Vec::new();
    }
    let facts = gather::gather(env, question, wanted).await;
    judge(&facts, wanted)
}

/// The same for what somebody has seen. Pure.
pub fn judge(facts: &Facts, wanted: &dyn Fn(&str) -> bool) -> Vec<Report> {
    reports(CHECKS, wanted, |check| judge::judge(check.id, facts))
}
