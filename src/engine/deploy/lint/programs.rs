//! The flags of mcctl's programs, including the flags that they reject. A suggested fix must not
//! contain a rejected flag.
//!
//! `commands` owns the flag tables of these programs. A test there compares them with these lists.

use crate::lint::flags::is_true;
use mcctl_base::upstream::{MASTER_FLAGS, find, store_key};

/// A flag that an mcctl program accepts only with its default value, because the feature is not
/// supported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RefusedFlag {
    /// Flag name, with `_`.
    pub name: &'static str,
    /// The only accepted value. `false` stands for all its spellings.
    pub default: &'static str,
    /// The feature as the subject of a sentence.
    pub feature: &'static str,
}

const fn refused(name: &'static str, feature: &'static str) -> RefusedFlag {
    RefusedFlag { name, default: find(MASTER_FLAGS, name).default, feature }
}

const SSD: &str = "the SSD tier";

/// Flags that `mcctl serve master` rejects.
pub const REFUSED_BY_MASTER: &[RefusedFlag] = &[
    refused("enable_oplog", "the oplog"),
    refused("enable_offload", SSD),
    refused("promotion_on_hit", SSD),
    refused("root_fs_dir", "a shared file system as a tier"),
    refused("enable_cxl", "CXL memory"),
    refused("dynamic_replication_mode", "dynamic replication"),
    refused("enable_multi_tenants", "a tenant quota"),
    refused("enable_kv_events", "publishing KV events"),
];

/// Upstream's flags for the places of snapshots that `mcctl serve master` accepts only with these
/// values, and the place it lacks.
pub(super) const SNAPSHOT_STORES: &[(&str, &[&str], &str)] = &[
    ("snapshot_object_store_type", LOCAL, S3),
    ("snapshot_payload_store_type", LOCAL, S3),
    ("snapshot_payload_backend_type", LOCAL, S3),
    ("snapshot_catalog_store_type", EMBEDDED, REDIS),
    ("snapshot_catalog_backend_type", EMBEDDED, REDIS),
];

const LOCAL: &[&str] = &["", "local"];
const S3: &str = "an object store (S3) for snapshots";
const EMBEDDED: &[&str] = &["", "embedded"];
const REDIS: &str = "a snapshot catalog in Redis";

/// Setting keys that `mcctl serve store` rejects.
pub const REFUSED_BY_NODE: &[RefusedFlag] =
    &[RefusedFlag { name: "enable_ssd_offload", default: store_key("enable_ssd_offload").default, feature: SSD }];

/// Transports of `mcctl serve store`.
pub(super) const NODE_TRANSPORTS: &[&str] = &["tcp", "rdma"];

/// Additional flags of `mcctl serve master`: the logging flags of all services, and those of the
/// data directory.
pub const MCCTL_FLAGS: &[&str] = &[
    "client_release",
    "log_level",
    "log_file",
    "log_file_max_size",
    "log_file_keep",
    "log_format",
    "bind",
    "allow_cidr",
    "token_file",
    "tls_cert",
    "tls_key",
    "client_ca",
    "http_socket",
    "writes_from",
    "protect_metrics",
    "data_dir",
    "fsync",
    "on_disk_error",
    "disk_stall_timeout",
    "discard_data",
    "data_format",
    "ha_port",
    "ha_ack",
    "ha_standby_timeout",
    "ha_secret_file",
    "when_not_in_sync",
];

/// Names of upstream's flags that only `mcctl serve master` accepts.
pub(super) const MCCTL_ALIASES: &[&str] = &["config"];

/// The logging flags of all services.
pub(super) fn log_flags() -> impl Iterator<Item = &'static str> {
    MCCTL_FLAGS.iter().copied().filter(|name| name.starts_with("log_"))
}

/// Flags of `mcctl serve store`, without the logging flags.
pub const NODE_FLAGS: &[&str] = &[
    "master_server_address",
    "master",
    "metadata_server",
    "local_hostname",
    "global_segment_size",
    "segment_size",
    "local_buffer_size",
    "protocol",
    "device_name",
    "rdma_devices",
    "allow_tcp_fallback",
    "shared_memory",
    "shared_memory_socket",
    "on_corruption",
    "tenant_id",
    "enable_ssd_offload",
    "ssd_offload_path",
    "enable_client_http_server",
    "client_http_port",
    "port",
    "rest_port",
    "host",
    "bind",
    "allow_cidr",
    "token_file",
    "tls_cert",
    "tls_key",
    "client_ca",
    "http_socket",
    "writes_from",
    "protect_metrics",
    "max_wait_time",
    "config",
    "strict_config",
    "define",
    "D",
    "flagfile",
    "help",
    "h",
];

/// Flags of `mcctl serve metadata`, without the logging flags.
pub const METADATA_FLAGS: &[&str] = &[
    "port",
    "host",
    "bind",
    "allow_cidr",
    "token_file",
    "tls_cert",
    "tls_key",
    "client_ca",
    "http_socket",
    "writes_from",
    "protect_metrics",
    "forward_to",
    "data_dir",
    "fsync",
    "on_disk_error",
    "discard_data",
    "flagfile",
    "help",
    "h",
];

/// Flags of `mcctl up`, without the logging flags.
pub const UP_FLAGS: &[&str] = &[
    "segment_size",
    "bind",
    "host",
    "metadata",
    "rpc_port",
    "metrics_port",
    "metadata_port",
    "rest_port",
    "with_sim",
    "sim_port",
    "protocol",
    "device_name",
    "allow_tcp_fallback",
    "data_dir",
    "fsync",
    "on_disk_error",
    "discard_data",
    "once",
    "json",
    "help",
    "h",
];

impl RefusedFlag {
    /// Whether `text` requests the feature.
    pub fn is_requested(&self, text: &str) -> bool {
        let text = text.trim();
        match self.default {
            "false" => is_true(text),
            default => !text.is_empty() && text != default,
        }
    }
}
