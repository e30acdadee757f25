//! Mistakes that tests plant in the journal, to prove that the crash tests detect them.
//!
//! The tests of the master plant them, too, and use this crate without its tests. So a debug build
//! contains them, and a release build does not: `packaging/lib.sh` checks each program that is
//! packaged.

/// A mistake in the order or in the checks of the journal. Each loses data after some crash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JournalMistake {
    /// A snapshot gets its final name before its bytes are durable.
    SnapshotRenamedBeforeSync,
    /// A snapshot that ends without its trailer is accepted.
    TrailerNotChecked,
    /// The log and the older snapshot are removed before the new snapshot is durable.
    LogTrimmedBeforeSnapshot,
    /// The log is removed up to the first frame that is needed, instead of the one before it.
    LogCutOneRecordLate,
    /// The mark of the last change in the kernel is written before the change.
    MarkWrittenBeforeFrames,
}

#[cfg(any(test, debug_assertions))]
thread_local! {
    static PLANTED: std::cell::Cell<Option<JournalMistake>> = const { std::cell::Cell::new(None) };
}

/// Plants `mistake` in the journals that this thread uses. `None`: no mistake.
#[cfg(any(test, debug_assertions))]
pub fn plant(mistake: Option<JournalMistake>) {
    PLANTED.set(mistake);
}

/// Whether this thread has planted `mistake`.
#[cfg(any(test, debug_assertions))]
pub(super) fn is_planted(mistake: JournalMistake) -> bool {
    PLANTED.get() == Some(mistake)
}

/// Always false: a release build contains no planted mistakes.
#[cfg(not(any(test, debug_assertions)))]
pub(super) const fn is_planted(_: JournalMistake) -> bool {
    false
}
