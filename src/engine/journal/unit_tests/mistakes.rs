//! Shows that the crash test detects each planted mistake.

use crate::unit_tests::crash::{CrashCounts, run};
use crate::{JournalMistake, plant};

/// Returns the first seed with which the crash test fails.
fn seed_that_detects(mistake: Option<JournalMistake>) -> Option<u64> {
    plant(mistake);
    let seed = (0..200).find(|seed| match run(*seed, 8, &mut CrashCounts::default()) {
        Ok(()) => false,
        Err(broken) => {
            println!("{mistake:?}: seed {seed}: {broken}");
            true
        }
    });
    plant(None);
    seed
}

#[test]
fn every_planted_mistake_is_detected() {
    assert_eq!(seed_that_detects(None), None);
    for mistake in [
        JournalMistake::SnapshotRenamedBeforeSync,
        JournalMistake::TrailerNotChecked,
        JournalMistake::LogTrimmedBeforeSnapshot,
        JournalMistake::LogCutOneRecordLate,
        JournalMistake::MarkWrittenBeforeFrames,
    ] {
        assert!(seed_that_detects(Some(mistake)).is_some(), "{mistake:?}");
    }
}
