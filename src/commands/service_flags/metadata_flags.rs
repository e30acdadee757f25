//! The `mooncake_http_metadata_server` 0.3.13.post1 flags, and mcctl's log flags.

use crate::commands::flags::{FlagTable, ValueKind, flag};
use crate::commands::service_flags::{LOG_FILE, LOG_FILE_KEEP, LOG_FILE_MAX_SIZE, LOG_FORMAT, LOG_LEVEL};

/// The `serve metadata` flags.
pub static TABLE: FlagTable = FlagTable {
    command: "serve metadata",
    about: "Run the transfer engine's metadata service, http://HOST:PORT/metadata. It replaces mooncake_http_metadata_server 0.3.13.",
    groups: &[(
        "Service",
        &[
            flag("port", ValueKind::Port, "8080", "Port to listen on; 0 means any free port"),
            flag("host", ValueKind::Text, "0.0.0.0", "Address to listen on"),
            LOG_LEVEL,
            LOG_FILE,
            LOG_FILE_MAX_SIZE,
            LOG_FILE_KEEP,
            LOG_FORMAT,
        ],
    )],
};
