//! `mcctl devices`: the RDMA devices of a host, what is wrong with them, and which to use. Reads files only.

mod paste;
mod table;

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::Serialize;

use crate::commands::error::{Exit, Failure, Outcome};
use crate::commands::output;
use crate::engine::sys::Tree;
use crate::engine::topology::{Choice, Finding, Host, Level, Link, Matrix, UNKNOWN_WITHOUT_VERBS, Wish};

/// How to show it.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Read from the environment, as Mooncake does: MC_TE_FILTERS (only these devices), MC_IB_PORT, MC_GID_INDEX.\n\
    The topology has a line for each GPU of NVIDIA, as a CUDA build of Mooncake prints it, in the order of their PCI addresses."
)]
pub struct Args {
    /// One JSON document on stdout: the same as --format json
    #[arg(long, conflicts_with = "format")]
    json: bool,
    /// What to print: everything, or what programs parse
    #[arg(long, value_enum, value_name = "FORMAT", default_value = "table")]
    format: Format,
    /// Look at another host: a folder with copies of its /sys, /proc and /dev
    #[arg(long, value_name = "DIR", default_value = "/", hide_default_value = true)]
    root: PathBuf,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Format {
    /// Tables, the devices to use and why, warnings
    Table,
    /// All of it as one JSON document
    Json,
    /// Names and node GUIDs, as ibv_devices prints them
    #[value(name = "ibv_devices", alias = "ibv-devices")]
    IbvDevices,
    /// The matrix, as transfer_engine_topology_dump prints it
    Topology,
    /// The lines to paste into an environment
    Env,
}

#[derive(Debug, Serialize)]
struct Document<'a> {
    schema: &'static str,
    #[serde(flatten)]
    host: &'a Host,
    unknown_without_verbs: &'static [&'static str],
    distances: Vec<Distances<'a>>,
    choice: &'a Choice,
    environment: BTreeMap<&'static str, String>,
    sglang_flags: Vec<String>,
    topology: &'a Matrix,
    findings: Vec<FindingLine<'a>>,
}

/// How far a device is from each GPU and from the memory of each node.
#[derive(Debug, Serialize)]
struct Distances<'a> {
    device: &'a str,
    gpus: BTreeMap<&'a str, Link>,
    nodes: BTreeMap<u32, u32>,
}

#[derive(Debug, Serialize)]
struct FindingLine<'a> {
    id: &'static str,
    level: Level,
    device: Option<&'a str>,
    text: String,
    next: Option<String>,
}

/// What was found and chosen.
struct Picture {
    host: Host,
    choice: Choice,
    matrix: Matrix,
    wish: Wish,
}

impl Args {
    /// Show it.
    ///
    /// # Errors
    /// What the user has to know.
    pub fn run(self) -> Outcome {
        let tree = Tree::new(&self.root).map_err(|error| {
            let at = self.root.display();
            Failure::usage(format!("cannot look into {at}"))
                .tried(format!("--root {at}"))
                .found(error.to_string())
                .next("name a folder that has copies of /sys, /proc and /dev of a host")
        })?;
        let (wish, warnings) = Wish::from_env(&|name| std::env::var(name).ok());
        for warning in warnings {
            output::say(format!("warning: {warning}"));
        }
        let mut host = Host::read(&tree);
        let (choice, doubts) = Choice::of(&host, &wish);
        host.findings.extend(doubts);
        let matrix = Matrix::of(&host, &choice.listed);
        let picture = Picture { host, choice, matrix, wish };
        match if self.json { Format::Json } else { self.format } {
            Format::Table => output::data(table::render(&picture))?,
            Format::Json => output::json(&picture.document())?,
            Format::IbvDevices => output::data(ibv_devices(&picture.host))?,
            Format::Topology => output::data(picture.matrix.styled())?,
            Format::Env => {
                output::data(paste::environment(&picture).map(|(k, v)| format!("{k}={v}\n")).collect::<String>())?
            }
        }
        Ok(Exit::Done)
    }
}

impl Picture {
    fn document(&self) -> Document<'_> {
        let host = &self.host;
        let distances = host.devices.iter().map(|device| Distances {
            device: &device.name,
            gpus: host.gpus.iter().filter_map(|gpu| Some((gpu.pci.as_str(), host.link(device, gpu)?))).collect(),
            nodes: host.nodes.iter().filter_map(|node| Some((node.id, host.distance(device, node.id)?))).collect(),
        });
        let finding = |finding: &'_ Finding| (finding.id(), finding.level(), finding.to_string(), finding.remedy());
        let findings = host.findings.iter().map(|f| {
            let (id, level, text, next) = finding(f);
            FindingLine { id, level, device: f.device(), text, next }
        });
        Document {
            schema: "mcctl.devices/1",
            host,
            unknown_without_verbs: UNKNOWN_WITHOUT_VERBS,
            distances: distances.collect(),
            choice: &self.choice,
            environment: paste::environment(self).collect(),
            sglang_flags: paste::flags(self),
            topology: &self.matrix,
            findings: findings.collect(),
        }
    }
}

/// The list of `ibv_devices`, column for column. Programs that parse it find no device where there is none.
fn ibv_devices(host: &Host) -> String {
    let mut text = "    device          \t   node GUID\n    ------          \t----------------\n".to_owned();
    for device in &host.devices {
        let guid = device.node_guid.as_deref().unwrap_or("0").replace(':', "");
        text.push_str(&format!("    {:<16}\t{guid:0>16}\n", device.name));
    }
    text
}
