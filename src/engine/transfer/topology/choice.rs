//! Selects the devices and the GID index to use.
//!
//! Mooncake itself uses every device that it can open ([`HostRdmaDevice::is_listed`]) and stripes
//! slices over them evenly, so one slow or disconnected device limits all of them. The
//! recommendation contains only devices that can reach each other at the same speed: the group with
//! the same link layer and rate that has the highest total rate.

use std::collections::BTreeMap;
use std::fmt;
use std::net::Ipv6Addr;

use serde::Serialize;

use crate::topology::device::{DeviceTransport, HostRdmaDevice, RdmaPort};
use crate::topology::finding::DeviceFinding;
use crate::topology::gid::{self, GidPick, GidType};
use crate::topology::host::HostTopology;

/// Settings from the environment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceSelection {
    /// The port to use on every device, from `MC_IB_PORT`.
    pub port: u32,
    /// The only devices to use, from `MC_TE_FILTERS`.
    pub filter: Option<Vec<String>>,
    /// A GID index for all devices, and the variable that sets it.
    pub gid_index: Option<(&'static str, u32)>,
}

impl Default for DeviceSelection {
    fn default() -> DeviceSelection {
        DeviceSelection { port: 1, filter: None, gid_index: None }
    }
}

impl DeviceSelection {
    /// Reads the environment variables through `lookup`. Also returns a warning for each invalid
    /// variable.
    pub fn from_env(lookup: &dyn Fn(&str) -> Option<String>) -> (DeviceSelection, Vec<String>) {
        let mut selection = DeviceSelection::default();
        let mut warnings = Vec::new();
        let mut number = |name: &'static str, min: u32, what: &str| {
            let text = lookup(name).filter(|t| !t.trim().is_empty())?;
            let number = text.trim().parse().ok().filter(|&n| n >= min);
            if number.is_none() && text.trim() != "-1" {
                warnings.push(format!("{name}={text} ignored: expected {what}"));
            }
            number
        };
        selection.port = number("MC_IB_PORT", 1, "a port number of at least 1").unwrap_or(1);
        for name in ["MC_GID_INDEX", "NCCL_IB_GID_INDEX"] {
            if let Some(index) = number(name, 0, "a GID index") {
                selection.gid_index.get_or_insert((name, index));
            }
        }
        let names = lookup("MC_TE_FILTERS").unwrap_or_default();
        let names: Vec<String> = names.split(',').map(str::trim).filter(|n| !n.is_empty()).map(str::to_owned).collect();
        selection.filter = (!names.is_empty()).then_some(names);
        (selection, warnings)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PickedDevice {
    pub device: String,
    pub port: u32,
    /// The type of the selected GID.
    pub kind: GidType,
    pub gid: Ipv6Addr,
    /// The GID index, and why it was selected.
    #[serde(flatten)]
    pub pick: GidPick,
}

/// Why a device is not recommended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExclusionReason {
    /// `MC_TE_FILTERS` excludes the device.
    Filtered,
    /// This process cannot open the device.
    Closed,
    /// The port does not exist.
    NoPort(u32),
    /// The port is not active.
    Down(u32),
    /// Protocol rdma does not support the device's transport.
    DeviceTransport(&'static str),
    /// The link layer is neither InfiniBand nor Ethernet.
    LinkLayer(String),
    NoGid,
    /// The port has only RoCE v1 GIDs, which routers do not forward.
    RoceV1Only,
    /// Another group of devices has a higher total rate.
    Outnumbered {
        this: String,
        chosen: String,
    },
}

impl fmt::Display for ExclusionReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ExclusionReason::Filtered => f.write_str("excluded by MC_TE_FILTERS"),
            ExclusionReason::Closed => f.write_str("this process cannot open the device"),
            ExclusionReason::NoPort(port) => write!(f, "the device has no port {port} (MC_IB_PORT)"),
            ExclusionReason::Down(port) => write!(f, "port {port} is not active"),
            ExclusionReason::DeviceTransport(name) => write!(f, "protocol rdma does not support {name}"),
            ExclusionReason::LinkLayer(layer) => write!(f, "unsupported link layer {layer}"),
            ExclusionReason::NoGid => f.write_str("the port has no GID"),
            ExclusionReason::RoceV1Only => f.write_str("the port has only RoCE v1 GIDs"),
            ExclusionReason::Outnumbered { this, chosen } => {
                write!(
                    f,
                    "{this}, but the recommended devices are {chosen}; the slowest device would limit all of them"
                )
            }
        }
    }
}

impl Serialize for ExclusionReason {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// A device that is not recommended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ExcludedDevice {
    pub device: String,
    pub why: ExclusionReason,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DeviceChoice {
    /// The devices that upstream Mooncake would use by default.
    pub listed: Vec<String>,
    pub picked: Vec<PickedDevice>,
    pub left_out: Vec<ExcludedDevice>,
    /// The common GID index; `None` if the devices need different indices or the list is empty.
    pub gid_index: Option<u32>,
}

impl DeviceChoice {
    /// Selects from the devices on `host`. Also returns problems with the settings themselves.
    pub fn of(host: &HostTopology, selection: &DeviceSelection) -> (DeviceChoice, Vec<DeviceFinding>) {
        let filtered = |name: &String| selection.filter.as_ref().is_some_and(|names| !names.contains(name));
        let listed = host.devices.iter().filter(|d| d.is_listed() && !filtered(&d.name));
        let mut choice = DeviceChoice {
            listed: listed.map(|d| d.name.clone()).collect(),
            picked: Vec::new(),
            left_out: Vec::new(),
            gid_index: None,
        };
        let mut able = Vec::new();
        for device in &host.devices {
            match if filtered(&device.name) { Err(ExclusionReason::Filtered) } else { usable(device, selection) } {
                Ok(port) => able.push((device, port)),
                Err(why) => choice.left_out.push(ExcludedDevice { device: device.name.clone(), why }),
            }
        }
        let group = largest_group(&able);
        for (device, port) in able {
            let this = LinkClass::of(port);
            match (gid::pick(&port.gids), &group) {
                (Some(pick), Some(group)) if *group == this => choice.picked.push(picked(device, port, pick)),
                (_, group) => {
                    let chosen = group.as_ref().map(ToString::to_string).unwrap_or_default();
                    let why = ExclusionReason::Outnumbered { this: this.to_string(), chosen };
                    choice.left_out.push(ExcludedDevice { device: device.name.clone(), why });
                }
            }
        }
        let mut rows = choice.picked.iter().map(|p| p.pick.index);
        let first = rows.next();
        choice.gid_index = first.filter(|&row| rows.all(|other| other == row));
        let findings = selection_findings(host, selection, &choice);
        (choice, findings)
    }
}

fn picked(device: &HostRdmaDevice, port: &RdmaPort, pick: GidPick) -> PickedDevice {
    let row = port.gids.iter().find(|g| g.index == pick.index).expect("the selected GID");
    PickedDevice { device: device.name.clone(), port: port.number, kind: row.kind, gid: row.gid, pick }
}

/// Returns the port to use, or why the device is unusable.
fn usable<'a>(device: &'a HostRdmaDevice, selection: &DeviceSelection) -> Result<&'a RdmaPort, ExclusionReason> {
    if device.uverbs.as_ref().is_none_or(|u| u.closed.is_some()) {
        return Err(ExclusionReason::Closed);
    }
    match (device.provider.as_deref(), device.transport) {
        (Some("efa"), _) => return Err(ExclusionReason::DeviceTransport("EFA")),
        (Some("erdma"), _) | (_, DeviceTransport::Infiniband) => {}
        (_, DeviceTransport::Iwarp) => return Err(ExclusionReason::DeviceTransport("iWARP")),
        (_, DeviceTransport::Unspecified) => return Err(ExclusionReason::DeviceTransport("an unknown transport")),
    }
    let port = device.port(selection.port).ok_or(ExclusionReason::NoPort(selection.port))?;
    if !port.is_active() {
        return Err(ExclusionReason::Down(port.number));
    }
    match port.link_layer.as_deref() {
        Some("InfiniBand" | "Ethernet") => {}
        layer => return Err(ExclusionReason::LinkLayer(layer.unwrap_or("unknown").to_owned())),
    }
    if port.gids.is_empty() {
        return Err(ExclusionReason::NoGid);
    }
    if port.gids.iter().all(|g| g.kind == GidType::RoceV1) {
        return Err(ExclusionReason::RoceV1Only);
    }
    Ok(port)
}

/// Link layer and rate, which must match for devices that are used together.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct LinkClass {
    mbps: u64,
    link_layer: String,
}

impl LinkClass {
    fn of(port: &RdmaPort) -> LinkClass {
        LinkClass { mbps: port.rate_mbps.unwrap_or(0), link_layer: port.link_layer.clone().unwrap_or_default() }
    }
}

impl fmt::Display for LinkClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {} Gbit/s", self.link_layer, self.mbps as f64 / 1000.0)
    }
}

/// The group with the highest total rate; on a tie, the group with faster devices.
fn largest_group(able: &[(&HostRdmaDevice, &RdmaPort)]) -> Option<LinkClass> {
    let mut sums: BTreeMap<LinkClass, u64> = BTreeMap::new();
    for (_, port) in able {
        let group = LinkClass::of(port);
        // An unknown rate is treated as 1 Mbit/s.
        let mbps = group.mbps.max(1);
        *sums.entry(group).or_default() += mbps;
    }
    sums.into_iter().max_by_key(|(group, sum)| (*sum, group.mbps)).map(|(group, _)| group)
}

fn selection_findings(host: &HostTopology, selection: &DeviceSelection, choice: &DeviceChoice) -> Vec<DeviceFinding> {
    let mut found = Vec::new();
    for name in selection.filter.iter().flatten() {
        if !host.devices.iter().any(|d| d.name == *name) && !host.devices.is_empty() {
            found.push(DeviceFinding::FilterNamesNone { name: mcctl_base::text::escaped(name) });
        }
    }
    let Some((variable, index)) = selection.gid_index else { return found };
    for picked in &choice.picked {
        let port = host.devices.iter().find(|d| d.name == picked.device).and_then(|d| d.port(picked.port));
        if port.is_some_and(|p| p.gids.iter().all(|g| g.index != index)) {
            found.push(DeviceFinding::EmptyGidRow {
                device: picked.device.clone(),
                variable,
                index,
                port: picked.port,
            });
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn selection(pairs: &[(&str, &str)]) -> (DeviceSelection, Vec<String>) {
        let pairs: BTreeMap<&str, &str> = pairs.iter().copied().collect();
        DeviceSelection::from_env(&|name| pairs.get(name).map(|v| (*v).to_owned()))
    }

    #[test]
    fn the_environment_is_parsed_like_upstream() {
        assert_eq!(selection(&[]), (DeviceSelection::default(), vec![]));
        let (found, warnings) =
            selection(&[("MC_TE_FILTERS", " mlx5_0 ,mlx5_1,"), ("MC_IB_PORT", "2"), ("MC_GID_INDEX", "3")]);
        assert_eq!(found.filter.as_deref(), Some(&["mlx5_0".to_owned(), "mlx5_1".to_owned()][..]));
        assert_eq!((found.port, found.gid_index, warnings.len()), (2, Some(("MC_GID_INDEX", 3)), 0));
        let (found, _) = selection(&[("NCCL_IB_GID_INDEX", "5"), ("MC_GID_INDEX", "-1")]);
        assert_eq!(found.gid_index, Some(("NCCL_IB_GID_INDEX", 5)));
        let (found, warnings) = selection(&[("MC_IB_PORT", "0"), ("MC_GID_INDEX", "three")]);
        assert_eq!((found.port, found.gid_index, warnings.len()), (1, None, 2));
    }
}
