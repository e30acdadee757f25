//! A master's state at one time, and the rates of its operations between two such states.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;

use crate::engine::admin::types::{HaStatusReport, MasterHealth, SegmentDetail};
use crate::engine::admin::{AdminClient, AdminError};
use crate::engine::base::Mono;
use crate::engine::env::Env;

/// The state of a master, from several responses of its admin HTTP endpoint.
#[derive(Clone, Debug)]
pub struct MasterStatus {
    /// When the metrics were read.
    pub at: Mono,
    pub health: MasterHealth,
    /// The mounted segments; empty for a master that is not serving.
    pub segments: Vec<SegmentDetail>,
    /// Time since the last heartbeat, by client ID; `None` if the master does not report heartbeats (`mooncake_master` does not).
    pub heartbeats: Option<BTreeMap<String, Duration>>,
    /// The metrics without labels, by name.
    metrics: BTreeMap<String, f64>,
    /// The master's part in its cluster, if it is in one.
    pub ha: Option<HaStatusReport>,
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
        let heartbeats = heartbeats.map(|all| {
            all.into_iter().map(|one| (one.client_id, Duration::from_millis(one.last_heartbeat_ms))).collect()
        });
        let (at, metrics) = (env.now(), admin.metrics().await?);
        let metrics = metrics.plain().map(|(name, value)| (name.to_owned(), value)).collect();
        let ha = admin.ha_status().await?;
        Ok(MasterStatus { at, health, segments, heartbeats, metrics, ha })
    }

    /// The value of the metric `name`, a count or a size; 0 if the master does not report it.
    pub fn metric(&self, name: &str) -> u64 {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "the metrics are counts and sizes; the cast saturates"
        )]
        self.metrics.get(name).map_or(0, |value| *value as u64)
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
