//! RDMA devices as described by sysfs. The active MTU and the limits require libibverbs; see
//! `live`.

use std::net::Ipv6Addr;

use serde::Serialize;

use crate::topology::finding::DeviceFinding;
use crate::topology::gid::{Gid, GidType};
use crate::topology::pci;
use crate::topology::reader::TreeReader;
use mcctl_base::text::escaped;

/// The attributes that only libibverbs reports, named as in `ibv_devinfo -v`.
pub const UNKNOWN_WITHOUT_VERBS: &[&str] =
    &["active_mtu", "max_mtu", "max_mr_size", "max_mr", "max_qp", "max_qp_wr", "max_cqe", "max_sge", "max_qp_rd_atom"];

/// A device's transport, from the kernel's node type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum DeviceTransport {
    /// InfiniBand transport, including over Ethernet (RoCE).
    Infiniband,
    Iwarp,
    /// Any other transport, such as the EFA transport.
    Unspecified,
}

/// A state as written by the kernel, e.g. `4: ACTIVE`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct KernelState {
    pub number: u8,
    pub name: String,
}

/// User-space access to a device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Uverbs {
    pub name: String,
    /// Why this process cannot open `/dev/infiniband/<name>`; `None` if it can.
    pub closed: Option<String>,
}

/// A port of a device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RdmaPort {
    /// Port number, counted from 1.
    pub number: u32,
    pub state: Option<KernelState>,
    pub physical_state: Option<KernelState>,
    /// As written by the kernel, e.g. `400 Gb/sec (4X NDR)`.
    pub rate: Option<String>,
    /// The rate in Mbit/s.
    pub rate_mbps: Option<u64>,
    /// `InfiniBand`, `Ethernet`, or another name from the kernel.
    pub link_layer: Option<String>,
    /// Local identifier; 0 on Ethernet.
    pub lid: Option<u16>,
    pub sm_lid: Option<u16>,
    /// Size of the GID table, including unused entries.
    pub gid_rows: u32,
    /// The GIDs in use.
    pub gids: Vec<Gid>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct HostRdmaDevice {
    pub name: String,
    /// As written by the kernel: four groups of four hex digits.
    pub node_guid: Option<String>,
    /// The GUID of the whole adapter.
    pub system_image_guid: Option<String>,
    pub transport: DeviceTransport,
    /// As written by the kernel, e.g. `1: CA`.
    pub node_type: Option<String>,
    /// The name of the device's driver in libibverbs, e.g. `mlx5`.
    pub provider: Option<String>,
    pub firmware: Option<String>,
    /// The vendor's name for the board.
    pub board_id: Option<String>,
    /// The vendor's name for the chip.
    pub hca_type: Option<String>,
    /// PCI address; `None` for a software device.
    pub pci: Option<String>,
    /// PCI vendor ID, e.g. `0x15b3`.
    pub pci_vendor: Option<String>,
    /// PCI device ID, e.g. `0x1021`.
    pub pci_device: Option<String>,
    /// The path below `/sys/devices`.
    #[serde(skip)]
    pub path: Option<String>,
    /// `None` if unknown.
    pub numa_node: Option<u32>,
    /// User-space access, if ib_uverbs provides it.
    pub uverbs: Option<Uverbs>,
    pub netdevs: Vec<String>,
    pub ports: Vec<RdmaPort>,
}

impl RdmaPort {
    /// Whether the port is active.
    pub fn is_active(&self) -> bool {
        self.state.as_ref().is_some_and(|s| s.number == 4)
    }

    /// Whether the link layer is Ethernet.
    pub fn is_ethernet(&self) -> bool {
        self.link_layer.as_deref() == Some("Ethernet")
    }
}

impl HostRdmaDevice {
    /// Whether the device is emulated in software on top of a network device.
    pub fn is_software(&self) -> bool {
        self.pci.is_none() && matches!(self.provider.as_deref(), Some("rxe" | "siw"))
    }

    /// Whether upstream Mooncake would list the device. This requires user-space access and an
    /// active port with a GID table.
    pub fn is_listed(&self) -> bool {
        self.uverbs.as_ref().is_some_and(|u| u.closed.is_none())
            && self.ports.iter().any(|p| p.is_active() && p.gid_rows > 0)
    }

    /// Returns the port with this number.
    pub fn port(&self, number: u32) -> Option<&RdmaPort> {
        self.ports.iter().find(|p| p.number == number)
    }
}

/// Kernel driver -> libibverbs provider, where the names differ.
const PROVIDERS: &[(&str, &str)] = &[
    ("mlx5_core", "mlx5"),
    ("mlx4_core", "mlx4"),
    ("ice", "irdma"),
    ("i40e", "irdma"),
    ("bnxt_en", "bnxt_re"),
    ("hfi1", "hfi1verbs"),
    ("ib_mthca", "mthca"),
    ("qede", "qedr"),
    ("hns3", "hns"),
];

/// Reads all devices in the order in which the kernel registered them; `None` if the kernel does
/// not support RDMA.
pub(in crate::topology) fn read(reader: &mut TreeReader<'_>) -> Option<Vec<HostRdmaDevice>> {
    reader.tree.resolve("/sys/class/infiniband")?;
    let mut uverbs_names: Vec<(String, String)> = Vec::new();
    for uverbs in reader.names("/sys/class/infiniband_verbs") {
        if let Some(device) = reader.text(&format!("/sys/class/infiniband_verbs/{uverbs}/ibdev")) {
            uverbs_names.push((device, uverbs));
        }
    }
    let mut names = reader.names("/sys/class/infiniband");
    names.retain(|name| {
        let at = format!("/sys/class/infiniband/{name}");
        let found = reader.tree.resolve(&at);
        if found.is_none() {
            reader
                .findings
                .push(DeviceFinding::FileReadError { path: escaped(&at), reason: "broken symlink".to_owned() });
        }
        found.is_some()
    });
    // The sort is stable: devices without uverbs come last, by name.
    names.sort_by_key(|name| uverbs_names.iter().position(|(device, _)| device == name).unwrap_or(usize::MAX));
    Some(names.into_iter().map(|name| device(reader, name, &uverbs_names)).collect())
}

fn device(reader: &mut TreeReader<'_>, name: String, uverbs: &[(String, String)]) -> HostRdmaDevice {
    let at = format!("/sys/class/infiniband/{name}");
    let name = escaped(&name);
    let file = |file: &str| format!("{at}/{file}");
    let node_type = reader.word(&file("node_type"));
    let transport = match node_type.as_deref().and_then(|t| t.split(':').next()) {
        Some("1") => DeviceTransport::Infiniband,
        Some("4") => DeviceTransport::Iwarp,
        _ => DeviceTransport::Unspecified,
    };
    // A subfunction (such as an mlx5 scalable function) is below its PCI device in the tree.
    let real = reader.tree.resolve(&file("device"));
    let path = real.and_then(|real| {
        let end = real.match_indices('/').map(|(i, _)| i).chain([real.len()]);
        end.filter(|&end| real[..end].rsplit('/').next().is_some_and(pci::is_address))
            .max()
            .map(|e| real[..e].to_owned())
    });
    let numa: Option<i64> = reader.number(&file("device/numa_node"));
    let mut device = HostRdmaDevice {
        node_guid: reader.word(&file("node_guid")),
        system_image_guid: reader.word(&file("sys_image_guid")),
        transport,
        provider: provider(reader, &at, transport),
        node_type,
        firmware: reader.word(&file("fw_ver")),
        board_id: reader.word(&file("board_id")),
        hca_type: reader.word(&file("hca_type")),
        pci: path.as_deref().and_then(|p| p.rsplit('/').next()).map(str::to_owned),
        pci_vendor: reader.word(&file("device/vendor")),
        pci_device: reader.word(&file("device/device")),
        path,
        numa_node: numa.and_then(|n| u32::try_from(n).ok()),
        uverbs: uverbs.iter().find(|(device, _)| *device == name).map(|(_, uverbs)| uverbs_of(reader, uverbs)),
        netdevs: reader.names(&file("device/net")),
        ports: Vec::new(),
        name,
    };
    for number in reader.names(&file("ports")) {
        if let Ok(number) = number.parse() {
            device.ports.push(port(reader, &file("ports"), number, transport));
        }
    }
    let of_gids = device.ports.iter().flat_map(|p| &p.gids).filter_map(|g| g.netdev.clone());
    for netdev in reader.text_if_any(&file("parent")).into_iter().chain(of_gids) {
        if !device.netdevs.contains(&netdev) {
            device.netdevs.push(netdev);
        }
    }
    check(&device, reader);
    device
}

fn uverbs_of(reader: &TreeReader<'_>, uverbs: &str) -> Uverbs {
    let closed = reader.tree.may_read_and_write(&format!("/dev/infiniband/{uverbs}")).err();
    Uverbs { name: uverbs.to_owned(), closed: closed.map(|e| e.to_string()) }
}

/// The provider, derived from the kernel driver. For software devices, it is derived from the
/// transport.
fn provider(reader: &TreeReader<'_>, at: &str, transport: DeviceTransport) -> Option<String> {
    if let Some(driver) = reader.tree.resolve(&format!("{at}/device/driver")) {
        let driver = driver.rsplit('/').next().unwrap_or_default();
        let known = PROVIDERS.iter().find(|(kernel, _)| driver.starts_with(kernel));
        return Some(known.map_or(driver, |(_, provider)| provider).to_owned());
    }
    let is_virtual = reader.tree.resolve(at)?.starts_with("/sys/devices/virtual/");
    is_virtual.then(|| if transport == DeviceTransport::Iwarp { "siw" } else { "rxe" }.to_owned())
}

fn port(reader: &mut TreeReader<'_>, ports: &str, number: u32, transport: DeviceTransport) -> RdmaPort {
    let at = format!("{ports}/{number}");
    let state = |reader: &mut TreeReader<'_>, file: &str| {
        let path = format!("{at}/{file}");
        let text = reader.text(&path)?;
        let parsed = text.split_once(':').and_then(|(number, name)| {
            Some(KernelState { number: number.trim().parse().ok()?, name: escaped(name.trim()) })
        });
        reader.parsed_or_finding(parsed, &path, &text, "a number and a name")
    };
    let hex = |reader: &mut TreeReader<'_>, file: &str| {
        let path = format!("{at}/{file}");
        let text = reader.text(&path)?;
        let parsed = u16::from_str_radix(text.trim_start_matches("0x"), 16).ok();
        reader.parsed_or_finding(parsed, &path, &text, "a hex number")
    };
    let link_layer = reader.word(&format!("{at}/link_layer"));
    let rate = reader.word(&format!("{at}/rate"));
    let rate_mbps = rate.as_deref().and_then(|text| {
        let mbps = mbps(text);
        reader.parsed_or_finding(mbps, &format!("{at}/rate"), text, "a rate in Gb/sec")
    });
    let roce = transport == DeviceTransport::Infiniband && link_layer.as_deref() == Some("Ethernet");
    let rows = reader.names(&format!("{at}/gids"));
    RdmaPort {
        number,
        state: state(reader, "state"),
        physical_state: state(reader, "phys_state"),
        rate,
        rate_mbps,
        link_layer,
        lid: hex(reader, "lid"),
        sm_lid: hex(reader, "sm_lid"),
        gid_rows: u32::try_from(rows.len()).unwrap_or(u32::MAX),
        gids: rows.iter().filter_map(|row| gid(reader, &at, row.parse().ok()?, roce)).collect(),
    }
}

/// Reads one GID. Reading the network device name fails in the kernel if no network device is
/// attached. For an unused entry, nothing else is read, because a port may have a thousand entries.
fn gid(reader: &mut TreeReader<'_>, port: &str, index: u32, roce: bool) -> Option<Gid> {
    let path = format!("{port}/gids/{index}");
    let text = reader.text(&path)?;
    let value: Ipv6Addr = reader.parsed_or_finding(text.parse().ok(), &path, &text, "a GID")?;
    if value.is_unspecified() {
        return None;
    }
    let of = |what: &str| reader.text_if_any(&format!("{port}/gid_attrs/{what}/{index}")).map(|t| escaped(&t));
    let kind = of("types").map_or(GidType::Unknown, |text| GidType::parse(&text, roce));
    Gid::new(index, value, kind, of("ndevs"))
}

/// Converts a rate such as `2.5 Gb/sec (1X SDR)` to Mbit/s.
fn mbps(text: &str) -> Option<u64> {
    let number = text.split_once(" Gb/sec")?.0.trim();
    let (whole, part) = number.split_once('.').unwrap_or((number, "0"));
    let thousandths: String = part.chars().chain("000".chars()).take(3).collect();
    whole.parse::<u64>().ok()?.checked_mul(1000)?.checked_add(thousandths.parse().ok()?)
}

/// Adds findings about a device.
fn check(device: &HostRdmaDevice, reader: &mut TreeReader<'_>) {
    let name = || device.name.clone();
    let mut found = Vec::new();
    match &device.uverbs {
        None => found.push(DeviceFinding::NoUverbs { device: name() }),
        Some(Uverbs { name: uverbs, closed: Some(reason) }) => found.push(DeviceFinding::UverbsClosed {
            device: name(),
            node: format!("/dev/infiniband/{uverbs}"),
            reason: reason.clone(),
        }),
        Some(_) => {}
    }
    match (device.provider.as_deref(), device.transport) {
        (Some("efa"), _) => found.push(DeviceFinding::Efa { device: name() }),
        (Some("erdma"), _) => found.push(DeviceFinding::Erdma { device: name() }),
        (_, DeviceTransport::Iwarp) => found.push(DeviceFinding::Iwarp { device: name() }),
        _ => {}
    }
    if device.is_software() {
        found.push(DeviceFinding::Software { device: name() });
    }
    for port in &device.ports {
        let number = port.number;
        if !port.is_active() {
            let word = |state: &Option<KernelState>| state.as_ref().map_or("unknown".to_owned(), |s| s.name.clone());
            let state = word(&port.state);
            let physical = word(&port.physical_state);
            found.push(DeviceFinding::PortDown { device: name(), port: number, state, physical });
        }
        let roce = port.is_ethernet() && device.transport == DeviceTransport::Infiniband;
        let v2 = || port.gids.iter().filter(|g| g.kind == GidType::RoceV2);
        if port.gids.is_empty() {
            if port.is_active() {
                found.push(DeviceFinding::NoGid { device: name(), port: number });
            }
        } else if roce && port.is_active() && port.gids.iter().all(|g| g.kind == GidType::RoceV1) {
            found.push(DeviceFinding::RoceV1Only { device: name(), port: number });
        } else if roce && v2().next().is_some() && v2().all(|g| g.ipv4.is_none()) && port.is_active() {
            found.push(DeviceFinding::NoIpv4Gid { device: name(), port: number });
        }
    }
    reader.findings.extend(found);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_rates_are_parsed() {
        assert_eq!(mbps("2.5 Gb/sec (1X SDR)"), Some(2_500));
        assert_eq!(mbps("400 Gb/sec (4X NDR)"), Some(400_000));
        assert_eq!(mbps("fast"), None);
        assert_eq!(mbps("99999999999999999999 Gb/sec"), None);
    }
}
