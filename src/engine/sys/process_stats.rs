//! Resource usage of this process, for a `/metrics` page.

use std::fs;
use std::time::Duration;

use nix::sys::resource::{Resource, getrlimit};

use crate::{host, procfs};

/// Resource usage of this process. `None` means that the system does not report the value.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ProcessStats {
    /// CPU time of all threads, user plus system.
    pub cpu: Duration,
    /// Resident memory (RSS), in bytes.
    pub resident_bytes: Option<u64>,
    /// Virtual memory (VSZ), in bytes.
    pub virtual_bytes: Option<u64>,
    /// Current number of threads.
    pub threads: Option<u64>,
    /// Open files and sockets.
    pub open_files: Option<u64>,
    /// Limit on open files and sockets.
    pub files_max: Option<u64>,
    /// Start time, in seconds since the Unix epoch.
    pub started: Option<f64>,
}

/// Reads the resource usage.
pub fn read() -> ProcessStats {
    let status = procfs::own_status();
    let status = status.as_ref();
    ProcessStats {
        cpu: host::cpu_time(),
        resident_bytes: status.and_then(|status| status.vmrss).map(|kib| kib << 10),
        virtual_bytes: status.and_then(|status| status.vmsize).map(|kib| kib << 10),
        threads: status.map(|status| status.threads).filter(|threads| *threads > 0),
        open_files: open_files(),
        files_max: getrlimit(Resource::RLIMIT_NOFILE).ok().map(|(soft, _)| soft),
        started: started(),
    }
}

fn open_files() -> Option<u64> {
    // Since Linux 6.2, the directory's size is the number of descriptors. On older kernels it is
    // 0, so the entries are counted.
    match fs::metadata("/proc/self/fd").ok()?.len() {
        0 => Some(fs::read_dir("/proc/self/fd").ok()?.count().saturating_sub(1) as u64),
        count => Some(count),
    }
}

/// Start time of the process: boot time plus the start ticks.
fn started() -> Option<f64> {
    let boot = procfs::kernel_stats()?.btime;
    let ticks = procfs::own_stat()?.starttime;
    // SAFETY: sysconf reads a system constant and touches no memory of this process.
    let per_second = unsafe { nix::libc::sysconf(nix::libc::_SC_CLK_TCK) };
    (per_second > 0).then(|| boot as f64 + ticks as f64 / per_second as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stats_of_this_process_are_read() {
        let found = read();
        assert!(found.resident_bytes.is_some_and(|bytes| bytes > 1 << 20), "{found:?}");
        assert!(found.virtual_bytes >= found.resident_bytes, "{found:?}");
        assert!(found.threads.is_some_and(|threads| threads >= 1), "{found:?}");
        assert!(found.open_files.is_some_and(|files| files >= 3), "{found:?}");
        assert!(found.files_max >= found.open_files, "{found:?}");
        assert!(found.started.is_some_and(|started| started > 1.0e9), "{found:?}");
    }
}
