//! `mcctl up`: a whole store in one process on this machine, checked with a round trip, and what to paste to use it.
//!
//! Nothing is left when it ends: everything is memory of this process.

mod check;
mod paste;
mod ports;
mod sim;

use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use serde::Serialize;

use crate::commands::error::{Exit, Failure, Outcome};
use crate::commands::listen::Listen;
use crate::commands::logging::{self, FileOptions};
use crate::commands::output;
use crate::commands::runtime::{self, Signals};
use crate::commands::serve;
use crate::commands::serve::assembly::{Assembly, Cleanup, Plan};
use crate::commands::serve::node::{self, NodePlan, NodePorts, RunningNode};
use crate::commands::transport::TransportArgs;
use crate::commands::up::check::Checked;
use crate::commands::up::paste::{Place, SGLANG_FLAGS};
use crate::commands::up::ports::Wanted;
use crate::commands::up::sim::{Sim, SimDocument};
use crate::engine::base::ByteSize;
use crate::engine::base::size::ParseSizeError;
use crate::engine::env::processors;
use crate::engine::master::MasterConfig;

/// What the store is to be.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Memory that the node contributes, allocated as it is used: bytes, or with kb, mb, gb, tb (powers of 1024, as with KiB)
    #[arg(long, value_name = "SIZE", default_value = "1GiB", value_parser = segment_size)]
    segment_size: SegmentSize,
    /// Address that everything listens on and is called by
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1")]
    host: IpAddr,
    /// How nodes and clients find each other: http (a metadata service in this process) or P2PHANDSHAKE
    #[arg(long, value_name = "HOW", default_value = "http", value_parser = ["http", "P2PHANDSHAKE"])]
    metadata: String,
    /// RPC port of the master [default: 50051 if it is free, else any]
    #[arg(long, value_name = "PORT")]
    rpc_port: Option<u16>,
    /// Admin HTTP port of the master [default: 9003 if it is free, else any]
    #[arg(long, value_name = "PORT")]
    metrics_port: Option<u16>,
    /// Port of the metadata service [default: 8080 if it is free, else any]
    #[arg(long, value_name = "PORT")]
    metadata_port: Option<u16>,
    /// REST port of the node [default: 8081 if it is free, else any]
    #[arg(long, value_name = "PORT")]
    rest_port: Option<u16>,
    /// A simulated SGLang endpoint on this store, too, and what to type to put load on it
    #[arg(long)]
    with_sim: bool,
    /// Its port [default: 30000 if it is free, else any]
    #[arg(long, value_name = "PORT", requires = "with_sim")]
    sim_port: Option<u16>,
    #[command(flatten)]
    transport: TransportArgs,
    /// End after the round trip
    #[arg(long)]
    once: bool,
    /// One JSON document on stdout when it is ready
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    pub(in crate::commands) log: FileOptions,
}

/// Size of the segment, and how it was written.
#[derive(Clone, Debug)]
struct SegmentSize {
    bytes: ByteSize,
    text: String,
}

fn segment_size(text: &str) -> Result<SegmentSize, String> {
    let bytes: ByteSize = text.parse().map_err(|error: ParseSizeError| error.to_string())?;
    match bytes.0 {
        0 => Err("the node of this store must contribute memory; the smallest segment is 16mb".to_owned()),
        _ => Ok(SegmentSize { bytes, text: text.to_owned() }),
    }
}

impl fmt::Display for SegmentSize {
    /// The size, after the text it was read from where that can also mean a power of 1000.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = self.text.to_ascii_lowercase();
        match ["kb", "mb", "gb", "tb"].iter().any(|unit| text.ends_with(unit)) {
            true => write!(f, "{} (read as {})", self.text, self.bytes),
            false => self.bytes.fmt(f),
        }
    }
}

impl Args {
    /// Run it until a signal ends it.
    ///
    /// # Errors
    /// What the user has to know.
    pub fn run(self) -> Outcome {
        runtime::block_on(processors().clamp(2, THREADS_MAX), async {
            logging::mark_service();
            let mut signals = Signals::take_with_hangup()?;
            let mut store = tokio::select! {
                store = Store::start(&self) => store?,
                signal = signals.next() => return Ok(interrupted(signal)),
            };
            let checked = tokio::select! {
                checked = check::round_trip(&store.node_plan) => checked,
                signal = signals.next() => {
                    store.stop().await;
                    return Ok(interrupted(signal));
                }
            };
            let checked = match checked {
                Ok(checked) => store.simulate(&self).await.map(|()| checked),
                failure => failure,
            };
            let told = checked.and_then(|checked| self.tell(&store, &checked));
            if told.is_ok() && !self.once {
                tokio::select! {
                    signal = signals.next() => output::say(format!("{signal}: stopping")),
                    never = store.assembly.work() => match never {},
                }
            }
            store.stop().await;
            told.map(|()| Exit::Done)
        })
    }

    /// Say where it is, and what to paste.
    fn tell(&self, store: &Store, checked: &Checked) -> Result<(), Failure> {
        let place = store.place();
        let environment = paste::environment(&place);
        if self.json {
            return output::json(&Document {
                schema: "mcctl.up/1",
                ready: true,
                pid: std::process::id(),
                master: place.master.to_string(),
                admin: format!("http://{}", place.admin),
                metadata: place.metadata.clone(),
                node: store.node.node.name().to_string(),
                segment_bytes: self.segment_size.bytes.0,
                rest: format!("http://{}", store.node.rest_at()),
                notes: &store.notes,
                check: checked,
                sim: store.sim.as_ref().map(|sim| sim.document(&program())),
                environment: environment
                    .iter()
                    .map(|(name, value)| ((*name).to_owned(), value.clone().into()))
                    .collect(),
                sglang_flags: SGLANG_FLAGS,
            });
        }
        for note in &store.notes {
            output::say(format!("note: {note}"));
        }
        let text = format!(
            "master    RPC {}, admin http://{}\n\
             metadata  {}\n\
             node      {} contributes {}, REST http://{}\n\
             check     {} put, read back over {}, compared and removed in {:.1} ms\n\
             \n\
             # the environment of a client: Python, SGLang or another store node\n\
             {}\n\
             # SGLang with this store as the third tier of its cache\n\
             python -m sglang.launch_server --model-path MODEL \\\n  {}\n\
             \n\
             # try it, in another shell\n\
             {program} store put greeting --value hello{link}{protocol}\n\
             {program} store get greeting{link}{protocol}\n\
             {program} store ls --long{link}\n\
             {program} status{link}\n\
             \n",
            place.master,
            place.admin,
            place.metadata,
            store.node.node.name(),
            self.segment_size,
            store.node.rest_at(),
            ByteSize(checked.bytes),
            place.protocol.to_uppercase(),
            checked.total_ms,
            paste::shell(&environment),
            paste::flag_lines(),
            program = program(),
            link = paste::link(&place),
            protocol = if place.protocol == "rdma" { " --protocol rdma" } else { "" },
        );
        output::data(text)?;
        if let Some(sim) = &store.sim {
            output::data(sim.text(&program()))?;
        }
        output::line(if self.once {
            "ready; the round trip is done, and this store ends"
        } else {
            "ready; Ctrl-C ends it"
        })
    }
}

/// Threads for everything but RPC calls and the moving of bytes.
const THREADS_MAX: usize = 4;
/// The master is in this process.
const MASTER_WAIT: Duration = Duration::from_secs(5);

fn interrupted(signal: &str) -> Exit {
    output::say(format!("{signal}: stopped before it was ready"));
    Exit::Done
}

/// How this program was called.
fn program() -> String {
    std::env::args().next().unwrap_or_else(|| "mcctl".to_owned())
}

#[derive(Serialize)]
struct Document<'a> {
    schema: &'static str,
    ready: bool,
    pid: u32,
    master: String,
    admin: String,
    metadata: String,
    node: String,
    segment_bytes: u64,
    rest: String,
    notes: &'a [String],
    check: &'a Checked,
    #[serde(skip_serializing_if = "Option::is_none")]
    sim: Option<SimDocument>,
    environment: serde_json::Map<String, serde_json::Value>,
    sglang_flags: &'static [&'static str],
}

/// Everything that runs.
struct Store {
    assembly: Assembly,
    node: RunningNode,
    node_plan: NodePlan,
    sim_at: Option<Listen>,
    sim: Option<Sim>,
    notes: Vec<String>,
}

impl Store {
    async fn start(args: &Args) -> Result<Store, Failure> {
        let host = args.host.to_string();
        let mut notes = Vec::new();
        let want = |what, flag, asked, usual| Wanted { what, flag, asked, usual };
        let mut wanted = vec![
            want("the master's RPC", "--rpc-port", args.rpc_port, 50051),
            want("the admin HTTP", "--metrics-port", args.metrics_port, 9003),
            want("the REST port", "--rest-port", args.rest_port, 8081),
        ];
        if args.metadata == "http" {
            wanted.push(want("the metadata service", "--metadata-port", args.metadata_port, 8080));
        }
        if args.with_sim {
            wanted.push(want("the simulator", "--sim-port", args.sim_port, 30_000));
        }
        let mut listens = ports::choose(&host, &wanted, &mut notes)?.into_iter();
        let mut next = || listens.next().expect("one for each that is wanted");
        let (rpc, admin, rest) = (next(), next(), next());
        let metadata = if args.metadata == "http" { listens.next() } else { None };
        let sim_at = listens.next();
        let plan = Plan {
            config: MasterConfig::new(rpc.at.clone()),
            rpc,
            admin,
            metadata,
            cleanup: Cleanup::Remove,
            report: false,
        };
        serve::allow_open_files();
        let assembly = Assembly::start(&plan).await?;
        let found = match &assembly.metadata_at {
            Some(at) => format!("http://{at}/metadata"),
            None => "P2PHANDSHAKE".to_owned(),
        };
        let node_plan = NodePlan {
            master: assembly.rpc.clone(),
            master_origin: "the master of this process".to_owned(),
            metadata: node::metadata(&found, "the metadata service of this process".to_owned())?,
            local_hostname: if args.host.is_ipv6() { format!("[{host}]") } else { host.clone() },
            segment: args.segment_size.bytes,
            segment_origin: format!("--segment-size {}", args.segment_size.text),
            local_buffer: ByteSize(0),
            local_buffer_origin: "no local buffer".to_owned(),
            transport: args.transport.transport(|name| std::env::var(name).ok())?,
            announce_host: Some(host),
            max_wait: MASTER_WAIT,
            waited: Duration::ZERO,
            metrics: None,
        };
        // A signal ends the metadata service too, and with it the node's records.
        match RunningNode::start(&node_plan, &NodePorts { rest, client_http: None }, std::future::pending()).await {
            Ok(Some(node)) => Ok(Store { assembly, node, node_plan, sim_at, sim: None, notes }),
            Ok(None) => unreachable!("nothing stops it"),
            Err(failure) => {
                runtime::stop_in_time("the master", assembly.stop()).await;
                // Its parts are in this process: no flag names others.
                Err(match failure.exit {
                    Exit::Unreachable => failure.next("see why with --log-level=info; this host may be overloaded"),
                    _ => failure,
                })
            }
        }
    }

    fn place(&self) -> Place {
        Place {
            master: self.assembly.rpc.clone(),
            admin: self.assembly.admin_at.clone(),
            metadata: self.node_plan.metadata.to_string(),
            protocol: self.node.node.client().engine().protocol(),
            devices: self.node_plan.transport.rdma.devices.join(","),
            client_host: self.node_plan.local_hostname.clone(),
        }
    }

    /// Start the simulator, if one is wanted.
    async fn simulate(&mut self, args: &Args) -> Result<(), Failure> {
        if let Some(listen) = self.sim_at.take() {
            self.sim = Some(Sim::start(&self.node_plan, &listen, args.json).await?);
        }
        Ok(())
    }

    async fn stop(self) {
        let end = async {
            if let Some(sim) = self.sim {
                sim.stop().await;
            }
            self.node.stop().await;
            self.assembly.stop().await;
        };
        runtime::stop_in_time("the store", end).await;
    }
}
