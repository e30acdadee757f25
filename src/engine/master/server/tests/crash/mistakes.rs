//! Proves that the runs detect each planted mistake.

use super::first_failure;
use crate::planted::{PlantedMistake, plant};

/// The failure of the first of 200 seeds that fails.
fn failure() -> Option<String> {
    first_failure(0..200, |_| {})
}

#[test]
fn every_planted_mistake_of_the_master_is_detected() {
    for (mistake, expected) in [
        (PlantedMistake::AnswerBeforeRecord, "acknowledged"),
        (PlantedMistake::RangeFreedBeforeItsRecord, "bytes of"),
        (PlantedMistake::LeaseAssumedEnded, "bytes of"),
        (PlantedMistake::RemountWithoutHold, "bytes of"),
    ] {
        plant(Some(mistake));
        let failure = failure();
        plant(None);
        let failure = failure.unwrap_or_else(|| panic!("{mistake:?} was not detected"));
        assert!(failure.contains(expected), "{mistake:?}: {failure}");
    }
}

/// A release build of the journal contains no mistakes.
#[cfg(debug_assertions)]
#[test]
fn every_planted_mistake_of_the_journal_is_detected() {
    use mcctl_journal::{JournalMistake, plant};
    for (mistake, expected) in [
        (JournalMistake::SnapshotRenamedBeforeSync, "is damaged"),
        (JournalMistake::TrailerNotChecked, ""),
        (JournalMistake::LogTrimmedBeforeSnapshot, ""),
        (JournalMistake::LogCutOneRecordLate, "is refused"),
    ] {
        plant(Some(mistake));
        let failure = failure();
        plant(None);
        let failure = failure.unwrap_or_else(|| panic!("{mistake:?} was not detected"));
        assert!(failure.contains(expected), "{mistake:?}: {failure}");
    }
}
