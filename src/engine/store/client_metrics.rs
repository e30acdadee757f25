//! Metrics of a node's client: the bytes and latencies of its transfers, and its calls to the
//! master.
//!
//! Families, labels and buckets match the 0.3.13 client
//! (`fixtures/http/client-metrics-families.txt`). Latencies are in microseconds, and a family
//! appears when it is first used. There is one difference: in the transfer histograms, `_sum` and
//! `_count` have the same labels as the buckets. Upstream omits these labels.

use std::collections::BTreeMap;
use std::fmt::{self, Write};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::StoreError;
use crate::checksum_metrics::ChecksumMetrics;
use crate::peer_metrics::{EndedTransfer, PeerMetrics};
use mcctl_transfer::OpKind;
use mcctl_wire::Method;

/// Metrics of one client, shared by all of its users.
#[derive(Debug)]
pub struct ClientMetrics {
    /// Labels for every sample, without braces.
    labels: String,
    counts: Mutex<ClientCounts>,
}

#[derive(Debug, Default)]
struct ClientCounts {
    read_bytes: u64,
    write_bytes: u64,
    /// Latencies by family name, without `mooncake_transfer_` and `_latency`.
    transfers: BTreeMap<&'static str, Latencies>,
    calls: BTreeMap<&'static str, Latencies>,
    reads: BTreeMap<&'static str, OperationCounts>,
    writes: BTreeMap<&'static str, OperationCounts>,
    peers: PeerMetrics,
    checksums: ChecksumMetrics,
}

/// Calls of a single client function.
#[derive(Debug, Default)]
struct OperationCounts {
    bytes: u64,
    latencies: Latencies,
}

impl ClientMetrics {
    /// Creates metrics without samples. `cluster` becomes a label, as `MC_STORE_CLUSTER_ID` does
    /// upstream.
    pub fn new(cluster: Option<&str>) -> ClientMetrics {
        let mut labels = "client_mode=\"real\"".to_owned();
        if let Some(cluster) = cluster.filter(|cluster| !cluster.is_empty()) {
            let escaped = cluster.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
            let _ = write!(labels, ",cluster_id=\"{escaped}\"");
        }
        ClientMetrics { labels, counts: Mutex::default() }
    }

    /// Counts a completed call to the master.
    pub fn call(&self, method: Method, took: Duration) {
        self.counts().calls.entry(method.name()).or_default().record(took);
    }

    /// Counts a completed transfer of `objects` objects.
    pub fn transfer(&self, kind: OpKind, objects: usize, bytes: u64, took: Duration) {
        let mut counts = self.counts();
        let name = match (kind, objects > 1) {
            (OpKind::Read, false) => "get",
            (OpKind::Read, true) => "batch_get",
            (OpKind::Write, false) => "put",
            (OpKind::Write, true) => "batch_put",
        };
        match kind {
            OpKind::Read => counts.read_bytes += bytes,
            OpKind::Write => counts.write_bytes += bytes,
        }
        counts.transfers.entry(name).or_default().record(took);
    }

    /// Counts a call to a client function such as `get_buffer` or `put`.
    pub fn operation(&self, kind: OpKind, name: &'static str, bytes: u64, took: Duration) {
        let mut counts = self.counts();
        let operations = match kind {
            OpKind::Read => &mut counts.reads,
            OpKind::Write => &mut counts.writes,
        };
        let operation = operations.entry(name).or_default();
        operation.bytes += bytes;
        operation.latencies.record(took);
    }

    /// Counts the results of a batch of reads.
    pub(crate) fn object_reads<T>(&self, results: &[Result<T, StoreError>]) {
        self.counts().peers.reads(results);
    }

    /// Counts a transfer to or from a peer.
    pub(crate) fn peer_transfer(&self, ended: &EndedTransfer<'_>) {
        self.counts().peers.transfer(ended);
    }

    /// Changes the counts of checksums.
    pub(crate) fn checksums(&self, change: impl FnOnce(&mut ChecksumMetrics)) {
        change(&mut self.counts().checksums);
    }

    fn counts(&self) -> MutexGuard<'_, ClientCounts> {
        // Each update is complete in itself, so a panic elsewhere cannot leave partial changes.
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Renders the metrics in the Prometheus text format.
    pub fn exposition(&self) -> String {
        let counts = self.counts();
        let mut out = LabelledExposition { out: String::with_capacity(16 << 10), labels: &self.labels };
        for (name, help, bytes) in [
            ("mooncake_transfer_read_bytes", "Bytes read by this client", counts.read_bytes),
            ("mooncake_transfer_write_bytes", "Bytes written by this client", counts.write_bytes),
        ] {
            if bytes > 0 {
                out.head(name, help, "counter");
                out.sample(name, "", bytes);
            }
        }
        for (name, help) in TRANSFERS {
            if let Some(latencies) = counts.transfers.get(name) {
                let family = format!("mooncake_transfer_{name}_latency");
                out.head(&family, help, "histogram");
                out.histogram(&family, "", latencies);
            }
        }
        if !counts.calls.is_empty() {
            let name = "mooncake_client_rpc_count";
            out.head(name, "Calls from this client to the master", "counter");
            counts.calls.iter().for_each(|(method, l)| out.sample(name, &label("rpc_name", method), l.count()));
            let name = "mooncake_client_rpc_latency";
            out.head(name, "Latency of calls from this client to the master, in microseconds", "histogram");
            counts.calls.iter().for_each(|(method, l)| out.histogram(name, &label("rpc_name", method), l));
        }
        out.operations("read", &counts.reads);
        out.operations("write", &counts.writes);
        counts.peers.append(&mut out.out, &self.labels);
        counts.checksums.append(&mut out.out, &self.labels);
        out.out
    }

    /// Renders the human-readable summary for a client with this uptime.
    pub fn summary(&self, uptime: Duration) -> String {
        let counts = self.counts();
        let rate = |bytes: u64| {
            let seconds = uptime.as_secs_f64();
            ScaledBytes(if seconds > 0.0 { bytes as f64 / seconds } else { 0.0 }).per_second()
        };
        let mut out = String::from("Client Metrics Summary\n=== Transfer Metrics Summary ===\n");
        let _ = writeln!(
            out,
            "Total Read: {}\nTotal Write: {}",
            ByteCount(counts.read_bytes),
            ByteCount(counts.write_bytes)
        );
        let _ = writeln!(
            out,
            "Average Read Throughput: {}\nAverage Write Throughput: {}\n",
            rate(counts.read_bytes),
            rate(counts.write_bytes)
        );
        out.push_str("=== Latency Summary (microseconds) ===\n");
        for (title, name) in [("Get", "get"), ("Put", "put"), ("Batch Get", "batch_get"), ("Batch Put", "batch_put")] {
            match counts.transfers.get(name) {
                Some(latencies) => _ = writeln!(out, "{title}: {}", latencies.short()),
                None => _ = writeln!(out, "{title}: No data"),
            }
        }
        out.push_str("\n=== RPC Metrics Summary ===\n");
        counts.calls.iter().for_each(|(method, l)| _ = writeln!(out, "{method}: {}", l.short()));
        out.push_str("\n=== Interface Operation Metrics Summary ===\n");
        for (title, operations) in [("Read", &counts.reads), ("Write", &counts.writes)] {
            let _ = writeln!(out, "{title} Interfaces:");
            for (name, OperationCounts { bytes, latencies }) in operations {
                let _ = writeln!(
                    out,
                    "{name}: count={}, bytes={}, {}",
                    latencies.count(),
                    ByteCount(*bytes),
                    latencies.range()
                );
            }
            out.push_str(match (operations.is_empty(), title) {
                (true, _) => "No data\n",
                (false, "Read") => "\n",
                (false, _) => "",
            });
        }
        out.push_str(NO_SSD);
        out
    }
}

/// The transfer histograms, in upstream's order.
const TRANSFERS: [(&str, &str); 4] = [
    ("batch_put", "Transfer time for multi-object puts, in microseconds"),
    ("batch_get", "Transfer time for multi-object gets, in microseconds"),
    ("get", "Transfer time for single-object gets, in microseconds"),
    ("put", "Transfer time for single-object puts, in microseconds"),
];

/// Parsers of the summary require this section, even though this client has no SSD tier.
const NO_SSD: &str = "\
=== SSD Metrics Summary ===\nSSD Read: 0 B, ops=0\nSSD Write: 0 B, ops=0\nSSD Total: 0 B, ops=0\n\n\
=== SSD Latency Summary (microseconds) ===\nRead: No data\nWrite: No data\nTotal: No data\n";

/// Upper bounds of the latency buckets, in microseconds. The last bucket is unbounded.
const BOUNDS_US: [u64; 27] = [
    50, 75, 125, 150, 200, 250, 300, 400, 500, 750, 1000, 1500, 2000, 3000, 5000, 7000, 15_000, 20_000, 50_000,
    100_000, 200_000, 500_000, 1_000_000, 2_000_000, 5_000_000, 10_000_000, 20_000_000,
];

#[derive(Clone, Debug, Default)]
struct Latencies {
    buckets: [u64; BOUNDS_US.len() + 1],
    sum_us: u64,
}

impl Latencies {
    fn record(&mut self, took: Duration) {
        let us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        let bucket = BOUNDS_US.iter().position(|bound| us <= *bound).unwrap_or(BOUNDS_US.len());
        self.buckets[bucket] += 1;
        self.sum_us = self.sum_us.saturating_add(us);
    }

    fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    fn short(&self) -> String {
        format!("count={}, {}", self.count(), self.range())
    }

    /// Returns the bounds of the buckets that contain the 95th percentile and the maximum.
    fn range(&self) -> String {
        let count = self.count();
        let rank = count - count / 20;
        let mut below = 0;
        let p95 = self.buckets.iter().position(|n| {
            below += n;
            below >= rank
        });
        let max = self.buckets.iter().rposition(|n| *n > 0);
        let bound = |bucket: Option<usize>| match BOUNDS_US.get(bucket.unwrap_or(0)) {
            Some(bound) => format!("<{bound}μs"),
            None => format!(">{}μs", BOUNDS_US[BOUNDS_US.len() - 1]),
        };
        format!("p95{}, max{}", bound(p95), bound(max))
    }
}

fn label(name: &str, value: &str) -> String {
    format!(",{name}=\"{value}\"")
}

/// Builds the Prometheus text.
struct LabelledExposition<'a> {
    out: String,
    labels: &'a str,
}

impl LabelledExposition<'_> {
    fn head(&mut self, name: &str, help: &str, kind: &str) {
        let _ = writeln!(self.out, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    fn sample(&mut self, name: &str, more: &str, value: u64) {
        let _ = writeln!(self.out, "{name}{{{}{more}}} {value}", self.labels);
    }

    fn histogram(&mut self, name: &str, more: &str, latencies: &Latencies) {
        let labels = self.labels;
        let mut below = 0;
        for (bound, count) in BOUNDS_US.iter().zip(&latencies.buckets) {
            below += count;
            let _ = writeln!(self.out, "{name}_bucket{{{labels}{more},le=\"{bound}.000000\"}} {below}");
        }
        let count = latencies.count();
        let _ = writeln!(self.out, "{name}_bucket{{{labels}{more},le=\"+Inf\"}} {count}");
        let _ = writeln!(self.out, "{name}_sum{{{labels}{more}}} {}", latencies.sum_us);
        let _ = writeln!(self.out, "{name}_count{{{labels}{more}}} {count}");
    }

    fn operations(&mut self, kind: &str, operations: &BTreeMap<&'static str, OperationCounts>) {
        if operations.is_empty() {
            return;
        }
        let name = format!("mooncake_transfer_{kind}_operation_count");
        self.head(&name, &format!("Calls by {kind} function"), "counter");
        operations.iter().for_each(|(op, o)| self.sample(&name, &label("op_name", op), o.latencies.count()));
        let name = format!("mooncake_transfer_{kind}_operation_bytes");
        self.head(&name, &format!("Bytes by {kind} function"), "counter");
        operations.iter().for_each(|(op, o)| self.sample(&name, &label("op_name", op), o.bytes));
        let name = format!("mooncake_transfer_{kind}_operation_latency");
        self.head(&name, &format!("Latency by {kind} function, in microseconds"), "histogram");
        operations.iter().for_each(|(op, o)| self.histogram(&name, &label("op_name", op), &o.latencies));
    }
}

/// A byte count in the summary's format, such as `5 B` or `1.50 KB`.
struct ByteCount(u64);

impl fmt::Display for ByteCount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 < 1024 { write!(f, "{} B", self.0) } else { ScaledBytes(self.0 as f64).fmt(f) }
    }
}

/// A number of bytes with two decimals, 1024-based.
struct ScaledBytes(f64);

impl ScaledBytes {
    fn per_second(&self) -> String {
        format!("{self}/s")
    }
}

impl fmt::Display for ScaledBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut value = self.0;
        let mut unit = "B";
        for larger in ["KB", "MB", "GB", "TB"] {
            if value < 1024.0 {
                break;
            }
            value /= 1024.0;
            unit = larger;
        }
        write!(f, "{value:.2} {unit}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn us(us: u64) -> Duration {
        Duration::from_micros(us)
    }

    #[test]
    fn a_family_appears_with_its_first_use() {
        let metrics = ClientMetrics::new(None);
        assert_eq!(metrics.exposition(), "");
        metrics.transfer(OpKind::Write, 1, 5, us(43));
        metrics.call(Method::Ping, us(60));
        let text = metrics.exposition();
        for line in [
            "mooncake_transfer_write_bytes{client_mode=\"real\"} 5",
            "mooncake_transfer_put_latency_bucket{client_mode=\"real\",le=\"50.000000\"} 1",
            "mooncake_transfer_put_latency_count{client_mode=\"real\"} 1",
            "mooncake_client_rpc_count{client_mode=\"real\",rpc_name=\"Ping\"} 1",
            "mooncake_client_rpc_latency_bucket{client_mode=\"real\",rpc_name=\"Ping\",le=\"50.000000\"} 0",
            "mooncake_client_rpc_latency_bucket{client_mode=\"real\",rpc_name=\"Ping\",le=\"75.000000\"} 1",
            "mooncake_client_rpc_latency_sum{client_mode=\"real\",rpc_name=\"Ping\"} 60",
        ] {
            assert!(text.lines().any(|l| l == line), "{line}\n{text}");
        }
        assert!(!text.contains("read") && !text.contains("batch"), "{text}");
    }

    #[test]
    fn a_transfer_of_several_objects_counts_as_a_batch() {
        let metrics = ClientMetrics::new(Some("a\"b"));
        metrics.transfer(OpKind::Read, 2, 10, us(30_000_000));
        let text = metrics.exposition();
        let line =
            "mooncake_transfer_batch_get_latency_bucket{client_mode=\"real\",cluster_id=\"a\\\"b\",le=\"+Inf\"} 1";
        assert!(text.lines().any(|l| l == line), "{text}");
        assert!(metrics.summary(us(0)).contains("Batch Get: count=1, p95>20000000μs, max>20000000μs"));
    }

    #[test]
    fn the_summary_shows_the_buckets_of_p95_and_of_the_maximum() {
        let metrics = ClientMetrics::new(None);
        for _ in 0..99 {
            metrics.operation(OpKind::Read, "get_buffer", 2048, us(60));
        }
        metrics.operation(OpKind::Read, "get_buffer", 2048, us(9000));
        let summary = metrics.summary(Duration::from_secs(1));
        assert!(summary.contains("get_buffer: count=100, bytes=200.00 KB, p95<75μs, max<15000μs"), "{summary}");
        assert!(summary.contains("Write Interfaces:\nNo data\n"), "{summary}");
    }
}
