//! The flags of `mooncake_http_metadata_server` (`src/engine/base/upstream/service_flags.rs`), and
//! mcctl's own.

use crate::commands::cli::flags::{FileKey, FlagSpec, FlagTable, ValueKind, flag, upstream_flag};
use crate::commands::cli::logging;
use crate::commands::cli::service_flags::COMMON;
use crate::commands::cli::service_flags::access_flags;
use crate::engine::upstream::{METADATA_SERVER_FLAGS, find, mooncake_series};

/// The `serve metadata` flags.
pub static TABLE: FlagTable = FlagTable {
    command: "serve metadata",
    about: concat!(
        "Run the transfer engine's metadata service, http://HOST:PORT/metadata. It replaces mooncake_http_metadata_server ",
        mooncake_series!(),
        "."
    ),
    groups: &[
        (
            "Service",
            &[
                service("port", "Port to listen on; 0 means any free port"),
                service("host", "Address to listen on").value("ADDRESS"),
            ],
        ),
        (access_flags::HEADING, access_flags::ACCESS),
        ("Proxy", PROXY),
        ("Data directory", DATA),
        (logging::COMMON, COMMON),
    ],
};

const PROXY: &[FlagSpec] = &[flag(
    "forward_to",
    ValueKind::Text,
    "",
    "Keep no records, and forward each request to one of these metadata services, HOST:PORT or http(s)://HOST:PORT, separated by commas: the \
     masters of a cluster. The service that responded last is used, and the next one within 1 second if it cannot be reached, or 2 seconds \
     if it does not respond. MCCTL_TOKEN and MCCTL_CA apply to these services. Without this flag, the records are in this process",
)
.value("LIST")];

const DATA: &[FlagSpec] = &[
    flag(
        "data_dir",
        ValueKind::Text,
        "",
        "Keep the records in this directory, as a log and snapshots, so that a restart keeps them; without it, they are only in memory",
    ).value("DIR"),
    flag(
        "fsync",
        ValueKind::Text,
        "interval=50ms",
        "When the log is synced: always (before each response), interval=TIME, or never (when the kernel decides). A crash of the service \
         loses nothing in any mode; a power loss may lose the writes since the last sync",
    ).value("MODE"),
    flag(
        "on_disk_error",
        ValueKind::Word(&["stop", "continue-memory-only"]),
        "stop",
        "After an error of the disk: stop with exit code 4, or mark the directory as invalid and continue in memory",
    ),
    flag("discard_data", ValueKind::Bool, "false", "Remove the data in the directory at each start with this flag"),
];

/// The flag `name` of `mooncake_http_metadata_server`, with mcctl's description. `serve metadata`
/// reads no settings file.
const fn service(name: &'static str, help: &'static str) -> FlagSpec {
    FlagSpec { key: FileKey::Same, ..upstream_flag(find(METADATA_SERVER_FLAGS, name), help) }
}
