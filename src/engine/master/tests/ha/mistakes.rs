//! Each planted mistake is detected.

use super::run;
use crate::engine::ha::planted::{HaMistake, plant};

/// Returns the first seed that detects the mistake.
fn first_failure(mistake: HaMistake) -> Option<u64> {
    plant(Some(mistake));
    let found = (1..=400).find(|seed| run(*seed).is_err());
    plant(None);
    found
}

#[test]
fn each_mistake_in_the_election_is_detected() {
    let mut found = Vec::new();
    for mistake in [
        HaMistake::FenceNotChecked,
        HaMistake::StartAnsweredEarly,
        HaMistake::EndAnsweredEarly,
        HaMistake::KeyOverwritten,
        HaMistake::MeasuredFromReceipt,
        HaMistake::SyncFlagKept,
        HaMistake::AcknowledgedBeforeStored,
    ] {
        found.push((mistake, first_failure(mistake)));
    }
    assert!(found.iter().all(|(_, seed)| seed.is_some()), "{found:?}");
}
