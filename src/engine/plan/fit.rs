//! The reverse question: the largest sizes that a host can carry.

use crate::engine::plan::PlanError;
use crate::engine::plan::host_pool::Wish;
use crate::engine::plan::need::{Deployment, need};

/// What a host has to give.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// Ordinary memory that is available now, bytes.
    pub memory: u64,
    /// Bytes in huge pages that can be had now; they are not in `memory`.
    pub hugetlb: u64,
}

/// Sizes that fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fit {
    /// `--hicache-size`, decimal GB per rank.
    pub gb: u64,
    /// `MOONCAKE_GLOBAL_SEGMENT_SIZE`, bytes; whole GiB.
    pub group_segment: u64,
}

/// No host is asked for more per rank.
const GB_MAX: u64 = 1 << 20;

/// The largest balanced sizes of `wanted` (whose own sizes do not count): L2 of whole GB per rank, and a segment of the same bytes in
/// whole GiB, at least one, so that L3 holds what the ranks of a group hold. `None` where not even 1 GB fits.
///
/// It fits when the huge pages that are still to be reserved leave as much ordinary memory as SGLang's guard asks for.
///
/// # Errors
/// The deployment is none that SGLang starts.
pub fn fit(wanted: &Deployment, room: &Room) -> Result<Option<Fit>, PlanError> {
    let divisor = wanted.layout.attention_tp() * wanted.layout.pp();
    let sizes = |gb: u64| {
        let bytes = u128::from(gb) * 1_000_000_000 * u128::from(divisor);
        u64::try_from((bytes >> 30).max(1) << 30).ok().map(|group_segment| Fit { gb, group_segment })
    };
    // A size that is absurd does not fit; that the deployment is none shows at the smallest one.
    let carries = |fit: Fit| -> Result<bool, PlanError> {
        let Fit { gb, group_segment } = fit;
        let need = need(&Deployment { wish: Wish::Gb(gb), group_segment, ..*wanted })?;
        let missing = need.most.bytes().saturating_sub(u128::from(room.hugetlb));
        Ok(missing + u128::from(need.guard_bytes) <= u128::from(room.memory))
    };
    let Some(smallest) = sizes(1) else { return Ok(None) };
    if !carries(smallest)? {
        return Ok(None);
    }
    let (mut low, mut high) = (smallest, GB_MAX);
    while high - low.gb > 1 {
        let middle = low.gb + (high - low.gb) / 2;
        match sizes(middle).map(|fit| (fit, carries(fit))) {
            Some((fit, Ok(true))) => low = fit,
            _ => high = middle,
        }
    }
    Ok(Some(low))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::plan::client::MIB2;
    use crate::engine::plan::geometry::CacheType;
    use crate::engine::plan::layout::Layout;
    use crate::engine::plan::models;
    use crate::engine::plan::need::Services;
    use proptest::prelude::*;

    fn wanted(tp: u64) -> Deployment {
        Deployment {
            layout: Layout::new(tp, 1, 1, false, 1).unwrap(),
            geometry: Some(models::by_name("Qwen3-32B").unwrap().geometry),
            cache: CacheType::Half,
            page_size: 64,
            wish: Wish::Gb(1),
            group_segment: 0,
            arena: 0,
            page: MIB2,
            default_page: MIB2,
            nic_nodes: 0,
            region: crate::engine::plan::need::REGION_BYTES,
            services: Services::default(),
        }
    }

    #[test]
    fn a_host_of_1_tib_carries_a_third_of_it_in_each_tier() {
        let found = fit(&wanted(8), &Room { memory: 1 << 40, hugetlb: 0 }).unwrap().unwrap();
        // L2, the segment, and L2 again for the guard; 10 GiB and the buffers besides.
        assert_eq!(found, Fit { gb: 45, group_segment: 335 << 30 });
        assert_eq!(fit(&wanted(8), &Room { memory: 8 << 30, hugetlb: 0 }), Ok(None));
    }

    #[test]
    fn a_deployment_that_is_none_is_an_error() {
        let stages = Deployment { layout: Layout::new(1, 65, 1, false, 1).unwrap(), ..wanted(1) };
        assert!(fit(&stages, &Room { memory: 1 << 40, hugetlb: 0 }).is_err());
    }

    proptest! {
        #[test]
        fn what_is_found_fits_and_one_more_does_not(
            memory in 0u64..1 << 42, hugetlb in 0u64..1 << 40, tp_shift in 0u32..5
        ) {
            let (wanted, room) = (wanted(1 << tp_shift), Room { memory, hugetlb });
            let carries = |gb: u64| {
                let bytes = (gb * 1_000_000_000) << tp_shift;
                let sized = Deployment { wish: Wish::Gb(gb), group_segment: (bytes >> 30).max(1) << 30, ..wanted };
                let need = need(&sized).unwrap();
                let missing = need.most.bytes().saturating_sub(u128::from(hugetlb));
                missing + u128::from(need.guard_bytes) <= u128::from(memory)
            };
            match fit(&wanted, &room).unwrap() {
                Some(found) => prop_assert!(carries(found.gb) && !carries(found.gb + 1)),
                None => prop_assert!(!carries(1)),
            }
        }
    }
}
