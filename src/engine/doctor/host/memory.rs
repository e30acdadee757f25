//! Regular (non-hugepage) memory, overcommit and shared memory.

use crate::host::HostFacts;
use crate::{find, status};
use mcctl_base::ByteSize;
use mcctl_base::check::{Check, CheckStatus, Severity};
use mcctl_deploy::plan::guard;
use mcctl_sys::host::parse_meminfo;
use mcctl_sys::procfs;

/// By default, a Docker container has less shared memory than this (64 MiB).
const SHARED_MIN: u64 = ByteSize::GIB;

pub(super) fn memory(facts: &HostFacts, check: &Check) -> CheckStatus {
    let Some(memory) = facts.text("/proc/meminfo").and_then(|text| parse_meminfo(&text)) else {
        return CheckStatus::Skipped("/proc/meminfo cannot be read".to_owned());
    };
    let seen = format!("MemAvailable is {} of {}", ByteSize(memory.available), ByteSize(memory.total));
    let mut findings = Vec::new();
    if let Some(need) = facts.intent.memory.filter(|need| *need > memory.available) {
        findings.push(find(
            check,
            Severity::Error,
            format!("the plan needs {}, but {} is available: processes will be OOM-killed when they first use their memory", ByteSize(need), ByteSize(memory.available)),
            seen.clone(),
            "reduce the segments or --hicache-size (mcctl size-hugepages --max-fit finds the largest sizes that fit), or free memory",
        ));
    }
    let guarded = facts.intent.guard.or(facts.intent.memory.map(|need| need.saturating_add(guard::RESERVE_BYTES)));
    if let Some(need) = guarded.filter(|need| findings.is_empty() && *need > memory.available) {
        let severity = if facts.intent.guard.is_some() { Severity::Error } else { Severity::Warning };
        findings.push(find(
            check,
            severity,
            format!("SGLang will refuse to start with HiCache: its startup memory check requires {} of regular (non-hugepage) memory, including a 10 GiB reserve, even with huge pages", ByteSize(need)),
            seen.clone(),
            "reduce --hicache-size: mcctl size-hugepages --max-fit finds the largest size that this check accepts",
        ));
    }
    if facts.intent.memory.is_none() && facts.intent.guard.is_none() && memory.available < guard::RESERVE_BYTES {
        findings.push(find(
            check,
            Severity::Info,
            "SGLang will refuse to start with HiCache on this host: its startup memory check keeps a 10 GiB reserve, and less than that is available",
            seen.clone(),
            "no action needed for a master or a store node; SGLang needs a host with more memory",
        ));
    }
    status(findings, || seen)
}

pub(super) fn overcommit(facts: &HostFacts, check: &Check) -> CheckStatus {
    let Some(mode) = facts.text("/proc/sys/vm/overcommit_memory") else {
        return CheckStatus::Skipped("/proc/sys/vm/overcommit_memory cannot be read".to_owned());
    };
    if mode != "2" {
        return CheckStatus::Passed(format!("vm.overcommit_memory={mode}"));
    }
    let memory = facts.text("/proc/meminfo").and_then(|text| procfs::meminfo(&text));
    let left = memory.and_then(|memory| Some(memory.commit_limit?.saturating_sub(memory.committed_as)));
    let short = facts.intent.memory.zip(left).is_some_and(|(need, left)| need > left);
    let evidence = match left {
        Some(left) => {
            format!("vm.overcommit_memory=2, {} can still be mapped (CommitLimit minus Committed_AS)", ByteSize(left))
        }
        None => "vm.overcommit_memory=2".to_owned(),
    };
    let finding = "the kernel charges memory when it is mapped: the full size of a segment counts, and a mapping beyond the limit fails";
    let severity = if short { Severity::Error } else { Severity::Info };
    CheckStatus::Found(vec![find(
        check,
        severity,
        finding,
        evidence,
        "sysctl -w vm.overcommit_memory=0, or raise vm.overcommit_ratio",
    )])
}

pub(super) fn shared(facts: &HostFacts, check: &Check) -> CheckStatus {
    let mounts = facts.text("/proc/self/mounts").or_else(|| facts.text("/proc/mounts")).unwrap_or_default();
    // A later mount hides an earlier one.
    let mount = procfs::mounts(&mounts).into_iter().rfind(|mount| mount.fs_file == "/dev/shm");
    let Some(mount) = mount else { return CheckStatus::Skipped("/proc/self/mounts has no /dev/shm".to_owned()) };
    let Some(Some(size)) = mount.fs_mntops.get("size") else {
        return CheckStatus::Passed("/dev/shm may use half of the host's memory".to_owned());
    };
    let bytes = size.parse::<ByteSize>().map_or(u64::MAX, |size| size.0);
    let seen = format!("/dev/shm is mounted with size={size}");
    match facts.container() {
        Some(by) if bytes < SHARED_MIN => {
            let severity = if facts.intent.environment.keys().any(|name| name.starts_with("SGLANG_")) {
                Severity::Warning
            } else {
                Severity::Info
            };
            let finding = format!(
                "{} of shared memory is too little: SGLang's processes exchange tensors through it",
                ByteSize(bytes)
            );
            let remedy = "docker: --ipc=host or --shm-size=128g; Kubernetes: an emptyDir with medium Memory at /dev/shm; a store does not need it";
            CheckStatus::Found(vec![find(check, severity, finding, format!("{seen}, in {by}"), remedy)])
        }
        _ => CheckStatus::Passed(seen),
    }
}
