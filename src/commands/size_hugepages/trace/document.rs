//! The hit-rate curve as a document, printed with `--json` or rendered as text, a page or a plot.

use serde::Serialize;

use crate::commands::size_hugepages::report::SizingSummary;
use crate::commands::size_hugepages::verdict::SizingVerdict;

/// A cache size, and what it brings.
#[derive(Clone, Debug, Serialize)]
pub(super) struct CurvePoint {
    /// Cache size in tokens.
    pub tokens: u64,
    /// Share of all prompt tokens that an LRU cache of this size contains, 0 to 1.
    pub hit_rate: f64,
    /// Half of the 95 % interval of the hit rate; `null` if it is exact.
    pub hit_rate_error: Option<f64>,
    /// Hit tokens in the whole trace per GiB of segments, from the point before to this one.
    pub hit_tokens_per_gib: Option<f64>,
    /// The hit rate of L1 and an L2 of this size.
    pub l2_hit_rate: Option<f64>,
    /// The hit rate of L1, L2 and an L3 of this size.
    pub l3_hit_rate: Option<f64>,
    /// The matching `--hicache-size` in decimal GB per rank, for a server with one group.
    pub hicache_gb: Option<u64>,
    /// The matching total size of all segments, at 90 % usage.
    pub segment_bytes: Option<u64>,
    /// What an L3 of this size saves and costs, for each kind of memory with a price.
    pub worth: Vec<WorthRow>,
}

/// What an L3 saves and costs per month, each at the lowest and the highest prices.
#[derive(Clone, Debug, Serialize)]
pub(super) struct WorthRow {
    /// `dram` or `ssd`.
    pub memory: &'static str,
    pub gpu_hours: [f64; 2],
    pub saved: [f64; 2],
    pub cost: [f64; 2],
    /// Saved price minus cost.
    pub net: [f64; 2],
    /// The same per GiB, from the point before to this one.
    pub net_per_gib: [f64; 2],
}

/// A requested hit rate.
#[derive(Clone, Debug, Serialize)]
pub(super) struct RequestedRate {
    /// Hit rate, from 0 to 1.
    pub hit_rate: f64,
    /// The smallest cache that reaches the rate; `null` if none does.
    pub reached: Option<CurvePoint>,
}

/// The size of L3 at which the most remains of the saved price.
#[derive(Clone, Debug, Serialize)]
pub(super) struct BestSize {
    /// `dram` or `ssd`.
    pub memory: &'static str,
    /// At the prices that are worst for a cache; `null` if no size pays.
    pub low: Option<CurvePoint>,
    /// At the middle of each range.
    pub middle: Option<CurvePoint>,
    /// At the prices that are best for a cache.
    pub high: Option<CurvePoint>,
}

/// The prices and what they are compared with.
#[derive(Clone, Debug, Serialize)]
pub(super) struct PriceDocument {
    /// Number of GPUs of each server.
    pub gpus: u64,
    pub trace_hours: f64,
    /// Share of the prompt tokens that L1 and L2 contain without an L3. They save nothing more.
    pub free_hit_rate: f64,
    pub best: Vec<BestSize>,
}

/// Hit rates by tier, with the chosen size of L3.
#[derive(Clone, Debug, Serialize)]
pub(super) struct TierRates {
    pub write_policy: &'static str,
    pub l1_tokens: u64,
    pub l2_tokens: u64,
    pub l3_tokens: u64,
    pub l1_hit_rate: f64,
    pub l2_hit_rate: f64,
    pub l3_hit_rate: f64,
    /// Tokens that an infinite cache would contain.
    pub missed_rate: f64,
    /// Tokens that no earlier prompt started with.
    pub new_rate: f64,
}

/// The chosen size of L3, and what it needs.
#[derive(Debug, Serialize)]
pub(super) struct ChosenSize {
    /// `price`, `hit-rate` or `knee`.
    pub by: &'static str,
    pub point: CurvePoint,
    pub tiers: Option<TierRates>,
    /// `--global-segment-size` of each group.
    pub group_segment_bytes: Option<u64>,
    /// The memory for this size; `null` without a size of L2.
    pub needs: Option<ChosenNeeds>,
    /// The deployment file that was written.
    pub file: Option<String>,
}

/// The memory for the chosen size.
#[derive(Debug, Serialize)]
pub(super) struct ChosenNeeds {
    pub verdict: SizingVerdict,
    /// Size of a huge page; 0 without huge pages.
    pub hugepage_bytes: u64,
    /// Huge pages on the host with the most.
    pub hugepages: u64,
    #[serde(flatten)]
    pub summary: SizingSummary,
}

#[derive(Debug, Serialize)]
pub(super) struct CurveDocument {
    pub schema: &'static str,
    pub trace: String,
    /// Format of the trace.
    pub format: String,
    pub requests: u64,
    pub skipped_rows: u64,
    /// Prompt tokens of all requests.
    pub prompt_tokens: u64,
    /// Time from the first to the last request; `null` if the trace has no times.
    pub trace_hours: Option<f64>,
    /// Block IDs in the trace.
    pub blocks: u64,
    /// Prompt tokens that differ from all others.
    pub distinct_tokens: u64,
    pub block_tokens: u64,
    /// Share of the blocks that the rates were computed from; 1 if they are exact.
    pub sampled_share: f64,
    /// The hit rate with an unlimited cache: the ceiling.
    pub best_hit_rate: f64,
    /// Beyond this size, memory brings fewer hits than on average; `null` without hits.
    pub knee: Option<CurvePoint>,
    pub curve: Vec<CurvePoint>,
    /// One entry per requested rate.
    pub wanted: Vec<RequestedRate>,
    pub price: Option<PriceDocument>,
    pub chosen: Option<ChosenSize>,
    pub caveats: Vec<String>,
}
