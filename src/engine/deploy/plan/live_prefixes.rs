//! How many prefixes keep their state in L2. Below that number, a prefix is found again; above it,
//! requests that use their prefixes in turn find none: each state is evicted just before it is
//! needed, since the least recently used one goes first
//! (`sglang/srt/mem_cache/unified_cache/components/mamba.py`). SGLang keeps a state after each
//! chunk of a prompt, and after the answer (`prepare_for_caching_req` in the same file).
//!
//! Anchor: sglang#39436, 8 prompts in turn: with 565 slots none of them hits, with 734 slots all
//! do.

use crate::plan::SizingError;
use crate::plan::geometry::{Geometry, PoolKind};
use crate::plan::host_pool::{L2Size, pools};
use crate::plan::sizing_input::SizingInput;

/// The state slots of one rank, and the prefixes that they hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateSlots {
    /// Bytes per slot, in the stage with the most.
    pub slot_bytes: u64,
    /// Slots without padding, in the stage with the fewest.
    pub slots: u64,
    /// Slots that a prefix needs.
    pub per_prefix: u64,
    /// Prefixes whose states fit.
    pub prefixes: u64,
}

/// Upper limit of the search, in GB per rank.
const GB_MAX: u64 = 1 << 20;

/// Computes the slots of `wanted`, if the model keeps states.
///
/// # Errors
/// SGLang rejects the sizes, or a value overflows.
pub fn state_slots(
    wanted: &SizingInput,
    geometry: &Geometry,
    per_prefix: u64,
) -> Result<Option<StateSlots>, SizingError> {
    let ranks = pools(wanted, geometry)?;
    let states = ranks.iter().flat_map(|rank| &rank.pools).filter(|pool| pool.kind == PoolKind::Mamba);
    let of = |found: Option<StateSlots>, pool: &crate::plan::host_pool::HostPool| {
        let slots = pool.units.saturating_sub(1);
        let own = StateSlots { slot_bytes: pool.unit_bytes, slots, per_prefix, prefixes: slots / per_prefix.max(1) };
        match found {
            Some(before) => StateSlots {
                slot_bytes: before.slot_bytes.max(own.slot_bytes),
                ..if before.slots <= own.slots { before } else { own }
            },
            None => own,
        }
    };
    Ok(states.fold(None, |found, pool| Some(of(found, pool))))
}

/// The smallest `--hicache-size`, in GB per rank, with which the states of `prefixes` prefixes fit.
/// `None` if no size does, or the model keeps no states.
///
/// # Errors
/// SGLang rejects any size.
pub fn size_for(
    wanted: &SizingInput,
    geometry: &Geometry,
    per_prefix: u64,
    prefixes: u64,
) -> Result<Option<u64>, SizingError> {
    let holds = |gb: u64| {
        let sized = SizingInput { l2_size: L2Size::Gb(gb), ..wanted.clone() };
        Ok(state_slots(&sized, geometry, per_prefix)?.is_some_and(|slots| slots.prefixes >= prefixes))
    };
    if holds(1)? {
        return Ok(Some(1));
    }
    let (mut low, mut high) = (1, GB_MAX);
    if !holds(high).unwrap_or(false) {
        return Ok(None);
    }
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        if holds(middle)? { high = middle } else { low = middle }
    }
    Ok(Some(high))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::layout::ParallelLayout;
    use crate::plan::models;
    use crate::plan::sizing_input::DevicePools;
    use proptest::prelude::*;

    fn input(gb: u64) -> SizingInput {
        let device = DevicePools { tokens: Some(1_000_000), slots: Some(500), ..DevicePools::default() };
        let layout = ParallelLayout::new(4, 1, 1, false, 1).unwrap();
        SizingInput { device, ..SizingInput::new(layout, L2Size::Gb(gb)) }
    }

    #[test]
    fn only_models_with_states_have_slots() {
        let qwen = &models::by_name("Qwen3-32B").unwrap().geometry;
        assert_eq!(state_slots(&input(40), qwen, 2), Ok(None));
        assert_eq!(size_for(&input(40), qwen, 2, 8), Ok(None));
        let next = &models::by_name("Qwen3-Next-80B-A3B").unwrap().geometry;
        let slots = state_slots(&input(40), next, 2).unwrap().unwrap();
        assert_eq!((slots.prefixes, slots.slot_bytes), (slots.slots / 2, 77_266_944 / 4));
    }

    proptest! {
        #[test]
        fn the_size_holds_the_prefixes_and_1_gb_less_does_not(prefixes in 1u64..5_000, per_prefix in 1u64..100) {
            let next = &models::by_name("Qwen3-Next-80B-A3B").unwrap().geometry;
            let gb = size_for(&input(1), next, per_prefix, prefixes).unwrap().unwrap();
            let holds = |gb| state_slots(&input(gb), next, per_prefix).unwrap().unwrap().prefixes >= prefixes;
            prop_assert!(holds(gb) && (gb == 1 || !holds(gb - 1)));
        }
    }
}
