//! The settings that the store connectors of vLLM and LMCache read.
//!
//! Sources: `vllm/distributed/mooncake_store.py` in vLLM 0.33.0; `lmcache/v1/config.py` and
//! `lmcache/v1/storage_backend/connector/mooncakestore_connector.py` in LMCache 0.5.6.

use crate::lint::yaml::YamlNode;

/// Keys of the `MOONCAKE_CONFIG_PATH` file that vLLM reads.
pub(super) const VLLM_KEYS: &[&str] = &[
    "metadata_server",
    "master_server_address",
    "protocol",
    "device_name",
    "mode",
    "global_segment_size",
    "local_buffer_size",
    "enable_offload",
    "tenant_id",
    // On main, after 0.33.0.
    "device_name_per_gpu",
];

/// Values of the key `mode`. The first is the default.
pub(super) const VLLM_MODES: &[&str] = &["embedded", "standalone-store"];

/// vLLM's default for `global_segment_size`, in bytes.
pub(super) const VLLM_SEGMENT_BYTES: u64 = 4 << 30;

/// Parses a size as vLLM does. Returns bytes; `None` if vLLM rejects the text.
pub(super) fn vllm_size(text: &str) -> Option<u64> {
    let text = text.trim().to_ascii_lowercase();
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let unit = match unit.trim() {
        "" | "b" => 1u64,
        "kb" => 1 << 10,
        "mb" => 1 << 20,
        "gb" => 1 << 30,
        _ => return None,
    };
    let bytes = number.parse::<f64>().ok()? * unit as f64;
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "the string contains only digits, and the cast saturates"
    )]
    let bytes = bytes as u64;
    Some(bytes)
}

/// The release of LMCache whose keys are listed.
pub(super) const LMCACHE_RELEASE: &str = "0.5.6";

/// LMCache's own keys, in that file and in `extra_config`.
pub(super) const LMCACHE_OWN_KEYS: &[&str] = &[
    "transfer_timeout",
    "storage_root_dir",
    "prefer_local_alloc",
    "mooncake_transfer_timeout",
    "mooncake_storage_root_dir",
    "mooncake_prefer_local_alloc",
];

/// Keys that LMCache passes to the store without a prefix. Mooncake 0.3.13 does not read the last
/// two.
pub(super) const LMCACHE_PLAIN_KEYS: &[&str] = &[
    "local_hostname",
    "metadata_server",
    "global_segment_size",
    "local_buffer_size",
    "protocol",
    "device_name",
    "master_server_address",
];

/// The prefix that LMCache strips from a key before it passes the key to the store.
pub(super) const LMCACHE_PREFIX: &str = "mooncake_";

/// The prefix of a `remote_url` for Mooncake.
pub(super) const LMCACHE_SCHEME: &str = "mooncakestore://";
/// The name of Mooncake's connector in `remote_storage_plugins`.
const LMCACHE_PLUGIN: &str = "mooncakestore";

/// Whether an LMCache file selects Mooncake as its remote store: by its URL, by its list of
/// plug-ins, or by keys for the store.
pub(super) fn uses_mooncake(node: &YamlNode) -> bool {
    let by_url = node.get("remote_url").and_then(YamlNode::text).is_some_and(|url| url.starts_with(LMCACHE_SCHEME));
    let plugins = node.get("remote_storage_plugins");
    let by_list = plugins.map_or(&[][..], YamlNode::items).iter().any(|plugin| plugin.text().is_some_and(is_plugin));
    let by_name = plugins.and_then(YamlNode::text).is_some_and(|text| text.split(',').any(is_plugin));
    let keys = node.get("extra_config").map_or(&[][..], YamlNode::entries);
    by_url || by_list || by_name || keys.iter().any(|entry| entry.key.starts_with(LMCACHE_PREFIX))
}

/// A plug-in may have an instance name: `mooncakestore.a`.
fn is_plugin(name: &str) -> bool {
    name.trim().split('.').next() == Some(LMCACHE_PLUGIN)
}

/// Keys of LMCache's configuration file.
pub(super) const LMCACHE_KEYS: &[&str] = &[
    "app_id",
    "audit_actual_remote_url",
    "blend_check_layers",
    "blend_min_tokens",
    "blend_recompute_ratios",
    "blend_special_str",
    "blend_thresholds",
    "blocking_timeout_secs",
    "cache_policy",
    "chunk_size",
    "chunk_statistics_auto_exit_target_unique_chunks",
    "chunk_statistics_auto_exit_timeout_hours",
    "chunk_statistics_auto_start_statistics",
    "chunk_statistics_strategy",
    "controller_pull_url",
    "controller_reply_url",
    "enable_async_loading",
    "enable_blending",
    "enable_chunk_statistics",
    "enable_controller",
    "enable_hidden_state_cache",
    "enable_kv_events",
    "enable_lazy_memory_allocator",
    "enable_p2p",
    "enable_pd",
    "enable_scheduler_bypass_lookup",
    "external_lookup_client",
    "extra_config",
    "gds_backend",
    "gds_buffer_size",
    "gds_path",
    "gds_path_sharding",
    "hidden_state_layers",
    "hidden_states_retrieve_mode",
    "hit_miss_ratio",
    "internal_api_server_enabled",
    "internal_api_server_host",
    "internal_api_server_include_index_list",
    "internal_api_server_port_start",
    "internal_api_server_socket_path_prefix",
    "lazy_memory_expand_trigger_ratio",
    "lazy_memory_initial_ratio",
    "lazy_memory_safe_size",
    "lazy_memory_step_ratio",
    "lmcache_instance_id",
    "lmcache_worker_heartbeat_delay_time",
    "lmcache_worker_heartbeat_time",
    "lmcache_worker_ids",
    "lmcache_worker_ports",
    "local_cpu",
    "local_cpu_use_hugepages",
    "local_disk",
    "local_disk_path_sharding",
    "lookup_server_worker_ids",
    "lookup_timeout_ms",
    "maru_path",
    "maru_pool_size",
    "max_hidden_state_cpu_size",
    "max_local_cpu_size",
    "max_local_disk_size",
    "min_retrieve_tokens",
    "mp_host",
    "mp_port",
    "nixl_backends",
    "nixl_buffer_device",
    "nixl_buffer_size",
    "numa_mode",
    "p2p_host",
    "p2p_init_ports",
    "p2p_lookup_ports",
    "pd_allocation_timeout_sec",
    "pd_backend_mode",
    "pd_bidirectional",
    "pd_buffer_device",
    "pd_buffer_size",
    "pd_condition_poll_interval_sec",
    "pd_max_prefill_len",
    "pd_peer_alloc_port",
    "pd_peer_host",
    "pd_peer_init_port",
    "pd_peer_query_port",
    "pd_proxy_host",
    "pd_proxy_port",
    "pd_role",
    "pd_shutdown_timeout_sec",
    "pd_skip_proxy_notification",
    "pin_check_interval_sec",
    "pin_timeout_sec",
    "pre_caching_hash_algorithm",
    "priority_limit",
    "py_enable_gc",
    "remote_config_url",
    "remote_serde",
    "remote_storage_plugins",
    "remote_url",
    "reserve_local_cpu_size",
    "retrieve_locations",
    "run_script_api_enabled",
    "runtime_plugin_locations",
    "save_decode_cache",
    "save_unfull_chunk",
    "script_allowed_imports",
    "storage_plugins",
    "store_location",
    "transfer_channel",
    "use_gds",
    "use_gpu_connector_v3",
    "use_layerwise",
];
