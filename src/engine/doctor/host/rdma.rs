//! RDMA devices: the findings of `mcctl devices` as checks with the same ids. Severity depends on
//! whether RDMA is requested.

use crate::find;
use crate::host::{DataProtocol, HostFacts};
use mcctl_base::check::{Check, CheckStatus, Severity};
use mcctl_transfer::topology::{self, DeviceFinding, ExclusionReason, FindingLevel, RdmaSupport};

/// With one of these findings, the device cannot transfer anything.
const FATAL: &[&str] =
    &["no-gid", "no-uverbs", "uverbs-closed", "no-libibverbs", "no-provider", "iwarp", "efa", "empty-gid-row"];

pub(super) fn devices(facts: &HostFacts, check: &Check) -> CheckStatus {
    let seen = match facts.host.rdma {
        RdmaSupport::NoKernelSupport => "the kernel has no /sys/class/infiniband".to_owned(),
        RdmaSupport::NoDevice => "/sys/class/infiniband is empty".to_owned(),
        RdmaSupport::Devices => {
            let names: Vec<&str> = facts.host.devices.iter().map(|device| device.name.as_str()).collect();
            names.join(", ")
        }
    };
    if !facts.intent.is_rdma() {
        return CheckStatus::Passed(match facts.intent.protocol {
            Some(DataProtocol::Tcp) => format!("the protocol is tcp: {seen}"),
            _ => seen,
        });
    }
    if !facts.choice.listed.is_empty() {
        return CheckStatus::Passed(seen);
    }
    let finding = "the protocol is rdma, but Mooncake finds no usable device: with auto discovery it falls back to TCP and only logs a warning (No RDMA devices found)";
    let remedy = "run mcctl devices to see what each device lacks; in a container, pass in /dev/infiniband/* and install ibverbs-providers; otherwise set MOONCAKE_PROTOCOL=tcp";
    CheckStatus::Found(vec![find(check, Severity::Error, finding, seen, remedy)])
}

pub(super) fn choice(facts: &HostFacts, check: &Check) -> CheckStatus {
    if facts.host.devices.is_empty() {
        return CheckStatus::Skipped("no RDMA device on this host".to_owned());
    }
    let odd: Vec<String> = facts
        .choice
        .left_out
        .iter()
        .filter(|left| facts.choice.listed.contains(&left.device) && left.why != ExclusionReason::Filtered)
        .map(|left| format!("{}: {}", left.device, left.why))
        .collect();
    let picked: Vec<&str> = facts.choice.picked.iter().map(|picked| picked.device.as_str()).collect();
    if odd.is_empty() {
        return CheckStatus::Passed(format!("recommended: {}", picked.join(",")));
    }
    let severity = facts.intent.over_rdma(Severity::Warning);
    let finding = "Mooncake stripes its traffic over all devices that it can open, but some are slower or on another network: the slowest device limits every transfer";
    let remedy = format!("MOONCAKE_DEVICE={} (mcctl devices lists the reasons)", picked.join(","));
    CheckStatus::Found(vec![find(check, severity, finding, odd.join("; "), remedy)])
}

/// Minimum backlog, in packets per CPU: enough for 16 concurrent 64 KiB reads on each of 9 queue
/// pairs with 1 KiB packets, or on each of 39 queue pairs with 4 KiB packets.
const BACKLOG: u64 = 10_000;

/// Measured on kernel 6.1 over veth: packets beyond the backlog are dropped. The rxe responder then
/// resends the first packet of a response as a middle packet, and the requester completes the read
/// successfully without having written a byte. Software cannot detect this.
pub(super) fn backlog(facts: &HostFacts, check: &Check) -> CheckStatus {
    const PATH: &str = "/proc/sys/net/core/netdev_max_backlog";
    let soft = |device: &&topology::HostRdmaDevice| device.provider.as_deref() == Some("rxe");
    let names: Vec<&str> = facts.host.devices.iter().filter(soft).map(|device| device.name.as_str()).collect();
    if names.is_empty() {
        return CheckStatus::Skipped("no soft-RoCE device (rxe) on this host".to_owned());
    }
    let Some(packets) = facts.number(PATH) else { return CheckStatus::Skipped(format!("{PATH} cannot be read")) };
    let dropped = |name: &&str| facts.number(&format!("/sys/class/infiniband/{name}/ports/1/hw_counters/send_err"));
    let dropped: u64 = names.iter().filter_map(dropped).sum();
    let evidence = format!("{PATH} is {packets}; {} failed to send {dropped} packets so far", names.join(", "));
    if packets >= BACKLOG {
        return CheckStatus::Passed(evidence);
    }
    let severity = facts.intent.over_rdma(Severity::Warning);
    let finding = "on a virtual interface (veth, loopback), many concurrent reads overflow the kernel's backlog, and soft-RoCE may report reads as successful that transferred no bytes";
    let remedy = format!("sysctl -w net.core.netdev_max_backlog={BACKLOG}");
    CheckStatus::Found(vec![find(check, severity, finding, evidence, remedy)])
}

/// The `mcctl devices` findings that have the same id as the check.
pub(super) fn finding(facts: &HostFacts, check: &Check) -> CheckStatus {
    let about_files = matches!(check.id, "unreadable" | "odd-text");
    if facts.host.devices.is_empty() && !about_files {
        return CheckStatus::Skipped("no RDMA device on this host".to_owned());
    }
    let same: Vec<&DeviceFinding> = facts.host.findings.iter().filter(|finding| finding.id() == check.id).collect();
    if same.is_empty() {
        return CheckStatus::Passed(check.about.to_owned());
    }
    let severity = |finding: &DeviceFinding| match (facts.intent.is_rdma(), finding.level()) {
        (false, _) | (true, FindingLevel::Note) if check.id != "efa" => Severity::Info,
        (false, _) => Severity::Info,
        (true, _) if FATAL.contains(&check.id) && facts.choice.picked.is_empty() => Severity::Error,
        (true, _) => Severity::Warning,
    };
    let one = |finding: &&DeviceFinding| {
        let text = match finding.device() {
            Some(device) => format!("{device}: {finding}"),
            None => finding.to_string(),
        };
        let evidence = format!("reported by mcctl devices as {}", finding.id());
        let remedy = finding.remedy().unwrap_or_else(|| "run mcctl devices for details".to_owned());
        find(check, severity(finding), text, evidence, remedy)
    };
    CheckStatus::Found(same.iter().map(one).collect())
}
