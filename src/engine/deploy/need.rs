//! Memory, huge pages and segments of a process, computed by [`crate::plan`].

use crate::error::invalid_value;
use crate::plan::client::{self, ClientSizes, GIB1, LOCAL_BUFFER_BYTES, MIB2, PLAIN_SEGMENT_BYTES_MIN};
use crate::plan::geometry::{COMPRESSED_PAGE, CacheType, Geometry};
use crate::plan::guard::RESERVE_BYTES;
use crate::plan::host_pool::L2Size;
use crate::plan::layout::ParallelLayout;
use crate::plan::need::need;
use crate::plan::sizing_input::{DevicePools, REGION_BYTES, Services, SizingInput};
use crate::plan::{SizingError, models};
use crate::{BoundCause, ComputeDevice, DeployError, DeploymentSpec, FirmMemory, HugePageSize, KvCache, StoreProtocol};

/// Memory that a rank needs in addition to its cache: Python, libraries, the CUDA context, staging.
/// A conservative estimate, in bytes.
const RANK_BYTES: u64 = 4 << 30;
/// Memory that a server needs in addition to its ranks: tokenizer, detokenizer, HTTP. In bytes.
const ENGINE_BYTES: u64 = 4 << 30;
/// Memory that a store node needs in addition to its segment: Python, the library, page tables. In
/// bytes.
const NODE_BYTES: u64 = 1 << 30;
/// Staging buffer of the SSD tier, `MOONCAKE_OFFLOAD_LOCAL_BUFFER_SIZE_BYTES`.
const STAGING_BYTES: u64 = 1_342_177_280;

/// The memory requirements of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ProcessMemory {
    /// Base-page memory with headroom, in bytes. `None` if it cannot be computed.
    pub memory: Option<u64>,
    /// Huge page size in bytes, and the number of pages.
    pub hugepages: Option<(u64, u64)>,
    pub firm: FirmMemory,
}

impl ProcessMemory {
    /// Memory that cannot be computed.
    fn unknown() -> ProcessMemory {
        ProcessMemory { memory: None, hugepages: None, firm: FirmMemory::default() }
    }
}

/// Adds 10 % for allocations that are not modelled.
fn with_headroom(bytes: u64) -> u64 {
    bytes.saturating_add(bytes / 10)
}

fn page(spec: &DeploymentSpec) -> Option<u64> {
    match spec.hugepages.size {
        HugePageSize::None => None,
        HugePageSize::Mib2 => Some(MIB2),
        HugePageSize::Gib1 => Some(GIB1),
    }
}

fn nic_nodes(spec: &DeploymentSpec) -> u64 {
    if spec.transfer.protocol == StoreProtocol::Rdma { spec.nic_nodes() } else { 0 }
}

/// A server's ranks and their distribution across hosts.
pub(crate) fn layout(spec: &DeploymentSpec) -> Result<ParallelLayout, DeployError> {
    let model = &spec.model;
    ParallelLayout::new(model.tp, model.pp, model.dp, model.dp_attention, spec.serving.nnodes.into())
        .map_err(|error| DeployError::Plan { key: "model", error })
}

/// The number of ranks, and therefore GPUs, that a server has on one host.
pub(crate) fn ranks_on_host(spec: &DeploymentSpec) -> Result<u64, DeployError> {
    Ok(layout(spec)?.stages_of_host(0).len() as u64)
}

/// The requirements of a server process on one host, with all its ranks. Without `uses_store`,
/// HiCache is off.
pub(crate) fn engine(spec: &DeploymentSpec, uses_store: bool) -> Result<ProcessMemory, DeployError> {
    let model = &spec.model;
    let layout = layout(spec)?;
    let ranks = layout.stages_of_host(0).len() as u64;
    let shm = spec.serving.shm.0;
    // On a CPU, the weights and the KV cache are in host memory as well, and their size is unknown.
    let on_gpu = spec.serving.device == ComputeDevice::Cuda;
    let bare = RANK_BYTES * ranks + ENGINE_BYTES + shm;
    if !uses_store {
        return Ok(ProcessMemory { memory: on_gpu.then(|| with_headroom(bare)), ..ProcessMemory::unknown() });
    }
    let page = page(spec);
    let rank_segment = spec.segment.engines.0 / (layout.attention_tp() * layout.pp());
    if spec.segment.engines.0 > 0 && rank_segment < PLAIN_SEGMENT_BYTES_MIN && page.is_none() {
        let what = format!(
            "{} split across {} ranks gives {rank_segment} bytes per rank; the minimum is 16 MiB",
            spec.segment.engines,
            layout.attention_tp() * layout.pp()
        );
        return Err(invalid_value("segment.engines", what));
    }
    let known = if model.known_as.is_empty() { model.path.trim_end_matches('/') } else { &model.known_as };
    let is_compressed = models::by_name(known).is_ok_and(|found| found.geometry.compressed.is_some());
    if is_compressed && model.page_size != COMPRESSED_PAGE {
        let error = SizingError::CompressedPage { found: model.page_size };
        return Err(DeployError::Plan { key: "model.page_size", error });
    }
    let l2_size = match (model.hicache_size_gb, model.device_tokens) {
        (Some(gb), _) => Some(L2Size::Gb(gb)),
        (None, Some(device_tokens)) => Some(L2Size::Ratio { ratio: ratio(spec), device_tokens }),
        (None, None) => None,
    };
    let Some(l2_size) = l2_size else { return Ok(ProcessMemory::unknown()) };
    let found = match model.kv_cache {
        KvCache::Auto => models::by_name_with_auto_cache(known),
        KvCache::Bf16 | KvCache::Fp8E4m3 | KvCache::Fp8E5m2 => models::by_name(known),
    };
    let is_ratio = matches!(l2_size, L2Size::Ratio { .. });
    let geometry = match &found {
        Ok(found) => Some(&found.geometry),
        Err(error) if !model.known_as.is_empty() => {
            return Err(DeployError::Plan { key: "model.known_as", error: error.clone() });
        }
        // A ratio yields a number of tokens. If the bytes per token are unknown, so is the L2 size
        // in bytes.
        Err(_) if is_ratio => {
            if page.is_some() {
                return Err(invalid_value(
                    "model.known_as",
                    "with huge pages, a ratio requires a known model: set known_as, or set hicache_size_gb instead",
                ));
            }
            return Ok(ProcessMemory::unknown());
        }
        Err(_) => None,
    };
    let mut bound = match found {
        Err(SizingError::CacheTypeUnknown { .. }) => Some(BoundCause::UnknownCacheType),
        Err(_) => Some(BoundCause::UnknownModel),
        Ok(_) => None,
    };
    // A ratio also applies to the state slots on the device.
    if is_ratio && model.device_mamba_slots.is_none() && geometry.is_some_and(Geometry::has_states) {
        if page.is_some() {
            return Err(invalid_value(
                "model.device_mamba_slots",
                "with huge pages, a ratio requires the number of state slots on the device for this model",
            ));
        }
        return Ok(ProcessMemory::unknown());
    }
    let cache = match model.kv_cache {
        KvCache::Auto => geometry.map_or(CacheType::Half, Geometry::auto_cache),
        KvCache::Bf16 => CacheType::Half,
        KvCache::Fp8E4m3 | KvCache::Fp8E5m2 => CacheType::Fp8,
    };
    let planned = SizingInput {
        layout,
        geometry: geometry.cloned(),
        cache,
        page_size: model.page_size,
        l2_size,
        device: DevicePools { tokens: model.device_tokens, window_tokens: None, slots: model.device_mamba_slots },
        group_segment: spec.segment.engines.0,
        arena: 0,
        page: page.unwrap_or(MIB2),
        default_page: MIB2,
        nic_nodes: nic_nodes(spec),
        region: REGION_BYTES,
        services: Services::default(),
    };
    let found = need(&planned).map_err(|error| DeployError::Plan { key: "model", error })?;
    if found.ranks.iter().any(|rank| rank.is_estimate) {
        bound = Some(BoundCause::UnknownDevicePools);
    }
    let too_large = || DeployError::Plan { key: "model", error: SizingError::TooLarge { what: "the server's memory" } };
    let l2 = found.ranks.iter().map(|rank| rank.l2.most).max().unwrap_or(0);
    // SGLang's startup memory check requires free base-page memory for L2 and a reserve, even if L2
    // uses huge pages.
    let mut bytes = l2.checked_mul(ranks).and_then(|l2| l2.checked_add(bare + RESERVE_BYTES)).ok_or_else(too_large)?;
    let mut firm = FirmMemory {
        guard: Some(found.guard_bytes),
        locked: found.ranks.iter().map(|rank| rank.pinned.most).max(),
        bound,
        ..FirmMemory::default()
    };
    if let Some(page) = page {
        firm.hugepages = found.least.count(page).saturating_mul(page);
    } else {
        let store_client_bytes = (rank_segment + LOCAL_BUFFER_BYTES).checked_mul(ranks).ok_or_else(too_large)?;
        bytes = bytes.checked_add(store_client_bytes).ok_or_else(too_large)?;
        let least = found.ranks.iter().map(|rank| rank.l2.least).min().unwrap_or(0);
        firm.memory = least.saturating_mul(ranks).saturating_add(store_client_bytes);
    }
    Ok(ProcessMemory {
        memory: on_gpu.then(|| with_headroom(bytes)),
        hugepages: page.map(|page| (page, found.most.count(page))),
        firm,
    })
}

/// The value of `--hicache-ratio`, or SGLang's default.
pub(crate) fn ratio(spec: &DeploymentSpec) -> f64 {
    spec.model.hicache_ratio.unwrap_or(2.0)
}

/// The requirements of a store node.
pub(crate) fn node(spec: &DeploymentSpec) -> Result<ProcessMemory, DeployError> {
    let nodes = &spec.nodes;
    let page = page(spec);
    if nodes.segment.0 < PLAIN_SEGMENT_BYTES_MIN && page.is_none() {
        let what = format!("{} is below the minimum of 16 MiB", nodes.segment);
        return Err(invalid_value("nodes.segment", what));
    }
    let staging = if nodes.ssd_path.is_empty() { 0 } else { STAGING_BYTES };
    let Some(page) = page else {
        let bytes = nodes.segment.0.saturating_add(nodes.local_buffer.0).saturating_add(staging + NODE_BYTES);
        let firm = FirmMemory { memory: nodes.segment.0.saturating_add(nodes.local_buffer.0), ..FirmMemory::default() };
        return Ok(ProcessMemory { memory: Some(with_headroom(bytes)), hugepages: None, firm });
    };
    let sizes = ClientSizes {
        segment: nodes.segment.0,
        local_buffer: nodes.local_buffer.0,
        arena: 0,
        page,
        default_page: MIB2,
        nic_nodes: nic_nodes(spec),
    };
    let client = client::client(&sizes).map_err(|error| DeployError::Plan { key: "nodes.segment", error })?;
    // The backend decides whether staging uses huge pages. Reserve space in both types of memory.
    let pages = client.pages.count(page) + staging.div_ceil(page);
    let firm = FirmMemory {
        hugepages: client.pages.count(page).saturating_mul(page),
        locked: Some(nodes.segment.0.saturating_add(nodes.local_buffer.0)),
        ..FirmMemory::default()
    };
    Ok(ProcessMemory { memory: Some(with_headroom(NODE_BYTES + staging)), hugepages: Some((page, pages)), firm })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DeploySize;

    fn spec() -> DeploymentSpec {
        let mut spec = DeploymentSpec::default();
        spec.model.path = "Qwen/Qwen3-32B".to_owned();
        spec.model.tp = 4;
        spec.model.hicache_size_gb = Some(64);
        spec.segment.engines = DeploySize(8 << 30);
        spec
    }

    #[test]
    fn a_server_needs_l2_segments_the_guard_reserve_and_headroom() {
        let l2 = 4 * 64_000_884_736u64;
        let rest = 8 * (1u64 << 30) + 4 * (16 << 20) + 4 * RANK_BYTES + ENGINE_BYTES + (16 << 30) + RESERVE_BYTES;
        let needed = engine(&spec(), true).unwrap();
        assert_eq!((needed.memory, needed.hugepages), (Some((l2 + rest) + (l2 + rest) / 10), None));
        assert_eq!(needed.firm.memory, l2 + 8 * (1u64 << 30) + 4 * (16 << 20));
    }

    #[test]
    fn huge_pages_match_the_plan_and_the_guard_needs_base_pages() {
        let mut spec = spec();
        spec.hugepages.size = HugePageSize::Mib2;
        let needed = engine(&spec, true).unwrap();
        assert_eq!(needed.hugepages, Some((MIB2, 4 * (30_518 + 1_024 + 8))));
        assert!(needed.memory.unwrap() > 4 * 64_000_884_736);
    }

    #[test]
    fn a_ratio_without_a_pool_has_no_limit_and_small_segments_are_refused() {
        let mut spec = spec();
        spec.model.hicache_size_gb = None;
        assert_eq!(engine(&spec, true).unwrap().memory, None);
        spec.segment.engines = DeploySize(60 << 20);
        let key = |error: DeployError| matches!(error, DeployError::Value { key, .. } if key.contains("segment"));
        assert!(key(engine(&spec, true).unwrap_err()));
        spec.nodes.segment = DeploySize(1 << 20);
        assert!(key(node(&spec).unwrap_err()));
    }

    #[test]
    fn a_node_has_headroom_beyond_its_segment() {
        let mut spec = spec();
        spec.nodes.segment = DeploySize(10 << 30);
        assert_eq!(node(&spec).unwrap().memory, Some(with_headroom(11 << 30)));
        spec.nodes.ssd_path = "/ssd".to_owned();
        assert_eq!(node(&spec).unwrap().memory, Some(with_headroom((11 << 30) + STAGING_BYTES)));
    }
}
