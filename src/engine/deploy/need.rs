//! Memory, huge pages and segments of a process, from [`crate::engine::plan`].

use crate::engine::deploy::error::wrong;
use crate::engine::deploy::{DeployError, Deployment, Device, HugePageSize, KvCache, Protocol};
use crate::engine::plan::client::{self, ClientWish, GIB1, LOCAL_BUFFER_BYTES, MIB2, PLAIN_SEGMENT_BYTES_MIN};
use crate::engine::plan::geometry::CacheType;
use crate::engine::plan::guard::RESERVE_BYTES;
use crate::engine::plan::host_pool::Wish;
use crate::engine::plan::layout::Layout;
use crate::engine::plan::need::{Deployment as Planned, REGION_BYTES, Services, need};
use crate::engine::plan::{PlanError, models};

/// What a rank takes beside its cache: Python, the libraries, the CUDA context, staging. An estimate on the safe side.
const RANK_BYTES: u64 = 4 << 30;
/// What an engine takes once: tokenizer, detokenizer, HTTP.
const ENGINE_BYTES: u64 = 4 << 30;
/// What a store node takes beside its memory: Python, the library, page tables.
const NODE_BYTES: u64 = 1 << 30;
/// The staging buffer of the SSD tier, `MOONCAKE_OFFLOAD_LOCAL_BUFFER_SIZE_BYTES`.
const STAGING_BYTES: u64 = 1_342_177_280;

/// What a process takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Taken {
    /// Ordinary memory with headroom, bytes; `None` where it cannot be known.
    pub memory: Option<u64>,
    /// Bytes of a huge page and their number.
    pub hugepages: Option<(u64, u64)>,
}

/// A tenth more, so that what is not counted does not end the process.
fn with_headroom(bytes: u64) -> u64 {
    bytes.saturating_add(bytes / 10)
}

fn page(wanted: &Deployment) -> Option<u64> {
    match wanted.hugepages.size {
        HugePageSize::None => None,
        HugePageSize::Mib2 => Some(MIB2),
        HugePageSize::Gib1 => Some(GIB1),
    }
}

fn nic_nodes(wanted: &Deployment) -> u64 {
    if wanted.transfer.protocol == Protocol::Rdma { wanted.transfer.nic_nodes } else { 0 }
}

/// Ranks on one host of a server.
pub(crate) fn layout(wanted: &Deployment) -> Result<Layout, DeployError> {
    let model = &wanted.model;
    Layout::new(model.tp, model.pp, model.dp, model.dp_attention, wanted.serving.nnodes.into())
        .map_err(|error| DeployError::Plan { key: "model", error })
}

/// The processes of a server on one of its hosts: its GPUs, where it has some.
pub(crate) fn ranks_on_host(wanted: &Deployment) -> Result<u64, DeployError> {
    Ok(layout(wanted)?.stages_of_host(0).len() as u64)
}

/// What a serving process with all its ranks of one host takes; without HiCache, when it does not use the store.
pub(crate) fn engine(wanted: &Deployment, uses_store: bool) -> Result<Taken, DeployError> {
    let model = &wanted.model;
    let layout = layout(wanted)?;
    let ranks = layout.stages_of_host(0).len() as u64;
    let shm = wanted.serving.shm.0;
    // With the CPU as device, weights and cache are in the same memory, and nothing here knows them.
    let on_gpu = wanted.serving.device == Device::Cuda;
    let bare = RANK_BYTES * ranks + ENGINE_BYTES + shm;
    if !uses_store {
        return Ok(Taken { memory: on_gpu.then(|| with_headroom(bare)), hugepages: None });
    }
    let page = page(wanted);
    let rank_segment = wanted.segment.engines.0 / (layout.attention_tp() * layout.pp());
    if wanted.segment.engines.0 > 0 && rank_segment < PLAIN_SEGMENT_BYTES_MIN && page.is_none() {
        let what = format!(
            "{} over {} ranks is {rank_segment} bytes each, and the store takes 16 MiB at least",
            wanted.segment.engines,
            layout.attention_tp() * layout.pp()
        );
        return Err(wrong("segment.engines", what));
    }
    let wish = match (model.hicache_size_gb, model.device_tokens) {
        (Some(gb), _) => Some(Wish::Gb(gb)),
        (None, Some(device_tokens)) => Some(Wish::Ratio { ratio: ratio(wanted), device_tokens }),
        (None, None) => None,
    };
    let Some(wish) = wish else { return Ok(Taken { memory: None, hugepages: None }) };
    let known = if model.known_as.is_empty() { model.path.trim_end_matches('/') } else { &model.known_as };
    let geometry = match models::by_name(known) {
        Ok(found) => Some(found.geometry),
        Err(error) if !model.known_as.is_empty() => return Err(DeployError::Plan { key: "model.known_as", error }),
        // A ratio of tokens says nothing without the bytes of one.
        Err(_) if matches!(wish, Wish::Ratio { .. }) => {
            if page.is_some() {
                return Err(wrong(
                    "model.known_as",
                    "pages for a ratio need a known model; name one, or give hicache_size_gb",
                ));
            }
            return Ok(Taken { memory: None, hugepages: None });
        }
        Err(_) => None,
    };
    let cache = match model.kv_cache {
        KvCache::Auto | KvCache::Bf16 => CacheType::Half,
        KvCache::Fp8E4m3 | KvCache::Fp8E5m2 => CacheType::Fp8,
    };
    let planned = Planned {
        layout,
        geometry,
        cache,
        page_size: model.page_size,
        wish,
        group_segment: wanted.segment.engines.0,
        arena: 0,
        page: page.unwrap_or(MIB2),
        default_page: MIB2,
        nic_nodes: nic_nodes(wanted),
        region: REGION_BYTES,
        services: Services::default(),
    };
    let found = need(&planned).map_err(|error| DeployError::Plan { key: "model", error })?;
    let too_large =
        || DeployError::Plan { key: "model", error: PlanError::TooLarge { what: "the memory of a server" } };
    let l2 = found.ranks.iter().map(|rank| rank.l2.most).max().unwrap_or(0);
    // SGLang's guard asks for L2 and a reserve of ordinary memory even where L2 is of huge pages.
    let mut bytes = l2.checked_mul(ranks).and_then(|l2| l2.checked_add(bare + RESERVE_BYTES)).ok_or_else(too_large)?;
    if page.is_none() {
        let lent = (rank_segment + LOCAL_BUFFER_BYTES).checked_mul(ranks).ok_or_else(too_large)?;
        bytes = bytes.checked_add(lent).ok_or_else(too_large)?;
    }
    Ok(Taken {
        memory: on_gpu.then(|| with_headroom(bytes)),
        hugepages: page.map(|page| (page, found.most.count(page))),
    })
}

/// `--hicache-ratio`, SGLang's own where the file has none.
pub(crate) fn ratio(wanted: &Deployment) -> f64 {
    wanted.model.hicache_ratio.unwrap_or(2.0)
}

/// What a store node takes.
pub(crate) fn node(wanted: &Deployment) -> Result<Taken, DeployError> {
    let nodes = &wanted.nodes;
    let page = page(wanted);
    if nodes.segment.0 < PLAIN_SEGMENT_BYTES_MIN && page.is_none() {
        let what = format!("{} is less than the 16 MiB that the store takes at least", nodes.segment);
        return Err(wrong("nodes.segment", what));
    }
    let staging = if nodes.ssd_path.is_empty() { 0 } else { STAGING_BYTES };
    let Some(page) = page else {
        let bytes = nodes.segment.0.saturating_add(nodes.local_buffer.0).saturating_add(staging + NODE_BYTES);
        return Ok(Taken { memory: Some(with_headroom(bytes)), hugepages: None });
    };
    let wish = ClientWish {
        segment: nodes.segment.0,
        local_buffer: nodes.local_buffer.0,
        arena: 0,
        page,
        default_page: MIB2,
        nic_nodes: nic_nodes(wanted),
    };
    let client = client::client(&wish).map_err(|error| DeployError::Plan { key: "nodes.segment", error })?;
    // Whether staging is of huge pages depends on the backend: there is room for it in both.
    let pages = client.pages.count(page) + staging.div_ceil(page);
    Ok(Taken { memory: Some(with_headroom(NODE_BYTES + staging)), hugepages: Some((page, pages)) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::deploy::Size;

    fn wanted() -> Deployment {
        let mut wanted = Deployment::default();
        wanted.model.path = "Qwen/Qwen3-32B".to_owned();
        wanted.model.tp = 4;
        wanted.model.hicache_size_gb = Some(64);
        wanted.segment.engines = Size(8 << 30);
        wanted
    }

    #[test]
    fn a_server_takes_its_l2_its_segments_the_guards_reserve_and_a_tenth_more() {
        let l2 = 4 * 64_000_884_736u64;
        let rest = 8 * (1u64 << 30) + 4 * (16 << 20) + 4 * RANK_BYTES + ENGINE_BYTES + (16 << 30) + RESERVE_BYTES;
        let taken = engine(&wanted(), true).unwrap();
        assert_eq!(taken, Taken { memory: Some((l2 + rest) + (l2 + rest) / 10), hugepages: None });
    }

    #[test]
    fn huge_pages_are_those_of_the_plan_and_the_guard_still_wants_ordinary_memory() {
        let mut wanted = wanted();
        wanted.hugepages.size = HugePageSize::Mib2;
        let taken = engine(&wanted, true).unwrap();
        assert_eq!(taken.hugepages, Some((MIB2, 4 * (30_518 + 1_024 + 8))));
        assert!(taken.memory.unwrap() > 4 * 64_000_884_736);
    }

    #[test]
    fn a_ratio_of_an_unknown_pool_has_no_limit_and_too_small_a_segment_is_refused() {
        let mut wanted = wanted();
        wanted.model.hicache_size_gb = None;
        assert_eq!(engine(&wanted, true).unwrap().memory, None);
        wanted.segment.engines = Size(60 << 20);
        assert!(engine(&wanted, true).unwrap_err().to_string().contains("16 MiB at least"));
        wanted.nodes.segment = Size(1 << 20);
        assert!(node(&wanted).unwrap_err().to_string().contains("16 MiB"));
    }

    #[test]
    fn a_node_has_room_for_more_than_its_segment() {
        let mut wanted = wanted();
        wanted.nodes.segment = Size(10 << 30);
        assert_eq!(node(&wanted).unwrap().memory, Some(with_headroom(11 << 30)));
        wanted.nodes.ssd_path = "/ssd".to_owned();
        assert_eq!(node(&wanted).unwrap().memory, Some(with_headroom((11 << 30) + STAGING_BYTES)));
    }
}
