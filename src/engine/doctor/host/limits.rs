//! Limits of a process: locked memory, open files.

use crate::engine::base::ByteSize;
use crate::engine::check::{Check, Severity, Status};
use crate::engine::doctor::find;
use crate::engine::doctor::host::Look;
use crate::engine::topology::{Memlock, Rdma};

/// The bit of CAP_IPC_LOCK in a set of capabilities.
const IPC_LOCK: u64 = 1 << 14;
/// Connections and files that a busy node has at least.
const FILES_MIN: u64 = 1024;
/// What is recommended for services.
const FILES: u64 = 65_536;

pub(super) fn memlock(look: &Look, check: &Check) -> Status {
    let Some(memlock) = look.host.memlock else {
        return Status::Skipped("/proc/self/limits does not tell how much memory may be locked".to_owned());
    };
    let soft = match memlock {
        Memlock { exempt: true, .. } => return Status::Passed("no limit: this process has CAP_IPC_LOCK".to_owned()),
        Memlock { soft_bytes: None, .. } => return Status::Passed("no limit".to_owned()),
        Memlock { soft_bytes: Some(soft), .. } => soft,
    };
    let total = look.host.nodes.iter().filter_map(|node| node.memory_bytes).fold(0, u64::saturating_add);
    let need = look.intent.locked.unwrap_or(if total > 0 { total } else { u64::MAX });
    let seen = format!("max locked memory is {}", ByteSize(soft));
    let severity = match (look.intent.is_rdma(), look.host.rdma) {
        _ if soft >= need => return Status::Passed(seen),
        (true, _) => Severity::Error,
        (false, Rdma::Devices) if look.intent.protocol.is_none() => Severity::Info,
        _ => return Status::Passed(format!("{seen}; without rdma nothing is registered, and nothing locked")),
    };
    let finding = match look.intent.locked {
        Some(need) => format!(
            "a process registers {} with RDMA devices and may lock {}: Failed to register memory, Cannot allocate memory [12]",
            ByteSize(need),
            ByteSize(soft)
        ),
        None => format!(
            "a process may lock {}, and what it registers with RDMA devices is locked: Failed to register memory, Cannot allocate memory [12]",
            ByteSize(soft)
        ),
    };
    let remedy = match (look.container(), memlock.hard_bytes) {
        (Some(_), _) => {
            "docker: --ulimit memlock=-1; Kubernetes has no such field: LimitMEMLOCK=infinity in containerd's unit, or root with IPC_LOCK"
        }
        (None, None) => "ulimit -l unlimited before the start (systemd: LimitMEMLOCK=infinity)",
        (None, Some(_)) => "systemd: LimitMEMLOCK=infinity; a login: memlock unlimited in /etc/security/limits.conf",
    };
    Status::Found(vec![find(check, severity, finding, seen, remedy)])
}

pub(super) fn ipc_lock(look: &Look, check: &Check) -> Status {
    let set = |name: &str| u64::from_str_radix(&look.field("/proc/self/status", name)?, 16).ok();
    let (Some(effective), Some(bounding)) = (set("CapEff"), set("CapBnd")) else {
        return Status::Skipped("/proc/self/status does not tell the capabilities".to_owned());
    };
    let uid = look.field("/proc/self/status", "Uid");
    let uid = uid.as_deref().and_then(|text| text.split_whitespace().nth(1)).unwrap_or("0").to_owned();
    let (has, may) = (effective & IPC_LOCK != 0, bounding & IPC_LOCK != 0);
    let in_container = look.container();
    if has || uid == "0" || !may || in_container.is_none() {
        return Status::Passed(format!("uid {uid}, CAP_IPC_LOCK {}", if has { "effective" } else { "absent" }));
    }
    let limited = matches!(look.host.memlock, Some(Memlock { soft_bytes: Some(_), .. }));
    let severity = match look.intent.is_rdma() && limited {
        true => Severity::Error,
        false => Severity::Info,
    };
    let finding = format!(
        "the container was given IPC_LOCK, which does nothing for uid {uid}: an added capability is effective for root only"
    );
    let evidence =
        format!("uid {uid}, CapBnd {bounding:016x}, CapEff {effective:016x}, in {}", in_container.unwrap_or_default());
    let remedy = "runAsUser: 0, or LimitMEMLOCK=infinity in containerd's unit (then the capability is not needed)";
    Status::Found(vec![find(check, severity, finding, evidence, remedy)])
}

pub(super) fn open_files(look: &Look, check: &Check) -> Status {
    let limits = look.text("/proc/self/limits").unwrap_or_default();
    let soft = limits.lines().find_map(|line| line.strip_prefix("Max open files")?.split_whitespace().next());
    let soft = match soft {
        None => return Status::Skipped("/proc/self/limits does not tell how many files may be open".to_owned()),
        Some("unlimited") => return Status::Passed("no limit".to_owned()),
        Some(text) => text.parse::<u64>().unwrap_or(0),
    };
    let severity = match soft {
        FILES.. => return Status::Passed(format!("{soft} files may be open")),
        FILES_MIN.. => Severity::Info,
        _ => Severity::Warning,
    };
    let finding = "a store with many clients has more connections open than this: further ones are refused";
    let remedy = "systemd: LimitNOFILE=1048576; docker: --ulimit nofile=1048576; a shell: ulimit -n 65536";
    Status::Found(vec![find(check, severity, finding, format!("max open files is {soft}"), remedy)])
}
