//! A master's state at one time, and the rates of its operations between two such states.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;

use crate::admin::types::{
    ClientHeartbeats, HaStatusReport, HostReleases, MasterHealth, SegmentDetail, UnknownRequestCount,
};
use crate::admin::{AdminClient, AdminError};
use mcctl_base::Mono;
use mcctl_net::http::Samples;
use mcctl_sys::env::Env;

/// The state of a master, from several responses of its admin HTTP endpoint.
#[derive(Clone, Debug)]
pub struct MasterStatus {
    /// When the metrics were read.
    pub at: Mono,
    pub health: MasterHealth,
    /// The mounted segments; empty for a master that is not serving.
    pub segments: Vec<SegmentDetail>,
    /// Time since the last heartbeat, by client ID; `None` if the master does not report heartbeats
    /// (`mooncake_master` does not).
    pub heartbeats: Option<BTreeMap<String, Duration>>,
    /// Time until each client expires, unless it calls again; empty if the master does not report
    /// it.
    pub expiries: BTreeMap<String, Duration>,
    /// The releases of each host's clients; empty if the master does not report them.
    pub hosts: Vec<HostReleases>,
    /// Requests that the master could not decode.
    pub unknown_requests: Vec<UnknownRequestCount>,
    /// The metrics without labels, by name.
    metrics: BTreeMap<String, f64>,
    /// The writes that clients have completed; `None` if the master does not count them by checksum
    /// (`mooncake_master` does not).
    pub writes: Option<CompletedWrites>,
    /// The master's part in its cluster, if it is in one.
    pub ha: Option<HaStatusReport>,
}

/// Writes that clients have completed since the master started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct CompletedWrites {
    pub with_checksum: u64,
    /// No read of these objects can be verified.
    pub without_checksum: u64,
    /// Writes whose client started them again, and ended them over another connection. Their
    /// objects may have wrong bytes.
    pub suspicious: u64,
}

impl CompletedWrites {
    /// The counts in a master's metrics; `None` if it does not report them.
    pub fn of(metrics: &Samples) -> Option<CompletedWrites> {
        let writes = |checksum: &str| metrics.sum_where("mcctl_master_completed_writes_total", "checksum", checksum);
        let present = writes("present");
        let absent = writes("absent");
        if present.is_none() && absent.is_none() {
            return None;
        }
        Some(CompletedWrites {
            with_checksum: present.map_or(0, count),
            without_checksum: absent.map_or(0, count),
            suspicious: metrics.sum("mcctl_master_suspicious_put_ends_total").map_or(0, count),
        })
    }

    /// The share of writes without a checksum, between 0 and 1; `None` if every write had one.
    pub fn unchecked_share(&self) -> Option<f64> {
        let all = self.with_checksum.saturating_add(self.without_checksum);
        (self.without_checksum > 0).then(|| self.without_checksum as f64 / all as f64)
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the metrics are counts and sizes; the cast saturates"
)]
fn count(value: f64) -> u64 {
    value as u64
}

/// Operations per second. A batch call counts once per item.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct OperationRates {
    pub puts: f64,
    pub gets: f64,
    pub exists: f64,
    pub removes: f64,
    pub evicted_keys: f64,
    pub failed_allocations: f64,
    pub heartbeats: f64,
}

impl MasterStatus {
    /// Reads the state of the master behind `admin`.
    ///
    /// # Errors
    /// No response, or not from a Mooncake master of release 0.3.12 or later.
    pub async fn read(env: &impl Env, admin: &AdminClient) -> Result<MasterStatus, AdminError> {
        let health = admin.health().await?;
        // A standby responds to neither request.
        let (segments, heartbeats) = match health.service_ready {
            true => (admin.segments().await?, admin.heartbeats().await?),
            false => (Vec::new(), None),
        };
        let ClientHeartbeats { hosts, unknown_requests, .. } = heartbeats.clone().unwrap_or_default();
        let heartbeats = heartbeats.map(|all| all.clients);
        let expiring = heartbeats.iter().flatten();
        let expiries =
            expiring.filter_map(|one| Some((one.client_id.clone(), Duration::from_millis(one.expires_ms?)))).collect();
        let heartbeats = heartbeats.map(|all| {
            all.into_iter().map(|one| (one.client_id, Duration::from_millis(one.last_heartbeat_ms))).collect()
        });
        let at = env.now();
        let metrics = admin.metrics().await?;
        let writes = CompletedWrites::of(&metrics);
        let metrics = metrics.plain().map(|(name, value)| (name.to_owned(), value)).collect();
        let ha = admin.ha_status().await?;
        Ok(MasterStatus { at, health, segments, heartbeats, expiries, hosts, unknown_requests, metrics, writes, ha })
    }

    /// The value of the metric `name`, a count or a size; 0 if the master does not report it.
    pub fn metric(&self, name: &str) -> u64 {
        self.reported(name).unwrap_or(0)
    }

    /// Like [`metric`](Self::metric), but `None` if the master does not report it.
    pub fn reported(&self, name: &str) -> Option<u64> {
        self.metrics.get(name).map(|value| count(*value))
    }

    /// The rates of operations between `before` and this state.
    pub fn rates_since(&self, before: &MasterStatus) -> OperationRates {
        rates(&before.metrics, &self.metrics, self.at.since(before.at))
    }
}

fn rates(before: &BTreeMap<String, f64>, now: &BTreeMap<String, f64>, span: Duration) -> OperationRates {
    let per_second = |name: &str| {
        let value = |of: &BTreeMap<String, f64>| of.get(name).copied().unwrap_or(0.0);
        // A master restart resets its counters.
        (value(now) - value(before)).max(0.0) / span.as_secs_f64().max(f64::EPSILON)
    };
    let calls = |one: &str| per_second(&format!("master_{one}_requests_total"));
    let items = |batch: &str| per_second(&format!("master_batch_{batch}_items_total"));
    OperationRates {
        puts: calls("put_end") + items("put_end"),
        gets: calls("get_replica_list") + items("get_replica_list"),
        exists: calls("exist_key") + items("exist_key"),
        removes: calls("remove") + calls("remove_by_regex") + calls("remove_all"),
        evicted_keys: per_second("master_evicted_key_count"),
        failed_allocations: per_second("master_put_start_alloc_failures_total"),
        heartbeats: calls("ping"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_are_counted_only_by_a_master_that_reports_their_checksums() {
        let of = |page: &str| CompletedWrites::of(&Samples::parse(page));
        assert_eq!(of("master_put_end_requests_total 7\n"), None);
        let page = "mcctl_master_completed_writes_total{checksum=\"present\"} 30\n\
            mcctl_master_completed_writes_total{checksum=\"absent\"} 10\nmcctl_master_suspicious_put_ends_total 2\n";
        let writes = of(page).expect("counts");
        assert_eq!(writes, CompletedWrites { with_checksum: 30, without_checksum: 10, suspicious: 2 });
        assert_eq!(writes.unchecked_share(), Some(0.25));
        let checked = of("mcctl_master_completed_writes_total{checksum=\"present\"} 30\n").expect("counts");
        assert_eq!((checked.without_checksum, checked.unchecked_share()), (0, None));
    }

    fn metrics(pairs: &[(&str, f64)]) -> BTreeMap<String, f64> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect()
    }

    #[test]
    fn rates_count_batch_items_and_handle_a_restart() {
        let before = metrics(&[("master_put_end_requests_total", 10.0), ("master_exist_key_requests_total", 50.0)]);
        let now = metrics(&[
            ("master_put_end_requests_total", 30.0),
            ("master_batch_put_end_items_total", 100.0),
            ("master_exist_key_requests_total", 5.0),
        ]);
        let rates = rates(&before, &now, Duration::from_secs(2));
        assert_eq!((rates.puts, rates.exists), (60.0, 0.0));
    }
}
