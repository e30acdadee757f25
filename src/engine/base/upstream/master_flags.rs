//! The flags of `mooncake_master`, without those of its libraries (`library_flags.rs`).
//!
//! `tests/it/upstream.rs` compares names, types, defaults and releases with the output of
//! `mooncake_master --help` of each release.

use crate::upstream::flags::FlagKind::{
    Duration, Int32, Int64, Number, Port, Ratio, Switch, Text, Uint32, Uint64, Word,
};
use crate::upstream::flags::{UpstreamFlag, flag, lookup};
use crate::upstream::library_flags::LIBRARY_FLAGS;

/// The values that `allocation_strategy` accepts.
const STRATEGIES: &[&str] = &["random", "free_ratio_first", "cxl", "ssd_free_ratio_first", "local_first"];
/// The values that `memory_allocator` accepts.
const ALLOCATORS: &[&str] = &["offset", "cachelib"];
/// The values that `dynamic_replication_mode` accepts.
const REPLICATION_MODES: &[&str] = &["off", "observe", "enforce"];

/// The master's own flags, sorted.
#[rustfmt::skip]
pub const MASTER_FLAGS: &[UpstreamFlag] = &[
    flag("allocation_strategy", Word { words: STRATEGIES, fallback: Some("random") }, "random"),
    flag("allow_evict_soft_pinned_objects", Switch, "true"),
    flag("batch_oplog_retry_timeout_sec", Uint32, "180").since("0.3.13"),
    flag("client_ttl", Int64, "10").key("client_live_ttl_sec"),
    flag("cluster_id", Text, "mooncake_cluster"),
    flag("config_path", Text, "").not_a_key(),
    flag("cxl_path", Text, "/dev/dax0.0"),
    flag("cxl_size", Uint64, "8589934592"),
    flag("default_kv_lease_ttl", Duration, "10000"),
    flag("default_kv_soft_pin_ttl", Duration, "1800000"),
    flag("dynamic_replication_admission_qps_threshold", Number, "0.8").since("0.3.13"),
    flag("dynamic_replication_heat_window_seconds", Uint32, "10").since("0.3.13"),
    flag("dynamic_replication_max_memory_replicas", Uint64, "2").since("0.3.13"),
    flag("dynamic_replication_mode", Word { words: REPLICATION_MODES, fallback: None }, "off").since("0.3.13"),
    flag("enable_cxl", Switch, "false"),
    flag("enable_disk_eviction", Switch, "true"),
    flag("enable_ha", Switch, "false"),
    flag("enable_http_metadata_server", Switch, "false"),
    flag("enable_kv_events", Switch, "false"),
    flag("enable_metadata_cleanup_on_timeout", Switch, "false"),
    flag("enable_metric_reporting", Switch, "true"),
    flag("enable_multi_tenants", Switch, "false"),
    flag("enable_offload", Switch, "false"),
    flag("enable_oplog", Switch, "false").since("0.3.13"),
    flag("enable_snapshot", Switch, "false"),
    flag("enable_snapshot_restore", Switch, "false"),
    flag("etcd_endpoints", Text, ""),
    flag("eviction_high_watermark_ratio", Ratio, "0.9"),
    flag("eviction_ratio", Ratio, "0.05"),
    flag("global_file_segment_size", Int64, "9223372036854775807"),
    flag("ha_backend_connstring", Text, ""),
    flag("ha_backend_type", Text, "etcd"),
    flag("http_metadata_server_host", Text, "0.0.0.0"),
    flag("http_metadata_server_port", Port, "8080"),
    flag("kv_events_additional_salt", Text, ""),
    flag("kv_events_backend_id", Text, ""),
    flag("kv_events_bind_endpoint", Text, ""),
    flag("kv_events_block_size", Uint32, "0"),
    flag("kv_events_dp_rank", Uint32, "0"),
    flag("kv_events_emit_legacy_compat", Switch, "true"),
    flag("kv_events_emit_object_key", Switch, "true"),
    flag("kv_events_lora_name", Text, ""),
    flag("kv_events_model_name", Text, ""),
    flag("kv_events_queue_capacity", Uint32, "65536"),
    flag("kv_events_tenant_id", Text, "default"),
    flag("max_kv_soft_pin_ttl", Duration, "86400000").since("0.3.13"),
    flag("max_retry_attempts", Uint32, "10"),
    flag("max_threads", Int32, "16").not_a_key(),
    flag("max_total_finished_tasks", Uint32, "10000"),
    flag("max_total_pending_tasks", Uint32, "10000"),
    flag("max_total_processing_tasks", Uint32, "10000"),
    flag("memory_allocator", Word { words: ALLOCATORS, fallback: None }, "offset"),
    flag("metrics_host", Text, "0.0.0.0").since("0.3.13"),
    flag("metrics_port", Port, "9003"),
    flag("mmap_arena_pool_size", Uint64, "8589934592"),
    flag("nof_eviction_high_watermark_ratio", Ratio, "0.9"),
    flag("nof_eviction_ratio", Ratio, "0.05"),
    flag("nof_heartbeat_failures_threshold", Uint32, "3"),
    flag("nof_heartbeat_interval_sec", Int64, "10"),
    flag("nof_heartbeat_probe_timeout_ms", Uint32, "1000"),
    flag("offload_cap_ratio", Ratio, "0.5"),
    flag("offload_force_evict", Switch, "false"),
    flag("offload_on_evict", Switch, "false"),
    flag("offloading_queue_limit", Uint64, "50000"),
    flag("oplog_batch_max_entries", Uint32, "1024").since("0.3.13"),
    flag("oplog_poll_interval_ms", Int32, "1000").since("0.3.13"),
    flag("pending_task_timeout_sec", Uint64, "300"),
    flag("pod_name", Text, ""),
    flag("pod_namespace", Text, ""),
    flag("port", Port, "50051").not_a_key(),
    flag("processing_task_timeout_sec", Uint64, "300"),
    flag("promotion_admission_threshold", Uint32, "2"),
    flag("promotion_max_per_heartbeat", Uint32, "1"),
    flag("promotion_on_hit", Switch, "false"),
    flag("promotion_queue_limit", Uint32, "50000"),
    flag("put_start_discard_timeout_sec", Uint64, "30"),
    flag("put_start_release_timeout_sec", Uint64, "600"),
    flag("quota_bytes", Uint64, "0"),
    flag("root_fs_dir", Text, ""),
    flag("rpc_address", Text, "0.0.0.0"),
    flag("rpc_conn_timeout_seconds", Int32, "0"),
    flag("rpc_enable_tcp_no_delay", Switch, "true"),
    flag("rpc_interface", Text, ""),
    flag("rpc_port", Port, "0"),
    flag("rpc_thread_num", Int32, "0"),
    flag("snapshot_backup_dir", Text, ""),
    flag("snapshot_catalog_backend_connstring", Text, ""),
    flag("snapshot_catalog_backend_type", Text, ""),
    flag("snapshot_catalog_store_connstring", Text, ""),
    flag("snapshot_catalog_store_type", Text, ""),
    flag("snapshot_child_timeout_seconds", Uint64, "300"),
    flag("snapshot_interval_seconds", Uint64, "600"),
    flag("snapshot_object_store_type", Text, ""),
    flag("snapshot_payload_backend_type", Text, ""),
    flag("snapshot_payload_store_type", Text, ""),
    flag("snapshot_retention_count", Uint32, "2"),
    flag("tenant_quota_connector_type", Text, "file"),
    flag("tenant_quota_connector_uri", Text, ""),
    flag("use_mmap_arena_allocator", Switch, "false"),
];

/// The flag `name` (with `_`) of the master or its libraries, if it exists.
pub const fn master_flag(name: &str) -> Option<&'static UpstreamFlag> {
    match lookup(MASTER_FLAGS, name) {
        None => lookup(LIBRARY_FLAGS, name),
        own => own,
    }
}
