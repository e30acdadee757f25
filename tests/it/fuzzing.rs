//! The fuzz targets with their seeds, which are captured bytes, and with random damage.
//! `tests/fuzz/run` searches with libFuzzer.

use mcctl::engine::base::Rng;

use crate::fuzz_targets::{TARGETS, Target};

/// Damaged copies of each seed.
const COPIES: usize = 20;

/// Replaces, removes or adds a few bytes.
fn damaged(seed: &[u8], rng: &mut Rng) -> Vec<u8> {
    let mut bytes = seed.to_vec();
    for _ in 0..=rng.below(3) {
        let at = rng.below(bytes.len() + 1);
        let byte = [0, 0x7f, 0xff, rng.below(256) as u8][rng.below(4)];
        match rng.below(4) {
            0 => bytes.truncate(at),
            1 => bytes.insert(at, byte),
            _ if at < bytes.len() => bytes[at] = byte,
            _ => bytes.push(byte),
        }
    }
    bytes
}

fn run_target((name, target, seeds): &Target) {
    let seeds = seeds();
    assert!(!seeds.is_empty(), "{name} has seeds");
    let mut rng = Rng::new(1);
    for seed in &seeds {
        target(seed);
        for _ in 0..COPIES {
            target(&damaged(seed, &mut rng));
        }
    }
}

/// Without the live ports: they refuse a client that is stopped for seconds, which happens on a
/// busy machine. `peer::hostile` sends invalid bytes to every port.
#[test]
fn every_decoder_accepts_its_seeds_and_survives_damage() {
    let decoders: Vec<&Target> = TARGETS.iter().filter(|(name, ..)| !name.ends_with("_port")).collect();
    assert_eq!(decoders.len(), 11);
    decoders.into_iter().for_each(run_target);
}
