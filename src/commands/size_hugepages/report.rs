//! The answer as a document: what `--json` prints, and what the table shows.

use serde::Serialize;

use crate::commands::error::Failure;
use crate::commands::size_hugepages::Args;
use crate::commands::size_hugepages::beside::{Kep74Row, UpstreamRow, kep74, upstream_row};
use crate::commands::size_hugepages::host::Host;
use crate::commands::size_hugepages::paste;
use crate::commands::size_hugepages::question::Question;
use crate::commands::size_hugepages::summary::{Summary, summary};
use crate::commands::size_hugepages::verdict::{GuardRow, Verdict, verdict};
use crate::engine::base::ByteSize;
use crate::engine::plan::client::{Arena, PLAIN_SEGMENT_BYTES_MIN};
use crate::engine::plan::host_pool::Wish;
use crate::engine::plan::l2::Bounds;
use crate::engine::plan::need::{Need, Rank, need};
use crate::engine::plan::size_flag::SizeFlag;
use crate::engine::plan::tiers::{self, Holding, StoredPage};
use crate::engine::sys::hugetlb::NodePool;

/// Two ends, as JSON.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Range {
    /// At least.
    pub least: u64,
    /// At most.
    pub most: u64,
}

impl From<Bounds> for Range {
    fn from(bounds: Bounds) -> Range {
        Range { least: bounds.least, most: bounds.most }
    }
}

/// A rank of one pipeline stage.
#[derive(Clone, Debug, Serialize)]
pub struct RankRow {
    pub stage: u64,
    /// Bytes of keys and values per token.
    pub token_bytes: Option<u64>,
    /// Bytes of the index per token.
    pub index_token_bytes: Option<u64>,
    /// Tokens of L2.
    pub l2_tokens: Option<u64>,
    /// Pages of L2, the padding one included.
    pub l2_pages: Option<u64>,
    /// Bytes of the side pool, contained in `l2_bytes`.
    pub side_bytes: Option<u64>,
    /// Bytes of L2.
    pub l2_bytes: Range,
    /// Huge pages of L2.
    pub l2_hugepages: Range,
    /// Huge pages of the store's client: buffer, segment, arena.
    pub client_hugepages: u64,
    /// Bytes that a process registers with NICs.
    pub memlock_bytes: Range,
    /// Memory regions per NIC.
    pub memory_regions_per_nic: u64,
}

/// A NUMA node.
#[derive(Clone, Debug, Serialize)]
pub struct NodeRow {
    pub node: u32,
    /// Huge pages that it should have free.
    pub needed: u64,
    /// Huge pages in its pool.
    pub total: u64,
    pub free: u64,
    /// What its pool must be set to; as it is where that is enough.
    pub target: u64,
}

/// What a tier holds.
#[derive(Clone, Debug, Serialize)]
pub struct TierRow {
    /// L2 or L3.
    pub tier: &'static str,
    /// Bytes of it.
    pub bytes: u64,
    /// Tokens.
    pub tokens: u64,
    /// Pages.
    pub pages: u64,
    /// Objects in the store.
    pub keys: u64,
    pub conversations: u64,
}

/// A size flag whose value another program reads.
#[derive(Clone, Debug, Serialize)]
pub struct SizeRow {
    /// The flag, with its dashes.
    pub flag: &'static str,
    /// The text after it.
    pub given: String,
    /// Bytes that the text stands for.
    pub asked_bytes: u64,
    /// The text that the program accepts.
    pub setting: String,
    /// Bytes that the program makes of it.
    pub used_bytes: u64,
    /// Those beyond the asked ones; negative where they are fewer.
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

/// The whole document.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The document's kind and version.
    pub schema: &'static str,
    /// The answer in three lines.
    pub summary: Summary,
    /// L2 (absent with a ratio), segment, arena: as given, and as the programs get them.
    pub sizes: Vec<SizeRow>,
    /// Whether it fits.
    pub verdict: Verdict,
    pub reasons: Vec<String>,
    pub model: Option<String>,
    /// Where its figures were seen.
    pub model_source: Option<String>,
    /// Bytes of a huge page.
    pub hugepage_bytes: u64,
    /// Ranks on the fullest host.
    pub ranks_on_host: u64,
    /// `--hicache-size` as SGLang gets it, bytes per rank; `null` with a ratio.
    pub hicache_bytes: Option<u64>,
    /// Segment of a group, bytes.
    pub group_segment_bytes: u64,
    /// Segment of a rank, bytes.
    pub rank_segment_bytes: u64,
    /// The same after rounding to huge pages.
    pub rank_mounted_bytes: u64,
    /// What came of the arena.
    pub arena: String,
    /// Per rank.
    pub ranks: Vec<RankRow>,
    /// Huge pages of the store services.
    pub service_hugepages: u64,
    /// Huge pages of the fullest host.
    pub host_hugepages: Range,
    /// Huge pages of the other size, which only an arena takes.
    pub host_other_hugepages: u64,
    /// Huge pages that are available now.
    pub available_hugepages: Option<u64>,
    /// Per NUMA node.
    pub nodes: Vec<NodeRow>,
    pub guard: GuardRow,
    pub tiers: Vec<TierRow>,
    /// Bytes of an object in the store.
    pub object_bytes: Option<u64>,
    /// Upstream's figures, where its script takes the same words.
    pub upstream: Option<UpstreamRow>,
    /// KEP-74's, for its own configuration.
    pub kep74: Option<Kep74Row>,
    /// Segment of a store service, bytes.
    #[serde(skip)]
    pub store_segment_bytes: u64,
    /// Local buffer of a store service, bytes.
    #[serde(skip)]
    pub store_local_buffer_bytes: u64,
    /// The least memory of a host that carries this, huge pages included, bytes.
    pub host_bytes_min: u64,
    /// This host can carry out the commands. Where it cannot, each of them is a comment.
    pub pasteable: bool,
    /// Lines to paste, in order.
    pub commands: Vec<String>,
}

impl Report {
    /// Work it out.
    ///
    /// # Errors
    /// The deployment is none that SGLang starts.
    pub fn new(args: &Args, question: &Question, host: &Host) -> Result<Report, Failure> {
        let wanted = &question.wanted;
        let need = need(wanted)?;
        let stored = stored(question)?;
        let nodes = nodes(args, question, host, &need);
        let client = need.ranks.first().map(|rank| rank.client);
        let hicache_bytes = match wanted.wish {
            Wish::Gb(gb) => Some(gb.saturating_mul(1_000_000_000)),
            Wish::Ratio { .. } => None,
        };
        let available_bytes = host.memory.map(|memory| memory.saturating_sub(host.to_reserve(&need.most)));
        let ranks = wanted.layout.guard_ranks();
        let guard = GuardRow { needed_bytes: need.guard_bytes, available_bytes, ranks };
        let (verdict, reasons) = verdict(args, host, &need, &guard);
        let page = wanted.page;
        let missing = nodes.iter().map(|node| node.target.saturating_sub(node.total)).fold(0, u64::saturating_add);
        let to_reserve = host.to_reserve(&need.most).max(missing.saturating_mul(page));
        let mut report = Report {
            schema: "mcctl.size-hugepages/1",
            summary: Summary::default(),
            sizes: question.sizes.iter().map(SizeRow::from).collect(),
            verdict,
            reasons,
            model: question.model.as_ref().map(|(name, _)| name.clone()),
            model_source: question.model.as_ref().map(|(_, source)| source.clone()),
            hugepage_bytes: page,
            ranks_on_host: need.ranks_on_host,
            hicache_bytes,
            group_segment_bytes: wanted.group_segment,
            rank_segment_bytes: need.rank_segment,
            rank_mounted_bytes: client.map_or(0, |client| client.mounted),
            arena: client.map_or(String::new(), |client| arena(client.arena)),
            ranks: need.ranks.iter().map(|rank| row(rank, page)).collect(),
            service_hugepages: need.service_pages.count(page),
            host_hugepages: Range { least: need.least.count(page), most: need.most.count(page) },
            host_other_hugepages: need.most.count(host.other.page),
            available_hugepages: host.pool.usable(),
            nodes,
            guard,
            tiers: tiers_of(args, question, &need, stored.as_ref()),
            object_bytes: stored.map(|page| page.object_bytes),
            upstream: upstream_row(args, &need, page),
            kep74: kep74(question, stored.as_ref()),
            store_segment_bytes: wanted.services.segment,
            store_local_buffer_bytes: wanted.services.local_buffer,
            host_bytes_min: u64::try_from(need.most.bytes()).unwrap_or(u64::MAX).saturating_add(need.guard_bytes),
            pasteable: host.can_reserve(to_reserve, need.guard_bytes),
            commands: Vec::new(),
        };
        if need.rank_segment > 0 && need.rank_segment < PLAIN_SEGMENT_BYTES_MIN {
            report.reasons.push(
                "a rank's segment is below 16 MiB: without huge pages the store refuses it (setup returns -600)"
                    .to_owned(),
            );
        }
        report.commands = paste::commands(args, &report);
        report.summary = summary(&report, host);
        Ok(report)
    }

    /// Pages that the pool of the whole host must have.
    pub fn pool_pages(&self) -> u64 {
        match self.nodes.iter().map(|node| node.target).fold(0, u64::saturating_add) {
            0 => self.host_hugepages.most,
            total => total,
        }
    }
}

fn stored(question: &Question) -> Result<Option<StoredPage>, Failure> {
    let wanted = &question.wanted;
    // Sliding layers keep objects of a window only: how many, the requests decide.
    let Some(geometry) = wanted.geometry.filter(|geometry| geometry.window_layers == 0) else { return Ok(None) };
    Ok(Some(tiers::stored_page(wanted.page_size, &geometry, &wanted.layout, wanted.cache)?))
}

fn row(rank: &Rank, page: u64) -> RankRow {
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

fn arena(arena: Arena) -> String {
    match arena {
        Arena::Off => "off (recommended: two allocations per process gain nothing from an arena)".to_owned(),
        Arena::Fits { unused: 0 } => "holds local buffer and segment exactly, and gains nothing".to_owned(),
        Arena::Fits { unused } => format!("holds local buffer and segment; {} of it stay unused", ByteSize(unused)),
        Arena::TooSmall { needed } => {
            format!("too small: the segment is mapped in addition; {} would hold both", ByteSize(needed))
        }
        Arena::Spread => {
            "unused, and allocated in addition: a segment spread over NUMA nodes is mapped apart".to_owned()
        }
    }
}

fn nodes(args: &Args, question: &Question, host: &Host, need: &Need) -> Vec<NodeRow> {
    let pools = &host.pool.nodes;
    let numbers: Vec<u32> = pools.iter().map(|pool| pool.node).collect();
    let promised = host.pool.promised.div_ceil((numbers.len() as u64).max(1));
    let per_node = need.per_node(question.wanted.page, &numbers, &args.nic_numa_nodes);
    let row = |(pool, (node, needed)): (&NodePool, (u32, u64))| {
        let missing = needed.saturating_add(promised).saturating_sub(pool.free);
        NodeRow { node, needed, total: pool.total, free: pool.free, target: pool.total.saturating_add(missing) }
    };
    pools.iter().zip(per_node).map(row).collect()
}

fn tiers_of(args: &Args, question: &Question, need: &Need, stored: Option<&StoredPage>) -> Vec<TierRow> {
    let wanted = &question.wanted;
    let (Some(stored), Some(rank)) = (stored, need.ranks.first()) else { return Vec::new() };
    let Some(pool) = rank.pool else { return Vec::new() };
    let groups = wanted.layout.groups();
    let tier = |tier, bytes, held: Holding| TierRow {
        tier,
        bytes,
        tokens: held.tokens,
        pages: held.pages,
        keys: held.keys,
        conversations: held.conversations,
    };
    // The padding page holds nothing; ranks of a group hold parts, or copies, of the same tokens.
    let pages = (pool.pages - 1).saturating_mul(groups);
    let page_size = wanted.page_size.saturating_mul(wanted.layout.dcp());
    let l2 = tiers::holding(pages, page_size, 0, args.conversation_tokens);
    let per_group: u64 = need.ranks.iter().map(|rank| rank.l2.most).fold(0, u64::saturating_add);
    let l2_bytes = per_group.saturating_mul(wanted.layout.attention_tp()).saturating_mul(groups);
    let l3 = tiers::l3(need.mounted, page_size, stored, args.conversation_tokens);
    vec![tier("L2", l2_bytes, l2), tier("L3", need.mounted, l3)]
}
