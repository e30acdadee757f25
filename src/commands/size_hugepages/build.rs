//! Builds the report from the request and the host.

use crate::commands::cli::error::Failure;
use crate::commands::size_hugepages::Args;
use crate::commands::size_hugepages::beside::{kep74, upstream_row};
use crate::commands::size_hugepages::host::TargetHost;
use crate::commands::size_hugepages::max_fit::FittedSizes;
use crate::commands::size_hugepages::paste;
use crate::commands::size_hugepages::report::{
    NodeRow, ObjectRow, PoolRow, RangeRow, RankRow, RegularRow, SizeRow, SizingReport, SizingSummary, StateRow,
    TierRow, UnifiedRow,
};
use crate::commands::size_hugepages::request::SizingRequest;
use crate::commands::size_hugepages::summary::summary;
use crate::commands::size_hugepages::verdict::{FitReason, GuardRow, verdict};
use crate::engine::base::ByteSize;
use crate::engine::plan::client::{ArenaUse, PLAIN_SEGMENT_BYTES_MIN};
use crate::engine::plan::geometry::{CacheType, Geometry, IndexRow, PoolKind};
use crate::engine::plan::host_pool::{self, HostPool, L2Size};
use crate::engine::plan::live_prefixes::{size_for, state_slots};
use crate::engine::plan::need::{MemoryNeed, RankMemory, need};
use crate::engine::plan::tiers::{self, StoredFor, StoredObjects, StoredPage, TierCapacity};
use crate::engine::sys::hugetlb::NodePool;

impl SizingReport {
    /// Computes the report. `found` are the sizes that `--max-fit` has found.
    ///
    /// # Errors
    /// SGLang does not start the deployment, or a value overflows.
    pub(super) fn new(
        args: &Args,
        request: &SizingRequest,
        host: &TargetHost,
        found: Option<&FittedSizes>,
    ) -> Result<SizingReport, Failure> {
        let wanted = &request.wanted;
        let need = need(wanted)?;
        let stored = stored(request)?;
        let (objects, unified_objects) = objects(request)?;
        let selected_ratio = match &wanted.geometry {
            Some(geometry) => host_pool::selected_ratio(wanted, geometry)?,
            None => None,
        };
        let nodes = nodes(args, request, host, &need);
        let client = need.ranks.first().map(|rank| rank.client);
        let hicache_bytes = match wanted.l2_size {
            L2Size::Gb(gb) => Some(gb.saturating_mul(host_pool::GB)),
            L2Size::Ratio { .. } | L2Size::Auto { .. } => None,
        };
        let available_bytes = host.memory.map(|memory| memory.saturating_sub(host.to_reserve(&need.most)));
        let ranks = wanted.layout.guard_ranks();
        let guard = GuardRow { needed_bytes: need.guard_bytes, available_bytes, ranks };
        let (verdict, reasons) = verdict(args, host, &need, &guard);
        let page = host.pool.page;
        let to_reserve = to_reserve(host, &need, &nodes);
        let memory = need.memory_bytes();
        let uses_hugepages = wanted.uses_hugepages();
        let mut report = SizingReport {
            schema: "mcctl.size-hugepages/1",
            summary: SizingSummary::default(),
            sizes: request.sizes.iter().map(SizeRow::from).collect(),
            verdict,
            reasons,
            model: request.model.as_ref().map(|(name, _)| name.clone()),
            model_source: request.model.as_ref().map(|(_, source)| source.clone()),
            max_fit: found.copied(),
            hugepage_bytes: if uses_hugepages { page } else { 0 },
            regular: need.regular.map(|regular| RegularRow {
                l2_bytes: regular.l2.into(),
                clients_bytes: regular.clients,
                services_bytes: regular.services,
                nic_node_bytes: regular.per_nic_node,
                needed_bytes: regular.needed.into(),
                last_rank_bytes: regular.needed_by_last_rank,
                available_bytes: host.memory,
            }),
            ranks_on_host: need.ranks_on_host,
            hicache_bytes,
            group_segment_bytes: wanted.group_segment,
            rank_segment_bytes: need.rank_segment,
            rank_mounted_bytes: client.map_or(0, |client| client.mounted),
            arena: match (client, uses_hugepages) {
                (Some(client), true) => arena(client.arena),
                _ => "off: without huge pages, the store does not create an arena".to_owned(),
            },
            ranks: need.ranks.iter().map(|rank| row(rank, page)).collect(),
            service_hugepages: need.service_pages.count(page),
            host_hugepages: RangeRow { least: need.least.count(page), most: need.most.count(page) },
            host_other_hugepages: need.most.count(host.other.page),
            available_hugepages: host.pool.usable(),
            pool_pages: match nodes.iter().map(|node| node.target).fold(0, u64::saturating_add) {
                _ if nodes.is_empty() => host.pool_target(need.most.count(page)),
                total => total,
            },
            nodes,
            guard,
            tiers: tiers_of(args, request, &need, stored.as_ref()),
            objects,
            unified_objects,
            states: states(args, request)?,
            selected_ratio,
            object_bytes: stored.map(|page| page.object_bytes),
            upstream: upstream_row(args, &need, page),
            kep74: kep74(request, stored.as_ref()),
            store_segment_bytes: wanted.services.segment,
            store_local_buffer_bytes: wanted.services.local_buffer,
            region_bytes: wanted.region,
            host_bytes_min: u64::try_from(need.most.bytes()).unwrap_or(u64::MAX).saturating_add(memory),
            reservable: to_reserve > 0 && host.could_reserve(to_reserve, memory),
            pasteable: match uses_hugepages {
                true => host.can_reserve(to_reserve, memory),
                false => host.has_memory_here(memory),
            },
            commands: Vec::new(),
        };
        if uses_hugepages && need.rank_segment > 0 && need.rank_segment < PLAIN_SEGMENT_BYTES_MIN {
            report.reasons.push(FitReason::SmallSegment);
        }
        report.reasons.extend(model_caveats(args, request, &report));
        report.commands = paste::commands(args, &report);
        report.summary = summary(&report, host);
        Ok(report)
    }
}

/// Size in bytes of the huge pages that must still be reserved, so that each NUMA node has its
/// share.
fn to_reserve(host: &TargetHost, need: &MemoryNeed, nodes: &[NodeRow]) -> u64 {
    let missing = nodes.iter().map(|node| node.target.saturating_sub(node.total)).fold(0, u64::saturating_add);
    host.to_reserve(&need.most).max(missing.saturating_mul(host.pool.page))
}

/// Whether the host has the memory to reserve the share of each NUMA node.
pub(super) fn fits_nodes(args: &Args, request: &SizingRequest, host: &TargetHost, need: &MemoryNeed) -> bool {
    let bytes = to_reserve(host, need, &nodes(args, request, host, need));
    host.memory.is_some_and(|memory| memory >= bytes.saturating_add(need.memory_bytes()))
}

fn stored(request: &SizingRequest) -> Result<Option<StoredPage>, Failure> {
    let wanted = &request.wanted;
    let Some(geometry) = &wanted.geometry else { return Ok(None) };
    Ok(tiers::stored_page(wanted.page_size, geometry, &wanted.layout, wanted.cache)?)
}

fn row(rank: &RankMemory, page: u64) -> RankRow {
    let tokens = rank.pools.first().filter(|pool| pool.kind == PoolKind::Kv);
    let index = rank.pools.iter().find(|pool| pool.kind == PoolKind::Indexer);
    let if_known = |value: Option<u64>| value.or_else(|| tokens.map(|_| 0));
    RankRow {
        stage: rank.stage,
        token_bytes: tokens.map(|pool| pool.unit_bytes),
        index_token_bytes: if_known(index.map(|pool| pool.unit_bytes)),
        l2_tokens: tokens.map(|pool| pool.units),
        pools: rank.pools.iter().map(|pool| pool_row(pool, tokens.is_some())).collect(),
        pools_are_estimates: rank.is_estimate,
        l2_pages: tokens.map(|pool| pool.pages),
        side_bytes: if_known(index.map(HostPool::bytes)),
        l2_bytes: rank.l2.into(),
        l2_hugepages: rank.l2_pages.into(),
        client_hugepages: rank.client.pages.count(page),
        memlock_bytes: rank.pinned.into(),
        memory_regions_per_nic: rank.regions,
    }
}

fn pool_row(pool: &HostPool, has_tokens: bool) -> PoolRow {
    let unit = match pool.kind {
        PoolKind::Mamba => "slot",
        _ if has_tokens => "token",
        // The units of compressed pools are pages.
        _ => "page",
    };
    PoolRow {
        pool: pool.kind.name(),
        layers: pool.layers,
        unit,
        unit_bytes: pool.unit_bytes,
        units: pool.units,
        bytes: pool.bytes(),
    }
}

/// Caveats about the model's cache.
fn model_caveats(args: &Args, request: &SizingRequest, report: &SizingReport) -> Vec<FitReason> {
    let mut caveats = Vec::new();
    let geometry = request.wanted.geometry.as_ref();
    if report.ranks.iter().any(|rank| rank.pools_are_estimates) {
        let missing = if report.states.is_some() {
            "--device-pool-tokens and --device-mamba-slots"
        } else {
            "--device-pool-tokens"
        };
        caveats.push(FitReason::EstimatedPools { missing });
    }
    let is_sparse = geometry.is_some_and(Geometry::has_sparse_latent);
    if is_sparse && args.kv_cache_dtype == "auto" && request.wanted.cache == CacheType::Half {
        caveats.push(FitReason::AutoCacheOfSparseModel);
    }
    match geometry.and_then(|geometry| geometry.index) {
        Some(IndexRow::Scaled { tokens, .. }) if request.wanted.page_size != 64 * tokens => {
            caveats.push(FitReason::SparsePage { page: 64 * tokens, given: request.wanted.page_size });
        }
        Some(IndexRow::Keys { .. }) if request.wanted.cache != CacheType::Half => {
            caveats.push(FitReason::IndexDependsOnGpu);
        }
        _ => {}
    }
    let Some(states) = &report.states else { return caveats };
    if let Some(live) = states.live_prefixes.filter(|live| *live > states.prefixes) {
        let remedy = match states.live_prefixes_gb {
            Some(gb) if report.ranks.iter().any(|rank| rank.pools_are_estimates) => {
                format!("About --hicache-size {gb} keeps all of them")
            }
            Some(gb) => format!("--hicache-size {gb} keeps all of them"),
            None => "No size keeps all of them".to_owned(),
        };
        caveats.push(FitReason::StatesShort { prefixes: states.prefixes, live, remedy });
    }
    if let Some(device) = request.wanted.device.slots.filter(|device| states.slots < *device) {
        caveats.push(FitReason::SlotsBelowDevice { slots: states.slots, device });
    }
    caveats
}

/// The objects of the model in the store, and those under the unified key scheme.
fn objects(request: &SizingRequest) -> Result<(Vec<ObjectRow>, Option<UnifiedRow>), Failure> {
    let wanted = &request.wanted;
    let Some(geometry) = &wanted.geometry else { return Ok((Vec::new(), None)) };
    let all = tiers::stored_objects(wanted.page_size, geometry, &wanted.layout, wanted.cache)?;
    let row = |object: StoredObjects| ObjectRow {
        pool: object.pool.name(),
        suffix: object.suffix,
        stored_for: match object.stored_for {
            StoredFor::Page => "page",
            StoredFor::WindowPage => "window-page",
            StoredFor::Prefix => "prefix",
        },
        objects: object.objects,
        bytes: object.bytes,
    };
    let unified = tiers::unified_objects(wanted.page_size, geometry, &wanted.layout, wanted.cache)?;
    Ok((all.into_iter().map(row).collect(), unified.map(|(objects, bytes)| UnifiedRow { objects, bytes })))
}

fn states(args: &Args, request: &SizingRequest) -> Result<Option<StateRow>, Failure> {
    let wanted = &request.wanted;
    let Some(geometry) = &wanted.geometry else { return Ok(None) };
    let per_prefix = args.pools.per_prefix(args.conversation_tokens);
    let Some(slots) = state_slots(wanted, geometry, per_prefix)? else {
        if args.pools.live_prefixes.is_some() || args.pools.states_per_prefix.is_some() {
            return Err(Failure::usage("--live-prefixes and --states-per-prefix require a model with states"));
        }
        return Ok(None);
    };
    let live = args.pools.live_prefixes;
    let live_prefixes_gb = match live {
        Some(prefixes) => size_for(wanted, geometry, per_prefix, prefixes)?,
        None => None,
    };
    Ok(Some(StateRow {
        slot_bytes: slots.slot_bytes,
        slots: slots.slots,
        slots_per_prefix: slots.per_prefix,
        prefixes: slots.prefixes,
        live_prefixes: live,
        live_prefixes_gb,
    }))
}

fn arena(arena: ArenaUse) -> String {
    match arena {
        ArenaUse::Off => "off (recommended: with two allocations per process, an arena provides no benefit)".to_owned(),
        ArenaUse::Fits { unused: 0 } => "fits the local buffer and segment exactly; no benefit".to_owned(),
        ArenaUse::Fits { unused } => format!("fits the local buffer and segment; {} unused", ByteSize(unused)),
        ArenaUse::TooSmall { needed } => {
            format!("too small: the segment is mapped separately; {} would fit both", ByteSize(needed))
        }
        ArenaUse::Spread => "unused but allocated: a segment spread across NUMA nodes is mapped separately".to_owned(),
    }
}

fn nodes(args: &Args, request: &SizingRequest, host: &TargetHost, need: &MemoryNeed) -> Vec<NodeRow> {
    if !request.wanted.uses_hugepages() {
        return Vec::new();
    }
    let pools = &host.pool.nodes;
    let numbers: Vec<u32> = pools.iter().map(|pool| pool.node).collect();
    let promised = host.pool.promised.div_ceil((numbers.len() as u64).max(1));
    let per_node = need.per_node(request.wanted.page, &numbers, &args.nic_numa_nodes);
    let row = |(pool, (node, needed)): (&NodePool, (u32, u64))| {
        let missing = needed.saturating_add(promised).saturating_sub(pool.free);
        NodeRow { node, needed, total: pool.total, free: pool.free, target: pool.total.saturating_add(missing) }
    };
    pools.iter().zip(per_node).map(row).collect()
}

fn tiers_of(args: &Args, request: &SizingRequest, need: &MemoryNeed, stored: Option<&StoredPage>) -> Vec<TierRow> {
    let wanted = &request.wanted;
    let (Some(stored), Some(rank)) = (stored, need.ranks.first()) else { return Vec::new() };
    let Some(pool) = rank.pools.first() else { return Vec::new() };
    let groups = wanted.layout.groups();
    let tier = |tier, bytes, held: TierCapacity| TierRow {
        tier,
        bytes,
        tokens: held.tokens,
        pages: held.pages,
        keys: held.keys,
        conversations: held.conversations,
    };
    // The padding page does not store data. The ranks in a group store shards or copies of the same
    // tokens.
    let pages = (pool.pages - 1).saturating_mul(groups);
    let page_size = wanted.page_size.saturating_mul(wanted.layout.dcp());
    let l2 = tiers::holding(pages, page_size, 0, args.conversation_tokens);
    let per_group: u64 = need.ranks.iter().map(|rank| rank.l2.most).fold(0, u64::saturating_add);
    let l2_bytes = per_group.saturating_mul(wanted.layout.attention_tp()).saturating_mul(groups);
    let l3 = tiers::l3(need.mounted, page_size, stored, args.conversation_tokens);
    vec![tier("L2", l2_bytes, l2), tier("L3", need.mounted, l3)]
}
