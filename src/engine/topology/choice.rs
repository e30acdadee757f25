//! Which devices and which GID row to use, and why.
//!
//! Mooncake itself takes every device that it can open ([`Device::is_listed`]) and deals slices out to them evenly, so one slow or
//! foreign device among them paces all. Chosen here are those that can talk to each other and are alike: the group of one link layer
//! and one rate that carries most.

use std::collections::BTreeMap;
use std::fmt;
use std::net::Ipv6Addr;

use serde::Serialize;

use crate::engine::topology::device::{Device, Port, Transport};
use crate::engine::topology::finding::Finding;
use crate::engine::topology::gid::{self, GidKind, GidPick};
use crate::engine::topology::host::Host;

/// What the environment asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wish {
    /// The port of every device: `MC_IB_PORT`.
    pub port: u32,
    /// Only these devices: `MC_TE_FILTERS`.
    pub filter: Option<Vec<String>>,
    /// A row of the GID table for all devices, and the variable that says so.
    pub gid_index: Option<(&'static str, u32)>,
}

impl Default for Wish {
    fn default() -> Wish {
        Wish { port: 1, filter: None, gid_index: None }
    }
}

impl Wish {
    /// What the variables that `lookup` finds ask for, and a warning for each that is not understood.
    pub fn from_env(lookup: &dyn Fn(&str) -> Option<String>) -> (Wish, Vec<String>) {
        let (mut wish, mut warnings) = (Wish::default(), Vec::new());
        let mut number = |name: &'static str, min: u32, what: &str| {
            let text = lookup(name).filter(|t| !t.trim().is_empty())?;
            let number = text.trim().parse().ok().filter(|&n| n >= min);
            if number.is_none() && text.trim() != "-1" {
                warnings.push(format!("{name}={text} is not {what}; ignored"));
            }
            number
        };
        wish.port = number("MC_IB_PORT", 1, "the number of a port, which count from 1").unwrap_or(1);
        for name in ["MC_GID_INDEX", "NCCL_IB_GID_INDEX"] {
            if let Some(index) = number(name, 0, "an index of a GID") {
                wish.gid_index.get_or_insert((name, index));
            }
        }
        let names = lookup("MC_TE_FILTERS").unwrap_or_default();
        let names: Vec<String> = names.split(',').map(str::trim).filter(|n| !n.is_empty()).map(str::to_owned).collect();
        wish.filter = (!names.is_empty()).then_some(names);
        (wish, warnings)
    }
}

/// A device to use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Picked {
    pub device: String,
    pub port: u32,
    /// What the row's address is.
    pub kind: GidKind,
    pub gid: Ipv6Addr,
    /// The row, and why.
    #[serde(flatten)]
    pub pick: GidPick,
}

/// Why a device is not to be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WhyNot {
    /// `MC_TE_FILTERS` does not name it.
    Filtered,
    /// Programs cannot open it.
    Closed,
    /// It has no such port.
    NoPort(u32),
    /// The port is down.
    Down(u32),
    /// It is not what the rdma protocol needs.
    Transport(&'static str),
    /// Neither InfiniBand nor Ethernet.
    LinkLayer(String),
    NoGid,
    /// Only addresses that no router forwards.
    RoceV1Only,
    /// Others of another link layer or rate carry more together.
    Outnumbered {
        this: String,
        /// What the chosen ones are.
        chosen: String,
    },
}

impl fmt::Display for WhyNot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WhyNot::Filtered => f.write_str("MC_TE_FILTERS does not name it"),
            WhyNot::Closed => f.write_str("programs cannot open it"),
            WhyNot::NoPort(port) => write!(f, "it has no port {port} (MC_IB_PORT)"),
            WhyNot::Down(port) => write!(f, "port {port} is not active"),
            WhyNot::Transport(name) => write!(f, "{name} is not what the rdma protocol needs"),
            WhyNot::LinkLayer(layer) => write!(f, "its link layer is {layer}"),
            WhyNot::NoGid => f.write_str("it has no GID"),
            WhyNot::RoceV1Only => f.write_str("it has RoCE v1 GIDs only"),
            WhyNot::Outnumbered { this, chosen } => {
                write!(f, "it is {this}, the chosen ones are {chosen}, and the slowest would pace all")
            }
        }
    }
}

impl Serialize for WhyNot {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// A device that is not to be used.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LeftOut {
    pub device: String,
    pub why: WhyNot,
}

/// What to use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Choice {
    /// What the original Mooncake would take by itself.
    pub listed: Vec<String>,
    /// The devices to use.
    pub picked: Vec<Picked>,
    pub left_out: Vec<LeftOut>,
    /// One row for all of them; `None` where they differ (each finds its own) or there are none.
    pub gid_index: Option<u32>,
}

impl Choice {
    /// Choose among the devices of `host`; and what is wrong with the wish itself.
    pub fn of(host: &Host, wish: &Wish) -> (Choice, Vec<Finding>) {
        let filtered = |name: &String| wish.filter.as_ref().is_some_and(|names| !names.contains(name));
        let listed = host.devices.iter().filter(|d| d.is_listed() && !filtered(&d.name));
        let mut choice = Choice {
            listed: listed.map(|d| d.name.clone()).collect(),
            picked: Vec::new(),
            left_out: Vec::new(),
            gid_index: None,
        };
        let mut able = Vec::new();
        for device in &host.devices {
            match if filtered(&device.name) { Err(WhyNot::Filtered) } else { usable(device, wish) } {
                Ok(port) => able.push((device, port)),
                Err(why) => choice.left_out.push(LeftOut { device: device.name.clone(), why }),
            }
        }
        let group = largest_group(&able);
        for (device, port) in able {
            let this = Group::of(port);
            match (gid::pick(&port.gids), &group) {
                (Some(pick), Some(group)) if *group == this => choice.picked.push(picked(device, port, pick)),
                (_, group) => {
                    let chosen = group.as_ref().map(ToString::to_string).unwrap_or_default();
                    let why = WhyNot::Outnumbered { this: this.to_string(), chosen };
                    choice.left_out.push(LeftOut { device: device.name.clone(), why });
                }
            }
        }
        let mut rows = choice.picked.iter().map(|p| p.pick.index);
        let first = rows.next();
        choice.gid_index = first.filter(|&row| rows.all(|other| other == row));
        let findings = doubts(host, wish, &choice);
        (choice, findings)
    }
}

fn picked(device: &Device, port: &Port, pick: GidPick) -> Picked {
    let row = port.gids.iter().find(|g| g.index == pick.index).expect("a row of this table");
    Picked { device: device.name.clone(), port: port.number, kind: row.kind, gid: row.gid, pick }
}

/// The port to use, or why there is none.
fn usable<'a>(device: &'a Device, wish: &Wish) -> Result<&'a Port, WhyNot> {
    if device.uverbs.as_ref().is_none_or(|u| u.closed.is_some()) {
        return Err(WhyNot::Closed);
    }
    match (device.provider.as_deref(), device.transport) {
        (Some("efa"), _) => return Err(WhyNot::Transport("EFA")),
        (Some("erdma"), _) | (_, Transport::Infiniband) => {}
        (_, Transport::Iwarp) => return Err(WhyNot::Transport("iWARP")),
        (_, Transport::Unspecified) => return Err(WhyNot::Transport("a transport without a name")),
    }
    let port = device.port(wish.port).ok_or(WhyNot::NoPort(wish.port))?;
    if !port.is_active() {
        return Err(WhyNot::Down(port.number));
    }
    match port.link_layer.as_deref() {
        Some("InfiniBand" | "Ethernet") => {}
        layer => return Err(WhyNot::LinkLayer(layer.unwrap_or("unknown").to_owned())),
    }
    if port.gids.is_empty() {
        return Err(WhyNot::NoGid);
    }
    if port.gids.iter().all(|g| g.kind == GidKind::RoceV1) {
        return Err(WhyNot::RoceV1Only);
    }
    Ok(port)
}

/// What devices that work together have in common.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Group {
    mbps: u64,
    link_layer: String,
}

impl Group {
    fn of(port: &Port) -> Group {
        Group { mbps: port.rate_mbps.unwrap_or(0), link_layer: port.link_layer.clone().unwrap_or_default() }
    }
}

impl fmt::Display for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {} Gbit/s", self.link_layer, self.mbps as f64 / 1000.0)
    }
}

/// The group that carries most; of equal ones that of the faster devices.
fn largest_group(able: &[(&Device, &Port)]) -> Option<Group> {
    let mut sums: BTreeMap<Group, u64> = BTreeMap::new();
    for (_, port) in able {
        let group = Group::of(port);
        // A rate that is not known counts as one bit more than nothing.
        let mbps = group.mbps.max(1);
        *sums.entry(group).or_default() += mbps;
    }
    sums.into_iter().max_by_key(|(group, sum)| (*sum, group.mbps)).map(|(group, _)| group)
}

fn doubts(host: &Host, wish: &Wish, choice: &Choice) -> Vec<Finding> {
    let mut found = Vec::new();
    for name in wish.filter.iter().flatten() {
        if !host.devices.iter().any(|d| d.name == *name) && !host.devices.is_empty() {
            found.push(Finding::FilterNamesNone { name: crate::engine::base::text::escaped(name) });
        }
    }
    let Some((variable, index)) = wish.gid_index else { return found };
    for picked in &choice.picked {
        let port = host.devices.iter().find(|d| d.name == picked.device).and_then(|d| d.port(picked.port));
        if port.is_some_and(|p| p.gids.iter().all(|g| g.index != index)) {
            found.push(Finding::EmptyGidRow { device: picked.device.clone(), variable, index, port: picked.port });
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wish(pairs: &[(&str, &str)]) -> (Wish, Vec<String>) {
        let pairs: BTreeMap<&str, &str> = pairs.iter().copied().collect();
        Wish::from_env(&|name| pairs.get(name).map(|v| (*v).to_owned()))
    }

    #[test]
    fn the_environment_is_read_as_the_original_reads_it() {
        assert_eq!(wish(&[]), (Wish::default(), vec![]));
        let (found, warnings) =
            wish(&[("MC_TE_FILTERS", " mlx5_0 ,mlx5_1,"), ("MC_IB_PORT", "2"), ("MC_GID_INDEX", "3")]);
        assert_eq!(found.filter.as_deref(), Some(&["mlx5_0".to_owned(), "mlx5_1".to_owned()][..]));
        assert_eq!((found.port, found.gid_index, warnings.len()), (2, Some(("MC_GID_INDEX", 3)), 0));
        let (found, _) = wish(&[("NCCL_IB_GID_INDEX", "5"), ("MC_GID_INDEX", "-1")]);
        assert_eq!(found.gid_index, Some(("NCCL_IB_GID_INDEX", 5)));
        let (found, warnings) = wish(&[("MC_IB_PORT", "0"), ("MC_GID_INDEX", "three")]);
        assert_eq!((found.port, found.gid_index, warnings.len()), (1, None, 2));
    }
}
