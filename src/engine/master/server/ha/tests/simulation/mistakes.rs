//! Proves that the runs detect each planted mistake.

use std::time::Duration;

use super::report::Plan;
use super::run_plan;
use mcctl_election::ha::NotInSyncPolicy;
use mcctl_election::ha::planted::{HaMistake, plant};

/// Maximum number of seeds until a mistake must be detected.
const SEEDS_MAX: usize = 400;

/// The plan of a seed. Some mistakes matter so rarely that their runs are chosen.
fn plan_for(mistake: HaMistake, seed: u64) -> Plan {
    let plan = Plan { has_records: mistake == HaMistake::RecordReadFromCopy, ..Plan::of(seed) };
    match mistake {
        // The standby that takes over must lag behind.
        HaMistake::HandOverNotAwaited => Plan { is_async: true, slow_link: 150_000, work: 150_000, ..plan },
        // A third standby must lag behind.
        HaMistake::ListedNotAwaited => Plan { nodes: 3, is_async: true, slow_link: 150_000, work: 150_000, ..plan },
        // A standby that is not in sync must be promoted.
        HaMistake::LossyObjectsKept | HaMistake::BarrierWrittenLate | HaMistake::BarrierIgnored => {
            let not_in_sync = NotInSyncPolicy::PromoteAfter(Duration::from_secs(4));
            Plan {
                nodes: 2,
                is_async: false,
                has_data: false,
                slow_disk: 1,
                work: 150_000,
                faults: 20,
                not_in_sync,
                ..plan
            }
        }
        _ => plan,
    }
}

/// Whether a run with this plan can contain the situation in which the mistake matters.
fn may_detect(mistake: HaMistake, plan: &Plan) -> bool {
    match mistake {
        HaMistake::AcknowledgedBeforeStored => plan.slow_disk > 1 && !plan.is_async,
        HaMistake::HandOverNotAwaited | HaMistake::ListedNotAwaited => plan.is_async,
        HaMistake::LossyObjectsKept | HaMistake::BarrierWrittenLate | HaMistake::BarrierIgnored => {
            plan.not_in_sync != NotInSyncPolicy::Wait
        }
        // Otherwise, the promotion itself is detected, instead of the loss of the copy.
        HaMistake::CompleteCopyDropped => plan.not_in_sync != NotInSyncPolicy::Wait && !plan.is_async,
        HaMistake::RecordReadFromCopy => true,
        _ => !plan.is_async,
    }
}

/// Returns the first seed from `first` on that detects the mistake.
fn detect(mistake: HaMistake, first: u64) -> Option<u64> {
    let mut seeds = (first..).filter(|seed| may_detect(mistake, &plan_for(mistake, *seed))).take(SEEDS_MAX);
    plant(Some(mistake));
    let found = seeds.find(|seed| {
        let result = run_plan(*seed, plan_for(mistake, *seed));
        let _ = result.as_ref().inspect_err(|violation| println!("{mistake:?}: {}", violation.kind()));
        result.is_err()
    });
    plant(None);
    found
}

/// Each with a seed that detects it. If a change of the code moves that to a later seed, the test
/// takes longer.
const MISTAKES: [(HaMistake, u64); 21] = [
    (HaMistake::FenceNotChecked, 13),
    (HaMistake::AcknowledgementNotAwaited, 81),
    (HaMistake::StartAnsweredEarly, 588),
    (HaMistake::EndAnsweredEarly, 258),
    (HaMistake::KeyOverwritten, 2),
    (HaMistake::MeasuredFromReceipt, 514),
    (HaMistake::SyncFlagKept, 10),
    (HaMistake::AcknowledgedBeforeStored, 2754),
    (HaMistake::HandOverNotAwaited, 76),
    (HaMistake::ListedNotAwaited, 460),
    (HaMistake::LossyObjectsKept, 186),
    (HaMistake::StandbyRangeShort, 2),
    (HaMistake::BarrierWrittenLate, 314),
    (HaMistake::BarrierIgnored, 186),
    (HaMistake::CompleteCopyDropped, 30),
    (HaMistake::NotAddedAgain, 53),
    (HaMistake::KeyNotCreatedAgain, 24),
    (HaMistake::QuarantineSkipped, 25),
    (HaMistake::WriterNotCompared, 23),
    (HaMistake::WriterIdReused, 120),
    (HaMistake::RecordReadFromCopy, 4),
];

#[test]
fn each_planted_mistake_is_detected() {
    let mut found = Vec::new();
    let only = std::env::var("MCCTL_HA_MISTAKE").ok();
    for (mistake, first) in MISTAKES {
        if only.as_ref().is_some_and(|name| *name != format!("{mistake:?}")) {
            continue;
        }
        let seed = detect(mistake, first);
        println!("{mistake:?} is detected by seed {seed:?}");
        found.push((mistake, seed));
    }
    assert!(!found.is_empty(), "MCCTL_HA_MISTAKE: unknown mistake {only:?}");
    assert!(found.iter().all(|(_, seed)| seed.is_some()), "{found:?}");
}
