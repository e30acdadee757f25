//! What an L3 saves and costs.

use crate::commands::cli::error::Failure;
use crate::commands::size_hugepages::Args;
use crate::commands::size_hugepages::trace::document::{CurvePoint, WorthRow};
use crate::engine::base::ByteSize;
use crate::engine::plan::worth::{CachePrices, CacheWorth, NumberRange, PriceCase};

/// The prices of one kind of memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct MemoryPrice {
    /// `dram` or `ssd`.
    pub memory: &'static str,
    pub prices: CachePrices,
}

/// The prices of the command line, for each kind of memory that has one.
///
/// # Errors
/// A price is missing, or the duration of the trace is unknown.
pub(super) fn prices(args: &Args, hours: Option<f64>) -> Result<Vec<MemoryPrice>, Failure> {
    let trace = &args.trace;
    let (Some(gpu_hour), Some(speed)) = (trace.gpu_hour, trace.prefill_tokens_per_second) else {
        return Ok(Vec::new());
    };
    let memories = [("dram", trace.dram_gb_month), ("ssd", trace.ssd_gb_month)];
    if memories.iter().all(|(_, price)| price.is_none()) {
        return Err(Failure::usage("--gpu-hour requires the price of memory")
            .next("set --dram-gb-month, --ssd-gb-month, or both"));
    }
    let hours = trace.trace_hours.map(NumberRange::middle).or(hours.filter(|hours| *hours > 0.0));
    let Some(trace_hours) = hours else {
        return Err(Failure::usage("a price per month requires the duration of the trace")
            .found("the requests have no times, or all the same time")
            .next("set --trace-hours"));
    };
    let replicas = if args.enable_dp_attention { 1 } else { args.dp_size };
    let gpus = trace.gpus.unwrap_or_else(|| args.tp_size.saturating_mul(args.pp_size).saturating_mul(replicas));
    let with = |(memory, price): (&'static str, Option<NumberRange>)| {
        let prices = CachePrices { gpu_hour, gb_month: price?, prefill_tokens_per_second: speed, gpus, trace_hours };
        Some(MemoryPrice { memory, prices })
    };
    Ok(memories.into_iter().filter_map(with).collect())
}

/// The row of a point. `hits` are the hit tokens that an L3 of this size adds, and `before` the row
/// and the bytes of the point before.
pub(super) fn row(price: &MemoryPrice, hits: u64, bytes: u64, before: Option<(&WorthRow, u64)>) -> WorthRow {
    let [low, high] = [PriceCase::Low, PriceCase::High].map(|case| price.prices.worth(hits, bytes, case));
    let both = |value: fn(&CacheWorth) -> f64| [value(&low), value(&high)];
    let net = both(CacheWorth::net);
    let (net_before, bytes_before) = before.map_or(([0.0; 2], 0), |(row, bytes)| (row.net, bytes));
    let gib = bytes.saturating_sub(bytes_before) as f64 / ByteSize::GIB as f64;
    let per_gib = |at: usize| if gib > 0.0 { (net[at] - net_before[at]) / gib } else { 0.0 };
    WorthRow {
        memory: price.memory,
        gpu_hours: both(|worth| worth.gpu_hours),
        saved: both(|worth| worth.saved),
        cost: [low.cost.min(high.cost), low.cost.max(high.cost)],
        net,
        net_per_gib: [per_gib(0), per_gib(1)],
    }
}

/// Two bounds as text: one number if they are equal.
pub(super) fn range([low, high]: [f64; 2]) -> String {
    let (low, high) = (amount(low), amount(high));
    if low == high { low } else { format!("{low} to {high}") }
}

/// An amount without more digits than its size deserves.
fn amount(value: f64) -> String {
    if value.abs() >= 10.0 || value == 0.0 { format!("{value:.0}") } else { format!("{value:.2}") }
}

/// The saved price, cost and net of a point for one kind of memory, as text.
pub(super) fn worth_text(point: &CurvePoint, memory: &str) -> Option<String> {
    let row = point.worth.iter().find(|row| row.memory == memory)?;
    Some(format!(
        "saves {} GPU hours worth {} per month, costs {}: net {}",
        range(row.gpu_hours),
        range(row.saved),
        range(row.cost),
        range(row.net)
    ))
}
