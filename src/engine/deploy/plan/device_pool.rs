//! The capacities of the pools on the device. SGLang splits a fixed L2 size in proportion to their
//! bytes.

use crate::plan::SizingError;
use crate::plan::geometry::{Geometry, IndexRow, PoolKind, PoolShape};
use crate::plan::host_pool::L2Size;
use crate::plan::sizing_input::SizingInput;

/// Tokens that stand for a device pool of unknown size. With so many, padding is negligible.
const MANY_TOKENS: u64 = 1 << 40;

/// What is known about the capacities on the device.
#[derive(Clone, Copy, Debug)]
pub(super) struct DeviceUnits {
    pub(super) tokens: Option<u64>,
    pub(super) window_tokens: Option<u64>,
}

impl DeviceUnits {
    /// Source: `sglang/srt/model_executor/pool_configurator.py`, `HybridSWAPoolConfigurator`: both
    /// are whole pages, and the window's tokens are a share of the others.
    pub(super) fn of(wanted: &SizingInput, geometry: &Geometry) -> DeviceUnits {
        let page = wanted.page_size.max(1);
        let tokens = match wanted.l2_size {
            L2Size::Ratio { device_tokens, .. } | L2Size::Auto { device_tokens, .. } => Some(device_tokens),
            L2Size::Gb(_) => wanted.device.tokens,
        };
        let in_pages = |tokens: u64| tokens / page * page;
        let own = tokens.map(|tokens| {
            let share = u128::from(in_pages(tokens)) * u128::from(geometry.window_tenths) / 10;
            in_pages(u64::try_from(share).unwrap_or(u64::MAX))
        });
        DeviceUnits { tokens, window_tokens: wanted.device.window_tokens.or(own) }
    }
}

/// Units in each pool on the device, including its padding.
#[derive(Clone, Copy, Debug)]
pub(super) struct PaddedUnits {
    tokens: u64,
    window_tokens: u64,
    slots: u64,
    index_tokens: u64,
    /// Whether all of them are known.
    pub(super) is_exact: bool,
}

impl PaddedUnits {
    /// Bytes of the pool `shape` on the device.
    pub(super) fn bytes(&self, shape: &PoolShape) -> u128 {
        let units = match shape.kind {
            PoolKind::Swa => self.window_tokens,
            PoolKind::Mamba => self.slots,
            PoolKind::Indexer => self.index_tokens,
            _ => self.tokens,
        };
        u128::from(units) * u128::from(shape.unit_bytes())
    }
}

/// The capacities on the device for the pools `shapes` of a stage, estimated with SGLang's defaults
/// where they are unknown.
///
/// A token pool has one more page than tokens, a state pool one more slot, and an index the whole
/// pages for one more token (`sglang/srt/mem_cache/memory_pool.py`).
///
/// # Errors
/// A value overflows.
pub(super) fn device_units(
    wanted: &SizingInput,
    geometry: &Geometry,
    shapes: &[PoolShape],
) -> Result<PaddedUnits, SizingError> {
    let known = DeviceUnits::of(wanted, geometry);
    let page = wanted.page_size;
    let tokens = known.tokens.unwrap_or(MANY_TOKENS);
    let window_tokens = known.window_tokens.unwrap_or(MANY_TOKENS / 10 * geometry.window_tenths);
    let bytes_of = |kind, units: u64| {
        let bytes = shapes.iter().find(|shape| shape.kind == kind).map_or(0, |shape| shape.unit_bytes());
        u128::from(bytes) * u128::from(units)
    };
    let state_bytes = shapes.iter().find(|shape| shape.kind == PoolKind::Mamba).map(|shape| shape.unit_bytes());
    let slots = match (wanted.device.slots, state_bytes) {
        (Some(slots), _) => slots,
        (None, Some(bytes)) => {
            let others = bytes_of(PoolKind::Kv, tokens)
                + bytes_of(PoolKind::Indexer, tokens)
                + bytes_of(PoolKind::Swa, window_tokens);
            u64::try_from(others / 10 * u128::from(geometry.state_tenths) / u128::from(bytes.max(1)))
                .map_err(|_| SizingError::TooLarge { what: "the number of state slots" })?
        }
        (None, None) => 0,
    };
    let has = |kind| shapes.iter().any(|shape| shape.kind == kind);
    let is_exact = known.tokens.is_some() && (!has(PoolKind::Mamba) || wanted.device.slots.is_some());
    let more =
        |units: u64, padding: u64| units.checked_add(padding).ok_or(SizingError::TooLarge { what: "the device pool" });
    Ok(PaddedUnits {
        tokens: more(tokens, page)?,
        window_tokens: more(window_tokens, page)?,
        slots: more(slots, 1)?,
        index_tokens: match geometry.index {
            Some(IndexRow::Scaled { .. }) => more(tokens, page.saturating_add(1))? / page.max(1) * page.max(1),
            _ => more(tokens, page)?,
        },
        is_exact,
    })
}
