//! A rank's L2 memory: exact if the model's geometry is known, otherwise bounds.

use crate::plan::SizingError;
use crate::plan::error::narrow;
use crate::plan::geometry::Geometry;
use crate::plan::host_pool::{self, HostPool, L2Size};
use crate::plan::layout::ParallelLayout;
use crate::plan::models::MODELS;
use crate::plan::sizing_input::SizingInput;

/// A closed range for a value that is not known exactly.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ValueRange {
    pub least: u64,
    pub most: u64,
}

impl ValueRange {
    /// Returns a range with a single value.
    pub fn exactly(value: u64) -> ValueRange {
        ValueRange { least: value, most: value }
    }

    /// Whether the range has a single value.
    pub fn is_exact(&self) -> bool {
        self.least == self.most
    }

    /// Applies `f` to both ends.
    pub fn map(self, f: impl Fn(u64) -> u64) -> ValueRange {
        ValueRange { least: f(self.least), most: f(self.most) }
    }
}

/// A rank's L2 memory, before rounding up to huge pages.
#[derive(Clone, Copy, Debug)]
pub struct L2Memory {
    /// The pool, if the model's geometry is known.
    pub pool: Option<HostPool>,
    /// Size of the largest buffer, in bytes. SGLang's startup memory check applies to this buffer.
    pub buffer: ValueRange,
    /// Size of the side pools, in bytes.
    pub side: ValueRange,
    pub buffers: u64,
}

/// Computes the L2 memory of one rank per stage: exact if all layers keep all tokens, otherwise
/// bounds.
///
/// # Errors
/// SGLang rejects the sizes, or a value overflows.
pub fn l2(wanted: &SizingInput) -> Result<Vec<L2Memory>, SizingError> {
    let pools = |geometry: &Geometry| {
        host_pool::pools(wanted.l2_size, wanted.page_size, geometry, &wanted.layout, wanted.cache)
    };
    match &wanted.geometry {
        Some(geometry) if geometry.window_layers == 0 => Ok(pools(geometry)?.into_iter().map(exact).collect()),
        Some(geometry) => windowed(wanted, geometry),
        None => {
            let L2Size::Gb(gb) = wanted.l2_size else { return Err(SizingError::ConfigField { field: "model" }) };
            let least = narrow(u128::from(gb) * 1_000_000_000, "the L2 pool size")?;
            let mut most = ValueRange::exactly(least);
            let mut side = 0;
            // Models with fewer layers than stages are skipped.
            for pool in MODELS.iter().filter_map(|model| pools(&model.geometry).ok()).flatten() {
                most.most = most.most.max(pool.bytes);
                side = side.max(pool.side_bytes);
            }
            let stage = || L2Memory { pool: None, buffer: most, side: ValueRange { least: 0, most: side }, buffers: 1 };
            Ok((0..wanted.layout.pp()).map(|_| stage()).collect())
        }
    }
}

fn exact(pool: HostPool) -> L2Memory {
    L2Memory {
        pool: Some(pool),
        buffer: ValueRange::exactly(pool.bytes),
        side: ValueRange::exactly(pool.side_bytes),
        buffers: 1 + u64::from(pool.side_bytes > 0),
    }
}

/// A fixed size is split between full and sliding layers in proportion to their device memory,
/// which is unknown until the server is running. Each of the two pools gets an additional page.
/// With a ratio, each pool has its own number of tokens, and the pool for the sliding layers has no
/// more than the pool for the full layers.
fn windowed(wanted: &SizingInput, geometry: &Geometry) -> Result<Vec<L2Memory>, SizingError> {
    let too_large = SizingError::TooLarge { what: "the L2 pool size" };
    let tp = wanted.layout.attention_tp();
    let mut stages = Vec::new();
    for stage in 0..wanted.layout.pp() {
        let layers = wanted.layout.layers_of_stage(geometry.layers + geometry.window_layers, stage)?;
        // Layer types alternate, so a single stage may contain all layers of one type.
        let full = geometry.token_bytes(layers.min(geometry.layers), tp, wanted.cache)?;
        let window = geometry.token_bytes(layers.min(geometry.window_layers), tp, wanted.cache)?;
        let page = |bytes: u64| bytes.checked_mul(wanted.page_size).ok_or(too_large.clone());
        let (buffer, side) = match wanted.l2_size {
            L2Size::Gb(gb) => {
                let size = narrow(u128::from(gb) * 1_000_000_000, "the L2 pool size")?;
                let most = size.checked_add(page(full)?).ok_or(too_large.clone())?;
                (ValueRange { least: size, most }, ValueRange { least: 0, most: page(window)? })
            }
            L2Size::Ratio { .. } => {
                let all = Geometry { layers: layers.min(geometry.layers), window_layers: 0, ..*geometry };
                let flat = ParallelLayout::new(tp, 1, 1, false, 1)?;
                let pools = host_pool::pools(wanted.l2_size, wanted.page_size, &all, &flat, wanted.cache)?;
                let pool = pools.first().copied().ok_or(too_large.clone())?;
                let side = pool.tokens.checked_mul(window).ok_or(too_large.clone())?;
                (ValueRange::exactly(pool.bytes), ValueRange { least: 0, most: side })
            }
        };
        stages.push(L2Memory { pool: None, buffer, side, buffers: 2 });
    }
    Ok(stages)
}
