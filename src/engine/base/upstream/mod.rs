//! Facts about the programs that mcctl replaces, starts or checks: Mooncake's releases, flags,
//! settings, variables, ports, routes and metrics, the flags and settings of SGLang, and how SGLang
//! loads mcctl's own client.
//!
//! Each fact is listed once, here. `commands/service_flags` adds what mcctl does with a flag,
//! `lint` checks that a deployment uses only what exists, `deploy` writes only what a release has,
//! and `doctor` compares a running store with it. A row's `since` is the release that added the
//! name, if a release that is still in use lacks it. `flag_releases.rs` has the flags of all
//! releases, including those that were removed.
//!
//! `tests/it/upstream.rs` compares the lists with the output and the files of the real programs.
//! CONTRIBUTING.md describes how to add a release.

pub mod checksum;
mod client_flags;
mod config_keys;
mod flag_releases;
mod flags;
mod library_flags;
mod master_flags;
mod metrics;
pub mod ports;
pub mod python_client;
mod release;
mod releases;
mod rest_routes;
mod service_flags;
pub mod sglang;
mod variables;

pub use client_flags::{CLIENT_FLAGS, client_flag_for};
pub use config_keys::{
    STORE_KEYS, STORE_SETUP_KEYS, STORE_SETUP_MASTER, StoreKey, TRANSPORTS, store_key, store_variable,
};
pub use flag_releases::{CLIENT_RELEASES, FlagPresence, FlagReleases, MASTER_RELEASES, SGLANG_RELEASES};
pub use flags::{FlagKind, UpstreamFlag, find, is_same};
pub use library_flags::LIBRARY_FLAGS;
pub use master_flags::{MASTER_FLAGS, master_flag};
pub use metrics::{CLIENT_METRICS, MASTER_METRICS, MetricFamily, MetricType};
pub use release::{Release, Releases};
pub use releases::{DeployedRelease, PROTOCOL_VERSION, SERIES, UNTESTED_SINCE, is_older, mooncake_series};
pub use rest_routes::{ADMIN_ROUTES, CLIENT_ROUTES, HttpRoute, METADATA_ROUTES, STORE_ROUTES};
pub use service_flags::{METADATA_SERVER_FLAGS, STORE_SERVICE_FLAGS};
pub use variables::{
    ENGINE_VARIABLES, NOT_IN_THE_WHEEL, OTHER_VARIABLES, SERVICE_VARIABLES, VARIABLE_PREFIXES, known_variables,
};
