//! L2 of a rank: exact where a model says enough for that, else its bounds.

use crate::engine::plan::PlanError;
use crate::engine::plan::error::narrow;
use crate::engine::plan::geometry::Geometry;
use crate::engine::plan::host_pool::{self, HostPool, Wish};
use crate::engine::plan::layout::Layout;
use crate::engine::plan::models::MODELS;
use crate::engine::plan::need::Deployment;

/// Two ends of what is not known exactly.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bounds {
    /// At least.
    pub least: u64,
    /// At most.
    pub most: u64,
}

impl Bounds {
    /// One number.
    pub fn exactly(value: u64) -> Bounds {
        Bounds { least: value, most: value }
    }

    /// Is it one number?
    pub fn is_exact(&self) -> bool {
        self.least == self.most
    }

    /// Both ends, through `f`.
    pub fn map(self, f: impl Fn(u64) -> u64) -> Bounds {
        Bounds { least: f(self.least), most: f(self.most) }
    }
}

/// L2 of a rank, before pages.
#[derive(Clone, Copy, Debug)]
pub struct L2 {
    /// The pool, where the model says enough for one.
    pub pool: Option<HostPool>,
    /// Bytes of the largest buffer: what SGLang's guard looks at.
    pub buffer: Bounds,
    /// Bytes of the side pools.
    pub side: Bounds,
    pub buffers: u64,
}

/// L2 of a rank of each stage: exact where the model keeps all tokens of all layers, else bounds.
///
/// # Errors
/// SGLang refuses it, or figures are absurd.
pub fn l2(wanted: &Deployment) -> Result<Vec<L2>, PlanError> {
    let pools =
        |geometry: &Geometry| host_pool::pools(wanted.wish, wanted.page_size, geometry, &wanted.layout, wanted.cache);
    match &wanted.geometry {
        Some(geometry) if geometry.window_layers == 0 => Ok(pools(geometry)?.into_iter().map(exact).collect()),
        Some(geometry) => windowed(wanted, geometry),
        None => {
            let Wish::Gb(gb) = wanted.wish else { return Err(PlanError::ConfigField { field: "model" }) };
            let least = narrow(u128::from(gb) * 1_000_000_000, "the L2 pool")?;
            let mut most = Bounds::exactly(least);
            let mut side = 0;
            // A model with fewer layers than there are stages is none that is meant.
            for pool in MODELS.iter().filter_map(|model| pools(&model.geometry).ok()).flatten() {
                most.most = most.most.max(pool.bytes);
                side = side.max(pool.side_bytes);
            }
            let stage = || L2 { pool: None, buffer: most, side: Bounds { least: 0, most: side }, buffers: 1 };
            Ok((0..wanted.layout.pp()).map(|_| stage()).collect())
        }
    }
}

fn exact(pool: HostPool) -> L2 {
    L2 {
        pool: Some(pool),
        buffer: Bounds::exactly(pool.bytes),
        side: Bounds::exactly(pool.side_bytes),
        buffers: 1 + u64::from(pool.side_bytes > 0),
    }
}

/// Full and sliding layers share the size by what they take on the device, which only the running server knows, each with a page on
/// top. A ratio gives each pool its own tokens, of which the sliding layers have at most as many.
fn windowed(wanted: &Deployment, geometry: &Geometry) -> Result<Vec<L2>, PlanError> {
    let too_large = PlanError::TooLarge { what: "the L2 pool" };
    let tp = wanted.layout.attention_tp();
    let mut stages = Vec::new();
    for stage in 0..wanted.layout.pp() {
        let layers = wanted.layout.layers_of_stage(geometry.layers + geometry.window_layers, stage)?;
        // Kinds of layers alternate, so a stage has up to as many of each as all layers of that kind.
        let full = geometry.token_bytes(layers.min(geometry.layers), tp, wanted.cache)?;
        let window = geometry.token_bytes(layers.min(geometry.window_layers), tp, wanted.cache)?;
        let page = |bytes: u64| bytes.checked_mul(wanted.page_size).ok_or(too_large.clone());
        let (buffer, side) = match wanted.wish {
            Wish::Gb(gb) => {
                let size = narrow(u128::from(gb) * 1_000_000_000, "the L2 pool")?;
                let most = size.checked_add(page(full)?).ok_or(too_large.clone())?;
                (Bounds { least: size, most }, Bounds { least: 0, most: page(window)? })
            }
            Wish::Ratio { .. } => {
                let all = Geometry { layers: layers.min(geometry.layers), window_layers: 0, ..*geometry };
                let flat = Layout::new(tp, 1, 1, false, 1)?;
                let pools = host_pool::pools(wanted.wish, wanted.page_size, &all, &flat, wanted.cache)?;
                let pool = pools.first().copied().ok_or(too_large.clone())?;
                let side = pool.tokens.checked_mul(window).ok_or(too_large.clone())?;
                (Bounds::exactly(pool.bytes), Bounds { least: 0, most: side })
            }
        };
        stages.push(L2 { pool: None, buffer, side, buffers: 2 });
    }
    Ok(stages)
}
