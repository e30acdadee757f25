//! The disk that mcctl's master needs for its data directory: a log and two generations of
//! snapshots.
//!
//! Bytes per key are those of keys with 68 characters, as SGLang writes them, and one replica.
//! Longer keys and more replicas need more.

use std::path::Path;

/// Number of keys for which a GiB of the master's memory is sufficient.
pub const KEYS_PER_GIB: u64 = 1_000_000;

/// Bytes per key in a snapshot.
pub const SNAPSHOT_KEY_BYTES: u64 = 106;
/// Bytes that the records of a key's put take in the log.
pub const LOG_KEY_BYTES: u64 = 114;
/// Number of snapshots that are kept, each with the log after it.
pub const GENERATIONS: u64 = 2;
/// Bytes of the log without regard to the number of keys: 128 MiB between two snapshots, for each
/// of the two that are kept; the file that is written, and the next one, which is allocated ahead.
pub const LOG_FILES_BYTES: u64 = 2 * (128 << 20) + START_BYTES;
/// Bytes of the log files that a master creates at its start.
pub const START_BYTES: u64 = 2 * (16 << 20);
/// Smallest volume that [`volume_bytes`] recommends. Many providers of block storage have no
/// smaller ones.
pub const VOLUME_BYTES_MIN: u64 = 10 << 30;

/// Directories that a reboot empties.
const VOLATILE_FOLDERS: &[&str] = &["/dev/shm", "/run", "/var/run", "/tmp"];

/// Slowest disk for which [`snapshot_seconds`] suffices, in bytes per second.
const WRITE_BYTES_PER_SECOND: u64 = 50_000_000;

/// Number of keys that fit into `memory` bytes of a master.
pub fn keys_in(memory: u64) -> u64 {
    let keys = u128::from(memory) * u128::from(KEYS_PER_GIB) / (1 << 30);
    u64::try_from(keys).unwrap_or(u64::MAX)
}

/// Memory that a master needs for `keys` keys, in bytes.
pub fn memory_bytes(keys: u64) -> u64 {
    let bytes = u128::from(keys) * (1 << 30) / u128::from(KEYS_PER_GIB);
    u64::try_from(bytes).unwrap_or(u64::MAX)
}

/// Disk space for `keys` keys, in bytes: `GENERATIONS` x `keys` x (`SNAPSHOT_KEY_BYTES` +
/// `LOG_KEY_BYTES`) + `LOG_FILES_BYTES`.
pub fn disk_bytes(keys: u64) -> u64 {
    let per_key = GENERATIONS * (SNAPSHOT_KEY_BYTES + LOG_KEY_BYTES);
    keys.saturating_mul(per_key).saturating_add(LOG_FILES_BYTES)
}

/// Recommended size of a volume for `keys` keys, in bytes: twice [`disk_bytes`] in whole GiB, and
/// at least [`VOLUME_BYTES_MIN`].
///
/// The other half is for the snapshot that is being written, and for the records of keys that are
/// evicted and put again.
pub fn volume_bytes(keys: u64) -> u64 {
    let bytes = disk_bytes(keys).saturating_mul(2).max(VOLUME_BYTES_MIN);
    bytes.checked_next_multiple_of(1 << 30).unwrap_or(u64::MAX)
}

/// Seconds in which a disk with 50 MB/s writes a snapshot of `keys` keys.
pub fn snapshot_seconds(keys: u64) -> u32 {
    let seconds = keys.saturating_mul(SNAPSHOT_KEY_BYTES).div_ceil(WRITE_BYTES_PER_SECOND);
    u32::try_from(seconds).unwrap_or(u32::MAX)
}

/// The directory above `path` (or `path` itself) that a reboot empties on most hosts.
pub fn volatile_folder(path: &Path) -> Option<&'static str> {
    VOLATILE_FOLDERS.iter().copied().find(|folder| path.starts_with(folder))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_needs_two_snapshots_and_their_log() {
        assert_eq!(disk_bytes(0), 288 << 20);
        assert_eq!(disk_bytes(1_000_000) - disk_bytes(0), 440_000_000);
    }

    #[test]
    fn a_volume_has_room_for_twice_the_keys_of_the_memory() {
        assert_eq!((keys_in(4 << 30), memory_bytes(4_000_000)), (4_000_000, 4 << 30));
        assert_eq!(volume_bytes(keys_in(4 << 30)), 10 << 30, "the minimum");
        assert_eq!(volume_bytes(keys_in(64 << 30)), 54 << 30);
        assert_eq!(volume_bytes(u64::MAX), u64::MAX, "saturates");
    }

    #[test]
    fn directories_that_a_reboot_empties_are_recognized() {
        let folder = |path: &str| volatile_folder(Path::new(path));
        assert_eq!(folder("/dev/shm/mcctl"), Some("/dev/shm"));
        assert_eq!([folder("/tmp"), folder("/run/mcctl/")], [Some("/tmp"), Some("/run")]);
        assert_eq!([folder("/var/lib/run"), folder("/tmpfs"), folder("/var/tmp/x")], [None; 3]);
    }

    #[test]
    fn the_time_of_a_snapshot_grows_with_the_keys() {
        assert_eq!([0, 1_000_000, 64_000_000].map(snapshot_seconds), [0, 3, 136]);
        assert_eq!(snapshot_seconds(u64::MAX), u32::MAX);
    }
}
