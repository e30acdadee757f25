//! Judges the master's counters, which start from zero when the master starts.

use std::collections::BTreeSet;

use crate::cluster::facts::ClusterFacts;
use crate::cluster::judge::no_admin;
use crate::{finding, status};
use mcctl_base::ByteSize;
use mcctl_base::check::{CheckStatus, Finding, Severity};
use mcctl_base::text::counted;
use mcctl_net::http::Samples;

/// Number of lookups above which puts are expected.
const LOOKUPS_WORTH: f64 = 1000.0;
/// Number of puts above which reads are expected.
const PUTS_WORTH: f64 = 1000.0;
/// Number of puts without a read above which the finding is a warning. Below it, the cache may
/// still be cold.
const PUTS_MANY: f64 = 100_000.0;
/// Share of puts without free space above which the finding is a warning.
const FAILED_SHARE: f64 = 0.01;
/// Share of the written bytes that was evicted, above which the cache counts as thrashing.
const THRASH_SHARE: f64 = 0.8;
/// Hit rate below which evictions are considered premature.
const HITS_LOW: f64 = 0.2;
/// Usage at which failing puts show that eviction is not keeping up. Upstream's watermark is 0.90.
const FULL_SHARE: f64 = 0.95;
/// Usage near the watermark. At this usage, problems that the counters show may be ongoing.
const NEARLY_FULL_SHARE: f64 = 0.85;
/// Minimum number of puts for meaningful ratios.
const PUTS_ENOUGH: f64 = 100.0;

/// The number of single-key calls plus the number of items in batch calls.
fn calls(page: &Samples, operation: &str) -> f64 {
    let one = page.sum(&format!("master_{operation}_requests_total")).unwrap_or(0.0);
    one + page.sum(&format!("master_batch_{operation}_items_total")).unwrap_or(0.0)
}

fn page(facts: &ClusterFacts) -> Option<&Samples> {
    facts.after.as_ref().or(facts.before.as_ref())
}

/// The master reports at least one active client per segment owner.
pub(super) fn clients(facts: &ClusterFacts) -> CheckStatus {
    let Some(now) = page(facts) else { return CheckStatus::Skipped(no_admin(facts)) };
    let Some(active) = now.sum("master_active_clients") else {
        return CheckStatus::Skipped("the master does not report its number of clients".to_owned());
    };
    let owners: BTreeSet<&str> =
        facts.mounted().iter().map(|segment| &*segment.client).filter(|client| !client.is_empty()).collect();
    let mut findings: Vec<Finding> = Vec::new();
    let ttl = "raise --client_ttl to 30 or 60 s, and run the master with at least 4 RPC threads on a dedicated CPU";
    if active < owners.len() as f64 {
        findings.push(finding(
            "clients-alive",
            Severity::Warning,
            "owners of mounted segments send no heartbeats: their segments and all objects in them are lost after client_ttl",
            format!("master_active_clients {active}, {}", counted(owners.len(), "segment owner")),
            "check that those processes are running and can reach the master; the check nodes-answer lists them",
        ));
    }
    if let (Some(before), Some(after)) = (&facts.before, &facts.after)
        && let (Some(was), Some(is)) = (before.sum("master_active_clients"), after.sum("master_active_clients"))
        && is < was
    {
        findings.push(finding(
            "clients-alive",
            Severity::Warning,
            "clients expired during this check",
            format!("master_active_clients {was}, then {is}"),
            ttl,
        ));
    }
    let again = now.sum("master_remount_segment_requests_total").unwrap_or(0.0);
    let mounts = now.sum("master_mount_segment_requests_total").unwrap_or(0.0);
    // Each upstream client remounts once at startup. After a master restart, all clients remount.
    if again > mounts.max(1.0) * 2.0 + owners.len() as f64 {
        findings.push(finding(
            "clients-alive",
            Severity::Warning,
            "clients remount repeatedly: the master keeps expiring them, and the whole cache is lost each time",
            format!("master_remount_segment_requests_total {again}, master_mount_segment_requests_total {mounts}"),
            ttl,
        ));
    }
    status(findings, || format!("{active} active, {}", counted(owners.len(), "segment owner")))
}

/// The counters of transferred objects increase.
pub(super) fn moved(facts: &ClusterFacts) -> CheckStatus {
    let (Some(before), Some(after)) = (&facts.before, &facts.after) else {
        return CheckStatus::Skipped(no_admin(facts));
    };
    let done = facts.probes.done;
    if done.puts == 0 {
        return CheckStatus::Skipped("no probe object was put".to_owned());
    }
    let mut short = Vec::new();
    for (operation, wanted) in [("put_start", done.puts), ("put_end", done.puts), ("get_replica_list", done.lookups)] {
        let moved = calls(after, operation) - calls(before, operation);
        if moved < wanted as f64 {
            short.push(format!("{operation} increased by {moved} instead of {wanted}"));
        }
    }
    if short.is_empty() {
        return CheckStatus::Passed(format!(
            "{} and {} lookups counted",
            counted(usize::try_from(done.puts).unwrap_or(0), "put"),
            done.lookups
        ));
    }
    CheckStatus::Found(vec![finding(
        "counters-move",
        Severity::Error,
        "the admin HTTP endpoint belongs to a different master than the one that accepted the objects",
        short.join(", "),
        "pass this master's admin address with --admin HOST:PORT",
    )])
}

/// The master can decode the requests of all clients.
pub(super) fn known_requests(facts: &ClusterFacts) -> CheckStatus {
    let Some(page) = facts.after.as_ref().or(facts.before.as_ref()) else {
        return CheckStatus::Skipped(no_admin(facts));
    };
    let name = "mcctl_master_unknown_requests_total";
    if facts.admins.iter().all(|admin| admin.is_mcctl != Some(true)) {
        return CheckStatus::Skipped("mooncake_master does not count them; see the check puts-arrive".to_owned());
    }
    let count = |page: &Samples| page.sum(name).unwrap_or(0.0);
    let Some(now) = page.sum(name) else {
        return CheckStatus::Skipped("this version of mcctl does not count them".to_owned());
    };
    if now == 0.0 {
        return CheckStatus::Passed("all requests were decoded".to_owned());
    }
    let is_rising = facts.before.as_ref().is_some_and(|before| now > count(before));
    CheckStatus::Found(vec![finding(
        "known-requests",
        if is_rising { Severity::Error } else { Severity::Warning },
        "the master cannot decode the requests of a client: its release is newer than this mcctl, or it damages its requests",
        format!("{name} {now}"),
        "find the client's host with mcctl status, and update mcctl, or install an older release there",
    )])
}

/// Every put that was started was also completed.
pub(super) fn puts(facts: &ClusterFacts) -> CheckStatus {
    // The counters before this check, which exclude its own objects.
    let Some(page) = facts.before.as_ref() else { return CheckStatus::Skipped(no_admin(facts)) };
    let looked = calls(page, "exist_key");
    let put = calls(page, "put_start");
    let got = calls(page, "get_replica_list");
    let keys = page.sum("master_key_count").unwrap_or(0.0);
    let mut findings = Vec::new();
    if looked >= LOOKUPS_WORTH && put == 0.0 && keys == 0.0 {
        findings.push(finding(
            "puts-arrive",
            Severity::Error,
            "clients look up keys but store nothing: their puts fail before the master counts them, as happens with a different release (-900)",
            format!("{looked} lookups, 0 put_start requests, 0 put_start failures"),
            "install the same Mooncake release in every image; look for -900 in the clients' logs, and see the check master-release",
        ));
    }
    let valid = page.sum("valid_get_nums_").unwrap_or(0.0);
    if put >= PUTS_WORTH && got == 0.0 && valid == 0.0 {
        findings.push(finding(
            "puts-arrive",
            if put >= PUTS_MANY { Severity::Warning } else { Severity::Info },
            "pages are written but never read: the L3 tier adds cost without benefit",
            format!("{put} puts, {looked} lookups, valid_get_nums_ 0"),
            "compare the instances (mcctl doctor --sglang URL --sglang URL), and verify that pages are loaded from the store with --probe-serving",
        ));
    }
    status(findings, || match put + looked {
        0.0 => "no traffic yet".to_owned(),
        _ => format!("{looked} lookups, {put} puts, {got} gets since the master started"),
    })
}

/// Allocations do not fail for lack of space.
pub(super) fn allocation(facts: &ClusterFacts) -> CheckStatus {
    let Some(page) = facts.before.as_ref() else { return CheckStatus::Skipped(no_admin(facts)) };
    let value = |name: &str| page.sum(name).unwrap_or(0.0);
    let puts = calls(page, "put_start");
    let failed = value("master_put_start_alloc_failures_total");
    let used = value("master_allocated_bytes");
    let capacity = value("master_total_capacity_bytes");
    let full = if capacity > 0.0 { used / capacity } else { 0.0 };
    // The counters cover the master's whole lifetime. A past problem is a warning only while it
    // continues.
    let grew = |name: &str| facts.after.as_ref().and_then(|after| after.sum(name)).is_some_and(|is| is > value(name));
    let fails = grew("master_put_start_alloc_failures_total");
    let evicts = grew("master_evicted_key_count") || grew("master_attempted_evictions_total");
    let is_now = full >= NEARLY_FULL_SHARE || fails || evicts;
    let (severity, when) = match is_now {
        true => (Severity::Warning, ""),
        false => (Severity::Info, "; since the master started, not during this check"),
    };
    let mut findings: Vec<Finding> = Vec::new();
    if failed > 0.0 && puts >= PUTS_ENOUGH && failed / puts >= FAILED_SHARE
        || full >= FULL_SHARE && failed > 0.0
        || fails
    {
        findings.push(finding(
            "allocation",
            severity,
            "puts fail for lack of free space (-200): leases protect too many objects from eviction, or the memory is fragmented",
            format!(
                "{failed} of {puts} puts failed to allocate, {:.0} % of {} in use, {} evicted{when}",
                full * 100.0,
                size(capacity),
                counted(value("master_evicted_key_count"), "key")
            ),
            "lower --eviction_high_watermark_ratio (0.90) or --default_kv_lease_ttl, add memory, or use fewer replicas than segments",
        ));
    }
    let attempted = value("master_attempted_evictions_total");
    let succeeded = value("master_successful_evictions_total");
    if attempted >= 10.0 && succeeded < attempted / 2.0 && failed > 0.0 {
        findings.push(finding(
            "allocation",
            severity,
            "eviction frees little or nothing: the objects are leased or pinned",
            format!(
                "{succeeded} of {attempted} evictions freed memory, {} soft-pinned keys{when}",
                value("master_soft_pin_key_count")
            ),
            "shorten --default_kv_lease_ttl, pin fewer objects, or add memory",
        ));
    }
    let written = value("master_value_size_bytes_sum");
    let evicted = value("master_evicted_size_bytes");
    let valid = value("valid_get_nums_");
    let total = value("total_get_nums_");
    let hits = if total > 0.0 { valid / total } else { 0.0 };
    let read = value("mem_cache_hit_bytes_total");
    if puts >= PUTS_WORTH
        && written > 0.0
        && evicted / written >= THRASH_SHARE
        && (hits < HITS_LOW || read < written * HITS_LOW)
    {
        findings.push(finding(
            "allocation",
            severity,
            "the cache thrashes: most of the data is evicted before it is read",
            format!("{} written, {} evicted, {} read{when}", size(written), size(evicted), size(read)),
            "the store is smaller than the working set: run mcctl size-hugepages --trace to find the useful size, or add nodes",
        ));
    }
    status(findings, || {
        format!("{:.0} % of {} in use, {} failed", full * 100.0, size(capacity), counted(failed, "allocation"))
    })
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "bytes and counts; the cast saturates")]
fn size(bytes: f64) -> ByteSize {
    ByteSize(bytes as u64)
}

/// The counters of the disk tier agree with its configuration.
pub(super) fn ssd(facts: &ClusterFacts) -> CheckStatus {
    let Some(page) = facts.before.as_ref() else { return CheckStatus::Skipped(no_admin(facts)) };
    let value = |name: &str| page.sum(name).unwrap_or(0.0);
    let capacity = value("master_total_file_capacity_bytes");
    let held = value("file_cache_nums_");
    if capacity == 0.0 && held == 0.0 {
        return CheckStatus::Skipped("no SSD tier is mounted".to_owned());
    }
    let evicted = value("master_evicted_key_count");
    let read = value("file_cache_hit_nums_");
    let used = value("master_allocated_file_size_bytes");
    let mut findings: Vec<Finding> = Vec::new();
    if held == 0.0 && (evicted > 0.0 || value("master_key_count") >= PUTS_WORTH) {
        findings.push(finding(
            "ssd-tier",
            Severity::Warning,
            "an SSD tier is mounted, but nothing was ever written to it",
            format!(
                "capacity {}, file_cache_nums_ 0, {} evicted from memory",
                size(capacity),
                counted(evicted, "key")
            ),
            "also start mooncake_master with --enable_offload=true (a bucket is written only when it reaches 500 keys or 256 MB)",
        ));
    }
    if held >= PUTS_ENOUGH && read == 0.0 && value("total_get_nums_") >= PUTS_WORTH && evicted > 0.0 {
        findings.push(finding(
            "ssd-tier",
            Severity::Warning,
            "the SSD tier is written to but never read from",
            format!("file_cache_nums_ {held}, file_cache_hit_nums_ 0, {} evicted from memory", counted(evicted, "key")),
            "check that other hosts can resolve the nodes' names (SSD reads go to local_hostname), and set --promotion_on_hit",
        ));
    }
    if capacity > 0.0 && used / capacity >= FULL_SHARE {
        findings.push(finding(
            "ssd-tier",
            Severity::Warning,
            "the SSD tier is full",
            format!("{} of {}", size(used), size(capacity)),
            "set MOONCAKE_OFFLOAD_BUCKET_EVICTION_POLICY=fifo (or lru) and MOONCAKE_OFFLOAD_TOTAL_SIZE_LIMIT_BYTES to the space available on the disk",
        ));
    }
    status(findings, || format!("{} of {}, read {}", size(used), size(capacity), counted(read, "time")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::facts::test_facts::healthy;

    fn with(text: &str) -> ClusterFacts {
        let mut facts = healthy();
        facts.before = Some(Samples::parse(text));
        facts.after = facts.before.clone();
        facts
    }

    #[track_caller]
    fn assert_found(status: &CheckStatus, part: &str) {
        let CheckStatus::Found(findings) = status else { panic!("nothing found: {status:?}") };
        assert!(findings.iter().any(|f| f.severity >= Severity::Warning && f.finding.contains(part)), "{findings:?}");
    }

    #[test]
    fn missing_heartbeats_and_expired_clients_are_found() {
        assert!(matches!(clients(&healthy()), CheckStatus::Passed(_)));
        assert_found(&clients(&with("master_active_clients 1\n")), "send no heartbeats");
        let mut dip = healthy();
        dip.before = Some(Samples::parse("master_active_clients 5\n"));
        assert_found(&clients(&dip), "expired during this check");
        let flapping = "master_active_clients 2\nmaster_remount_segment_requests_total 40\nmaster_mount_segment_requests_total 2\n";
        assert_found(&clients(&with(flapping)), "remount repeatedly");
    }

    #[test]
    fn counters_that_do_not_increase_belong_to_another_master() {
        let mut facts = healthy();
        assert!(matches!(moved(&facts), CheckStatus::Passed(_)), "{:?}", moved(&facts));
        facts.after = facts.before.clone();
        assert_found(&moved(&facts), "different master");
        facts.probes.done.puts = 0;
        assert!(matches!(moved(&facts), CheckStatus::Skipped(_)));
    }

    #[test]
    fn lookups_without_puts_and_puts_without_gets_are_found() {
        assert!(matches!(puts(&healthy()), CheckStatus::Passed(_)));
        assert_found(
            &puts(&with("master_batch_exist_key_items_total 5000\nmaster_put_start_requests_total 0\n")),
            "store nothing",
        );
        let written =
            "master_batch_exist_key_items_total 5000\nmaster_batch_put_start_items_total 400000\nvalid_get_nums_ 0\n";
        let few = written.replace("400000", "4000");
        let CheckStatus::Found(findings) = puts(&with(&few)) else { panic!("nothing found") };
        assert!(findings.iter().all(|finding| finding.severity == Severity::Info), "{findings:?}");
        assert_found(&puts(&with(written)), "never read");
        let read = format!("{written}master_batch_get_replica_list_items_total 9\n");
        assert!(matches!(puts(&with(&read)), CheckStatus::Passed(_)));
    }

    #[test]
    fn allocation_failures_and_thrashing_are_found() {
        let base = "master_batch_put_start_items_total 10000\nmaster_total_capacity_bytes 1000\n";
        let well = format!(
            "{base}master_allocated_bytes 900\nmaster_value_size_bytes_sum 5000\nmaster_evicted_size_bytes 4100\nvalid_get_nums_ 90\n\
             total_get_nums_ 100\nmem_cache_hit_bytes_total 9000\nmaster_attempted_evictions_total 50\nmaster_successful_evictions_total 50\n"
        );
        assert!(matches!(allocation(&with(&well)), CheckStatus::Passed(_)), "{:?}", allocation(&with(&well)));
        assert_found(
            &allocation(&with(&format!("{well}master_put_start_alloc_failures_total 500\n"))),
            "lack of free space",
        );
        let thrash = well.replace("mem_cache_hit_bytes_total 9000", "mem_cache_hit_bytes_total 10");
        assert_found(&allocation(&with(&thrash)), "the cache thrashes");
        let stuck = format!(
            "{base}master_allocated_bytes 900\nmaster_attempted_evictions_total 50\nmaster_successful_evictions_total 2\nmaster_put_start_alloc_failures_total 1\n"
        );
        assert_found(&allocation(&with(&stuck)), "eviction frees little");
    }

    #[test]
    fn past_allocation_failures_are_info_until_they_increase() {
        let page = |failed: u32| {
            Samples::parse(&format!(
                "master_batch_put_start_items_total 151\nmaster_total_capacity_bytes 1000\nmaster_allocated_bytes 0\n\
                 master_put_start_alloc_failures_total {failed}\n"
            ))
        };
        let mut facts = healthy();
        facts.before = Some(page(3));
        facts.after = Some(page(3));
        let CheckStatus::Found(findings) = allocation(&facts) else { panic!("nothing found") };
        assert!(findings.iter().all(|finding| finding.severity == Severity::Info), "{findings:?}");
        facts.after = Some(page(4));
        assert_found(&allocation(&facts), "lack of free space");
    }

    #[test]
    fn an_unused_or_full_ssd_tier_is_found() {
        assert!(matches!(ssd(&healthy()), CheckStatus::Skipped(_)));
        let base = "master_total_file_capacity_bytes 1000\nmaster_evicted_key_count 50\n";
        assert_found(&ssd(&with(base)), "nothing was ever written");
        let written = format!("{base}file_cache_nums_ 1000\ntotal_get_nums_ 5000\n");
        assert_found(&ssd(&with(&written)), "never read");
        let used = format!("{written}file_cache_hit_nums_ 7\nmaster_allocated_file_size_bytes 500\n");
        assert!(matches!(ssd(&with(&used)), CheckStatus::Passed(_)));
        assert_found(&ssd(&with(&used.replace("size_bytes 500", "size_bytes 990"))), "is full");
    }
}
