//! Connection flags of the `store` commands that transfer no data.

/// The [`ClientArgs`](crate::commands::connect::ClientArgs) flags, accepted but ignored by commands that transfer no data. All `store` commands accept the same connection
/// flags.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Connection flags (ignored by this command)")]
pub(super) struct UnusedConnectArgs {
    /// See mcctl store get
    #[arg(long, value_name = "URL")]
    metadata_server: Option<String>,
    /// See mcctl store get
    #[arg(long, value_name = "HOST")]
    local_hostname: Option<String>,
    /// See mcctl store get
    #[arg(long, value_name = "PROTOCOL")]
    protocol: Option<String>,
    /// See mcctl store get
    #[arg(long, aliases = ["device_name", "rdma-devices", "rdma_devices"], value_name = "NAME,..")]
    device_name: Option<String>,
    /// See mcctl store get
    #[arg(long)]
    allow_tcp_fallback: bool,
    /// See mcctl store get
    #[arg(long, alias = "no_shared_memory")]
    no_shared_memory: bool,
    /// See mcctl store get
    #[arg(long, alias = "shared_memory_socket", value_name = "DIR")]
    shared_memory_socket: Option<String>,
}
