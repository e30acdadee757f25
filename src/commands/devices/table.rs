//! Everything as tables for people.

use comfy_table::{Table, presets};

use super::{Picture, paste};
use crate::engine::base::ByteSize;
use crate::engine::sys::verbs::{Mtu, PortAttributes};
use crate::engine::topology::{Because, Device, Host, Interface, Level, Live, Memlock, Rdma};

/// What stands where nothing is known.
const NOTHING: &str = "-";

pub(super) fn render(picture: &Picture) -> String {
    let host = &picture.host;
    let mut sections = match host.rdma {
        Rdma::Devices => vec![devices(host), ports(host), gids(host), distances(host)],
        Rdma::NoDevice => {
            vec!["No RDMA device: the kernel has RDMA, /sys/class/infiniband is empty.\n".to_owned(), interfaces(host)]
        }
        Rdma::NoKernelSupport => {
            vec!["No RDMA device: the kernel has no /sys/class/infiniband.\n".to_owned(), interfaces(host)]
        }
    };
    sections.push(choice(picture));
    let is_there = host.rdma == Rdma::Devices;
    if is_there {
        sections.push(topology(picture));
    }
    match &picture.live {
        Some(live) => sections.push(verbs(live)),
        None if is_there => sections.push(
            "Not known without libibverbs: active MTU, and limits (largest memory region, queue pairs, completions).\n"
                .to_owned(),
        ),
        None => {}
    }
    sections.push(findings(host));
    sections.retain(|text| !text.is_empty());
    sections.join("\n")
}

/// A titled table; nothing without rows.
fn section(title: &str, header: &[&str], rows: Vec<Vec<String>>) -> String {
    if rows.is_empty() {
        return String::new();
    }
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(header.iter().copied());
    for row in rows {
        table.add_row(row);
    }
    format!("{title}\n{}\n", table.trim_fmt())
}

fn or_nothing<T: ToString>(value: Option<T>) -> String {
    value.map_or(NOTHING.to_owned(), |v| v.to_string())
}

fn joined(words: &[String]) -> String {
    if words.is_empty() { NOTHING.to_owned() } else { words.join(",") }
}

fn devices(host: &Host) -> String {
    let row = |d: &Device| {
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

fn ports(host: &Host) -> String {
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

fn gids(host: &Host) -> String {
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

/// What libibverbs tells, or why it does not.
fn verbs(live: &Live) -> String {
    if let Some(missing) = &live.missing {
        let next = live.next.as_ref().map_or(String::new(), |next| format!("\n  {next}"));
        return format!("No active MTU and no limits (of memory regions, queue pairs, completions): {missing}{next}\n");
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
                    "any".to_owned()
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
    let header = [
        "device",
        "port",
        "MTU",
        "most",
        "largest region",
        "regions",
        "pairs",
        "requests",
        "completions",
        "SGEs",
        "READs",
    ];
    section("Limits, as libibverbs tells them", &header, rows) + &silent
}

/// Each device against each GPU and the memory of each node; nothing where there is only one of everything.
fn distances(host: &Host) -> String {
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
    let title = "Distances (GPUs: PIX one PCIe switch, PXB several, PHB a host bridge, NODE within a NUMA node, SYS beyond; memory: \
                 the kernel's figure, 10 = local)";
    let header: Vec<&str> = header.iter().map(String::as_str).collect();
    section(title, &header, rows.collect())
}

fn interfaces(host: &Host) -> String {
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
            if i.announced { "announced by default".to_owned() } else { String::new() },
        ]
    };
    let header = ["interface", "state", "speed", "MTU", "addresses", "NUMA", "PCI", ""];
    section("TCP interfaces", &header, host.interfaces.iter().map(row).collect())
}

fn choice(picture: &Picture) -> String {
    let choice = &picture.choice;
    let mut text = String::new();
    let reasons = choice.picked.iter().map(|p| {
        let why = match p.pick.because {
            Because::RoceV2Ipv4 => "RoCE v2 with an IPv4 address".to_owned(),
            Because::BestOfTheRest => format!("{}, the best there is", p.kind.name()),
        };
        let other = if p.pick.automatic == p.pick.index {
            String::new()
        } else {
            format!("; Mooncake by itself would take {}", p.pick.automatic)
        };
        vec![p.device.clone(), format!("use port {}, GID index {}: {why}{other}", p.port, p.pick.index)]
    });
    let left_out = choice.left_out.iter().map(|l| vec![l.device.clone(), format!("leave out: {}", l.why)]);
    text.push_str(&section("Choice", &["device", ""], reasons.chain(left_out).collect()));
    text.push_str(match (picture.host.rdma, choice.picked.is_empty()) {
        (_, false) => "\nTo paste (for mcctl's nodes and the original Mooncake alike):\n",
        (Rdma::Devices, true) => "\nNo device is fit for RDMA. To paste:\n",
        (_, true) => {
            "To paste (with protocol rdma, SGLang's default, Mooncake would fall back to TCP and only say so in its log):\n"
        }
    });
    for (name, value) in paste::environment(picture) {
        text.push_str(&format!("  {name}={value}\n"));
    }
    if !choice.picked.is_empty() && choice.gid_index.is_none() {
        text.push_str("  # no MC_GID_INDEX: it holds for all devices, and these need different rows; Mooncake looks for each one's\n");
    }
    for flag in paste::flags(picture) {
        text.push_str(&format!("  {flag}\n"));
    }
    text
}

fn topology(picture: &Picture) -> String {
    let rows = picture.matrix.0.iter().map(|(location, [near, far])| vec![location.clone(), joined(near), joined(far)]);
    section("Topology, as Mooncake finds it", &["location", "preferred", "others"], rows.collect())
}

/// What is the same of several devices is said once.
fn findings(host: &Host) -> String {
    let mut said: Vec<(String, Vec<&str>)> = Vec::new();
    for finding in &host.findings {
        let next = finding.remedy().map_or(String::new(), |next| format!("\n         {next}"));
        let level = match finding.level() {
            Level::Note => "note",
            Level::Warning => "warning",
        };
        let text = format!("{level:<8} {{}}{finding}{next}\n");
        let at = said.iter().position(|(other, _)| *other == text).unwrap_or_else(|| {
            said.push((text, Vec::new()));
            said.len() - 1
        });
        said[at].1.extend(finding.device());
    }
    let one = |(text, devices): (String, Vec<&str>)| {
        let about = if devices.is_empty() { String::new() } else { format!("{}: ", devices.join(",")) };
        text.replacen("{}", &about, 1)
    };
    let mut text: String = said.into_iter().map(one).collect();
    if let Some(Memlock { exempt: true, soft_bytes: Some(_), .. }) = host.memlock
        && host.rdma == Rdma::Devices
    {
        text.push_str(
            "note     this process has CAP_IPC_LOCK, so its limit of locked memory does not hold; others' may\n",
        );
    }
    text
}
