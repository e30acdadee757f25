//! SGLang's startup memory check for L2. The check counts regular (non-hugepage) memory, even if L2
//! uses huge pages.
//!
//! Source: `sglang/srt/mem_cache/pool_host/base.py`, `host_memory_budget_bytes`:
//! `(available - 10 GiB) // ranks on the host`. `available` is psutil's value (MemAvailable) or the
//! cgroup limit. Pages in the huge page pool do not count as available, so a host needs about twice
//! its L2 size in memory.

use crate::plan::SizingError;
use crate::plan::error::narrow;

/// Memory that SGLang keeps free, in bytes.
pub const RESERVE_BYTES: u64 = 10 << 30;

/// Regular memory, in bytes, that must be available for `ranks` ranks whose largest buffer has
/// `buffer` bytes.
///
/// # Errors
/// The product overflows.
pub fn needed(buffer: u64, ranks: u64) -> Result<u64, SizingError> {
    narrow(
        u128::from(buffer) * u128::from(ranks) + u128::from(RESERVE_BYTES),
        "the memory that SGLang's startup check requires",
    )
}

/// Size of the largest buffer, in bytes, that the check allows for each of `ranks` ranks if
/// `available` bytes are available.
pub fn budget(available: u64, ranks: u64) -> u64 {
    available.saturating_sub(RESERVE_BYTES) / ranks.max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn upstreams_example_needs_248_gib_of_regular_memory() {
        let bytes = needed(64_000_884_736, 4).unwrap();
        assert_eq!((bytes * 10) >> 30, 2_484);
        assert_eq!(budget(0, 4), 0);
    }

    proptest! {
        #[test]
        fn the_needed_memory_is_exact(buffer in 1u64..1 << 50, ranks in 1u64..1_000) {
            let needed = needed(buffer, ranks).unwrap();
            prop_assert!(budget(needed, ranks) >= buffer);
            prop_assert!(budget(needed - 1, ranks) < buffer);
        }
    }
}
