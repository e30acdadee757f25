//! `mcctl devices`: the RDMA devices of a host, what is wrong with them, and which to use. Of this host libibverbs is asked, too.

pub mod dump;
mod paste;
mod table;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::mpsc;
use std::time::Duration;

use serde::Serialize;

use crate::commands::error::{Exit, Failure, Outcome};
use crate::commands::output;
use crate::engine::sys::FileTree;
use crate::engine::topology::{Choice, Finding, Host, Level, Link, Live, Matrix, UNKNOWN_WITHOUT_VERBS, Wish};

/// libibverbs has this long to tell what it knows: a broken driver must not keep everything waiting.
const VERBS_MAX: Duration = Duration::from_secs(5);

/// How to show it.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Read from the environment, as Mooncake does: MC_TE_FILTERS (only these devices), MC_IB_PORT, MC_GID_INDEX or else NCCL_IB_GID_INDEX.\n\
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
    verbs: Option<&'a Live>,
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
    /// What libibverbs tells; `None` of another host, and where nobody asked.
    live: Option<Live>,
}

impl Args {
    /// Show it.
    ///
    /// # Errors
    /// What the user has to know.
    pub fn run(self) -> Outcome {
        let tree = FileTree::new(&self.root).map_err(|error| {
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
        let format = if self.json { Format::Json } else { self.format };
        let live = (tree.is_this_host() && matches!(format, Format::Table | Format::Json)).then(live);
        let picture = Picture { host, choice, matrix, wish, live };
        match format {
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

/// What libibverbs tells, within [`VERBS_MAX`].
fn live() -> Live {
    let (tell, told) = mpsc::channel();
    // It is left behind when it takes longer, and ends with the program.
    std::thread::spawn(move || tell.send(Live::read()));
    told.recv_timeout(VERBS_MAX).unwrap_or_else(|_| {
        let why = format!("libibverbs did not answer within {} s", VERBS_MAX.as_secs());
        Live::missing(&why, "look for a driver or a device that hangs (dmesg)")
    })
}

impl Picture {
    /// Did libibverbs tell something?
    fn is_asked(&self) -> bool {
        self.live.as_ref().is_some_and(|live| live.missing.is_none())
    }

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
            verbs: self.live.as_ref(),
            unknown_without_verbs: if self.is_asked() { &[] } else { UNKNOWN_WITHOUT_VERBS },
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
