//! Random calls, snapshots, crashes and restarts. After each step, every object and every leased reader must find its own bytes, and a
//! state that is built from records must equal the state that wrote them.

mod calls;
mod memory;
mod restart;
mod world;

use std::panic::{AssertUnwindSafe, catch_unwind};

use world::World;

use super::*;
use crate::engine::alloc::placement::Rng;
use crate::engine::master::StandbyState;

/// Number of steps per seed.
const STEPS: usize = 300;

fn run(seed: u64, change: impl FnOnce(&mut World)) -> World {
    let mut world = World::new(seed);
    change(&mut world);
    for _ in 0..STEPS {
        world.step();
    }
    world
}

/// Runs seeds until one fails. Returns its failure.
fn first_failure(seeds: std::ops::Range<u64>, change: impl Fn(&mut World)) -> Option<String> {
    seeds.into_iter().find_map(|seed| {
        let failure = catch_unwind(AssertUnwindSafe(|| drop(run(seed, &change)))).err()?;
        let text = failure.downcast_ref::<String>().cloned();
        Some(text.or_else(|| failure.downcast_ref::<&str>().map(ToString::to_string)).unwrap_or_default())
    })
}

#[test]
fn crashes_lose_no_durable_change_and_mix_no_bytes() {
    let mut total = world::StepCounts::default();
    for seed in 0..200 {
        let counts = catch_unwind(|| run(seed, |_| {}).counts);
        total.add(&counts.unwrap_or_else(|_| panic!("seed {seed}")));
    }
    let rare: Vec<(&str, u64)> = total.list().filter(|(_, count)| *count < 100).collect();
    assert_eq!(rare, []);
}

#[test]
fn the_same_seed_repeats_the_same_changes() {
    let log = |seed| run(seed, |_| {}).payloads();
    assert_eq!(log(5), log(5));
    assert_ne!(log(5), log(6));
}

/// Damaged data is refused, or happens to be valid. It never causes a panic.
#[test]
fn damaged_records_cause_no_panic() {
    let (mut refused, mut activated) = (0, 0);
    for seed in 0..30 {
        let payloads = run(seed, |_| {}).payloads();
        let mut rng = Rng::new(seed);
        for _ in 0..40 {
            let damaged = rng.below(payloads.len());
            let mut standby = StandbyState::new(StorePolicy { seed: 1, ..StorePolicy::default() });
            let now = Mono::from_ms(10);
            let applied = payloads.iter().enumerate().try_for_each(|(nth, payload)| {
                let mut payload = payload.clone();
                if nth == damaged {
                    let at = rng.below(payload.len());
                    payload[at] = payload[at].wrapping_add(1 + rng.below(255) as u8);
                }
                standby.apply_payload(now, Duration::ZERO, &payload).map(|_| ())
            });
            match applied.map_err(drop).and_then(|()| standby.activate(now, Duration::ZERO).map_err(drop)) {
                Ok((mut state, _)) => {
                    while state.tick(now, now, &mut Effects::default()) {}
                    activated += 1;
                }
                Err(()) => refused += 1,
            }
        }
    }
    assert!(refused > 300 && activated > 100, "{refused} refused, {activated} activated");
}

#[cfg(feature = "planted-mistakes")]
#[test]
fn planted_mistakes_are_found() {
    use crate::engine::master::planted::PlantedMistake;
    for mistake in [
        PlantedMistake::RangeFreedBeforeItsRecord,
        PlantedMistake::LeaseAssumedEnded,
        PlantedMistake::RemountWithoutHold,
    ] {
        let failure = first_failure(0..200, |world| world.plant(mistake));
        let failure = failure.unwrap_or_else(|| panic!("{mistake:?} was not found"));
        assert!(failure.contains("bytes of"), "{mistake:?}: {failure}");
    }
}

#[test]
fn the_checker_finds_bytes_of_another_key() {
    let failure = first_failure(0..1, World::scribble).expect("found");
    assert!(failure.contains("bytes of key"), "{failure}");
}
