//! `mcctl devices`: the RDMA devices on a host, their problems, and the recommended choice. On the
//! local host it also queries libibverbs.

pub mod dump;
mod paste;
mod table;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::mpsc;
use std::time::Duration;

use serde::Serialize;

use crate::commands::cli::error::{Exit, Failure, Outcome};
use crate::commands::cli::output;
use crate::engine::sys::FileTree;
use crate::engine::topology::{
    DeviceChoice, DeviceFinding, DeviceSelection, FindingLevel, HostTopology, Matrix, PciLink, UNKNOWN_WITHOUT_VERBS,
    VerbsReport,
};

/// Time limit for libibverbs calls: a broken driver must not block the command.
const VERBS_MAX: Duration = Duration::from_secs(5);

/// Flags of `mcctl devices`.
#[derive(Debug, clap::Args)]
#[command(before_help = "format json")]
#[command(before_long_help = "mcctl devices  # list RDMA devices, their problems and the recommended choice\n\
    mcctl devices --format env >> store.env  # append the recommended settings to an environment file")]
#[command(
    after_help = "Environment variables, the same as for Mooncake: MC_TE_FILTERS (use only these devices), MC_IB_PORT, MC_GID_INDEX (fallback: NCCL_IB_GID_INDEX).\n\
    The topology has one entry per NVIDIA GPU, in PCI address order, as in a CUDA build of Mooncake."
)]
pub struct Args {
    /// Print one JSON document to stdout; the same as --format json
    #[arg(long, conflicts_with = "format")]
    json: bool,
    /// Output format: the full report, or one section in a format that other programs parse
    #[arg(long, value_enum, value_name = "FORMAT", default_value = "table")]
    format: DevicesFormat,
    /// Check another host: a directory with copies of its /sys, /proc and /dev
    #[arg(long, value_name = "DIR", default_value = "/", hide_default_value = true)]
    root: PathBuf,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum DevicesFormat {
    /// Tables, the recommended devices with reasons, and warnings
    Table,
    /// One JSON document with the full report
    Json,
    /// Names and node GUIDs, in the format of ibv_devices
    #[value(name = "ibv_devices", alias = "ibv-devices")]
    IbvDevices,
    /// The topology matrix, in the format of transfer_engine_topology_dump
    Topology,
    /// Environment variables to paste
    Env,
}

#[derive(Debug, Serialize)]
struct DevicesDocument<'a> {
    schema: &'static str,
    #[serde(flatten)]
    host: &'a HostTopology,
    verbs: Option<&'a VerbsReport>,
    unknown_without_verbs: &'static [&'static str],
    distances: Vec<DeviceDistances<'a>>,
    choice: &'a DeviceChoice,
    environment: BTreeMap<&'static str, String>,
    sglang_flags: Vec<String>,
    topology: &'a Matrix,
    findings: Vec<FindingEntry<'a>>,
}

/// A device's distance from each GPU and from each NUMA node's memory.
#[derive(Debug, Serialize)]
struct DeviceDistances<'a> {
    device: &'a str,
    gpus: BTreeMap<&'a str, PciLink>,
    nodes: BTreeMap<u32, u32>,
}

#[derive(Debug, Serialize)]
struct FindingEntry<'a> {
    id: &'static str,
    level: FindingLevel,
    device: Option<&'a str>,
    text: String,
    next: Option<String>,
}

/// The devices on a host and the recommendation.
struct DeviceReport {
    host: HostTopology,
    choice: DeviceChoice,
    matrix: Matrix,
    selection: DeviceSelection,
    /// Data from libibverbs; `None` for another host, or if the output does not need it.
    live: Option<VerbsReport>,
}

impl Args {
    /// Prints the devices.
    ///
    /// # Errors
    /// The `--root` directory cannot be read, or the output cannot be written.
    pub fn run(self) -> Outcome {
        let tree = FileTree::new(&self.root).map_err(|error| {
            let at = self.root.display();
            Failure::usage(format!("cannot read {at}"))
                .tried(format!("--root {at}"))
                .found(error.to_string())
                .next("pass a directory with copies of a host's /sys, /proc and /dev")
        })?;
        let (selection, warnings) = DeviceSelection::from_env(&|name| std::env::var(name).ok());
        for warning in warnings {
            output::say(format!("warning: {warning}"));
        }
        let mut host = HostTopology::read(&tree);
        let (choice, findings) = DeviceChoice::of(&host, &selection);
        host.findings.extend(findings);
        let matrix = Matrix::of(&host, &choice.listed);
        let format = if self.json { DevicesFormat::Json } else { self.format };
        let live = (tree.is_this_host() && matches!(format, DevicesFormat::Table | DevicesFormat::Json)).then(live);
        let report = DeviceReport { host, choice, matrix, selection, live };
        match format {
            DevicesFormat::Table => output::data(table::render(&report))?,
            DevicesFormat::Json => output::json(&report.document())?,
            DevicesFormat::IbvDevices => output::data(ibv_devices(&report.host))?,
            DevicesFormat::Topology => output::data(report.matrix.styled())?,
            DevicesFormat::Env => {
                output::data(paste::environment(&report).map(|(k, v)| format!("{k}={v}\n")).collect::<String>())?
            }
        }
        Ok(Exit::Done)
    }
}

/// Queries libibverbs, for at most [`VERBS_MAX`].
fn live() -> VerbsReport {
    let (sender, receiver) = mpsc::channel();
    // A thread that exceeds the limit is abandoned and ends with the process.
    std::thread::spawn(move || sender.send(VerbsReport::read()));
    receiver.recv_timeout(VERBS_MAX).unwrap_or_else(|_| {
        let why = format!("libibverbs did not respond within {} s", VERBS_MAX.as_secs());
        VerbsReport::missing(&why, "check dmesg for a hung driver or device")
    })
}

impl DeviceReport {
    /// Whether libibverbs returned data.
    fn is_asked(&self) -> bool {
        self.live.as_ref().is_some_and(|live| live.missing.is_none())
    }

    fn document(&self) -> DevicesDocument<'_> {
        let host = &self.host;
        let distances = host.devices.iter().map(|device| DeviceDistances {
            device: &device.name,
            gpus: host.gpus.iter().filter_map(|gpu| Some((gpu.pci.as_str(), host.link(device, gpu)?))).collect(),
            nodes: host.nodes.iter().filter_map(|node| Some((node.id, host.distance(device, node.id)?))).collect(),
        });
        let finding =
            |finding: &'_ DeviceFinding| (finding.id(), finding.level(), finding.to_string(), finding.remedy());
        let findings = host.findings.iter().map(|f| {
            let (id, level, text, next) = finding(f);
            FindingEntry { id, level, device: f.device(), text, next }
        });
        DevicesDocument {
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

/// The device list, with the same column layout as `ibv_devices`. It has no rows if the host has no
/// device.
fn ibv_devices(host: &HostTopology) -> String {
    let mut text = "    device          \t   node GUID\n    ------          \t----------------\n".to_owned();
    for device in &host.devices {
        let guid = device.node_guid.as_deref().unwrap_or("0").replace(':', "");
        text.push_str(&format!("    {:<16}\t{guid:0>16}\n", device.name));
    }
    text
}
