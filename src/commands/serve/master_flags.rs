//! Every flag of `mooncake_master` 0.3.13.post1 with its type and default there, and what it does here.
//!
//! Where our default differs, the line says why. Help texts are ours.

use crate::commands::flags::{Flag, Kind, Table, flag};
use crate::commands::serve::{LOG_FILE, LOG_FILE_KEEP, LOG_FILE_MAX_SIZE, LOG_FORMAT, LOG_LEVEL};
use crate::commands::unknown_key::STRICT;

/// More threads than any host has CPUs only cost memory.
const THREADS_MAX: u64 = 1024;
const I32_MAX: u64 = i32::MAX as u64;
const U32_MAX: u64 = u32::MAX as u64;
const I64_MAX: u64 = i64::MAX as u64;
const RATIO: Kind = Kind::Number(0.0, 1.0);

const HA: &str = "high availability (more than one master) is not there yet";
const OPLOG: &str = "replication of metadata through etcd is not there yet";
const SNAPSHOT: &str = "snapshots of the master's metadata are not there yet";
const OFFLOAD: &str = "the SSD tier (offload) is not there yet";
const DFS: &str = "persistence to a shared file system is not there yet";
const CXL: &str = "CXL memory is not there yet";
const TENANTS: &str = "strict tenants and quotas are not there yet";
const EVENTS: &str = "publishing KV events is not there yet";
const DYNAMIC: &str = "dynamic replication is not there yet";

const ONLY_HA: &str = "it tunes high availability, which is off";
const ONLY_OPLOG: &str = "it tunes the oplog, which is off";
const ONLY_SNAPSHOT: &str = "it tunes snapshots, which are off";
const ONLY_OFFLOAD: &str = "it tunes the SSD tier, which is off";
const ONLY_DFS: &str = "it tunes persistence to a file system, which is off";
const ONLY_CXL: &str = "it tunes CXL memory, which is off";
const ONLY_NOF: &str = "it tunes NVMe-oF pools, which are not there yet";
const ONLY_TASKS: &str = "it tunes copy and move tasks, which are not there yet";
const ONLY_TENANTS: &str = "it tunes tenant quotas, which are off";
const ONLY_EVENTS: &str = "it tunes KV events, which are off";
const ONLY_DYNAMIC: &str = "it tunes dynamic replication, which is off";
const ONLY_CLIENTS: &str = "it concerns clients only, as in the original";
const ONLY_LOG_FILES: &str = "use --log-file, --log-file-max-size and --log-file-keep";

/// The flags of `serve master`.
pub static TABLE: Table = Table {
    command: "serve master",
    about: "Run a Mooncake master: the index of a store's objects and the keeper of its segments. Takes the flags and \
            configuration files of mooncake_master 0.3.13.",
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

const RPC: &[Flag] = &[
    flag("rpc_port", Kind::Port, "0", "RPC port; 0 takes --port"),
    flag("port", Kind::Port, "50051", "RPC port when --rpc-port is 0; deprecated. Both 0: any free port")
        .not_in_file("write rpc_port"),
    flag("rpc_address", Kind::Text, "0.0.0.0", "Address that the RPC port is bound to"),
    flag(
        "rpc_interface",
        Kind::Text,
        "",
        "Bind to the IPv4 address of this network interface instead of --rpc-address",
    ),
    flag(
        "rpc_thread_num",
        Kind::Whole(0, THREADS_MAX),
        "0",
        "Worker threads; 0 means one per CPU, at most --max-threads",
    ),
    flag(
        "max_threads",
        Kind::Whole(1, THREADS_MAX),
        "16",
        "Most worker threads when --rpc-thread-num is 0; deprecated",
    )
    .not_in_file("write rpc_thread_num"),
    flag(
        "rpc_conn_timeout_seconds",
        Kind::Whole(0, I32_MAX),
        "0",
        "Close a connection after this many idle seconds; 0: never",
    ),
    flag("rpc_enable_tcp_no_delay", Kind::Bool, "true", "Send small answers at once")
        .no_effect("answers are always sent at once"),
];

const ADMIN: &[Flag] = &[
    flag("metrics_port", Kind::Port, "9003", "Admin HTTP port (metrics, health, queries); 0 takes any free port"),
    flag("metrics_host", Kind::Text, "0.0.0.0", "Address that the admin HTTP port is bound to; '::' for IPv6 and IPv4"),
    flag(
        "enable_metric_reporting",
        Kind::Bool,
        "true",
        "Log one summary line every 10 s; to a terminal only when this flag is given",
    ),
    LOG_LEVEL,
    LOG_FILE,
    LOG_FILE_MAX_SIZE,
    LOG_FILE_KEEP,
    LOG_FORMAT,
];

const LEASES: &[Flag] = &[
    flag(
        "default_kv_lease_ttl",
        Kind::Duration,
        "10000",
        "Life of a read lease: an object under one is neither evicted nor removed",
    ),
    flag("default_kv_soft_pin_ttl", Kind::Duration, "1800000", "Life of a soft pin: such an object is evicted last"),
    flag("max_kv_soft_pin_ttl", Kind::Duration, "86400000", "Longest soft pin that a request may ask for"),
    flag("allow_evict_soft_pinned_objects", Kind::Bool, "true", "Evict soft-pinned objects when nothing else is left"),
    flag("eviction_ratio", RATIO, "0.05", "Share of the objects that one eviction frees"),
    flag(
        "eviction_high_watermark_ratio",
        RATIO,
        "0.9",
        "Evict when more than this share of the memory is in use; 1 only when a put fails",
    ),
    flag(
        "put_start_discard_timeout_sec",
        Kind::Whole(0, U32_MAX),
        "30",
        "Seconds after which an unfinished put may be overwritten",
    ),
    flag(
        "put_start_release_timeout_sec",
        Kind::Whole(0, U32_MAX),
        "600",
        "Seconds after which the memory of an unfinished put is free",
    ),
    flag(
        "client_ttl",
        Kind::Whole(0, U32_MAX),
        "10",
        "Seconds without a heartbeat after which a client and its segments are gone",
    )
    .key("client_live_ttl_sec"),
    flag(
        "allocation_strategy",
        Kind::Word(&["random", "free_ratio_first", "cxl", "ssd_free_ratio_first", "local_first"]),
        "random",
        "How segments are chosen for an object: at random, the emptiest of a sample, or those of the writer's host first \
         (local_first; for one replica); without an SSD tier ssd_free_ratio_first is random",
    ),
    flag("memory_allocator", Kind::Word(&["offset", "cachelib"]), "offset", "Allocator inside a segment")
        .no_effect("the offset allocator is the only one, and serves all sizes"),
];

const METADATA: &[Flag] = &[
    flag(
        "enable_http_metadata_server",
        Kind::Bool,
        "false",
        "Serve the transfer engine's metadata (http://HOST:PORT/metadata) too",
    ),
    flag("http_metadata_server_port", Kind::Port, "8080", "Port of that service; 0 takes any free port"),
    flag("http_metadata_server_host", Kind::Text, "0.0.0.0", "Address that it is bound to"),
    flag(
        "enable_metadata_cleanup_on_timeout",
        Kind::Bool,
        "false",
        "Remove a dead client's records from the metadata service",
    ),
];

const HA_FLAGS: &[Flag] = &[
    flag("enable_ha", Kind::Bool, "false", "Elect one of several masters").absent(HA),
    flag("ha_backend_type", Kind::Text, "etcd", "Where the election is held").no_effect(ONLY_HA),
    flag("ha_backend_connstring", Kind::Text, "", "Address of that place").no_effect(ONLY_HA),
    flag("etcd_endpoints", Kind::Text, "", "Addresses of etcd, separated by ';'").no_effect(ONLY_HA),
    flag("cluster_id", Kind::Text, "mooncake_cluster", "Namespace of everything written for high availability")
        .no_effect(ONLY_HA),
    flag("pod_name", Kind::Text, "", "Pod that is labelled as leader").no_effect(ONLY_HA),
    flag("pod_namespace", Kind::Text, "", "Its namespace").no_effect(ONLY_HA),
    flag("enable_oplog", Kind::Bool, "false", "Replicate metadata to stand-by masters").absent(OPLOG),
    flag("oplog_poll_interval_ms", Kind::Whole(0, I32_MAX), "1000", "Milliseconds between a stand-by's polls")
        .no_effect(ONLY_OPLOG),
    flag("oplog_batch_max_entries", Kind::Whole(0, U32_MAX), "1024", "Most entries of a batch").no_effect(ONLY_OPLOG),
    flag("batch_oplog_retry_timeout_sec", Kind::Whole(0, U32_MAX), "180", "Seconds that a stand-by retries")
        .no_effect(ONLY_OPLOG),
    flag("enable_snapshot", Kind::Bool, "false", "Write snapshots of the metadata").absent(SNAPSHOT),
    flag("enable_snapshot_restore", Kind::Bool, "false", "Start from the last snapshot").absent(SNAPSHOT),
    flag("snapshot_interval_seconds", Kind::Whole(0, u64::MAX), "600", "Seconds between snapshots")
        .no_effect(ONLY_SNAPSHOT),
    flag("snapshot_child_timeout_seconds", Kind::Whole(0, u64::MAX), "300", "Longest time for one")
        .no_effect(ONLY_SNAPSHOT),
    flag("snapshot_retention_count", Kind::Whole(0, U32_MAX), "2", "Snapshots that are kept").no_effect(ONLY_SNAPSHOT),
    flag("snapshot_object_store_type", Kind::Text, "", "local or s3")
        .aliases(&["snapshot_payload_store_type", "snapshot_payload_backend_type"])
        .no_effect(ONLY_SNAPSHOT),
    flag("snapshot_catalog_store_type", Kind::Text, "", "embedded or redis")
        .aliases(&["snapshot_catalog_backend_type"])
        .no_effect(ONLY_SNAPSHOT),
    flag("snapshot_catalog_store_connstring", Kind::Text, "", "Address of the catalogue")
        .aliases(&["snapshot_catalog_backend_connstring"])
        .no_effect(ONLY_SNAPSHOT),
    flag("snapshot_backup_dir", Kind::Text, "", "Folder for copies").no_effect(ONLY_SNAPSHOT),
];

const TIERS: &[Flag] = &[
    flag("enable_offload", Kind::Bool, "false", "Keep objects on the nodes' SSDs too").absent(OFFLOAD),
    flag("offload_on_evict", Kind::Bool, "false", "Write to SSD when evicting instead of after a put")
        .no_effect(ONLY_OFFLOAD),
    flag("offload_force_evict", Kind::Bool, "false", "Drop what exceeds a cycle's share").no_effect(ONLY_OFFLOAD),
    flag("offloading_queue_limit", Kind::Whole(1, 100_000_000), "50000", "Objects queued for one disk")
        .no_effect(ONLY_OFFLOAD),
    flag("offload_cap_ratio", RATIO, "0.5", "Share of that queue for one eviction").no_effect(ONLY_OFFLOAD),
    flag("promotion_on_hit", Kind::Bool, "false", "Copy objects back from SSD when they are read").absent(OFFLOAD),
    flag("promotion_admission_threshold", Kind::Whole(0, U32_MAX), "2", "Reads before that happens")
        .no_effect(ONLY_OFFLOAD),
    flag("promotion_queue_limit", Kind::Whole(0, U32_MAX), "50000", "Copies under way").no_effect(ONLY_OFFLOAD),
    flag("promotion_max_per_heartbeat", Kind::Whole(0, U32_MAX), "1", "Copies handed to a client at once")
        .no_effect(ONLY_OFFLOAD),
    flag("root_fs_dir", Kind::Text, "", "Folder of a shared file system to persist to").absent(DFS),
    flag(
        "global_file_segment_size",
        Kind::Whole(i64::MIN, I64_MAX),
        "9223372036854775807",
        "Bytes of that file system to use",
    )
    .no_effect(ONLY_DFS),
    flag("enable_disk_eviction", Kind::Bool, "true", "Evict from it").no_effect(ONLY_DFS),
    flag("quota_bytes", Kind::Whole(0, u64::MAX), "0", "Quota on it in bytes").no_effect(ONLY_DFS),
    flag("enable_cxl", Kind::Bool, "false", "Use CXL memory").absent(CXL),
    flag("cxl_path", Kind::Text, "/dev/dax0.0", "Its device").no_effect(ONLY_CXL),
    flag("cxl_size", Kind::Whole(0, u64::MAX), "8589934592", "Its bytes").no_effect(ONLY_CXL),
    flag("nof_eviction_ratio", RATIO, "0.05", "Share of the objects that one eviction of an NVMe-oF pool frees")
        .no_effect(ONLY_NOF),
    flag("nof_eviction_high_watermark_ratio", RATIO, "0.9", "Evict an NVMe-oF pool above this share")
        .no_effect(ONLY_NOF),
    flag("nof_heartbeat_interval_sec", Kind::Whole(0, I64_MAX), "10", "Seconds between probes of it")
        .no_effect(ONLY_NOF),
    flag("nof_heartbeat_probe_timeout_ms", Kind::Whole(0, U32_MAX), "1000", "Milliseconds for a probe")
        .no_effect(ONLY_NOF),
    flag("nof_heartbeat_failures_threshold", Kind::Whole(0, U32_MAX), "3", "Failed probes until it is unmounted")
        .no_effect(ONLY_NOF),
    flag("use_mmap_arena_allocator", Kind::Bool, "false", "Allocate client buffers from one arena")
        .no_effect(ONLY_CLIENTS),
    flag("mmap_arena_pool_size", Kind::Whole(0, u64::MAX), "8589934592", "Bytes of that arena").no_effect(ONLY_CLIENTS),
];

const EXTRAS: &[Flag] = &[
    flag("max_total_finished_tasks", Kind::Whole(0, U32_MAX), "10000", "Finished tasks that are remembered")
        .no_effect(ONLY_TASKS),
    flag("max_total_pending_tasks", Kind::Whole(0, U32_MAX), "10000", "Tasks that wait").no_effect(ONLY_TASKS),
    flag("max_total_processing_tasks", Kind::Whole(0, U32_MAX), "10000", "Tasks under way").no_effect(ONLY_TASKS),
    flag("pending_task_timeout_sec", Kind::Whole(0, u64::MAX), "300", "Seconds that a task may wait")
        .no_effect(ONLY_TASKS),
    flag("processing_task_timeout_sec", Kind::Whole(0, u64::MAX), "300", "Seconds that a task may run")
        .no_effect(ONLY_TASKS),
    flag("max_retry_attempts", Kind::Whole(0, U32_MAX), "10", "Tries of a task").no_effect(ONLY_TASKS),
    flag(
        "dynamic_replication_mode",
        Kind::Word(&["off", "observe", "enforce"]),
        "off",
        "Copy hot objects to more segments",
    )
    .absent(DYNAMIC),
    flag(
        "dynamic_replication_heat_window_seconds",
        Kind::Whole(0, U32_MAX),
        "10",
        "Seconds over which heat is counted",
    )
    .no_effect(ONLY_DYNAMIC),
    flag(
        "dynamic_replication_admission_qps_threshold",
        Kind::Number(0.0, f64::MAX),
        "0.8",
        "Reads a second that make an object hot",
    )
    .no_effect(ONLY_DYNAMIC),
    flag("dynamic_replication_max_memory_replicas", Kind::Whole(0, u64::MAX), "2", "Most copies of one object")
        .no_effect(ONLY_DYNAMIC),
    flag("enable_multi_tenants", Kind::Bool, "false", "Strict tenants with quotas").absent(TENANTS),
    flag("tenant_quota_connector_type", Kind::Text, "file", "Where quotas are kept").no_effect(ONLY_TENANTS),
    flag("tenant_quota_connector_uri", Kind::Text, "", "Address of that place").no_effect(ONLY_TENANTS),
    flag("enable_kv_events", Kind::Bool, "false", "Publish what happens to objects over ZMQ").absent(EVENTS),
    flag("kv_events_bind_endpoint", Kind::Text, "", "Address of the publisher").no_effect(ONLY_EVENTS),
    flag("kv_events_backend_id", Kind::Text, "", "Name of the publisher").no_effect(ONLY_EVENTS),
    flag("kv_events_queue_capacity", Kind::Whole(0, U32_MAX), "65536", "Events that wait").no_effect(ONLY_EVENTS),
    flag("kv_events_emit_legacy_compat", Kind::Bool, "true", "Send older fields too").no_effect(ONLY_EVENTS),
    flag("kv_events_emit_object_key", Kind::Bool, "true", "Send the object's key").no_effect(ONLY_EVENTS),
    flag("kv_events_model_name", Kind::Text, "", "Deprecated").no_effect(ONLY_EVENTS),
    flag("kv_events_tenant_id", Kind::Text, "default", "Deprecated").no_effect(ONLY_EVENTS),
    flag("kv_events_additional_salt", Kind::Text, "", "Deprecated").no_effect(ONLY_EVENTS),
    flag("kv_events_lora_name", Kind::Text, "", "Deprecated").no_effect(ONLY_EVENTS),
    flag("kv_events_block_size", Kind::Whole(0, U32_MAX), "0", "Deprecated").no_effect(ONLY_EVENTS),
    flag("kv_events_dp_rank", Kind::Whole(0, U32_MAX), "0", "Deprecated").no_effect(ONLY_EVENTS),
];

/// glog's flags. None of them has a key in a file.
pub(crate) const GLOG: &[Flag] = &[
    glog("minloglevel", Kind::Whole(0, I32_MAX), "0", "Least level to log: 0 info, 1 warning, 2 error"),
    glog("v", Kind::Whole(0, I32_MAX), "0", "Verbosity: 1 adds debug lines, 2 all"),
    glog("logtostderr", Kind::Bool, "false", "Log to stderr, which is where log lines go in any case"),
    glog("alsologtostderr", Kind::Bool, "false", "Log to stderr too, which is where log lines go in any case"),
    glog("log_dir", Kind::Text, "", "Folder for log files").no_effect(ONLY_LOG_FILES),
    glog("log_link", Kind::Text, "", "Folder for links to log files").no_effect(ONLY_LOG_FILES),
    glog("max_log_size", Kind::Whole(0, I32_MAX), "1800", "Largest log file in MB").no_effect(ONLY_LOG_FILES),
    glog("logfile_mode", Kind::Whole(0, I32_MAX), "436", "Permissions of log files").no_effect(ONLY_LOG_FILES),
    glog("logbuflevel", Kind::Whole(-1, I32_MAX), "0", "Levels that are buffered").no_effect(ONLY_LOG_FILES),
    glog("logbufsecs", Kind::Whole(0, I32_MAX), "30", "Seconds that they are buffered").no_effect(ONLY_LOG_FILES),
    glog("stop_logging_if_full_disk", Kind::Bool, "false", "Stop when the disk is full").no_effect(ONLY_LOG_FILES),
    glog("stderrthreshold", Kind::Whole(0, I32_MAX), "2", "Level that is copied to stderr").no_effect(ONLY_LOG_FILES),
    glog("drop_log_memory", Kind::Bool, "true", "Drop cached pages of log files").no_effect(ONLY_LOG_FILES),
    glog("alsologtoemail", Kind::Text, "", "Mail addresses for log lines").no_effect(ONLY_LOG_FILES),
    glog("logemaillevel", Kind::Whole(0, I32_MAX), "999", "Level that is mailed").no_effect(ONLY_LOG_FILES),
    glog("logmailer", Kind::Text, "/bin/mail", "Program that mails").no_effect(ONLY_LOG_FILES),
    glog("colorlogtostderr", Kind::Bool, "false", "Colours on stderr")
        .no_effect("a terminal gets colours, other readers do not"),
    glog("log_prefix", Kind::Bool, "true", "Time and level before each line").no_effect("lines always have both"),
    glog("log_backtrace_at", Kind::Text, "", "Source line whose log line has a backtrace")
        .no_effect("there are no such source lines"),
    glog("symbolize_stacktrace", Kind::Bool, "true", "Names in a crash report").no_effect("there are no such reports"),
    glog("vmodule", Kind::Text, "", "Verbosity of single source files")
        .no_effect("use MCCTL_LOG=info,mcctl::engine::rpc=debug"),
    glog("tab_completion_columns", Kind::Whole(0, I32_MAX), "80", "Columns of completions")
        .no_effect("there are no completions"),
    glog("tab_completion_word", Kind::Text, "", "Word to complete").no_effect("there are no completions"),
];

const LOADERS: &[Flag] = &[
    flag("config_path", Kind::Text, "", "YAML or JSON file whose keys are flag names with '_'; flags are stronger")
        .not_in_file("name one file on the command line"),
    STRICT,
    flag("flagfile", Kind::Text, "", "File of flags, one a line, read at this place")
        .not_in_file("it is a flag of the command line"),
    flag("fromenv", Kind::Text, "", "Flags to take from the environment: NAME comes from FLAGS_NAME")
        .not_in_file("it is a flag of the command line"),
    flag("tryfromenv", Kind::Text, "", "The same, for those that are set")
        .not_in_file("it is a flag of the command line"),
    flag("undefok", Kind::Text, "", "Unknown flags to ignore").not_in_file("it is a flag of the command line"),
];

const fn glog(name: &'static str, kind: Kind, default: &'static str, help: &'static str) -> Flag {
    flag(name, kind, default, help).not_in_file("give it on the command line")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::flags::Value;
    use crate::engine::lint::MCCTL_FLAGS;

    /// Name and default of every flag of `mooncake_master --help`, 0.3.13.post1, but for the help flags of gflags.
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
    fn every_flag_of_the_original_is_here_with_its_default() {
        for pair in UPSTREAM.split_whitespace() {
            let (name, default) = pair.split_once('=').expect("pairs");
            let flag = TABLE.find(name).unwrap_or_else(|| panic!("{name} is missing"));
            assert_eq!(flag.default, default, "{name}");
        }
    }

    #[test]
    fn what_is_here_beyond_the_original_is_named() {
        let upstream =
            |name: &str| UPSTREAM.split_whitespace().any(|pair| pair.split_once('=').is_some_and(|(n, _)| n == name));
        let ours: Vec<_> = TABLE.flags().map(|flag| flag.name).filter(|name| !upstream(name)).collect();
        let known: Vec<_> = MCCTL_FLAGS.iter().copied().chain(["strict_config"]).collect();
        assert_eq!(ours, known);
    }

    #[test]
    fn no_name_is_listed_twice_and_every_default_is_of_its_kind() {
        let mut names: Vec<_> = TABLE.flags().flat_map(|f| std::iter::once(&f.name).chain(f.aliases)).collect();
        names.sort_unstable();
        let count = names.len();
        names.dedup();
        assert_eq!(names.len(), count);
        for flag in TABLE.flags() {
            let value: Value = flag.default_value();
            assert!(!value.to_string().is_empty() || flag.default.is_empty(), "{}", flag.name);
            assert!(!flag.help.ends_with('.'), "{}: help ends without a full stop", flag.name);
        }
    }
}
