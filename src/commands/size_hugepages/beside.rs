//! Comparisons with other sources: upstream's script and a published measurement.

use serde::Serialize;

use crate::commands::size_hugepages::Args;
use crate::commands::size_hugepages::request::SizingRequest;
use crate::engine::plan::client::{ArenaUse, GIB1};
use crate::engine::plan::geometry::CacheType;
use crate::engine::plan::need::MemoryNeed;
use crate::engine::plan::tiers::{self, StoredPage};
use crate::engine::plan::upstream;

/// What upstream's script reports for the same deployment.
#[derive(Clone, Debug, Serialize)]
pub(super) struct UpstreamRow {
    /// L2 and segments for all ranks.
    pub baseline_bytes: u64,
    pub clean_bytes: u64,
    /// mcctl's upper bound for the ranks in one group.
    pub counted_bytes: u64,
    pub why: Vec<ScriptDifference>,
}

/// Why the script's result differs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum ScriptDifference {
    #[error("it interprets the GB in --hicache-size as GiB")]
    GbAsGib,
    #[error("it uses the size unchanged, but SGLang receives a whole number of GB (10^9 bytes)")]
    SizeAsGiven,
    #[error("it omits the padding page, the rounding to huge pages, and a 16 MiB local buffer per rank")]
    PaddingAndBuffer,
    #[error("it counts the whole segment for every rank; SGLang divides the segment by tp x pp")]
    SegmentPerRank,
    #[error("it counts the segment in addition to the arena that contains it")]
    SegmentInArena,
    #[error("it omits further pools (index, sliding layers, states)")]
    SidePools,
    #[error("it omits pipeline stages, data parallel groups, hosts and store services")]
    ParallelLayout,
    #[error("it omits the regular (non-hugepage) memory that SGLang checks at startup")]
    Guard,
    #[error("it ignores that the 16 MiB local buffer needs a whole 1 GiB page")]
    BufferPage,
}

impl Serialize for ScriptDifference {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// The measurement in KEP-74.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Kep74Comparison {
    pub keys: u64,
    pub shown_gib: f64,
    /// The computed size of these keys.
    pub bytes: u64,
    /// The unexplained difference.
    pub unexplained_percent: f64,
}

/// Runs upstream's script with the same values, if it supports them: huge pages, an explicit L2
/// size and one host.
pub(super) fn upstream_row(args: &Args, need: &MemoryNeed, page: u64) -> Option<UpstreamRow> {
    let gb = args.hicache_size.as_deref().filter(|_| !args.no_hugepages)?;
    // The script does not support decimal GB and would interpret a number without a unit as bytes.
    let is_bare = gb.trim().bytes().all(|b| b.is_ascii_digit() || b == b'_');
    let request = upstream::ScriptInput {
        tp: i128::from(args.tp_size),
        hicache: if is_bare { format!("{}gb", gb.trim()) } else { gb.to_owned() },
        segment: args.segment_text().to_owned(),
        arena: args.arena_pool_size.clone(),
        hugepage: args.hugepage_size.clone(),
        available: Some("0".to_owned()),
    };
    let estimate = upstream::estimate(&request, &|_| None).ok()?;
    let counted = need.most.bytes().saturating_sub(need.service_pages.bytes());
    let mut why = vec![
        if is_bare { ScriptDifference::GbAsGib } else { ScriptDifference::SizeAsGiven },
        ScriptDifference::PaddingAndBuffer,
    ];
    if args.tp_size > 1 && need.rank_segment > 0 {
        why.push(ScriptDifference::SegmentPerRank);
    }
    if matches!(need.ranks.first()?.client.arena, ArenaUse::Fits { .. }) {
        why.push(ScriptDifference::SegmentInArena);
    }
    if need.ranks.first()?.buffers > 1 {
        why.push(ScriptDifference::SidePools);
    }
    if args.pp_size > 1 || args.dp_size > 1 || args.nnodes > 1 || args.store_services > 0 {
        why.push(ScriptDifference::ParallelLayout);
    }
    why.push(ScriptDifference::Guard);
    why.extend((page == GIB1).then_some(ScriptDifference::BufferPage));
    Some(UpstreamRow {
        baseline_bytes: u64::try_from(estimate.baseline_total).ok()?,
        clean_bytes: u64::try_from(estimate.clean_total).ok()?,
        counted_bytes: u64::try_from(counted).ok()?,
        why,
    })
}

/// The measurement, if the deployment matches the measured configuration.
pub(super) fn kep74(request: &SizingRequest, stored: Option<&StoredPage>) -> Option<Kep74Comparison> {
    let wanted = &request.wanted;
    let is_it = request.model.as_ref().is_some_and(|(name, _)| name == "Qwen3-32B")
        && wanted.page_size == 1
        && wanted.cache == CacheType::Half
        && wanted.layout.attention_tp() * wanted.layout.pp() == 1;
    let kep = tiers::kep74(stored.filter(|_| is_it)?.object_bytes);
    Some(Kep74Comparison {
        keys: kep.keys,
        shown_gib: kep.shown_gib_hundredths as f64 / 100.0,
        bytes: kep.bytes,
        unexplained_percent: kep.unexplained_hundredths_percent as f64 / 100.0,
    })
}
