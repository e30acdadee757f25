//! `mcctl up`: a complete store in one process on this machine, checked with a round trip, and the
//! settings for its clients.
//!
//! All data is in this process's memory, so nothing remains when the process ends.

mod paste;
mod ports;
mod round_trip;
mod sim;

use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use serde::Serialize;

use crate::commands::cli::args::ValueError;
use crate::commands::cli::error::{Exit, Failure, Outcome};
use crate::commands::cli::listen::ListenAddress;
use crate::commands::cli::logging::{self, LogFileOptions};
use crate::commands::cli::origin::{ClientOrigins, NodeOrigins};
use crate::commands::cli::origin::{Origin, ValueOrigin};
use crate::commands::cli::output;
use crate::commands::cli::runtime::{self, Signals, StopSignal};
use crate::commands::failure::node as node_failure;
use crate::commands::serve::access_plan::AccessPlan;
use crate::commands::serve::data_directory::DataArgs;
use crate::commands::serve::master_process::{MasterPlan, PlannedMaster};
use crate::commands::serve::open_files;
use crate::commands::target::transport::TransportArgs;
use crate::commands::up::paste::{SGLANG_FLAGS, StoreAddresses};
use crate::commands::up::ports::PortRequest;
use crate::commands::up::round_trip::RoundTripDocument;
use crate::commands::up::sim::{LocalSim, SimDocument};
use crate::engine::base::ByteSize;
use crate::engine::env::{RealEnv, processors};
use crate::engine::http::HttpAccess;
use crate::engine::master::MasterConfig;
use crate::engine::master::process::MetadataCleanup;
use crate::engine::store::service::{StoreService, StoreServiceConfig};
use crate::engine::store::{ClientConfig, NodeConfig, StoreClient};
use crate::engine::upstream::{self, python_client};

/// Flags of `mcctl up`.
#[derive(Debug, clap::Args)]
#[command(before_help = "segment-size bind metadata protocol with-sim once json")]
#[command(before_long_help = "mcctl up  # run a master, a metadata service and a 1 GiB node on 127.0.0.1\n\
    mcctl up --segment-size 8gb --bind 10.0.0.1  # contribute 8 GiB and allow access from other hosts\n\
    mcctl up --with-sim  # also run a simulated SGLang server on the store\n\
    mcctl up --once --json  # start, check, print one JSON document and exit")]
pub struct Args {
    /// Memory that the node contributes, in bytes or with a kb, mb, gb or tb suffix (powers of
    /// 1024). Pages are allocated on first use
    #[arg(long, value_name = "SIZE", default_value = "1GiB", value_parser = segment_size)]
    segment_size: SegmentSize,
    /// Address that all services listen on
    #[arg(long, alias = "host", value_name = "ADDRESS", default_value = "127.0.0.1")]
    bind: IpAddr,
    /// Metadata mode: http (a metadata service in this process) or P2PHANDSHAKE
    #[arg(long, value_name = "MODE", default_value = "http", value_parser = ["http", "P2PHANDSHAKE"])]
    metadata: String,
    /// Master RPC port [default: 50051 if free, otherwise the next free port]
    #[arg(long, value_name = "PORT")]
    rpc_port: Option<u16>,
    /// Master admin HTTP port [default: 9003 if free, otherwise the next free port]
    #[arg(long, value_name = "PORT")]
    metrics_port: Option<u16>,
    /// Metadata service port [default: 8080 if free, otherwise the next free port]
    #[arg(long, value_name = "PORT")]
    metadata_port: Option<u16>,
    /// Node REST port [default: 8081 if free, otherwise the next free port]
    #[arg(long, value_name = "PORT")]
    rest_port: Option<u16>,
    /// Also run a simulated SGLang server on this store, and print a command that generates load
    /// for it
    #[arg(long)]
    with_sim: bool,
    /// Simulated server port [default: 30000 if free, otherwise the next free port]
    #[arg(long, value_name = "PORT", requires = "with_sim")]
    sim_port: Option<u16>,
    #[command(flatten)]
    transport: TransportArgs,
    #[command(flatten)]
    data: DataArgs,
    /// Exit after the round trip
    #[arg(long)]
    once: bool,
    /// Print one JSON document to stdout when the store is ready
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    pub(in crate::commands) log: LogFileOptions,
}

/// The segment size, and the string that it was parsed from.
#[derive(Clone, Debug)]
struct SegmentSize {
    bytes: ByteSize,
    text: String,
}

fn segment_size(text: &str) -> Result<SegmentSize, ValueError> {
    let bytes: ByteSize = text.parse()?;
    match bytes.0 {
        0 => Err(ValueError::ZeroSegment),
        _ => Ok(SegmentSize { bytes, text: text.to_owned() }),
    }
}

impl fmt::Display for SegmentSize {
    /// Shows the size. If the user's unit could also mean a power of 1000, the user's input is
    /// shown first.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = self.text.to_ascii_lowercase();
        match ["kb", "mb", "gb", "tb"].iter().any(|unit| text.ends_with(unit)) {
            true => write!(f, "{} (interpreted as {})", self.text, self.bytes),
            false => self.bytes.fmt(f),
        }
    }
}

impl Args {
    /// Runs the store until it receives SIGINT or SIGTERM.
    ///
    /// # Errors
    /// A component cannot start, or the round trip fails.
    pub fn run(self) -> Outcome {
        runtime::block_on(processors().clamp(2, THREADS_MAX), async {
            logging::mark_service();
            let mut signals = Signals::take_with_hangup()?;
            let mut store = tokio::select! {
                store = LocalStore::start(&self) => store?,
                signal = signals.next() => return Ok(interrupted(signal)),
            };
            let checked = tokio::select! {
                checked = round_trip::round_trip(&store.config, &store.origins) => checked,
                signal = signals.next() => {
                    store.stop().await?;
                    return Ok(interrupted(signal));
                }
            };
            let checked = match checked {
                Ok(checked) => store.simulate(&self).await.map(|()| checked),
                failure => failure,
            };
            let printed = checked.and_then(|checked| self.print(&store, &checked));
            let mut ended = printed;
            if ended.is_ok() && !self.once {
                tokio::select! {
                    signal = signals.next() => output::say(format!("{signal}: stopping")),
                    failure = store.master.work() => ended = Err(failure),
                }
            }
            let stopped = store.stop().await;
            ended.and(stopped).map(|()| Exit::Done)
        })
    }

    /// Prints the store's addresses and the settings for its clients.
    fn print(&self, store: &LocalStore, checked: &RoundTripDocument) -> Result<(), Failure> {
        let addresses = store.addresses();
        let environment = paste::environment(&addresses);
        if self.json {
            return output::json(&UpDocument {
                schema: "mcctl.up/1",
                ready: true,
                pid: std::process::id(),
                master: addresses.master.to_string(),
                admin: format!("http://{}", addresses.admin),
                metadata: addresses.metadata.clone(),
                node: store.node.node().name().to_string(),
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
                mcctl_client: ClientDocument {
                    install: python_client::INSTALL,
                    launcher: ["python", "-m", python_client::LAUNCHER, "--"],
                    dynamic_flags: paste::dynamic_flags(),
                },
            });
        }
        for note in &store.notes {
            output::say(format!("note: {note}"));
        }
        let text = format!(
            "master    RPC {}, admin http://{}\n\
             metadata  {}\n\
             node      {} contributes {}, REST http://{}\n\
             check     put {}, read back over {}, compared and removed in {:.1} ms\n\
             \n",
            addresses.master,
            addresses.admin,
            addresses.metadata,
            store.node.node().name(),
            self.segment_size,
            store.node.rest_at(),
            ByteSize(checked.bytes),
            addresses.protocol.to_uppercase(),
            checked.total_ms,
        );
        output::data(text)?;
        let program = program();
        output::data(match &store.sim {
            Some(sim) => sim.text(&program),
            None => paste::sglang_text(&environment),
        })?;
        output::data(paste::try_text(&program, &addresses))?;
        output::line(if self.once {
            "ready; the round trip succeeded, stopping the store"
        } else {
            "ready; stop with Ctrl-C"
        })
    }
}

/// Maximum number of threads, not counting the RPC and transfer engine threads.
const THREADS_MAX: usize = 4;
/// Maximum time that the node waits for the master, which runs in this process.
const MASTER_WAIT: Duration = Duration::from_secs(5);

fn interrupted(signal: StopSignal) -> Exit {
    output::say(format!("{signal}: stopped before the store was ready"));
    Exit::Done
}

/// The name under which this program was started.
fn program() -> String {
    std::env::args().next().unwrap_or_else(|| "mcctl".to_owned())
}

#[derive(Serialize)]
struct UpDocument<'a> {
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
    check: &'a RoundTripDocument,
    #[serde(skip_serializing_if = "Option::is_none")]
    sim: Option<SimDocument>,
    environment: serde_json::Map<String, serde_json::Value>,
    sglang_flags: &'static [&'static str],
    mcctl_client: ClientDocument,
}

/// How SGLang uses mcctl's client instead of Mooncake's wheel.
#[derive(Serialize)]
struct ClientDocument {
    /// The command that installs the client.
    install: &'static str,
    /// The words before a command that starts SGLang, in place of `python`.
    launcher: [&'static str; 4],
    /// The flags that replace `--hicache-storage-backend mooncake`.
    dynamic_flags: [String; 4],
}

/// The store's running components.
struct LocalStore {
    master: PlannedMaster,
    node: StoreService<RealEnv>,
    /// The configuration of the node's client, which other clients in this process share.
    config: ClientConfig,
    origins: ClientOrigins,
    sim_at: Option<ListenAddress>,
    sim: Option<LocalSim>,
    notes: Vec<String>,
}

impl LocalStore {
    async fn start(args: &Args) -> Result<LocalStore, Failure> {
        if args.bind.is_unspecified() {
            return Err(Failure::usage(format!("--bind {} is not an address that clients can connect to", args.bind))
                .next("use one of this host's addresses (ip -brief address lists them)"));
        }
        let host = args.bind.to_string();
        let mut notes = Vec::new();
        let request = |what, flag, port, default| PortRequest { what, flag, port, default };
        let mut requests = vec![
            request("the master's RPC", "--rpc-port", args.rpc_port, upstream::ports::MASTER_RPC),
            request("the admin HTTP endpoint", "--metrics-port", args.metrics_port, upstream::ports::MASTER_ADMIN),
            request("the REST port", "--rest-port", args.rest_port, 8081),
        ];
        if args.metadata == "http" {
            requests.push(request(
                "the metadata service",
                "--metadata-port",
                args.metadata_port,
                upstream::ports::METADATA,
            ));
        }
        if args.with_sim {
            requests.push(request("the simulator", "--sim-port", args.sim_port, 30_000));
        }
        let mut listens = ports::choose(&host, &requests, &mut notes)?.into_iter();
        let mut next = || listens.next().expect("one address per request");
        let rpc = next();
        let admin = next();
        let rest = next();
        let metadata = if args.metadata == "http" { listens.next() } else { None };
        let sim_at = listens.next();
        let plan = MasterPlan {
            config: MasterConfig::new(rpc.at.clone()),
            rpc,
            admin,
            metadata,
            access: AccessPlan::default(),
            cleanup: MetadataCleanup::Remove,
            data: args.data.plan(),
            cluster: None,
            report: false,
        };
        open_files::raise_limit();
        let master = plan.start().await?;
        let metadata = match &master.metadata_at {
            Some(at) => format!("http://{at}/metadata"),
            None => "P2PHANDSHAKE".to_owned(),
        };
        let metadata = Origin::described(metadata, "the metadata service in this process");
        let metadata = node_failure::metadata(metadata)?.value;
        let transport = args.transport.transport(|name| std::env::var(name).ok())?;
        let origins = NodeOrigins {
            client: ClientOrigins {
                master: ValueOrigin::Described("the master in this process".to_owned()),
                transport: transport.origin,
            },
            segment: ValueOrigin::Described(format!("--segment-size {}", args.segment_size.text)),
            local_buffer: ValueOrigin::Described("no local buffer".to_owned()),
        };
        let mut config = StoreClient::builder(master.rpc.clone())
            .metadata(metadata)
            .local_hostname(if args.bind.is_ipv6() { format!("[{host}]") } else { host.clone() })
            .transport(transport.value.protocol, transport.value.options)
            .config();
        config.engine.announce_host = Some(host);
        config.wait_at_most(MASTER_WAIT, Duration::ZERO);
        for warning in config.apply_variables(&|name| std::env::var(name).ok()) {
            tracing::warn!("{warning}");
        }
        let service = StoreServiceConfig {
            node: NodeConfig { client: config.clone(), segment_bytes: args.segment_size.bytes },
            rest: rest.at.clone(),
            client_http: None,
            access: HttpAccess::default(),
        };
        // A signal also stops the metadata service, which holds the node's records.
        let started = StoreService::start(service.clone(), RealEnv::new()).await;
        match started.map_err(|error| node_failure::service(&service, &origins, (&rest, None), error)) {
            Ok(node) => Ok(LocalStore { master, node, config, origins: origins.client, sim_at, sim: None, notes }),
            Err(failure) => {
                let _ = master.stop().await;
                // All components run in this process, so advice about other addresses does not
                // apply.
                Err(match failure.exit {
                    Exit::Unreachable => {
                        failure.next("check the log with --log-level=info; this host may be overloaded")
                    }
                    _ => failure,
                })
            }
        }
    }

    fn addresses(&self) -> StoreAddresses {
        StoreAddresses {
            master: self.master.rpc.clone(),
            admin: self.master.admin_at.clone(),
            metadata: self.config.engine.metadata.to_string(),
            protocol: self.node.node().client().engine().protocol(),
            devices: self.config.engine.transport.devices.join(","),
            client_host: self.config.local_hostname.clone(),
        }
    }

    /// Starts the simulator if --with-sim is set.
    async fn simulate(&mut self, args: &Args) -> Result<(), Failure> {
        if let Some(listen) = self.sim_at.take() {
            self.sim = Some(LocalSim::start(&self.config, &self.origins, &listen, args.json).await?);
        }
        Ok(())
    }

    /// Stops the store.
    ///
    /// # Errors
    /// The master's data directory cannot be written.
    async fn stop(self) -> Result<(), Failure> {
        let end = async {
            if let Some(sim) = self.sim {
                sim.stop().await;
            }
            self.node.stop().await;
        };
        runtime::stop_in_time("the node", end).await;
        self.master.stop().await
    }
}
