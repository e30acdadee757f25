//! Shows that the runs detect each planted mistake.

use super::first_failure;
use crate::engine::journal::{self, JournalMistake};
use crate::engine::master::planted::{self, PlantedMistake};

/// The failure of the first of 200 seeds with these mistakes.
fn failure(master: Option<PlantedMistake>, journal: Option<JournalMistake>) -> Option<String> {
    planted::plant(master);
    journal::plant(journal);
    let failure = first_failure(0..200, |_| {});
    planted::plant(None);
    journal::plant(None);
    failure
}

#[test]
fn every_planted_mistake_of_the_master_is_detected() {
    for (mistake, expected) in [
        (PlantedMistake::AnswerBeforeRecord, "acknowledged"),
        (PlantedMistake::RangeFreedBeforeItsRecord, "bytes of"),
        (PlantedMistake::LeaseAssumedEnded, "bytes of"),
        (PlantedMistake::RemountWithoutHold, "bytes of"),
    ] {
        let failure = failure(Some(mistake), None).unwrap_or_else(|| panic!("{mistake:?} was not detected"));
        assert!(failure.contains(expected), "{mistake:?}: {failure}");
    }
}

#[test]
fn every_planted_mistake_of_the_journal_is_detected() {
    for (mistake, expected) in [
        (JournalMistake::SnapshotRenamedBeforeSync, "is damaged"),
        (JournalMistake::TrailerNotChecked, ""),
        (JournalMistake::LogTrimmedBeforeSnapshot, ""),
        (JournalMistake::LogCutOneRecordLate, "is refused"),
    ] {
        let failure = failure(None, Some(mistake)).unwrap_or_else(|| panic!("{mistake:?} was not detected"));
        assert!(failure.contains(expected), "{mistake:?}: {failure}");
    }
}
