//! The settings of a store node: keys of the store service's settings file, and keys of the store
//! client's setup dictionary.

use crate::upstream::flags::{FlagKind, is_same};

/// A key of the store service's settings file, which is also set with `-D` or a variable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreKey {
    pub key: &'static str,
    /// The environment variable that sets it. Variables are read only without a settings file.
    pub variable: &'static str,
    pub kind: FlagKind,
    /// The default, in a spelling that the service parses. Empty for the master's address, which is
    /// required.
    pub default: &'static str,
}

const fn key(key: &'static str, variable: &'static str, kind: FlagKind, default: &'static str) -> StoreKey {
    StoreKey { key, variable, kind, default }
}

/// All keys, in the order of `mooncake_config.py`'s documentation.
#[rustfmt::skip]
pub const STORE_KEYS: &[StoreKey] = &[
    key("local_hostname", "MOONCAKE_LOCAL_HOSTNAME", FlagKind::Text, "localhost"),
    key("metadata_server", "MOONCAKE_TE_META_DATA_SERVER", FlagKind::Text, "P2PHANDSHAKE"),
    key("master_server_address", "MOONCAKE_MASTER", FlagKind::Text, ""),
    key("global_segment_size", "MOONCAKE_GLOBAL_SEGMENT_SIZE", FlagKind::Size, "3200mb"),
    key("local_buffer_size", "MOONCAKE_LOCAL_BUFFER_SIZE", FlagKind::Size, "1gb"),
    key("protocol", "MOONCAKE_PROTOCOL", FlagKind::Text, "tcp"),
    key("device_name", "MOONCAKE_DEVICE", FlagKind::Text, ""),
    key("enable_ssd_offload", "MOONCAKE_OFFLOAD_ENABLED", FlagKind::Switch, "false"),
    key("ssd_offload_path", "MOONCAKE_OFFLOAD_FILE_STORAGE_PATH", FlagKind::Text, ""),
    key("tenant_id", "MOONCAKE_TENANT_ID", FlagKind::Text, "default"),
    key("enable_client_http_server", "MOONCAKE_ENABLE_CLIENT_HTTP_SERVER", FlagKind::Switch, "false"),
    key("client_http_port", "MOONCAKE_CLIENT_HTTP_PORT", FlagKind::Port, "9300"),
];

/// The key `name`.
///
/// # Panics
/// No key has that name. In a constant, this is a compile error.
pub const fn store_key(name: &str) -> &'static StoreKey {
    let mut at = 0;
    while at < STORE_KEYS.len() {
        if is_same(STORE_KEYS[at].key, name) {
            return &STORE_KEYS[at];
        }
        at += 1;
    }
    panic!("the store service has no key with this name")
}

/// The variable that sets `key` of the store service.
pub fn store_variable(key: &str) -> Option<&'static str> {
    STORE_KEYS.iter().find(|row| row.key == key).map(|row| row.variable)
}

/// Keys that the store client reads from a setup dictionary.
pub const STORE_SETUP_KEYS: &[&str] = &[
    "local_hostname",
    "metadata_server",
    "global_segment_size",
    "local_buffer_size",
    "protocol",
    "rdma_devices",
    "master_server_addr",
    "enable_ssd_offload",
    "ssd_offload_path",
    "enable_client_http_server",
    "client_http_port",
    "tenant_id",
];

/// The master address that the store uses if the dictionary has no `master_server_addr`.
pub const STORE_SETUP_MASTER: &str = "127.0.0.1:50051";

/// Values of `protocol`: the transports of the transfer engine's builds, in releases and on its
/// main branch. The engine rejects any other value.
pub const TRANSPORTS: &[&str] = &[
    "tcp",
    "rdma",
    "efa",
    "cxl",
    "ascend",
    "nvlink",
    "nvlink_intra",
    "hip",
    "barex",
    "ub",
    "ubshmem",
    "cxi",
    "rpc_only",
    "nvmeof",
    "nvmeof_generic",
    "local",
    "maca",
    "musa",
    "nccl",
    "sunrise_link",
];
