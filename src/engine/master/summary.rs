//! The one-line summary of `/metrics/summary`.
//!
//! The format matches 0.3.13 (`fixtures/http/summary.txt`), because scrapers parse the line. Its
//! rates cover the last 5 to 15 seconds if it is requested at least that often. Upstream's rates
//! cover the time since the last request from any client.

use std::fmt::{self, Write};
use std::time::Duration;

use crate::metrics::{BatchCount, CallCount, MasterCounters, MasterGauges};
use crate::view::{HaView, ServiceView};
use mcctl_base::Mono;

/// Two earlier snapshots of the counters, from which the rates are computed.
#[derive(Debug)]
pub struct SummaryBaselines {
    older: (Mono, MasterCounters),
    newer: (Mono, MasterCounters),
}

impl SummaryBaselines {
    /// Creates the history of a process that starts at `now` with all counters at 0.
    pub fn starting(now: Mono) -> SummaryBaselines {
        SummaryBaselines { older: (now, MasterCounters::default()), newer: (now, MasterCounters::default()) }
    }

    /// Stores `counters` as a snapshot if the last one is at least [`PERIOD`] old.
    pub fn keep(&mut self, now: Mono, counters: &MasterCounters) {
        if now.since(self.newer.0) >= PERIOD {
            self.older = std::mem::replace(&mut self.newer, (now, counters.clone()));
        }
    }

    /// The snapshot to compare with: old enough for a meaningful rate, recent enough to reflect
    /// current load.
    fn base(&self, now: Mono) -> &(Mono, MasterCounters) {
        if now.since(self.newer.0) >= PERIOD / 2 { &self.newer } else { &self.older }
    }

    /// Renders the summary line at `now`.
    ///
    /// `ha` is the master's part in its cluster. A standby has no state of its own: the keys are
    /// those of its copy.
    pub fn line(
        &self,
        now: Mono,
        service: &ServiceView,
        ha: Option<&HaView>,
        counters: &MasterCounters,
        gauges: &MasterGauges,
    ) -> String {
        let (then, before) = self.base(now);
        let rates = CounterRates { seconds: now.since(*then).as_secs_f64(), before, now: counters };
        let mut line = String::with_capacity(2 << 10);
        let state = service.state;
        let _ = write!(
            line,
            "role={}, state={}, service_ready={}, master={{Mem Storage: {} / {}",
            state.role(),
            state.name(),
            state.is_serving(),
            SummaryBytes(gauges.allocated_bytes),
            SummaryBytes(gauges.capacity_bytes),
        );
        if gauges.capacity_bytes > 0 {
            let percent = 100.0 * gauges.allocated_bytes as f64 / gauges.capacity_bytes as f64;
            let _ = write!(line, " ({percent:.1}%)");
        }
        let _ = write!(
            line,
            " | NVMe-oF SSD: 0 B / 0 B | SSD Storage: 0 B / 0 B | Keys: {} (soft-pinned: {}) | Clients: {}",
            ha.filter(|ha| !ha.serving).map_or(gauges.keys, |standby| standby.objects),
            gauges.soft_pinned_keys,
            gauges.clients,
        );
        rates.calls(&mut line);
        rates.batches(&mut line);
        let c = counters;
        let evictions = format!(
            "Success/Attempts={}/{}, {{}}keys={}, size={}",
            c.evictions,
            c.eviction_attempts,
            c.evicted_keys,
            SummaryBytes(c.evicted_bytes)
        );
        let failures =
            format!("AllocFail={}, PartialAlloc={}, ", c.put_start_alloc_failures, c.put_start_partial_allocations);
        let _ = write!(
            line,
            " | Eviction: {} | Mem Eviction: {} | NoF Eviction: Success/Attempts=0/0, keys=0, size=0 B \
             | Discard: Released/Total={}/{}, StagingSize={}",
            evictions.replace("{}", &failures),
            evictions.replace("{}", ""),
            c.put_start_releases,
            c.put_start_discards,
            SummaryBytes(gauges.discarded_staging_bytes),
        );
        line.push_str(NOT_BUILT);
        let (last, applied) = ha.map_or((0, 0), |ha| (ha.last, ha.acked));
        let lag = last.saturating_sub(applied);
        let _ = write!(
            line,
            ", ha={{HA Metrics Summary: last_seq={last}, applied_seq={applied}, lag={lag}, {HA_NOT_BUILT}"
        );
        if let Some(leader) = &service.leader {
            let _ = write!(line, ", leader={}, view_version={}", leader.address, leader.view_version);
        }
        line
    }
}

/// Rates between two snapshots of the counters.
struct CounterRates<'a> {
    seconds: f64,
    before: &'a MasterCounters,
    now: &'a MasterCounters,
}

impl CounterRates<'_> {
    fn per_second(&self, now: u64, before: u64) -> f64 {
        if self.seconds > 0.0 { now.saturating_sub(before) as f64 / self.seconds } else { 0.0 }
    }

    /// Formats one method's rates as `Success/Total`.
    fn call(&self, of: impl Fn(&MasterCounters) -> CallCount) -> String {
        let now = of(self.now);
        let before = of(self.before);
        let total = self.per_second(now.requests, before.requests);
        let succeeded = self.per_second(now.requests - now.failures, before.requests - before.failures);
        format!("{succeeded:.2}/{total:.2}")
    }

    fn calls(&self, line: &mut String) {
        line.push_str(" | Requests (Success/Total per sec): ");
        let kinds: [SummaryEntry<CallCount>; 15] = [
            ("PutStart", |c| c.put_start),
            ("PutEnd", |c| c.put_end),
            ("PutRevoke", |c| c.put_revoke),
            ("Get", |c| c.get_replica_list),
            ("Exist", |c| c.exist_key),
            ("Del", |c| c.remove),
            ("DelAll", |c| c.remove_all),
            ("Ping", |c| c.ping),
            ("CopyStart", |c| c.copy_start),
            ("CopyEnd", |c| c.copy_end),
            ("CopyRevoke", |c| c.copy_revoke),
            ("MoveStart", |c| c.move_start),
            ("MoveEnd", |c| c.move_end),
            ("MoveRevoke", |c| c.move_revoke),
            ("EvictDiskReplica", |c| c.evict_disk_replica),
        ];
        for (n, (name, of)) in kinds.into_iter().enumerate() {
            let _ = write!(line, "{}{name}={}", if n == 0 { "" } else { ", " }, self.call(of));
        }
    }

    fn batches(&self, line: &mut String) {
        line.push_str(" | Batch Requests (per sec, Req=Success/PartialSuccess/Total, Item=Success/Total): ");
        let kinds: [SummaryEntry<BatchCount>; 7] = [
            ("PutStart", |c| c.batch_put_start),
            ("PutEnd", |c| c.batch_put_end),
            ("PutRevoke", |c| c.batch_put_revoke),
            ("Get", |c| c.batch_get_replica_list),
            ("ExistKey", |c| c.batch_exist_key),
            ("QueryIp", |c| c.batch_query_ip),
            ("Clear", |c| c.batch_replica_clear),
        ];
        for (name, of) in kinds {
            let now = of(self.now);
            let before = of(self.before);
            let rate = |of: fn(BatchCount) -> u64| self.per_second(of(now), of(before));
            let _ = write!(
                line,
                "{name}:(Req={:.2}/{:.2}/{:.2}, Item={:.2}/{:.2}), ",
                rate(|b| b.requests - b.failures - b.partial_successes),
                rate(|b| b.partial_successes),
                rate(|b| b.requests),
                rate(|b| b.items - b.failed_items),
                rate(|b| b.items),
            );
        }
        let kinds: [SummaryEntry<CallCount>; 5] = [
            ("CreateMoveTask", |c| c.create_move_task),
            ("CreateCopyTask", |c| c.create_copy_task),
            ("QueryTask", |c| c.query_task),
            ("FetchTasks", |c| c.fetch_tasks),
            ("MarkTaskToComplete", |c| c.update_task),
        ];
        for (n, (name, of)) in kinds.into_iter().enumerate() {
            let _ = write!(line, "{}{name}:(Req={})", if n == 0 { "" } else { ", " }, self.call(of));
        }
    }
}

/// A label in the summary and the counter that it shows.
type SummaryEntry<T> = (&'static str, fn(&MasterCounters) -> T);

/// A number of bytes in upstream's format: powers of 1024, with two decimals for 1 KB or more.
struct SummaryBytes(u64);

impl fmt::Display for SummaryBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut size = self.0 as f64;
        if self.0 < 1024 {
            return write!(f, "{} B", self.0);
        }
        let mut unit = "B";
        for next in ["KB", "MB", "GB", "TB"] {
            if size < 1024.0 {
                break;
            }
            size /= 1024.0;
            unit = next;
        }
        write!(f, "{size:.2} {unit}")
    }
}

/// Interval between two snapshots.
const PERIOD: Duration = Duration::from_secs(10);

/// The parts for features that are not implemented, as printed by a master that does not use them.
const NOT_BUILT: &str = " | Promotion: in_flight=0, admitted=0, completed=0, failed=0, cancelled=0, expired=0, bytes=0 B, \
    rejected(freq/wm/cap)=0/0/0 | Snapshots: Success=0, Fail=0}";
const HA_NOT_BUILT: &str = "pending=0, mutation_queue=0, batch_commits=0, sync_commits=0, skipped=0, checksum_fail=0, etcd_fail=0, \
    watch_disconn=0, state=0}";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::{LeaderView, RunState};

    fn serving() -> ServiceView {
        ServiceView { state: RunState::Serving, leader: None }
    }

    #[test]
    fn the_line_matches_a_real_master_in_the_same_state() {
        let fixture = include_str!("../../../fixtures/http/summary.txt");
        let captured = fixture.lines().find(|l| !l.starts_with('#')).unwrap();
        let mut baselines = SummaryBaselines::starting(Mono::ZERO);
        let mut counters = MasterCounters::default();
        counters.put_start.add(true);
        baselines.keep(Mono::from_ms(10_000), &counters);
        counters.ping.requests = 207;
        counters.fetch_tasks.requests = 207;
        let gauges = MasterGauges {
            allocated_bytes: 13_894_642,
            capacity_bytes: 150_994_944,
            keys: 55,
            soft_pinned_keys: 1,
            clients: 2,
            ..MasterGauges::default()
        };
        assert_eq!(baselines.line(Mono::from_ms(110_000), &serving(), None, &counters, &gauges), captured);
    }

    #[test]
    fn frequent_requests_do_not_change_the_rates() {
        let mut baselines = SummaryBaselines::starting(Mono::ZERO);
        let mut counters = MasterCounters::default();
        for second in 1..=100 {
            counters.ping.requests += 5;
            let now = Mono::from_ms(second * 1000);
            baselines.keep(now, &counters);
            let line = baselines.line(now, &serving(), None, &counters, &MasterGauges::default());
            assert!(line.contains("Ping=5.00/5.00"), "{second}: {line}");
        }
    }

    #[test]
    fn without_memory_the_percentage_is_omitted_and_the_leader_is_last() {
        let service = ServiceView {
            state: RunState::Standby,
            leader: Some(LeaderView { address: "10.0.0.1:50051".into(), view_version: 2 }),
        };
        let line = SummaryBaselines::starting(Mono::ZERO).line(
            Mono::ZERO,
            &service,
            None,
            &MasterCounters::default(),
            &MasterGauges::default(),
        );
        let start = "role=standby, state=standby, service_ready=false, master={Mem Storage: 0 B / 0 B | NVMe";
        assert!(line.starts_with(start), "{line}");
        assert!(line.ends_with("state=0}, leader=10.0.0.1:50051, view_version=2"), "{line}");
    }

    #[test]
    fn sizes_are_printed_in_upstreams_units() {
        for (bytes, text) in [(1023, "1023 B"), (1024, "1.00 KB"), (13_894_642, "13.25 MB"), (5 << 40, "5.00 TB")] {
            assert_eq!(SummaryBytes(bytes).to_string(), text);
        }
    }
}
