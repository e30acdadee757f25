//! A row of a port's GID table, and which row to use.
//!
//! Mooncake's own order is [`Standing`] (release 0.3.13: `MC_GID_INDEX`, else `NCCL_IB_GID_INDEX`, else this). It ranks by how far a
//! packet would get; we ask for a RoCE v2 row with an IPv4 address before that, because it is the one that both ends of a cluster
//! have at the same index.

use std::net::{Ipv4Addr, Ipv6Addr};

use serde::Serialize;

/// What a GID is an address of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum GidKind {
    /// InfiniBand, and everything else that is not RoCE (iWARP, EFA).
    Ib,
    /// RoCE v1: Ethernet frames of their own, which no router forwards.
    RoceV1,
    /// RoCE v2: UDP.
    RoceV2,
    /// The kernel does not tell, or tells something else.
    Unknown,
}

impl GidKind {
    /// From the text of `gid_attrs/types/<i>`. The kernel writes the same for InfiniBand, iWARP and RoCE v1.
    pub fn parse(text: &str, roce: bool) -> GidKind {
        match text {
            "RoCE v2" => GidKind::RoceV2,
            "IB/RoCE v1" | "RoCE v1" if roce => GidKind::RoceV1,
            "IB/RoCE v1" | "IB" => GidKind::Ib,
            _ => GidKind::Unknown,
        }
    }

    /// Its usual name.
    pub const fn name(self) -> &'static str {
        match self {
            GidKind::Ib => "IB",
            GidKind::RoceV1 => "RoCE v1",
            GidKind::RoceV2 => "RoCE v2",
            GidKind::Unknown => "unknown",
        }
    }
}

/// A row that is in use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Gid {
    /// Its index in the port's table.
    pub index: u32,
    /// The 16 bytes.
    pub gid: Ipv6Addr,
    /// What kind of address.
    pub kind: GidKind,
    /// The network device it belongs to.
    pub netdev: Option<String>,
    /// The IPv4 address inside, if it is one.
    pub ipv4: Option<Ipv4Addr>,
}

/// How Mooncake ranks a row: the first is the best.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Standing {
    /// With a network device, and an address that routers forward.
    Routable,
    /// Such an address without a network device (the rule on InfiniBand).
    RoutableWithoutNetdev,
    /// With a network device, IPv4 of 10/8, 172.16/12 or 100.64/10.
    Private,
    /// With a network device that is an overlay or a bridge of containers, or a link-local address.
    Degraded,
    /// As private, without a network device.
    PrivateWithoutNetdev,
    /// As degraded, without a network device.
    DegradedWithoutNetdev,
    /// Anything else that is not null, such as RoCE v1.
    Other,
}

/// Beginnings of the names of network devices that lead into overlays and containers.
const OVERLAYS: &[&str] = &["flannel", "cni", "calico", "vxlan", "docker"];

impl Gid {
    /// A row from its parts; `None` for a null one.
    pub fn new(index: u32, gid: Ipv6Addr, kind: GidKind, netdev: Option<String>) -> Option<Gid> {
        (!gid.is_unspecified()).then(|| Gid { index, gid, kind, netdev, ipv4: gid.to_ipv4_mapped() })
    }

    /// Mooncake's rank of this row.
    pub fn standing(&self) -> Standing {
        if !matches!(self.kind, GidKind::Ib | GidKind::RoceV2) {
            return Standing::Other;
        }
        let overlay = self.netdev.as_deref().is_some_and(|n| n == "tunl0" || OVERLAYS.iter().any(|o| n.starts_with(o)));
        // A row that is both degraded and private counts as degraded here; upstream's choice between two such rows is not known.
        let degraded = self.kind == GidKind::RoceV2 && (overlay || self.is_link_local());
        match (self.netdev.is_some(), degraded, self.is_private()) {
            (true, true, _) => Standing::Degraded,
            (true, false, true) => Standing::Private,
            (true, false, false) => Standing::Routable,
            (false, true, _) => Standing::DegradedWithoutNetdev,
            (false, false, true) => Standing::PrivateWithoutNetdev,
            (false, false, false) => Standing::RoutableWithoutNetdev,
        }
    }

    /// fe80::/10.
    pub fn is_link_local(&self) -> bool {
        self.gid.segments()[0] & 0xffc0 == 0xfe80
    }

    /// IPv4 of the ranges that upstream takes for private (192.168/16 is not among them).
    fn is_private(&self) -> bool {
        self.ipv4.is_some_and(|ip| {
            let [a, b, ..] = ip.octets();
            a == 10 || (a == 172 && b & 0xf0 == 16) || (a == 100 && b & 0xc0 == 64)
        })
    }

    /// A RoCE v2 row with an IPv4 address that is not an overlay's: what every guide asks for.
    fn is_plain_roce_v2(&self) -> bool {
        self.kind == GidKind::RoceV2
            && self.ipv4.is_some()
            && !matches!(self.standing(), Standing::Degraded | Standing::DegradedWithoutNetdev)
    }
}

/// Why a row was picked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Because {
    /// RoCE v2 with an IPv4 address.
    RoceV2Ipv4,
    /// No such row: the best of Mooncake's order.
    BestOfTheRest,
}

/// The row to use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct GidPick {
    /// The row to use.
    pub index: u32,
    pub because: Because,
    /// The row that Mooncake takes when it is not told.
    pub automatic: u32,
}

/// The row to use of `table`; `None` when it is empty.
pub fn pick(table: &[Gid]) -> Option<GidPick> {
    let by_rank = |rows: &mut dyn Iterator<Item = &Gid>| rows.min_by_key(|g| (g.standing(), g.index)).map(|g| g.index);
    let automatic = by_rank(&mut table.iter())?;
    let plain = by_rank(&mut table.iter().filter(|g| g.is_plain_roce_v2()));
    let because = if plain.is_some() { Because::RoceV2Ipv4 } else { Because::BestOfTheRest };
    Some(GidPick { index: plain.unwrap_or(automatic), because, automatic })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(index: u32, gid: &str, kind: GidKind, netdev: &str) -> Gid {
        let netdev = (!netdev.is_empty()).then(|| netdev.to_owned());
        Gid::new(index, gid.parse().unwrap(), kind, netdev).unwrap()
    }

    #[test]
    fn the_usual_table_of_a_roce_port_gives_index_3() {
        use GidKind::{RoceV1, RoceV2};
        let table = [
            row(0, "fe80::1", RoceV1, "eth0"),
            row(1, "fe80::1", RoceV2, "eth0"),
            row(2, "::ffff:192.0.2.1", RoceV1, "eth0"),
            row(3, "::ffff:192.0.2.1", RoceV2, "eth0"),
        ];
        assert_eq!(pick(&table), Some(GidPick { index: 3, because: Because::RoceV2Ipv4, automatic: 3 }));
        let only_v1 = [table[0].clone(), table[2].clone()];
        assert_eq!(pick(&only_v1), Some(GidPick { index: 0, because: Because::BestOfTheRest, automatic: 0 }));
        assert_eq!(pick(&[]), None);
    }

    #[test]
    fn a_routable_ipv6_row_is_mooncakes_choice_before_a_private_ipv4_and_not_ours() {
        let table = [
            row(0, "fe80::1", GidKind::RoceV2, "eth0"),
            row(1, "2001:db8::1", GidKind::RoceV2, "eth0"),
            row(2, "::ffff:10.0.0.1", GidKind::RoceV2, "eth0"),
        ];
        assert_eq!(pick(&table), Some(GidPick { index: 2, because: Because::RoceV2Ipv4, automatic: 1 }));
    }

    #[test]
    fn standings_are_those_of_the_original() {
        let of = |gid: &str, netdev: &str| row(0, gid, GidKind::RoceV2, netdev).standing();
        assert_eq!(of("::ffff:192.168.1.1", "eth0"), Standing::Routable);
        assert_eq!(of("::ffff:172.31.0.1", "eth0"), Standing::Private);
        assert_eq!(of("::ffff:100.64.0.1", ""), Standing::PrivateWithoutNetdev);
        assert_eq!(of("::ffff:192.0.2.1", "docker0"), Standing::Degraded);
        assert_eq!(of("::ffff:192.0.2.1", "tunl0"), Standing::Degraded);
        assert_eq!(of("fe80::1", ""), Standing::DegradedWithoutNetdev);
        assert_eq!(of("2001:db8::1", ""), Standing::RoutableWithoutNetdev);
        assert_eq!(row(0, "fe80::1", GidKind::Ib, "").standing(), Standing::RoutableWithoutNetdev);
        assert_eq!(row(0, "::ffff:192.0.2.1", GidKind::RoceV1, "eth0").standing(), Standing::Other);
    }

    #[test]
    fn the_kernels_one_word_for_ib_and_roce_v1_is_told_apart_by_the_link() {
        assert_eq!(GidKind::parse("IB/RoCE v1", true), GidKind::RoceV1);
        assert_eq!(GidKind::parse("IB/RoCE v1", false), GidKind::Ib);
        assert_eq!(GidKind::parse("RoCE v2", true), GidKind::RoceV2);
        assert_eq!(GidKind::parse("RoCE v9", true), GidKind::Unknown);
    }
}
