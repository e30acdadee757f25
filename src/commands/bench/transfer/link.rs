//! `transfer_engine_bench` as a link: upstream's flags and defaults in gflags' syntax, carried out by `mcctl bench transfer`.

use std::collections::BTreeMap;

use clap::Parser;

use crate::commands::bench::transfer::upstream::UNIT_NAMES;
use crate::commands::bench::transfer::{self, Args};
use crate::commands::error::{Exit, Outcome};
use crate::commands::flags::{Kind, Table, Value, flag};
use crate::commands::gflags::{self, Parsed};
use crate::commands::serve::RealWorld;
use crate::commands::serve::master_flags::GLOG;
use crate::commands::settings::Settings;
use crate::commands::{VERSION, help, output};

const HOST_MEMORY: &str = "memory is the host's";

/// The flags of `transfer_engine_bench` 0.3.13.post1 and of its CUDA builds. Defaults are upstream's, apart from three that name a host
/// of its authors: metadata_server, local_server_name, device_name.
pub static TABLE: Table = Table {
    command: "bench transfer",
    about: "Measure the transfer engine between two processes. Takes the flags of transfer_engine_bench 0.3.13.",
    groups: &[
        (
            "Bench",
            &[
                flag("mode", Kind::Word(&["initiator", "target"]), "initiator", "End that this process is"),
                flag("metadata_server", Kind::Text, "P2PHANDSHAKE", "P2PHANDSHAKE, or http://HOST:PORT/metadata"),
                flag("local_server_name", Kind::Text, "127.0.0.1", "Name of this end; with P2PHANDSHAKE its host"),
                flag("segment_id", Kind::Text, "", "Segment of the target; an initiator needs it"),
                flag("operation", Kind::Word(&["read", "write"]), "read", "Direction, from the initiator's side"),
                flag("block_size", Kind::Size, "65536", "Size of one operation"),
                flag("batch_size", Kind::Whole(1, 65_536), "128", "Operations of one batch"),
                flag("threads", Kind::Whole(1, 256), "12", "Threads that submit batches"),
                flag("duration", Kind::Whole(1, 86_400), "10", "Seconds to run for"),
                flag("buffer_size", Kind::Size, "1gb", "Memory of this end"),
                flag("report_unit", Kind::Word(UNIT_NAMES), "GB", "Unit of the throughput, per second"),
                flag("report_precision", Kind::Whole(0, 9), "2", "Decimal places"),
            ],
        ),
        (
            "Transport",
            &[
                flag("protocol", Kind::Text, "rdma", "tcp or rdma"),
                flag("device_name", Kind::Text, "", "RDMA devices, separated by ','; empty: all that are usable"),
                flag("auto_discovery", Kind::Bool, "false", "RDMA where this host has it, TCP elsewhere"),
                flag("nic_priority_matrix", Kind::Text, "", "File with the topology matrix"),
                flag("backend", Kind::Word(&["classic", "tent"]), "classic", "Transfer engine; tent is refused"),
                flag("use_vram", Kind::Bool, "false", "GPU memory, which is refused"),
                flag("gpu_id", Kind::Whole(-1, i32::MAX as u64), "0", "GPU").no_effect(HOST_MEMORY),
                flag("init_mem", Kind::Bool, "true", "Fill GPU memory first").no_effect(HOST_MEMORY),
            ],
        ),
        ("glog", GLOG),
    ],
};

/// The table's flags as those of `mcctl bench transfer`.
#[derive(Debug, Parser)]
#[command(name = "transfer_engine_bench", max_term_width = 100)]
struct TransferBenchFlags {
    #[command(flatten)]
    args: Args,
}

/// Run with the words after the program's name.
///
/// # Errors
/// As [`transfer::run`]; a flag that is unknown or ill-typed.
pub fn run(words: &[String]) -> Outcome {
    let parsed = gflags::parse(&TABLE, words, &RealWorld)?;
    if parsed.help {
        output::data(help::render(&TABLE))?;
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
        let names: Vec<String> = glog.keys().map(|name| crate::commands::flags::spelled(name)).collect();
        output::say(format_args!("warning: no effect here: {}", names.join(", ")));
    }
    transfer::run(&TransferBenchFlags::try_parse_from(translated(&bench))?.args)
}

/// Of each flag the value that counts: the last one, numbers in decimal.
fn last(parsed: &Parsed) -> BTreeMap<&'static str, String> {
    let value = |kind: Kind, text: &str| match kind.parse(text) {
        Some(Value::Whole(number)) => number.to_string(),
        Some(Value::Bool(is_on)) => is_on.to_string(),
        _ => text.to_owned(),
    };
    parsed.assignments.iter().map(|given| (given.flag.name, value(given.flag.kind, given.text.as_str()))).collect()
}

/// The words for clap, with upstream's defaults where they are not those of `mcctl bench transfer`.
fn translated(given: &BTreeMap<&'static str, String>) -> Vec<String> {
    let mut words = vec!["transfer_engine_bench".to_owned()];
    let is_set = |name: &str| given.contains_key(name);
    if !is_set("threads") {
        words.push("--threads=12".to_owned());
    }
    if !is_set("protocol") {
        words.push("--protocol=rdma".to_owned());
    }
    // Empty texts are gflags' way to leave a value out.
    let given = given.iter().filter(|(_, value)| !value.is_empty());
    words.extend(given.map(|(name, value)| format!("{}={value}", crate::commands::flags::spelled(name))));
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<String> {
        let args: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        translated(&last(&gflags::parse(&TABLE, &args, &RealWorld).unwrap()))
    }

    #[test]
    fn every_flag_of_the_table_is_one_of_bench_transfer() {
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
    fn the_last_value_counts_and_defaults_are_upstreams() {
        assert_eq!(words(""), ["transfer_engine_bench", "--threads=12", "--protocol=rdma"]);
        assert_eq!(
            words("-threads 0x10 --threads=4 --protocol tcp --auto_discovery --noauto_discovery --device_name="),
            ["transfer_engine_bench", "--auto-discovery=false", "--protocol=tcp", "--threads=4"]
        );
    }
}
