//! SGLang's own check before it allocates L2: it counts ordinary memory, even when huge pages will be taken.
//!
//! Source: `sglang/srt/mem_cache/pool_host/base.py`, `host_memory_budget_bytes`: `(available - 10 GiB) // ranks of the host`, where
//! available is psutil's (MemAvailable) or what the cgroups leave. Pages in the pool of huge pages do not count as available, so a
//! host needs about twice its L2.

use crate::engine::plan::PlanError;
use crate::engine::plan::error::narrow;

/// What SGLang leaves alone.
pub const RESERVE_BYTES: u64 = 10 << 30;

/// Ordinary memory that must be available, bytes, so that `ranks` ranks each with a largest buffer of `buffer` bytes start.
///
/// # Errors
/// The product is absurd.
pub fn needed(buffer: u64, ranks: u64) -> Result<u64, PlanError> {
    narrow(
        u128::from(buffer) * u128::from(ranks) + u128::from(RESERVE_BYTES),
        "the memory that SGLang's guard asks for",
    )
}

/// The largest buffer that the guard lets each of `ranks` ranks take when `available` bytes are available.
pub fn budget(available: u64, ranks: u64) -> u64 {
    available.saturating_sub(RESERVE_BYTES) / ranks.max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn upstreams_example_needs_248_gib_that_nobody_mentions() {
        let bytes = needed(64_000_884_736, 4).unwrap();
        assert_eq!((bytes * 10) >> 30, 2_484);
        assert_eq!(budget(0, 4), 0);
    }

    proptest! {
        #[test]
        fn what_is_needed_is_just_enough(buffer in 1u64..1 << 50, ranks in 1u64..1_000) {
            let needed = needed(buffer, ranks).unwrap();
            prop_assert!(budget(needed, ranks) >= buffer);
            prop_assert!(budget(needed - 1, ranks) < buffer);
        }
    }
}
