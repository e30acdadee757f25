//! All that a deployment takes on its fullest host: per rank, per NUMA node, per host.

use crate::engine::plan::PlanError;
use crate::engine::plan::client::{Client, ClientWish, LOCAL_BUFFER_BYTES, Pages, client};
use crate::engine::plan::error::narrow;
use crate::engine::plan::geometry::{CacheType, Geometry};
use crate::engine::plan::guard;
use crate::engine::plan::host_pool::{HostPool, Wish};
use crate::engine::plan::l2::{Bounds, L2, l2};
use crate::engine::plan::layout::Layout;

/// Stand-alone store services on the same host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Services {
    pub count: u64,
    /// Segment of each, bytes. Not divided.
    pub segment: u64,
    /// Local buffer of each, bytes.
    pub local_buffer: u64,
}

/// `MC_MAX_MR_SIZE` where it is not set, 1 TiB; a device may take less.
///
/// Source: `mooncake/mooncake-transfer-engine/include/config.h`, `max_mr_size`.
pub const REGION_BYTES: u64 = 1 << 40;

/// What is to be started.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Deployment {
    pub layout: Layout,
    /// The model's cache, if known.
    pub geometry: Option<Geometry>,
    /// The element type of the cache.
    pub cache: CacheType,
    /// Tokens of a page.
    pub page_size: u64,
    /// The size of L2.
    pub wish: Wish,
    /// `MOONCAKE_GLOBAL_SEGMENT_SIZE`: of one TP x PP group.
    pub group_segment: u64,
    /// Arena per process, bytes; 0 for none.
    pub arena: u64,
    /// Bytes of a huge page.
    pub page: u64,
    /// Bytes of the system's default huge page.
    pub default_page: u64,
    /// NUMA nodes with NICs, for RDMA; 0 otherwise.
    pub nic_nodes: u64,
    /// The most bytes of a memory region (`MC_MAX_MR_SIZE`): larger buffers are registered in parts.
    pub region: u64,
    /// Store services beside the ranks.
    pub services: Services,
}

/// What a rank of one pipeline stage takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rank {
    pub stage: u64,
    /// Its pool, where the model says enough for one.
    pub pool: Option<HostPool>,
    /// Bytes of its largest L2 buffer: what SGLang's guard looks at.
    pub buffer: Bounds,
    /// Bytes of L2, side pools included.
    pub l2: Bounds,
    /// Buffers of L2: the memory regions that are registered for it with every NIC.
    pub buffers: u64,
    /// Huge pages of L2.
    pub l2_pages: Bounds,
    /// The store's client in the rank.
    pub client: Client,
    /// Bytes that the process pins when NICs register them: the least RLIMIT_MEMLOCK.
    pub pinned: Bounds,
    /// Memory regions per NIC.
    pub regions: u64,
}

/// What the deployment takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Need {
    /// A rank of each pipeline stage.
    pub ranks: Vec<Rank>,
    /// Bytes of one rank's segment before rounding.
    pub rank_segment: u64,
    /// Ranks on the fullest host.
    pub ranks_on_host: u64,
    /// Huge pages of the fullest host, at least.
    pub least: Pages,
    /// The same, at most.
    pub most: Pages,
    /// Of the most, those that are bound to each NIC node.
    pub pages_per_nic_node: u64,
    /// Huge pages of the store services, contained in both.
    pub service_pages: Pages,
    /// Ordinary memory that SGLang's guard wants to see available.
    pub guard_bytes: u64,
    /// Bytes that all ranks of all hosts offer to the store.
    pub mounted: u64,
}

/// What `wanted` takes.
///
/// # Errors
/// SGLang or the store refuses it, or figures are absurd.
pub fn need(wanted: &Deployment) -> Result<Need, PlanError> {
    let layout = &wanted.layout;
    let divisor = layout.attention_tp() * layout.pp();
    let rank_segment = wanted.group_segment / divisor;
    let of = |segment, local_buffer, arena, nic_nodes| {
        let (page, default_page) = (wanted.page, wanted.default_page);
        client(&ClientWish { segment, local_buffer, arena, page, default_page, nic_nodes })
    };
    let own = of(rank_segment, LOCAL_BUFFER_BYTES, wanted.arena, wanted.nic_nodes)?;
    let ranks = l2(wanted)?
        .into_iter()
        .zip(0..)
        .map(|(size, stage)| rank(stage, size, own, wanted))
        .collect::<Result<Vec<Rank>, PlanError>>()?;
    let services = wanted.services;
    let service = of(services.segment, services.local_buffer, 0, wanted.nic_nodes)?;
    let times = |pages: Pages, n: u64| {
        let too_large = PlanError::TooLarge { what: "the huge pages" };
        let mib2 = pages.mib2.checked_mul(n).ok_or(too_large.clone())?;
        Ok(Pages { mib2, gib1: pages.gib1.checked_mul(n).ok_or(too_large)? })
    };
    let service_pages = times(service.pages, services.count)?;
    let mut fullest: Option<(Pages, Pages, u64)> = None;
    for host in 0..layout.nnodes() {
        let (mut least, mut most) = (service_pages, service_pages);
        let stages = layout.stages_of_host(host);
        for &stage in &stages {
            // Stages are as many as ranks, by construction.
            let Some(rank) = usize::try_from(stage).ok().and_then(|i| ranks.get(i)) else { continue };
            least = least.plus(own.pages)?.plus(Pages::of(wanted.page, rank.l2_pages.least))?;
            most = most.plus(own.pages)?.plus(Pages::of(wanted.page, rank.l2_pages.most))?;
        }
        if fullest.is_none_or(|(_, before, _)| most.bytes() > before.bytes()) {
            fullest = Some((least, most, stages.len() as u64));
        }
    }
    let (least, most, ranks_on_host) = fullest.unwrap_or_default();
    let buffer = ranks.iter().map(|rank| rank.buffer.most).max().unwrap_or(0);
    let mounted = u128::from(own.mounted) * u128::from(divisor) * u128::from(layout.groups());
    let offered = mounted + u128::from(service.mounted) * u128::from(services.count);
    let spread = own.pages_per_nic_node * ranks_on_host + service.pages_per_nic_node * services.count;
    Ok(Need {
        ranks,
        rank_segment,
        ranks_on_host,
        least,
        most,
        pages_per_nic_node: spread,
        service_pages,
        guard_bytes: guard::needed(buffer, layout.guard_ranks())?,
        mounted: narrow(offered, "the segments")?,
    })
}

impl Need {
    /// The most pages of `page` bytes on each of `nodes` (numbers of NUMA nodes with memory): what is bound to NIC nodes there, and
    /// the rest evenly, since ranks are spread over nodes with their GPUs. More for the first where it does not divide.
    pub fn per_node(&self, page: u64, nodes: &[u32], nic_nodes: &[u32]) -> Vec<(u32, u64)> {
        let bound = |node: &u32| if nic_nodes.contains(node) { self.pages_per_nic_node } else { 0 };
        let all_bound: u64 = nodes.iter().map(bound).sum();
        let rest = self.most.count(page).saturating_sub(all_bound);
        let count = (nodes.len() as u64).max(1);
        let even = |place: usize| rest / count + u64::from((place as u64) < rest % count);
        nodes.iter().enumerate().map(|(place, node)| (*node, bound(node) + even(place))).collect()
    }
}

fn rank(stage: u64, l2: L2, client: Client, wanted: &Deployment) -> Result<Rank, PlanError> {
    let page = wanted.page;
    let parts = |bytes: u64| bytes.div_ceil(wanted.region.max(1));
    // Without a model side pools may be none; a buffer is a region all the same.
    let side = (l2.buffers - 1).max(if l2.buffers > 1 { parts(l2.side.most) } else { 0 });
    let sum = |a: u64, b: u64| a.checked_add(b).ok_or(PlanError::TooLarge { what: "a rank" });
    let both = Bounds { least: sum(l2.buffer.least, l2.side.least)?, most: sum(l2.buffer.most, l2.side.most)? };
    let (buffer_pages, side_pages) = (l2.buffer.map(|b| b.div_ceil(page)), l2.side.map(|b| b.div_ceil(page)));
    let beside = sum(client.mounted, LOCAL_BUFFER_BYTES)?;
    Ok(Rank {
        stage,
        pool: l2.pool,
        buffer: l2.buffer,
        l2: both,
        buffers: l2.buffers,
        l2_pages: Bounds { least: buffer_pages.least + side_pages.least, most: buffer_pages.most + side_pages.most },
        client,
        pinned: Bounds { least: sum(both.least, beside)?, most: sum(both.most, beside)? },
        regions: parts(l2.buffer.most) + side + parts(LOCAL_BUFFER_BYTES) + parts(client.mounted),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::plan::client::{GIB1, MIB2};
    use crate::engine::plan::models;
    use proptest::prelude::*;

    fn wanted(model: Option<&str>, tp: u64, gb: u64, segment: u64, arena: u64) -> Deployment {
        Deployment {
            layout: Layout::new(tp, 1, 1, false, 1).unwrap(),
            geometry: model.map(|name| models::by_name(name).unwrap().geometry),
            cache: CacheType::Half,
            page_size: 64,
            wish: Wish::Gb(gb),
            group_segment: segment,
            arena,
            page: MIB2,
            default_page: MIB2,
            nic_nodes: 0,
            region: REGION_BYTES,
            services: Services::default(),
        }
    }

    #[test]
    fn upstreams_example_takes_other_pages_than_upstream_says() {
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
        let regions = |region| need(&Deployment { region, ..base }).unwrap().ranks[0].regions;
        // L2, the buffer and the segment of 2 GiB.
        assert_eq!((regions(REGION_BYTES), regions(1 << 30)), (3, 60 + 1 + 2));
        let sparse = Deployment { region: 1 << 30, ..wanted(Some("DeepSeek-V3.2"), 4, 64, 0, 0) };
        assert_eq!(need(&sparse).unwrap().ranks[0].regions, 60 + 7 + 1);
    }

    #[test]
    fn without_a_model_there_are_bounds_and_every_known_model_is_between_them() {
        let bounds = need(&wanted(None, 4, 64, 8 << 30, 0)).unwrap();
        for model in models::MODELS.iter().filter(|model| model.geometry.window_layers == 0) {
            let exact = need(&wanted(Some(model.names[0]), 4, 64, 8 << 30, 0)).unwrap();
            assert!(bounds.least.mib2 <= exact.least.mib2 && exact.most.mib2 <= bounds.most.mib2, "{model:?}");
        }
    }

    #[test]
    fn a_service_is_not_divided_and_counts_with_its_buffer() {
        let services = Services { count: 2, segment: 3_355_443_200, local_buffer: 1 << 30 };
        let with = need(&Deployment { services, ..wanted(Some("Qwen3-32B"), 4, 64, 8 << 30, 0) }).unwrap();
        assert_eq!(with.most.mib2, 126_200 + 2 * (1600 + 512));
        assert_eq!(with.mounted, (8 << 30) + 2 * 3_355_443_200);
    }

    #[test]
    fn dp_attention_divides_by_its_own_tp_and_every_group_offers_the_segment() {
        let layout = Layout::new(8, 1, 4, true, 1).unwrap();
        let need = need(&Deployment { layout, ..wanted(Some("DeepSeek-V3"), 8, 30, 4 << 30, 0) }).unwrap();
        assert_eq!((need.rank_segment, need.mounted, need.ranks_on_host), (2 << 30, 16 << 30, 8));
    }

    #[test]
    fn pages_are_spread_over_nodes_and_those_of_nic_nodes_stay_there() {
        let spread = Deployment { nic_nodes: 2, ..wanted(Some("Qwen3-32B"), 4, 1, 8 << 30, 0) };
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
        fn no_deployment_panics_and_more_never_takes_less(
            tp in 0u64..70_000, gb in 0u64..10_000_000, segment: u64, arena: u64, page in 0u64..1 << 20, large: bool
        ) {
            let Ok(layout) = Layout::new(tp, 1, 1, false, 1) else { return Ok(()) };
            let page_bytes = if large { GIB1 } else { MIB2 };
            let base = Deployment {
                layout, page_size: page, page: page_bytes, arena,
                ..wanted(Some("Llama-3.1-8B"), 1, gb, segment, 0)
            };
            if let Ok(one) = need(&base) {
                let more = Deployment { wish: Wish::Gb(gb.saturating_add(1)), ..base };
                if let Ok(two) = need(&more) {
                    prop_assert!(two.most.bytes() >= one.most.bytes());
                }
                prop_assert!(one.least.bytes() <= one.most.bytes());
                prop_assert!(one.ranks[0].l2_pages.most * page_bytes >= one.ranks[0].l2.most);
            }
        }
    }
}
