//! Damaged replicas that a client has found, by node. Several in a short time suggest that the memory of the node's host is faulty.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::engine::base::{HostPort, Mono, ObjectKey};

/// This many damaged replicas of a node within [`WINDOW`] make its host suspect. No more are withdrawn in that time, from all nodes together:
/// the fault may be in the memory of the reader.
const SUSPECT_AFTER: usize = 10;
const WINDOW: Duration = Duration::from_secs(60);
/// Maximum number of nodes and of keys that are remembered.
const NODES_MAX: usize = 1000;
const KEYS_MAX: usize = 10_000;

/// The damaged replicas that a client and its clones have found.
#[derive(Debug, Default)]
pub(in crate::engine::store) struct Corruptions {
    state: Mutex<FoundCorruptions>,
}

#[derive(Debug, Default)]
struct FoundCorruptions {
    nodes: BTreeMap<String, NodeCorruptions>,
    /// Hashes of the keys that were logged.
    keys: HashSet<u64>,
    /// When replicas were withdrawn, oldest first.
    withdrawn: VecDeque<Mono>,
}

#[derive(Debug, Default)]
struct NodeCorruptions {
    total: u64,
    /// When the last ones were found, oldest first.
    last: VecDeque<Mono>,
    is_suspect: bool,
}

/// What to do about a damaged replica.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::engine::store) struct CorruptionReport {
    /// Whether this key was not reported before.
    pub is_new: bool,
    /// The host that has become suspect by this one.
    pub suspect: Option<String>,
    /// Whether the replica may be removed.
    pub may_withdraw: bool,
}

/// The damaged replicas of one node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CorruptNode {
    /// The node's endpoint.
    pub node: String,
    /// Number of damaged replicas found.
    pub mismatches: u64,
    /// Whether ten were found within a minute.
    pub is_suspect: bool,
}

impl Corruptions {
    /// Counts a damaged replica of `key` on `node`, found at `now`.
    pub fn add(&self, now: Mono, node: &str, key: &ObjectKey) -> CorruptionReport {
        let mut hasher = DefaultHasher::new();
        (node, key.as_bytes()).hash(&mut hasher);
        let mut state = self.state();
        if state.keys.len() >= KEYS_MAX {
            state.keys.clear();
        }
        let is_new = state.keys.insert(hasher.finish());
        let may_withdraw = has_room(&mut state.withdrawn, now);
        if may_withdraw {
            state.withdrawn.push_back(now);
        }
        let mut suspect = None;
        if state.nodes.len() < NODES_MAX || state.nodes.contains_key(node) {
            let found = state.nodes.entry(node.to_owned()).or_default();
            found.total += 1;
            let is_suspect = !has_room(&mut found.last, now) || found.last.len() + 1 == SUSPECT_AFTER;
            found.last.push_back(now);
            if is_suspect && !found.is_suspect {
                suspect = Some(host_of(node));
            }
            found.is_suspect |= is_suspect;
        }
        CorruptionReport { is_new, suspect, may_withdraw }
    }

    /// Returns the nodes with damaged replicas.
    pub fn nodes(&self) -> Vec<CorruptNode> {
        let node = |(node, found): (&String, &NodeCorruptions)| CorruptNode {
            node: node.clone(),
            mismatches: found.total,
            is_suspect: found.is_suspect,
        };
        self.state().nodes.iter().map(node).collect()
    }

    fn state(&self) -> MutexGuard<'_, FoundCorruptions> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Forgets what is older than the window. Returns whether fewer than [`SUSPECT_AFTER`] times are left.
fn has_room(times: &mut VecDeque<Mono>, now: Mono) -> bool {
    while times.front().is_some_and(|first| now.since(*first) >= WINDOW) || times.len() > SUSPECT_AFTER {
        times.pop_front();
    }
    times.len() < SUSPECT_AFTER
}

/// Returns the host in a node's endpoint.
pub(in crate::engine::store) fn host_of(node: &str) -> String {
    HostPort::split(node).map_or_else(|_| node.to_owned(), |(host, _)| host.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Mono {
        Mono::from_ms(1000 * seconds)
    }

    fn key(number: u64) -> ObjectKey {
        ObjectKey::from(format!("key{number}").as_str())
    }

    #[test]
    fn a_key_is_reported_once_and_a_host_becomes_suspect_at_ten_within_a_minute() {
        let found = Corruptions::default();
        for number in 0..9 {
            let report = found.add(at(number), "10.0.0.1:7000", &key(number));
            assert_eq!(report, CorruptionReport { is_new: true, suspect: None, may_withdraw: true });
        }
        assert!(!found.add(at(61), "10.0.0.1:7000", &key(0)).is_new);
        assert!(!found.nodes()[0].is_suspect, "the first two are older than a minute");
        let suspect = (9..12).filter_map(|number| found.add(at(62), "10.0.0.1:7000", &key(number)).suspect);
        assert_eq!(suspect.collect::<Vec<_>>(), ["10.0.0.1"]);
        assert_eq!(found.add(at(62), "10.0.0.1:7000", &key(99)).suspect, None, "it is reported once");
        let node = CorruptNode { node: "10.0.0.1:7000".to_owned(), mismatches: 14, is_suspect: true };
        assert_eq!(found.nodes(), [node]);
    }

    #[test]
    fn ten_replicas_are_withdrawn_per_minute_from_all_nodes_together() {
        let found = Corruptions::default();
        let withdrawn = |seconds, numbers: std::ops::Range<u64>| {
            let may = |number: &u64| found.add(at(seconds), &format!("node{number}:1"), &key(*number)).may_withdraw;
            numbers.filter(may).count()
        };
        assert_eq!(withdrawn(0, 0..15), 10);
        assert_eq!(withdrawn(59, 15..20), 0);
        assert_eq!(withdrawn(60, 20..25), 5);
    }
}
