//! RDMA devices: what `mcctl devices` finds, as checks of the same names. It matters as much as the protocol asks for it.

use crate::engine::check::{Check, Severity, Status};
use crate::engine::doctor::find;
use crate::engine::doctor::host::{Look, Protocol};
use crate::engine::topology::{self, Finding, Level, Rdma, WhyNot};

/// Without these nothing moves through the device at all.
const FATAL: &[&str] =
    &["no-gid", "no-uverbs", "uverbs-closed", "no-libibverbs", "no-provider", "iwarp", "efa", "empty-gid-row"];

pub(super) fn devices(look: &Look, check: &Check) -> Status {
    let seen = match look.host.rdma {
        Rdma::NoKernelSupport => "the kernel has no /sys/class/infiniband".to_owned(),
        Rdma::NoDevice => "/sys/class/infiniband is empty".to_owned(),
        Rdma::Devices => {
            let names: Vec<&str> = look.host.devices.iter().map(|device| device.name.as_str()).collect();
            names.join(", ")
        }
    };
    if !look.intent.is_rdma() {
        return Status::Passed(match look.intent.protocol {
            Some(Protocol::Tcp) => format!("the protocol is tcp; {seen}"),
            _ => seen,
        });
    }
    if !look.choice.listed.is_empty() {
        return Status::Passed(seen);
    }
    let finding = "the protocol is rdma, and Mooncake finds no device it can use: with auto discovery it moves everything over TCP and only warns (No RDMA devices found)";
    let remedy = "mcctl devices shows what each device lacks; in a container pass /dev/infiniband/* in and install ibverbs-providers; else set MOONCAKE_PROTOCOL=tcp";
    Status::Found(vec![find(check, Severity::Error, finding, seen, remedy)])
}

pub(super) fn choice(look: &Look, check: &Check) -> Status {
    if look.host.devices.is_empty() {
        return Status::Skipped("no RDMA device on this host".to_owned());
    }
    let odd: Vec<String> = look
        .choice
        .left_out
        .iter()
        .filter(|left| look.choice.listed.contains(&left.device) && left.why != WhyNot::Filtered)
        .map(|left| format!("{}: {}", left.device, left.why))
        .collect();
    let picked: Vec<&str> = look.choice.picked.iter().map(|picked| picked.device.as_str()).collect();
    if odd.is_empty() {
        return Status::Passed(format!("to be used: {}", picked.join(",")));
    }
    let severity = look.intent.over_rdma(Severity::Warning);
    let finding = "Mooncake deals its traffic out to all devices it can open, and some of them are slower or on another network: they pace all";
    let remedy = format!("MOONCAKE_DEVICE={} (mcctl devices has the reasons)", picked.join(","));
    Status::Found(vec![find(check, severity, finding, odd.join("; "), remedy)])
}

/// Packets that may wait on a processor: 16 reads of 64 KiB on each of nine queue pairs with packets of 1 KiB, of 39 with 4 KiB.
const BACKLOG: u64 = 10_000;

/// Measured on kernel 6.1 over veth: what the backlog does not hold is dropped, rxe's responder then sends the first packet of an answer
/// again as one from its middle, and the requester completes the read with success without having written a byte. No program can tell.
pub(super) fn backlog(look: &Look, check: &Check) -> Status {
    const PATH: &str = "/proc/sys/net/core/netdev_max_backlog";
    let soft = |device: &&topology::Device| device.provider.as_deref() == Some("rxe");
    let names: Vec<&str> = look.host.devices.iter().filter(soft).map(|device| device.name.as_str()).collect();
    if names.is_empty() {
        return Status::Skipped("no soft-RoCE device (rxe) on this host".to_owned());
    }
    let Some(packets) = look.number(PATH) else { return Status::Skipped(format!("{PATH} cannot be read")) };
    let dropped = |name: &&str| look.number(&format!("/sys/class/infiniband/{name}/ports/1/hw_counters/send_err"));
    let dropped: u64 = names.iter().filter_map(dropped).sum();
    let evidence = format!("{PATH} is {packets}; {} could not send {dropped} packets so far", names.join(", "));
    if packets >= BACKLOG {
        return Status::Passed(evidence);
    }
    let severity = look.intent.over_rdma(Severity::Warning);
    let finding = "over a virtual interface (veth, loopback) many reads at once overflow the kernel's backlog, and soft-RoCE may then report reads as done that brought no bytes";
    let remedy = format!("sysctl -w net.core.netdev_max_backlog={BACKLOG}");
    Status::Found(vec![find(check, severity, finding, evidence, remedy)])
}

/// The finding of `mcctl devices` that has the check's name.
pub(super) fn finding(look: &Look, check: &Check) -> Status {
    let about_files = matches!(check.id, "unreadable" | "odd-text");
    if look.host.devices.is_empty() && !about_files {
        return Status::Skipped("no RDMA device on this host".to_owned());
    }
    let same: Vec<&Finding> = look.host.findings.iter().filter(|finding| finding.id() == check.id).collect();
    if same.is_empty() {
        return Status::Passed(check.about.to_owned());
    }
    let severity = |finding: &Finding| match (look.intent.is_rdma(), finding.level()) {
        (false, _) | (true, Level::Note) if check.id != "efa" => Severity::Info,
        (false, _) => Severity::Info,
        (true, _) if FATAL.contains(&check.id) && look.choice.picked.is_empty() => Severity::Error,
        (true, _) => Severity::Warning,
    };
    let one = |finding: &&Finding| {
        let text = match finding.device() {
            Some(device) => format!("{device}: {finding}"),
            None => finding.to_string(),
        };
        let evidence = format!("{} of mcctl devices", finding.id());
        let remedy = finding.remedy().unwrap_or_else(|| "mcctl devices shows all that is known of it".to_owned());
        find(check, severity(finding), text, evidence, remedy)
    };
    Status::Found(same.iter().map(one).collect())
}
