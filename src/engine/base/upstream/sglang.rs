//! SGLang's flags, Mooncake settings and variables.

use std::sync::LazyLock;

/// The release of these lists.
pub const RELEASE: &str = "0.5.23";

/// SGLang's default for `global_segment_size`, in bytes per rank.
pub const SEGMENT_BYTES: u64 = 4 << 30;

/// All flags, with `_`, sorted.
pub static FLAGS: LazyLock<Vec<&'static str>> = LazyLock::new(|| include_str!("sglang_flags.txt").lines().collect());

/// The flag that makes a decode server write its cache to the store without HiCache.
pub const DECODE_OFFLOAD: &str = "disaggregation_decode_enable_offload_kvcache";

/// The values that `--hicache-io-backend` accepts.
pub const IO_BACKENDS: &[&str] = &["direct", "kernel", "kernel_ascend"];
/// The values that `--hicache-write-policy` accepts.
pub const WRITE_POLICIES: &[&str] = &["write_back", "write_through", "write_through_selective"];
/// Values of `--hicache-mem-layout` that work with Mooncake. `layer_first` does not.
pub const LAYOUTS: &[&str] = &["page_first", "page_first_direct", "page_first_kv_split", "page_head"];
/// The values that `--hicache-storage-prefetch-policy` accepts.
pub const PREFETCH_POLICIES: &[&str] = &["best_effort", "wait_complete", "timeout"];

/// SGLang flags with a fixed set of values.
#[rustfmt::skip]
pub const VALUES: &[(&str, &[&str])] = &[
    ("disaggregation_decode_allocation_policy", &["early", "prefill_complete"]),
    ("disaggregation_mode", &["null", "prefill", "decode"]),
    ("disaggregation_transfer_backend", &["mooncake", "nixl", "ascend", "fake", "mori", "mooncake_tcp"]),
    ("hicache_host_memory_mode", &["cache", "buffer_only"]),
    ("hicache_io_backend", IO_BACKENDS),
    ("hicache_storage_backend", &[
        "file", "sim", "mooncake", "npu_memcache", "hf3fs", "nixl", "aibrix", "dynamic", "eic", "simm", "mori", "shm", "tensorcast",
        "seaweedfs",
    ]),
    ("hicache_write_policy", WRITE_POLICIES),
    ("radix_eviction_policy", &["lru", "lfu", "slru", "priority", "tlru"]),
    ("unified_cache_external_linker_backend", &["mooncake", "mori", "dynamic"]),
];

/// Keys of SGLang's Mooncake settings, each with its environment variable (empty if it has none).
pub const KEYS: &[(&str, &str)] = &[
    ("master_server_address", "MOONCAKE_MASTER"),
    ("client_server_address", "MOONCAKE_CLIENT"),
    ("metadata_server", "MOONCAKE_TE_META_DATA_SERVER"),
    ("local_hostname", "MOONCAKE_LOCAL_HOSTNAME"),
    ("global_segment_size", "MOONCAKE_GLOBAL_SEGMENT_SIZE"),
    ("protocol", "MOONCAKE_PROTOCOL"),
    ("device_name", "MOONCAKE_DEVICE"),
    ("master_metrics_port", "MOONCAKE_MASTER_METRICS_PORT"),
    ("check_server", "MOONCAKE_CHECK_SERVER"),
    ("standalone_storage", "MOONCAKE_STANDALONE_STORAGE"),
    ("enable_ssd_offload", "MOONCAKE_ENABLE_SSD_OFFLOAD"),
    ("ssd_offload_path", "MOONCAKE_OFFLOAD_FILE_STORAGE_PATH"),
    ("tenant_id", "MOONCAKE_TENANT_ID"),
    ("local_buffer_size", ""),
    ("extra_backend_tag", ""),
    ("enable_group_semantics", ""),
    ("prefetch_threshold", ""),
    ("prefetch_timeout_base", ""),
    ("prefetch_timeout_per_ki_token", ""),
    ("hicache_storage_pass_prefix_keys", ""),
    ("tp_lcm_size", ""),
    ("interface_v1", ""),
];

/// The variable that sets `key`, if there is one.
pub fn variable_of(key: &str) -> Option<&'static str> {
    KEYS.iter().find(|(known, name)| *known == key && !name.is_empty()).map(|(_, name)| *name)
}

/// Variables that SGLang reads as Mooncake settings.
pub const VARIABLES: &[&str] = &[
    "MOONCAKE_CHECK_SERVER",
    "MOONCAKE_CLIENT",
    "MOONCAKE_ENABLE_SSD_OFFLOAD",
    "MOONCAKE_MASTER_METRICS_PORT",
    "MOONCAKE_STANDALONE_STORAGE",
    "MOONCAKE_DEVICE",
    "MOONCAKE_GLOBAL_SEGMENT_SIZE",
    "MOONCAKE_LOCAL_HOSTNAME",
    "MOONCAKE_MASTER",
    "MOONCAKE_OFFLOAD_FILE_STORAGE_PATH",
    "MOONCAKE_PROTOCOL",
    "MOONCAKE_TENANT_ID",
    "MOONCAKE_TE_META_DATA_SERVER",
    "SGLANG_HICACHE_MOONCAKE_CONFIG_PATH",
];

/// Variables of SGLang's HiCache.
pub const HICACHE_VARIABLES: &[&str] = &[
    "SGLANG_HICACHE_BUFFER_ANCHOR_LOCK_CAP",
    "SGLANG_HICACHE_DECODE_OFFLOAD_STRIDE",
    "SGLANG_HICACHE_FILE_BACKEND_ENABLE_METADATA_CACHE",
    "SGLANG_HICACHE_FILE_BACKEND_EVICTION_RATIO",
    "SGLANG_HICACHE_FILE_BACKEND_MAX_SIZE",
    "SGLANG_HICACHE_FILE_BACKEND_METADATA_TTL",
    "SGLANG_HICACHE_FILE_BACKEND_MIN_FREE_SPACE",
    "SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR",
    "SGLANG_HICACHE_HF3FS_CONFIG_PATH",
    "SGLANG_HICACHE_HOST_HUGEPAGE",
    "SGLANG_HICACHE_HOST_HUGEPAGE_SIZE",
    "SGLANG_HICACHE_HOST_MEM_BACKEND",
    "SGLANG_HICACHE_HOST_NUMA_NODE",
    "SGLANG_HICACHE_HOST_PARALLEL_ALLOC_THREADS",
    "SGLANG_HICACHE_HOST_PREFAULT",
    "SGLANG_HICACHE_HOST_REGISTER_CHUNK_GB",
    "SGLANG_HICACHE_MEMCACHE_CONFIG_PATH",
    "SGLANG_HICACHE_MOONCAKE_CONFIG_PATH",
    "SGLANG_HICACHE_MOONCAKE_REUSE_TE",
    "SGLANG_HICACHE_NIXL_BACKEND_PLUGIN",
    "SGLANG_HICACHE_NIXL_BACKEND_STORAGE_DIR",
    "SGLANG_HICACHE_NIXL_USE_DIRECT_IO",
    "SGLANG_HICACHE_SIMM_CONFIG_PATH",
    "SGLANG_HICACHE_SKIP_HOST_DUPLICATE_RECLAIM",
    "SGLANG_HICACHE_TMA_TRANSFER",
];
