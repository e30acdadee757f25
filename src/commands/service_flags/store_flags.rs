//! All `mooncake_store_service` 0.3.13.post1 flags, keys and environment variables, and mcctl's own flags.

use crate::commands::flags::{FlagSpec, FlagTable, ValueKind, flag};
use crate::commands::service_flags::{LOG_FILE, LOG_FILE_KEEP, LOG_FILE_MAX_SIZE, LOG_FORMAT, LOG_LEVEL};
use crate::commands::unknown_key::STRICT;

const ONLY_OFFLOAD: &str = "the SSD tier (offload) is not supported";

/// The `serve store` flags.
pub static TABLE: FlagTable = FlagTable {
    command: "serve store",
    about: "Run a store node, which contributes memory to a Mooncake master and serves a REST API. It accepts the same flags, JSON \
            keys and environment variables as mooncake_store_service 0.3.13. Flags and -D override the file from --config or, if it \
            is not set, MOONCAKE_CONFIG_PATH. With a file, the MOONCAKE_* variables are ignored.",
    groups: &[("Store", STORE), ("Service", SERVICE), ("Files and the environment", LOADERS)],
};

const STORE: &[FlagSpec] = &[
    flag("master_server_address", ValueKind::Text, "", "Master RPC address, HOST:PORT")
        .aliases(&["master"])
        .env("MOONCAKE_MASTER"),
    flag("metadata_server", ValueKind::Text, "P2PHANDSHAKE", "Metadata service URL, or P2PHANDSHAKE")
        .env("MOONCAKE_TE_META_DATA_SERVER"),
    flag(
        "local_hostname",
        ValueKind::Text,
        "",
        "Name or address that other hosts use to reach this node; if empty, localhost if the master is on this host, otherwise the local \
         address used to reach the master",
    )
    .env("MOONCAKE_LOCAL_HOSTNAME"),
    flag("global_segment_size", ValueKind::Size, "3200mb", "Memory to contribute to the store; 0 means none")
        .aliases(&["segment_size"])
        .env("MOONCAKE_GLOBAL_SEGMENT_SIZE"),
    flag(
        "local_buffer_size",
        ValueKind::Size,
        "1gb",
        "Memory for this node's own puts and gets; 0 means allocate on demand",
    )
    .env("MOONCAKE_LOCAL_BUFFER_SIZE"),
    flag("protocol", ValueKind::Text, "tcp", "Transport: tcp or rdma").env("MOONCAKE_PROTOCOL"),
    flag("device_name", ValueKind::Text, "", "RDMA devices, comma-separated; if empty, all usable devices")
        .aliases(&["rdma_devices"])
        .env("MOONCAKE_DEVICE"),
    flag(
        "allow_tcp_fallback",
        ValueKind::Bool,
        "false",
        "With rdma: if this host has no RDMA device, log a warning and use tcp instead of failing",
    ),
    flag("tenant_id", ValueKind::Text, "default", "Tenant for this node's own requests")
        .env("MOONCAKE_TENANT_ID")
        .no_effect("the master ignores it unless strict tenants are enabled"),
    flag("enable_ssd_offload", ValueKind::Bool, "false", "Also store objects on this node's SSD")
        .env("MOONCAKE_OFFLOAD_ENABLED")
        .absent(ONLY_OFFLOAD),
    flag("ssd_offload_path", ValueKind::Text, "", "Directory for objects on SSD")
        .env("MOONCAKE_OFFLOAD_FILE_STORAGE_PATH")
        .no_effect(ONLY_OFFLOAD),
    flag(
        "enable_client_http_server",
        ValueKind::Bool,
        "false",
        "Serve /health, /metrics and /metrics/summary for this node's client on --client-http-port",
    )
    .env("MOONCAKE_ENABLE_CLIENT_HTTP_SERVER"),
    flag("client_http_port", ValueKind::Port, "9300", "Client HTTP server port; 0 means any free port")
        .env("MOONCAKE_CLIENT_HTTP_PORT"),
];

const SERVICE: &[FlagSpec] = &[
    flag("port", ValueKind::Port, "8080", "REST port; 0 means any free port")
        .aliases(&["rest_port"])
        .not_in_file("use --rest-port"),
    flag("host", ValueKind::Text, "0.0.0.0", "Address to bind the REST port to").not_in_file("use --host"),
    flag(
        "max_wait_time",
        ValueKind::Number(0.0, 86_400.0),
        "60",
        "Maximum seconds to wait for the metadata service, and then for the master",
    )
    .not_in_file("use --max-wait-time"),
    LOG_LEVEL,
    LOG_FILE,
    LOG_FILE_MAX_SIZE,
    LOG_FILE_KEEP,
    LOG_FORMAT,
];

const LOADERS: &[FlagSpec] = &[
    flag("config", ValueKind::Text, "", "JSON file whose keys are the flag names in the Store group, with '_'")
        .not_in_file("use --config"),
    STRICT,
    flag("define", ValueKind::Define, "", "Set a --config key; repeatable").aliases(&["D"]).not_in_file("use -D"),
    flag("flagfile", ValueKind::Text, "", "File with one flag per line, applied in place")
        .not_in_file("set it on the command line"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_upstream_keys_and_variables_have_upstream_defaults() {
        for (key, env, default) in [
            ("local_hostname", "MOONCAKE_LOCAL_HOSTNAME", ""),
            ("metadata_server", "MOONCAKE_TE_META_DATA_SERVER", "P2PHANDSHAKE"),
            ("master_server_address", "MOONCAKE_MASTER", ""),
            ("global_segment_size", "MOONCAKE_GLOBAL_SEGMENT_SIZE", "3200mb"),
            ("local_buffer_size", "MOONCAKE_LOCAL_BUFFER_SIZE", "1gb"),
            ("protocol", "MOONCAKE_PROTOCOL", "tcp"),
            ("device_name", "MOONCAKE_DEVICE", ""),
            ("enable_ssd_offload", "MOONCAKE_OFFLOAD_ENABLED", "false"),
            ("ssd_offload_path", "MOONCAKE_OFFLOAD_FILE_STORAGE_PATH", ""),
            ("tenant_id", "MOONCAKE_TENANT_ID", "default"),
            ("enable_client_http_server", "MOONCAKE_ENABLE_CLIENT_HTTP_SERVER", "false"),
            ("client_http_port", "MOONCAKE_CLIENT_HTTP_PORT", "9300"),
        ] {
            let flag = TABLE.find_key(key).unwrap_or_else(|| panic!("no key {key}"));
            assert_eq!((flag.env, flag.default), (Some(env), default), "{key}");
        }
    }

    #[test]
    fn names_are_unique_and_defaults_parse() {
        let mut names: Vec<_> = TABLE.flags().flat_map(|f| std::iter::once(&f.name).chain(f.aliases)).collect();
        names.sort_unstable();
        let count = names.len();
        names.dedup();
        assert_eq!(names.len(), count);
        for flag in TABLE.flags() {
            flag.default_value();
        }
    }
}
