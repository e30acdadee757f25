//! The link `transfer_engine_bench` to mcctl: upstream flags and defaults in gflags syntax,
//! translated for `mcctl bench transfer`.

use std::collections::BTreeMap;

use clap::Parser;

use crate::commands::VERSION;
use crate::commands::bench::transfer::upstream::UNIT_NAMES;
use crate::commands::bench::transfer::{self, Args};
use crate::commands::cli::error::{Exit, Outcome};
use crate::commands::cli::flags::{FlagTable, FlagValue, ValueKind, flag};
use crate::commands::cli::gflags::{self, ParsedFlags};
use crate::commands::cli::output;
use crate::commands::cli::process_sources::ProcessSources;
use crate::commands::cli::service_flags::master_flags::GLOG;
use crate::commands::cli::settings::Settings;
use crate::commands::help::arguments as help;
use crate::engine::upstream::mooncake_series;

const HOST_MEMORY: &str = "only host memory is supported";

/// The flags of `transfer_engine_bench` 0.3.13.post1 and its CUDA builds. Defaults match upstream,
/// except for metadata_server, local_server_name and device_name, whose upstream defaults refer to
/// one of the authors' hosts.
pub static TABLE: FlagTable = FlagTable {
    command: "bench transfer",
    about: concat!(
        "Benchmark the transfer engine between two processes. Accepts the flags of transfer_engine_bench ",
        mooncake_series!(),
        "."
    ),
    groups: &[
        (
            "Bench",
            &[
                flag("mode", ValueKind::Word(&["initiator", "target"]), "initiator", "Role of this process"),
                flag("metadata_server", ValueKind::Text, "P2PHANDSHAKE", "P2PHANDSHAKE, or http://HOST:PORT/metadata"),
                flag(
                    "local_server_name",
                    ValueKind::Text,
                    "127.0.0.1",
                    "Name of this process; with P2PHANDSHAKE, its host",
                ),
                flag("segment_id", ValueKind::Text, "", "Segment of the target; required for the initiator"),
                flag(
                    "operation",
                    ValueKind::Word(&["read", "write"]),
                    "read",
                    "Direction, from the initiator's point of view",
                ),
                flag("block_size", ValueKind::Size, "65536", "Size of each operation"),
                flag("batch_size", ValueKind::Whole(1, 65_536), "128", "Operations per batch"),
                flag("threads", ValueKind::Whole(1, 256), "12", "Number of threads that submit batches"),
                flag("duration", ValueKind::Whole(1, 86_400), "10", "Duration in seconds"),
                flag("buffer_size", ValueKind::Size, "1gb", "Size of this process's buffer"),
                flag("report_unit", ValueKind::Word(UNIT_NAMES), "GB", "Throughput unit, per second"),
                flag("report_precision", ValueKind::Whole(0, 9), "2", "Decimal places"),
            ],
        ),
        (
            "Transport",
            &[
                flag("protocol", ValueKind::Text, "rdma", "tcp or rdma"),
                flag(
                    "device_name",
                    ValueKind::Text,
                    "",
                    "RDMA devices, separated by ','; empty means all usable devices",
                ),
                flag("auto_discovery", ValueKind::Bool, "false", "Use RDMA if available, otherwise TCP"),
                flag("nic_priority_matrix", ValueKind::Text, "", "Topology matrix file"),
                flag("backend", ValueKind::Word(&["classic", "tent"]), "classic", "Transfer engine; tent is rejected"),
                flag("use_vram", ValueKind::Bool, "false", "Use GPU memory; rejected"),
                flag("gpu_id", ValueKind::Whole(-1, i32::MAX as u64), "0", "GPU index").no_effect(HOST_MEMORY),
                flag("init_mem", ValueKind::Bool, "true", "Fill GPU memory first").no_effect(HOST_MEMORY),
            ],
        ),
        ("glog", GLOG),
    ],
};

/// Parser for the `mcctl bench transfer` flags.
#[derive(Debug, Parser)]
#[command(name = "transfer_engine_bench", max_term_width = 100)]
struct TransferBenchFlags {
    #[command(flatten)]
    args: Args,
}

/// Runs the benchmark with the arguments after the program name.
///
/// # Errors
/// A flag is unknown or has an invalid value, or [`transfer::run`] fails.
pub fn run(args: &[String]) -> Outcome {
    let parsed = gflags::parse(&TABLE, args, &ProcessSources)?;
    if let Some(length) = parsed.help {
        output::data(help::of_table(&TABLE, length))?;
        return Ok(Exit::Done);
    }
    if parsed.version {
        output::line(format!("mcctl {VERSION}"))?;
        return Ok(Exit::Done);
    }
    Settings::new(&TABLE).assign_all(&parsed.assignments)?;
    let is_glog = |name: &str| GLOG.iter().any(|flag| flag.name == name);
    let (glog, bench): (BTreeMap<_, _>, BTreeMap<_, _>) =
        last(&parsed).into_iter().partition(|(name, _)| is_glog(name));
    if !glog.is_empty() {
        let names: Vec<String> = glog.keys().map(|name| crate::commands::cli::flags::spelled(name)).collect();
        output::say(format_args!("warning: these flags have no effect: {}", names.join(", ")));
    }
    transfer::run(&TransferBenchFlags::try_parse_from(translated(&bench))?.args)
}

/// Returns the last value set for each flag. Numbers are in decimal.
fn last(parsed: &ParsedFlags) -> BTreeMap<&'static str, String> {
    let value = |kind: ValueKind, text: &str| match kind.parse(text) {
        Some(FlagValue::Whole(number)) => number.to_string(),
        Some(FlagValue::Bool(is_on)) => is_on.to_string(),
        _ => text.to_owned(),
    };
    parsed.assignments.iter().map(|given| (given.flag.name, value(given.flag.kind, given.text.as_str()))).collect()
}

/// Returns the arguments for clap, with upstream defaults where they differ from the
/// `mcctl bench transfer` defaults.
fn translated(given: &BTreeMap<&'static str, String>) -> Vec<String> {
    let mut args = vec!["transfer_engine_bench".to_owned()];
    let is_set = |name: &str| given.contains_key(name);
    if !is_set("threads") {
        args.push("--threads=12".to_owned());
    }
    if !is_set("protocol") {
        args.push("--protocol=rdma".to_owned());
    }
    // In gflags, an empty string means that no value is set.
    let given = given.iter().filter(|(_, value)| !value.is_empty());
    args.extend(given.map(|(name, value)| format!("{}={value}", crate::commands::cli::flags::spelled(name))));
    args
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(line: &str) -> Vec<String> {
        let args: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        translated(&last(&gflags::parse(&TABLE, &args, &ProcessSources).unwrap()))
    }

    #[test]
    fn every_flag_is_a_flag_of_bench_transfer() {
        for flag in TABLE.groups.iter().filter(|(name, _)| *name != "glog").flat_map(|(_, flags)| *flags) {
            assert!(flag.kind.parse(flag.default).is_some(), "{}", flag.name);
            let value = if flag.default.is_empty() { "x" } else { flag.default };
            let line = translated(&BTreeMap::from([(flag.name, value.to_owned())]));
            assert!(
                TransferBenchFlags::try_parse_from(&line).is_ok(),
                "{line:?}: {:?}",
                TransferBenchFlags::try_parse_from(&line).err()
            );
        }
    }

    #[test]
    fn the_last_value_wins_and_defaults_match_upstream() {
        assert_eq!(args(""), ["transfer_engine_bench", "--threads=12", "--protocol=rdma"]);
        let line = "-threads 0x10 --threads=4 --protocol tcp --auto_discovery --noauto_discovery --device_name=";
        assert_eq!(args(line), ["transfer_engine_bench", "--auto-discovery=false", "--protocol=tcp", "--threads=4"]);
    }
}
