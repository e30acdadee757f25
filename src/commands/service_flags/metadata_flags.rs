//! The flags of `mooncake_http_metadata_server` (`src/engine/upstream/service_flags.rs`), and mcctl's log flags.

use crate::commands::flags::{FileKey, FlagSpec, FlagTable, upstream_flag};
use crate::commands::service_flags::{LOG_FILE, LOG_FILE_KEEP, LOG_FILE_MAX_SIZE, LOG_FORMAT, LOG_LEVEL};
use crate::engine::upstream::{METADATA_SERVER_FLAGS, find, mooncake_series};

/// The `serve metadata` flags.
pub static TABLE: FlagTable = FlagTable {
    command: "serve metadata",
    about: concat!(
        "Run the transfer engine's metadata service, http://HOST:PORT/metadata. It replaces mooncake_http_metadata_server ",
        mooncake_series!(),
        "."
    ),
    groups: &[(
        "Service",
        &[
            service("port", "Port to listen on; 0 means any free port"),
            service("host", "Address to listen on"),
            LOG_LEVEL,
            LOG_FILE,
            LOG_FILE_MAX_SIZE,
            LOG_FILE_KEEP,
            LOG_FORMAT,
        ],
    )],
};

/// The flag `name` of `mooncake_http_metadata_server`, with mcctl's description. `serve metadata` reads no settings file.
const fn service(name: &'static str, help: &'static str) -> FlagSpec {
    FlagSpec { key: FileKey::Same, ..upstream_flag(find(METADATA_SERVER_FLAGS, name), help) }
}
