//! What a node's client counts of its own use: bytes and latencies of its transfers, and its calls to the master.
//!
//! Families, labels and buckets are those of the client of 0.3.13 (`fixtures/http/client-metrics-families.txt`): latencies in
//! microseconds, and no family before its first use. One difference: the `_sum` and `_count` of the transfer histograms carry the
//! same labels as their buckets, which upstream leaves out.

use std::collections::BTreeMap;
use std::fmt::{self, Write};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::engine::transfer::OpKind;
use crate::engine::wire::Method;

/// The counts of one client. Shared by everything that uses the client.
#[derive(Debug)]
pub struct ClientMetrics {
    /// Labels of every sample, without braces.
    labels: String,
    counts: Mutex<Counts>,
}

#[derive(Debug, Default)]
struct Counts {
    read_bytes: u64,
    write_bytes: u64,
    /// By the family's name without `mooncake_transfer_` and `_latency`.
    transfers: BTreeMap<&'static str, Latencies>,
    calls: BTreeMap<&'static str, Latencies>,
    reads: BTreeMap<&'static str, Operation>,
    writes: BTreeMap<&'static str, Operation>,
}

/// Uses of one function of the client.
#[derive(Debug, Default)]
struct Operation {
    bytes: u64,
    latencies: Latencies,
}

impl ClientMetrics {
    /// None so far. `cluster` names the cluster in a label, as `MC_STORE_CLUSTER_ID` does upstream.
    pub fn new(cluster: Option<&str>) -> ClientMetrics {
        let mut labels = "client_mode=\"real\"".to_owned();
        if let Some(cluster) = cluster.filter(|cluster| !cluster.is_empty()) {
            let escaped = cluster.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
            let _ = write!(labels, ",cluster_id=\"{escaped}\"");
        }
        ClientMetrics { labels, counts: Mutex::default() }
    }

    /// A call to the master ended.
    pub fn call(&self, method: Method, took: Duration) {
        self.counts().calls.entry(method.name()).or_default().record(took);
    }

    /// The bytes of `objects` objects were moved.
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

    /// A function of the client was used: `get_buffer`, `put`.
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

    fn counts(&self) -> MutexGuard<'_, Counts> {
        // Each record is complete in itself, so a panic elsewhere leaves nothing half changed.
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The Prometheus text.
    pub fn exposition(&self) -> String {
        let counts = self.counts();
        let mut out = Text { out: String::with_capacity(16 << 10), labels: &self.labels };
        for (name, help, bytes) in [
            ("mooncake_transfer_read_bytes", "Bytes that this client read", counts.read_bytes),
            ("mooncake_transfer_write_bytes", "Bytes that this client wrote", counts.write_bytes),
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
            out.head(name, "Calls of this client to the master", "counter");
            counts.calls.iter().for_each(|(method, l)| out.sample(name, &label("rpc_name", method), l.count()));
            let name = "mooncake_client_rpc_latency";
            out.head(name, "Latency of those calls, microseconds", "histogram");
            counts.calls.iter().for_each(|(method, l)| out.histogram(name, &label("rpc_name", method), l));
        }
        out.operations("read", &counts.reads);
        out.operations("write", &counts.writes);
        out.out
    }

    /// The summary for people, `uptime` after the client's start.
    pub fn summary(&self, uptime: Duration) -> String {
        let counts = self.counts();
        let rate = |bytes: u64| {
            let seconds = uptime.as_secs_f64();
            Size(if seconds > 0.0 { bytes as f64 / seconds } else { 0.0 }).per_second()
        };
        let mut out = String::from("Client Metrics Summary\n=== Transfer Metrics Summary ===\n");
        let _ = writeln!(out, "Total Read: {}\nTotal Write: {}", Bytes(counts.read_bytes), Bytes(counts.write_bytes));
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
            for (name, Operation { bytes, latencies }) in operations {
                let _ = writeln!(
                    out,
                    "{name}: count={}, bytes={}, {}",
                    latencies.count(),
                    Bytes(*bytes),
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

/// The transfer histograms in upstream's order.
const TRANSFERS: [(&str, &str); 4] = [
    ("batch_put", "Transfer time of puts of several objects, microseconds"),
    ("batch_get", "Transfer time of gets of several objects, microseconds"),
    ("get", "Transfer time of gets of one object, microseconds"),
    ("put", "Transfer time of puts of one object, microseconds"),
];

/// This client has no disk tier; scrapers of the summary find its section all the same.
const NO_SSD: &str = "\
=== SSD Metrics Summary ===\nSSD Read: 0 B, ops=0\nSSD Write: 0 B, ops=0\nSSD Total: 0 B, ops=0\n\n\
=== SSD Latency Summary (microseconds) ===\nRead: No data\nWrite: No data\nTotal: No data\n";

/// Upper bounds of the latency buckets, microseconds; the last bucket has none.
const BOUNDS_US: [u64; 27] = [
    50, 75, 125, 150, 200, 250, 300, 400, 500, 750, 1000, 1500, 2000, 3000, 5000, 7000, 15_000, 20_000, 50_000,
    100_000, 200_000, 500_000, 1_000_000, 2_000_000, 5_000_000, 10_000_000, 20_000_000,
];

/// A histogram of latencies.
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

    /// The buckets of the 95th percentile and of the largest value.
    fn range(&self) -> String {
        let count = self.count();
        let wanted = count - count / 20;
        let mut below = 0;
        let p95 = self.buckets.iter().position(|n| {
            below += n;
            below >= wanted
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

/// The exposition as it grows.
struct Text<'a> {
    out: String,
    labels: &'a str,
}

impl Text<'_> {
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

    fn operations(&mut self, kind: &str, operations: &BTreeMap<&'static str, Operation>) {
        if operations.is_empty() {
            return;
        }
        let name = format!("mooncake_transfer_{kind}_operation_count");
        self.head(&name, &format!("Uses of each {kind} function"), "counter");
        operations.iter().for_each(|(op, o)| self.sample(&name, &label("op_name", op), o.latencies.count()));
        let name = format!("mooncake_transfer_{kind}_operation_bytes");
        self.head(&name, &format!("Bytes of each {kind} function"), "counter");
        operations.iter().for_each(|(op, o)| self.sample(&name, &label("op_name", op), o.bytes));
        let name = format!("mooncake_transfer_{kind}_operation_latency");
        self.head(&name, &format!("Latency of each {kind} function, microseconds"), "histogram");
        operations.iter().for_each(|(op, o)| self.histogram(&name, &label("op_name", op), &o.latencies));
    }
}

/// A whole number of bytes as the summary shows it: `5 B`, `1.50 KB`.
struct Bytes(u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 < 1024 { write!(f, "{} B", self.0) } else { Size(self.0 as f64).fmt(f) }
    }
}

/// A number of bytes with two decimals, 1024-based.
struct Size(f64);

impl Size {
    fn per_second(&self) -> String {
        format!("{self}/s")
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (mut value, mut unit) = (self.0, "B");
        for larger in ["KB", "MB", "GB", "TB"] {
            if value < 1024.0 {
                break;
            }
            (value, unit) = (value / 1024.0, larger);
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
    fn several_objects_at_once_are_a_batch() {
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
