//! The result as a document, printed with `--json` or rendered as tables.

use serde::Serialize;

use crate::commands::size_hugepages::beside::{Kep74Comparison, UpstreamRow};
use crate::commands::size_hugepages::max_fit::FittedSizes;
use crate::commands::size_hugepages::verdict::{FitReason, GuardRow, SizingVerdict};
use crate::engine::plan::l2::ValueRange;
use crate::engine::plan::size_flag::SizeFlag;

/// A closed range, as JSON.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct RangeRow {
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
pub(super) struct RankRow {
    pub stage: u64,
    /// Size of the keys and values, in bytes per token.
    pub token_bytes: Option<u64>,
    /// Size of the index, in bytes per token.
    pub index_token_bytes: Option<u64>,
    pub l2_tokens: Option<u64>,
    /// The rank's pools, in SGLang's order; empty without a model.
    pub pools: Vec<PoolRow>,
    /// Whether the sizes of single pools are estimates, because they depend on the device's pools.
    pub pools_are_estimates: bool,
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

/// The regular memory of a deployment without huge pages, on the host with the highest usage.
#[derive(Clone, Debug, Serialize)]
pub(super) struct RegularRow {
    /// L2 of all ranks.
    pub l2_bytes: RangeRow,
    /// Segments and local buffers of all ranks.
    pub clients_bytes: u64,
    /// Segments and local buffers of the store services.
    pub services_bytes: u64,
    /// Part of the segments that is bound to each NUMA node with NICs.
    pub nic_node_bytes: u64,
    /// What must be available before SGLang starts, including the reserve of its check.
    pub needed_bytes: RangeRow,
    /// What must be available for the check of a rank that allocates its L2 after all others.
    pub last_rank_bytes: u64,
    /// What is available; `null` if unknown.
    pub available_bytes: Option<u64>,
}

/// One L2 pool of a rank.
#[derive(Clone, Debug, Serialize)]
pub(super) struct PoolRow {
    /// SGLang's name.
    pub pool: &'static str,
    pub layers: u64,
    /// `token`, `slot`, or `page` for compressed layers.
    pub unit: &'static str,
    /// Bytes per unit.
    pub unit_bytes: u64,
    /// Capacity in units, including padding.
    pub units: u64,
    pub bytes: u64,
}

/// The objects of a pool in the store.
#[derive(Clone, Debug, Serialize)]
pub(super) struct ObjectRow {
    pub pool: &'static str,
    /// The end of the key.
    pub suffix: String,
    /// `page`, `window-page` or `prefix`.
    pub stored_for: &'static str,
    /// Number of objects, over all ranks in a group.
    pub objects: u64,
    /// Size of the largest of them.
    pub bytes: u64,
}

/// The objects of a page under SGLang's unified key scheme.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct UnifiedRow {
    pub objects: u64,
    pub bytes: u64,
}

/// The state slots of a rank, for models with a state per prefix.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct StateRow {
    pub slot_bytes: u64,
    pub slots: u64,
    pub slots_per_prefix: u64,
    /// Prefixes whose states fit.
    pub prefixes: u64,
    /// `--live-prefixes`.
    pub live_prefixes: Option<u64>,
    /// The smallest `--hicache-size` with which the states of these prefixes fit.
    pub live_prefixes_gb: Option<u64>,
}

#[derive(Clone, Debug, Serialize)]
pub(super) struct NodeRow {
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
pub(super) struct TierRow {
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
pub(super) struct SizeRow {
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

/// The last three lines of the report.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct SizingSummary {
    /// Huge pages and regular (non-hugepage) memory needed on the host with the highest usage.
    pub needs: String,
    /// The host's resources, and whether they are sufficient.
    pub available: String,
    /// The command, setting or host that fixes a shortage.
    pub next: String,
}

#[derive(Clone, Debug, Serialize)]
pub(super) struct SizingReport {
    pub schema: &'static str,
    pub summary: SizingSummary,
    /// L2 (absent with a ratio), segment and arena sizes: as specified, and as passed to the
    /// programs.
    pub sizes: Vec<SizeRow>,
    pub verdict: SizingVerdict,
    pub reasons: Vec<FitReason>,
    pub model: Option<String>,
    /// The source of the model geometry.
    pub model_source: Option<String>,
    /// The sizes that `--max-fit` has found.
    pub max_fit: Option<FittedSizes>,
    /// Huge page size; 0 without huge pages.
    pub hugepage_bytes: u64,
    /// The memory of a deployment without huge pages.
    pub regular: Option<RegularRow>,
    /// Number of ranks on the host with the highest usage.
    pub ranks_on_host: u64,
    /// `--hicache-size` as passed to SGLang, in bytes per rank; `null` with a ratio.
    pub hicache_bytes: Option<u64>,
    /// Segment size per group.
    pub group_segment_bytes: u64,
    /// Segment size per rank.
    pub rank_segment_bytes: u64,
    /// Segment size per rank; with huge pages, rounded up to whole pages.
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
    /// The objects in the store, by pool; empty without a model.
    pub objects: Vec<ObjectRow>,
    /// The objects of a page under the unified key scheme, if it describes the model's pools.
    pub unified_objects: Option<UnifiedRow>,
    /// The state slots, for models with a state per prefix.
    pub states: Option<StateRow>,
    /// The ratio that SGLang selects by itself, with neither a size nor a ratio.
    pub selected_ratio: Option<f64>,
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
    /// `MC_MAX_MR_SIZE`.
    #[serde(skip)]
    pub region_bytes: u64,
    /// Size of the pool that the commands set, in huge pages: never less than that of the present
    /// pool.
    #[serde(skip)]
    pub pool_pages: u64,
    /// Minimum memory of a suitable host, including huge pages.
    pub host_bytes_min: u64,
    /// Whether huge pages are missing, and the host has the memory to reserve them.
    pub reservable: bool,
    /// Whether this host can run the commands. If not, each command is a comment.
    pub pasteable: bool,
    /// Commands to paste, in order.
    pub commands: Vec<String>,
}
