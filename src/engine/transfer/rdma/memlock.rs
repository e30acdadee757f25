//! Whether memory could not be registered because of RLIMIT_MEMLOCK: what is registered is locked, and counted once for each device.

use std::fmt;
use std::path::Path;

use crate::engine::base::ByteSize;
use crate::engine::sys::Tree;
use crate::engine::topology::Memlock;

/// More was to be locked than may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Short {
    /// RLIMIT_MEMLOCK, bytes.
    limit: u64,
    /// What registered memory takes of it already, bytes.
    locked: u64,
    /// What was to be registered, on all devices together, bytes.
    wanted: u64,
}

impl fmt::Display for Short {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Short { limit, locked, wanted } = *self;
        write!(f, "the memlock limit is {}, and {} were wanted", ByteSize(limit), ByteSize(wanted))?;
        if locked > 0 {
            write!(f, " beside {} that are locked already", ByteSize(locked))?;
        }
        Ok(())
    }
}

/// Is the limit too low for `wanted` bytes more? `None` where it is not, or nobody knows.
pub(super) fn short(wanted: u64) -> Option<Short> {
    let tree = Tree::new(Path::new("/")).ok()?;
    let status = tree.text("/proc/self/status").ok().flatten().unwrap_or_default();
    judge(Memlock::read(&tree)?, pinned(&status), wanted)
}

fn judge(memlock: Memlock, locked: u64, wanted: u64) -> Option<Short> {
    let limit = memlock.soft_bytes.filter(|_| !memlock.exempt)?;
    (locked.saturating_add(wanted) > limit).then_some(Short { limit, locked, wanted })
}

/// What registered memory has locked, as `/proc/self/status` tells; 0 where it does not.
fn pinned(status: &str) -> u64 {
    let kib = status.lines().find_map(|line| line.strip_prefix("VmPin:")?.trim().strip_suffix(" kB"));
    kib.and_then(|kib| kib.trim().parse::<u64>().ok()).map_or(0, |kib| kib.saturating_mul(1024))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn the_limit_is_to_blame_only_where_it_holds_and_is_too_low() {
        let limited = Memlock { soft_bytes: Some(8 * MIB), hard_bytes: None, exempt: false };
        let short = judge(limited, MIB, 16 * MIB).unwrap();
        let text = "the memlock limit is 8 MiB, and 16 MiB were wanted beside 1 MiB that are locked already";
        assert_eq!(short.to_string(), text);
        let alone = judge(limited, 0, 9 * MIB).unwrap();
        assert_eq!(alone.to_string(), "the memlock limit is 8 MiB, and 9 MiB were wanted");
        assert!(judge(limited, 4 * MIB, 5 * MIB).is_some());
        assert_eq!(judge(limited, 4 * MIB, 4 * MIB), None);
        assert_eq!(judge(Memlock { exempt: true, ..limited }, 0, 16 * MIB), None);
        assert_eq!(judge(Memlock { soft_bytes: None, ..limited }, 0, u64::MAX), None);
    }

    #[test]
    fn what_is_locked_is_read_in_kib() {
        assert_eq!(pinned("Name:\tx\nVmLck:\t       4 kB\nVmPin:\t    2048 kB\nVmHWM:\t 1 kB\n"), 2 * MIB);
        assert_eq!((pinned("VmPin:\t many kB"), pinned("")), (0, 0));
    }

    #[test]
    fn this_process_is_not_short_of_no_bytes_at_all() {
        assert_eq!(short(0), None);
    }
}
