//! Detects registrations that failed because of RLIMIT_MEMLOCK. Registered memory is locked, and
//! counts once per device.

use std::fmt;
use std::path::Path;

use procfs_core::process::Status;

use crate::topology::Memlock;
use mcctl_base::ByteSize;
use mcctl_sys::{FileTree, procfs};

/// A registration that would exceed the limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MemlockShortage {
    /// The soft RLIMIT_MEMLOCK, in bytes.
    limit: u64,
    /// Bytes locked by earlier registrations.
    locked: u64,
    /// Bytes to register, summed across all devices.
    wanted: u64,
}

impl fmt::Display for MemlockShortage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let MemlockShortage { limit, locked, wanted } = *self;
        write!(f, "the memlock limit is {}, but the registration needs {}", ByteSize(limit), ByteSize(wanted))?;
        if locked > 0 {
            write!(f, " in addition to {} already locked", ByteSize(locked))?;
        }
        Ok(())
    }
}

/// Checks whether the limit is too low to lock `wanted` more bytes. Returns `None` if it is high
/// enough or cannot be determined.
pub(super) fn short(wanted: u64) -> Option<MemlockShortage> {
    let tree = FileTree::new(Path::new("/")).ok()?;
    let locked = procfs::own_status().map_or(0, |status| pinned(&status));
    judge(Memlock::read(&tree)?, locked, wanted)
}

fn judge(memlock: Memlock, locked: u64, wanted: u64) -> Option<MemlockShortage> {
    let limit = memlock.soft_bytes.filter(|_| !memlock.exempt)?;
    (locked.saturating_add(wanted) > limit).then_some(MemlockShortage { limit, locked, wanted })
}

/// Returns the number of bytes locked by registrations: `VmPin` in `/proc/self/status`, or 0 if the
/// field is missing.
fn pinned(status: &Status) -> u64 {
    status.vmpin.unwrap_or(0).saturating_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn memlock_is_reported_only_if_it_applies_and_is_too_low() {
        let limited = Memlock { soft_bytes: Some(8 * MIB), hard_bytes: None, exempt: false };
        let short = judge(limited, MIB, 16 * MIB).unwrap();
        assert_eq!(short, MemlockShortage { limit: 8 * MIB, locked: MIB, wanted: 16 * MIB });
        assert!(short.to_string().contains("1 MiB already locked"), "{short}");
        let alone = judge(limited, 0, 9 * MIB).unwrap();
        assert!(!alone.to_string().contains("already"), "{alone}");
        assert!(judge(limited, 4 * MIB, 5 * MIB).is_some());
        assert_eq!(judge(limited, 4 * MIB, 4 * MIB), None);
        assert_eq!(judge(Memlock { exempt: true, ..limited }, 0, 16 * MIB), None);
        assert_eq!(judge(Memlock { soft_bytes: None, ..limited }, 0, u64::MAX), None);
    }

    #[test]
    fn pinned_memory_is_read_in_kib() {
        let status = "Name:\tx\nVmLck:\t       4 kB\nVmPin:\t    2048 kB\nVmHWM:\t 1 kB\n";
        let pinned = |text| pinned(&procfs::status(text).unwrap());
        assert_eq!(pinned(status), 2 * MIB);
        assert_eq!((pinned("VmPin:\t many kB"), pinned("")), (0, 0));
    }

    #[test]
    fn zero_bytes_never_exceed_the_limit() {
        assert_eq!(short(0), None);
    }
}
