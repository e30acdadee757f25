//! The line that a master logs every ten seconds with `--enable_metric_reporting`.

use std::fmt::Write;
use std::time::Duration;

use crate::metrics::{BatchCount, CallCount, MasterCounters, MasterGauges};
use crate::view::HaView;
use mcctl_base::ByteSize;

/// Interval between two lines.
pub(crate) const LINE_INTERVAL: Duration = Duration::from_secs(10);

/// A line such as
/// `leader, 944 keys, 3 nodes, 0.2 GiB of 1 GiB; 120 gets/s, 15 puts/s, 0 failed calls/s`.
///
/// `before` and `now` are the counters at the last line and now, `seconds` apart. A standby reports
/// its copy of the state instead.
pub(crate) fn metrics_line(
    ha: Option<&HaView>,
    gauges: &MasterGauges,
    before: &MasterCounters,
    now: &MasterCounters,
    seconds: f64,
) -> String {
    if let Some(ha) = ha.filter(|ha| !ha.serving) {
        return standby_line(ha);
    }
    let mut line = String::new();
    if ha.is_some() {
        line.push_str("leader, ");
    }
    let rate = |of: fn(&MasterCounters) -> u64| match seconds > 0.0 {
        true => (of(now).saturating_sub(of(before)) as f64 / seconds).round(),
        false => 0.0,
    };
    let used = ByteSize(gauges.allocated_bytes);
    let capacity = ByteSize(gauges.capacity_bytes);
    let _ = write!(line, "{} keys, {} nodes, {used} of {capacity}", gauges.keys, gauges.clients);
    let _ = write!(line, "; {} gets/s, {} puts/s, {} failed calls/s", rate(gets), rate(puts), rate(failures));
    let evicted = now.evicted_keys.saturating_sub(before.evicted_keys);
    if evicted > 0 {
        let _ = write!(line, "; {evicted} keys evicted");
    }
    line
}

fn standby_line(ha: &HaView) -> String {
    let leader = ha.leader.as_deref().unwrap_or("no leader");
    let state = match &ha.not_promotable {
        None => "in sync".to_owned(),
        Some(why) => why.clone(),
    };
    let lag = ha.last.saturating_sub(ha.acked);
    format!("standby of {leader}, {} keys, {lag} changes missing: {state}", ha.objects)
}

/// Keys that were looked up.
fn gets(counters: &MasterCounters) -> u64 {
    succeeded(counters.get_replica_list) + items(counters.batch_get_replica_list)
}

/// Keys whose write was completed.
fn puts(counters: &MasterCounters) -> u64 {
    succeeded(counters.put_end) + items(counters.batch_put_end)
}

/// Failed calls and failed keys of batches. A lookup or a write of a key that does not exist, or
/// exists already, is one.
fn failures(counters: &MasterCounters) -> u64 {
    let calls = [counters.get_replica_list, counters.put_start, counters.put_end, counters.exist_key, counters.remove];
    let batches = [counters.batch_get_replica_list, counters.batch_put_start, counters.batch_put_end];
    calls.iter().map(|call| call.failures).sum::<u64>() + batches.iter().map(|batch| batch.failed_items).sum::<u64>()
}

fn succeeded(call: CallCount) -> u64 {
    call.requests.saturating_sub(call.failures)
}

fn items(batch: BatchCount) -> u64 {
    batch.items.saturating_sub(batch.failed_items)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_those_since_the_last_line() {
        let mut before = MasterCounters::default();
        before.batch_get_replica_list.items = 100;
        let mut now = before.clone();
        now.batch_get_replica_list.items += 1_200;
        now.batch_get_replica_list.failed_items += 200;
        now.put_end.requests += 50;
        now.evicted_keys = 7;
        let gauges = MasterGauges {
            keys: 944,
            clients: 3,
            allocated_bytes: ByteSize::GIB,
            capacity_bytes: 4 * ByteSize::GIB,
            ..MasterGauges::default()
        };
        let line = metrics_line(None, &gauges, &before, &now, 10.0);
        insta::assert_snapshot!(line);
    }

    #[test]
    fn a_standby_reports_its_copy() {
        let ha = HaView {
            leader: Some("10.0.0.1:50051".to_owned()),
            objects: 944,
            acked: 1_910,
            last: 1_912,
            ..HaView::default()
        };
        let counters = MasterCounters::default();
        let line = metrics_line(Some(&ha), &MasterGauges::default(), &counters, &counters, 10.0);
        insta::assert_snapshot!(line);
    }
}
