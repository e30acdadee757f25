//! Random calls to a master with a data directory on a simulated disk, with crashes and restarts.
//!
//! The code is that of the server: the lock around the state, the log and its thread, the
//! snapshots, and the start from a directory. The runs replace the rest: threads run one at a time,
//! clocks advance step by step, and clients and nodes are tables. The same seed repeats the same
//! run.
//!
//! A process stops at a random operation of the disk, between two operations, or after SIGTERM.
//! Then the host may lose power. Some processes get errors from the disk. After each step, every
//! object and every leased reader must find its own bytes. After each start, the directory must
//! contain the promised changes, and the state must equal the one that the last process had.

mod calls;
mod check;
mod counts;
mod damage;
pub(super) mod env;
mod memory;
mod mistakes;
mod nodes;
mod process;
mod recovered;
mod restart;
mod trace;
mod transfers;
mod world;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use counts::StepCounts;
use world::World;

use crate::{Effects, StandbyState, StorePolicy};
use mcctl_base::Mono;
use mcctl_base::Rng;

/// The environment variable with the number of seeds, and the number without it.
const SEEDS: (&str, u64) = ("MCCTL_CRASH_SEEDS", 200);

fn run(seed: u64, change: impl FnOnce(&mut World)) -> World {
    let mut world = World::new(seed);
    change(&mut world);
    world.run();
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

fn payloads(world: &World) -> Vec<Vec<u8>> {
    let payloads = world.trace.changes.iter().map(|change| change.payload.clone());
    payloads.filter(|payload| !payload.is_empty()).collect()
}

#[test]
fn crashes_lose_nothing_that_was_promised_and_mix_no_bytes() {
    let seeds = std::env::var(SEEDS.0).map_or(SEEDS.1, |seeds| seeds.parse().expect("a number of seeds"));
    let mut total = StepCounts::default();
    for seed in 0..seeds {
        let counts = catch_unwind(|| run(seed, |_| {}).counts);
        total.add(&counts.unwrap_or_else(|_| panic!("seed {seed}")));
    }
    println!("{seeds} seeds\n{total}");
    let stops = if seeds >= 10_000 { 100 } else { seeds / 200 };
    assert_eq!((total.rare_boundaries(stops), total.rare_events(seeds / 20)), (Vec::new(), Vec::new()));
}

#[test]
fn the_same_seed_repeats_the_same_changes() {
    let changes = |seed| run(seed, |_| {}).trace.changes;
    assert_eq!(changes(5), changes(5));
    assert_ne!(changes(5), changes(6));
}

/// Damaged data is refused, or happens to be valid. It never causes a panic.
#[test]
fn damaged_records_cause_no_panic() {
    let mut refused = 0;
    let mut activated = 0;
    for seed in 0..30 {
        let payloads = payloads(&run(seed, |_| {}));
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

#[test]
fn the_checker_finds_bytes_of_another_key() {
    let failure = first_failure(0..1, |world| world.scribble = true).expect("found");
    assert!(failure.contains("bytes of"), "{failure}");
}
