//! All `mooncake_master` 0.3.13.post1 flags with upstream's types and defaults, and their effect in mcctl.
//!
//! The help texts are mcctl's own.

use crate::commands::flags::{FlagSpec, FlagTable, ValueKind, flag};
use crate::commands::service_flags::{LOG_FILE, LOG_FILE_KEEP, LOG_FILE_MAX_SIZE, LOG_FORMAT, LOG_LEVEL};
use crate::commands::unknown_key::STRICT;

/// Upper bound for thread counts. More threads than CPUs would only use more memory.
const THREADS_MAX: u64 = 1024;
const I32_MAX: u64 = i32::MAX as u64;
const U32_MAX: u64 = u32::MAX as u64;
const I64_MAX: u64 = i64::MAX as u64;
const RATIO: ValueKind = ValueKind::Number(0.0, 1.0);

const HA: &str = "high availability (more than one master) is not supported";
const OPLOG: &str = "metadata replication through etcd is not supported";
const SNAPSHOT: &str = "master metadata snapshots are not supported";
const OFFLOAD: &str = "the SSD tier (offload) is not supported";
const DFS: &str = "persistence to a shared file system is not supported";
const CXL: &str = "CXL memory is not supported";
const TENANTS: &str = "strict tenants and quotas are not supported";
const EVENTS: &str = "publishing KV events is not supported";
const DYNAMIC: &str = "dynamic replication is not supported";

const ONLY_HA: &str = "high availability is off";
const ONLY_OPLOG: &str = "the oplog is off";
const ONLY_SNAPSHOT: &str = "snapshots are off";
const ONLY_OFFLOAD: &str = "the SSD tier is off";
const ONLY_DFS: &str = "persistence to a file system is off";
const ONLY_CXL: &str = "CXL memory is off";
const ONLY_NOF: &str = "NVMe-oF pools are not supported";
const ONLY_TASKS: &str = "copy and move tasks are not supported";
const ONLY_TENANTS: &str = "tenant quotas are off";
const ONLY_EVENTS: &str = "KV events are off";
const ONLY_DYNAMIC: &str = "dynamic replication is off";
const ONLY_CLIENTS: &str = "only clients use it, as in upstream Mooncake";
const ONLY_LOG_FILES: &str = "use --log-file, --log-file-max-size and --log-file-keep";

/// The `serve master` flags.
pub static TABLE: FlagTable = FlagTable {
    command: "serve master",
    about: "Run a Mooncake master, the index of a store's objects and segments. It accepts the same flags and configuration files \
            as mooncake_master 0.3.13.",
    groups: &[
        ("RPC", RPC),
        ("Admin HTTP, metrics and logs", ADMIN),
        ("Leases, pins and eviction", LEASES),
        ("Embedded metadata service", METADATA),
        ("High availability, oplog and snapshots", HA_FLAGS),
        ("SSD tier, file systems, CXL and NVMe-oF", TIERS),
        ("Tasks, replication, tenants and events", EXTRAS),
        ("glog", GLOG),
        ("Files and the environment", LOADERS),
    ],
};

const RPC: &[FlagSpec] = &[
    flag("rpc_port", ValueKind::Port, "0", "RPC port; 0 means --port is used"),
    flag("port", ValueKind::Port, "50051", "RPC port if --rpc-port is 0; 0 means any free port. Deprecated")
        .not_in_file("use rpc_port"),
    flag("rpc_address", ValueKind::Text, "0.0.0.0", "Address to bind the RPC port to"),
    flag(
        "rpc_interface",
        ValueKind::Text,
        "",
        "Bind to the IPv4 address of this network interface instead of --rpc-address",
    ),
    flag(
        "rpc_thread_num",
        ValueKind::Whole(0, THREADS_MAX),
        "0",
        "Number of worker threads; 0 means one per CPU, at most --max-threads",
    ),
    flag(
        "max_threads",
        ValueKind::Whole(1, THREADS_MAX),
        "16",
        "Maximum worker threads if --rpc-thread-num is 0. Deprecated",
    )
    .not_in_file("use rpc_thread_num"),
    flag(
        "rpc_conn_timeout_seconds",
        ValueKind::Whole(0, I32_MAX),
        "0",
        "Close a connection after this many idle seconds; 0 means never",
    ),
    flag("rpc_enable_tcp_no_delay", ValueKind::Bool, "true", "Set TCP_NODELAY").no_effect("it is always set"),
];

const ADMIN: &[FlagSpec] = &[
    flag("metrics_port", ValueKind::Port, "9003", "Admin HTTP port (metrics, health, queries); 0 means any free port"),
    flag("metrics_host", ValueKind::Text, "0.0.0.0", "Address to bind the admin HTTP port to; '::' for IPv6 and IPv4"),
    flag(
        "enable_metric_reporting",
        ValueKind::Bool,
        "true",
        "Log a summary line every 10 s; on a terminal, only if this flag is set explicitly",
    ),
    LOG_LEVEL,
    LOG_FILE,
    LOG_FILE_MAX_SIZE,
    LOG_FILE_KEEP,
    LOG_FORMAT,
];

const LEASES: &[FlagSpec] = &[
    flag(
        "default_kv_lease_ttl",
        ValueKind::Duration,
        "10000",
        "Read lease duration; a leased object is neither evicted nor removed",
    ),
    flag(
        "default_kv_soft_pin_ttl",
        ValueKind::Duration,
        "1800000",
        "Soft pin duration; soft-pinned objects are evicted last",
    ),
    flag("max_kv_soft_pin_ttl", ValueKind::Duration, "86400000", "Maximum soft pin duration"),
    flag(
        "allow_evict_soft_pinned_objects",
        ValueKind::Bool,
        "true",
        "Evict soft-pinned objects when no other objects are left",
    ),
    flag("eviction_ratio", RATIO, "0.05", "Fraction of the objects to remove per eviction"),
    flag(
        "eviction_high_watermark_ratio",
        RATIO,
        "0.9",
        "Evict when more than this fraction of the memory is in use; 1 means only when a put fails",
    ),
    flag(
        "put_start_discard_timeout_sec",
        ValueKind::Whole(0, U32_MAX),
        "30",
        "Seconds after which an unfinished put may be overwritten",
    ),
    flag(
        "put_start_release_timeout_sec",
        ValueKind::Whole(0, U32_MAX),
        "600",
        "Seconds after which an unfinished put's memory is freed",
    ),
    flag(
        "client_ttl",
        ValueKind::Whole(0, U32_MAX),
        "10",
        "Seconds without a heartbeat after which a client expires and its segments are dropped",
    )
    .key("client_live_ttl_sec"),
    flag(
        "allocation_strategy",
        ValueKind::Word(&["random", "free_ratio_first", "cxl", "ssd_free_ratio_first", "local_first"]),
        "random",
        "How to choose the segment for a new object: at random, the emptiest segment in a sample (free_ratio_first), or one on the \
         writer's host (local_first, single replica only). Without an SSD tier, ssd_free_ratio_first is the same as random",
    ),
    flag(
        "memory_allocator",
        ValueKind::Word(&["offset", "cachelib"]),
        "offset",
        "Allocator for the memory in a segment",
    )
    .no_effect("mcctl has only the offset allocator"),
];

const METADATA: &[FlagSpec] = &[
    flag(
        "enable_http_metadata_server",
        ValueKind::Bool,
        "false",
        "Also serve the transfer engine's metadata service (http://HOST:PORT/metadata)",
    ),
    flag("http_metadata_server_port", ValueKind::Port, "8080", "Metadata service port; 0 means any free port"),
    flag("http_metadata_server_host", ValueKind::Text, "0.0.0.0", "Address to bind the metadata service to"),
    flag(
        "enable_metadata_cleanup_on_timeout",
        ValueKind::Bool,
        "false",
        "Remove an expired client's records from the metadata service",
    ),
];

const HA_FLAGS: &[FlagSpec] = &[
    flag("enable_ha", ValueKind::Bool, "false", "Elect one of several masters").absent(HA),
    flag("ha_backend_type", ValueKind::Text, "etcd", "Election backend").no_effect(ONLY_HA),
    flag("ha_backend_connstring", ValueKind::Text, "", "Election backend address").no_effect(ONLY_HA),
    flag("etcd_endpoints", ValueKind::Text, "", "etcd addresses, separated by ';'").no_effect(ONLY_HA),
    flag("cluster_id", ValueKind::Text, "mooncake_cluster", "Namespace for high-availability data").no_effect(ONLY_HA),
    flag("pod_name", ValueKind::Text, "", "Pod to label as leader").no_effect(ONLY_HA),
    flag("pod_namespace", ValueKind::Text, "", "Pod namespace").no_effect(ONLY_HA),
    flag("enable_oplog", ValueKind::Bool, "false", "Replicate metadata to standby masters").absent(OPLOG),
    flag("oplog_poll_interval_ms", ValueKind::Whole(0, I32_MAX), "1000", "Milliseconds between polls by a standby")
        .no_effect(ONLY_OPLOG),
    flag("oplog_batch_max_entries", ValueKind::Whole(0, U32_MAX), "1024", "Maximum oplog entries per batch")
        .no_effect(ONLY_OPLOG),
    flag(
        "batch_oplog_retry_timeout_sec",
        ValueKind::Whole(0, U32_MAX),
        "180",
        "Seconds for which a standby keeps retrying",
    )
    .no_effect(ONLY_OPLOG),
    flag("enable_snapshot", ValueKind::Bool, "false", "Write metadata snapshots").absent(SNAPSHOT),
    flag("enable_snapshot_restore", ValueKind::Bool, "false", "Start from the last snapshot").absent(SNAPSHOT),
    flag("snapshot_interval_seconds", ValueKind::Whole(0, u64::MAX), "600", "Seconds between snapshots")
        .no_effect(ONLY_SNAPSHOT),
    flag("snapshot_child_timeout_seconds", ValueKind::Whole(0, u64::MAX), "300", "Snapshot timeout in seconds")
        .no_effect(ONLY_SNAPSHOT),
    flag("snapshot_retention_count", ValueKind::Whole(0, U32_MAX), "2", "Number of snapshots to keep")
        .no_effect(ONLY_SNAPSHOT),
    flag("snapshot_object_store_type", ValueKind::Text, "", "Object store for snapshots: local or s3")
        .aliases(&["snapshot_payload_store_type", "snapshot_payload_backend_type"])
        .no_effect(ONLY_SNAPSHOT),
    flag("snapshot_catalog_store_type", ValueKind::Text, "", "Snapshot catalog: embedded or redis")
        .aliases(&["snapshot_catalog_backend_type"])
        .no_effect(ONLY_SNAPSHOT),
    flag("snapshot_catalog_store_connstring", ValueKind::Text, "", "Catalog address")
        .aliases(&["snapshot_catalog_backend_connstring"])
        .no_effect(ONLY_SNAPSHOT),
    flag("snapshot_backup_dir", ValueKind::Text, "", "Directory for snapshot copies").no_effect(ONLY_SNAPSHOT),
];

const TIERS: &[FlagSpec] = &[
    flag("enable_offload", ValueKind::Bool, "false", "Also store objects on the nodes' SSDs").absent(OFFLOAD),
    flag("offload_on_evict", ValueKind::Bool, "false", "Write to SSD when evicting instead of after a put")
        .no_effect(ONLY_OFFLOAD),
    flag("offload_force_evict", ValueKind::Bool, "false", "Drop objects that exceed the offload limit of one eviction")
        .no_effect(ONLY_OFFLOAD),
    flag("offloading_queue_limit", ValueKind::Whole(1, 100_000_000), "50000", "Maximum objects queued for a disk")
        .no_effect(ONLY_OFFLOAD),
    flag("offload_cap_ratio", RATIO, "0.5", "Maximum fraction of the offload queue that one eviction may fill")
        .no_effect(ONLY_OFFLOAD),
    flag("promotion_on_hit", ValueKind::Bool, "false", "Copy objects back from SSD when they are read").absent(OFFLOAD),
    flag(
        "promotion_admission_threshold",
        ValueKind::Whole(0, U32_MAX),
        "2",
        "Number of reads before an object is copied back",
    )
    .no_effect(ONLY_OFFLOAD),
    flag("promotion_queue_limit", ValueKind::Whole(0, U32_MAX), "50000", "Maximum copies in progress")
        .no_effect(ONLY_OFFLOAD),
    flag("promotion_max_per_heartbeat", ValueKind::Whole(0, U32_MAX), "1", "Maximum copies assigned per heartbeat")
        .no_effect(ONLY_OFFLOAD),
    flag("root_fs_dir", ValueKind::Text, "", "Directory for objects on a shared file system").absent(DFS),
    flag(
        "global_file_segment_size",
        ValueKind::Whole(i64::MIN, I64_MAX),
        "9223372036854775807",
        "Number of bytes to use on the shared file system",
    )
    .no_effect(ONLY_DFS),
    flag("enable_disk_eviction", ValueKind::Bool, "true", "Evict from the shared file system").no_effect(ONLY_DFS),
    flag("quota_bytes", ValueKind::Whole(0, u64::MAX), "0", "Shared file system quota in bytes").no_effect(ONLY_DFS),
    flag("enable_cxl", ValueKind::Bool, "false", "Use CXL memory").absent(CXL),
    flag("cxl_path", ValueKind::Text, "/dev/dax0.0", "CXL memory device").no_effect(ONLY_CXL),
    flag("cxl_size", ValueKind::Whole(0, u64::MAX), "8589934592", "CXL memory size in bytes").no_effect(ONLY_CXL),
    flag("nof_eviction_ratio", RATIO, "0.05", "Fraction of the objects to remove per NVMe-oF pool eviction")
        .no_effect(ONLY_NOF),
    flag(
        "nof_eviction_high_watermark_ratio",
        RATIO,
        "0.9",
        "Evict when more than this fraction of an NVMe-oF pool is in use",
    )
    .no_effect(ONLY_NOF),
    flag("nof_heartbeat_interval_sec", ValueKind::Whole(0, I64_MAX), "10", "Seconds between NVMe-oF pool probes")
        .no_effect(ONLY_NOF),
    flag("nof_heartbeat_probe_timeout_ms", ValueKind::Whole(0, U32_MAX), "1000", "Probe timeout in milliseconds")
        .no_effect(ONLY_NOF),
    flag(
        "nof_heartbeat_failures_threshold",
        ValueKind::Whole(0, U32_MAX),
        "3",
        "Number of failed probes before a pool is unmounted",
    )
    .no_effect(ONLY_NOF),
    flag("use_mmap_arena_allocator", ValueKind::Bool, "false", "Allocate client buffers from one arena")
        .no_effect(ONLY_CLIENTS),
    flag("mmap_arena_pool_size", ValueKind::Whole(0, u64::MAX), "8589934592", "Arena size in bytes")
        .no_effect(ONLY_CLIENTS),
];

const EXTRAS: &[FlagSpec] = &[
    flag("max_total_finished_tasks", ValueKind::Whole(0, U32_MAX), "10000", "Maximum number of finished tasks to keep")
        .no_effect(ONLY_TASKS),
    flag("max_total_pending_tasks", ValueKind::Whole(0, U32_MAX), "10000", "Maximum number of pending tasks")
        .no_effect(ONLY_TASKS),
    flag("max_total_processing_tasks", ValueKind::Whole(0, U32_MAX), "10000", "Maximum number of tasks in progress")
        .no_effect(ONLY_TASKS),
    flag("pending_task_timeout_sec", ValueKind::Whole(0, u64::MAX), "300", "Timeout for a pending task in seconds")
        .no_effect(ONLY_TASKS),
    flag(
        "processing_task_timeout_sec",
        ValueKind::Whole(0, u64::MAX),
        "300",
        "Timeout for a task in progress in seconds",
    )
    .no_effect(ONLY_TASKS),
    flag("max_retry_attempts", ValueKind::Whole(0, U32_MAX), "10", "Maximum number of attempts per task")
        .no_effect(ONLY_TASKS),
    flag(
        "dynamic_replication_mode",
        ValueKind::Word(&["off", "observe", "enforce"]),
        "off",
        "Copy hot objects to more segments",
    )
    .absent(DYNAMIC),
    flag(
        "dynamic_replication_heat_window_seconds",
        ValueKind::Whole(0, U32_MAX),
        "10",
        "Window for counting reads, in seconds",
    )
    .no_effect(ONLY_DYNAMIC),
    flag(
        "dynamic_replication_admission_qps_threshold",
        ValueKind::Number(0.0, f64::MAX),
        "0.8",
        "Reads per second above which an object is hot",
    )
    .no_effect(ONLY_DYNAMIC),
    flag(
        "dynamic_replication_max_memory_replicas",
        ValueKind::Whole(0, u64::MAX),
        "2",
        "Maximum number of replicas per object",
    )
    .no_effect(ONLY_DYNAMIC),
    flag("enable_multi_tenants", ValueKind::Bool, "false", "Enforce tenant quotas").absent(TENANTS),
    flag("tenant_quota_connector_type", ValueKind::Text, "file", "Quota source").no_effect(ONLY_TENANTS),
    flag("tenant_quota_connector_uri", ValueKind::Text, "", "Quota source address").no_effect(ONLY_TENANTS),
    flag("enable_kv_events", ValueKind::Bool, "false", "Publish object events over ZMQ").absent(EVENTS),
    flag("kv_events_bind_endpoint", ValueKind::Text, "", "Publisher address").no_effect(ONLY_EVENTS),
    flag("kv_events_backend_id", ValueKind::Text, "", "Publisher name").no_effect(ONLY_EVENTS),
    flag("kv_events_queue_capacity", ValueKind::Whole(0, U32_MAX), "65536", "Maximum number of queued events")
        .no_effect(ONLY_EVENTS),
    flag("kv_events_emit_legacy_compat", ValueKind::Bool, "true", "Also send legacy fields").no_effect(ONLY_EVENTS),
    flag("kv_events_emit_object_key", ValueKind::Bool, "true", "Send the object key").no_effect(ONLY_EVENTS),
    flag("kv_events_model_name", ValueKind::Text, "", "Deprecated").no_effect(ONLY_EVENTS),
    flag("kv_events_tenant_id", ValueKind::Text, "default", "Deprecated").no_effect(ONLY_EVENTS),
    flag("kv_events_additional_salt", ValueKind::Text, "", "Deprecated").no_effect(ONLY_EVENTS),
    flag("kv_events_lora_name", ValueKind::Text, "", "Deprecated").no_effect(ONLY_EVENTS),
    flag("kv_events_block_size", ValueKind::Whole(0, U32_MAX), "0", "Deprecated").no_effect(ONLY_EVENTS),
    flag("kv_events_dp_rank", ValueKind::Whole(0, U32_MAX), "0", "Deprecated").no_effect(ONLY_EVENTS),
];

/// glog's flags. They are not allowed in configuration files.
pub(crate) const GLOG: &[FlagSpec] = &[
    glog("minloglevel", ValueKind::Whole(0, I32_MAX), "0", "Lowest level to log: 0 info, 1 warning, 2 error"),
    glog("v", ValueKind::Whole(0, I32_MAX), "0", "Verbosity: 1 adds debug lines, 2 adds all lines"),
    glog("logtostderr", ValueKind::Bool, "false", "Log to stderr (the default in mcctl)"),
    glog("alsologtostderr", ValueKind::Bool, "false", "Also log to stderr (the default in mcctl)"),
    glog("log_dir", ValueKind::Text, "", "Directory for log files").no_effect(ONLY_LOG_FILES),
    glog("log_link", ValueKind::Text, "", "Directory for links to log files").no_effect(ONLY_LOG_FILES),
    glog("max_log_size", ValueKind::Whole(0, I32_MAX), "1800", "Maximum log file size in MB").no_effect(ONLY_LOG_FILES),
    glog("logfile_mode", ValueKind::Whole(0, I32_MAX), "436", "Log file permissions").no_effect(ONLY_LOG_FILES),
    glog("logbuflevel", ValueKind::Whole(-1, I32_MAX), "0", "Highest buffered level").no_effect(ONLY_LOG_FILES),
    glog("logbufsecs", ValueKind::Whole(0, I32_MAX), "30", "Maximum buffering time in seconds")
        .no_effect(ONLY_LOG_FILES),
    glog("stop_logging_if_full_disk", ValueKind::Bool, "false", "Stop logging when the disk is full")
        .no_effect(ONLY_LOG_FILES),
    glog("stderrthreshold", ValueKind::Whole(0, I32_MAX), "2", "Lowest level copied to stderr")
        .no_effect(ONLY_LOG_FILES),
    glog("drop_log_memory", ValueKind::Bool, "true", "Drop log file pages from the page cache")
        .no_effect(ONLY_LOG_FILES),
    glog("alsologtoemail", ValueKind::Text, "", "Email addresses to which log lines are sent")
        .no_effect(ONLY_LOG_FILES),
    glog("logemaillevel", ValueKind::Whole(0, I32_MAX), "999", "Lowest level to email").no_effect(ONLY_LOG_FILES),
    glog("logmailer", ValueKind::Text, "/bin/mail", "Mail program").no_effect(ONLY_LOG_FILES),
    glog("colorlogtostderr", ValueKind::Bool, "false", "Use colors on stderr")
        .no_effect("colors are used only on a terminal"),
    glog("log_prefix", ValueKind::Bool, "true", "Prefix each log line with its time and level")
        .no_effect("every line has both"),
    glog("log_backtrace_at", ValueKind::Text, "", "Source line whose log messages include a backtrace")
        .no_effect("it refers to upstream's source lines"),
    glog("symbolize_stacktrace", ValueKind::Bool, "true", "Resolve symbols in crash reports")
        .no_effect("mcctl does not write crash reports"),
    glog("vmodule", ValueKind::Text, "", "Verbosity per source file")
        .no_effect("use MCCTL_LOG=info,mcctl::engine::rpc=debug"),
    glog("tab_completion_columns", ValueKind::Whole(0, I32_MAX), "80", "Width of completions in columns")
        .no_effect("use mcctl completions"),
    glog("tab_completion_word", ValueKind::Text, "", "Word to complete").no_effect("use mcctl completions"),
];

const LOADERS: &[FlagSpec] = &[
    flag("config_path", ValueKind::Text, "", "YAML or JSON file whose keys are flag names with '_'; flags override it")
        .not_in_file("set it on the command line"),
    STRICT,
    flag("flagfile", ValueKind::Text, "", "File with one flag per line, applied in place")
        .not_in_file("set it on the command line"),
    flag("fromenv", ValueKind::Text, "", "Flags to read from the environment: NAME from FLAGS_NAME")
        .not_in_file("set it on the command line"),
    flag("tryfromenv", ValueKind::Text, "", "Like --fromenv, but unset variables are ignored")
        .not_in_file("set it on the command line"),
    flag("undefok", ValueKind::Text, "", "Unknown flags to ignore").not_in_file("set it on the command line"),
];

const fn glog(name: &'static str, kind: ValueKind, default: &'static str, help: &'static str) -> FlagSpec {
    flag(name, kind, default, help).not_in_file("set it on the command line")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::lint::MCCTL_FLAGS;

    /// Name and default of every flag in `mooncake_master --help` 0.3.13.post1, except gflags' own help flags.
    const UPSTREAM: &str = "
        alsologtoemail= alsologtostderr=false colorlogtostderr=false drop_log_memory=true log_backtrace_at= log_dir= log_link=
        log_prefix=true logbuflevel=0 logbufsecs=30 logemaillevel=999 logfile_mode=436 logmailer=/bin/mail logtostderr=false
        max_log_size=1800 minloglevel=0 stderrthreshold=2 stop_logging_if_full_disk=false symbolize_stacktrace=true v=0 vmodule=
        tab_completion_columns=80 tab_completion_word= flagfile= fromenv= tryfromenv= undefok=
        use_mmap_arena_allocator=false mmap_arena_pool_size=8589934592
        allocation_strategy=random allow_evict_soft_pinned_objects=true batch_oplog_retry_timeout_sec=180 client_ttl=10
        cluster_id=mooncake_cluster config_path= cxl_path=/dev/dax0.0 cxl_size=8589934592 default_kv_lease_ttl=10000
        default_kv_soft_pin_ttl=1800000 dynamic_replication_admission_qps_threshold=0.8
        dynamic_replication_heat_window_seconds=10 dynamic_replication_max_memory_replicas=2 dynamic_replication_mode=off
        enable_cxl=false enable_disk_eviction=true enable_ha=false enable_http_metadata_server=false enable_kv_events=false
        enable_metadata_cleanup_on_timeout=false enable_metric_reporting=true enable_multi_tenants=false enable_offload=false
        enable_oplog=false enable_snapshot=false enable_snapshot_restore=false etcd_endpoints=
        eviction_high_watermark_ratio=0.9 eviction_ratio=0.05 global_file_segment_size=9223372036854775807
        ha_backend_connstring= ha_backend_type=etcd http_metadata_server_host=0.0.0.0 http_metadata_server_port=8080
        kv_events_additional_salt= kv_events_backend_id= kv_events_bind_endpoint= kv_events_block_size=0 kv_events_dp_rank=0
        kv_events_emit_legacy_compat=true kv_events_emit_object_key=true kv_events_lora_name= kv_events_model_name=
        kv_events_queue_capacity=65536 kv_events_tenant_id=default max_kv_soft_pin_ttl=86400000 max_retry_attempts=10
        max_threads=16 max_total_finished_tasks=10000 max_total_pending_tasks=10000 max_total_processing_tasks=10000
        memory_allocator=offset metrics_host=0.0.0.0 metrics_port=9003 nof_eviction_high_watermark_ratio=0.9
        nof_eviction_ratio=0.05 nof_heartbeat_failures_threshold=3 nof_heartbeat_interval_sec=10
        nof_heartbeat_probe_timeout_ms=1000 offload_cap_ratio=0.5 offload_force_evict=false offload_on_evict=false
        offloading_queue_limit=50000 oplog_batch_max_entries=1024 oplog_poll_interval_ms=1000 pending_task_timeout_sec=300
        pod_name= pod_namespace= port=50051 processing_task_timeout_sec=300 promotion_admission_threshold=2
        promotion_max_per_heartbeat=1 promotion_on_hit=false promotion_queue_limit=50000 put_start_discard_timeout_sec=30
        put_start_release_timeout_sec=600 quota_bytes=0 root_fs_dir= rpc_address=0.0.0.0 rpc_conn_timeout_seconds=0
        rpc_enable_tcp_no_delay=true rpc_interface= rpc_port=0 rpc_thread_num=0 snapshot_backup_dir=
        snapshot_catalog_backend_connstring= snapshot_catalog_backend_type= snapshot_catalog_store_connstring=
        snapshot_catalog_store_type= snapshot_child_timeout_seconds=300 snapshot_interval_seconds=600
        snapshot_object_store_type= snapshot_payload_backend_type= snapshot_payload_store_type= snapshot_retention_count=2
        tenant_quota_connector_type=file tenant_quota_connector_uri=";

    #[test]
    fn all_upstream_flags_have_upstream_defaults() {
        for pair in UPSTREAM.split_whitespace() {
            let (name, default) = pair.split_once('=').expect("pairs");
            let flag = TABLE.find(name).unwrap_or_else(|| panic!("no flag {name}"));
            assert_eq!(flag.default, default, "{name}");
        }
    }

    #[test]
    fn flags_beyond_upstream_are_listed_for_lint() {
        let upstream =
            |name: &str| UPSTREAM.split_whitespace().any(|pair| pair.split_once('=').is_some_and(|(n, _)| n == name));
        let ours: Vec<_> = TABLE.flags().map(|flag| flag.name).filter(|name| !upstream(name)).collect();
        let known: Vec<_> = MCCTL_FLAGS.iter().copied().chain(["strict_config"]).collect();
        assert_eq!(ours, known);
    }

    #[test]
    fn names_are_unique_and_defaults_parse() {
        let mut names: Vec<_> = TABLE.flags().flat_map(|f| std::iter::once(&f.name).chain(f.aliases)).collect();
        names.sort_unstable();
        let count = names.len();
        names.dedup();
        assert_eq!(names.len(), count);
        for flag in TABLE.flags() {
            assert!(flag.kind.parse(flag.default).is_some(), "{}", flag.name);
            assert!(!flag.help.ends_with('.'), "{}: help must not end with a period", flag.name);
        }
    }
}
