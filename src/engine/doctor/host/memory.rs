//! Ordinary memory.

use crate::engine::base::ByteSize;
use crate::engine::check::{Check, Severity, Status};
use crate::engine::doctor::host::Look;
use crate::engine::doctor::{find, status};
use crate::engine::plan::guard;
use crate::engine::sys::host::parse_meminfo;

/// A container of docker gets this much shared memory when nobody says more.
const SHARED_MIN: u64 = ByteSize::GIB;

pub(super) fn memory(look: &Look, check: &Check) -> Status {
    let Some(memory) = look.text("/proc/meminfo").and_then(|text| parse_meminfo(&text)) else {
        return Status::Skipped("/proc/meminfo cannot be read".to_owned());
    };
    let seen = format!("MemAvailable is {} of {}", ByteSize(memory.available), ByteSize(memory.total));
    let mut findings = Vec::new();
    if let Some(need) = look.intent.memory.filter(|need| *need > memory.available) {
        findings.push(find(
            check,
            Severity::Error,
            format!("{} are planned and {} are available: processes will be killed, when they touch their memory and not before", ByteSize(need), ByteSize(memory.available)),
            seen.clone(),
            "make segments or --hicache-size smaller (mcctl size-hugepages --fit finds the largest that fit), or stop what takes the memory",
        ));
    }
    let guarded = look.intent.guard.or(look.intent.memory.map(|need| need.saturating_add(guard::RESERVE_BYTES)));
    if let Some(need) = guarded.filter(|need| findings.is_empty() && *need > memory.available) {
        let severity = if look.intent.guard.is_some() { Severity::Error } else { Severity::Warning };
        findings.push(find(
            check,
            severity,
            format!("SGLang refuses to start with HiCache: its guard counts ordinary memory less 10 GiB, also where huge pages are used, and wants {}", ByteSize(need)),
            seen.clone(),
            "make --hicache-size smaller: mcctl size-hugepages --fit finds the largest that the guard lets through",
        ));
    }
    if look.intent.memory.is_none() && look.intent.guard.is_none() && memory.available < guard::RESERVE_BYTES {
        findings.push(find(
            check,
            Severity::Info,
            "SGLang will not start with HiCache here: its guard leaves 10 GiB alone, and less is available",
            seen.clone(),
            "nothing for a master or a store node; for SGLang a host with more memory",
        ));
    }
    status(findings, || seen)
}

pub(super) fn overcommit(look: &Look, check: &Check) -> Status {
    let Some(mode) = look.text("/proc/sys/vm/overcommit_memory") else {
        return Status::Skipped("/proc/sys/vm/overcommit_memory cannot be read".to_owned());
    };
    if mode != "2" {
        return Status::Passed(format!("vm.overcommit_memory={mode}"));
    }
    let kib = |name: &str| look.field("/proc/meminfo", name)?.strip_suffix(" kB")?.trim().parse::<u64>().ok();
    let left = kib("CommitLimit").zip(kib("Committed_AS")).map(|(limit, used)| limit.saturating_sub(used) << 10);
    let short = look.intent.memory.zip(left).is_some_and(|(need, left)| need > left);
    let evidence = match left {
        Some(left) => format!(
            "vm.overcommit_memory=2, and {} may still be mapped (CommitLimit less Committed_AS)",
            ByteSize(left)
        ),
        None => "vm.overcommit_memory=2".to_owned(),
    };
    let finding = "the kernel counts memory when it is mapped: a segment takes its whole size at once, and a mapping above the limit is refused";
    let severity = if short { Severity::Error } else { Severity::Info };
    Status::Found(vec![find(
        check,
        severity,
        finding,
        evidence,
        "sysctl -w vm.overcommit_memory=0, or raise vm.overcommit_ratio",
    )])
}

pub(super) fn shared(look: &Look, check: &Check) -> Status {
    let mounts = look.text("/proc/self/mounts").or_else(|| look.text("/proc/mounts")).unwrap_or_default();
    // device, folder, type, options
    let options = mounts.lines().rev().find_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        (fields.get(1) == Some(&"/dev/shm")).then(|| (*fields.get(3).unwrap_or(&"")).to_owned())
    });
    let Some(options) = options else { return Status::Skipped("/proc/self/mounts has no /dev/shm".to_owned()) };
    let Some(size) = options.split(',').find_map(|option| option.strip_prefix("size=")) else {
        return Status::Passed("/dev/shm may take half of the memory".to_owned());
    };
    let bytes = size.parse::<ByteSize>().map_or(u64::MAX, |size| size.0);
    let seen = format!("/dev/shm is mounted with size={size}");
    match look.container() {
        Some(by) if bytes < SHARED_MIN => {
            let severity = if look.intent.environment.keys().any(|name| name.starts_with("SGLANG_")) {
                Severity::Warning
            } else {
                Severity::Info
            };
            let finding = format!(
                "{} of shared memory is too little for SGLang's processes, which exchange tensors through it",
                ByteSize(bytes)
            );
            let remedy = "docker: --ipc=host or --shm-size=128g; Kubernetes: an emptyDir of medium Memory at /dev/shm; a store needs none";
            Status::Found(vec![find(check, severity, finding, format!("{seen}, in {by}"), remedy)])
        }
        _ => Status::Passed(seen),
    }
}
