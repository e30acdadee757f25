//! Each planted mistake is detected.

use super::report::Plan;
use super::run;
use crate::engine::ha::planted::{HaMistake, plant};

/// Maximum number of seeds until a mistake must be detected.
const SEEDS_MAX: usize = 400;

/// Returns the first seed from `first` on that detects the mistake. Only seeds with slow disks can detect one in what is
/// stored.
fn detect(mistake: HaMistake, first: u64) -> Option<u64> {
    let needs_slow_disk = mistake == HaMistake::AcknowledgedBeforeStored;
    let mut seeds = (first..).filter(|seed| !needs_slow_disk || Plan::of(*seed).slow_disk > 1).take(SEEDS_MAX);
    plant(Some(mistake));
    let found = seeds.find(|seed| run(*seed).is_err());
    plant(None);
    found
}

/// Each with a seed that detects it. If a change of the code moves that to a later seed, the test takes longer.
const MISTAKES: [(HaMistake, u64); 8] = [
    (HaMistake::FenceNotChecked, 6),
    (HaMistake::AcknowledgementNotAwaited, 23),
    (HaMistake::StartAnsweredEarly, 41),
    (HaMistake::EndAnsweredEarly, 1),
    (HaMistake::KeyOverwritten, 17),
    (HaMistake::MeasuredFromReceipt, 12),
    (HaMistake::SyncFlagKept, 1),
    (HaMistake::AcknowledgedBeforeStored, 179),
];

#[test]
fn each_mistake_in_the_election_is_detected() {
    let mut found = Vec::new();
    for (mistake, first) in MISTAKES {
        let seed = detect(mistake, first);
        println!("{mistake:?} is detected by seed {seed:?}");
        found.push((mistake, seed));
    }
    assert!(found.iter().all(|(_, seed)| seed.is_some()), "{found:?}");
}
