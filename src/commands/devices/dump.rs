//! mcctl started through the symlink `transfer_engine_topology_dump`: prints the matrix from
//! `mcctl devices --format topology` in that program's output format.

use clap::Parser;

use crate::commands::cli::error::{Exit, Failure, Outcome};
use crate::commands::cli::output;
use crate::engine::sys::FileTree;
use crate::engine::topology::{DeviceChoice, DeviceSelection, HostTopology, Matrix};

/// Prints the RDMA devices that the classic transfer engine selects for each memory location.
#[derive(Debug, Parser)]
#[command(name = "transfer_engine_topology_dump", infer_long_args = true, max_term_width = 100)]
struct TopologyDumpFlags {
    /// Use only these RDMA devices, comma-separated [default: all; environment: MC_TE_FILTERS]
    #[arg(long, value_name = "NAME,..", default_value = "", hide_default_value = true)]
    device_name: String,
    /// Transfer engine: te is the classic one; tent is not supported; auto depends on MC_USE_TENT
    /// and MC_USE_TEV1
    #[arg(long, value_name = "BACKEND", default_value = "auto", value_parser = ["auto", "te", "tent"])]
    backend: String,
    /// Print the matrix from the file that MC_CUSTOM_TOPO_JSON specifies
    #[arg(long)]
    use_custom_topo: bool,
    /// Print the matrix from this file
    #[arg(long, value_name = "FILE")]
    custom_topo_json: Option<String>,
}

/// Runs the command with `words`, the arguments after the program name.
///
/// # Errors
/// A flag is invalid or selects TENT, or a topology file cannot be read.
pub fn run(words: &[String]) -> Outcome {
    let words = std::iter::once("transfer_engine_topology_dump").chain(words.iter().map(String::as_str));
    let line = match TopologyDumpFlags::try_parse_from(words) {
        Err(error) if !error.use_stderr() => {
            output::data(error.to_string())?;
            return Ok(Exit::Done);
        }
        read => read?,
    };
    let variable = |name: &str| std::env::var(name).ok().filter(|text| !text.is_empty());
    let is_tent = match line.backend.as_str() {
        "auto" => variable("MC_USE_TENT").or_else(|| variable("MC_USE_TEV1")).is_some(),
        backend => backend == "tent",
    };
    if is_tent {
        return Err(Failure::usage("the TENT transfer engine is not supported")
            .tried(format!("--backend {}", line.backend))
            .found("mcctl supports topology discovery only for the classic transfer engine")
            .next("use --backend te, or run the wheel's own transfer_engine_topology_dump"));
    }
    let file = match (&line.custom_topo_json, line.use_custom_topo) {
        (Some(file), _) => Some(file.clone()),
        (None, false) => None,
        (None, true) => Some(variable("MC_CUSTOM_TOPO_JSON").ok_or_else(|| {
            Failure::usage("--use-custom-topo needs MC_CUSTOM_TOPO_JSON")
                .found("MC_CUSTOM_TOPO_JSON is not set")
                .next("export MC_CUSTOM_TOPO_JSON=FILE, or pass --custom-topo-json FILE")
        })?),
    };
    let (mut selection, warnings) = DeviceSelection::from_env(&|name| std::env::var(name).ok());
    for warning in warnings {
        output::say(format!("warning: {warning}"));
    }
    let names: Vec<String> =
        line.device_name.split(',').map(str::trim).filter(|name| !name.is_empty()).map(str::to_owned).collect();
    if !names.is_empty() {
        selection.filter = Some(names);
    }
    let tree =
        FileTree::new("/".as_ref()).map_err(|error| Failure::host("cannot read /sys").found(error.to_string()))?;
    let host = HostTopology::read(&tree);
    let (choice, _) = DeviceChoice::of(&host, &selection);
    let (mode, matrix) = match file {
        None => ("discover".to_owned(), Matrix::of(&host, &choice.listed)),
        Some(file) => {
            let matrix = custom(&file, &choice.listed)?;
            (format!("custom ({file})"), matrix)
        }
    };
    // Upstream prints an extra newline after the matrix.
    output::data(format!("Local topology [te/{mode}]: {}\n", matrix.styled()))?;
    Ok(Exit::Done)
}

/// Reads the matrix from a file and drops devices that this host does not have.
fn custom(file: &str, listed: &[String]) -> Result<Matrix, Failure> {
    let failed = |found: String| {
        Failure::usage("the topology file cannot be used")
            .tried(file)
            .found(found)
            .next("provide a JSON object such as {\"cpu:0\": [[\"mlx5_0\"], []]}")
    };
    let text = std::fs::read_to_string(file).map_err(|error| failed(error.to_string()))?;
    Matrix::from_json(&text, listed).map_err(|error| failed(error.to_string()))
}
