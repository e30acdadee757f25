//! Each planted mistake is detected.

use super::report::Plan;
use super::run;
use crate::engine::ha::planted::{HaMistake, plant};

/// Returns the first seed that detects the mistake. Only seeds with slow disks can detect one in what is stored.
fn first_failure(mistake: HaMistake) -> Option<u64> {
    let needs_slow_disk = mistake == HaMistake::AcknowledgedBeforeStored;
    let mut seeds = (1..=6000).filter(|seed| !needs_slow_disk || Plan::of(*seed).slow_disk > 1).take(400);
    plant(Some(mistake));
    let found = seeds.find(|seed| run(*seed).is_err());
    plant(None);
    found
}

#[test]
fn each_mistake_in_the_election_is_detected() {
    let mut found = Vec::new();
    for mistake in [
        HaMistake::FenceNotChecked,
        HaMistake::AcknowledgementNotAwaited,
        HaMistake::StartAnsweredEarly,
        HaMistake::EndAnsweredEarly,
        HaMistake::KeyOverwritten,
        HaMistake::MeasuredFromReceipt,
        HaMistake::SyncFlagKept,
        HaMistake::AcknowledgedBeforeStored,
    ] {
        let seed = first_failure(mistake);
        println!("{mistake:?} is detected by seed {seed:?}");
        found.push((mistake, seed));
    }
    assert!(found.iter().all(|(_, seed)| seed.is_some()), "{found:?}");
}
