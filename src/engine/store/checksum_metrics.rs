//! Metrics of a client's checksums. These families are mcctl's own.

use std::collections::BTreeMap;
use std::fmt::Write;

use crate::checksum::Unchecked;

/// Maximum number of peers with metrics of their own. The others are counted together.
const PEERS_MAX: usize = 1000;
/// The label of the peers beyond that number.
const OTHERS: &str = "others";

/// Counts of objects that were compared with their checksums, and of those that were not.
#[derive(Debug, Default)]
pub(crate) struct ChecksumMetrics {
    checked_reads: u64,
    unchecked_reads: BTreeMap<&'static str, u64>,
    unchecked_writes: BTreeMap<&'static str, u64>,
    /// Mismatches that a change of the object explains.
    retries: u64,
    /// Mismatches after which a second read of the same replica was right, by peer.
    rereads: BTreeMap<String, u64>,
    /// Damaged replicas, by peer.
    mismatches: BTreeMap<String, u64>,
    withdrawn: u64,
}

impl Unchecked {
    /// The value of the label `reason`.
    fn reason(self) -> &'static str {
        match self {
            Unchecked::Off => "off",
            Unchecked::NoChecksum => "no-checksum",
            Unchecked::Part => "part",
        }
    }
}

impl ChecksumMetrics {
    /// Counts the read of an object. `None`: its bytes were compared with its checksum.
    pub(crate) fn read(&mut self, unchecked: Option<Unchecked>) {
        match unchecked {
            None => self.checked_reads += 1,
            Some(reason) => *self.unchecked_reads.entry(reason.reason()).or_default() += 1,
        }
    }

    /// Counts the write of an object without a checksum.
    pub(crate) fn unchecked_write(&mut self, reason: Unchecked) {
        *self.unchecked_writes.entry(reason.reason()).or_default() += 1;
    }

    /// Counts a mismatch of an object that has changed in the meantime.
    pub(crate) fn retry(&mut self) {
        self.retries += 1;
    }

    /// Counts a mismatch after which a second read of the same replica was right.
    pub(crate) fn reread(&mut self, peer: &str) {
        count(&mut self.rereads, peer);
    }

    /// Counts a damaged replica.
    pub(crate) fn mismatch(&mut self, peer: &str) {
        count(&mut self.mismatches, peer);
    }

    /// Counts a damaged replica that was removed.
    pub(crate) fn withdrawn(&mut self) {
        self.withdrawn += 1;
    }

    /// Appends the metrics in the Prometheus text format. Every sample has `labels`. A family
    /// appears when it is first used.
    pub(crate) fn append(&self, out: &mut String, labels: &str) {
        for (name, help, value) in [
            ("mcctl_client_checked_reads_total", "Objects read and compared with their checksums", self.checked_reads),
            (
                "mcctl_client_checksum_retries_total",
                "Reads repeated because the object had been rewritten",
                self.retries,
            ),
            ("mcctl_client_replicas_withdrawn_total", "Damaged replicas removed by this client", self.withdrawn),
        ] {
            if value > 0 {
                head(out, name, help);
                let _ = writeln!(out, "{name}{{{labels}}} {value}");
            }
        }
        for (name, help, counts) in [
            (
                "mcctl_client_unchecked_reads_total",
                "Objects read without a comparison of checksums",
                &self.unchecked_reads,
            ),
            ("mcctl_client_unchecked_writes_total", "Objects written without a checksum", &self.unchecked_writes),
        ] {
            if !counts.is_empty() {
                head(out, name, help);
                counts.iter().for_each(|(reason, n)| _ = writeln!(out, "{name}{{{labels},reason=\"{reason}\"}} {n}"));
            }
        }
        for (name, help, counts) in [
            ("mcctl_client_checksum_rereads_total", "Reads whose bytes were right only the second time", &self.rereads),
            ("mcctl_client_checksum_mismatches_total", "Damaged replicas found by this client", &self.mismatches),
        ] {
            if !counts.is_empty() {
                head(out, name, help);
                for (peer, n) in counts {
                    let peer = peer.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
                    let _ = writeln!(out, "{name}{{{labels},peer=\"{peer}\"}} {n}");
                }
            }
        }
    }
}

fn count(counts: &mut BTreeMap<String, u64>, peer: &str) {
    let is_new = counts.len() >= PEERS_MAX && !counts.contains_key(peer);
    *counts.entry(if is_new { OTHERS } else { peer }.to_owned()).or_default() += 1;
}

fn head(out: &mut String, name: &str, help: &str) {
    let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} counter");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_family_appears_with_its_first_use() {
        let mut metrics = ChecksumMetrics::default();
        let mut text = String::new();
        metrics.append(&mut text, "a=\"b\"");
        assert_eq!(text, "");
        metrics.read(None);
        metrics.read(Some(Unchecked::Part));
        metrics.unchecked_write(Unchecked::Off);
        metrics.reread("n:1");
        metrics.mismatch("n\"2");
        metrics.append(&mut text, "a=\"b\"");
        for line in [
            "mcctl_client_checked_reads_total{a=\"b\"} 1",
            "mcctl_client_unchecked_reads_total{a=\"b\",reason=\"part\"} 1",
            "mcctl_client_unchecked_writes_total{a=\"b\",reason=\"off\"} 1",
            "mcctl_client_checksum_rereads_total{a=\"b\",peer=\"n:1\"} 1",
            "mcctl_client_checksum_mismatches_total{a=\"b\",peer=\"n\\\"2\"} 1",
        ] {
            assert!(text.lines().any(|l| l == line), "{line}\n{text}");
        }
        assert!(!text.contains("retries") && !text.contains("withdrawn"), "{text}");
    }

    #[test]
    fn peers_are_bounded() {
        let mut metrics = ChecksumMetrics::default();
        (0..2 * PEERS_MAX).for_each(|peer| metrics.mismatch(&peer.to_string()));
        assert_eq!((metrics.mismatches.len(), metrics.mismatches[OTHERS]), (PEERS_MAX + 1, PEERS_MAX as u64));
    }
}
