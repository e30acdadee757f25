//! A host's processes, read from `/proc`.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;

/// Maximum number of bytes read from a command line or environment.
const BYTES_MAX: u64 = 1 << 20;
/// Maximum number of processes examined.
const PROCESSES_MAX: usize = 1 << 16;

/// The command line and environment of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessInfo {
    pub pid: u32,
    /// The arguments, each terminated by a NUL byte.
    pub cmdline: Vec<u8>,
    /// The initial environment in the same format. `None` if this user has no permission to read it.
    pub environ: Option<Vec<u8>>,
}

/// Reads process `pid` below `root` (normally `/`).
///
/// # Errors
/// Fails if the process does not exist or its command line cannot be read.
pub fn started(root: &Path, pid: u32) -> io::Result<ProcessInfo> {
    let folder = root.join("proc").join(pid.to_string());
    let read = |name: &str| {
        let mut bytes = Vec::new();
        File::open(folder.join(name))?.take(BYTES_MAX).read_to_end(&mut bytes)?;
        Ok::<_, io::Error>(bytes)
    };
    Ok(ProcessInfo { pid, cmdline: read("cmdline")?, environ: read("environ").ok() })
}

/// All processes below `root` that have a command line, sorted by PID. Processes that exit during the scan are skipped.
///
/// # Errors
/// Fails if `/proc` does not exist.
pub fn all(root: &Path) -> io::Result<Vec<ProcessInfo>> {
    let entries = fs::read_dir(root.join("proc"))?.take(PROCESSES_MAX).flatten();
    let mut pids: Vec<u32> = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    pids.sort_unstable();
    let started = pids.into_iter().filter_map(|pid| started(root, pid).ok());
    Ok(started.filter(|process| !process.cmdline.is_empty()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_is_listed_with_its_command_line() {
        let own = std::process::id();
        let found = started(Path::new("/"), own).expect("it runs");
        assert!(found.cmdline.ends_with(b"\0") && found.environ.is_some());
        assert!(all(Path::new("/")).expect("/proc").iter().any(|process| process.pid == own));
        assert!(started(Path::new("/nowhere"), own).is_err());
    }
}
