//! What mcctl does with each flag, key and environment variable of `mooncake_store_service`, and
//! its own flags.
//!
//! Upstream's types and defaults are in `src/engine/base/upstream` (`config_keys.rs`,
//! `service_flags.rs`).

use crate::commands::cli::flags::{FlagSpec, FlagTable, ValueKind, flag, upstream_flag};
use crate::commands::cli::logging;
use crate::commands::cli::service_flags::COMMON;
use crate::commands::cli::service_flags::access_flags;
use crate::commands::cli::unknown_key::STRICT;
use crate::engine::upstream::{STORE_SERVICE_FLAGS, find, mooncake_series, store_key};

const ONLY_OFFLOAD: &str = "the SSD tier (offload) is not supported";

/// The `serve store` flags.
pub static TABLE: FlagTable = FlagTable {
    command: "serve store",
    about: concat!(
        "Run a store node, which contributes memory to a Mooncake master and serves a REST API. It accepts the same flags, JSON \
         keys and environment variables as mooncake_store_service ",
        mooncake_series!(),
        ". Flags and -D override the file from --config or, if it is not set, MOONCAKE_CONFIG_PATH. With a file, the MOONCAKE_* \
         variables are ignored."
    ),
    groups: &[
        ("Store", STORE),
        ("Service", SERVICE),
        (access_flags::HEADING, access_flags::ACCESS),
        ("Files and the environment", LOADERS),
        (logging::COMMON, COMMON),
    ],
};

const STORE: &[FlagSpec] = &[
    setting("master_server_address", "Master RPC address, HOST:PORT, or etcd://HOST:PORT of a cluster of masters").value("HOST:PORT").aliases(&["master"]),
    setting("metadata_server", "Metadata service URL (http:// or etcd://), or P2PHANDSHAKE; http URLs of several masters are separated by commas").value("URL"),
    // Upstream announces `localhost`, which other hosts cannot reach.
    setting(
        "local_hostname",
        "Name or address that other hosts use to reach this node; if empty, localhost if the master is on this host, otherwise the local \
         address used to reach the master",
    ).value("HOST")
    .default("")
    ,
    setting("global_segment_size", "Memory to contribute to the store; 0 means none").aliases(&["segment_size"]),
    setting("local_buffer_size", "Memory for this node's own puts and gets; 0 means allocate on demand"),
    setting("protocol", "Transport: tcp or rdma").value("PROTOCOL"),
    setting("device_name", "RDMA devices, comma-separated; if empty, all usable devices").value("NAME,..").aliases(&["rdma_devices"]),
    flag(
        "allow_tcp_fallback",
        ValueKind::Bool,
        "false",
        "With rdma: if this host has no RDMA device, log a warning and use tcp instead of failing",
    ),
    flag(
        "shared_memory",
        ValueKind::Bool,
        "true",
        "Share memory with processes on this host, which then read it directly instead of over the transport",
    )
    .env("MCCTL_SHARED_MEMORY"),
    flag(
        "shared_memory_socket",
        ValueKind::Text,
        "",
        "Directory for the Unix socket of shared memory. Containers need a volume that both mount. If empty, the socket has no file and \
         reaches only processes in the same network namespace",
    ).value("DIR")
    .env("MCCTL_SHARED_MEMORY_SOCKET"),
    flag(
        "on_corruption",
        ValueKind::Word(&["withdraw", "report"]),
        "withdraw",
        "What this node's client does with an object whose only replica has bytes without its checksum: withdraw removes it, at most ten per \
         minute; report only counts and logs it",
    )
    .env("MCCTL_ON_CORRUPTION"),
    setting("tenant_id", "Tenant for this node's own requests")
        .no_effect("a node has no requests of its own: its REST API uses the default tenant"),
    setting("enable_ssd_offload", "Also store objects on this node's SSD").absent(ONLY_OFFLOAD),
    setting("ssd_offload_path", "Directory for objects on SSD").no_effect(ONLY_OFFLOAD),
    setting(
        "enable_client_http_server",
        "Serve /health, /metrics and /metrics/summary for this node's client on --client-http-port",
    ),
    setting("client_http_port", "Client HTTP server port; 0 means any free port"),
];

/// The setting `key` of `mooncake_store_service`, with mcctl's description.
const fn setting(key: &'static str, help: &'static str) -> FlagSpec {
    let row = store_key(key);
    flag(row.key, ValueKind::of_upstream(row.kind), row.default, help).env(row.variable)
}

/// The flag `name` of `mooncake_store_service`, with mcctl's description.
const fn service(name: &'static str, help: &'static str) -> FlagSpec {
    upstream_flag(find(STORE_SERVICE_FLAGS, name), help)
}

const SERVICE: &[FlagSpec] = &[
    service("port", "REST port; 0 means any free port").aliases(&["rest_port"]).not_in_file("use --rest-port"),
    flag("host", ValueKind::Text, "0.0.0.0", "Address to bind the REST port to")
        .value("ADDRESS")
        .not_in_file("use --host"),
    service("max_wait_time", "Maximum seconds to wait for the metadata service, and then for the master")
        .value("SECONDS")
        .kind(ValueKind::Number(0.0, 86_400.0))
        .not_in_file("use --max-wait-time"),
];

const LOADERS: &[FlagSpec] = &[
    service("config", "JSON file whose keys are the flag names in the Store and Access groups, with '_'")
        .value("FILE")
        .not_in_file("use --config"),
    STRICT,
    service("define", "Set a --config key; repeatable").kind(ValueKind::Define).aliases(&["D"]).not_in_file("use -D"),
    flag("flagfile", ValueKind::Text, "", "File with one flag per line, applied in place")
        .value("FILE")
        .not_in_file("set it on the command line"),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::upstream::STORE_KEYS;

    #[test]
    fn all_upstream_keys_and_variables_have_upstream_defaults() {
        for row in STORE_KEYS {
            let flag = TABLE.find_key(row.key).unwrap_or_else(|| panic!("no key {}", row.key));
            let default = if row.key == "local_hostname" { "" } else { row.default };
            assert_eq!((flag.env, flag.default), (Some(row.variable), default), "{}", row.key);
        }
    }
}
