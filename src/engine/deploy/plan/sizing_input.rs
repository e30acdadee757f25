//! The deployment to size: its layout, its model's cache, and the sizes that its owner chose.

use crate::plan::client::MIB2;
use crate::plan::geometry::{CacheType, Geometry};
use crate::plan::host_pool::L2Size;
use crate::plan::layout::ParallelLayout;

/// Standalone store services on the same host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Services {
    pub count: u64,
    /// Segment size per service, in bytes. It is not divided among ranks.
    pub segment: u64,
    /// Local buffer size per service, in bytes.
    pub local_buffer: u64,
}

/// The capacities of the pools on the device, where they are known. SGLang's log has them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DevicePools {
    /// Tokens in full attention layers (`max_total_num_tokens`).
    pub tokens: Option<u64>,
    /// Tokens in window layers (`swa_layer_tokens`); by default, SGLang's share of `tokens`.
    pub window_tokens: Option<u64>,
    /// State slots (`max_mamba_cache_size`).
    pub slots: Option<u64>,
}

/// The default of `MC_MAX_MR_SIZE`, 1 TiB; a device may support less.
///
/// Source: `mooncake/mooncake-transfer-engine/include/config.h`, `max_mr_size`.
pub const REGION_BYTES: u64 = 1 << 40;

/// The page size of regular memory, in bytes. As [`SizingInput::page`], it means that the
/// deployment uses no huge pages.
pub const REGULAR_PAGE_BYTES: u64 = 4 << 10;

/// The deployment to size.
#[derive(Clone, Debug, PartialEq)]
pub struct SizingInput {
    pub layout: ParallelLayout,
    /// The geometry of the model's cache, if known.
    pub geometry: Option<Geometry>,
    /// The element type of the cache.
    pub cache: CacheType,
    pub page_size: u64,
    pub l2_size: L2Size,
    /// What is known about the pools on the device.
    pub device: DevicePools,
    /// `MOONCAKE_GLOBAL_SEGMENT_SIZE`: the segment size for one TP x PP group, in bytes.
    pub group_segment: u64,
    /// Arena size per process, in bytes; 0 disables the arena. Ignored without huge pages.
    pub arena: u64,
    /// Size of the pages of L2, segments and buffers, in bytes: a huge page size, or
    /// [`REGULAR_PAGE_BYTES`].
    pub page: u64,
    /// The system's default huge page size, in bytes.
    pub default_page: u64,
    /// Number of NUMA nodes with NICs, for RDMA; otherwise 0.
    pub nic_nodes: u64,
    /// Maximum size of a memory region, in bytes (`MC_MAX_MR_SIZE`); larger buffers are registered
    /// in chunks.
    pub region: u64,
    /// Store services on the same host.
    pub services: Services,
}

impl SizingInput {
    /// A deployment of L2 alone, without segments, arena and services: pages of 64 tokens in bf16,
    /// and 2 MiB huge pages.
    pub fn new(layout: ParallelLayout, l2_size: L2Size) -> SizingInput {
        SizingInput {
            layout,
            geometry: None,
            cache: CacheType::Half,
            page_size: 64,
            l2_size,
            device: DevicePools::default(),
            group_segment: 0,
            arena: 0,
            page: MIB2,
            default_page: MIB2,
            nic_nodes: 0,
            region: REGION_BYTES,
            services: Services::default(),
        }
    }

    /// Whether the deployment uses huge pages.
    pub fn uses_hugepages(&self) -> bool {
        self.page != REGULAR_PAGE_BYTES
    }
}
