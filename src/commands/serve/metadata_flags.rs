//! The flags of `mooncake_http_metadata_server` 0.3.13.post1; we have no others.

use crate::commands::flags::{Kind, Table, flag};
use crate::commands::serve::{LOG_FILE, LOG_FILE_KEEP, LOG_FILE_MAX_SIZE, LOG_FORMAT, LOG_LEVEL};

/// The flags of `serve metadata`.
pub static TABLE: Table = Table {
    command: "serve metadata",
    about: "Run the transfer engine's metadata service, http://HOST:PORT/metadata, as mooncake_http_metadata_server does.",
    groups: &[(
        "Service",
        &[
            flag("port", Kind::Port, "8080", "Port to listen on; 0 takes any free port"),
            flag("host", Kind::Text, "0.0.0.0", "Address to listen on"),
            LOG_LEVEL,
            LOG_FILE,
            LOG_FILE_MAX_SIZE,
            LOG_FILE_KEEP,
            LOG_FORMAT,
        ],
    )],
};
