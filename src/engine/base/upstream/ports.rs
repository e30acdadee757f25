//! The ports on which upstream's programs listen by default.

use crate::upstream::flags::find;
use crate::upstream::{CLIENT_FLAGS, MASTER_FLAGS, METADATA_SERVER_FLAGS, STORE_SERVICE_FLAGS, UpstreamFlag};

/// RPC of the master.
pub const MASTER_RPC: u16 = default_of(MASTER_FLAGS, "port");
/// Admin HTTP of the master: metrics, health, queries.
pub const MASTER_ADMIN: u16 = default_of(MASTER_FLAGS, "metrics_port");
/// The metadata service, in the master or alone.
pub const METADATA: u16 = default_of(METADATA_SERVER_FLAGS, "port");
/// REST API of the store service. The same as [`METADATA`].
pub const STORE_REST: u16 = default_of(STORE_SERVICE_FLAGS, "port");
/// HTTP server of a client: health and metrics.
pub const CLIENT_HTTP: u16 = default_of(CLIENT_FLAGS, "http_port");
/// RPC of a standalone client (`mooncake_client`).
pub const CLIENT_RPC: u16 = default_of(CLIENT_FLAGS, "port");

/// The default of the port flag `name`.
const fn default_of(flags: &'static [UpstreamFlag], name: &str) -> u16 {
    let digits = find(flags, name).default.as_bytes();
    let mut port = 0;
    let mut at = 0;
    while at < digits.len() {
        port = port * 10 + (digits[at] - b'0') as u16;
        at += 1;
    }
    port
}
