//! The flags of `--trace`.

use std::path::PathBuf;

use crate::commands::cli::time_unit;
use crate::engine::plan::hicache::PREFETCH_THRESHOLD;
use crate::engine::plan::worth::{NumberRange, ParseRangeError};
use crate::engine::trace::reuse::WritePolicy;
use crate::engine::trace::{LIVE_SESSIONS, TimeUnit};

/// The flags of `--trace`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct TraceArgs {
    /// Show the hit rate for any cache size on recorded requests, instead of sizing a deployment:
    /// Mooncake, Qwen-Bailian, Weka or AgentX, TraceLab, vLLM timed traces, or LiteLLM's spend log;
    /// - for stdin
    #[arg(long, value_name = "FILE", conflicts_with_all = ["max_fit", "apply", "persist"])]
    pub(crate) trace: Option<String>,
    /// Tokens per block in the trace [default: the size that fits the rows]
    #[arg(long, alias = "trace-block-tokens", value_name = "TOKENS", requires = "trace", value_parser = clap::value_parser!(u64).range(1..=1 << 32))]
    pub(crate) block_size: Option<u64>,
    /// Unit of the times in the trace: s or ms [default: that of the format]
    #[arg(long, value_name = "UNIT", requires = "trace", value_parser = time_unit::parse)]
    pub(crate) time_unit: Option<TimeUnit>,
    /// Skip malformed rows, and count them
    #[arg(long, requires = "trace")]
    pub(crate) skip_bad: bool,
    /// Number of sessions at a time, for traces that do not record when a session starts (Weka,
    /// AgentX)
    #[arg(long, value_name = "N", default_value_t = LIVE_SESSIONS, requires = "trace", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) live_sessions: u32,
    /// Number of block IDs to keep in memory. Of a longer trace, a sample is used, and the error is
    /// shown
    #[arg(long, value_name = "N", default_value = "67108864", requires = "trace", value_parser = clap::value_parser!(u64).range(1024..=1 << 32), conflicts_with = "per_request")]
    pub(crate) sample_blocks: u64,
    /// When SGLang copies pages to L2 and L3: write_through, write_through_selective or write_back
    #[arg(long, value_name = "POLICY", default_value = "write_through", requires = "trace", value_parser = write_policy, conflicts_with = "per_request")]
    pub(crate) hicache_write_policy: WritePolicy,
    /// Show the smallest size for each of these hit rates (0 to 1), e.g. 0.5,0.8
    #[arg(long, value_name = "RATES", value_delimiter = ',', requires = "trace", value_parser = hit_rate)]
    pub(crate) hit_rate: Vec<f64>,
    /// Price of a GPU for an hour, e.g. 2.5, or a range such as 2-4; any currency
    #[arg(long, value_name = "PRICE", requires_all = ["trace", "model", "prefill_tokens_per_second"], value_parser = range, conflicts_with = "per_request")]
    pub(crate) gpu_hour: Option<NumberRange>,
    /// Price of a GB (10^9 bytes) of memory for a month, or a range
    #[arg(long, value_name = "PRICE", requires = "gpu_hour", value_parser = range)]
    pub(crate) dram_gb_month: Option<NumberRange>,
    /// Price of a GB (10^9 bytes) of SSD for a month, or a range
    #[arg(long, value_name = "PRICE", requires = "gpu_hour", value_parser = range)]
    pub(crate) ssd_gb_month: Option<NumberRange>,
    /// Prompt tokens that one server computes per second (tokens/s without a cache in mcctl bench
    /// ladder), or a range
    #[arg(long, value_name = "TOKENS", requires = "gpu_hour", value_parser = range)]
    pub(crate) prefill_tokens_per_second: Option<NumberRange>,
    /// Number of GPUs per server [default: tensor x pipeline x data parallel size]
    #[arg(long, value_name = "N", requires = "gpu_hour", value_parser = clap::value_parser!(u64).range(1..=1 << 20))]
    pub(crate) gpus: Option<u64>,
    /// Duration of the trace in hours [default: from its first to its last request]
    #[arg(long, value_name = "HOURS", requires = "gpu_hour", value_parser = range)]
    pub(crate) trace_hours: Option<NumberRange>,
    /// Size of L3 for the deployment: price (the one that pays most), hit-rate (the first of
    /// --hit-rate) or knee [default: the first of these that the command line has values for]
    #[arg(long, value_name = "BY", requires = "trace", value_parser = ["price", "hit-rate", "knee"], conflicts_with = "per_request")]
    pub(crate) choose: Option<String>,
    /// Number of servers that share the store: each contributes its part of L3
    #[arg(long, value_name = "N", default_value = "1", requires = "trace", value_parser = clap::value_parser!(u64).range(1..=1 << 20), conflicts_with = "per_request")]
    pub(crate) servers: u64,
    /// Write a deployment file (.toml or .yaml) with the chosen size; requires --model and a size
    /// of L2
    #[arg(long, value_name = "FILE", requires_all = ["trace", "model"], conflicts_with = "per_request")]
    pub(crate) out: Option<PathBuf>,
    /// Overwrite an existing file
    #[arg(long, requires = "out")]
    pub(crate) force: bool,
    /// Write the curve as an SVG plot
    #[arg(long, value_name = "FILE", requires = "trace")]
    pub(crate) svg: Option<PathBuf>,
    /// Write the curve as an HTML page with plots and a table
    #[arg(long, value_name = "FILE", requires = "trace")]
    pub(crate) html: Option<PathBuf>,
    /// Show the tokens that each tier serves for each request in the trace, in order; requires
    /// --device-pool-tokens and either --hicache-ratio, or --hicache-size with --model
    #[arg(long, requires = "trace", conflicts_with_all = ["hit_rate", "svg", "html"])]
    pub(crate) per_request: bool,
    /// Minimum number of tokens to prefetch from storage (prefetch_threshold in SGLang's extra
    /// config)
    #[arg(long, value_name = "N", default_value_t = PREFETCH_THRESHOLD, requires = "per_request")]
    pub(crate) prefetch_threshold: u64,
    /// Tokens per prefill chunk (chunked_prefill_size in SGLang's log); 0 disables chunking
    #[arg(long, value_name = "N", default_value = "8192", requires = "per_request")]
    pub(crate) chunked_prefill_size: u64,
    /// Simulate without storage behind L2
    #[arg(long, requires = "per_request")]
    pub(crate) no_storage: bool,
}

/// A command-line hit rate that is not a number from 0 to 1.
#[derive(Debug, thiserror::Error)]
#[error("invalid hit rate '{0}': use a number from 0 to 1, e.g. 0.8")]
struct InvalidHitRate(String);

fn hit_rate(text: &str) -> Result<f64, InvalidHitRate> {
    let rate = text.trim().parse().ok().filter(|rate| (0.0..=1.0).contains(rate));
    rate.ok_or_else(|| InvalidHitRate(text.to_owned()))
}

fn range(text: &str) -> Result<NumberRange, ParseRangeError> {
    text.parse()
}

fn write_policy(text: &str) -> Result<WritePolicy, UnknownPolicy> {
    WritePolicy::ALL.into_iter().find(|policy| policy.name() == text).ok_or(UnknownPolicy)
}

/// A word that is not a write policy.
#[derive(Debug, thiserror::Error)]
#[error("use write_through, write_through_selective or write_back")]
struct UnknownPolicy;
