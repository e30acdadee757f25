//! A port's GIDs, and which GID index to use.
//!
//! Mooncake's own order is [`GidRank`] (release 0.3.13: `MC_GID_INDEX`, else `NCCL_IB_GID_INDEX`,
//! else this order). It ranks GIDs by reachability. The recommendation prefers a RoCE v2 GID with
//! an IPv4 address, because it usually has the same index on all hosts in a cluster.

use std::net::{Ipv4Addr, Ipv6Addr};

use serde::Serialize;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum GidType {
    /// InfiniBand and all other non-RoCE types (iWARP, EFA).
    Ib,
    /// RoCE v1: a non-IP Ethernet protocol, which routers do not forward.
    RoceV1,
    RoceV2,
    /// The kernel reports no type, or an unknown type.
    Unknown,
}

impl GidType {
    /// Parses `gid_attrs/types/<i>`. The kernel writes the same string for InfiniBand, iWARP and
    /// RoCE v1, so `roce` distinguishes them.
    pub fn parse(text: &str, roce: bool) -> GidType {
        match text {
            "RoCE v2" => GidType::RoceV2,
            "IB/RoCE v1" | "RoCE v1" if roce => GidType::RoceV1,
            "IB/RoCE v1" | "IB" => GidType::Ib,
            _ => GidType::Unknown,
        }
    }

    /// The common name of the type.
    pub const fn name(self) -> &'static str {
        match self {
            GidType::Ib => "IB",
            GidType::RoceV1 => "RoCE v1",
            GidType::RoceV2 => "RoCE v2",
            GidType::Unknown => "unknown",
        }
    }
}

/// A GID in use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Gid {
    /// Index in the port's table.
    pub index: u32,
    pub gid: Ipv6Addr,
    pub kind: GidType,
    /// The network device that the GID belongs to.
    pub netdev: Option<String>,
    /// The IPv4 address, if the GID is IPv4-mapped.
    pub ipv4: Option<Ipv4Addr>,
}

/// Mooncake's rank for a GID, best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum GidRank {
    /// A routable address with a network device.
    Routable,
    /// A routable address without a network device (the normal case on InfiniBand).
    RoutableWithoutNetdev,
    /// An IPv4 address in 10/8, 172.16/12 or 100.64/10, with a network device.
    Private,
    /// A link-local address, or a network device that is an overlay or a container bridge.
    Degraded,
    /// Like `Private`, but without a network device.
    PrivateWithoutNetdev,
    /// Like `Degraded`, but without a network device.
    DegradedWithoutNetdev,
    /// Any other GID that is not null, such as a RoCE v1 GID.
    Other,
}

/// Name prefixes of overlay and container network devices.
const OVERLAYS: &[&str] = &["flannel", "cni", "calico", "vxlan", "docker"];

impl Gid {
    /// Creates a GID; `None` if the GID is null.
    pub fn new(index: u32, gid: Ipv6Addr, kind: GidType, netdev: Option<String>) -> Option<Gid> {
        (!gid.is_unspecified()).then(|| Gid { index, gid, kind, netdev, ipv4: gid.to_ipv4_mapped() })
    }

    /// Mooncake's rank for this GID.
    pub fn rank(&self) -> GidRank {
        if !matches!(self.kind, GidType::Ib | GidType::RoceV2) {
            return GidRank::Other;
        }
        let overlay = self.netdev.as_deref().is_some_and(|n| n == "tunl0" || OVERLAYS.iter().any(|o| n.starts_with(o)));
        // A GID that is both degraded and private is ranked as degraded. Upstream's order between
        // two such GIDs is unknown.
        let degraded = self.kind == GidType::RoceV2 && (overlay || self.is_link_local());
        match (self.netdev.is_some(), degraded, self.is_private()) {
            (true, true, _) => GidRank::Degraded,
            (true, false, true) => GidRank::Private,
            (true, false, false) => GidRank::Routable,
            (false, true, _) => GidRank::DegradedWithoutNetdev,
            (false, false, true) => GidRank::PrivateWithoutNetdev,
            (false, false, false) => GidRank::RoutableWithoutNetdev,
        }
    }

    /// Whether the GID is in fe80::/10.
    pub fn is_link_local(&self) -> bool {
        self.gid.segments()[0] & 0xffc0 == 0xfe80
    }

    /// Whether the GID is in an IPv4 range that upstream treats as private (192.168/16 is not).
    fn is_private(&self) -> bool {
        self.ipv4.is_some_and(|ip| {
            let [a, b, ..] = ip.octets();
            a == 10 || (a == 172 && b & 0xf0 == 16) || (a == 100 && b & 0xc0 == 64)
        })
    }

    /// Whether this is a RoCE v2 GID with an IPv4 address that is not on an overlay network: the
    /// usual recommendation.
    fn is_plain_roce_v2(&self) -> bool {
        self.kind == GidType::RoceV2
            && self.ipv4.is_some()
            && !matches!(self.rank(), GidRank::Degraded | GidRank::DegradedWithoutNetdev)
    }
}

/// Why a GID was selected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum GidReason {
    /// RoCE v2 with an IPv4 address.
    RoceV2Ipv4,
    /// No such GID exists; this is the best GID in Mooncake's order.
    BestOfTheRest,
}

/// The selected GID index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct GidPick {
    pub index: u32,
    pub because: GidReason,
    /// The index that Mooncake uses by default.
    pub automatic: u32,
}

/// Selects a GID from `table`; `None` if the table is empty.
pub fn pick(table: &[Gid]) -> Option<GidPick> {
    let by_rank = |rows: &mut dyn Iterator<Item = &Gid>| rows.min_by_key(|g| (g.rank(), g.index)).map(|g| g.index);
    let automatic = by_rank(&mut table.iter())?;
    let plain = by_rank(&mut table.iter().filter(|g| g.is_plain_roce_v2()));
    let because = if plain.is_some() { GidReason::RoceV2Ipv4 } else { GidReason::BestOfTheRest };
    Some(GidPick { index: plain.unwrap_or(automatic), because, automatic })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(index: u32, gid: &str, kind: GidType, netdev: &str) -> Gid {
        let netdev = (!netdev.is_empty()).then(|| netdev.to_owned());
        Gid::new(index, gid.parse().unwrap(), kind, netdev).unwrap()
    }

    #[test]
    fn a_usual_roce_table_gives_index_3() {
        use GidType::{RoceV1, RoceV2};
        let table = [
            row(0, "fe80::1", RoceV1, "eth0"),
            row(1, "fe80::1", RoceV2, "eth0"),
            row(2, "::ffff:192.0.2.1", RoceV1, "eth0"),
            row(3, "::ffff:192.0.2.1", RoceV2, "eth0"),
        ];
        assert_eq!(pick(&table), Some(GidPick { index: 3, because: GidReason::RoceV2Ipv4, automatic: 3 }));
        let only_v1 = [table[0].clone(), table[2].clone()];
        assert_eq!(pick(&only_v1), Some(GidPick { index: 0, because: GidReason::BestOfTheRest, automatic: 0 }));
        assert_eq!(pick(&[]), None);
    }

    #[test]
    fn private_ipv4_is_preferred_to_routable_ipv6_unlike_mooncake() {
        let table = [
            row(0, "fe80::1", GidType::RoceV2, "eth0"),
            row(1, "2001:db8::1", GidType::RoceV2, "eth0"),
            row(2, "::ffff:10.0.0.1", GidType::RoceV2, "eth0"),
        ];
        assert_eq!(pick(&table), Some(GidPick { index: 2, because: GidReason::RoceV2Ipv4, automatic: 1 }));
    }

    #[test]
    fn ranks_match_upstream() {
        let of = |gid: &str, netdev: &str| row(0, gid, GidType::RoceV2, netdev).rank();
        assert_eq!(of("::ffff:192.168.1.1", "eth0"), GidRank::Routable);
        assert_eq!(of("::ffff:172.31.0.1", "eth0"), GidRank::Private);
        assert_eq!(of("::ffff:100.64.0.1", ""), GidRank::PrivateWithoutNetdev);
        assert_eq!(of("::ffff:192.0.2.1", "docker0"), GidRank::Degraded);
        assert_eq!(of("::ffff:192.0.2.1", "tunl0"), GidRank::Degraded);
        assert_eq!(of("fe80::1", ""), GidRank::DegradedWithoutNetdev);
        assert_eq!(of("2001:db8::1", ""), GidRank::RoutableWithoutNetdev);
        assert_eq!(row(0, "fe80::1", GidType::Ib, "").rank(), GidRank::RoutableWithoutNetdev);
        assert_eq!(row(0, "::ffff:192.0.2.1", GidType::RoceV1, "eth0").rank(), GidRank::Other);
    }

    #[test]
    fn ib_and_roce_v1_are_distinguished_by_the_link_layer() {
        assert_eq!(GidType::parse("IB/RoCE v1", true), GidType::RoceV1);
        assert_eq!(GidType::parse("IB/RoCE v1", false), GidType::Ib);
        assert_eq!(GidType::parse("RoCE v2", true), GidType::RoceV2);
        assert_eq!(GidType::parse("RoCE v9", true), GidType::Unknown);
    }
}
