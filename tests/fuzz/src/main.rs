//! The fuzz targets under libFuzzer. One program contains all targets, so that it is linked once.
//! `MCCTL_FUZZ_TARGET` selects one.
#![no_main]

#[path = "targets.rs"]
mod targets;

use std::path::Path;
use std::sync::OnceLock;

use libfuzzer_sys::fuzz_target;
use targets::{TARGETS, Target};

/// The target that the variable `MCCTL_FUZZ_TARGET` names.
fn chosen() -> &'static Target {
    static CHOSEN: OnceLock<&'static Target> = OnceLock::new();
    CHOSEN.get_or_init(|| {
        let name = std::env::var("MCCTL_FUZZ_TARGET").expect("MCCTL_FUZZ_TARGET names the target");
        TARGETS.iter().find(|t| t.0 == name).unwrap_or_else(|| panic!("unknown target {name}"))
    })
}

/// Writes `seeds` into the corpus of `target`, which libFuzzer reads next.
fn write_seeds(target: &str, seeds: &[Vec<u8>]) {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target);
    std::fs::create_dir_all(&dir).expect("the corpus can be written");
    for (i, seed) in seeds.iter().enumerate() {
        std::fs::write(dir.join(format!("seed-{i:04}")), seed).expect("the corpus can be written");
    }
}

fuzz_target!(init: write_seeds(chosen().0, &chosen().2()), |data: &[u8]| chosen().1(data));
