//! Connection flags of the `store` commands that transfer no data.

/// The [`ClientArgs`](crate::commands::target::connect::ClientArgs) flags, accepted but ignored by
/// commands that transfer no data. All `store` commands accept the same connection flags.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Connection flags without effect")]
pub(super) struct UnusedConnectArgs {
    /// (no effect) Metadata service URL
    #[arg(long, value_name = "URL", hide = true)]
    metadata_server: Option<String>,
    /// (no effect) Host name or address of this client
    #[arg(long, value_name = "HOST", hide = true)]
    local_hostname: Option<String>,
    /// (no effect) Transport
    #[arg(long, value_name = "PROTOCOL", hide = true)]
    protocol: Option<String>,
    /// (no effect) RDMA devices
    #[arg(long, aliases = ["device_name", "rdma-devices", "rdma_devices"], value_name = "NAME,..", hide = true)]
    device_name: Option<String>,
    /// (no effect) Use TCP if RDMA is not available
    #[arg(long, hide = true)]
    allow_tcp_fallback: bool,
    /// (no effect) Do not use shared memory
    #[arg(long, alias = "no_shared_memory", hide = true)]
    no_shared_memory: bool,
    /// (no effect) Directory of the shared-memory sockets
    #[arg(long, alias = "shared_memory_socket", value_name = "DIR", hide = true)]
    shared_memory_socket: Option<String>,
}
