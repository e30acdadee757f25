//! What mcctl does with each flag of `mooncake_master`: it works, is accepted and ignored, or is
//! accepted only with its default.
//!
//! Types, defaults and settings keys are upstream's (`src/engine/base/upstream/master_flags.rs`).
//! The help texts are mcctl's own.

use crate::commands::cli::flags::{FlagSpec, FlagTable, ValueKind, flag as own_flag, upstream_flag};
use crate::commands::cli::logging;
use crate::commands::cli::service_flags::COMMON;
use crate::commands::cli::service_flags::access_flags;
use crate::commands::cli::unknown_key::STRICT;
use crate::engine::upstream::{master_flag, mooncake_series};
use crate::engine::wire::Release;

/// Upper bound for thread counts. More threads than CPUs would only use more memory.
const THREADS_MAX: u64 = 1024;
const U32_MAX: u64 = u32::MAX as u64;

const OPLOG: &str = "metadata replication through etcd is not supported";
const OFFLOAD: &str = "the SSD tier (offload) is not supported";
const DFS: &str = "persistence to a shared file system is not supported";
const CXL: &str = "CXL memory is not supported";
const TENANTS: &str = "strict tenants and quotas are not supported";
const EVENTS: &str = "publishing KV events is not supported";
const DYNAMIC: &str = "dynamic replication is not supported";

const ONLY_PODS: &str = "a master does not label its pod; use /ready";
const ONLY_OPLOG: &str = "the oplog is off";
const ONE_SNAPSHOT_STORE: &str = "snapshots are kept only in the data directory";
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
    about: concat!(
        "Run a Mooncake master, the index of a store's objects and segments. It accepts the same flags and configuration files as \
         mooncake_master ",
        mooncake_series!(),
        "."
    ),
    groups: &[
        ("RPC", RPC),
        ("Admin HTTP and metrics", ADMIN),
        (access_flags::HEADING, access_flags::ACCESS),
        ("Leases, pins and eviction", LEASES),
        ("Embedded metadata service", METADATA),
        ("Data directory and snapshots", DATA),
        ("High availability and oplog", HA_FLAGS),
        ("SSD tier, file systems, CXL and NVMe-oF", TIERS),
        ("Tasks, replication, tenants and events", EXTRAS),
        ("glog", GLOG),
        ("Files and the environment", LOADERS),
        (logging::COMMON, COMMON),
    ],
};

const RPC: &[FlagSpec] = &[
    flag("rpc_port", "RPC port; 0 means --port is used"),
    flag("port", "RPC port if --rpc-port is 0; 0 means any free port. Deprecated").not_in_file("use rpc_port"),
    flag("rpc_address", "Address to bind the RPC port to").value("ADDRESS"),
    flag("rpc_interface", "Bind to the IPv4 address of this network interface instead of --rpc-address").value("NAME"),
    flag("rpc_thread_num", "Number of worker threads; 0 means one per CPU, at most --max-threads")
        .within(0, THREADS_MAX),
    flag("max_threads", "Maximum worker threads if --rpc-thread-num is 0. Deprecated")
        .within(1, THREADS_MAX)
        .not_in_file("use rpc_thread_num"),
    flag("rpc_conn_timeout_seconds", "Close a connection after this many idle seconds; 0 means never"),
    flag("rpc_enable_tcp_no_delay", "Set TCP_NODELAY").no_effect("it is always set"),
    own_flag(
        "client_release",
        ValueKind::Text,
        Release::LATEST.name(),
        "Mooncake release of a client that has not shown it yet, 0.3.6.post1 to 0.3.14. Set it if all clients run an older one",
    )
    .value("VERSION"),
];

const ADMIN: &[FlagSpec] = &[
    flag("metrics_port", "Admin HTTP port (metrics, health, queries); 0 means any free port"),
    flag("metrics_host", "Address to bind the admin HTTP port to; '::' for IPv6 and IPv4").value("ADDRESS"),
    flag("enable_metric_reporting", "Log a line with metrics every 10 s (upstream: on by default)").default("false"),
];

const LEASES: &[FlagSpec] = &[
    flag("default_kv_lease_ttl", "Read lease duration; a leased object is neither evicted nor removed"),
    flag("default_kv_soft_pin_ttl", "Soft pin duration; soft-pinned objects are evicted last"),
    flag("max_kv_soft_pin_ttl", "Maximum soft pin duration"),
    flag("allow_evict_soft_pinned_objects", "Evict soft-pinned objects when no other objects are left"),
    flag("eviction_ratio", "Fraction of the objects to remove per eviction").value("SHARE"),
    flag(
        "eviction_high_watermark_ratio",
        "Evict when more than this fraction of the memory is in use; 1 means only when a put fails",
    )
    .value("SHARE"),
    flag("put_start_discard_timeout_sec", "Seconds after which an unfinished put may be overwritten")
        .within(0, U32_MAX),
    flag("put_start_release_timeout_sec", "Seconds after which an unfinished put's memory is freed").within(0, U32_MAX),
    flag("client_ttl", "Seconds without a heartbeat after which a client expires and its segments are dropped")
        .value("SECONDS")
        .within(0, U32_MAX),
    flag(
        "allocation_strategy",
        "How to choose the segment for a new object: at random, the emptiest segment in a sample (free_ratio_first), or one on the \
         writer's host (local_first, single replica only). Without an SSD tier, ssd_free_ratio_first is the same as random",
    ),
    flag("memory_allocator", "Allocator for the memory in a segment").no_effect("mcctl has only the offset allocator"),
];

const METADATA: &[FlagSpec] = &[
    flag(
        "enable_http_metadata_server",
        "Also serve the transfer engine's metadata service (http://HOST:PORT/metadata)",
    ),
    flag("http_metadata_server_port", "Metadata service port; 0 means any free port"),
    flag("http_metadata_server_host", "Address to bind the metadata service to").value("ADDRESS"),
    flag("enable_metadata_cleanup_on_timeout", "Remove an expired client's records from the metadata service"),
];

const DATA: &[FlagSpec] = &[
    own_flag(
        "data_dir",
        ValueKind::Text,
        "",
        "Keep the state in this directory, as a log and snapshots, so that a restart keeps every key; without it, the state is only in \
         memory",
    ).value("DIR"),
    own_flag(
        "fsync",
        ValueKind::Text,
        "interval=50ms",
        "When the log is synced: always (before each response), interval=TIME, or never (when the kernel decides). A crash of the master \
         loses nothing in any mode; a power loss may lose the changes since the last sync",
    ).value("MODE"),
    own_flag(
        "on_disk_error",
        ValueKind::Word(&["stop", "continue-memory-only"]),
        "stop",
        "After an error of the disk: stop with exit code 4, or mark the directory as invalid and continue in memory",
    ),
    own_flag(
        "disk_stall_timeout",
        ValueKind::Time,
        "2s",
        "Time after which a disk operation is a stall, 200ms to 60s. While changes wait for it, /ready is 503. A leader hands over to a \
         standby in sync",
    ),
    own_flag("discard_data", ValueKind::Bool, "false", "Remove the data in the directory at each start with this flag"),
    own_flag(
        "data_format",
        ValueKind::Whole(1, 2),
        "1",
        "Format of the records to write. All formats are read. 2 takes less space, but releases that only know 1 cannot read it",
    ),
    flag("cluster_id", "Name of the cluster; a data directory of another cluster is refused").value("NAME"),
    flag(
        "enable_snapshot",
        "Keep the state in $MOONCAKE_SNAPSHOT_LOCAL_PATH/mcctl/CLUSTER_ID, like --data-dir. Snapshots of mooncake_master are not read",
    ),
    flag(
        "enable_snapshot_restore",
        "With --enable-snapshot: restore the state. Without this flag, existing data is moved aside and the store is empty",
    ),
    flag("snapshot_interval_seconds", "Maximum seconds between snapshots while the state changes").within(1, U32_MAX),
    flag("snapshot_child_timeout_seconds", "Snapshot timeout in seconds")
        .no_effect("no child process writes snapshots"),
    flag("snapshot_retention_count", "Number of snapshots to keep").no_effect("two snapshots are kept"),
    flag("snapshot_object_store_type", "Where snapshots are kept: only local")
        .aliases(&["snapshot_payload_store_type", "snapshot_payload_backend_type"]),
    flag("snapshot_catalog_store_type", "Snapshot catalog: only embedded").aliases(&["snapshot_catalog_backend_type"]),
    flag("snapshot_catalog_store_connstring", "Catalog address")
        .aliases(&["snapshot_catalog_backend_connstring"])
        .no_effect(ONE_SNAPSHOT_STORE),
    flag("snapshot_backup_dir", "Directory for snapshot copies").no_effect(ONE_SNAPSHOT_STORE),
];

const HA_FLAGS: &[FlagSpec] = &[
    flag(
        "enable_ha",
        "Run as one of several masters with the same --cluster-id: one leads, the others are standbys that take over with all keys",
    ),
    flag("ha_backend_type", "Election backend; only etcd is supported"),
    flag("ha_backend_connstring", "etcd addresses; overrides --etcd-endpoints").value("HOST:PORT;.."),
    flag(
        "etcd_endpoints",
        "etcd addresses, separated by ';' (https:// is allowed). Certificates and login: ETCDCTL_* variables, as for etcdctl",
    ).value("HOST:PORT;.."),
    own_flag("ha_port", ValueKind::Port, "0", "Port for the standbys, on --rpc-address; 0 means any free port"),
    own_flag(
        "ha_ack",
        ValueKind::Word(&["sync", "async"]),
        "sync",
        "sync: a response to a change is sent when every standby in sync has the change, so a failover loses no key. async: the response to \
         the end of a put is sent at once, and a failover loses the last puts",
    ),
    own_flag(
        "ha_standby_timeout",
        ValueKind::Time,
        "1s",
        "Time without an acknowledgement after which a standby is out of sync and responses no longer wait for it",
    ),
    own_flag(
        "ha_secret_file",
        ValueKind::Text,
        "",
        "File with a secret shared by all masters; without it, standbys are not authenticated",
    ).value("FILE"),
    own_flag(
        "when_not_in_sync",
        ValueKind::Text,
        "promote-after=90s",
        "If no master leads and this one may lack acknowledged keys: wait for one that has them all, or promote-after=TIME, which drops all \
         objects unless the record in etcd proves that their memory was not used again",
    ).value("MODE"),
    flag("pod_name", "Pod to label as leader").no_effect(ONLY_PODS),
    flag("pod_namespace", "Pod namespace").no_effect(ONLY_PODS),
    flag("enable_oplog", "Replicate metadata to standby masters").absent(OPLOG),
    flag("oplog_poll_interval_ms", "Milliseconds between polls by a standby").no_effect(ONLY_OPLOG),
    flag("oplog_batch_max_entries", "Maximum oplog entries per batch").no_effect(ONLY_OPLOG),
    flag("batch_oplog_retry_timeout_sec", "Seconds for which a standby keeps retrying").no_effect(ONLY_OPLOG),
];

const TIERS: &[FlagSpec] = &[
    flag("enable_offload", "Also store objects on the nodes' SSDs").absent(OFFLOAD),
    flag("offload_on_evict", "Write to SSD when evicting instead of after a put").no_effect(ONLY_OFFLOAD),
    flag("offload_force_evict", "Drop objects that exceed the offload limit of one eviction").no_effect(ONLY_OFFLOAD),
    flag("offloading_queue_limit", "Maximum objects queued for a disk").within(1, 100_000_000).no_effect(ONLY_OFFLOAD),
    flag("offload_cap_ratio", "Maximum fraction of the offload queue that one eviction may fill")
        .no_effect(ONLY_OFFLOAD),
    flag("promotion_on_hit", "Copy objects back from SSD when they are read").absent(OFFLOAD),
    flag("promotion_admission_threshold", "Number of reads before an object is copied back").no_effect(ONLY_OFFLOAD),
    flag("promotion_queue_limit", "Maximum copies in progress").no_effect(ONLY_OFFLOAD),
    flag("promotion_max_per_heartbeat", "Maximum copies assigned per heartbeat").no_effect(ONLY_OFFLOAD),
    flag("root_fs_dir", "Directory for objects on a shared file system").absent(DFS),
    flag("global_file_segment_size", "Number of bytes to use on the shared file system")
        .within(i64::MIN, i64::MAX as u64)
        .no_effect(ONLY_DFS),
    flag("enable_disk_eviction", "Evict from the shared file system").no_effect(ONLY_DFS),
    flag("quota_bytes", "Shared file system quota in bytes").no_effect(ONLY_DFS),
    flag("enable_cxl", "Use CXL memory").absent(CXL),
    flag("cxl_path", "CXL memory device").no_effect(ONLY_CXL),
    flag("cxl_size", "CXL memory size in bytes").no_effect(ONLY_CXL),
    flag("nof_eviction_ratio", "Fraction of the objects to remove per NVMe-oF pool eviction").no_effect(ONLY_NOF),
    flag("nof_eviction_high_watermark_ratio", "Evict when more than this fraction of an NVMe-oF pool is in use")
        .no_effect(ONLY_NOF),
    flag("nof_heartbeat_interval_sec", "Seconds between NVMe-oF pool probes").no_effect(ONLY_NOF),
    flag("nof_heartbeat_probe_timeout_ms", "Probe timeout in milliseconds").no_effect(ONLY_NOF),
    flag("nof_heartbeat_failures_threshold", "Number of failed probes before a pool is unmounted").no_effect(ONLY_NOF),
    flag("use_mmap_arena_allocator", "Allocate client buffers from one arena").no_effect(ONLY_CLIENTS),
    flag("mmap_arena_pool_size", "Arena size in bytes").no_effect(ONLY_CLIENTS),
];

const EXTRAS: &[FlagSpec] = &[
    flag("max_total_finished_tasks", "Maximum number of finished tasks to keep").no_effect(ONLY_TASKS),
    flag("max_total_pending_tasks", "Maximum number of pending tasks").no_effect(ONLY_TASKS),
    flag("max_total_processing_tasks", "Maximum number of tasks in progress").no_effect(ONLY_TASKS),
    flag("pending_task_timeout_sec", "Timeout for a pending task in seconds").no_effect(ONLY_TASKS),
    flag("processing_task_timeout_sec", "Timeout for a task in progress in seconds").no_effect(ONLY_TASKS),
    flag("max_retry_attempts", "Maximum number of attempts per task").no_effect(ONLY_TASKS),
    flag("dynamic_replication_mode", "Copy hot objects to more segments").absent(DYNAMIC),
    flag("dynamic_replication_heat_window_seconds", "Window for counting reads, in seconds").no_effect(ONLY_DYNAMIC),
    flag("dynamic_replication_admission_qps_threshold", "Reads per second above which an object is hot")
        .no_effect(ONLY_DYNAMIC),
    flag("dynamic_replication_max_memory_replicas", "Maximum number of replicas per object").no_effect(ONLY_DYNAMIC),
    flag("enable_multi_tenants", "Enforce tenant quotas").absent(TENANTS),
    flag("tenant_quota_connector_type", "Quota source").no_effect(ONLY_TENANTS),
    flag("tenant_quota_connector_uri", "Quota source address").no_effect(ONLY_TENANTS),
    flag("enable_kv_events", "Publish object events over ZMQ").absent(EVENTS),
    flag("kv_events_bind_endpoint", "Publisher address").no_effect(ONLY_EVENTS),
    flag("kv_events_backend_id", "Publisher name").no_effect(ONLY_EVENTS),
    flag("kv_events_queue_capacity", "Maximum number of queued events").no_effect(ONLY_EVENTS),
    flag("kv_events_emit_legacy_compat", "Also send legacy fields").no_effect(ONLY_EVENTS),
    flag("kv_events_emit_object_key", "Send the object key").no_effect(ONLY_EVENTS),
    flag("kv_events_model_name", "Deprecated").no_effect(ONLY_EVENTS),
    flag("kv_events_tenant_id", "Deprecated").no_effect(ONLY_EVENTS),
    flag("kv_events_additional_salt", "Deprecated").no_effect(ONLY_EVENTS),
    flag("kv_events_lora_name", "Deprecated").no_effect(ONLY_EVENTS),
    flag("kv_events_block_size", "Deprecated").no_effect(ONLY_EVENTS),
    flag("kv_events_dp_rank", "Deprecated").no_effect(ONLY_EVENTS),
];

/// glog's flags. They are not allowed in configuration files.
pub(crate) const GLOG: &[FlagSpec] = &[
    flag("minloglevel", "Lowest level to log: 0 info, 1 warning, 2 error"),
    flag("v", "Verbosity: 1 adds debug lines, 2 adds all lines"),
    flag("logtostderr", "Log to stderr (the default in mcctl)"),
    flag("alsologtostderr", "Also log to stderr (the default in mcctl)"),
    flag("log_dir", "Directory for log files").no_effect(ONLY_LOG_FILES),
    flag("log_link", "Directory for links to log files").no_effect(ONLY_LOG_FILES),
    flag("max_log_size", "Maximum log file size in MB").no_effect(ONLY_LOG_FILES),
    flag("logfile_mode", "Log file permissions").no_effect(ONLY_LOG_FILES),
    flag("logbuflevel", "Highest buffered level").within(-1, i32::MAX as u64).no_effect(ONLY_LOG_FILES),
    flag("logbufsecs", "Maximum buffering time in seconds").no_effect(ONLY_LOG_FILES),
    flag("stop_logging_if_full_disk", "Stop logging when the disk is full").no_effect(ONLY_LOG_FILES),
    flag("stderrthreshold", "Lowest level copied to stderr").no_effect(ONLY_LOG_FILES),
    flag("drop_log_memory", "Drop log file pages from the page cache").no_effect(ONLY_LOG_FILES),
    flag("alsologtoemail", "Email addresses to which log lines are sent").no_effect(ONLY_LOG_FILES),
    flag("logemaillevel", "Lowest level to email").no_effect(ONLY_LOG_FILES),
    flag("logmailer", "Mail program").no_effect(ONLY_LOG_FILES),
    flag("colorlogtostderr", "Use colors on stderr").no_effect("colors are used only on a terminal"),
    flag("log_prefix", "Prefix each log line with its time and level").no_effect("every line has both"),
    flag("log_backtrace_at", "Source line whose log messages include a backtrace")
        .no_effect("it refers to upstream's source lines"),
    flag("symbolize_stacktrace", "Resolve symbols in crash reports").no_effect("mcctl does not write crash reports"),
    flag("vmodule", "Verbosity per source file").no_effect("use MCCTL_LOG=info,mcctl_net::rpc=debug"),
    flag("tab_completion_columns", "Width of completions in columns").no_effect("use mcctl completions"),
    flag("tab_completion_word", "Word to complete").no_effect("use mcctl completions"),
];

const LOADERS: &[FlagSpec] = &[
    flag("config_path", "YAML or JSON file whose keys are flag names with '_'; flags override it")
        .aliases(&["config"])
        .value("FILE"),
    STRICT,
    flag("flagfile", "File with one flag per line, applied in place").value("FILE"),
    flag("fromenv", "Flags to read from the environment: NAME from FLAGS_NAME").value("NAME,.."),
    flag("tryfromenv", "Like --fromenv, but unset variables are ignored").value("NAME,.."),
    flag("undefok", "Unknown flags to ignore").value("NAME,.."),
];

/// The flag `name` of `mooncake_master`, with mcctl's description.
const fn flag(name: &'static str, help: &'static str) -> FlagSpec {
    upstream_flag(master_flag(name).expect("a flag of mooncake_master"), help)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::engine::lint::MCCTL_FLAGS;
    use crate::engine::upstream::{DeployedRelease, LIBRARY_FLAGS, MASTER_FLAGS, UpstreamFlag};

    /// All flags of the tested release except the help flags of gflags, which the parser handles.
    fn upstream() -> impl Iterator<Item = &'static UpstreamFlag> {
        let is_help = |flag: &UpstreamFlag| flag.name.starts_with("help") || flag.name == "version";
        let flags = MASTER_FLAGS.iter().chain(LIBRARY_FLAGS).filter(|flag| DeployedRelease::TESTED.has(flag.since));
        flags.filter(move |flag| !is_help(flag))
    }

    #[test]
    fn all_upstream_flags_have_upstream_defaults() {
        for row in upstream() {
            let flag = TABLE.find(row.name).unwrap_or_else(|| panic!("no flag {}", row.name));
            let default = if row.name == "enable_metric_reporting" { "false" } else { row.default };
            assert_eq!(flag.default, default, "{}", row.name);
        }
    }

    #[test]
    fn flags_beyond_upstream_are_listed_for_lint() {
        let is_ours = |name: &&str| !upstream().any(|row| row.name == *name);
        let ours: BTreeSet<_> = TABLE.flags().map(|flag| flag.name).filter(is_ours).collect();
        let known: BTreeSet<_> = MCCTL_FLAGS.iter().copied().chain(["strict_config"]).collect();
        assert_eq!(ours, known);
    }
}
