//! What others say of the same deployment: upstream's script, and a published figure.

use serde::Serialize;

use crate::commands::size_hugepages::Args;
use crate::commands::size_hugepages::question::Question;
use crate::engine::plan::client::{Arena, GIB1};
use crate::engine::plan::geometry::CacheType;
use crate::engine::plan::need::Need;
use crate::engine::plan::tiers::{self, StoredPage};
use crate::engine::plan::upstream;

/// What upstream's script reports for the same deployment.
#[derive(Clone, Debug, Serialize)]
pub struct UpstreamRow {
    /// L2 and segment of all ranks.
    pub baseline_bytes: u64,
    pub clean_bytes: u64,
    /// What mcctl counts for the ranks of a group, at most.
    pub counted_bytes: u64,
    pub why: Vec<String>,
}

/// KEP-74's figure.
#[derive(Clone, Debug, Serialize)]
pub struct Kep74Row {
    pub keys: u64,
    pub shown_gib: f64,
    /// What so many keys take.
    pub bytes: u64,
    /// The part that no source explains.
    pub unexplained_percent: f64,
}

/// Upstream's script on the same words, where it has them: a size, one host.
pub fn upstream_row(args: &Args, need: &Need, page: u64) -> Option<UpstreamRow> {
    let gb = args.hicache_size.as_deref()?;
    // The script has no decimal GB: it would read a bare number as bytes.
    let is_bare = gb.trim().bytes().all(|b| b.is_ascii_digit() || b == b'_');
    let request = upstream::Request {
        tp: i128::from(args.tp_size),
        hicache: if is_bare { format!("{}gb", gb.trim()) } else { gb.to_owned() },
        segment: args.global_segment_size.clone(),
        arena: args.arena_pool_size.clone(),
        hugepage: args.hugepage_size.clone(),
        available: Some("0".to_owned()),
    };
    let estimate = upstream::estimate(&request, &|_| None).ok()?;
    let counted = need.most.bytes().saturating_sub(need.service_pages.bytes());
    let l2 = if is_bare {
        "it reads the GB of --hicache-size as GiB"
    } else {
        "it counts the size as given; SGLang gets whole GB of 10^9 bytes"
    };
    let mut why = vec![
        l2.to_owned(),
        "it leaves out the padding page, the rounding to huge pages, and 16 MiB of local buffer per rank".to_owned(),
    ];
    if args.tp_size > 1 && need.rank_segment > 0 {
        why.push("it gives every rank the whole segment; SGLang divides it by tp x pp".to_owned());
    }
    if matches!(need.ranks.first()?.client.arena, Arena::Fits { .. }) {
        why.push("it counts the segment in addition to the arena that holds it".to_owned());
    }
    if need.ranks.first()?.buffers > 1 {
        why.push("it leaves out side pools (index, sliding layers)".to_owned());
    }
    if args.pp_size > 1 || args.dp_size > 1 || args.nnodes > 1 || args.store_services > 0 {
        why.push("it leaves out pipeline stages, data parallel groups, hosts and store services".to_owned());
    }
    why.push("it leaves out the ordinary memory that SGLang checks at start".to_owned());
    Some(UpstreamRow {
        baseline_bytes: u64::try_from(estimate.baseline_total).ok()?,
        clean_bytes: u64::try_from(estimate.clean_total).ok()?,
        counted_bytes: u64::try_from(counted).ok()?,
        why: if page == GIB1 {
            why.push("it leaves out that the 16 MiB local buffer needs a whole page of 1 GiB".to_owned());
            why
        } else {
            why
        },
    })
}

/// Shown for the configuration that it was measured with.
pub fn kep74(question: &Question, stored: Option<&StoredPage>) -> Option<Kep74Row> {
    let wanted = &question.wanted;
    let is_it = question.model.as_ref().is_some_and(|(name, _)| name == "Qwen3-32B")
        && wanted.page_size == 1
        && wanted.cache == CacheType::Half
        && wanted.layout.attention_tp() * wanted.layout.pp() == 1;
    let kep = tiers::kep74(stored.filter(|_| is_it)?.object_bytes);
    Some(Kep74Row {
        keys: kep.keys,
        shown_gib: kep.shown_gib_hundredths as f64 / 100.0,
        bytes: kep.bytes,
        unexplained_percent: kep.unexplained_hundredths_percent as f64 / 100.0,
    })
}
