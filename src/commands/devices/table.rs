//! The devices as human-readable tables.

use super::{DeviceReport, paste};
use crate::commands::cli::table::{self, ReportTable};
use crate::engine::base::ByteSize;
use crate::engine::sys::verbs::{Mtu, PortAttributes};
use crate::engine::topology::{
    FindingLevel, GidReason, HostRdmaDevice, HostTopology, Interface, Memlock, RdmaSupport, VerbsReport,
};

/// Placeholder for an unknown value.
const NOTHING: &str = "-";

pub(super) fn render(report: &DeviceReport) -> String {
    let host = &report.host;
    let mut sections = match host.rdma {
        RdmaSupport::Devices => vec![devices(host), ports(host), gids(host), distances(host)],
        RdmaSupport::NoDevice => {
            vec![
                "No RDMA device: the kernel supports RDMA, but /sys/class/infiniband is empty.\n".to_owned(),
                interfaces(host),
            ]
        }
        RdmaSupport::NoKernelSupport => {
            vec![
                "No RDMA device: the kernel does not support RDMA (/sys/class/infiniband does not exist).\n".to_owned(),
                interfaces(host),
            ]
        }
    };
    sections.push(choice(report));
    let has_devices = host.rdma == RdmaSupport::Devices;
    if has_devices {
        sections.push(topology(report));
    }
    match &report.live {
        Some(live) => sections.push(verbs(live)),
        None if has_devices => sections.push(
            "Unknown without libibverbs: active MTU and device limits (memory regions, queue pairs, completions).\n"
                .to_owned(),
        ),
        None => {}
    }
    sections.push(findings(host));
    sections.retain(|text| !text.is_empty());
    sections.join("\n")
}

/// A table with a title; empty if there are no rows.
fn section(title: &str, header: &[&str], rows: Vec<Vec<String>>) -> String {
    if rows.is_empty() {
        return String::new();
    }
    let mut table = (1..header.len()).fold(ReportTable::new(title, header), ReportTable::text_column);
    for row in rows {
        table.row(row);
    }
    table.render(table::width())
}

fn or_nothing<T: ToString>(value: Option<T>) -> String {
    value.map_or(NOTHING.to_owned(), |v| v.to_string())
}

fn joined(words: &[String]) -> String {
    if words.is_empty() { NOTHING.to_owned() } else { words.join(",") }
}

fn devices(host: &HostTopology) -> String {
    let row = |d: &HostRdmaDevice| {
        vec![
            d.name.clone(),
            or_nothing(d.node_guid.as_ref()),
            or_nothing(d.provider.as_ref()),
            or_nothing(d.firmware.as_ref()),
            or_nothing(d.board_id.as_ref().or(d.hca_type.as_ref())),
            or_nothing(d.pci.as_ref()),
            or_nothing(d.numa_node),
            joined(&d.netdevs),
            or_nothing(d.uverbs.as_ref().map(|u| &u.name)),
        ]
    };
    let header = ["device", "node GUID", "driver", "firmware", "board", "PCI", "NUMA", "net", "uverbs"];
    section("RDMA devices", &header, host.devices.iter().map(row).collect())
}

fn ports(host: &HostTopology) -> String {
    let rows = host.devices.iter().flat_map(|d| {
        d.ports.iter().map(|p| {
            vec![
                d.name.clone(),
                p.number.to_string(),
                or_nothing(p.state.as_ref().map(|s| &s.name)),
                or_nothing(p.physical_state.as_ref().map(|s| &s.name)),
                or_nothing(p.rate.as_ref()),
                or_nothing(p.link_layer.as_ref()),
                or_nothing(p.lid.map(|lid| format!("{lid:#x}"))),
                format!("{} of {}", p.gids.len(), p.gid_rows),
            ]
        })
    });
    section("Ports", &["device", "port", "state", "physical", "rate", "link", "LID", "GIDs"], rows.collect())
}

fn gids(host: &HostTopology) -> String {
    let rows = host.devices.iter().flat_map(|d| {
        d.ports.iter().flat_map(|p| {
            p.gids.iter().map(|g| {
                vec![
                    d.name.clone(),
                    p.number.to_string(),
                    g.index.to_string(),
                    g.gid.to_string(),
                    g.kind.name().to_owned(),
                    or_nothing(g.netdev.as_ref()),
                ]
            })
        })
    });
    section("GIDs", &["device", "port", "index", "GID", "type", "net"], rows.collect())
}

/// The limits that libibverbs reports, or why they are unavailable.
fn verbs(live: &VerbsReport) -> String {
    if let Some(missing) = &live.missing {
        let next = live.next.as_ref().map_or(String::new(), |next| format!("\n  {next}"));
        return format!("Active MTU and device limits unavailable: {missing}{next}\n");
    }
    let mut rows = Vec::new();
    let mut silent = String::new();
    for device in &live.devices {
        if let Some(missing) = &device.missing {
            let next = device.next.as_ref().map_or(String::new(), |next| format!("\n  {next}"));
            silent.push_str(&format!("{missing}{next}\n"));
        }
        let Some(limits) = &device.attributes else { continue };
        for port in &device.ports {
            let mtu = |of: fn(&PortAttributes) -> Mtu| or_nothing(port.attributes.as_ref().map(of));
            rows.push(vec![
                device.name.clone(),
                port.number.to_string(),
                mtu(|p| p.active_mtu),
                mtu(|p| p.max_mtu),
                if limits.max_mr_size == u64::MAX {
                    "unlimited".to_owned()
                } else {
                    ByteSize(limits.max_mr_size).to_string()
                },
                limits.max_mr.to_string(),
                limits.max_qp.to_string(),
                limits.max_qp_wr.to_string(),
                limits.max_cqe.to_string(),
                limits.max_sge.to_string(),
                format!("{} in, {} out", limits.max_qp_rd_atom, limits.max_qp_init_rd_atom),
            ]);
        }
    }
    let header = ["device", "port", "MTU", "max MTU", "max MR", "MRs", "QPs", "WRs", "CQEs", "SGEs", "READs"];
    section("Device limits, from libibverbs", &header, rows) + &silent
}

/// The distance of each device from each GPU and NUMA node; empty if there is no GPU and at most
/// one NUMA node.
fn distances(host: &HostTopology) -> String {
    if host.gpus.is_empty() && host.nodes.len() < 2 {
        return String::new();
    }
    let gpus = host.gpus.iter().map(|g| g.location.clone().unwrap_or_else(|| g.pci.clone()));
    let nodes = host.nodes.iter().map(|n| format!("node {}", n.id));
    let header: Vec<String> = ["device".to_owned()].into_iter().chain(gpus).chain(nodes).collect();
    let rows = host.devices.iter().map(|d| {
        let gpus = host.gpus.iter().map(|g| or_nothing(host.link(d, g).map(|l| l.name())));
        let nodes = host.nodes.iter().map(|n| or_nothing(host.distance(d, n.id)));
        [d.name.clone()].into_iter().chain(gpus).chain(nodes).collect()
    });
    let title = "Distances (GPUs: PIX one PCIe switch, PXB several, PHB a host bridge, NODE same NUMA node, SYS other node; memory: \
                 kernel distance, 10 = local)";
    let header: Vec<&str> = header.iter().map(String::as_str).collect();
    section(title, &header, rows.collect())
}

fn interfaces(host: &HostTopology) -> String {
    let row = |i: &Interface| {
        let addresses: Vec<String> = i.addresses.iter().map(ToString::to_string).collect();
        vec![
            i.name.clone(),
            or_nothing(i.state.as_ref()),
            or_nothing(i.speed_mbps.map(|mbps| format!("{} Gbit/s", mbps as f64 / 1000.0))),
            or_nothing(i.mtu),
            joined(&addresses),
            or_nothing(i.numa_node),
            or_nothing(i.pci.as_ref()),
            if i.announced { "default".to_owned() } else { String::new() },
        ]
    };
    let header = ["interface", "state", "speed", "MTU", "addresses", "NUMA", "PCI", "announced"];
    section("TCP interfaces", &header, host.interfaces.iter().map(row).collect())
}

fn choice(report: &DeviceReport) -> String {
    let choice = &report.choice;
    let mut text = String::new();
    let reasons = choice.picked.iter().map(|p| {
        let why = match p.pick.because {
            GidReason::RoceV2Ipv4 => "RoCE v2 with an IPv4 address".to_owned(),
            GidReason::BestOfTheRest => format!("{}, the best available", p.kind.name()),
        };
        let other = if p.pick.automatic == p.pick.index {
            String::new()
        } else {
            format!("; Mooncake's default is {}", p.pick.automatic)
        };
        vec![p.device.clone(), format!("use port {}, GID index {}: {why}{other}", p.port, p.pick.index)]
    });
    let left_out = choice.left_out.iter().map(|l| vec![l.device.clone(), format!("do not use: {}", l.why)]);
    text.push_str(&section("Recommendation", &["device", "use"], reasons.chain(left_out).collect()));
    text.push_str(match (report.host.rdma, choice.picked.is_empty()) {
        (_, false) => "\nSettings for mcctl's nodes and upstream Mooncake:\n",
        (RdmaSupport::Devices, true) => "\nNo device is usable for RDMA. Settings:\n",
        (_, true) => {
            "Settings (with protocol rdma, SGLang's default, Mooncake would fall back to TCP and only log a warning):\n"
        }
    });
    for (name, value) in paste::environment(report) {
        text.push_str(&format!("  {name}={value}\n"));
    }
    if !choice.picked.is_empty() && choice.gid_index.is_none() {
        text.push_str("  # MC_GID_INDEX is omitted: it applies to all devices, but these need different indexes; Mooncake selects one per device\n");
    }
    for flag in paste::flags(report) {
        text.push_str(&format!("  {flag}\n"));
    }
    text
}

fn topology(report: &DeviceReport) -> String {
    let rows = report.matrix.0.iter().map(|(location, [near, far])| vec![location.clone(), joined(near), joined(far)]);
    section("Mooncake topology matrix", &["location", "preferred", "others"], rows.collect())
}

/// The findings. A finding that several devices share is shown once.
fn findings(host: &HostTopology) -> String {
    let mut grouped: Vec<(String, Vec<&str>)> = Vec::new();
    for finding in &host.findings {
        let next = finding.remedy().map_or(String::new(), |next| format!("\n         {next}"));
        let level = match finding.level() {
            FindingLevel::Note => "note",
            FindingLevel::Warning => "warning",
        };
        let text = format!("{level:<8} {{}}{finding}{next}\n");
        let at = grouped.iter().position(|(other, _)| *other == text).unwrap_or_else(|| {
            grouped.push((text, Vec::new()));
            grouped.len() - 1
        });
        grouped[at].1.extend(finding.device());
    }
    let one = |(text, devices): (String, Vec<&str>)| {
        let about = if devices.is_empty() { String::new() } else { format!("{}: ", devices.join(",")) };
        text.replacen("{}", &about, 1)
    };
    let mut text: String = grouped.into_iter().map(one).collect();
    if let Some(Memlock { exempt: true, soft_bytes: Some(_), .. }) = host.memlock
        && host.rdma == RdmaSupport::Devices
    {
        text.push_str(
            "note     this process has CAP_IPC_LOCK, so the locked-memory limit does not apply to it; other processes may be limited\n",
        );
    }
    text
}
