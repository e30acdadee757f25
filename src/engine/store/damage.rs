//! Damaged replicas that a client has found, by node. Several in a short time suggest that the
//! memory of the node's host is faulty.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use mcctl_base::{HostPort, Mono, ObjectKey};

/// This many damaged replicas of a node within [`WINDOW`] make its host suspect. No more are
/// withdrawn in that time, from all nodes together: a fault may be in the reader.
const SUSPECT_AFTER: usize = 10;
const WINDOW: Duration = Duration::from_secs(60);
/// Maximum number of nodes and of keys that are remembered.
const NODES_MAX: usize = 1000;
const KEYS_MAX: usize = 10_000;

/// The damaged replicas that a client and its clones have found. Each counts once, however often it
/// is read.
#[derive(Debug, Default)]
pub(crate) struct DamageLog {
    state: Mutex<DamageState>,
}

#[derive(Debug, Default)]
struct DamageState {
    nodes: BTreeMap<String, NodeRecord>,
    /// Hashes of the node, key and checksum of each damaged replica.
    replicas: HashSet<u64>,
    /// When replicas were withdrawn, oldest first.
    withdrawn: VecDeque<Mono>,
}

#[derive(Debug, Default)]
struct NodeRecord {
    total: u64,
    /// When the last ones were found, oldest first.
    last: VecDeque<Mono>,
}

/// What is new about a damaged replica.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DamageReport {
    /// Whether it was not reported before.
    pub is_new: bool,
    /// The host that has become suspect.
    pub suspect: Option<String>,
}

/// The damaged replicas of one node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeDamage {
    /// Transfer engine endpoint of the node.
    pub node: String,
    /// Number of damaged replicas found.
    pub mismatches: u64,
    /// Whether ten were found within the last minute.
    pub is_suspect: bool,
}

impl DamageLog {
    /// Counts a damaged replica of `key` on `node`, found at `now`. `checksum` is the object's.
    pub(crate) fn add(&self, now: Mono, node: &str, key: &ObjectKey, checksum: Option<u64>) -> DamageReport {
        let mut state = self.state();
        if state.replicas.len() >= KEYS_MAX {
            state.replicas.clear();
        }
        let is_known = !state.replicas.insert(replica_hash(node, key, checksum));
        if is_known || state.nodes.len() >= NODES_MAX && !state.nodes.contains_key(node) {
            return DamageReport { is_new: !is_known, suspect: None };
        }
        let record = state.nodes.entry(node.to_owned()).or_default();
        let was_suspect = record.is_suspect(now);
        record.total += 1;
        record.last.push_back(now);
        record.last.drain(..record.last.len().saturating_sub(SUSPECT_AFTER));
        let suspect = (!was_suspect && record.is_suspect(now)).then(|| host_of(node));
        DamageReport { is_new: true, suspect }
    }

    /// Whether this replica was found damaged before.
    pub(crate) fn is_known(&self, node: &str, key: &ObjectKey, checksum: Option<u64>) -> bool {
        self.state().replicas.contains(&replica_hash(node, key, checksum))
    }

    /// Whether a replica may be withdrawn at `now`. Counts it, if so.
    pub(crate) fn may_withdraw(&self, now: Mono) -> bool {
        let withdrawn = &mut self.state().withdrawn;
        while withdrawn.front().is_some_and(|first| now.since(*first) >= WINDOW) {
            withdrawn.pop_front();
        }
        let has_room = withdrawn.len() < SUSPECT_AFTER;
        if has_room {
            withdrawn.push_back(now);
        }
        has_room
    }

    /// Returns the nodes with damaged replicas, as of `now`.
    pub(crate) fn nodes(&self, now: Mono) -> Vec<NodeDamage> {
        let node = |(node, record): (&String, &NodeRecord)| NodeDamage {
            node: node.clone(),
            mismatches: record.total,
            is_suspect: record.is_suspect(now),
        };
        self.state().nodes.iter().map(node).collect()
    }

    fn state(&self) -> MutexGuard<'_, DamageState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl NodeRecord {
    fn is_suspect(&self, now: Mono) -> bool {
        self.last.len() >= SUSPECT_AFTER && self.last.iter().all(|found| now.since(*found) < WINDOW)
    }
}

fn replica_hash(node: &str, key: &ObjectKey, checksum: Option<u64>) -> u64 {
    let mut hasher = DefaultHasher::new();
    (node, key.as_bytes(), checksum).hash(&mut hasher);
    hasher.finish()
}

/// Returns the host in a node's endpoint.
pub(crate) fn host_of(node: &str) -> String {
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
    fn a_replica_is_reported_once_and_ten_per_minute_make_a_host_suspect() {
        let found = DamageLog::default();
        let add = |seconds, number| found.add(at(seconds), "10.0.0.1:7000", &key(number), Some(number));
        for number in 0..9 {
            assert_eq!(add(number, number), DamageReport { is_new: true, suspect: None });
        }
        for _ in 0..20 {
            assert_eq!(add(9, 0), DamageReport { is_new: false, suspect: None });
        }
        let is_known = |number, checksum| found.is_known("10.0.0.1:7000", &key(number), Some(checksum));
        assert!(is_known(0, 0) && !is_known(0, 99) && !is_known(9, 9));
        assert!(found.add(at(9), "10.0.0.1:7000", &key(0), Some(99)).is_new, "the key was written again");
        assert_eq!(found.nodes(at(9))[0].mismatches, 10);
        assert!(found.nodes(at(9))[0].is_suspect && !found.nodes(at(61))[0].is_suspect);
        let suspects = (20..40).filter_map(|number| add(62, number).suspect);
        assert_eq!(suspects.collect::<Vec<_>>(), ["10.0.0.1"]);
        let node = NodeDamage { node: "10.0.0.1:7000".to_owned(), mismatches: 30, is_suspect: true };
        assert_eq!(found.nodes(at(62)), [node]);
    }

    #[test]
    fn ten_replicas_are_withdrawn_per_minute() {
        let found = DamageLog::default();
        let withdrawn = |seconds, tries: u64| (0..tries).filter(|_| found.may_withdraw(at(seconds))).count();
        assert_eq!([withdrawn(0, 15), withdrawn(59, 5), withdrawn(60, 5)], [10, 0, 5]);
    }
}
