//! Flags of `transfer_engine_bench` that `mcctl bench transfer` accepts so that published command
//! lines work. Some have no effect; flags that would change the measurement are rejected.

use clap::ArgAction;
use clap::builder::PossibleValuesParser;

use crate::commands::cli::error::Failure;
use crate::commands::cli::flags::parse_bool;
use crate::commands::cli::output;
use crate::commands::target::transport::TransportArgs;

/// Throughput units and their size in bytes.
const UNITS: [(&str, f64); 9] = [
    ("GB", 1e9),
    ("GiB", (1u64 << 30) as f64),
    ("Gb", 1e9 / 8.0),
    ("MB", 1e6),
    ("MiB", (1u64 << 20) as f64),
    ("Mb", 1e6 / 8.0),
    ("KB", 1e3),
    ("KiB", 1024.0),
    ("Kb", 1e3 / 8.0),
];

/// The names in [`UNITS`].
pub const UNIT_NAMES: &[&str] = &["GB", "GiB", "Gb", "MB", "MiB", "Mb", "KB", "KiB", "Kb"];

/// Upstream flags other than the flags of `mcctl bench transfer` itself.
#[derive(Clone, Debug, clap::Args)]
pub struct UpstreamFlags {
    /// Use RDMA if this host has an RDMA device, otherwise TCP; --protocol tcp overrides this flag
    #[arg(long, alias = "auto_discovery", action = ArgAction::Set, num_args = 0..=1, require_equals = true, default_value = "false",
        default_missing_value = "true", value_parser = switch, hide_default_value = true, hide_possible_values = true, value_name = "BOOL")]
    auto_discovery: bool,
    /// Throughput unit, per second; B means bytes, b means bits
    #[arg(long, alias = "report_unit", default_value = "GB", value_name = "UNIT", value_parser = PossibleValuesParser::new(UNIT_NAMES.iter().copied()))]
    report_unit: String,
    /// File with the topology matrix of RDMA devices and memory [environment: MC_CUSTOM_TOPO_JSON]
    #[arg(long, alias = "nic_priority_matrix", value_name = "FILE")]
    nic_priority_matrix: Option<String>,
    /// Transfer engine: only classic
    #[arg(long, hide = true, value_name = "NAME", default_value = "classic")]
    backend: String,
    /// Use GPU memory: only false
    #[arg(long, alias = "use_vram", hide = true, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true", value_parser = switch)]
    use_vram: Option<bool>,
    /// (no effect) GPU index
    #[arg(long, alias = "gpu_id", hide = true, value_name = "N", allow_hyphen_values = true)]
    gpu_id: Option<String>,
    /// (no effect) Fill GPU memory first
    #[arg(long, alias = "init_mem", hide = true, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true", value_parser = switch)]
    init_mem: Option<bool>,
    /// (no effect) Size of the segment, in bytes: --buffer-size sets it
    #[arg(long, alias = "segment_size", hide = true, value_name = "SIZE")]
    segment_size: Option<String>,
}

/// The value of a boolean flag is neither true nor false.
#[derive(Clone, Debug, thiserror::Error)]
#[error("'{0}' is not a boolean: use true or false")]
struct BooleanError(String);

fn switch(text: &str) -> Result<bool, BooleanError> {
    parse_bool(text).ok_or_else(|| BooleanError(text.to_owned()))
}

impl UpstreamFlags {
    /// Rejects unsupported flags and warns once about flags without effect.
    ///
    /// # Errors
    /// The flags select GPU memory or the TENT backend.
    pub fn check(&self, is_rdma: bool) -> Result<(), Failure> {
        if self.use_vram == Some(true) {
            return Err(Failure::usage("GPU memory is not supported")
                .tried("--use-vram")
                .found("mcctl registers only host memory")
                .next(
                    "use --use-vram=false, or benchmark GPU memory with transfer_engine_bench from the Mooncake wheel",
                ));
        }
        if self.backend != "classic" {
            return Err(Failure::usage(format!("the transfer backend '{}' is not supported", self.backend))
                .tried(format!("--backend {}", self.backend))
                .found("mcctl supports only the classic transfer engine's protocol")
                .next("drop --backend, or start both processes with --backend classic"));
        }
        let ignored = [
            ("--gpu-id", self.gpu_id.is_some()),
            ("--init-mem", self.init_mem.is_some()),
            ("--segment-size", self.segment_size.is_some()),
            ("--nic-priority-matrix (tcp)", self.nic_priority_matrix.is_some() && !is_rdma),
        ];
        let names: Vec<&str> = ignored.into_iter().filter(|(_, given)| *given).map(|(name, _)| name).collect();
        if !names.is_empty() {
            output::say(format_args!("warning: these flags have no effect: {}", names.join(", ")));
        }
        Ok(())
    }

    /// Returns `given` after applying --auto-discovery.
    pub fn transport(&self, given: &TransportArgs) -> TransportArgs {
        let mut transport = given.clone();
        if self.auto_discovery {
            transport.protocol.get_or_insert_with(|| "rdma".to_owned());
            transport.allow_tcp_fallback = true;
        }
        transport
    }

    /// Returns the environment variable `name`, unless one of these flags replaces it.
    pub fn variable(&self, name: &str, lookup: impl Fn(&str) -> Option<String>) -> Option<String> {
        match &self.nic_priority_matrix {
            Some(file) if name == "MC_CUSTOM_TOPO_JSON" => Some(file.clone()),
            _ => lookup(name),
        }
    }

    /// Formats a rate in the --report-unit unit with `digits` decimal places.
    pub fn rate(&self, bytes_per_second: f64, digits: usize) -> String {
        let bytes = UNITS.iter().find(|(name, _)| *name == self.report_unit).map_or(1e9, |(_, bytes)| *bytes);
        format!("{:.digits$} {}/s", bytes_per_second / bytes, self.report_unit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Debug, clap::Parser)]
    struct TestFlags {
        #[command(flatten)]
        flags: UpstreamFlags,
    }

    fn flags(line: &str) -> UpstreamFlags {
        TestFlags::try_parse_from(std::iter::once("bench").chain(line.split_whitespace())).unwrap().flags
    }

    #[test]
    fn every_unit_has_its_bytes() {
        assert!(UNITS.iter().map(|(name, _)| name).eq(UNIT_NAMES));
        for (unit, text) in
            [("GB", "2.50 GB/s"), ("Gb", "20.00 Gb/s"), ("MiB", "2384.19 MiB/s"), ("Kb", "20000000.00 Kb/s")]
        {
            assert_eq!(flags(&format!("--report_unit={unit}")).rate(2.5e9, 2), text);
        }
    }

    #[test]
    fn gpu_memory_and_other_backends_are_rejected() {
        for (line, code) in [
            ("--use_vram", Some(2)),
            ("--use_vram=true", Some(2)),
            ("--use_vram=false", None),
            ("--backend=tent", Some(2)),
            ("--backend=classic", None),
            ("--gpu_id=-1 --init_mem --segment_size 1gb", None),
        ] {
            assert_eq!(flags(line).check(false).err().map(|failure| failure.exit.code()), code, "{line}");
        }
    }

    #[test]
    fn auto_discovery_prefers_rdma_and_allows_tcp() {
        let found = flags("--auto_discovery").transport(&TransportArgs::default());
        assert_eq!((found.protocol.as_deref(), found.allow_tcp_fallback), (Some("rdma"), true));
        let tcp = TransportArgs { protocol: Some("tcp".to_owned()), ..TransportArgs::default() };
        assert_eq!(flags("--auto-discovery=true").transport(&tcp).protocol.as_deref(), Some("tcp"));
        assert_eq!(flags("--auto_discovery=false").transport(&TransportArgs::default()).protocol, None);
    }

    #[test]
    fn the_matrix_flag_overrides_the_environment() {
        let lookup = |_: &str| Some("env".to_owned());
        let named = flags("--nic_priority_matrix=file.json");
        assert_eq!(named.variable("MC_CUSTOM_TOPO_JSON", lookup).as_deref(), Some("file.json"));
        assert_eq!(named.variable("MC_IB_PORT", lookup).as_deref(), Some("env"));
        assert_eq!(flags("").variable("MC_CUSTOM_TOPO_JSON", lookup).as_deref(), Some("env"));
    }
}
