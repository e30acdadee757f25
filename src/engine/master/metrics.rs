//! The master's metrics: plain numbers that the state increments, and their exposition in the
//! Prometheus text format.
//!
//! Names and types match upstream 0.3.13 (captured from a real master;
//! `fixtures/http/master-metrics-families.txt`), so that upstream's dashboard can be used. Families
//! for features that are not implemented (disk, promotion, oplog) have the value 0, as on a master
//! that does not use these features. Additional families start with `mcctl_`. One value differs
//! intentionally: the real master's histogram of value sizes contains a value of 0 that belongs to
//! no object.
//!
//! To add a counter, add a field to [`MasterCounters`] (and to its `Default`) and a line to
//! [`exposition`]. For a gauge, add the field to [`MasterGauges`] instead.

use std::fmt::{self, Write};
use std::time::Duration;

use crate::tenant::TenantUsage;
use mcctl_base::LatencySnapshot;
use mcctl_wire::Method;

/// Call counts for one method.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CallCount {
    pub requests: u64,
    /// Calls that returned an error.
    pub failures: u64,
}

impl CallCount {
    /// Counts one call and its result.
    pub fn add(&mut self, succeeded: bool) {
        self.requests += 1;
        self.failures += u64::from(!succeeded);
    }
}

/// Call counts for one batch method.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BatchCount {
    pub requests: u64,
    /// Calls in which all items failed.
    pub failures: u64,
    /// Calls in which some items failed and some succeeded.
    pub partial_successes: u64,
    pub items: u64,
    pub failed_items: u64,
}

impl BatchCount {
    /// Counts one call with `items` items, `failed` of which failed. A call without items is a
    /// success.
    pub fn add(&mut self, items: usize, failed: usize) {
        self.requests += 1;
        self.items += items as u64;
        self.failed_items += failed as u64;
        if failed > 0 {
            let all = failed >= items;
            self.failures += u64::from(all);
            self.partial_successes += u64::from(!all);
        }
    }
}

/// A histogram with fixed upper bounds. The last bucket has no upper bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FixedHistogram<const BUCKETS: usize> {
    bounds: &'static [u64],
    buckets: [u64; BUCKETS],
    sum: u64,
    max: u64,
}

impl<const BUCKETS: usize> FixedHistogram<BUCKETS> {
    /// Creates an empty histogram. `bounds` are in ascending order, one fewer than the buckets.
    const fn new(bounds: &'static [u64]) -> Self {
        assert!(bounds.len() + 1 == BUCKETS, "one more bucket than bounds");
        FixedHistogram { bounds, buckets: [0; BUCKETS], sum: 0, max: 0 }
    }

    /// Adds `value` to its bucket.
    pub fn record(&mut self, value: u64) {
        let bucket = self.bounds.iter().position(|bound| value <= *bound).unwrap_or(BUCKETS - 1);
        self.buckets[bucket] += 1;
        self.sum = self.sum.saturating_add(value);
        self.max = self.max.max(value);
    }

    /// Number of recorded values.
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// Number of values above `bound`, which must be one of the bounds.
    pub fn count_above(&self, bound: u64) -> u64 {
        self.bounds
            .iter()
            .zip(&self.buckets)
            .fold(self.count(), |rest, (b, n)| if *b <= bound { rest - n } else { rest })
    }

    /// The largest recorded value.
    pub fn max(&self) -> u64 {
        self.max
    }
}

/// All counters. They are plain numbers behind the state's lock, and are copied together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MasterCounters {
    /// `ExistKey`.
    pub exist_key: CallCount,
    /// `PutStart` and `UpsertStart`.
    pub put_start: CallCount,
    /// Calls that failed for lack of space.
    pub put_start_alloc_failures: u64,
    /// Puts that were allocated fewer replicas than requested.
    pub put_start_partial_allocations: u64,
    /// `PutEnd` and `UpsertEnd`.
    pub put_end: CallCount,
    /// `PutRevoke` and `UpsertRevoke`.
    pub put_revoke: CallCount,
    /// `GetReplicaList`.
    pub get_replica_list: CallCount,
    /// `GetReplicaListByRegex`.
    pub get_replica_list_by_regex: CallCount,
    /// `Remove`.
    pub remove: CallCount,
    /// `RemoveByRegex`.
    pub remove_by_regex: CallCount,
    /// `RemoveAll`.
    pub remove_all: CallCount,
    /// `MountSegment`.
    pub mount_segment: CallCount,
    /// `UnmountSegment`.
    pub unmount_segment: CallCount,
    /// `ReMountSegment`.
    pub remount_segment: CallCount,
    /// `Ping`.
    pub ping: CallCount,
    /// `CopyStart`.
    pub copy_start: CallCount,
    /// `CopyEnd`.
    pub copy_end: CallCount,
    /// `CopyRevoke`.
    pub copy_revoke: CallCount,
    /// `MoveStart`.
    pub move_start: CallCount,
    /// `MoveEnd`.
    pub move_end: CallCount,
    /// `MoveRevoke`.
    pub move_revoke: CallCount,
    /// `EvictDiskReplica`.
    pub evict_disk_replica: CallCount,
    /// `CreateCopyTask`.
    pub create_copy_task: CallCount,
    /// `CreateMoveTask`.
    pub create_move_task: CallCount,
    /// `MarkTaskToComplete`.
    pub update_task: CallCount,
    /// `QueryTask`.
    pub query_task: CallCount,
    /// `FetchTasks`.
    pub fetch_tasks: CallCount,
    /// `BatchExistKey`.
    pub batch_exist_key: BatchCount,
    /// `BatchQueryIp`.
    pub batch_query_ip: BatchCount,
    /// `BatchReplicaClear`.
    pub batch_replica_clear: BatchCount,
    /// `BatchGetReplicaList`.
    pub batch_get_replica_list: BatchCount,
    /// `BatchPutStart`.
    pub batch_put_start: BatchCount,
    /// `BatchPutEnd`.
    pub batch_put_end: BatchCount,
    /// `BatchPutRevoke`.
    pub batch_put_revoke: BatchCount,
    /// Reads (single or batch items) that returned a memory replica.
    pub mem_hits: u64,
    /// Total size of the objects returned by these reads, in bytes.
    pub mem_hit_bytes: u64,
    /// Reads that found a complete replica.
    pub valid_gets: u64,
    pub total_gets: u64,
    /// Eviction rounds that evicted at least one object.
    pub evictions: u64,
    pub eviction_attempts: u64,
    pub evicted_keys: u64,
    /// Total size of the evicted objects, in bytes.
    pub evicted_bytes: u64,
    /// Unfinished puts displaced by another put.
    pub put_start_discards: u64,
    /// Unfinished puts whose memory was released for reuse.
    pub put_start_releases: u64,
    /// Keys that an existence check found. Not in upstream.
    pub exist_hits: u64,
    /// Restored keys that were dropped because no client confirmed their segments. Not in upstream.
    pub unconfirmed_keys: u64,
    /// Replicas in segments that were removed without a request of their client. Not in upstream.
    pub lost_replicas: u64,
    /// Completed writes whose writer sent a checksum, and the others. Not in upstream.
    pub completed_with_checksum: u64,
    pub completed_without_checksum: u64,
    /// Ends of writes that may belong to an earlier start of the same client. Not in upstream.
    pub suspicious_put_ends: u64,
    /// Sizes of completed objects, in bytes.
    pub value_bytes: FixedHistogram<8>,
    /// How long the state was locked, for each lock acquisition, in nanoseconds. Long times are
    /// replaced by the thread's processor time. Not in upstream.
    pub state_lock_ns: FixedHistogram<13>,
    /// Number of times the state was locked for long only because the thread was preempted. Not in
    /// upstream.
    pub state_lock_preempted: u64,
}

impl Default for MasterCounters {
    fn default() -> MasterCounters {
        let call = CallCount::default();
        let batch = BatchCount::default();
        MasterCounters {
            exist_key: call,
            put_start: call,
            put_start_alloc_failures: 0,
            put_start_partial_allocations: 0,
            put_end: call,
            put_revoke: call,
            get_replica_list: call,
            get_replica_list_by_regex: call,
            remove: call,
            remove_by_regex: call,
            remove_all: call,
            mount_segment: call,
            unmount_segment: call,
            remount_segment: call,
            ping: call,
            copy_start: call,
            copy_end: call,
            copy_revoke: call,
            move_start: call,
            move_end: call,
            move_revoke: call,
            evict_disk_replica: call,
            create_copy_task: call,
            create_move_task: call,
            update_task: call,
            query_task: call,
            fetch_tasks: call,
            batch_exist_key: batch,
            batch_query_ip: batch,
            batch_replica_clear: batch,
            batch_get_replica_list: batch,
            batch_put_start: batch,
            batch_put_end: batch,
            batch_put_revoke: batch,
            mem_hits: 0,
            mem_hit_bytes: 0,
            valid_gets: 0,
            total_gets: 0,
            evictions: 0,
            eviction_attempts: 0,
            evicted_keys: 0,
            evicted_bytes: 0,
            put_start_discards: 0,
            put_start_releases: 0,
            exist_hits: 0,
            unconfirmed_keys: 0,
            lost_replicas: 0,
            completed_with_checksum: 0,
            completed_without_checksum: 0,
            suspicious_put_ends: 0,
            value_bytes: FixedHistogram::new(VALUE_BOUNDS),
            state_lock_ns: FixedHistogram::new(LOCK_BOUNDS_NS),
            state_lock_preempted: 0,
        }
    }
}

/// Current values, which can rise and fall.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MasterGauges {
    /// Total requested size of all objects in memory, in bytes.
    pub allocated_bytes: u64,
    /// Total size of all mounted memory segments, in bytes.
    pub capacity_bytes: u64,
    pub keys: u64,
    /// Objects with a soft pin.
    pub soft_pinned_keys: u64,
    pub clients: u64,
    pub mem_replicas: u64,
    /// Bytes allocated to displaced unfinished puts that are still quarantined.
    pub discarded_staging_bytes: u64,
}

/// Memory usage of all segments with the same name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SegmentUsage {
    pub used_bytes: u64,
    pub capacity_bytes: u64,
}

/// Renders all metrics in the Prometheus text format. `segments` must be sorted by name.
pub fn exposition<'a>(
    counters: &MasterCounters,
    gauges: &MasterGauges,
    segments: impl Iterator<Item = (&'a str, &'a SegmentUsage)> + Clone,
) -> String {
    let mut out = ExpositionText(String::with_capacity(24 << 10));
    let c = counters;
    let g = gauges;
    out.gauge("master_allocated_bytes", "Bytes in use in all memory segments", g.allocated_bytes);
    out.gauge("master_total_capacity_bytes", "Total size of all mounted memory segments in bytes", g.capacity_bytes);
    out.head("segment_allocated_bytes", "Bytes in use in the segments with this name", "gauge");
    for (name, usage) in segments.clone() {
        out.labelled("segment_allocated_bytes", "segment", name, usage.used_bytes);
    }
    out.head("segment_total_capacity_bytes", "Total size of the segments with this name in bytes", "gauge");
    for (name, usage) in segments {
        out.labelled("segment_total_capacity_bytes", "segment", name, usage.capacity_bytes);
    }
    out.gauge("master_nof_allocated_bytes", "Bytes in use on NVMe-oF segments", 0);
    out.gauge("master_total_nof_capacity_bytes", "Total size of all NVMe-oF segments in bytes", 0);
    out.gauge("master_allocated_file_size_bytes", "Bytes in use in file storage", 0);
    out.gauge("master_total_file_capacity_bytes", "Total size of the file storage in bytes", 0);
    out.gauge("master_key_count", "Objects", g.keys);
    out.gauge("master_soft_pin_key_count", "Objects with a soft pin", g.soft_pinned_keys);
    out.gauge("master_active_clients", "Live clients", g.clients);
    out.histogram("master_value_size_bytes", "Sizes of stored objects", &c.value_bytes, |out, bound| {
        let _ = write!(out, "{bound}.000000");
    });
    out.call("exist_key", "ExistKey", c.exist_key);
    out.call("put_start", "PutStart", c.put_start);
    out.counter(
        "master_put_start_alloc_failures_total",
        "PutStart calls that failed for lack of space",
        c.put_start_alloc_failures,
    );
    out.counter(
        "master_put_start_partial_allocations_total",
        "PutStart calls that were allocated fewer replicas than requested",
        c.put_start_partial_allocations,
    );
    out.call("put_end", "PutEnd", c.put_end);
    out.call("put_revoke", "PutRevoke", c.put_revoke);
    out.call("get_replica_list", "GetReplicaList", c.get_replica_list);
    out.call("get_replica_list_by_regex", "GetReplicaListByRegex", c.get_replica_list_by_regex);
    out.call("remove", "Remove", c.remove);
    out.call("remove_by_regex", "RemoveByRegex", c.remove_by_regex);
    out.call("remove_all", "RemoveAll", c.remove_all);
    out.call("mount_segment", "MountSegment", c.mount_segment);
    out.call("unmount_segment", "UnmountSegment", c.unmount_segment);
    out.call("remount_segment", "ReMountSegment", c.remount_segment);
    out.call("ping", "Ping", c.ping);
    out.call("copy_start", "CopyStart", c.copy_start);
    out.call("copy_end", "CopyEnd", c.copy_end);
    out.call("copy_revoke", "CopyRevoke", c.copy_revoke);
    out.call("move_start", "MoveStart", c.move_start);
    out.call("move_end", "MoveEnd", c.move_end);
    out.call("move_revoke", "MoveRevoke", c.move_revoke);
    out.call("evict_disk_replica", "EvictDiskReplica", c.evict_disk_replica);
    out.call("create_copy_task", "CreateCopyTask", c.create_copy_task);
    out.call("create_move_task", "CreateMoveTask", c.create_move_task);
    out.call("update_task", "MarkTaskToComplete", c.update_task);
    out.call("query_task", "QueryTask", c.query_task);
    out.call("fetch_tasks", "FetchTasks", c.fetch_tasks);
    out.batch("batch_exist_key", "BatchExistKey", c.batch_exist_key);
    out.batch("batch_query_ip", "BatchQueryIp", c.batch_query_ip);
    out.batch("batch_replica_clear", "BatchReplicaClear", c.batch_replica_clear);
    out.batch("batch_get_replica_list", "BatchGetReplicaList", c.batch_get_replica_list);
    out.batch("batch_put_start", "BatchPutStart", c.batch_put_start);
    out.batch("batch_put_end", "BatchPutEnd", c.batch_put_end);
    out.batch("batch_put_revoke", "BatchPutRevoke", c.batch_put_revoke);
    out.counter("mem_cache_hit_nums_", "Reads that returned a memory replica", c.mem_hits);
    out.counter("file_cache_hit_nums_", "Reads that returned a disk replica", 0);
    out.counter(
        "mem_cache_hit_bytes_total",
        "Total size of objects read from memory replicas in bytes",
        c.mem_hit_bytes,
    );
    out.counter("file_cache_hit_bytes_total", "Total size of objects read from disk replicas in bytes", 0);
    out.gauge("mem_cache_nums_", "Complete replicas in memory", g.mem_replicas);
    out.gauge("file_cache_nums_", "Complete replicas on disk", 0);
    out.counter("valid_get_nums_", "Reads that found a complete replica", c.valid_gets);
    out.counter("total_get_nums_", "Reads", c.total_gets);
    out.counter("master_successful_evictions_total", "Eviction rounds that evicted at least one object", c.evictions);
    out.counter("master_attempted_evictions_total", "Eviction rounds", c.eviction_attempts);
    out.counter("master_evicted_key_count", "Objects evicted", c.evicted_keys);
    out.counter("master_evicted_size_bytes", "Total size of evicted objects in bytes", c.evicted_bytes);
    // Objects are evicted only from memory, so these values are the same as the totals. Upstream
    // adds these families at its first eviction. Here, they are exported from the start, so that
    // `rate()` and `increase()` see the first eviction as well.
    out.counter("master_successful_evictions_mem", "Eviction rounds that evicted from memory", c.evictions);
    out.counter("master_attempted_evictions_mem", "Eviction rounds in memory", c.eviction_attempts);
    out.counter("master_evicted_key_count_mem", "Objects evicted from memory", c.evicted_keys);
    out.counter("master_evicted_size_bytes_mem", "Total size of objects evicted from memory in bytes", c.evicted_bytes);
    out.counter("master_put_start_discard_cnt", "Unfinished puts displaced by another put", c.put_start_discards);
    out.counter("master_put_start_release_cnt", "Unfinished puts whose memory was released", c.put_start_releases);
    out.gauge(
        "master_put_start_discarded_staging_size",
        "Bytes allocated to displaced unfinished puts and not yet released",
        g.discarded_staging_bytes,
    );
    for (name, help, kind) in NOT_BUILT {
        out.head(name, help, kind);
        out.value(name, 0);
    }
    out.histogram(
        "mcctl_master_state_hold_seconds",
        "Time for which the state was locked, or the thread's processor time if that is less than half as long",
        &c.state_lock_ns,
        |out, ns| {
            let _ = write!(out, "{}", Duration::from_nanos(ns).as_secs_f64());
        },
    );
    out.counter(
        "mcctl_master_state_hold_preempted_total",
        "Lock acquisitions during which the thread was preempted for more than half of the time",
        c.state_lock_preempted,
    );
    out.counter("mcctl_master_exist_hits_total", "Keys that an existence check found", c.exist_hits);
    out.counter(
        "mcctl_master_unconfirmed_keys_total",
        "Restored objects dropped because no client confirmed their memory",
        c.unconfirmed_keys,
    );
    out.counter(
        "mcctl_master_lost_replicas_total",
        "Replicas lost while this process led, with the memory of nodes that expired, restarted, or did not confirm it",
        c.lost_replicas,
    );
    out.head(
        "mcctl_master_completed_writes_total",
        "Completed writes, by whether the writer sent a checksum",
        "counter",
    );
    for (checksum, writes) in [("present", c.completed_with_checksum), ("absent", c.completed_without_checksum)] {
        out.labelled("mcctl_master_completed_writes_total", "checksum", checksum, writes);
    }
    out.counter(
        "mcctl_master_suspicious_put_ends_total",
        "Ends of writes that their client had started again over another connection",
        c.suspicious_put_ends,
    );
    let hold_max = Duration::from_nanos(c.state_lock_ns.max());
    let help = "Longest time for which the state was locked";
    out.seconds("mcctl_master_state_hold_max_seconds", help, "gauge", hold_max);
    out.0
}

/// Renders the objects of each tenant but the default one.
pub(super) fn tenant_exposition(tenants: &[(Vec<u8>, TenantUsage)]) -> String {
    let mut out = ExpositionText(String::new());
    let [keys, bytes] = ["mcctl_master_tenant_keys", "mcctl_master_tenant_bytes"];
    let named = || tenants.iter().map(|(tenant, usage)| (String::from_utf8_lossy(tenant), usage));
    out.head(keys, "Objects of a tenant, without the default tenant", "gauge");
    named().for_each(|(tenant, usage)| out.labelled(keys, "tenant", &tenant, usage.keys));
    out.head(bytes, "Size of a tenant's objects, without the default tenant", "gauge");
    named().for_each(|(tenant, usage)| out.labelled(bytes, "tenant", &tenant, usage.bytes));
    out.0
}

/// Renders how long RPC calls took, for the methods that were called.
pub(super) fn latency_exposition(by_method: &[(Method, LatencySnapshot)]) -> String {
    let mut out = ExpositionText(String::new());
    let name = "mcctl_rpc_request_duration_seconds";
    let help =
        "Time from the receipt of an RPC request until its response is ready, with the waits for standbys and the disk";
    out.head(name, help, "histogram");
    for (method, latency) in by_method {
        latency.write_series(&mut out.0, name, &format!("method=\"{}\"", method.name()));
    }
    out.0
}

/// Renders the longest time since the last heartbeat of a node.
pub(super) fn heartbeat_exposition(age_max: Duration) -> String {
    let mut out = ExpositionText(String::new());
    let help = "Longest time since the last heartbeat of a client with segments; 0 without such a client";
    out.seconds("mcctl_master_heartbeat_age_max_seconds", help, "gauge", age_max);
    out.0
}

/// Builds the Prometheus text.
pub(super) struct ExpositionText(pub String);

impl ExpositionText {
    /// Writes the help and the type of a family.
    pub(crate) fn head(&mut self, name: &str, help: &str, kind: &str) {
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    fn value(&mut self, name: &str, value: u64) {
        let _ = writeln!(self.0, "{name} {value}");
    }

    pub(crate) fn labelled(&mut self, name: &str, label: &str, text: &str, value: u64) {
        let _ = writeln!(self.0, "{name}{{{label}=\"{}\"}} {value}", LabelValue(text));
    }

    /// Writes a gauge without labels.
    pub(crate) fn gauge(&mut self, name: &str, help: &str, value: u64) {
        self.head(name, help, "gauge");
        self.value(name, value);
    }

    /// Writes a counter without labels.
    pub(crate) fn counter(&mut self, name: &str, help: &str, value: u64) {
        self.head(name, help, "counter");
        self.value(name, value);
    }

    /// Writes a family without labels whose value is a time.
    pub(crate) fn seconds(&mut self, name: &str, help: &str, kind: &str, time: Duration) {
        self.head(name, help, kind);
        let _ = writeln!(self.0, "{name} {}", time.as_secs_f64());
    }

    fn call(&mut self, name: &str, method: &str, count: CallCount) {
        self.counter(&format!("master_{name}_requests_total"), &format!("{method} calls"), count.requests);
        self.counter(&format!("master_{name}_failures_total"), &format!("{method} calls that failed"), count.failures);
    }

    fn batch(&mut self, name: &str, method: &str, count: BatchCount) {
        let family = |end: &str| format!("master_{name}_{end}");
        self.counter(&family("requests_total"), &format!("{method} calls"), count.requests);
        self.counter(&family("failures_total"), &format!("{method} calls in which all items failed"), count.failures);
        self.counter(
            &family("partial_successes_total"),
            &format!("{method} calls in which some items failed"),
            count.partial_successes,
        );
        self.counter(&family("items_total"), &format!("Items in {method} calls"), count.items);
        self.counter(
            &family("failed_items_total"),
            &format!("Items in {method} calls that failed"),
            count.failed_items,
        );
    }

    /// Writes a histogram. `write_in_unit` writes a bound or the sum in the family's unit.
    fn histogram<const N: usize>(
        &mut self,
        name: &str,
        help: &str,
        histogram: &FixedHistogram<N>,
        write_in_unit: impl Fn(&mut String, u64),
    ) {
        self.head(name, help, "histogram");
        let mut below = 0;
        for (bound, count) in histogram.bounds.iter().zip(&histogram.buckets) {
            below += count;
            let _ = write!(self.0, "{name}_bucket{{le=\"");
            write_in_unit(&mut self.0, *bound);
            let _ = writeln!(self.0, "\"}} {below}");
        }
        let count = histogram.count();
        let _ = writeln!(self.0, "{name}_bucket{{le=\"+Inf\"}} {count}");
        let mut sum = String::new();
        write_in_unit(&mut sum, histogram.sum);
        let sum = sum.strip_suffix(".000000").unwrap_or(&sum);
        let _ = writeln!(self.0, "{name}_sum {sum}\n{name}_count {count}");
    }
}

/// A label value in which `\`, `"` and newlines are escaped.
struct LabelValue<'a>(&'a str);

impl fmt::Display for LabelValue<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for c in self.0.chars() {
            match c {
                '\\' => f.write_str("\\\\")?,
                '"' => f.write_str("\\\"")?,
                '\n' => f.write_str("\\n")?,
                c => f.write_char(c)?,
            }
        }
        Ok(())
    }
}

/// Upstream's bounds for `master_value_size_bytes`.
const VALUE_BOUNDS: &[u64] = &[4 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20];

/// 1 us to 100 ms. Keeping the state locked for more than 1 ms is considered a bug.
const LOCK_BOUNDS_NS: &[u64] =
    &[1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000, 200_000, 500_000, 1_000_000, 10_000_000, 100_000_000];

/// Families for features that are not implemented: promotion from disk, and high availability.
const NOT_BUILT: &[(&str, &str, &str)] = &[
    ("master_promotion_in_flight", "Promotions from disk in progress", "gauge"),
    ("master_promotion_admitted_total", "Promotions started", "counter"),
    ("master_promotion_completed_total", "Promotions completed", "counter"),
    ("master_promotion_completed_bytes_total", "Bytes promoted", "counter"),
    ("master_promotion_expired_total", "Promotions that timed out", "counter"),
    ("master_promotion_failed_total", "Promotions aborted by the client that has the object on disk", "counter"),
    (
        "master_promotion_cancelled_total",
        "Promotions canceled because the object, its client or its replica disappeared",
        "counter",
    ),
    ("master_promotion_rejected_frequency_total", "Promotions rejected for too few reads", "counter"),
    (
        "master_promotion_rejected_watermark_total",
        "Promotions rejected because memory usage was above the watermark",
        "counter",
    ),
    ("master_promotion_rejected_cap_total", "Promotions rejected because too many were in progress", "counter"),
    ("master_promotion_candidate_recorded_total", "Promotion candidates recorded", "counter"),
    ("master_promotion_candidate_admitted_total", "Promotion candidates whose promotion was started later", "counter"),
    ("master_promotion_candidate_admission_rejected_total", "Promotion candidates that were rejected again", "counter"),
    ("master_promotion_candidate_expired_evaluated_total", "Promotion candidates dropped after evaluation", "counter"),
    (
        "master_promotion_candidate_expired_unevaluated_total",
        "Promotion candidates dropped before evaluation",
        "counter",
    ),
    (
        "master_promotion_candidate_dropped_limit_total",
        "Promotion candidates not recorded because there were too many",
        "counter",
    ),
    ("ha_oplog_last_sequence_id", "Last log entry written by the leader", "gauge"),
    ("ha_oplog_applied_sequence_id", "Last log entry applied by the standby", "gauge"),
    ("ha_oplog_standby_lag", "Number of log entries by which the standby lags behind", "gauge"),
    ("ha_oplog_pending_entries", "Log entries waiting for an earlier entry", "gauge"),
    ("ha_pending_mutation_queue_size", "Changes waiting to be written", "gauge"),
    ("ha_standby_state", "State of the standby (0: stopped)", "gauge"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_fails_only_if_every_item_fails() {
        let mut count = BatchCount::default();
        for (items, failed) in [(3, 0), (3, 1), (3, 3), (0, 0)] {
            count.add(items, failed);
        }
        let expected = BatchCount { requests: 4, failures: 1, partial_successes: 1, items: 9, failed_items: 4 };
        assert_eq!(count, expected);
    }

    #[test]
    fn a_bucket_includes_its_bound_and_is_cumulative_in_the_text() {
        let mut counters = MasterCounters::default();
        for bytes in [1, 4096, 4097, 1 << 30] {
            counters.value_bytes.record(bytes);
        }
        let text = exposition(&counters, &MasterGauges::default(), std::iter::empty());
        for line in [
            "master_value_size_bytes_bucket{le=\"4096.000000\"} 2",
            "master_value_size_bytes_bucket{le=\"65536.000000\"} 3",
            "master_value_size_bytes_bucket{le=\"67108864.000000\"} 3",
            "master_value_size_bytes_bucket{le=\"+Inf\"} 4",
            "master_value_size_bytes_sum 1073750018",
            "master_value_size_bytes_count 4",
        ] {
            assert!(text.lines().any(|l| l == line), "{line}");
        }
    }

    #[test]
    fn lock_times_are_exposed_in_seconds() {
        let mut counters = MasterCounters::default();
        counters.state_lock_ns.record(1_500_000);
        assert_eq!(counters.state_lock_ns.count_above(1_000_000), 1);
        let text = exposition(&counters, &MasterGauges::default(), std::iter::empty());
        for line in [
            "mcctl_master_state_hold_seconds_bucket{le=\"0.001\"} 0",
            "mcctl_master_state_hold_seconds_bucket{le=\"0.01\"} 1",
            "mcctl_master_state_hold_seconds_sum 0.0015",
            "mcctl_master_state_hold_max_seconds 0.0015",
        ] {
            assert!(text.lines().any(|l| l == line), "{line}\n{text}");
        }
    }

    #[test]
    fn a_segment_name_is_escaped_in_its_label() {
        let usage = SegmentUsage { used_bytes: 1, capacity_bytes: 2 };
        let text = exposition(&MasterCounters::default(), &MasterGauges::default(), [("a\"\\\nb", &usage)].into_iter());
        assert!(text.contains("segment_allocated_bytes{segment=\"a\\\"\\\\\\nb\"} 1\n"), "{text}");
    }
}
