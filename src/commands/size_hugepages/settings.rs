//! Settings of SGLang and its store clients that do not change the sizes. They are written into the
//! commands to paste.

use crate::commands::cli::error::Failure;
use crate::commands::cli::origin::{Origin, ValueOrigin};
use crate::commands::failure::node as node_failure;
use crate::commands::target::etcd_master;
use crate::commands::target::master_target::{self, RPC_PORT};
use crate::engine::upstream::sglang::{IO_BACKENDS, LAYOUTS};

/// The flags for these settings.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct SettingArgs {
    /// RDMA devices for the printed commands (MOONCAKE_DEVICE), comma-separated
    #[arg(long, alias = "rdma-devices", value_name = "NAME,..")]
    pub(crate) device_name: Option<String>,
    /// Master RPC address, or etcd://HOST:PORT of a cluster of masters, for the printed commands
    /// (MOONCAKE_MASTER)
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) master: Option<String>,
    /// Metadata service URL (http:// or etcd://), or P2PHANDSHAKE, for the printed commands
    /// (MOONCAKE_TE_META_DATA_SERVER)
    #[arg(long, value_name = "URL")]
    pub(crate) metadata_server: Option<String>,
    /// L2 memory layout for the printed commands [default: page_first_direct, or page_first with
    /// --hicache-io-backend kernel]
    #[arg(long, value_name = "LAYOUT", value_parser = clap::builder::PossibleValuesParser::new(LAYOUTS))]
    pub(crate) hicache_mem_layout: Option<String>,
    /// I/O backend for copies between device and L2, for the printed commands [default: direct, or
    /// kernel with other layouts than page_first_direct]
    #[arg(long, value_name = "BACKEND", value_parser = clap::builder::PossibleValuesParser::new(IO_BACKENDS))]
    pub(crate) hicache_io_backend: Option<String>,
}

impl SettingArgs {
    /// Checks the settings that a program would refuse or replace.
    ///
    /// # Errors
    /// A value is invalid, or two values exclude each other.
    pub(super) fn check(&self, is_rdma: bool) -> Result<(), Failure> {
        if let Some(devices) = &self.device_name {
            if !is_rdma {
                return Err(Failure::usage("--device-name requires --protocol rdma"));
            }
            if devices.split(',').any(|name| name.trim().is_empty() || name.contains(char::is_control)) {
                return Err(Failure::usage("--device-name contains an empty or invalid name")
                    .tried(format!("--device-name {devices:?}"))
                    .next("separate the names by commas, as in mlx5_0,mlx5_1 (mcctl devices lists them)"));
            }
        }
        if let Some(text) = self.master.as_deref().filter(|text| !etcd_master::is_etcd(text)) {
            master_target::address(text, &format!("--master {text}"), RPC_PORT)?;
        }
        if let Some(text) = &self.metadata_server {
            let origin = ValueOrigin::Flag(format!("--metadata-server {text}"));
            node_failure::metadata(Origin { value: text.clone(), origin })?;
        }
        let replaced = match self.layout_and_backend() {
            ("page_first_direct", "kernel") => "the layout page_first_direct requires direct",
            ("page_first", "direct") => "the backend direct requires the layout page_first_direct",
            _ => return Ok(()),
        };
        Err(Failure::usage(format!("SGLang replaces one of these two settings: {replaced}"))
            .tried(format!("--hicache-mem-layout {} --hicache-io-backend {}", self.layout(), self.backend()))
            .next("use page_first_direct with direct, or page_first with kernel"))
    }

    /// The memory layout and the I/O backend. Without these flags, they are the defaults of
    /// `render`; if only one is set, the other is one that works with it.
    ///
    /// Source: `sglang/srt/arg_groups/hicache_hook.py`, `resolve_layout_io_compatibility`.
    pub(super) fn layout_and_backend(&self) -> (&str, &str) {
        (self.layout(), self.backend())
    }

    fn layout(&self) -> &str {
        match (self.hicache_mem_layout.as_deref(), self.hicache_io_backend.as_deref()) {
            (Some(layout), _) => layout,
            (None, Some("kernel")) => "page_first",
            (None, _) => "page_first_direct",
        }
    }

    fn backend(&self) -> &str {
        match (self.hicache_io_backend.as_deref(), self.layout()) {
            (Some(backend), _) => backend,
            (None, "page_first_direct") => "direct",
            (None, _) => "kernel",
        }
    }

    /// The master's address as SGLang reads it, with a port.
    pub(super) fn master_address(&self) -> Option<String> {
        let text = self.master.as_deref()?;
        if etcd_master::is_etcd(text) {
            return Some(text.to_owned());
        }
        // `check` has already parsed it.
        master_target::address(text, "--master", RPC_PORT).ok().map(|address| address.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_backend_follows_the_layout_and_the_reverse() {
        for (layout, backend, expected) in [
            (None, None, ("page_first_direct", "direct")),
            (None, Some("kernel"), ("page_first", "kernel")),
            (Some("page_first"), None, ("page_first", "kernel")),
            (Some("page_head"), None, ("page_head", "kernel")),
            (Some("page_first_direct"), None, ("page_first_direct", "direct")),
            (None, Some("kernel_ascend"), ("page_first_direct", "kernel_ascend")),
        ] {
            let settings = SettingArgs {
                hicache_mem_layout: layout.map(str::to_owned),
                hicache_io_backend: backend.map(str::to_owned),
                ..SettingArgs::default()
            };
            assert_eq!(settings.layout_and_backend(), expected);
            assert!(settings.check(false).is_ok());
        }
    }
}
