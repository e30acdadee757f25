//! The memory that a deployment needs on its fullest host: per rank, per NUMA node, per host.

use crate::plan::SizingError;
use crate::plan::client::{
    ClientMemory, ClientSizes, HugePageCount, LOCAL_BUFFER_BYTES, PLAIN_SEGMENT_BYTES_MIN, client,
};
use crate::plan::error::narrow;
use crate::plan::guard;
use crate::plan::host_pool::HostPool;
use crate::plan::l2::{L2Memory, ValueRange, l2};
use crate::plan::sizing_input::{REGULAR_PAGE_BYTES, SizingInput};

/// The memory that one rank of a pipeline stage needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RankMemory {
    pub stage: u64,
    /// The rank's L2 pools; empty if the model's geometry is unknown.
    pub pools: Vec<HostPool>,
    /// Whether the sizes of single pools are estimates, because they depend on the device's pools.
    pub is_estimate: bool,
    /// Size of the rank's largest L2 pool, in bytes. SGLang's startup memory check applies to each
    /// pool.
    pub largest: ValueRange,
    /// Size of all L2 pools, in bytes.
    pub l2: ValueRange,
    /// Number of L2 buffers. Each one is registered with every NIC.
    pub buffers: u64,
    /// Huge pages for L2; 0 without huge pages.
    pub l2_pages: ValueRange,
    /// The memory of the rank's store client.
    pub client: ClientMemory,
    /// Bytes that the process pins when it registers memory with NICs; the minimum RLIMIT_MEMLOCK.
    pub pinned: ValueRange,
    /// Memory regions per NIC.
    pub regions: u64,
}

/// The regular memory on the fullest host of a deployment without huge pages, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegularMemory {
    /// L2 of all ranks, including side pools.
    pub l2: ValueRange,
    /// Segments and local buffers of all ranks.
    pub clients: u64,
    /// Segments and local buffers of the store services.
    pub services: u64,
    /// The part of the segments that is bound to each NIC node.
    pub per_nic_node: u64,
    /// What must be available before SGLang and the services start: their memory, and the reserve
    /// of SGLang's startup check. A rank passes the check only if the memory suffices for L2 of all
    /// ranks.
    pub needed: ValueRange,
    /// What must be available for the check of a rank that allocates its L2 after all others. The
    /// check then counts their L2 twice: as used memory, and as a requirement.
    pub needed_by_last_rank: u64,
}

/// The memory that the deployment needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryNeed {
    /// One rank of each pipeline stage.
    pub ranks: Vec<RankMemory>,
    /// One rank's segment size before rounding, in bytes.
    pub rank_segment: u64,
    /// Ranks on the fullest host.
    pub ranks_on_host: u64,
    /// Minimum number of huge pages needed on the fullest host.
    pub least: HugePageCount,
    /// Maximum number of huge pages needed on the fullest host.
    pub most: HugePageCount,
    /// How many of the pages in `most` are bound to each NIC node.
    pub pages_per_nic_node: u64,
    /// Huge pages for the store services, included in `least` and `most`.
    pub service_pages: HugePageCount,
    /// Regular memory that must be available to pass SGLang's startup memory check, in bytes.
    pub guard_bytes: u64,
    /// The memory of a deployment without huge pages; `None` with huge pages.
    pub regular: Option<RegularMemory>,
    /// Size of a segment that the store rejects, in bytes: without huge pages, the minimum is
    /// [`PLAIN_SEGMENT_BYTES_MIN`].
    pub rejected_segment: Option<u64>,
    /// Bytes that the ranks on all hosts and the store services contribute to the store.
    pub mounted: u64,
}

/// Computes the memory that the deployment `wanted` needs.
///
/// # Errors
/// SGLang or the store rejects the sizes, or a value overflows.
pub fn need(wanted: &SizingInput) -> Result<MemoryNeed, SizingError> {
    let layout = &wanted.layout;
    let divisor = layout.attention_tp() * layout.pp();
    let rank_segment = wanted.group_segment / divisor;
    let of = |segment, local_buffer, arena, nic_nodes| {
        let page = wanted.page;
        let default_page = wanted.default_page;
        client(&ClientSizes { segment, local_buffer, arena, page, default_page, nic_nodes })
    };
    let own = of(rank_segment, LOCAL_BUFFER_BYTES, wanted.arena, wanted.nic_nodes)?;
    let ranks = l2(wanted)?
        .into_iter()
        .zip(0..)
        .map(|(size, stage)| rank(stage, size, own, wanted))
        .collect::<Result<Vec<RankMemory>, SizingError>>()?;
    let services = wanted.services;
    let service = of(services.segment, services.local_buffer, 0, wanted.nic_nodes)?;
    let times = |pages: HugePageCount, n: u64| {
        let too_large = SizingError::TooLarge { what: "the number of huge pages" };
        let mib2 = pages.mib2.checked_mul(n).ok_or(too_large.clone())?;
        Ok(HugePageCount { mib2, gib1: pages.gib1.checked_mul(n).ok_or(too_large)? })
    };
    let service_pages = times(service.pages, services.count)?;
    let mut fullest: Option<HostTotal> = None;
    for host in 0..layout.nnodes() {
        let mut least = service_pages;
        let mut most = service_pages;
        let mut l2 = ValueRange::default();
        let stages = layout.stages_of_host(host);
        for &stage in &stages {
            // `ranks` has one entry per stage by construction.
            let Some(rank) = usize::try_from(stage).ok().and_then(|i| ranks.get(i)) else { continue };
            least = least.plus(own.pages)?.plus(HugePageCount::of(wanted.page, rank.l2_pages.least))?;
            most = most.plus(own.pages)?.plus(HugePageCount::of(wanted.page, rank.l2_pages.most))?;
            // The kernel provides whole pages.
            let whole = |bytes: u64| bytes.div_ceil(REGULAR_PAGE_BYTES).saturating_mul(REGULAR_PAGE_BYTES);
            // Each buffer has its own.
            let more = rank.buffers.saturating_sub(1).saturating_mul(REGULAR_PAGE_BYTES);
            let rank_l2 = rank.l2.map(|bytes| whole(bytes).saturating_add(more));
            l2 = ValueRange { least: sum(l2.least, rank_l2.least)?, most: sum(l2.most, rank_l2.most)? };
        }
        let total = HostTotal { least, most, l2, ranks: stages.len() as u64 };
        let bytes = |total: &HostTotal| total.most.bytes() + u128::from(total.l2.most);
        if fullest.as_ref().is_none_or(|before| bytes(&total) > bytes(before)) {
            fullest = Some(total);
        }
    }
    let HostTotal { least, most, l2, ranks: ranks_on_host } = fullest.unwrap_or_default();
    let largest = ValueRange {
        least: ranks.iter().map(|rank| rank.largest.least).max().unwrap_or(0),
        most: ranks.iter().map(|rank| rank.largest.most).max().unwrap_or(0),
    };
    let guard_bytes = guard::needed(largest.most, layout.guard_ranks())?;
    let regular = match wanted.uses_hugepages() {
        true => None,
        false => {
            let clients = product(own.regular_bytes, ranks_on_host)?;
            let services_bytes = product(service.regular_bytes, services.count)?;
            let needed = |l2: u64, largest: u64| {
                let guarded = guard::needed(largest, layout.guard_ranks())?;
                sum(guarded.max(sum(sum(l2, clients)?, guard::RESERVE_BYTES)?), services_bytes)
            };
            let per_node = product(own.regular_per_nic_node, ranks_on_host)?;
            let others = l2.most.saturating_sub(largest.most);
            Some(RegularMemory {
                l2,
                clients,
                services: services_bytes,
                per_nic_node: sum(per_node, product(service.regular_per_nic_node, services.count)?)?,
                needed: ValueRange { least: needed(l2.least, largest.least)?, most: needed(l2.most, largest.most)? },
                needed_by_last_rank: sum(sum(guard_bytes, others)?, sum(clients, services_bytes)?)?,
            })
        }
    };
    let is_rejected = |segment: &u64| regular.is_some() && (1..PLAIN_SEGMENT_BYTES_MIN).contains(segment);
    let of_services = if services.count > 0 { services.segment } else { 0 };
    let mounted = u128::from(own.mounted) * u128::from(divisor) * u128::from(layout.groups());
    let offered = mounted + u128::from(service.mounted) * u128::from(services.count);
    let spread = own.pages_per_nic_node * ranks_on_host + service.pages_per_nic_node * services.count;
    Ok(MemoryNeed {
        ranks,
        rank_segment,
        ranks_on_host,
        least,
        most,
        pages_per_nic_node: spread,
        service_pages,
        guard_bytes,
        regular,
        rejected_segment: [rank_segment, of_services].into_iter().find(is_rejected),
        mounted: narrow(offered, "the total segment size")?,
    })
}

/// What the ranks and services on one host need.
#[derive(Clone, Copy, Debug, Default)]
struct HostTotal {
    least: HugePageCount,
    most: HugePageCount,
    l2: ValueRange,
    ranks: u64,
}

fn sum(a: u64, b: u64) -> Result<u64, SizingError> {
    a.checked_add(b).ok_or(SizingError::TooLarge { what: "the memory" })
}

fn product(a: u64, b: u64) -> Result<u64, SizingError> {
    a.checked_mul(b).ok_or(SizingError::TooLarge { what: "the memory" })
}

impl MemoryNeed {
    /// Regular memory that must be available before SGLang starts, in bytes, at most: with huge
    /// pages for SGLang's check only, without them for everything.
    pub fn memory_bytes(&self) -> u64 {
        self.regular.map_or(self.guard_bytes, |regular| regular.needed.most)
    }

    /// Distributes the maximum number of `page`-sized pages over `nodes` (NUMA nodes with memory).
    /// Pages bound to NIC nodes stay on those nodes. The rest are split evenly, because ranks are
    /// spread over nodes along with their GPUs. The first nodes get the remainder.
    pub fn per_node(&self, page: u64, nodes: &[u32], nic_nodes: &[u32]) -> Vec<(u32, u64)> {
        let bound = |node: &u32| if nic_nodes.contains(node) { self.pages_per_nic_node } else { 0 };
        let all_bound: u64 = nodes.iter().map(bound).sum();
        let rest = self.most.count(page).saturating_sub(all_bound);
        let count = (nodes.len() as u64).max(1);
        let even = |place: usize| rest / count + u64::from((place as u64) < rest % count);
        nodes.iter().enumerate().map(|(place, node)| (*node, bound(node) + even(place))).collect()
    }
}

fn rank(stage: u64, l2: L2Memory, client: ClientMemory, wanted: &SizingInput) -> Result<RankMemory, SizingError> {
    let parts = |bytes: u64| bytes.div_ceil(wanted.region.max(1));
    let beside = sum(client.mounted, LOCAL_BUFFER_BYTES)?;
    Ok(RankMemory {
        stage,
        pools: l2.pools,
        is_estimate: l2.is_estimate,
        largest: l2.largest,
        l2: l2.bytes,
        buffers: l2.buffers,
        l2_pages: l2.huge_pages,
        client,
        pinned: ValueRange { least: sum(l2.bytes.least, beside)?, most: sum(l2.bytes.most, beside)? },
        regions: l2.regions + parts(LOCAL_BUFFER_BYTES) + parts(client.mounted),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::client::{GIB1, MIB2};
    use crate::plan::host_pool::L2Size;
    use crate::plan::layout::ParallelLayout;
    use crate::plan::models::{self, KnownModel};
    use crate::plan::sizing_input::{REGION_BYTES, Services};
    use proptest::prelude::*;

    fn wanted(model: Option<&str>, tp: u64, gb: u64, segment: u64, arena: u64) -> SizingInput {
        SizingInput {
            geometry: model.map(|name| models::by_name(name).unwrap().geometry.clone()),
            group_segment: segment,
            arena,
            ..SizingInput::new(ParallelLayout::new(tp, 1, 1, false, 1).unwrap(), L2Size::Gb(gb))
        }
    }

    #[test]
    fn upstreams_example_needs_other_page_counts_than_documented() {
        let four = need(&wanted(Some("Qwen3-32B"), 4, 64, 8 << 30, 0)).unwrap();
        assert_eq!((four.rank_segment, four.ranks[0].l2_pages.most), (2 << 30, 30_518));
        assert_eq!(four.most.mib2, 126_200);
        assert_eq!(four.least, four.most);
        let arena = need(&wanted(Some("Qwen3-32B"), 4, 64, 8 << 30, 56 << 30)).unwrap();
        assert_eq!(arena.most.mib2, 236_760);
    }

    #[test]
    fn a_buffer_above_the_largest_region_is_registered_in_parts() {
        let base = wanted(Some("Qwen3-32B"), 4, 64, 8 << 30, 0);
        let regions = |region| need(&SizingInput { region, ..base.clone() }).unwrap().ranks[0].regions;
        // L2, the local buffer and the 2 GiB segment.
        assert_eq!((regions(REGION_BYTES), regions(1 << 30)), (3, 60 + 1 + 2));
        let sparse = SizingInput { region: 1 << 30, ..wanted(Some("DeepSeek-V3.2"), 4, 64, 0, 0) };
        assert_eq!(need(&sparse).unwrap().ranks[0].regions, 60 + 7 + 1);
    }

    #[test]
    fn without_a_model_the_bounds_cover_every_known_model() {
        let bounds = need(&wanted(None, 4, 64, 8 << 30, 0)).unwrap();
        let is_possible =
            |model: &&KnownModel| model.geometry.compressed.is_none() && model.geometry.check_tp(4).is_ok();
        let possible: Vec<&KnownModel> = models::models().iter().filter(is_possible).collect();
        assert!(possible.len() > 90, "{}", possible.len());
        for model in possible {
            let exact = need(&wanted(Some(&model.names[0]), 4, 64, 8 << 30, 0)).unwrap();
            assert!(bounds.least.mib2 <= exact.least.mib2 && exact.most.mib2 <= bounds.most.mib2, "{model:?}");
        }
    }

    #[test]
    fn without_huge_pages_l2_segments_and_services_are_regular_memory() {
        let services = Services { count: 2, segment: 3_355_443_200, local_buffer: 1 << 30 };
        let regular =
            SizingInput { services, page: REGULAR_PAGE_BYTES, ..wanted(Some("Qwen3-32B"), 4, 64, 8 << 30, 56 << 30) };
        let need = need(&regular).unwrap();
        assert_eq!((need.most, need.ranks[0].l2_pages.most), (HugePageCount::default(), 0));
        let found = need.regular.unwrap();
        let l2 = 4 * 64_000_884_736u64;
        assert_eq!((found.l2, found.clients), (ValueRange::exactly(l2), 4 * ((2 << 30) + LOCAL_BUFFER_BYTES)));
        assert_eq!(found.services, 2 * (3_355_443_200 + (1 << 30)));
        assert_eq!(found.needed.most, l2 + found.clients + found.services + guard::RESERVE_BYTES);
        assert_eq!((need.memory_bytes(), need.guard_bytes), (found.needed.most, l2 + guard::RESERVE_BYTES));
        // The last of 4 ranks: 3 others are allocated, and 4 are required.
        assert_eq!(found.needed_by_last_rank, found.needed.most + l2 / 4 * 3);
    }

    #[test]
    fn without_huge_pages_a_small_segment_is_rejected() {
        let rejected = |page, segment, services| {
            let base = wanted(Some("Qwen3-32B"), 4, 1, segment, 0);
            need(&SizingInput { page, services, ..base.clone() }).unwrap().rejected_segment
        };
        let none = Services::default();
        assert_eq!(rejected(REGULAR_PAGE_BYTES, 60 << 20, none), Some(15 << 20));
        assert_eq!(rejected(MIB2, 60 << 20, none), None);
        assert_eq!(rejected(REGULAR_PAGE_BYTES, 64 << 20, none), None);
        assert_eq!(rejected(REGULAR_PAGE_BYTES, 0, none), None);
        let services = Services { count: 1, segment: 1 << 20, local_buffer: 0 };
        assert_eq!(rejected(REGULAR_PAGE_BYTES, 0, services), Some(1 << 20));
    }

    #[test]
    fn stages_of_unequal_size_need_the_check_of_the_largest() {
        let layout = ParallelLayout::new(1, 4, 1, false, 1).unwrap();
        let base = wanted(Some("Qwen3-Coder-480B"), 1, 10, 0, 0);
        let need = need(&SizingInput { layout, page: REGULAR_PAGE_BYTES, ..base.clone() }).unwrap();
        let regular = need.regular.unwrap();
        assert!(regular.l2.most + regular.clients + guard::RESERVE_BYTES < need.guard_bytes);
        assert_eq!(regular.needed.most, need.guard_bytes);
    }

    #[test]
    fn a_service_is_not_divided_and_includes_its_buffer() {
        let services = Services { count: 2, segment: 3_355_443_200, local_buffer: 1 << 30 };
        let with = need(&SizingInput { services, ..wanted(Some("Qwen3-32B"), 4, 64, 8 << 30, 0) }).unwrap();
        assert_eq!(with.most.mib2, 126_200 + 2 * (1600 + 512));
        assert_eq!(with.mounted, (8 << 30) + 2 * 3_355_443_200);
    }

    #[test]
    fn dp_attention_divides_by_its_own_tp() {
        let layout = ParallelLayout::new(8, 1, 4, true, 1).unwrap();
        let need = need(&SizingInput { layout, ..wanted(Some("DeepSeek-V3"), 8, 30, 4 << 30, 0) }).unwrap();
        assert_eq!((need.rank_segment, need.mounted, need.ranks_on_host), (2 << 30, 16 << 30, 8));
    }

    #[test]
    fn pages_are_spread_over_nodes_except_those_of_nic_nodes() {
        let spread = SizingInput { nic_nodes: 2, ..wanted(Some("Qwen3-32B"), 4, 1, 8 << 30, 0) };
        let need = need(&spread).unwrap();
        assert_eq!(need.pages_per_nic_node, 4 * 512);
        let nodes = need.per_node(MIB2, &[0, 1, 2, 3], &[0, 2]);
        assert_eq!(nodes.iter().map(|(_, pages)| pages).sum::<u64>(), need.most.mib2);
        assert_eq!(nodes[0].1 - nodes[1].1, 2_048);
    }

    #[test]
    fn a_model_with_sliding_layers_gets_bounds() {
        let need = need(&wanted(Some("gpt-oss-120b"), 1, 10, 4 << 30, 0)).unwrap();
        assert!(need.least.mib2 < need.most.mib2 && need.most.mib2 - need.least.mib2 <= 4);
    }

    proptest! {
        #[test]
        fn larger_sizes_never_need_less(
            tp in prop::sample::select(vec![1u64, 2, 4, 8, 16, 32]), gb in 1u64..10_000, segment in 0u64..1 << 42,
            arena in 0u64..1 << 40, page in 1u64..1 << 10, large: bool
        ) {
            let page_bytes = if large { GIB1 } else { MIB2 };
            let base = SizingInput {
                page_size: page, page: page_bytes,
                ..wanted(Some("Llama-3.1-8B"), tp, gb, segment, arena)
            };
            let regular = SizingInput { page: REGULAR_PAGE_BYTES, ..base.clone() };
            let more = SizingInput { l2_size: L2Size::Gb(gb + 1), group_segment: segment + 1, ..regular.clone() };
            prop_assert!(need(&more).unwrap().memory_bytes() >= need(&regular).unwrap().memory_bytes());
            prop_assert!(need(&regular).unwrap().memory_bytes() >= need(&regular).unwrap().guard_bytes);
            let one = need(&base).unwrap();
            let two = need(&SizingInput { l2_size: L2Size::Gb(gb + 1), ..base.clone() }).unwrap();
            prop_assert!(two.most.bytes() >= one.most.bytes());
            prop_assert!(one.least.bytes() <= one.most.bytes());
            prop_assert!(one.ranks[0].l2_pages.most * page_bytes >= one.ranks[0].l2.most);
        }

        #[test]
        fn arbitrary_sizes_do_not_panic(
            tp in 0u64..70_000, gb: u64, segment: u64, arena: u64, page: u64, large: bool
        ) {
            if let Ok(layout) = ParallelLayout::new(tp, 1, 1, false, 1) {
                let page_bytes = if large { GIB1 } else { MIB2 };
                let all = wanted(Some("Llama-3.1-8B"), 1, gb, segment, arena);
                let _ = need(&SizingInput { layout, page_size: page, page: REGULAR_PAGE_BYTES, ..all.clone() });
                let _ = need(&SizingInput { layout, page_size: page, page: page_bytes, ..all });
            }
        }
    }
}
