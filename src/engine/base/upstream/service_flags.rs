//! The flags of upstream's Python services, which argparse reads: `mooncake_store_service` and
//! `mooncake_http_metadata_server`.

use crate::upstream::flags::FlagKind::{Number, Port, Text, Word};
use crate::upstream::flags::{UpstreamFlag, flag};

/// Flags of the store service. Its settings are keys (`config_keys.rs`), which `--define` sets.
pub const STORE_SERVICE_FLAGS: &[UpstreamFlag] = &[
    flag("config", Text, "").not_a_key(),
    flag("define", Text, "").not_a_key(),
    flag("port", Port, "8080").not_a_key(),
    flag("max_wait_time", Number, "60").not_a_key(),
];

/// Flags of the metadata service.
pub const METADATA_SERVER_FLAGS: &[UpstreamFlag] = &[
    flag("port", Port, "8080").not_a_key(),
    flag("host", Text, "0.0.0.0").not_a_key(),
    flag("log_level", Word { words: &["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"], fallback: None }, "INFO")
        .not_a_key(),
];
