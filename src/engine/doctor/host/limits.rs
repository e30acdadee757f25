//! Process limits: locked memory, open files.

use crate::find;
use crate::host::HostFacts;
use mcctl_base::ByteSize;
use mcctl_base::check::{Check, CheckStatus, Severity};
use mcctl_sys::procfs;
use mcctl_transfer::topology::{Memlock, RdmaSupport};

/// The bit of `CAP_IPC_LOCK` in a capability set.
const IPC_LOCK: u64 = 1 << 14;
/// Minimum number of open connections and files that a busy node needs.
const FILES_MIN: u64 = 1024;
/// The recommended open-files limit for services.
const FILES: u64 = 65_536;

pub(super) fn memlock(facts: &HostFacts, check: &Check) -> CheckStatus {
    let Some(memlock) = facts.host.memlock else {
        return CheckStatus::Skipped("/proc/self/limits does not report the locked-memory limit".to_owned());
    };
    let soft = match memlock {
        Memlock { exempt: true, .. } => {
            return CheckStatus::Passed("no limit: this process has CAP_IPC_LOCK".to_owned());
        }
        Memlock { soft_bytes: None, .. } => return CheckStatus::Passed("no limit".to_owned()),
        Memlock { soft_bytes: Some(soft), .. } => soft,
    };
    let total = facts.host.nodes.iter().filter_map(|node| node.memory_bytes).fold(0, u64::saturating_add);
    let need = facts.intent.locked.unwrap_or(if total > 0 { total } else { u64::MAX });
    let seen = format!("max locked memory is {}", ByteSize(soft));
    let severity = match (facts.intent.is_rdma(), facts.host.rdma) {
        _ if soft >= need => return CheckStatus::Passed(seen),
        (true, _) => Severity::Error,
        (false, RdmaSupport::Devices) if facts.intent.protocol.is_none() => Severity::Info,
        _ => return CheckStatus::Passed(format!("{seen}; without RDMA, no memory is registered or locked")),
    };
    let finding = match facts.intent.locked {
        Some(need) => format!(
            "a process registers {} with RDMA devices but may lock only {}: Failed to register memory, Cannot allocate memory [12]",
            ByteSize(need),
            ByteSize(soft)
        ),
        None => format!(
            "a process may lock {}, and memory registered with RDMA devices is locked: Failed to register memory, Cannot allocate memory [12]",
            ByteSize(soft)
        ),
    };
    let remedy = match (facts.container(), memlock.hard_bytes) {
        (Some(_), _) => {
            "docker: --ulimit memlock=-1; Kubernetes (no field in the pod spec): LimitMEMLOCK=infinity in containerd's unit, or root with IPC_LOCK"
        }
        (None, None) => "run ulimit -l unlimited before starting the process (systemd: LimitMEMLOCK=infinity)",
        (None, Some(_)) => {
            "systemd: LimitMEMLOCK=infinity; login shells: memlock unlimited in /etc/security/limits.conf"
        }
    };
    CheckStatus::Found(vec![find(check, severity, finding, seen, remedy)])
}

pub(super) fn ipc_lock(facts: &HostFacts, check: &Check) -> CheckStatus {
    let status = facts.text("/proc/self/status").and_then(|text| procfs::status(&text));
    let Some((effective, bounding, uid)) = status.and_then(|status| Some((status.capeff, status.capbnd?, status.euid)))
    else {
        return CheckStatus::Skipped("/proc/self/status does not report the capabilities".to_owned());
    };
    let has = effective & IPC_LOCK != 0;
    let may = bounding & IPC_LOCK != 0;
    let in_container = facts.container();
    if has || uid == 0 || !may || in_container.is_none() {
        return CheckStatus::Passed(format!("uid {uid}, CAP_IPC_LOCK {}", if has { "effective" } else { "absent" }));
    }
    let limited = matches!(facts.host.memlock, Some(Memlock { soft_bytes: Some(_), .. }));
    let severity = match facts.intent.is_rdma() && limited {
        true => Severity::Error,
        false => Severity::Info,
    };
    let finding = format!(
        "the container has IPC_LOCK, but uid {uid} cannot use it: an added capability is effective only for root"
    );
    let evidence =
        format!("uid {uid}, CapBnd {bounding:016x}, CapEff {effective:016x}, in {}", in_container.unwrap_or_default());
    let remedy = "runAsUser: 0, or LimitMEMLOCK=infinity in containerd's unit (the capability is then not needed)";
    CheckStatus::Found(vec![find(check, severity, finding, evidence, remedy)])
}

pub(super) fn open_files(facts: &HostFacts, check: &Check) -> CheckStatus {
    let limits = facts.text("/proc/self/limits").and_then(|text| procfs::limits(&text));
    let soft = match limits.and_then(|limits| procfs::soft_and_hard(limits.max_open_files)) {
        None => return CheckStatus::Skipped("/proc/self/limits does not report the open-files limit".to_owned()),
        Some((None, _)) => return CheckStatus::Passed("no limit".to_owned()),
        Some((Some(soft), _)) => soft,
    };
    let severity = match soft {
        FILES.. => return CheckStatus::Passed(format!("max open files is {soft}")),
        FILES_MIN.. => Severity::Info,
        _ => Severity::Warning,
    };
    let finding =
        "a store with many clients needs more connections than this limit allows: additional connections are refused";
    let remedy = "systemd: LimitNOFILE=1048576; docker: --ulimit nofile=1048576; shell: ulimit -n 65536";
    CheckStatus::Found(vec![find(check, severity, finding, format!("max open files is {soft}"), remedy)])
}
