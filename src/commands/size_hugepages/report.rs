//! The result as a document, printed with `--json` or rendered as tables.

use serde::Serialize;

use crate::commands::error::Failure;
use crate::commands::size_hugepages::Args;
use crate::commands::size_hugepages::beside::{Kep74Comparison, UpstreamRow, kep74, upstream_row};
use crate::commands::size_hugepages::host::TargetHost;
use crate::commands::size_hugepages::paste;
use crate::commands::size_hugepages::request::SizingRequest;
use crate::commands::size_hugepages::summary::{SizingSummary, summary};
use crate::commands::size_hugepages::verdict::{FitReason, GuardRow, SizingVerdict, verdict};
use crate::engine::base::ByteSize;
use crate::engine::plan::client::{ArenaUse, PLAIN_SEGMENT_BYTES_MIN};
use crate::engine::plan::host_pool::L2Size;
use crate::engine::plan::l2::ValueRange;
use crate::engine::plan::need::{MemoryNeed, RankMemory, need};
use crate::engine::plan::size_flag::SizeFlag;
use crate::engine::plan::tiers::{self, StoredPage, TierCapacity};
use crate::engine::sys::hugetlb::NodePool;

/// A closed range, as JSON.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct RangeRow {
    pub least: u64,
    pub most: u64,
}

impl From<ValueRange> for RangeRow {
    fn from(bounds: ValueRange) -> RangeRow {
        RangeRow { least: bounds.least, most: bounds.most }
    }
}

/// A rank in one pipeline stage.
#[derive(Clone, Debug, Serialize)]
pub struct RankRow {
    pub stage: u64,
    /// Size of the keys and values, in bytes per token.
    pub token_bytes: Option<u64>,
    /// Size of the index, in bytes per token.
    pub index_token_bytes: Option<u64>,
    pub l2_tokens: Option<u64>,
    /// Pages in L2, including the padding page.
    pub l2_pages: Option<u64>,
    /// Side pool size, included in `l2_bytes`.
    pub side_bytes: Option<u64>,
    pub l2_bytes: RangeRow,
    /// Huge pages for L2.
    pub l2_hugepages: RangeRow,
    /// Huge pages for the store client: buffer, segment, arena.
    pub client_hugepages: u64,
    /// Number of bytes that a process registers with the NICs.
    pub memlock_bytes: RangeRow,
    /// Memory regions per NIC.
    pub memory_regions_per_nic: u64,
}

#[derive(Clone, Debug, Serialize)]
pub struct NodeRow {
    pub node: u32,
    /// Huge pages that must be free.
    pub needed: u64,
    /// Huge pages in the node's pool.
    pub total: u64,
    pub free: u64,
    /// The required pool size, or the current size if that is sufficient.
    pub target: u64,
}

#[derive(Clone, Debug, Serialize)]
pub struct TierRow {
    /// `L2Memory` or `L3`.
    pub tier: &'static str,
    pub bytes: u64,
    pub tokens: u64,
    pub pages: u64,
    /// Objects in the store.
    pub keys: u64,
    pub conversations: u64,
}

/// A size flag whose value is passed to another program.
#[derive(Clone, Debug, Serialize)]
pub struct SizeRow {
    /// The flag, including its dashes.
    pub flag: &'static str,
    pub given: String,
    /// The value in bytes.
    pub asked_bytes: u64,
    /// The value in the form that the program accepts.
    pub setting: String,
    /// The number of bytes that the program allocates for this setting.
    pub used_bytes: u64,
    /// `used_bytes` minus `asked_bytes`.
    pub difference_bytes: i64,
}

impl From<&SizeFlag> for SizeRow {
    fn from(size: &SizeFlag) -> SizeRow {
        SizeRow {
            flag: size.flag,
            given: size.given.clone(),
            asked_bytes: size.asked_bytes,
            setting: size.setting.clone(),
            used_bytes: size.used_bytes,
            difference_bytes: size.difference(),
        }
    }
}

#[derive(Clone, Debug, Serialize)]
pub struct SizingReport {
    pub schema: &'static str,
    /// The three-line summary.
    pub summary: SizingSummary,
    /// L2 (absent with a ratio), segment and arena sizes: as specified, and as passed to the programs.
    pub sizes: Vec<SizeRow>,
    pub verdict: SizingVerdict,
    pub reasons: Vec<FitReason>,
    pub model: Option<String>,
    /// The source of the model geometry.
    pub model_source: Option<String>,
    pub hugepage_bytes: u64,
    /// Number of ranks on the host with the highest usage.
    pub ranks_on_host: u64,
    /// `--hicache-size` as passed to SGLang, in bytes per rank; `null` with a ratio.
    pub hicache_bytes: Option<u64>,
    /// Segment size per group.
    pub group_segment_bytes: u64,
    /// Segment size per rank.
    pub rank_segment_bytes: u64,
    /// Segment size per rank, rounded up to huge pages.
    pub rank_mounted_bytes: u64,
    /// How the arena is used.
    pub arena: String,
    /// One per pipeline stage.
    pub ranks: Vec<RankRow>,
    /// Huge pages for the store services.
    pub service_hugepages: u64,
    /// Huge pages on the host with the highest usage.
    pub host_hugepages: RangeRow,
    /// Huge pages of the other size, which only arenas use.
    pub host_other_hugepages: u64,
    pub available_hugepages: Option<u64>,
    /// One per NUMA node.
    pub nodes: Vec<NodeRow>,
    pub guard: GuardRow,
    pub tiers: Vec<TierRow>,
    /// Object size in the store.
    pub object_bytes: Option<u64>,
    /// The results of upstream's script, if it supports the same flags.
    pub upstream: Option<UpstreamRow>,
    /// The measurement in KEP-74, if the configuration is the same.
    pub kep74: Option<Kep74Comparison>,
    /// Segment size of a store service.
    #[serde(skip)]
    pub store_segment_bytes: u64,
    /// Local buffer size of a store service.
    #[serde(skip)]
    pub store_local_buffer_bytes: u64,
    /// Minimum memory of a suitable host, including huge pages.
    pub host_bytes_min: u64,
    /// Whether this host can run the commands. If not, each command is a comment.
    pub pasteable: bool,
    /// Commands to paste, in order.
    pub commands: Vec<String>,
}

impl SizingReport {
    /// Computes the report.
    ///
    /// # Errors
    /// SGLang does not start the deployment, or a value overflows.
    pub fn new(args: &Args, request: &SizingRequest, host: &TargetHost) -> Result<SizingReport, Failure> {
        let wanted = &request.wanted;
        let need = need(wanted)?;
        let stored = stored(request)?;
        let nodes = nodes(args, request, host, &need);
        let client = need.ranks.first().map(|rank| rank.client);
        let hicache_bytes = match wanted.l2_size {
            L2Size::Gb(gb) => Some(gb.saturating_mul(1_000_000_000)),
            L2Size::Ratio { .. } => None,
        };
        let available_bytes = host.memory.map(|memory| memory.saturating_sub(host.to_reserve(&need.most)));
        let ranks = wanted.layout.guard_ranks();
        let guard = GuardRow { needed_bytes: need.guard_bytes, available_bytes, ranks };
        let (verdict, reasons) = verdict(args, host, &need, &guard);
        let page = wanted.page;
        let missing = nodes.iter().map(|node| node.target.saturating_sub(node.total)).fold(0, u64::saturating_add);
        let to_reserve = host.to_reserve(&need.most).max(missing.saturating_mul(page));
        let mut report = SizingReport {
            schema: "mcctl.size-hugepages/1",
            summary: SizingSummary::default(),
            sizes: request.sizes.iter().map(SizeRow::from).collect(),
            verdict,
            reasons,
            model: request.model.as_ref().map(|(name, _)| name.clone()),
            model_source: request.model.as_ref().map(|(_, source)| source.clone()),
            hugepage_bytes: page,
            ranks_on_host: need.ranks_on_host,
            hicache_bytes,
            group_segment_bytes: wanted.group_segment,
            rank_segment_bytes: need.rank_segment,
            rank_mounted_bytes: client.map_or(0, |client| client.mounted),
            arena: client.map_or(String::new(), |client| arena(client.arena)),
            ranks: need.ranks.iter().map(|rank| row(rank, page)).collect(),
            service_hugepages: need.service_pages.count(page),
            host_hugepages: RangeRow { least: need.least.count(page), most: need.most.count(page) },
            host_other_hugepages: need.most.count(host.other.page),
            available_hugepages: host.pool.usable(),
            nodes,
            guard,
            tiers: tiers_of(args, request, &need, stored.as_ref()),
            object_bytes: stored.map(|page| page.object_bytes),
            upstream: upstream_row(args, &need, page),
            kep74: kep74(request, stored.as_ref()),
            store_segment_bytes: wanted.services.segment,
            store_local_buffer_bytes: wanted.services.local_buffer,
            host_bytes_min: u64::try_from(need.most.bytes()).unwrap_or(u64::MAX).saturating_add(need.guard_bytes),
            pasteable: host.can_reserve(to_reserve, need.guard_bytes),
            commands: Vec::new(),
        };
        if need.rank_segment > 0 && need.rank_segment < PLAIN_SEGMENT_BYTES_MIN {
            report.reasons.push(FitReason::SmallSegment);
        }
        report.commands = paste::commands(args, &report);
        report.summary = summary(&report, host);
        Ok(report)
    }

    /// The required pool size for the whole host, in pages.
    pub fn pool_pages(&self) -> u64 {
        match self.nodes.iter().map(|node| node.target).fold(0, u64::saturating_add) {
            0 => self.host_hugepages.most,
            total => total,
        }
    }
}

fn stored(request: &SizingRequest) -> Result<Option<StoredPage>, Failure> {
    let wanted = &request.wanted;
    // Sliding-window layers store only the objects within a window. The number of stored objects depends on the requests.
    let Some(geometry) = wanted.geometry.filter(|geometry| geometry.window_layers == 0) else { return Ok(None) };
    Ok(Some(tiers::stored_page(wanted.page_size, &geometry, &wanted.layout, wanted.cache)?))
}

fn row(rank: &RankMemory, page: u64) -> RankRow {
    let pool = rank.pool;
    RankRow {
        stage: rank.stage,
        token_bytes: pool.map(|pool| pool.token_bytes),
        index_token_bytes: pool.map(|pool| pool.side_token_bytes),
        l2_tokens: pool.map(|pool| pool.tokens),
        l2_pages: pool.map(|pool| pool.pages),
        side_bytes: pool.map(|pool| pool.side_bytes),
        l2_bytes: rank.l2.into(),
        l2_hugepages: rank.l2_pages.into(),
        client_hugepages: rank.client.pages.count(page),
        memlock_bytes: rank.pinned.into(),
        memory_regions_per_nic: rank.regions,
    }
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
    let Some(pool) = rank.pool else { return Vec::new() };
    let groups = wanted.layout.groups();
    let tier = |tier, bytes, held: TierCapacity| TierRow {
        tier,
        bytes,
        tokens: held.tokens,
        pages: held.pages,
        keys: held.keys,
        conversations: held.conversations,
    };
    // The padding page does not store data. The ranks in a group store shards or copies of the same tokens.
    let pages = (pool.pages - 1).saturating_mul(groups);
    let page_size = wanted.page_size.saturating_mul(wanted.layout.dcp());
    let l2 = tiers::holding(pages, page_size, 0, args.conversation_tokens);
    let per_group: u64 = need.ranks.iter().map(|rank| rank.l2.most).fold(0, u64::saturating_add);
    let l2_bytes = per_group.saturating_mul(wanted.layout.attention_tp()).saturating_mul(groups);
    let l3 = tiers::l3(need.mounted, page_size, stored, args.conversation_tokens);
    vec![tier("L2", l2_bytes, l2), tier("L3", need.mounted, l3)]
}
