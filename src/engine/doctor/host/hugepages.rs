//! Huge pages: the host's and its NUMA nodes' pools, compared with the planned pages.

use crate::host::{HostFacts, HugePageDemand};
use crate::{find, status};
use mcctl_base::ByteSize;
use mcctl_base::check::{Check, CheckStatus, Severity};
use mcctl_deploy::plan::size_text;
use mcctl_sys::host::parse_meminfo;
use mcctl_sys::hugetlb::parse_list;
use mcctl_sys::reserve::{kept_bytes, leaves_enough};

const POOLS: &str = "/sys/kernel/mm/hugepages";
/// The page size that a store uses by default.
const DEFAULT_BYTES: u64 = 2 << 20;

/// Huge pages of one size.
struct HugePageSupply {
    kib: u64,
    total: u64,
    /// Free pages without reservations, plus the pages that overcommit may add.
    available: u64,
}

fn pools(facts: &HostFacts) -> Vec<HugePageSupply> {
    let names = facts.tree.names(POOLS).ok().flatten().unwrap_or_default();
    let pool = |name: &String| {
        let kib = name.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse().ok()?;
        let read = |file: &str| facts.number(&format!("{POOLS}/{name}/{file}"));
        let zero = |file: &str| read(file).unwrap_or(0);
        let grow = zero("nr_overcommit_hugepages").saturating_sub(zero("surplus_hugepages"));
        let free = zero("free_hugepages").saturating_sub(zero("resv_hugepages"));
        Some(HugePageSupply { kib, total: read("nr_hugepages")?, available: free.saturating_add(grow) })
    };
    names.iter().filter_map(pool).collect()
}

/// The page size that processes request.
fn wanted_bytes(facts: &HostFacts) -> u64 {
    let named = facts.intent.variable("MC_STORE_HUGEPAGE_SIZE").and_then(|text| size_text::huge_page(text).ok());
    facts.intent.pages.map_or(named.unwrap_or(DEFAULT_BYTES), |pages| pages.bytes)
}

pub(super) fn free(facts: &HostFacts, check: &Check) -> CheckStatus {
    let pools = pools(facts);
    let Some(HugePageDemand { bytes, count }) = facts.intent.pages else {
        return match pools.iter().filter(|pool| pool.total > 0).map(describe).collect::<Vec<_>>() {
            none if none.is_empty() => CheckStatus::Passed("no huge pages are reserved or planned".to_owned()),
            some => CheckStatus::Passed(some.join(", ")),
        };
    };
    let size = ByteSize(bytes);
    let Some(pool) = pools.iter().find(|pool| pool.kib == bytes / 1024) else {
        let finding = format!("{count} huge pages of {size} are planned, but this kernel does not support that size");
        let evidence = format!(
            "{POOLS} contains {}",
            if pools.is_empty() {
                "nothing".to_owned()
            } else {
                pools.iter().map(describe).collect::<Vec<_>>().join(", ")
            }
        );
        let remedy = "use 2 MiB pages, or boot with hugepagesz=1G hugepages=N if the CPU supports them";
        return CheckStatus::Found(vec![find(check, Severity::Error, finding, evidence, remedy)]);
    };
    if pool.available >= count {
        return CheckStatus::Passed(format!(
            "{} of {} pages of {size} are free, {count} planned",
            pool.available, pool.total
        ));
    }
    let finding = format!(
        "{count} huge pages of {size} are planned, but {} are available: mmap fails with errno 12, and the store or SGLang does not start",
        pool.available
    );
    let missing = count - pool.available;
    let remedy = remedy(facts, bytes.saturating_mul(missing), || {
        let file = format!("{POOLS}/hugepages-{}kB/nr_hugepages", pool.kib);
        format!(
            "echo {} > {file} (mcctl size-hugepages --apply sets it per NUMA node and verifies the result)",
            pool.total.saturating_add(missing)
        )
    });
    CheckStatus::Found(vec![find(check, Severity::Error, finding, describe(pool), remedy)])
}

/// How to reserve `missing` bytes of huge pages: `command`, if this host can run it. A reservation
/// of nearly all memory stops the host, and SGLang does not start without regular memory.
fn remedy(facts: &HostFacts, missing: u64, command: impl FnOnce() -> String) -> String {
    let Some(memory) = facts.text("/proc/meminfo").and_then(|text| parse_meminfo(&text)) else {
        return "mcctl size-hugepages --apply, which verifies that the memory suffices".to_owned();
    };
    let regular = facts.intent.guard.max(facts.intent.memory).unwrap_or(0);
    if leaves_enough(missing, regular, memory.available) {
        return command();
    }
    let regular = regular.max(kept_bytes(memory.available));
    format!(
        "the missing pages need {}, and {} must remain, but only {} is available: use a larger host, or smaller sizes (mcctl size-hugepages --max-fit)",
        ByteSize(missing),
        ByteSize(regular),
        ByteSize(memory.available)
    )
}

fn describe(pool: &HugePageSupply) -> String {
    format!("{} of {} pages of {} free", pool.available, pool.total, ByteSize(pool.kib.saturating_mul(1024)))
}

pub(super) fn per_node(facts: &HostFacts, check: &Check) -> CheckStatus {
    let kib = wanted_bytes(facts) / 1024;
    let nodes = facts.text("/sys/devices/system/node/has_memory").map(|text| parse_list(&text)).unwrap_or_default();
    let free = |node: u32| {
        facts.number(&format!("/sys/devices/system/node/node{node}/hugepages/hugepages-{kib}kB/free_hugepages"))
    };
    let pools: Vec<(u32, u64)> = nodes.iter().filter_map(|node| Some((*node, free(*node)?))).collect();
    if pools.is_empty() {
        return CheckStatus::Skipped("the kernel does not report huge pages per NUMA node".to_owned());
    }
    let short = |(node, needed): &(u32, u64)| {
        let free = pools.iter().find(|(of, _)| of == node).map_or(0, |(_, free)| *free);
        needed.saturating_sub(free)
    };
    // The nodes' commands are run together, and share the available memory.
    let missing = facts.intent.pages_per_node.iter().map(short).fold(0, u64::saturating_add);
    let seen = pools.iter().map(|(node, free)| format!("node {node}: {free} free")).collect::<Vec<_>>().join(", ");
    let mut findings = Vec::new();
    for (node, needed) in &facts.intent.pages_per_node {
        let free = pools.iter().find(|(of, _)| of == node).map_or(0, |(_, free)| *free);
        if free < *needed {
            let finding = format!(
                "NUMA node {node} has {free} free huge pages, but {needed} are planned: memory bound to it fails on first use with SIGBUS"
            );
            let remedy = remedy(facts, missing.saturating_mul(kib.saturating_mul(1024)), || {
                let file = format!("/sys/devices/system/node/node{node}/hugepages/hugepages-{kib}kB/nr_hugepages");
                let total = facts.number(&file).unwrap_or(free).saturating_add(*needed - free);
                format!("echo {total} > {file}, or run mcctl size-hugepages --apply")
            });
            findings.push(find(check, Severity::Error, finding, seen.clone(), remedy));
        }
    }
    let most = pools.iter().map(|p| p.1).max().unwrap_or(0);
    let least = pools.iter().map(|p| p.1).min().unwrap_or(0);
    if findings.is_empty() && facts.intent.pages_per_node.is_empty() && most > 0 && least == 0 {
        let finding = "only some NUMA nodes have free huge pages: allocations bound to the other nodes fail";
        let remedy = "reserve them per node: mcctl size-hugepages --apply";
        findings.push(find(check, Severity::Info, finding, seen.clone(), remedy));
    }
    status(findings, || seen)
}

pub(super) fn size(facts: &HostFacts, check: &Check) -> CheckStatus {
    let bytes = wanted_bytes(facts);
    let pools = pools(facts);
    // Pages in use count as well, because the process that uses them is already running.
    let own = pools.iter().find(|pool| pool.kib == bytes / 1024).map_or(0, |pool| pool.total.max(pool.available));
    let others: Vec<&HugePageSupply> = pools.iter().filter(|pool| pool.kib != bytes / 1024 && pool.total > 0).collect();
    let asked = facts.intent.pages.is_some() || facts.intent.environment.contains_key("MC_STORE_USE_HUGEPAGE");
    if own > 0 || others.is_empty() {
        return CheckStatus::Passed(format!("{own} pages of {}", ByteSize(bytes)));
    }
    let finding = format!("huge pages are reserved, but not in the size that processes request ({})", ByteSize(bytes));
    let severity = if asked { Severity::Error } else { Severity::Info };
    let evidence = others.iter().map(|pool| describe(pool)).collect::<Vec<_>>().join(", ");
    let remedy = "set MC_STORE_HUGEPAGE_SIZE to the reserved size (2MB or 1GB), or reserve pages of the requested size";
    CheckStatus::Found(vec![find(check, severity, finding, evidence, remedy)])
}

pub(super) fn switch(facts: &HostFacts, check: &Check) -> CheckStatus {
    let Some(value) = facts.intent.environment.get("MC_STORE_USE_HUGEPAGE") else {
        return CheckStatus::Passed("MC_STORE_USE_HUGEPAGE is not set".to_owned());
    };
    let pool = pools(facts).into_iter().find(|pool| pool.kib == wanted_bytes(facts) / 1024);
    let (total, own) = pool.map_or((0, 0), |pool| (pool.total, pool.available));
    if own > 0 {
        return CheckStatus::Passed(format!("MC_STORE_USE_HUGEPAGE={value}, {own} pages are available"));
    }
    if total > 0 {
        return CheckStatus::Found(vec![find(
            check,
            Severity::Info,
            "all huge pages are in use: normal for a running store, but no other process can use huge pages",
            format!("MC_STORE_USE_HUGEPAGE={value}, 0 of {total} pages are free"),
            "reserve more before starting another process (mcctl size-hugepages --apply)",
        )]);
    }
    let finding = "the variable enables huge pages regardless of its value, but no pages are available: the store (mmap failed, errno=12) and SGLang with HiCache do not start";
    let evidence = format!("MC_STORE_USE_HUGEPAGE={value}, 0 pages of {} are available", ByteSize(wanted_bytes(facts)));
    let remedy = "reserve pages (mcctl size-hugepages --apply), or unset MC_STORE_USE_HUGEPAGE";
    CheckStatus::Found(vec![find(check, Severity::Error, finding, evidence, remedy)])
}
