//! Network interfaces. They carry the transfers on hosts without RDMA, and provide the address that
//! a host announces.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use procfs_core::net::RouteEntry;
use serde::Serialize;

use crate::topology::pci;
use crate::topology::reader::TreeReader;
use mcctl_base::text::escaped;
use mcctl_sys::{interface, procfs};

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Interface {
    pub name: String,
    /// The kernel's index. Mooncake searches the interfaces for an address in this order.
    pub index: Option<u32>,
    /// `up`, `down`, `unknown` (usual for the loopback), ...
    pub state: Option<String>,
    /// Whether the interface is enabled and has a carrier.
    pub running: bool,
    /// Speed in Mbit/s; `None` if the driver does not report it.
    pub speed_mbps: Option<u64>,
    /// Maximum packet size in bytes.
    pub mtu: Option<u32>,
    pub mac: Option<String>,
    pub addresses: Vec<IpAddr>,
    /// `None` if unknown.
    pub numa_node: Option<u32>,
    /// PCI address; `None` for a virtual interface.
    pub pci: Option<String>,
    /// Whether Mooncake announces this interface's first IPv4 address by default.
    pub announced: bool,
}

/// Reads all interfaces, ordered by index.
pub(in crate::topology) fn read(reader: &mut TreeReader<'_>) -> Vec<Interface> {
    let addresses = addresses(reader);
    let mut names = reader.names("/sys/class/net");
    // The directory also contains regular files (bonding_masters), and may be missing even if
    // addresses are known.
    names.retain(|name| reader.tree.resolve(&format!("/sys/class/net/{name}/address")).is_some());
    for (name, _) in &addresses {
        if !names.contains(name) {
            names.push(name.clone());
        }
    }
    let mut all: Vec<Interface> = names.iter().map(|name| one(reader, name, &addresses)).collect();
    all.sort_by_key(|i| i.index.unwrap_or(u32::MAX));
    let announced = all.iter_mut().find(|i| i.name != "lo" && i.running && i.addresses.iter().any(IpAddr::is_ipv4));
    if let Some(interface) = announced {
        interface.announced = true;
    }
    all
}

fn one(reader: &mut TreeReader<'_>, name: &str, addresses: &[(String, IpAddr)]) -> Interface {
    let at = format!("/sys/class/net/{name}");
    let file = |file: &str| format!("{at}/{file}");
    // Reading these files fails while the interface is down. An unknown speed is -1.
    let speed = reader.text_if_any(&file("speed")).and_then(|t| t.parse().ok()).filter(|&mbps| mbps > 0);
    let carrier = reader.text_if_any(&file("carrier")).is_some_and(|t| t == "1");
    let flags = reader.text_if_any(&file("flags"));
    let flags = flags.and_then(|t| u32::from_str_radix(t.trim_start_matches("0x"), 16).ok()).unwrap_or(0);
    let numa: Option<i64> = reader.text_if_any(&file("device/numa_node")).and_then(|t| t.parse().ok());
    let device = reader.tree.resolve(&file("device"));
    let pci = device.and_then(|d| d.rsplit('/').find(|part| pci::is_address(part)).map(str::to_owned));
    Interface {
        index: reader.number(&file("ifindex")),
        state: reader.text_if_any(&file("operstate")).map(|t| escaped(&t)),
        running: flags & 1 == 1 && carrier,
        speed_mbps: speed,
        mtu: reader.number(&file("mtu")),
        mac: reader.text_if_any(&file("address")).map(|t| escaped(&t)),
        addresses: addresses.iter().filter(|(of, _)| of == name).map(|(_, address)| *address).collect(),
        numa_node: numa.and_then(|n| u32::try_from(n).ok()),
        pci,
        announced: false,
        name: escaped(name),
    }
}

/// Addresses with their interfaces. On this host, the system lists them; for a copy of another
/// host's files, they are read from its routing tables.
fn addresses(reader: &mut TreeReader<'_>) -> Vec<(String, IpAddr)> {
    if reader.tree.is_this_host() {
        return interface::addresses().unwrap_or_default();
    }
    let mut text = |path: &str| reader.text(path).unwrap_or_default();
    let trie = text("/proc/net/fib_trie");
    let routes = text("/proc/net/route");
    let v6 = text("/proc/net/if_inet6");
    let routes = connected(&routes);
    let v4 = parse_local(&trie).into_iter().filter_map(|ip| {
        let name = if ip.is_loopback() { "lo" } else { interface_of(&routes, ip)? };
        Some((name.to_owned(), IpAddr::V4(ip)))
    });
    v4.chain(parse_inet6(&v6)).collect()
}

/// Parses `/proc/net/route`: the routes without a gateway, to directly connected networks.
fn connected(text: &str) -> Vec<RouteEntry> {
    procfs::routes(text).into_iter().filter(|route| route.gateway.is_unspecified()).collect()
}

fn holds(route: &RouteEntry, ip: Ipv4Addr) -> bool {
    ip & route.mask == route.destination
}

/// The interface whose network contains `ip`; `None` if two interfaces are on the same network,
/// because the files do not distinguish them.
fn interface_of(routes: &[RouteEntry], ip: Ipv4Addr) -> Option<&str> {
    let mask = routes.iter().filter(|r| holds(r, ip)).map(|r| r.mask).max()?;
    let mut names = routes.iter().filter(|r| holds(r, ip) && r.mask == mask).map(|r| r.iface.as_str());
    let first = names.next()?;
    names.all(|name| name == first).then_some(first)
}

/// Parses `/proc/net/fib_trie`: the host's own addresses, without duplicates.
fn parse_local(text: &str) -> Vec<Ipv4Addr> {
    let mut found = Vec::new();
    let mut last = None;
    for line in text.lines().map(str::trim) {
        if let Some(ip) = line.strip_prefix("|-- ") {
            last = ip.parse().ok();
        } else if line == "/32 host LOCAL"
            && let Some(ip) = last
            && !found.contains(&ip)
        {
            found.push(ip);
        }
    }
    found
}

/// Parses `/proc/net/if_inet6`: the first field is 32 hex digits, the last field is the interface.
fn parse_inet6(text: &str) -> Vec<(String, IpAddr)> {
    let entry = |line: &str| {
        let mut fields = line.split_whitespace();
        let ip = u128::from_str_radix(fields.next()?, 16).ok()?;
        Some((fields.next_back()?.to_owned(), IpAddr::V6(Ipv6Addr::from(ip))))
    };
    text.lines().filter_map(entry).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn routing_tables_map_addresses_to_interfaces() {
        let trie = "Local:\n  +-- 0.0.0.0/0 3 0 5\n     |-- 192.0.2.0\n        /24 link UNICAST\n     |-- 192.0.2.2\n        /32 host LOCAL\n\
                    |-- 192.0.2.2\n /32 host LOCAL\n";
        assert_eq!(parse_local(trie), [Ipv4Addr::new(192, 0, 2, 2)]);
        let routes = "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\neth0\t00000000\t010200C0\t3\t0\t0\t0\t00000000\n\
                      eth0\t000200C0\t00000000\t1\t0\t0\t0\t00FFFFFF\nshort\n";
        let routes = connected(routes);
        assert_eq!(routes.len(), 1);
        assert!(holds(&routes[0], Ipv4Addr::new(192, 0, 2, 77)) && !holds(&routes[0], Ipv4Addr::new(192, 0, 3, 1)));
        assert_eq!(interface_of(&routes, Ipv4Addr::new(192, 0, 2, 2)), Some("eth0"));
        let twice = [routes[0].clone(), RouteEntry { iface: "eth1".to_owned(), ..routes[0].clone() }];
        assert_eq!(interface_of(&twice, Ipv4Addr::new(192, 0, 2, 2)), None);
        let v6 = parse_inet6("fe800000000000005054000000000001 04 40 20 80 eth0\nnonsense\n");
        assert_eq!(v6, [("eth0".to_owned(), "fe80::5054:0:0:1".parse().unwrap())]);
    }
}
