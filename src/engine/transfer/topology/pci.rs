//! Device positions in the PCI tree, and the distance between devices.

use serde::Serialize;

/// The PCI connection between two devices, closest first. The names match the GPU vendors' topology
/// tools.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum PciLink {
    /// At most one PCIe switch.
    Pix,
    /// Several PCIe switches, but no host bridge.
    Pxb,
    /// A host bridge on one CPU.
    Phb,
    /// Two host bridges on one NUMA node.
    NumaNode,
    /// The interconnect between NUMA nodes, or unknown.
    Sys,
}

impl PciLink {
    /// The name shown in tables.
    pub const fn name(self) -> &'static str {
        match self {
            PciLink::Pix => "PIX",
            PciLink::Pxb => "PXB",
            PciLink::Phb => "PHB",
            PciLink::NumaNode => "NODE",
            PciLink::Sys => "SYS",
        }
    }
}

/// A position in the PCI tree: the real path below `/sys/devices`, and the NUMA node.
#[derive(Clone, Copy, Debug)]
pub struct PciPosition<'a> {
    pub path: &'a str,
    /// `None` if the firmware does not report it.
    pub numa: Option<u32>,
}

/// Returns the connection between `a` and `b`.
pub fn link(a: PciPosition<'_>, b: PciPosition<'_>) -> PciLink {
    let parts = |place: PciPosition<'_>| -> Vec<String> {
        place.path.trim_start_matches("/sys/devices/").split('/').map(str::to_owned).collect()
    };
    let left = parts(a);
    let right = parts(b);
    let common = left.iter().zip(&right).take_while(|(x, y)| x == y).count();
    // The first component is the host bridge (pci0000:16); all others are bridges and ports behind
    // it.
    match common {
        0 if a.numa.is_some() && a.numa == b.numa => PciLink::NumaNode,
        0 => PciLink::Sys,
        1 => PciLink::Phb,
        // A switch has a shared upstream port, and one downstream port to each device.
        _ if left.len() - common <= 2 && right.len() - common <= 2 => PciLink::Pix,
        _ => PciLink::Pxb,
    }
}

/// Mooncake's distance measure: the number of slashes after the common prefix of both paths.
pub fn steps(a: &str, b: &str) -> usize {
    let common = a.bytes().zip(b.bytes()).take_while(|(x, y)| x == y).count();
    [a, b].iter().map(|path| path.bytes().skip(common).filter(|&c| c == b'/').count()).sum()
}

/// Whether `name` is a PCI address, e.g. `0000:3b:00.0`.
pub fn is_address(name: &str) -> bool {
    let hex = |text: &str, min: usize, max: usize| {
        (min..=max).contains(&text.len()) && text.bytes().all(|c| c.is_ascii_hexdigit())
    };
    let Some((domain, rest)) = name.split_once(':') else { return false };
    let Some((bus, rest)) = rest.split_once(':') else { return false };
    let Some((device, function)) = rest.split_once('.') else { return false };
    hex(domain, 4, 8) && hex(bus, 2, 2) && hex(device, 2, 2) && hex(function, 1, 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn between(a: &str, b: &str, numa: (Option<u32>, Option<u32>)) -> PciLink {
        link(PciPosition { path: a, numa: numa.0 }, PciPosition { path: b, numa: numa.1 })
    }

    #[test]
    fn the_link_depends_on_the_last_common_bridge() {
        let same = (Some(0), Some(0));
        let switch = "/sys/devices/pci0000:16/0000:16:02.0/0000:17:00.0";
        let gpu = format!("{switch}/0000:18:00.0/0000:19:00.0");
        let nic = format!("{switch}/0000:18:01.0/0000:1a:00.0");
        assert_eq!(between(&gpu, &nic, same), PciLink::Pix);
        let deep = format!("{switch}/0000:18:02.0/0000:1b:00.0/0000:1c:00.0/0000:1d:00.0");
        assert_eq!(between(&gpu, &deep, same), PciLink::Pxb);
        let port = "/sys/devices/pci0000:16/0000:16:03.0/0000:20:00.0";
        assert_eq!(between(&gpu, port, same), PciLink::Phb);
        let other = "/sys/devices/pci0000:40/0000:40:01.0/0000:41:00.0";
        assert_eq!(between(&gpu, other, same), PciLink::NumaNode);
        assert_eq!(between(&gpu, other, (Some(0), Some(1))), PciLink::Sys);
        assert_eq!(between(&gpu, other, (None, None)), PciLink::Sys);
        assert_eq!(between(&gpu, &gpu, same), PciLink::Pix);
    }

    #[test]
    fn steps_count_slashes_after_the_common_characters() {
        assert_eq!(steps("/a/0000:17:00.0", "/a/0000:17:00.1"), 0);
        assert_eq!(steps("/a/0000:18:00.0/0000:19:00.0", "/a/0000:18:01.0/0000:1a:00.0"), 2);
        assert_eq!(steps("/a/b", "/a/b"), 0);
        assert_eq!(steps("/a", "/a/b/c"), 2);
    }

    #[test]
    fn an_address_has_four_parts_in_hex() {
        assert!(is_address("0000:3b:00.0") && is_address("10000:3b:00.f"));
        assert!(
            !is_address("virtual")
                && !is_address("0000:3b:00")
                && !is_address("pci0000:3b")
                && !is_address("x:3b:00.0")
        );
    }
}
