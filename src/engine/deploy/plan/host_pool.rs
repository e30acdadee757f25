//! A rank's L2 pools: the units, pages and bytes that result from `--hicache-size`,
//! `--hicache-ratio`, or neither.
//!
//! Source: `sglang/srt/mem_cache/pool_host/base.py`, `HostKVCache.__init__`; `pool_host/mamba.py`;
//! `hybrid_cache/hybrid_pool_assembler.py`; `hicache_auto_size.py`.

use crate::plan::SizingError;
use crate::plan::device_pool::{DeviceUnits, device_units};
use crate::plan::error::narrow;
use crate::plan::geometry::{COMPRESSED_PAGE, Geometry, IndexRow, PoolKind, PoolShape};
use crate::plan::guard;
use crate::plan::sizing_input::SizingInput;

/// The setting that determines the size of L2.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum L2Size {
    /// `--hicache-size`, in decimal GB per rank.
    Gb(u64),
    /// `--hicache-ratio`, the pool size relative to the device pool.
    Ratio {
        ratio: f64,
        /// Capacity of the device pool, in tokens (`max_total_num_tokens` in SGLang's log).
        device_tokens: u64,
    },
    /// Neither: SGLang lowers the default ratio until the pools fit.
    Auto {
        /// The ratio to start from.
        ratio: f64,
        /// `--hicache-host-memory-fraction`.
        fraction: f64,
        device_tokens: u64,
        /// Available regular memory on the host when SGLang starts, in bytes.
        available: u64,
    },
}

/// SGLang's default of `--hicache-ratio`.
pub const RATIO: f64 = 2.0;
/// The same with `--hicache-host-memory-mode buffer_only`.
pub const BUFFER_RATIO: f64 = 1.2;
/// SGLang's default of `--hicache-host-memory-fraction`.
pub const MEMORY_FRACTION: f64 = 0.8;
/// The part of that memory that SGLang plans with.
const PLANNED: f64 = 0.95;

/// One pool of a rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostPool {
    pub kind: PoolKind,
    /// Layers with an entry in the pool.
    pub layers: u64,
    /// Bytes per unit: a token, a slot, or a page of compressed tokens.
    pub unit_bytes: u64,
    /// Capacity in units, including padding.
    pub units: u64,
    /// Pages, including padding; for slots the same as `units`.
    pub pages: u64,
    /// Sizes of the pool's buffers, in bytes.
    pub buffers: Vec<u64>,
}

impl HostPool {
    /// Size of all buffers, in bytes.
    pub fn bytes(&self) -> u64 {
        self.buffers.iter().fold(0, |sum: u64, bytes| sum.saturating_add(*bytes))
    }
}

/// The pools of one rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RankPools {
    /// In SGLang's order; the first determines the number of token pages.
    pub pools: Vec<HostPool>,
    /// Whether the sizes of the pools are estimates, because they depend on unknown device pools.
    /// Their sum is nevertheless between [`RankPools::least_bytes`] and [`RankPools::most_bytes`].
    pub is_estimate: bool,
    /// The fixed size that the pools share, in bytes, and what they may exceed it by.
    shared: Option<(u64, u64)>,
}

impl RankPools {
    fn sum(&self) -> u64 {
        self.pools.iter().map(HostPool::bytes).fold(0, u64::saturating_add)
    }

    /// Lower bound of the size of all pools, in bytes.
    pub fn least_bytes(&self) -> u64 {
        self.shared.filter(|_| self.is_estimate).map_or_else(|| self.sum(), |(size, _)| size)
    }

    /// Upper bound of the size of all pools, in bytes.
    pub fn most_bytes(&self) -> u64 {
        self.shared.filter(|_| self.is_estimate).map_or_else(|| self.sum(), |(size, more)| size.saturating_add(more))
    }
}

/// Maximum number of units on the device, and of tokens per page. With the limits of dimensions and
/// layers, a product of units, bytes and GB stays below 2^127.
pub const DEVICE_UNITS_MAX: u64 = 1 << 40;
/// Maximum number of units: 2^48 one-byte tokens fill a host's address space.
const UNITS_MAX: u128 = 1 << 48;
/// One GB of `--hicache-size`, in bytes.
pub const GB: u64 = 1_000_000_000;

/// `units` times `ratio`, rounded down.
fn scaled(units: u64, ratio: f64) -> Result<u64, SizingError> {
    if !ratio.is_finite() || ratio <= 0.0 {
        return Err(SizingError::Ratio);
    }
    let scaled = units as f64 * ratio;
    if scaled >= UNITS_MAX as f64 {
        return Err(SizingError::TooLarge { what: "the L2 pool size" });
    }
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "positive and below 2^48")]
    Ok(scaled as u64)
}

/// The pool's capacity for a ratio, in tokens, including the padding page. It does not depend on
/// the model, if all layers keep all tokens.
///
/// # Errors
/// The ratio is not a positive number, or the result overflows.
pub fn ratio_tokens(ratio: f64, device_tokens: u64, page_size: u64) -> Result<u64, SizingError> {
    let pages =
        scaled(device_tokens, ratio)?.checked_div(page_size).ok_or(SizingError::Zero { what: "the page size" })?;
    narrow((u128::from(pages) + 1) * u128::from(page_size), "the L2 pool size")
}

/// Computes the pools of one rank per pipeline stage.
///
/// With a fixed size, every stage gets the number of tokens that fit in the stage with the most
/// bytes per token (`sync_fixed_hicache_size`). SGLang always adds one page, so the pools exceed
/// the configured size. Pools with a size of their own share it in proportion to the device's pools
/// (`_split_hicache_size`); an index follows the tokens and is not part of the configured size.
///
/// # Errors
/// SGLang rejects the combination, or a value overflows.
pub fn pools(wanted: &SizingInput, geometry: &Geometry) -> Result<Vec<RankPools>, SizingError> {
    if wanted.page_size == 0 {
        return Err(SizingError::Zero { what: "the page size" });
    }
    let device = [wanted.device.tokens, wanted.device.window_tokens, wanted.device.slots];
    if device.iter().flatten().any(|units| *units > DEVICE_UNITS_MAX) || wanted.page_size > DEVICE_UNITS_MAX {
        return Err(SizingError::TooLarge { what: "the device pool" });
    }
    if geometry.compressed.is_some() {
        if matches!(wanted.l2_size, L2Size::Gb(_)) {
            return Err(SizingError::FixedSize);
        }
        if wanted.page_size != COMPRESSED_PAGE {
            return Err(SizingError::CompressedPage { found: wanted.page_size });
        }
    }
    let stages: Vec<Vec<PoolShape>> = shapes(wanted, geometry)?;
    let units = match wanted.l2_size {
        L2Size::Gb(gb) => fixed_units(gb, wanted, geometry, &stages)?,
        L2Size::Ratio { ratio, .. } => ratio_units(ratio, wanted, geometry)?,
        L2Size::Auto { .. } => ratio_units(auto_ratio(wanted, geometry, &stages)?, wanted, geometry)?,
    };
    stages.iter().map(|shapes| rank_pools(shapes, &units, wanted, geometry)).collect()
}

/// The ratio that SGLang selects by itself (`auto_size_hicache`).
///
/// # Errors
/// SGLang rejects the combination, or a value overflows.
pub fn selected_ratio(wanted: &SizingInput, geometry: &Geometry) -> Result<Option<f64>, SizingError> {
    match wanted.l2_size {
        L2Size::Auto { .. } => Ok(Some(auto_ratio(wanted, geometry, &shapes(wanted, geometry)?)?)),
        L2Size::Gb(_) | L2Size::Ratio { .. } => Ok(None),
    }
}

fn shapes(wanted: &SizingInput, geometry: &Geometry) -> Result<Vec<Vec<PoolShape>>, SizingError> {
    let layout = &wanted.layout;
    geometry.check_tp(layout.attention_tp())?;
    let stages = geometry.pools_of_stages(layout, wanted.cache)?;
    let has_anchor = |shapes: &Vec<PoolShape>| shapes.iter().any(|shape| shape.kind == PoolKind::Kv);
    let is_valid = geometry.compressed.is_some() || stages.iter().all(has_anchor);
    if is_valid { Ok(stages) } else { Err(SizingError::NoAttention) }
}

/// Units per pool before padding, and whether they are exact.
struct WantedUnits {
    tokens: u64,
    window_tokens: u64,
    slots: u64,
    is_estimate: bool,
    /// The fixed size in bytes.
    fixed: Option<u64>,
}

fn fixed_units(
    gb: u64,
    wanted: &SizingInput,
    geometry: &Geometry,
    stages: &[Vec<PoolShape>],
) -> Result<WantedUnits, SizingError> {
    let size = u128::from(gb) * u128::from(GB);
    let mut units = WantedUnits {
        tokens: u64::MAX,
        window_tokens: u64::MAX,
        slots: u64::MAX,
        is_estimate: false,
        fixed: Some(narrow(size, "the L2 pool size")?),
    };
    // Draft layers have pools of their own on the device, which do not count.
    let targets = shapes(wanted, &Geometry { draft_layers: 0, ..geometry.clone() })?;
    for (shapes, targets) in stages.iter().zip(&targets) {
        let sharing: Vec<&PoolShape> = shapes.iter().filter(|shape| shares(shape.kind)).collect();
        let device = device_units(wanted, geometry, targets)?;
        // With speculation, the states on the device include snapshots, whose number is unknown.
        let has_snapshots = geometry.draft_layers > 0 && geometry.has_states();
        units.is_estimate |= sharing.len() > 1 && (!device.is_exact || has_snapshots);
        // On the device, an index is part of the pool of tokens.
        let weight = |wanted: &PoolShape| {
            let is_part = |kind| kind == wanted.kind || (kind == PoolKind::Indexer && wanted.kind == PoolKind::Kv);
            targets.iter().filter(|target| is_part(target.kind)).map(|target| device.bytes(target)).sum::<u128>()
        };
        let total: u128 = sharing.iter().map(|shape| weight(shape)).sum();
        for shape in &sharing {
            let bytes = u128::from(shape.unit_bytes());
            let count = if sharing.len() == 1 {
                size.checked_div(bytes).ok_or(SizingError::Zero { what: "the token size" })?
            } else {
                share(gb, weight(shape), total, shape.unit_bytes())?
            };
            let least = match shape.kind {
                PoolKind::Swa => &mut units.window_tokens,
                PoolKind::Mamba => &mut units.slots,
                _ => &mut units.tokens,
            };
            *least = (*least).min(narrow(count, "the L2 pool size")?);
        }
    }
    Ok(units)
}

/// Whether a pool has a share of a fixed size of its own.
fn shares(kind: PoolKind) -> bool {
    matches!(kind, PoolKind::Kv | PoolKind::Swa | PoolKind::Mamba)
}

/// Units in a share of `gb` GB, in the floating-point arithmetic of SGLang.
fn share(gb: u64, weight: u128, total: u128, unit_bytes: u64) -> Result<u128, SizingError> {
    if total == 0 || unit_bytes == 0 {
        return Err(SizingError::Zero { what: "the token size" });
    }
    let own = (u128::from(gb) * weight) as f64 / total as f64;
    let units = (own * GB as f64 / unit_bytes as f64).floor();
    if units >= UNITS_MAX as f64 {
        return Err(SizingError::TooLarge { what: "the L2 pool size" });
    }
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "positive and below 2^48")]
    Ok(units as u128)
}

fn ratio_units(ratio: f64, wanted: &SizingInput, geometry: &Geometry) -> Result<WantedUnits, SizingError> {
    let device = DeviceUnits::of(wanted, geometry);
    let tokens = device.tokens.ok_or(SizingError::Ratio)?;
    let page = wanted.page_size;
    let (tokens, window_tokens) = if geometry.compressed.is_some() {
        // SGLang scales pages here.
        let pages = |tokens: u64| scaled(tokens.div_ceil(page), ratio);
        (pages(tokens)?, pages(device.window_tokens.unwrap_or(0))?)
    } else {
        (scaled(tokens, ratio)?, scaled(device.window_tokens.unwrap_or(0), ratio)?)
    };
    let slots = match wanted.device.slots {
        Some(slots) => scaled(slots, ratio)?,
        None if geometry.has_states() => return Err(SizingError::DeviceSlots),
        None => 0,
    };
    Ok(WantedUnits { tokens, window_tokens, slots, is_estimate: false, fixed: None })
}

fn auto_ratio(wanted: &SizingInput, geometry: &Geometry, stages: &[Vec<PoolShape>]) -> Result<f64, SizingError> {
    let L2Size::Auto { mut ratio, fraction, available, .. } = wanted.l2_size else { return Err(SizingError::Ratio) };
    if geometry.compressed.is_some() {
        return Err(SizingError::NotPerToken { why: "SGLang has no automatic size for it: set --hicache-ratio" });
    }
    if !(fraction > 0.0 && fraction <= 1.0) {
        return Err(SizingError::Ratio);
    }
    if geometry.has_states() && wanted.device.slots.is_none() {
        return Err(SizingError::DeviceSlots);
    }
    let budget = (guard::budget(available, wanted.layout.guard_ranks()) as f64 * fraction).floor();
    for shapes in stages {
        let device = device_units(wanted, geometry, shapes)?;
        let bytes: u128 = shapes.iter().map(|shape| device.bytes(shape)).sum();
        ratio = ratio.min(budget * PLANNED / bytes.max(1) as f64);
    }
    if ratio > 0.0 { Ok(ratio) } else { Err(SizingError::NoMemory) }
}

/// The pools of one rank with these units.
fn rank_pools(
    shapes: &[PoolShape],
    units: &WantedUnits,
    wanted: &SizingInput,
    geometry: &Geometry,
) -> Result<RankPools, SizingError> {
    let page = u128::from(wanted.page_size);
    let padded = |tokens: u64| u128::from(tokens) / page + 1;
    // The unit of compressed pools is a page, and they have no padding.
    let is_compressed = geometry.compressed.is_some();
    let mut pools = Vec::new();
    let mut more = 0u128;
    for shape in shapes {
        let (pages, count) = match shape.kind {
            PoolKind::Mamba => (u128::from(units.slots) + 1, u128::from(units.slots) + 1),
            PoolKind::Swa | PoolKind::DeepseekV4C4State | PoolKind::DeepseekV4C4IndexerState if is_compressed => {
                (u128::from(units.window_tokens), u128::from(units.window_tokens))
            }
            _ if is_compressed => (u128::from(units.tokens), u128::from(units.tokens)),
            PoolKind::Swa => (padded(units.window_tokens), padded(units.window_tokens) * page),
            PoolKind::Indexer if matches!(geometry.index, Some(IndexRow::Scaled { .. })) => {
                // `dsa.py`, `indexer_page_num`: the tokens of the main pool, and one page.
                let pages = (padded(units.tokens) * page + page + 1) / page;
                (pages, pages * page)
            }
            _ => (padded(units.tokens), padded(units.tokens) * page),
        };
        if count == 0 {
            return Err(SizingError::EmptyPool { pool: shape.kind.name() });
        }
        if count > UNITS_MAX {
            return Err(SizingError::TooLarge { what: "the L2 pool size" });
        }
        let buffer = |bytes: &u64| narrow(count * u128::from(*bytes), "the L2 pool size");
        let buffers: Result<Vec<u64>, SizingError> = shape.buffers.iter().map(buffer).collect();
        let unit_bytes = shape.unit_bytes();
        more += u128::from(unit_bytes)
            * match (shape.kind, units.fixed, shapes.first()) {
                // It follows the tokens, of which there are at most as many as fill the whole size.
                (PoolKind::Indexer, Some(size), Some(kv)) => u128::from(size / kv.unit_bytes().max(1)) + 2 * page,
                _ if shape.has_slots() => 1,
                _ => page,
            };
        pools.push(HostPool {
            kind: shape.kind,
            layers: shape.layers,
            unit_bytes,
            units: narrow(count, "the L2 pool size")?,
            pages: narrow(pages, "the L2 pool size")?,
            buffers: buffers?,
        });
    }
    let more = narrow(more, "the L2 pool size")?;
    Ok(RankPools { pools, is_estimate: units.is_estimate, shared: units.fixed.map(|size| (size, more)) })
}

#[cfg(test)]
#[path = "host_pool_tests.rs"]
mod tests;
