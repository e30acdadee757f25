//! A rank's L2 memory: exact if the model's geometry is known, otherwise bounds.

use crate::plan::SizingError;
use crate::plan::error::narrow;
use crate::plan::host_pool::{self, GB, HostPool, L2Size, RankPools};
use crate::plan::models::models;
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

/// A rank's L2 memory.
#[derive(Clone, Debug)]
pub struct L2Memory {
    /// The pools; empty if the model's geometry is unknown.
    pub pools: Vec<HostPool>,
    /// Whether the sizes of single pools are estimates.
    pub is_estimate: bool,
    /// Size of the largest pool, in bytes. SGLang's startup memory check applies to each pool.
    pub largest: ValueRange,
    /// Size of all buffers, in bytes.
    pub bytes: ValueRange,
    /// Huge pages of the wanted size: each buffer has whole pages.
    pub huge_pages: ValueRange,
    /// Number of buffers.
    pub buffers: u64,
    /// Memory regions per NIC.
    pub regions: u64,
}

/// Computes the L2 memory of one rank per stage.
///
/// # Errors
/// SGLang rejects the sizes, or a value overflows.
pub fn l2(wanted: &SizingInput) -> Result<Vec<L2Memory>, SizingError> {
    match &wanted.geometry {
        Some(geometry) => Ok(host_pool::pools(wanted, geometry)?.into_iter().map(|rank| known(rank, wanted)).collect()),
        None => unknown(wanted),
    }
}

fn known(rank: RankPools, wanted: &SizingInput) -> L2Memory {
    let bytes = ValueRange { least: rank.least_bytes(), most: rank.most_bytes() };
    let largest = rank.pools.iter().map(HostPool::bytes).max().unwrap_or(0);
    let each = |size: u64| rank.pools.iter().flat_map(|pool| &pool.buffers).map(move |bytes| bytes.div_ceil(size));
    let buffers = rank.pools.iter().map(|pool| pool.buffers.len() as u64).sum();
    let region = wanted.region.max(1);
    let page = wanted.page;
    let (largest, huge_pages, regions) = if rank.is_estimate {
        // One pool may be as large as all of them, and the largest is at least the average.
        let sharing = rank.pools.len() as u64;
        (
            ValueRange { least: bytes.least / sharing.max(1), most: bytes.most },
            ValueRange { least: bytes.least.div_ceil(page), most: (bytes.most / page).saturating_add(buffers) },
            (bytes.most / region).saturating_add(buffers),
        )
    } else {
        let pages = each(page).fold(0, u64::saturating_add);
        (ValueRange::exactly(largest), ValueRange::exactly(pages), each(region).fold(0, u64::saturating_add))
    };
    let huge_pages = if wanted.uses_hugepages() { huge_pages } else { ValueRange::default() };
    L2Memory { is_estimate: rank.is_estimate, largest, bytes, huge_pages, buffers, regions, pools: rank.pools }
}

/// Bounds over all known models.
fn unknown(wanted: &SizingInput) -> Result<Vec<L2Memory>, SizingError> {
    let L2Size::Gb(gb) = wanted.l2_size else { return Err(SizingError::ConfigField { field: "model" }) };
    let least = narrow(u128::from(gb) * u128::from(GB), "the L2 pool size")?;
    let mut most = least;
    let mut largest = least;
    let mut buffers = 1;
    for model in models() {
        // Models with fewer layers than stages, or that SGLang cannot split like this, are skipped.
        for rank in host_pool::pools(wanted, &model.geometry).unwrap_or_default() {
            let memory = known(rank, wanted);
            most = most.max(memory.bytes.most);
            largest = largest.max(memory.largest.most);
            buffers = buffers.max(memory.buffers);
        }
    }
    let bytes = ValueRange { least, most };
    let huge_pages =
        ValueRange { least: least.div_ceil(wanted.page), most: (most / wanted.page).saturating_add(buffers) };
    let stage = || L2Memory {
        pools: Vec::new(),
        is_estimate: false,
        largest: ValueRange { least, most: largest },
        bytes,
        huge_pages: if wanted.uses_hugepages() { huge_pages } else { ValueRange::default() },
        buffers,
        regions: (most / wanted.region.max(1)).saturating_add(buffers),
    };
    Ok((0..wanted.layout.pp()).map(|_| stage()).collect())
}
