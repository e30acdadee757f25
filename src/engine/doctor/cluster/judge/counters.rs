//! What the master's counters say of the time since it started.

use std::collections::BTreeSet;

use crate::engine::base::ByteSize;
use crate::engine::check::{Finding, Severity, Status};
use crate::engine::doctor::cluster::facts::Facts;
use crate::engine::doctor::cluster::judge::no_admin;
use crate::engine::doctor::{finding, plural, status};
use crate::engine::http::Samples;

/// Lookups after which somebody should have stored something.
const LOOKUPS_WORTH: f64 = 1000.0;
/// Puts after which somebody should have read something.
const PUTS_WORTH: f64 = 1000.0;
/// Puts without a read from which on that is no matter of a first hour any more.
const PUTS_MANY: f64 = 100_000.0;
/// Share of puts that find no room, from which on it is worth a warning.
const FAILED_SHARE: f64 = 0.01;
/// Share of put bytes that are evicted, from which on the cache turns over.
const THRASH_SHARE: f64 = 0.8;
/// Share of gets that hit, below which evictions are said to be the reason.
const HITS_LOW: f64 = 0.2;
/// A memory as full as that, with failing puts, is not kept clear by eviction. Upstream's watermark is 0.90.
const FULL_SHARE: f64 = 0.95;
/// A memory as full as that is near the watermark: what its counters tell may be going on.
const NEARLY_FULL_SHARE: f64 = 0.85;
/// Puts from which on shares mean something.
const PUTS_ENOUGH: f64 = 100.0;

/// Calls of one key and items of batches.
fn calls(page: &Samples, operation: &str) -> f64 {
    let one = page.sum(&format!("master_{operation}_requests_total")).unwrap_or(0.0);
    one + page.sum(&format!("master_batch_{operation}_items_total")).unwrap_or(0.0)
}

fn page(facts: &Facts) -> Option<&Samples> {
    facts.after.as_ref().or(facts.before.as_ref())
}

/// The master counts as many active clients as there are nodes.
pub fn clients(facts: &Facts) -> Status {
    let Some(now) = page(facts) else { return Status::Skipped(no_admin(facts)) };
    let Some(active) = now.sum("master_active_clients") else {
        return Status::Skipped("the master does not count its clients".to_owned());
    };
    let owners: BTreeSet<&str> =
        facts.mounted().iter().map(|segment| &*segment.client).filter(|client| !client.is_empty()).collect();
    let mut findings: Vec<Finding> = Vec::new();
    let ttl = "raise --client_ttl to 30 or 60 s, give the master at least 4 RPC threads and a processor of its own";
    if active < owners.len() as f64 {
        findings.push(finding(
            "clients-alive",
            Severity::Warning,
            "owners of mounted segments send no heartbeats: their segments and all objects on them go within client_ttl",
            format!("master_active_clients {active}, {} of segments", plural(owners.len(), "owner")),
            "see whether those processes run and reach the master; see nodes-answer for which",
        ));
    }
    if let (Some(before), Some(after)) = (&facts.before, &facts.after)
        && let (Some(was), Some(is)) = (before.sum("master_active_clients"), after.sum("master_active_clients"))
        && is < was
    {
        findings.push(finding(
            "clients-alive",
            Severity::Warning,
            "the master lost clients while this ran",
            format!("master_active_clients {was}, then {is}"),
            ttl,
        ));
    }
    let again = now.sum("master_remount_segment_requests_total").unwrap_or(0.0);
    let mounts = now.sum("master_mount_segment_requests_total").unwrap_or(0.0);
    // Every client of upstream's remounts once at its start; after a restart of the master all of them do.
    if again > mounts.max(1.0) * 2.0 + owners.len() as f64 {
        findings.push(finding(
            "clients-alive",
            Severity::Warning,
            "clients mount again and again: the master takes them for dead, and the whole cache goes with them",
            format!("master_remount_segment_requests_total {again}, master_mount_segment_requests_total {mounts}"),
            ttl,
        ));
    }
    status(findings, || format!("{active} active, {} of segments", plural(owners.len(), "owner")))
}

/// The counters of moved objects rise.
pub fn moved(facts: &Facts) -> Status {
    let (Some(before), Some(after)) = (&facts.before, &facts.after) else { return Status::Skipped(no_admin(facts)) };
    let done = facts.journeys.done;
    if done.puts == 0 {
        return Status::Skipped("no object was put".to_owned());
    }
    let mut short = Vec::new();
    for (operation, wanted) in [("put_start", done.puts), ("put_end", done.puts), ("get_replica_list", done.lookups)] {
        let moved = calls(after, operation) - calls(before, operation);
        if moved < wanted as f64 {
            short.push(format!("{operation} by {moved} of {wanted}"));
        }
    }
    if short.is_empty() {
        return Status::Passed(format!(
            "{} and {} lookups counted",
            plural(usize::try_from(done.puts).unwrap_or(0), "put"),
            done.lookups
        ));
    }
    Status::Found(vec![finding(
        "counters-move",
        Severity::Error,
        "the admin HTTP is that of another master than the one that took the objects",
        format!("its counters moved: {}", short.join(", ")),
        "name the admin port of this master with --admin HOST:PORT",
    )])
}

/// Puts that were started were also completed.
pub fn puts(facts: &Facts) -> Status {
    // The counters from before, so that this check's own objects are not taken for the cluster's.
    let Some(page) = facts.before.as_ref() else { return Status::Skipped(no_admin(facts)) };
    let (looked, put, got) = (calls(page, "exist_key"), calls(page, "put_start"), calls(page, "get_replica_list"));
    let keys = page.sum("master_key_count").unwrap_or(0.0);
    let mut findings = Vec::new();
    if looked >= LOOKUPS_WORTH && put == 0.0 && keys == 0.0 {
        findings.push(finding(
            "puts-arrive",
            Severity::Error,
            "clients look keys up and store nothing: puts fail before the master counts them, as with another release (-900)",
            format!("{looked} lookups, put_start requests and failures both 0"),
            "install one Mooncake release in every image; see the clients' logs for -900, and master-release above",
        ));
    }
    let valid = page.sum("valid_get_nums_").unwrap_or(0.0);
    if put >= PUTS_WORTH && got == 0.0 && valid == 0.0 {
        findings.push(finding(
            "puts-arrive",
            if put >= PUTS_MANY { Severity::Warning } else { Severity::Info },
            "pages are written and never read: the third tier costs and gives nothing",
            format!("{put} puts, {looked} lookups, valid_get_nums_ 0"),
            "compare the instances (mcctl doctor --sglang URL --sglang URL), and prove the way back with --probe-serving",
        ));
    }
    status(findings, || match put + looked {
        0.0 => "no traffic yet".to_owned(),
        _ => format!("{looked} lookups, {put} puts, {got} gets since it started"),
    })
}

/// Allocations do not fail for lack of space.
pub fn allocation(facts: &Facts) -> Status {
    let Some(page) = facts.before.as_ref() else { return Status::Skipped(no_admin(facts)) };
    let value = |name: &str| page.sum(name).unwrap_or(0.0);
    let puts = calls(page, "put_start");
    let failed = value("master_put_start_alloc_failures_total");
    let (used, capacity) = (value("master_allocated_bytes"), value("master_total_capacity_bytes"));
    let full = if capacity > 0.0 { used / capacity } else { 0.0 };
    // The counters are those of the master's whole life: what they tell is a warning only while it goes on.
    let grew = |name: &str| facts.after.as_ref().and_then(|after| after.sum(name)).is_some_and(|is| is > value(name));
    let fails = grew("master_put_start_alloc_failures_total");
    let evicts = grew("master_evicted_key_count") || grew("master_attempted_evictions_total");
    let is_now = full >= NEARLY_FULL_SHARE || fails || evicts;
    let (severity, when) = match is_now {
        true => (Severity::Warning, ""),
        false => (Severity::Info, "; since the master started, not while this ran"),
    };
    let mut findings: Vec<Finding> = Vec::new();
    if failed > 0.0 && puts >= PUTS_ENOUGH && failed / puts >= FAILED_SHARE
        || full >= FULL_SHARE && failed > 0.0
        || fails
    {
        findings.push(finding(
            "allocation",
            severity,
            "puts find no room (-200): leases hold more than eviction may take, or the memory is in pieces",
            format!(
                "{failed} of {puts} puts failed to allocate, {:.0} % of {} in use, {} evicted{when}",
                full * 100.0,
                size(capacity),
                plural_f(value("master_evicted_key_count"), "key")
            ),
            "lower --eviction_high_watermark_ratio (0.90) or --default_kv_lease_ttl, add memory, or fewer replicas than segments",
        ));
    }
    let attempted = value("master_attempted_evictions_total");
    let succeeded = value("master_successful_evictions_total");
    if attempted >= 10.0 && succeeded < attempted / 2.0 && failed > 0.0 {
        findings.push(finding(
            "allocation",
            severity,
            "eviction is tried and finds nothing that it may take: everything is under a lease or pinned",
            format!(
                "{succeeded} of {attempted} evictions took something, {} soft-pinned keys{when}",
                value("master_soft_pin_key_count")
            ),
            "shorten --default_kv_lease_ttl, pin less, or add memory",
        ));
    }
    let written = value("master_value_size_bytes_sum");
    let evicted = value("master_evicted_size_bytes");
    let (valid, total) = (value("valid_get_nums_"), value("total_get_nums_"));
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
            "the cache turns over before it is read: nearly all that is written is evicted again",
            format!("{} written, {} evicted, {} read{when}", size(written), size(evicted), size(read)),
            "it is smaller than the working set: see mcctl size-hugepages --trace for the size that pays, or add nodes",
        ));
    }
    status(findings, || {
        format!("{:.0} % of {} in use, {} failed", full * 100.0, size(capacity), plural_f(failed, "allocation"))
    })
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "bytes and counts; the cast saturates")]
fn size(bytes: f64) -> ByteSize {
    ByteSize(bytes as u64)
}

fn plural_f(n: f64, what: &str) -> String {
    format!("{n} {what}{}", if (n - 1.0).abs() < 0.5 { "" } else { "s" })
}

/// The counters of the disk tier agree with its configuration.
pub fn ssd(facts: &Facts) -> Status {
    let Some(page) = facts.before.as_ref() else { return Status::Skipped(no_admin(facts)) };
    let value = |name: &str| page.sum(name).unwrap_or(0.0);
    let (capacity, held) = (value("master_total_file_capacity_bytes"), value("file_cache_nums_"));
    if capacity == 0.0 && held == 0.0 {
        return Status::Skipped("no SSD tier is mounted".to_owned());
    }
    let (evicted, read) = (value("master_evicted_key_count"), value("file_cache_hit_nums_"));
    let used = value("master_allocated_file_size_bytes");
    let mut findings: Vec<Finding> = Vec::new();
    if held == 0.0 && (evicted > 0.0 || value("master_key_count") >= PUTS_WORTH) {
        findings.push(finding(
            "ssd-tier",
            Severity::Warning,
            "an SSD tier is mounted and nothing was ever written to it",
            format!(
                "{} of capacity, file_cache_nums_ 0, {} evicted from memory",
                size(capacity),
                plural_f(evicted, "key")
            ),
            "start mooncake_master with --enable_offload=true, too (a bucket is written only at 500 keys or 256 MB)",
        ));
    }
    if held >= PUTS_ENOUGH && read == 0.0 && value("total_get_nums_") >= PUTS_WORTH && evicted > 0.0 {
        findings.push(finding(
            "ssd-tier",
            Severity::Warning,
            "the SSD tier is written and never read",
            format!("file_cache_nums_ {held}, file_cache_hit_nums_ 0, {} evicted from memory", plural_f(evicted, "key")),
            "see whether the nodes' names are ones that others can call (SSD reads go to local_hostname), and --promotion_on_hit",
        ));
    }
    if capacity > 0.0 && used / capacity >= FULL_SHARE {
        findings.push(finding(
            "ssd-tier",
            Severity::Warning,
            "the SSD tier is full",
            format!("{} of {}", size(used), size(capacity)),
            "set MOONCAKE_OFFLOAD_BUCKET_EVICTION_POLICY=fifo (or lru) and a MOONCAKE_OFFLOAD_TOTAL_SIZE_LIMIT_BYTES that the disk has",
        ));
    }
    status(findings, || format!("{} of {}, {} read", size(used), size(capacity), plural_f(read, "time")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::doctor::cluster::facts::made_up::healthy;

    fn with(text: &str) -> Facts {
        let mut facts = healthy();
        facts.before = Some(Samples::parse(text));
        facts.after = facts.before.clone();
        facts
    }

    #[track_caller]
    fn says(status: &Status, part: &str) {
        let Status::Found(findings) = status else { panic!("nothing found: {status:?}") };
        assert!(findings.iter().any(|f| f.severity >= Severity::Warning && f.finding.contains(part)), "{findings:?}");
    }

    #[test]
    fn owners_without_heartbeats_and_clients_that_vanish_are_found() {
        assert!(matches!(clients(&healthy()), Status::Passed(_)));
        says(&clients(&with("master_active_clients 1\n")), "send no heartbeats");
        let mut dip = healthy();
        dip.before = Some(Samples::parse("master_active_clients 5\n"));
        says(&clients(&dip), "lost clients while this ran");
        let flapping = "master_active_clients 2\nmaster_remount_segment_requests_total 40\nmaster_mount_segment_requests_total 2\n";
        says(&clients(&with(flapping)), "mount again and again");
    }

    #[test]
    fn counters_that_do_not_move_are_those_of_another_master() {
        let mut facts = healthy();
        assert!(matches!(moved(&facts), Status::Passed(_)), "{:?}", moved(&facts));
        facts.after = facts.before.clone();
        says(&moved(&facts), "another master");
        facts.journeys.done.puts = 0;
        assert!(matches!(moved(&facts), Status::Skipped(_)));
    }

    #[test]
    fn lookups_without_a_put_are_another_release_and_puts_without_a_get_are_a_tier_that_nobody_reads() {
        assert!(matches!(puts(&healthy()), Status::Passed(_)));
        says(
            &puts(&with("master_batch_exist_key_items_total 5000\nmaster_put_start_requests_total 0\n")),
            "store nothing",
        );
        let written =
            "master_batch_exist_key_items_total 5000\nmaster_batch_put_start_items_total 400000\nvalid_get_nums_ 0\n";
        let few = written.replace("400000", "4000");
        let Status::Found(findings) = puts(&with(&few)) else { panic!("nothing found") };
        assert!(findings.iter().all(|finding| finding.severity == Severity::Info), "{findings:?}");
        says(&puts(&with(written)), "never read");
        let read = format!("{written}master_batch_get_replica_list_items_total 9\n");
        assert!(matches!(puts(&with(&read)), Status::Passed(_)));
    }

    #[test]
    fn failed_allocations_and_a_cache_that_turns_over_are_found_and_a_full_one_that_evicts_well_is_not() {
        let base = "master_batch_put_start_items_total 10000\nmaster_total_capacity_bytes 1000\n";
        let well = format!(
            "{base}master_allocated_bytes 900\nmaster_value_size_bytes_sum 5000\nmaster_evicted_size_bytes 4100\nvalid_get_nums_ 90\n\
             total_get_nums_ 100\nmem_cache_hit_bytes_total 9000\nmaster_attempted_evictions_total 50\nmaster_successful_evictions_total 50\n"
        );
        assert!(matches!(allocation(&with(&well)), Status::Passed(_)), "{:?}", allocation(&with(&well)));
        says(&allocation(&with(&format!("{well}master_put_start_alloc_failures_total 500\n"))), "find no room");
        let thrash = well.replace("mem_cache_hit_bytes_total 9000", "mem_cache_hit_bytes_total 10");
        says(&allocation(&with(&thrash)), "turns over before it is read");
        let stuck = format!(
            "{base}master_allocated_bytes 900\nmaster_attempted_evictions_total 50\nmaster_successful_evictions_total 2\nmaster_put_start_alloc_failures_total 1\n"
        );
        says(&allocation(&with(&stuck)), "finds nothing that it may take");
    }

    #[test]
    fn failures_of_long_ago_on_a_store_that_is_empty_now_are_no_warning_until_they_grow() {
        let page = |failed: u32| {
            Samples::parse(&format!(
                "master_batch_put_start_items_total 151\nmaster_total_capacity_bytes 1000\nmaster_allocated_bytes 0\n\
                 master_put_start_alloc_failures_total {failed}\n"
            ))
        };
        let mut facts = healthy();
        (facts.before, facts.after) = (Some(page(3)), Some(page(3)));
        let Status::Found(findings) = allocation(&facts) else { panic!("nothing found") };
        assert!(findings.iter().all(|finding| finding.severity == Severity::Info), "{findings:?}");
        facts.after = Some(page(4));
        says(&allocation(&facts), "find no room");
    }

    #[test]
    fn an_ssd_tier_that_is_not_written_not_read_or_full_is_found() {
        assert!(matches!(ssd(&healthy()), Status::Skipped(_)));
        let base = "master_total_file_capacity_bytes 1000\nmaster_evicted_key_count 50\n";
        says(&ssd(&with(base)), "nothing was ever written");
        let written = format!("{base}file_cache_nums_ 1000\ntotal_get_nums_ 5000\n");
        says(&ssd(&with(&written)), "never read");
        let used = format!("{written}file_cache_hit_nums_ 7\nmaster_allocated_file_size_bytes 500\n");
        assert!(matches!(ssd(&with(&used)), Status::Passed(_)));
        says(&ssd(&with(&used.replace("size_bytes 500", "size_bytes 990"))), "is full");
    }
}
