//! Huge pages: the pools of the host and of its NUMA nodes against what is planned.

use crate::engine::base::ByteSize;
use crate::engine::check::{Check, Severity, Status};
use crate::engine::doctor::host::{Look, Pages};
use crate::engine::doctor::{find, status};
use crate::engine::plan::size_text;
use crate::engine::sys::hugetlb::parse_list;

const POOLS: &str = "/sys/kernel/mm/hugepages";
/// What the store asks for when nobody names a size.
const DEFAULT_BYTES: u64 = 2 << 20;

/// Pages of one size.
struct Pool {
    kib: u64,
    total: u64,
    /// Free, not promised to anybody, and those by which the pool may grow.
    available: u64,
}

fn pools(look: &Look) -> Vec<Pool> {
    let names = look.tree.names(POOLS).ok().flatten().unwrap_or_default();
    let pool = |name: &String| {
        let kib = name.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse().ok()?;
        let read = |file: &str| look.number(&format!("{POOLS}/{name}/{file}"));
        let zero = |file: &str| read(file).unwrap_or(0);
        let grow = zero("nr_overcommit_hugepages").saturating_sub(zero("surplus_hugepages"));
        let free = zero("free_hugepages").saturating_sub(zero("resv_hugepages"));
        Some(Pool { kib, total: read("nr_hugepages")?, available: free.saturating_add(grow) })
    };
    names.iter().filter_map(pool).collect()
}

/// The size that processes ask for.
fn wanted_bytes(look: &Look) -> u64 {
    let named = look.intent.variable("MC_STORE_HUGEPAGE_SIZE").and_then(|text| size_text::huge_page(text).ok());
    look.intent.pages.map_or(named.unwrap_or(DEFAULT_BYTES), |pages| pages.bytes)
}

pub(super) fn free(look: &Look, check: &Check) -> Status {
    let pools = pools(look);
    let Some(Pages { bytes, count }) = look.intent.pages else {
        return match pools.iter().filter(|pool| pool.total > 0).map(describe).collect::<Vec<_>>() {
            none if none.is_empty() => Status::Passed("no huge pages are reserved, and none are planned".to_owned()),
            some => Status::Passed(some.join(", ")),
        };
    };
    let size = ByteSize(bytes);
    let Some(pool) = pools.iter().find(|pool| pool.kib == bytes / 1024) else {
        let finding = format!("{count} huge pages of {size} are planned, and this kernel has no such size");
        let evidence = format!(
            "{POOLS} has {}",
            if pools.is_empty() {
                "nothing".to_owned()
            } else {
                pools.iter().map(describe).collect::<Vec<_>>().join(", ")
            }
        );
        let remedy = "take 2 MiB pages, or boot with hugepagesz=1G hugepages=N where the CPU has them";
        return Status::Found(vec![find(check, Severity::Error, finding, evidence, remedy)]);
    };
    if pool.available >= count {
        return Status::Passed(format!("{} free of {} pages of {size}, {count} planned", pool.available, pool.total));
    }
    let finding = format!(
        "{count} huge pages of {size} are planned and {} can be had: mmap fails with errno 12, and the store or SGLang does not start",
        pool.available
    );
    let remedy = format!(
        "sysctl -w vm.nr_hugepages={} (mcctl size-hugepages --apply does it per NUMA node and verifies it)",
        pool.total.saturating_add(count - pool.available)
    );
    Status::Found(vec![find(check, Severity::Error, finding, describe(pool), remedy)])
}

fn describe(pool: &Pool) -> String {
    format!("{} of {} pages of {} free", pool.available, pool.total, ByteSize(pool.kib.saturating_mul(1024)))
}

pub(super) fn per_node(look: &Look, check: &Check) -> Status {
    let kib = wanted_bytes(look) / 1024;
    let nodes = look.text("/sys/devices/system/node/has_memory").map(|text| parse_list(&text)).unwrap_or_default();
    let free = |node: u32| {
        look.number(&format!("/sys/devices/system/node/node{node}/hugepages/hugepages-{kib}kB/free_hugepages"))
    };
    let pools: Vec<(u32, u64)> = nodes.iter().filter_map(|node| Some((*node, free(*node)?))).collect();
    if pools.is_empty() {
        return Status::Skipped("the kernel tells no huge pages per NUMA node".to_owned());
    }
    let seen = pools.iter().map(|(node, free)| format!("node {node}: {free} free")).collect::<Vec<_>>().join(", ");
    let mut findings = Vec::new();
    for (node, needed) in &look.intent.pages_per_node {
        let free = pools.iter().find(|(of, _)| of == node).map_or(0, |(_, free)| *free);
        if free < *needed {
            let finding = format!(
                "node {node} has {free} huge pages free where {needed} are planned: memory bound to it fails at its first touch, with SIGBUS"
            );
            let remedy = format!(
                "echo PAGES > /sys/devices/system/node/node{node}/hugepages/hugepages-{kib}kB/nr_hugepages, or mcctl size-hugepages --apply"
            );
            findings.push(find(check, Severity::Error, finding, seen.clone(), remedy));
        }
    }
    let (most, least) = (pools.iter().map(|p| p.1).max().unwrap_or(0), pools.iter().map(|p| p.1).min().unwrap_or(0));
    if findings.is_empty() && look.intent.pages_per_node.is_empty() && most > 0 && least == 0 {
        let finding = "huge pages are free on some NUMA nodes only: memory that is bound to another one cannot be had";
        let remedy = "reserve them per node: mcctl size-hugepages --apply";
        findings.push(find(check, Severity::Info, finding, seen.clone(), remedy));
    }
    status(findings, || seen)
}

pub(super) fn size(look: &Look, check: &Check) -> Status {
    let bytes = wanted_bytes(look);
    let pools = pools(look);
    // Pages that are all in use are there: whoever has them runs.
    let own = pools.iter().find(|pool| pool.kib == bytes / 1024).map_or(0, |pool| pool.total.max(pool.available));
    let others: Vec<&Pool> = pools.iter().filter(|pool| pool.kib != bytes / 1024 && pool.total > 0).collect();
    let asked = look.intent.pages.is_some() || look.intent.environment.contains_key("MC_STORE_USE_HUGEPAGE");
    if own > 0 || others.is_empty() {
        return Status::Passed(format!("{own} pages of {}", ByteSize(bytes)));
    }
    let finding = format!("huge pages are reserved, but not in the size that processes ask for, {}", ByteSize(bytes));
    let severity = if asked { Severity::Error } else { Severity::Info };
    let evidence = others.iter().map(|pool| describe(pool)).collect::<Vec<_>>().join(", ");
    let remedy = "set MC_STORE_HUGEPAGE_SIZE to the size that is reserved (2MB or 1GB), or reserve the other one";
    Status::Found(vec![find(check, severity, finding, evidence, remedy)])
}

pub(super) fn switch(look: &Look, check: &Check) -> Status {
    let Some(value) = look.intent.environment.get("MC_STORE_USE_HUGEPAGE") else {
        return Status::Passed("MC_STORE_USE_HUGEPAGE is not set".to_owned());
    };
    let pool = pools(look).into_iter().find(|pool| pool.kib == wanted_bytes(look) / 1024);
    let (total, own) = pool.map_or((0, 0), |pool| (pool.total, pool.available));
    if own > 0 {
        return Status::Passed(format!("MC_STORE_USE_HUGEPAGE={value}, and {own} pages can be had"));
    }
    if total > 0 {
        return Status::Found(vec![find(
            check,
            Severity::Info,
            "all huge pages are in use: right for a store that runs, and nothing further starts with them",
            format!("MC_STORE_USE_HUGEPAGE={value}, and none of {total} pages is free"),
            "reserve more before another process is started (mcctl size-hugepages --apply)",
        )]);
    }
    let finding = "the variable asks for huge pages by being set, whatever to, and there are none: neither the store starts (mmap failed, errno=12) nor SGLang with HiCache";
    let evidence = format!("MC_STORE_USE_HUGEPAGE={value}, and no page of {} can be had", ByteSize(wanted_bytes(look)));
    let remedy = "reserve pages (mcctl size-hugepages --apply), or unset MC_STORE_USE_HUGEPAGE";
    Status::Found(vec![find(check, Severity::Error, finding, evidence, remedy)])
}
