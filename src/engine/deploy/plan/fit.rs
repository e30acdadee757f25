//! The reverse calculation: the largest sizes that fit on a host.

use crate::plan::SizingError;
use crate::plan::host_pool::L2Size;
use crate::plan::need::need;
use crate::plan::sizing_input::SizingInput;

/// The memory of a host that is available to a deployment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostCapacity {
    /// Available regular (non-hugepage) memory, in bytes.
    pub memory: u64,
    /// Memory in available huge pages, in bytes; not included in `memory`.
    pub hugetlb: u64,
}

/// The largest sizes that fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FittingSizes {
    /// `--hicache-size`, in decimal GB per rank.
    pub gb: u64,
    /// `MOONCAKE_GLOBAL_SEGMENT_SIZE`, in bytes; whole GiB.
    pub group_segment: u64,
}

/// Upper limit of the search, in GB per rank.
const GB_MAX: u64 = 1 << 20;

/// Finds the largest balanced sizes for the deployment `wanted`, ignoring the sizes in it: L2 in
/// whole GB per rank, and a group segment in whole GiB (at least 1) that matches the total L2 size
/// of the group's ranks. Returns `None` if not even 1 GB fits.
///
/// Sizes fit if the regular memory left after reserving the missing huge pages is enough for
/// SGLang's memory check.
///
/// # Errors
/// SGLang cannot start the deployment with any sizes.
pub fn fit(wanted: &SizingInput, capacity: &HostCapacity) -> Result<Option<FittingSizes>, SizingError> {
    let divisor = wanted.layout.attention_tp() * wanted.layout.pp();
    let sizes = |gb: u64| {
        let bytes = u128::from(gb) * 1_000_000_000 * u128::from(divisor);
        u64::try_from((bytes >> 30).max(1) << 30).ok().map(|group_segment| FittingSizes { gb, group_segment })
    };
    // Sizes that overflow do not fit. An invalid deployment already fails at the smallest size.
    let carries = |fit: FittingSizes| -> Result<bool, SizingError> {
        let FittingSizes { gb, group_segment } = fit;
        let need = need(&SizingInput { l2_size: L2Size::Gb(gb), group_segment, ..*wanted })?;
        let missing = need.most.bytes().saturating_sub(u128::from(capacity.hugetlb));
        Ok(missing + u128::from(need.guard_bytes) <= u128::from(capacity.memory))
    };
    let Some(smallest) = sizes(1) else { return Ok(None) };
    if !carries(smallest)? {
        return Ok(None);
    }
    let mut low = smallest;
    let mut high = GB_MAX;
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
    use crate::plan::client::MIB2;
    use crate::plan::geometry::CacheType;
    use crate::plan::layout::ParallelLayout;
    use crate::plan::models;
    use crate::plan::sizing_input::Services;
    use proptest::prelude::*;

    fn wanted(tp: u64) -> SizingInput {
        SizingInput {
            layout: ParallelLayout::new(tp, 1, 1, false, 1).unwrap(),
            geometry: Some(models::by_name("Qwen3-32B").unwrap().geometry),
            cache: CacheType::Half,
            page_size: 64,
            l2_size: L2Size::Gb(1),
            group_segment: 0,
            arena: 0,
            page: MIB2,
            default_page: MIB2,
            nic_nodes: 0,
            region: crate::plan::sizing_input::REGION_BYTES,
            services: Services::default(),
        }
    }

    #[test]
    fn a_1_tib_host_fits_a_third_of_it_in_each_tier() {
        let found = fit(&wanted(8), &HostCapacity { memory: 1 << 40, hugetlb: 0 }).unwrap().unwrap();
        // The sum of L2, the segment, L2 again for SGLang's memory check, 10 GiB, and the buffers.
        assert_eq!(found, FittingSizes { gb: 45, group_segment: 335 << 30 });
        assert_eq!(fit(&wanted(8), &HostCapacity { memory: 8 << 30, hugetlb: 0 }), Ok(None));
    }

    #[test]
    fn an_invalid_deployment_is_an_error() {
        let stages = SizingInput { layout: ParallelLayout::new(1, 65, 1, false, 1).unwrap(), ..wanted(1) };
        assert!(fit(&stages, &HostCapacity { memory: 1 << 40, hugetlb: 0 }).is_err());
    }

    proptest! {
        #[test]
        fn the_result_fits_and_1_gb_more_does_not(
            memory in 0u64..1 << 42, hugetlb in 0u64..1 << 40, tp_shift in 0u32..5
        ) {
            let wanted = wanted(1 << tp_shift);
            let capacity = HostCapacity { memory, hugetlb };
            let carries = |gb: u64| {
                let bytes = (gb * 1_000_000_000) << tp_shift;
                let sized = SizingInput { l2_size: L2Size::Gb(gb), group_segment: (bytes >> 30).max(1) << 30, ..wanted };
                let need = need(&sized).unwrap();
                let missing = need.most.bytes().saturating_sub(u128::from(hugetlb));
                missing + u128::from(need.guard_bytes) <= u128::from(memory)
            };
            match fit(&wanted, &capacity).unwrap() {
                Some(found) => prop_assert!(carries(found.gb) && !carries(found.gb + 1)),
                None => prop_assert!(!carries(1)),
            }
        }
    }
}
