//! The names of the files in a data directory.

/// The file that identifies the directory.
pub const IDENTITY: &str = "identity.json";
/// The file that states whether the directory is valid.
pub(super) const VALIDITY: &str = "validity";
/// The file that the operating system's lock is on.
pub(super) const LOCK: &str = "lock";
/// The file with the note of the directory's user.
pub(super) const NOTE: &str = "note";
/// The file with the last change that the kernel has accepted.
pub(super) const FLUSHED: &str = "flushed";
/// The suffix of the name of a file that is not complete.
pub(super) const TEMPORARY: &str = ".tmp";
/// The prefix of the name of the marker of a directory that is being emptied. The rest names the
/// subdirectory that receives the files. Without it, the files are removed.
pub(super) const EMPTYING: &str = "emptying-to-";

const LOG: &str = "log-";
const SNAPSHOT: &str = "snapshot-";

/// Whether a file with this name may be one of a data directory.
pub fn is_journal_file(name: &str) -> bool {
    let name = name.strip_suffix(TEMPORARY).unwrap_or(name);
    [IDENTITY, VALIDITY, LOCK, NOTE, FLUSHED].contains(&name)
        || [EMPTYING, LOG, SNAPSHOT].iter().any(|prefix| name.starts_with(prefix))
}

/// The name of the log file `number`.
pub(super) fn log_name(number: u64) -> String {
    format!("{LOG}{number:010}")
}

/// The name of the snapshot of the state after frame `sequence`.
pub(super) fn snapshot_name(sequence: u64) -> String {
    format!("{SNAPSHOT}{sequence:020}")
}

/// The number in the name of a log file.
pub(super) fn log_number(name: &str) -> Option<u64> {
    number(name, LOG).filter(|number| log_name(*number) == name)
}

/// The sequence number in the name of a snapshot. It is below `u64::MAX`, so that a next one
/// exists.
pub(super) fn snapshot_sequence(name: &str) -> Option<u64> {
    number(name, SNAPSHOT).filter(|number| *number < u64::MAX && snapshot_name(*number) == name)
}

fn number(name: &str, prefix: &str) -> Option<u64> {
    name.strip_prefix(prefix)?.parse().ok()
}

/// The name of a file while it is being written.
pub(super) fn temporary(name: &str) -> String {
    format!("{name}{TEMPORARY}")
}

/// Whether the name is that of a file that contains the journal's data. The lock and markers are
/// not.
pub(super) fn is_of_journal(name: &str) -> bool {
    let complete = name.strip_suffix(TEMPORARY).unwrap_or(name);
    is_data(complete) || [IDENTITY, VALIDITY, NOTE, FLUSHED].contains(&complete)
}

/// Whether the name is that of a log file or a snapshot.
pub(super) fn is_data(name: &str) -> bool {
    log_number(name).is_some() || snapshot_sequence(name).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_that_the_journal_writes_are_recognized() {
        assert_eq!(log_number(&log_name(7)), Some(7));
        assert_eq!(log_number(&log_name(u64::MAX)), Some(u64::MAX));
        assert_eq!(snapshot_sequence(&snapshot_name(1 << 40)), Some(1 << 40));
        assert_eq!(snapshot_sequence(&snapshot_name(u64::MAX)), None);
        for other in ["log-7", "log-+000000007", "log-0000000007.tmp", "snapshot-0000000007", "lock"] {
            assert_eq!((log_number(other), snapshot_sequence(other)), (None, None), "{other}");
        }
        assert!(["log-0000000007.tmp", "identity.json", "validity", "flushed"].iter().all(|name| is_of_journal(name)));
        assert!(!["lock", "notes.txt", "emptying-to-"].iter().any(|name| is_of_journal(name)));
    }
}
