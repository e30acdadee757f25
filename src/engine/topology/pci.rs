//! Where devices sit in the PCI tree, and how far two of them are apart.

use serde::Serialize;

/// What lies between two devices; the nearer, the smaller. The names are those of GPU vendors' topology tools.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Link {
    /// At most one PCIe switch.
    Pix,
    /// Several PCIe switches, and no host bridge.
    Pxb,
    /// A host bridge of one CPU.
    Phb,
    /// Two host bridges of one NUMA node.
    Node,
    /// The link between NUMA nodes, or nobody knows what.
    Sys,
}

impl Link {
    /// As it is written in tables.
    pub const fn name(self) -> &'static str {
        match self {
            Link::Pix => "PIX",
            Link::Pxb => "PXB",
            Link::Phb => "PHB",
            Link::Node => "NODE",
            Link::Sys => "SYS",
        }
    }
}

/// A place in the tree: the real path below `/sys/devices`, and the NUMA node.
#[derive(Clone, Copy, Debug)]
pub struct Place<'a> {
    /// For instance `/sys/devices/pci0000:16/0000:16:02.0/0000:17:00.0`.
    pub path: &'a str,
    /// `None` where the firmware does not say.
    pub numa: Option<u32>,
}

/// What lies between `a` and `b`.
pub fn link(a: Place<'_>, b: Place<'_>) -> Link {
    let parts = |place: Place<'_>| -> Vec<String> {
        place.path.trim_start_matches("/sys/devices/").split('/').map(str::to_owned).collect()
    };
    let (left, right) = (parts(a), parts(b));
    let common = left.iter().zip(&right).take_while(|(x, y)| x == y).count();
    // The first part is the host bridge (pci0000:16), all others are bridges and ports behind it.
    match common {
        0 if a.numa.is_some() && a.numa == b.numa => Link::Node,
        0 => Link::Sys,
        1 => Link::Phb,
        // A switch has a port upstream, which both share, and one downstream to each.
        _ if left.len() - common <= 2 && right.len() - common <= 2 => Link::Pix,
        _ => Link::Pxb,
    }
}

/// Mooncake's figure for the same: slashes after the characters that both paths begin with.
pub fn steps(a: &str, b: &str) -> usize {
    let common = a.bytes().zip(b.bytes()).take_while(|(x, y)| x == y).count();
    [a, b].iter().map(|path| path.bytes().skip(common).filter(|&c| c == b'/').count()).sum()
}

/// A PCI address, e.g. `0000:3b:00.0`?
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

    fn between(a: &str, b: &str, numa: (Option<u32>, Option<u32>)) -> Link {
        link(Place { path: a, numa: numa.0 }, Place { path: b, numa: numa.1 })
    }

    #[test]
    fn links_are_told_by_the_last_common_bridge() {
        let same = (Some(0), Some(0));
        let switch = "/sys/devices/pci0000:16/0000:16:02.0/0000:17:00.0";
        let (gpu, nic) = (format!("{switch}/0000:18:00.0/0000:19:00.0"), format!("{switch}/0000:18:01.0/0000:1a:00.0"));
        assert_eq!(between(&gpu, &nic, same), Link::Pix);
        let deep = format!("{switch}/0000:18:02.0/0000:1b:00.0/0000:1c:00.0/0000:1d:00.0");
        assert_eq!(between(&gpu, &deep, same), Link::Pxb);
        let port = "/sys/devices/pci0000:16/0000:16:03.0/0000:20:00.0";
        assert_eq!(between(&gpu, port, same), Link::Phb);
        let other = "/sys/devices/pci0000:40/0000:40:01.0/0000:41:00.0";
        assert_eq!(between(&gpu, other, same), Link::Node);
        assert_eq!(between(&gpu, other, (Some(0), Some(1))), Link::Sys);
        assert_eq!(between(&gpu, other, (None, None)), Link::Sys);
        assert_eq!(between(&gpu, &gpu, same), Link::Pix);
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
