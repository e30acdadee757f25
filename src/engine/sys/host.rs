//! This host's resources: memory, huge pages, addresses.

use std::fs;
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::ifaddrs::getifaddrs;
use nix::net::if_::InterfaceFlags;
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::{TimeVal, TimeValLike};

use crate::procfs;

/// Totals from `/proc/meminfo`, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostMemory {
    /// `MemTotal`.
    pub total: u64,
    /// `MemAvailable`.
    pub available: u64,
}

/// A huge page pool of one page size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HugePagePool {
    /// Pages in the pool.
    pub total: u64,
    /// Pages that are not in use, including `reserved` ones.
    pub free: u64,
    /// Free pages that are already reserved for a mapping.
    pub reserved: u64,
}

/// Parses `/proc/meminfo`. `None` if `MemTotal` is missing.
pub fn parse_meminfo(text: &str) -> Option<HostMemory> {
    let found = procfs::meminfo(text)?;
    Some(HostMemory { total: found.mem_total, available: found.mem_available.unwrap_or(found.mem_total) })
}

/// This host's memory. `None` if `/proc` cannot be read.
pub fn memory() -> Option<HostMemory> {
    parse_meminfo(&fs::read_to_string("/proc/meminfo").ok()?)
}

/// Reads the pool of `kib` KiB huge pages. `root` is `/sys`, except in tests.
///
/// # Errors
/// Fails with the path if the kernel does not support the page size or a file cannot be read.
pub fn huge_pages(root: &Path, kib: u64) -> Result<HugePagePool, (PathBuf, io::Error)> {
    let folder = root.join(format!("kernel/mm/hugepages/hugepages-{kib}kB"));
    let read = |name: &str| {
        let path = folder.join(name);
        let text = fs::read_to_string(&path).map_err(|e| (path.clone(), e))?;
        text.trim().parse::<u64>().map_err(|e| (path, io::Error::new(io::ErrorKind::InvalidData, e)))
    };
    Ok(HugePagePool { total: read("nr_hugepages")?, free: read("free_hugepages")?, reserved: read("resv_hugepages")? })
}

/// CPU time used by all threads of this process, user plus system.
pub fn cpu_time() -> Duration {
    let part = |time: TimeVal| Duration::from_micros(u64::try_from(time.num_microseconds()).unwrap_or(0));
    getrusage(UsageWho::RUSAGE_SELF).map_or(Duration::ZERO, |usage| part(usage.user_time()) + part(usage.system_time()))
}

/// Bytes available to an unprivileged user on the file system that contains `path`, and its size in
/// bytes.
///
/// # Errors
/// Fails if the path does not exist.
pub fn file_system(path: &Path) -> io::Result<(u64, u64)> {
    let stat = nix::sys::statvfs::statvfs(path)?;
    let block = stat.fragment_size();
    Ok((stat.blocks_available().saturating_mul(block), stat.blocks().saturating_mul(block)))
}

/// The first address of a non-loopback interface that is up and running. Mooncake announces the
/// same address.
pub fn lan_address(ipv6: bool) -> Option<IpAddr> {
    let ready = InterfaceFlags::IFF_UP | InterfaceFlags::IFF_RUNNING;
    getifaddrs().ok()?.find_map(|interface| {
        if interface.interface_name == "lo" || !interface.flags.contains(ready) {
            return None;
        }
        let address = interface.address?;
        let v4 = address.as_sockaddr_in().map(|a| IpAddr::V4(a.ip()));
        let v6 = address.as_sockaddr_in6().map(|a| IpAddr::V6(a.ip()));
        if ipv6 { v6 } else { v4 }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn meminfo_is_converted_to_bytes() {
        let text =
            "MemTotal:       24684084 kB\nMemFree:  1 kB\nMemAvailable:   22000000 kB\nHugePages_Total:       0\n";
        let figures = HostMemory { total: 24_684_084 << 10, available: 22_000_000 << 10 };
        assert_eq!(parse_meminfo(text), Some(figures));
        assert_eq!(parse_meminfo("nothing"), None);
        assert!(memory().is_some_and(|m| m.available <= m.total));
    }

    #[test]
    fn huge_page_pools_are_read_and_missing_ones_name_their_path() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("kernel/mm/hugepages/hugepages-2048kB");
        fs::create_dir_all(&folder).unwrap();
        for (name, value) in [("nr_hugepages", "8\n"), ("free_hugepages", "5\n"), ("resv_hugepages", "2\n")] {
            fs::write(folder.join(name), value).unwrap();
        }
        assert_eq!(huge_pages(root.path(), 2048).unwrap(), HugePagePool { total: 8, free: 5, reserved: 2 });
        let (path, _) = huge_pages(root.path(), 1 << 20).unwrap_err();
        assert!(path.ends_with("hugepages-1048576kB/nr_hugepages"));
    }
}
