//! Metrics of a client's reads by result, and of its transfers by peer and transport. These
//! families are mcctl's own.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

use crate::StoreError;
use mcctl_base::ErrorCode;
use mcctl_transfer::OpKind;

/// Maximum number of peers with metrics of their own. The others are counted together.
const PEERS_MAX: usize = 1000;
/// The label of the peers beyond that number.
const OTHERS: &str = "others";

/// Counts of reads and transfers.
#[derive(Debug, Default)]
pub(crate) struct PeerMetrics {
    hits: u64,
    misses: u64,
    failures: u64,
    /// By peer, transport and direction.
    transfers: BTreeMap<(String, &'static str, &'static str), TransferCounts>,
}

/// Transfers to or from one peer.
#[derive(Debug, Default)]
struct TransferCounts {
    transfers: u64,
    bytes: u64,
    failures: u64,
    took: Duration,
}

/// A transfer that has ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EndedTransfer<'a> {
    pub peer: &'a str,
    pub transport: &'static str,
    pub kind: OpKind,
    /// Number of bytes that were transferred.
    pub bytes: u64,
    /// Number of operations that failed.
    pub failures: u64,
    pub took: Duration,
}

impl PeerMetrics {
    /// Counts the results of a batch of reads.
    pub(crate) fn reads<'a, T: 'a>(&mut self, results: impl IntoIterator<Item = &'a Result<T, StoreError>>) {
        for result in results {
            match result {
                Ok(_) => self.hits += 1,
                // The caller reads the object again.
                Err(StoreError::LookupLost { .. }) => {}
                Err(error) if error.code() == ErrorCode::OBJECT_NOT_FOUND => self.misses += 1,
                Err(_) => self.failures += 1,
            }
        }
    }

    /// Counts one batch of transfers to or from a peer.
    pub(crate) fn transfer(&mut self, ended: &EndedTransfer<'_>) {
        let direction = match ended.kind {
            OpKind::Read => "read",
            OpKind::Write => "write",
        };
        let mut key = (ended.peer.to_owned(), ended.transport, direction);
        if self.transfers.len() >= PEERS_MAX && !self.transfers.contains_key(&key) {
            key.0 = OTHERS.to_owned();
        }
        let counts = self.transfers.entry(key).or_default();
        counts.transfers += 1;
        counts.bytes += ended.bytes;
        counts.failures += ended.failures;
        counts.took += ended.took;
    }

    /// Appends the metrics in the Prometheus text format. Every sample has `labels`.
    pub(crate) fn append(&self, out: &mut String, labels: &str) {
        if self.hits + self.misses + self.failures > 0 {
            let name = "mcctl_client_object_reads_total";
            head(out, name, "Objects requested from this client, by result");
            for (result, count) in [("hit", self.hits), ("miss", self.misses), ("failure", self.failures)] {
                let _ = writeln!(out, "{name}{{{labels},result=\"{result}\"}} {count}");
            }
        }
        if self.transfers.is_empty() {
            return;
        }
        for (name, help, value) in FAMILIES {
            head(out, name, help);
            for ((peer, transport, direction), counts) in &self.transfers {
                let peer = peer.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
                let more = format!("peer=\"{peer}\",transport=\"{transport}\",direction=\"{direction}\"");
                let _ = writeln!(out, "{name}{{{labels},{more}}} {}", value(counts));
            }
        }
    }
}

fn head(out: &mut String, name: &str, help: &str) {
    let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} counter");
}

/// A metric's name, help text and value.
type TransferFamily = (&'static str, &'static str, fn(&TransferCounts) -> String);

const FAMILIES: [TransferFamily; 4] = [
    ("mcctl_client_peer_transfers_total", "Batches transferred, by peer", |counts| counts.transfers.to_string()),
    ("mcctl_client_peer_bytes_total", "Bytes transferred, by peer", |counts| counts.bytes.to_string()),
    ("mcctl_client_peer_failures_total", "Operations that failed, by peer", |counts| counts.failures.to_string()),
    ("mcctl_client_peer_seconds_total", "Time of the transfers, by peer", |counts| {
        format!("{:.6}", counts.took.as_secs_f64())
    }),
];

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(peer: &str, kind: OpKind) -> EndedTransfer<'_> {
        let took = Duration::from_micros(1500);
        EndedTransfer { peer, transport: "tcp", kind, bytes: 10, failures: 1, took }
    }

    #[test]
    fn reads_are_counted_by_result() {
        let mut metrics = PeerMetrics::default();
        let refused = |code| Err(StoreError::Refused { what: "GetReplicaList", code });
        metrics.reads(&[Ok(1), Ok(2), refused(ErrorCode::OBJECT_NOT_FOUND), refused(ErrorCode::RPC_FAIL)]);
        let mut text = String::new();
        metrics.append(&mut text, "a=\"b\"");
        for line in ["{a=\"b\",result=\"hit\"} 2", "{a=\"b\",result=\"miss\"} 1", "{a=\"b\",result=\"failure\"} 1"] {
            assert!(text.contains(line), "{text}");
        }
        assert!(!text.contains("peer"), "{text}");
    }

    #[test]
    fn transfers_are_counted_by_peer_and_direction_and_peers_are_bounded() {
        let mut metrics = PeerMetrics::default();
        metrics.transfer(&ended("n\"1", OpKind::Read));
        metrics.transfer(&ended("n\"1", OpKind::Read));
        metrics.transfer(&ended("n\"1", OpKind::Write));
        let mut text = String::new();
        metrics.append(&mut text, "a=\"b\"");
        for line in [
            "mcctl_client_peer_bytes_total{a=\"b\",peer=\"n\\\"1\",transport=\"tcp\",direction=\"read\"} 20",
            "mcctl_client_peer_seconds_total{a=\"b\",peer=\"n\\\"1\",transport=\"tcp\",direction=\"write\"} 0.001500",
        ] {
            assert!(text.lines().any(|l| l == line), "{text}");
        }
        for peer in 0..2 * PEERS_MAX {
            metrics.transfer(&ended(&peer.to_string(), OpKind::Read));
        }
        assert!(metrics.transfers.len() <= PEERS_MAX + 1);
        let others = (OTHERS.to_owned(), "tcp", "read");
        assert!(metrics.transfers.contains_key(&others));
    }
}
