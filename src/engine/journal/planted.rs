//! Mistakes that tests plant in the journal, to show that the crash tests detect them.

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
}

#[cfg(feature = "planted-mistakes")]
thread_local! {
    static PLANTED: std::cell::Cell<Option<JournalMistake>> = const { std::cell::Cell::new(None) };
}

/// Plants `mistake` in the journals that this thread uses. `None`: no mistake.
#[cfg(feature = "planted-mistakes")]
pub fn plant(mistake: Option<JournalMistake>) {
    PLANTED.set(mistake);
}

/// Whether `mistake` is planted.
#[cfg(feature = "planted-mistakes")]
pub(super) fn is_planted(mistake: JournalMistake) -> bool {
    PLANTED.get() == Some(mistake)
}

/// No mistake is planted without the feature `planted-mistakes`.
#[cfg(not(feature = "planted-mistakes"))]
pub(super) fn is_planted(_: JournalMistake) -> bool {
    false
}
