//! The reverse calculation: the largest sizes that fit on a host.

use crate::plan::SizingError;
use crate::plan::client::{GIB1, HugePageCount, MIB2, PLAIN_SEGMENT_BYTES_MIN};
use crate::plan::host_pool::{GB, L2Size};
use crate::plan::need::{MemoryNeed, need};
use crate::plan::sizing_input::SizingInput;

/// The memory of a host that is available to a deployment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostCapacity {
    /// Available regular (non-hugepage) memory, in bytes.
    pub memory: u64,
    /// Available huge pages; not included in `memory`.
    pub hugepages: HugePageCount,
    /// Maximum number of huge pages that the deployment may use. Pages that are not available yet
    /// must be reserved, and reduce `memory`.
    pub hugepages_max: HugePageCount,
}

impl HostCapacity {
    /// Whether a deployment with this `need` fits: the store accepts its segments, its huge pages
    /// are available or may be reserved, and enough regular memory remains for it and for SGLang's
    /// memory check.
    pub fn carries(&self, need: &MemoryNeed) -> bool {
        let HugePageCount { mib2, gib1 } = need.most;
        let missing = u128::from(mib2.saturating_sub(self.hugepages.mib2)) * u128::from(MIB2)
            + u128::from(gib1.saturating_sub(self.hugepages.gib1)) * u128::from(GIB1);
        need.rejected_segment.is_none()
            && mib2 <= self.hugepages_max.mib2
            && gib1 <= self.hugepages_max.gib1
            && missing + u128::from(need.memory_bytes()) <= u128::from(self.memory)
    }
}

/// The sizes that are searched; the others are fixed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SearchedSizes {
    /// L2 in whole GB per rank, and a group segment in whole GiB that matches the total L2 size of
    /// the group's ranks.
    Balanced,
    /// L2 in whole GB per rank.
    L2,
    /// The group segment in whole GiB.
    Segment,
}

/// The sizes of a deployment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FittingSizes {
    pub l2_size: L2Size,
    /// `MOONCAKE_GLOBAL_SEGMENT_SIZE`, in bytes.
    pub group_segment: u64,
}

/// The result of a search.
#[derive(Clone, Debug, PartialEq)]
pub enum FitResult {
    /// The largest sizes that fit.
    Largest(FittingSizes),
    /// Not even the smallest sizes fit.
    Nothing {
        smallest: FittingSizes,
        /// What the smallest sizes need.
        need: Box<MemoryNeed>,
    },
}

/// Upper limit of the search, in GB per rank, or in GiB per group.
const UNITS_MAX: u64 = 1 << 20;

/// Finds the largest sizes for the deployment `wanted` that `carries` accepts, in units of 1 GB of
/// L2 per rank, or of 1 GiB of the group segment. The sizes in `wanted` that are searched are
/// ignored. `carries` must not accept larger sizes after it has rejected smaller ones.
///
/// # Errors
/// SGLang cannot start the deployment with any of these sizes, or a fixed size is out of range.
pub fn fit(
    wanted: &SizingInput,
    searched: SearchedSizes,
    carries: impl Fn(&MemoryNeed) -> bool,
) -> Result<FitResult, SizingError> {
    let divisor = wanted.layout.attention_tp() * wanted.layout.pp();
    let sizes = |units: u64| {
        let balanced = u128::from(units) * u128::from(GB) * u128::from(divisor);
        let (l2_size, segment) = match searched {
            SearchedSizes::Balanced => (L2Size::Gb(units), (balanced >> 30).max(1) << 30),
            SearchedSizes::L2 => (L2Size::Gb(units), u128::from(wanted.group_segment)),
            SearchedSizes::Segment => (wanted.l2_size, u128::from(units) << 30),
        };
        u64::try_from(segment).ok().map(|group_segment| FittingSizes { l2_size, group_segment })
    };
    let needed = |sizes: &FittingSizes| {
        let FittingSizes { l2_size, group_segment } = *sizes;
        need(&SizingInput { l2_size, group_segment, ..wanted.clone() })
    };
    // Without huge pages, each rank needs a minimum.
    let least = match searched {
        SearchedSizes::Segment if !wanted.uses_hugepages() => (divisor * PLAIN_SEGMENT_BYTES_MIN).div_ceil(1 << 30),
        _ => 1,
    };
    let smallest = sizes(least).ok_or(SizingError::TooLarge { what: "the segment size" })?;
    // An invalid deployment already fails here.
    let of_smallest = needed(&smallest)?;
    if !carries(&of_smallest) {
        return Ok(FitResult::Nothing { smallest, need: Box::new(of_smallest) });
    }
    // Sizes that overflow do not fit.
    let fitting = |units: u64| sizes(units).filter(|sizes| needed(sizes).is_ok_and(|need| carries(&need)));
    let mut low = (least, smallest);
    let mut high = UNITS_MAX.max(least + 1);
    while high - low.0 > 1 {
        let middle = low.0 + (high - low.0) / 2;
        match fitting(middle) {
            Some(sizes) => low = (middle, sizes),
            None => high = middle,
        }
    }
    Ok(FitResult::Largest(low.1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::layout::ParallelLayout;
    use crate::plan::models;
    use crate::plan::sizing_input::REGULAR_PAGE_BYTES;
    use proptest::prelude::*;

    fn wanted(tp: u64) -> SizingInput {
        SizingInput {
            geometry: Some(models::by_name("Qwen3-32B").unwrap().geometry.clone()),
            ..SizingInput::new(ParallelLayout::new(tp, 1, 1, false, 1).unwrap(), L2Size::Gb(1))
        }
    }

    const NONE: HugePageCount = HugePageCount { mib2: 0, gib1: 0 };
    const ANY: HugePageCount = HugePageCount { mib2: u64::MAX, gib1: u64::MAX };

    /// A host with `memory` bytes of regular memory that may become huge pages.
    fn host(memory: u64) -> HostCapacity {
        HostCapacity { memory, hugepages: NONE, hugepages_max: ANY }
    }

    /// A host with a pool of `pages` huge pages that cannot grow.
    fn pool(memory: u64, pages: u64) -> HostCapacity {
        let hugepages = HugePageCount::of(MIB2, pages);
        HostCapacity { memory, hugepages, hugepages_max: hugepages }
    }

    fn fit(wanted: &SizingInput, searched: SearchedSizes, on: &HostCapacity) -> Result<FitResult, SizingError> {
        super::fit(wanted, searched, |need| on.carries(need))
    }

    fn largest(result: FitResult) -> FittingSizes {
        match result {
            FitResult::Largest(sizes) => sizes,
            FitResult::Nothing { .. } => panic!("nothing fits: {result:?}"),
        }
    }

    #[test]
    fn a_1_tib_host_fits_a_third_of_it_in_each_tier() {
        let found = largest(fit(&wanted(8), SearchedSizes::Balanced, &host(1 << 40)).unwrap());
        // The sum of L2, the segment, L2 again for SGLang's memory check, 10 GiB, and the buffers.
        assert_eq!(found, FittingSizes { l2_size: L2Size::Gb(45), group_segment: 335 << 30 });
        let none = fit(&wanted(8), SearchedSizes::Balanced, &host(8 << 30)).unwrap();
        let FitResult::Nothing { smallest, need } = none else { panic!("it fits: {none:?}") };
        assert_eq!(smallest, FittingSizes { l2_size: L2Size::Gb(1), group_segment: 7 << 30 });
        assert_eq!(need.most.mib2, 8 * (477 + 448 + 8));
    }

    #[test]
    fn without_huge_pages_l2_is_not_counted_twice() {
        let regular = SizingInput { page: REGULAR_PAGE_BYTES, ..wanted(8) };
        let found = largest(fit(&regular, SearchedSizes::Balanced, &host(1 << 40)).unwrap());
        assert_eq!(found, FittingSizes { l2_size: L2Size::Gb(68), group_segment: 506 << 30 });
    }

    #[test]
    fn a_given_pool_is_never_exceeded() {
        // The host of the first contact: 512 GiB of huge pages and 450 GiB of regular memory.
        let qwen = models::by_name("Qwen3-235B-A22B").unwrap().geometry.clone();
        let wanted = SizingInput { geometry: Some(qwen), ..wanted(8) };
        let given = pool(450 << 30, 262_144);
        let found = largest(fit(&wanted, SearchedSizes::Balanced, &given).unwrap());
        let FittingSizes { l2_size, group_segment } = found;
        let need = need(&SizingInput { l2_size, group_segment, ..wanted.clone() }).unwrap();
        assert!(need.most.mib2 <= 262_144 && need.guard_bytes <= 450 << 30, "{need:?}");
        let fixed = SizingInput { l2_size: L2Size::Gb(32), ..wanted.clone() };
        let segment = largest(fit(&fixed, SearchedSizes::Segment, &given).unwrap()).group_segment;
        // 512 GiB less 8 x 29.81 GiB of L2, and 8 x 16 MiB of buffers.
        assert_eq!(segment, 273 << 30);
    }

    #[test]
    fn a_fixed_segment_that_the_store_rejects_does_not_fit() {
        let small = SizingInput { page: REGULAR_PAGE_BYTES, group_segment: 8 << 20, ..wanted(8) };
        let none = fit(&small, SearchedSizes::L2, &host(1 << 44)).unwrap();
        assert!(matches!(none, FitResult::Nothing { ref need, .. } if need.rejected_segment == Some(1 << 20)));
        // 64 ranks need 1 GiB for 16 MiB each.
        let many = SizingInput { page: REGULAR_PAGE_BYTES, ..wanted(64) };
        let FitResult::Nothing { smallest, .. } = fit(&many, SearchedSizes::Segment, &host(0)).unwrap() else {
            panic!("it fits")
        };
        assert_eq!(smallest.group_segment, 1 << 30);
    }

    #[test]
    fn an_invalid_deployment_is_an_error() {
        let stages = SizingInput { layout: ParallelLayout::new(1, 65, 1, false, 1).unwrap(), ..wanted(1) };
        for searched in [SearchedSizes::Balanced, SearchedSizes::L2, SearchedSizes::Segment] {
            assert!(fit(&stages, searched, &host(1 << 40)).is_err());
        }
        let huge = SizingInput { l2_size: L2Size::Gb(u64::MAX), ..wanted(1) };
        assert!(fit(&huge, SearchedSizes::Segment, &host(1 << 40)).is_err());
    }

    proptest! {
        #[test]
        fn the_result_fits_and_one_unit_more_does_not(
            memory in 0u64..1 << 42, pages in 0u64..1 << 19, is_fixed: bool, tp_shift in 0u32..7, is_regular: bool,
            searched in prop::sample::select(vec![SearchedSizes::Balanced, SearchedSizes::L2, SearchedSizes::Segment]),
            gb in 1u64..200, segment in 0u64..1 << 39, is_large: bool, has_ratio: bool,
        ) {
            let page = if is_regular { REGULAR_PAGE_BYTES } else if is_large { GIB1 } else { MIB2 };
            let ratio = L2Size::Ratio { ratio: 1.5, device_tokens: gb * 10_000 };
            let wanted = SizingInput {
                page,
                l2_size: if has_ratio { ratio } else { L2Size::Gb(gb) },
                group_segment: segment,
                ..wanted(1 << tp_shift)
            };
            let hugepages = HugePageCount::of(page, if is_large { pages >> 9 } else { pages });
            let capacity = HostCapacity { memory, hugepages, hugepages_max: if is_fixed { hugepages } else { ANY } };
            let carries = |units: u64| {
                let sized = match searched {
                    SearchedSizes::Balanced => {
                        let bytes = (units * GB) << tp_shift;
                        SizingInput { l2_size: L2Size::Gb(units), group_segment: (bytes >> 30).max(1) << 30, ..wanted.clone() }
                    }
                    SearchedSizes::L2 => SizingInput { l2_size: L2Size::Gb(units), ..wanted.clone() },
                    SearchedSizes::Segment => SizingInput { group_segment: units << 30, ..wanted.clone() },
                };
                let need = need(&sized).unwrap();
                let missing = need.most.bytes().saturating_sub(hugepages.bytes());
                let rank_segment = sized.group_segment >> tp_shift;
                let is_accepted = !is_regular || rank_segment == 0 || rank_segment >= 16 << 20;
                is_accepted
                    && (!is_fixed || missing == 0)
                    && missing + u128::from(need.memory_bytes()) <= u128::from(memory)
            };
            match fit(&wanted, searched, &capacity).unwrap() {
                FitResult::Largest(found) => {
                    let units = match (searched, found.l2_size) {
                        (SearchedSizes::Segment, _) => found.group_segment >> 30,
                        (_, L2Size::Gb(units)) => units,
                        (_, L2Size::Ratio { .. } | L2Size::Auto { .. }) => 0,
                    };
                    prop_assert!(carries(units) && !carries(units + 1), "{found:?}");
                }
                FitResult::Nothing { .. } => prop_assert!(!carries(1) && !carries(2)),
            }
        }
    }
}
