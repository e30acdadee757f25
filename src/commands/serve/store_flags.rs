//! Every flag, key and environment variable of `mooncake_store_service` 0.3.13.post1, and ours.

use crate::commands::flags::{Flag, Kind, Table, flag};
use crate::commands::serve::{LOG_FILE, LOG_FILE_KEEP, LOG_FILE_MAX_SIZE, LOG_FORMAT, LOG_LEVEL};
use crate::commands::unknown_key::STRICT;

const ONLY_OFFLOAD: &str = "the SSD tier (offload) is not there yet";

/// The flags of `serve store`.
pub static TABLE: Table = Table {
    command: "serve store",
    about: "Run a store node: memory that a Mooncake master gives to objects, and a REST port. Takes the flags, JSON keys and \
            environment of mooncake_store_service 0.3.13; strongest first: flags and -D in their order, then --config, else the \
            file that MOONCAKE_CONFIG_PATH names, else the MOONCAKE_* variables.",
    groups: &[("Store", STORE), ("Service", SERVICE), ("Files and the environment", LOADERS)],
};

const STORE: &[Flag] = &[
    flag("master_server_address", Kind::Text, "", "HOST:PORT of the master")
        .aliases(&["master"])
        .env("MOONCAKE_MASTER"),
    flag("metadata_server", Kind::Text, "P2PHANDSHAKE", "URL of the metadata service, or P2PHANDSHAKE for none")
        .env("MOONCAKE_TE_META_DATA_SERVER"),
    flag(
        "local_hostname",
        Kind::Text,
        "",
        "Name or address under which other hosts reach this node; without one, localhost for a \
        master on this host and else the address that this host uses towards the master",
    )
    .env("MOONCAKE_LOCAL_HOSTNAME"),
    flag("global_segment_size", Kind::Size, "3200mb", "Memory given to the store; 0 gives none")
        .aliases(&["segment_size"])
        .env("MOONCAKE_GLOBAL_SEGMENT_SIZE"),
    flag(
        "local_buffer_size",
        Kind::Size,
        "1gb",
        "Memory for this node's own puts and gets; 0 takes some when it is needed",
    )
    .env("MOONCAKE_LOCAL_BUFFER_SIZE"),
    flag("protocol", Kind::Text, "tcp", "Transport: tcp or rdma").env("MOONCAKE_PROTOCOL"),
    flag("device_name", Kind::Text, "", "RDMA devices, separated by ','; without any, all that can be used")
        .aliases(&["rdma_devices"])
        .env("MOONCAKE_DEVICE"),
    flag(
        "allow_tcp_fallback",
        Kind::Bool,
        "false",
        "With rdma: use tcp where this host has no RDMA, and say so, instead of giving up",
    ),
    flag("tenant_id", Kind::Text, "default", "Tenant of this node's own requests")
        .env("MOONCAKE_TENANT_ID")
        .no_effect("without strict tenants the master ignores it"),
    flag("enable_ssd_offload", Kind::Bool, "false", "Keep objects on this node's SSD too")
        .env("MOONCAKE_OFFLOAD_ENABLED")
        .absent(ONLY_OFFLOAD),
    flag("ssd_offload_path", Kind::Text, "", "Folder for them")
        .env("MOONCAKE_OFFLOAD_FILE_STORAGE_PATH")
        .no_effect(ONLY_OFFLOAD),
    flag(
        "enable_client_http_server",
        Kind::Bool,
        "false",
        "Serve /health, /metrics and /metrics/summary of this node's client on a port of their own",
    )
    .env("MOONCAKE_ENABLE_CLIENT_HTTP_SERVER"),
    flag("client_http_port", Kind::Port, "9300", "Port for them; 0 takes any free port")
        .env("MOONCAKE_CLIENT_HTTP_PORT"),
];

const SERVICE: &[Flag] = &[
    flag("port", Kind::Port, "8080", "REST port; 0 takes any free port").not_in_file("use --port"),
    flag("host", Kind::Text, "0.0.0.0", "Address that the REST port is bound to").not_in_file("use --host"),
    flag(
        "max_wait_time",
        Kind::Number(0.0, 86_400.0),
        "60",
        "Seconds to wait for the metadata service, and then for the master, before giving up",
    )
    .not_in_file("use --max-wait-time"),
    LOG_LEVEL,
    LOG_FILE,
    LOG_FILE_MAX_SIZE,
    LOG_FILE_KEEP,
    LOG_FORMAT,
];

const LOADERS: &[Flag] = &[
    flag("config", Kind::Text, "", "JSON file whose keys are the names of the first group with '_'")
        .not_in_file("use --config"),
    STRICT,
    flag("define", Kind::Define, "", "Set one of those keys; repeatable").aliases(&["D"]).not_in_file("use -D"),
    flag("flagfile", Kind::Text, "", "File of flags, one a line, read at this place")
        .not_in_file("it is a flag of the command line"),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::flags::Class;

    #[test]
    fn every_key_and_variable_of_the_original_is_here_with_its_default() {
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
            let flag = TABLE.find_key(key).unwrap_or_else(|| panic!("{key} is missing"));
            assert_eq!((flag.env, flag.default), (Some(env), default), "{key}");
        }
    }

    #[test]
    fn no_name_is_listed_twice_and_every_default_is_of_its_kind() {
        let mut names: Vec<_> = TABLE.flags().flat_map(|f| std::iter::once(&f.name).chain(f.aliases)).collect();
        names.sort_unstable();
        let count = names.len();
        names.dedup();
        assert_eq!(names.len(), count);
        for flag in TABLE.flags() {
            assert_eq!(flag.class == Class::Works, !matches!(flag.class, Class::NoEffect(_) | Class::Absent(_)));
            flag.default_value();
        }
    }
}
