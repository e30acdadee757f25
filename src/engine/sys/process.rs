//! Processes of a host, as `/proc` has them.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;

/// The most of a command line or an environment that is read, bytes.
const BYTES_MAX: u64 = 1 << 20;
/// The most processes that are looked at.
const PROCESSES_MAX: usize = 1 << 16;

/// What a process was started with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Started {
    /// Its number.
    pub pid: u32,
    /// Its words, each ended by a zero byte.
    pub cmdline: Vec<u8>,
    /// Its first environment, likewise; `None` when this user may not read it.
    pub environ: Option<Vec<u8>>,
}

/// What the process `pid` below `root` (`/`) was started with.
///
/// # Errors
/// There is no such process, or its command line cannot be read.
pub fn started(root: &Path, pid: u32) -> io::Result<Started> {
    let folder = root.join("proc").join(pid.to_string());
    let read = |name: &str| {
        let mut bytes = Vec::new();
        File::open(folder.join(name))?.take(BYTES_MAX).read_to_end(&mut bytes)?;
        Ok::<_, io::Error>(bytes)
    };
    Ok(Started { pid, cmdline: read("cmdline")?, environ: read("environ").ok() })
}

/// All processes below `root` that have a command line, by number. Those that end meanwhile are left out.
///
/// # Errors
/// There is no `/proc`.
pub fn all(root: &Path) -> io::Result<Vec<Started>> {
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
    fn this_process_is_among_them_with_its_words() {
        let own = std::process::id();
        let found = started(Path::new("/"), own).expect("it runs");
        assert!(found.cmdline.ends_with(b"\0") && found.environ.is_some());
        assert!(all(Path::new("/")).expect("/proc").iter().any(|process| process.pid == own));
        assert!(started(Path::new("/nowhere"), own).is_err());
    }
}
