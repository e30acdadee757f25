//! The text files of `/proc`, parsed with the crate `procfs-core`. A function takes the text of a
//! file, so it serves this host and a copy of another host's files ([`FileTree`](crate::FileTree)).
//!
//! The crate rejects a file if any value is missing or malformed. Sandboxes and recorded hosts have
//! shorter files, so missing values are filled in here, and malformed lines are left out.

use std::fs;
use std::io::{BufRead, Read};

use procfs_core::net::{RouteEntries, RouteEntry, TcpNetEntries, TcpNetEntry};
use procfs_core::prelude::{FromBufRead, FromBufReadSI, FromRead};
use procfs_core::process::{Limit, LimitValue, Limits, Stat, Status};
use procfs_core::{
    ExplicitSystemInfo, KernelStats, Meminfo, MountEntry, PressureRecord, ProcessCGroup, ProcessCGroups,
    parse_pressure_record,
};

/// Maximum number of lines that are read from a file of named values. The kernel writes about 60.
const LINES_MAX: usize = 256;

/// The values that the crate requires in `/proc/meminfo`. `MemTotal` is [`UNREPORTED`].
const MEMINFO: &str = "MemTotal: 18446744073709551615\nMemFree: 0\nBuffers: 0\nCached: 0\nSwapCached: 0\nActive: 0\nInactive: 0\nSwapTotal: 0\n\
    SwapFree: 0\nDirty: 0\nWriteback: 0\nMapped: 0\nSlab: 0\nCommitted_AS: 0\nVmallocTotal: 0\nVmallocUsed: 0\nVmallocChunk: 0\n";

/// The values that the crate requires in `/proc/PID/status`.
const STATUS: &str = "Name:\nState:\nTgid:0\nPid:0\nPPid:0\nTracerPid:0\nUid:0 0 0 0\nGid:0 0 0 0\nFDSize:0\nGroups:\nThreads:0\n\
    SigQ:0/0\nSigPnd:0\nShdPnd:0\nSigBlk:0\nSigIgn:0\nSigCgt:0\nCapInh:0\nCapPrm:0\nCapEff:0\n";

/// The values that the crate requires in `/proc/PID/limits`, with their units.
const LIMITS: [(&str, &str); 16] = [
    ("cpu time", "seconds"),
    ("file size", "bytes"),
    ("data size", "bytes"),
    ("stack size", "bytes"),
    ("core file size", "bytes"),
    ("resident set", "bytes"),
    ("processes", "processes"),
    ("open files", "files"),
    ("locked memory", "bytes"),
    ("address space", "bytes"),
    ("file locks", "locks"),
    ("pending signals", "signals"),
    ("msgqueue size", "bytes"),
    ("nice priority", ""),
    ("realtime priority", ""),
    ("realtime timeout", "us"),
];

/// A value that the file does not report. The kernel never writes this number: no host has as much
/// memory, and as a limit it is RLIM_INFINITY, written as `unlimited`.
const UNREPORTED: u64 = u64::MAX;

/// Parses `/proc/meminfo`. The sizes are in bytes; a missing size is 0. `None` if the file does not
/// report `MemTotal`.
pub fn meminfo(text: &str) -> Option<Meminfo> {
    // The crate cuts a byte off each name, and multiplies kB by 1024 without a check.
    let is_safe = |line: &str| {
        let mut words = line.split_whitespace().skip(1);
        line.is_ascii()
            && words.next().is_some_and(|number| number.len() <= 16)
            && matches!(words.next(), None | Some("kB"))
    };
    named(MEMINFO, text, is_safe).filter(|found: &Meminfo| found.mem_total != UNREPORTED)
}

/// Parses `/proc/PID/status`. A missing number is 0. Memory sizes are in KiB.
pub fn status(text: &str) -> Option<Status> {
    named(STATUS, text, |_| true)
}

/// Parses the limits of a process, `/proc/PID/limits`.
pub fn limits(text: &str) -> Option<Limits> {
    let neutral: String =
        LIMITS.iter().map(|(name, unit)| format!("Max {name} {UNREPORTED} {UNREPORTED} {unit}\n")).collect();
    // The crate counts the fields of a line from its end, and panics if there are too few.
    named(&neutral, text, |line| line.split_whitespace().nth(4).is_some())
}

/// The soft and the hard limit; a limit of `None` means unlimited. `None` if the file does not
/// report the limit.
pub fn soft_and_hard(limit: Limit) -> Option<(Option<u64>, Option<u64>)> {
    let value = |limit| match limit {
        LimitValue::Unlimited => Some(None),
        LimitValue::Value(UNREPORTED) => None,
        LimitValue::Value(number) => Some(Some(number)),
    };
    value(limit.soft_limit).zip(value(limit.hard_limit))
}

/// Parses the cgroups of a process, `/proc/PID/cgroup`.
pub fn cgroups(text: &str) -> Vec<ProcessCGroup> {
    text.lines().flat_map(|line| ProcessCGroups::from_buf_read(line.as_bytes())).flatten().collect()
}

/// Parses the mounts of a process, `/proc/PID/mounts`.
pub fn mounts(text: &str) -> Vec<MountEntry> {
    text.lines().flat_map(|line| Vec::<MountEntry>::from_buf_read(line.as_bytes())).flatten().collect()
}

/// Parses `/proc/net/route`: IPv4 routes.
pub fn routes(text: &str) -> Vec<RouteEntry> {
    // The crate skips a header, and requires three columns after the mask.
    let rows = text.lines().skip(1).map(|line| format!("\n{line} 0 0 0"));
    rows.flat_map(|row| RouteEntries::from_buf_read(row.as_bytes())).flat_map(|routes| routes.0).collect()
}

/// Parses `/proc/net/tcp` and `tcp6` of this host line by line. The table of a busy host has
/// thousands of lines.
pub fn tcp_sockets(table: impl BufRead) -> impl Iterator<Item = TcpNetEntry> {
    let rows = table.lines().skip(1).map_while(Result::ok);
    rows.flat_map(|row| TcpNetEntries::from_buf_read(b"\n".chain(row.as_bytes()), &system()))
        .flat_map(|sockets| sockets.0)
}

/// Parses the line `some` of `/proc/pressure/cpu`: how long a process waited for a CPU.
pub fn cpu_pressure(text: &str) -> Option<PressureRecord> {
    parse_pressure_record(text.lines().find(|line| line.starts_with("some "))?).ok()
}

/// The status of this process.
pub fn own_status() -> Option<Status> {
    status(&String::from_utf8_lossy(&fs::read("/proc/self/status").ok()?))
}

/// The statistics of this process.
pub fn own_stat() -> Option<Stat> {
    Stat::from_read(fs::File::open("/proc/self/stat").ok()?).ok()
}

/// The kernel's counters, and the boot time.
pub fn kernel_stats() -> Option<KernelStats> {
    KernelStats::from_buf_read(fs::read("/proc/stat").ok()?.as_slice(), &system()).ok()
}

/// What the crate asks about this host. Only the byte order matters for the values that are read
/// here.
fn system() -> ExplicitSystemInfo {
    ExplicitSystemInfo {
        boot_time_secs: 0,
        ticks_per_second: 100,
        page_size: 4096,
        is_little_endian: cfg!(target_endian = "little"),
    }
}

/// Parses a file of named values. The lines of the file override those of `neutral`, which has all
/// values that the crate requires. If the crate rejects a line, that line is left out. `is_safe`
/// rejects lines that the crate cannot be given.
fn named<T: FromBufRead>(neutral: &str, text: &str, is_safe: impl Fn(&str) -> bool) -> Option<T> {
    let parse = |lines: &str| T::from_buf_read(neutral.as_bytes().chain(lines.as_bytes())).ok();
    let safe: Vec<&str> = text.lines().take(LINES_MAX).filter(|line| is_safe(line)).collect();
    parse(&safe.join("\n")).or_else(|| {
        let valid: Vec<&str> = safe.into_iter().filter(|line| parse(line).is_some()).collect();
        parse(&valid.join("\n"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn meminfo_is_converted_to_bytes() {
        let text = "MemTotal:       24684084 kB\nMemFree:  1 kB\nMemAvailable:   22000000 kB\nHugePages_Total:       0\nHugepagesize:       2048 kB\n";
        let found = meminfo(text).unwrap();
        assert_eq!((found.mem_total, found.mem_available), (24_684_084 << 10, Some(22_000_000 << 10)));
        assert_eq!((found.hugepagesize, found.commit_limit, found.committed_as), (Some(2 << 20), None, 0));
        assert!(meminfo("nothing").is_none() && meminfo("").is_none() && meminfo("MemFree: 1 kB").is_none());
        // A NUMA node without memory.
        assert!(meminfo("MemTotal: 0 kB").is_some_and(|node| node.mem_total == 0));
    }

    #[test]
    fn malformed_lines_are_left_out() {
        let text = "MemTotal: 8 kB\nMemAvailable: many kB\nMemé 5\nCommitLimit: 99999999999999999999 kB\nActive: 1 GB\nCommitted_AS: 2 kB\n";
        let found = meminfo(text).unwrap();
        assert_eq!((found.mem_total, found.mem_available), (8 << 10, None));
        assert_eq!((found.commit_limit, found.committed_as, found.active), (None, 2 << 10, 0));
        let found = status("Name:\tx\u{fffd}\nshort\nUid:\t7\nVmPin:\t 2048 kB\nCapEff:\t00000000000000ff\n").unwrap();
        assert_eq!((found.euid, found.vmpin, found.capeff, found.capbnd), (0, Some(2048), 0xff, None));
    }

    #[test]
    fn limits_are_numbers_unlimited_or_unreported() {
        let text = "Limit  Soft Limit  Hard Limit  Units\n\nMax open files 1024 plenty files\nMax locked memory  8388608  unlimited  bytes\nMax\n";
        let found = limits(text).unwrap();
        assert_eq!(soft_and_hard(found.max_locked_memory), Some((Some(8 << 20), None)));
        assert_eq!(soft_and_hard(found.max_open_files), None);
        assert_eq!(soft_and_hard(limits("").unwrap().max_nice_priority), None);
    }

    #[test]
    fn malformed_rows_of_tables_are_left_out() {
        let groups = cgroups("1:name=x:/y\nstrange\n4:cpu,memory:/pod:a\n0::/a/b\n");
        let groups: Vec<_> =
            groups.iter().map(|group| (group.controllers.join(","), group.pathname.as_str())).collect();
        let expected = [("name=x", "/y"), ("cpu,memory", "/pod:a"), ("", "/a/b")];
        assert_eq!(groups, expected.map(|(controllers, path)| (controllers.to_owned(), path)));
        let mounts = mounts("short\ntmpfs /dev/shm tmpfs rw,size=64k 0 0\n");
        assert_eq!((mounts.len(), mounts[0].fs_mntops["size"].as_deref()), (1, Some("64k")));
        let routes = routes("Iface\tDestination\neth0\t000200C0\t00000000\t1\t0\t0\t0\t00FFFFFF\nshort\n");
        assert_eq!((routes.len(), routes[0].mask), (1, [255, 255, 255, 0].into()));
        let minute = |text| cpu_pressure(text).map(|found| found.avg60);
        assert_eq!(minute("some avg10=0.00 avg60=1.50 avg300=0.00 total=1\n"), Some(1.5));
        assert_eq!([minute("some"), minute("some avg60=1"), minute("full avg60=1")], [None; 3]);
    }

    #[test]
    fn the_files_of_this_process_are_read() {
        let status = own_status().unwrap();
        assert!(status.vmrss.is_some_and(|kib| kib > 1024) && status.threads >= 1, "{status:?}");
        assert!(own_stat().is_some_and(|stat| stat.starttime > 0));
        assert!(kernel_stats().is_some_and(|stats| stats.btime > 1_000_000_000));
        let limits = limits(&fs::read_to_string("/proc/self/limits").unwrap()).unwrap();
        assert!(soft_and_hard(limits.max_open_files).is_some() && soft_and_hard(limits.max_realtime_timeout).is_some());
    }
}
