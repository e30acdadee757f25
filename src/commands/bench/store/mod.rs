//! `mcctl bench store`: benchmarks puts and gets on a store, with any Mooncake master.

mod measure;
mod rank;
mod rank_message;
mod ranks;
mod report;
mod room;
mod runner;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::commands::bench::store::measure::{MeasureRules, measure};
use crate::commands::bench::store::rank_message::RankReply;
use crate::commands::bench::store::ranks::RankProcesses;
use crate::commands::bench::store::report::StoreReport;
use crate::commands::bench::store::runner::BenchRunner;
use crate::commands::cli::args::show_duration;
use crate::commands::cli::error::{Exit, Failure, Outcome};
use crate::commands::cli::origin::Origin;
use crate::commands::cli::output;
use crate::commands::cli::progress_bar::{WorkProgress, WorkUnit};
use crate::commands::cli::runtime::{self, Signals, StopSignal};
use crate::commands::cli::table;
use crate::commands::cli::time_flag::TimeParser;
use crate::commands::failure::store as store_failure;
use crate::commands::target::connect::{self, ClientArgs, ClientPlan};
use crate::commands::target::master_target::MasterTarget;
use crate::commands::target::transport;
use crate::engine::base::ByteSize;
use crate::engine::bench::store::{StopFlag, StoreBench, StoreBenchPlan, StoreBenchPlanError, StorePass};
use crate::engine::env::{Env, RealEnv, processors, timed};
use crate::engine::load::Seed;
use crate::engine::metadata::MetadataUri;
use crate::engine::store::{StoreClient, StoreClientBuilder, StoreStartError};
use crate::engine::sys::host;

/// Store benchmark with puts and gets.
#[derive(Debug, clap::Args)]
#[command(
    before_help = "object-size objects clients ranks batch-size duration verify master protocol no-shared-memory json"
)]
#[command(before_long_help = "mcctl bench store  # 256 objects of 1 MiB with one client\n\
    mcctl bench store --object-size 4mb --clients 8 --duration 30s  # 8 clients read for 30 s")]
#[command(
    after_help = "An object that is missing when read (evicted, or never stored) counts as a failure. With --overfill, for stores \
    smaller than the data, missing objects are counted, but not as failures. If an object has fewer replicas than --replicas, because too \
    few nodes have free space, the report includes a caveat.\n\
    Each row names the transport that moved the bytes: shared memory (nodes on this host), TCP or RDMA. Before the measurement, a warm-up \
    puts, reads and removes the objects once, because first writes to new memory are slow.\n\
    Exit codes:\n\
    \x20 0   all operations succeeded\n\
    \x20 1   objects failed or were missing, or a signal ended the run\n\
    \x20 2   invalid command line\n\
    \x20 3   the master or every node is unreachable\n\
    \x20 4   this host does not have enough memory"
)]
pub struct Args {
    /// Object size; several sizes, separated by ',', are used in rotation
    #[arg(long, visible_alias = "value-size", value_name = "SIZE,..", default_value = "1mb", value_delimiter = ',')]
    object_size: Vec<ByteSize>,
    /// Number of objects per batch
    #[arg(long = "batch-size", alias = "batch", value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=4096))]
    batch: u32,
    /// Number of concurrent clients per process, each with its own connection to the master
    #[arg(long, aliases = ["num-clients", "threads"], value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024))]
    clients: u32,
    /// Number of processes that run the benchmark at the same time, each with its own objects and
    /// clients, like tensor-parallel ranks
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=256))]
    ranks: u32,
    /// Number of objects to put and then read [default: 256]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000_000))]
    objects: Option<u32>,
    /// How often each object is put (and removed in between) and read [default: 1 with --objects,
    /// --overfill or --keep; otherwise until there are 100 batches, for a p99, or 10 s have passed]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    rounds: Option<u32>,
    /// Measure without a warm-up
    #[arg(long)]
    no_warm_up: bool,
    /// Duration of the second pass, e.g. 30s [default: until every object has been read once]
    #[arg(long, value_name = "TIME", value_parser = TimeParser::limit())]
    duration: Option<Duration>,
    /// Share of read batches in the second pass, from 0 to 1; all other batches put new objects
    #[arg(long, value_name = "SHARE", default_value_t = 1.0)]
    read_ratio: f64,
    /// Exponent of a Zipf distribution for reads, above 0 and at most 10 [default: read objects
    /// sequentially]
    #[arg(long, value_name = "ALPHA")]
    zipf: Option<f64>,
    /// Compare every byte read (CPU figures include the comparison; latencies do not)
    #[arg(long)]
    verify: bool,
    /// Number of replicas per object
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=64))]
    replicas: u64,
    /// Allow more data than the store can hold: objects missing when read are counted, but not as
    /// failures
    #[arg(long)]
    overfill: bool,
    /// Keep the objects in the store after the run
    #[arg(long)]
    keep: bool,
    /// Seed for all random choices
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Print the report as one JSON document
    #[arg(long)]
    json: bool,
    // This process is a rank of a run. Flags without a description are not in any help.
    #[arg(long, hide = true, requires = "rank_prefix")]
    rank_index: Option<u32>,
    // Start of the keys of all ranks.
    #[arg(long, hide = true)]
    rank_prefix: Option<String>,
    #[command(flatten)]
    link: ClientArgs,
}

/// Default number of objects.
const OBJECTS: u32 = 256;

/// Minimum number of batches for latency percentiles.
const BATCHES_MIN: u64 = 30;
/// Errors that indicate an unreachable node or master.
const UNREACHABLE: [&str; 3] = ["TRANSFER_FAIL", "RPC_FAIL", "RPC_TIMEOUT"];

impl Args {
    /// Runs the benchmark and writes the report.
    ///
    /// # Errors
    /// The command line is invalid, the master or all nodes are unreachable, or this host does not
    /// have enough memory.
    pub fn run(self) -> Outcome {
        let env = RealEnv::new();
        let prefix = match (&self.rank_prefix, self.rank_index) {
            (Some(prefix), Some(rank)) => format!("{prefix}{rank:03x}-"),
            _ => format!("mcctl-bench-{:016x}-", env.rng()),
        };
        let plan = self.plan(&prefix)?;
        self.check_memory(&plan)?;
        // Tasks spend most of their time waiting, because the transfer engine's threads move the
        // data.
        runtime::block_on(processors().max(2), async {
            match (self.rank_index, self.ranks) {
                (Some(_), _) => self.serve(&plan).await,
                (None, 1) => self.run_alone(&plan).await,
                (None, ranks) => {
                    let mut signals = Signals::take()?;
                    // The ranks report why the master is unreachable.
                    let started = async {
                        let master = self.link.connect.master.find().await?;
                        self.warn_of_room(&master, &plan).await;
                        let ranks = RankProcesses::start(ranks, &plan.prefix).await?;
                        Ok::<_, Failure>((master.at.to_string(), ranks))
                    };
                    let (at, ranks) = tokio::select! {
                        started = started => started?,
                        signal = signals.next() => return Err(stopped_early(signal)),
                    };
                    let stopper = ranks.stopper();
                    let progress = WorkProgress::start("put and get", WorkUnit::Time, || 0);
                    let mut runner = BenchRunner::Ranks(ranks);
                    let outcome = self.measure(&mut runner, &plan, &mut signals, &at, &|| stopper.stop()).await;
                    drop(progress);
                    // After a second signal, the ranks are killed. Otherwise, they remove their
                    // objects.
                    let is_killed = outcome.as_ref().is_err_and(|failure| failure.exit == Exit::No);
                    if let (false, BenchRunner::Ranks(ranks)) = (is_killed, runner) {
                        ranks.finish().await;
                    }
                    let (report, _) = outcome.map_err(|failure| match failure.next {
                        Some(_) => failure,
                        None => failure.next(format!(
                            "the objects of this run may remain; to remove those of all ranks: {}",
                            removal(&plan, &at)
                        )),
                    })?;
                    self.print(&report)
                }
            }
        })
    }

    /// Measures with the clients of this process.
    async fn run_alone(&self, plan: &StoreBenchPlan) -> Outcome {
        let mut signals = Signals::take()?;
        let stop = StopFlag::default();
        let done = Arc::new(AtomicU64::new(0));
        let started = tokio::select! {
            started = self.start(plan, &stop, &done) => started?,
            signal = signals.next() => return Err(stopped_early(signal)),
        };
        let StartedClients { master, metadata, client, mut runner } = started;
        let counter = Arc::clone(&done);
        let progress = WorkProgress::start("put and get", WorkUnit::Items("objects", None), move || {
            counter.load(Ordering::Relaxed)
        });
        let at = master.at.to_string();
        let measured = self.measure(&mut runner, plan, &mut signals, &at, &|| stop.set()).await;
        drop(progress);
        let outcome = match measured {
            Ok((report, passes)) => match unreachable(&master, &metadata, &passes).await {
                Some(failure) if !report.is_stopped() => Err(failure),
                _ => self.print(&report),
            },
            Err(failure) => Err(failure),
        };
        runtime::stop_in_time("the client", client.stop()).await;
        outcome
    }

    /// Runs as one of several processes.
    async fn serve(&self, plan: &StoreBenchPlan) -> Outcome {
        let stop = StopFlag::default();
        let done = Arc::new(AtomicU64::new(0));
        match self.start(plan, &stop, &done).await {
            Ok(StartedClients { client, runner, .. }) => {
                let served = rank::serve(runner, stop, self.keep).await;
                runtime::stop_in_time("the client", client.stop()).await;
                served.map(|()| Exit::Done)
            }
            Err(failure) => {
                let exit = failure.exit;
                output::json(&RankReply::Failed(failure.into()))?;
                Ok(exit)
            }
        }
    }

    /// Starts the clients of this process.
    async fn start(
        &self,
        plan: &StoreBenchPlan,
        stop: &StopFlag,
        done: &Arc<AtomicU64>,
    ) -> Result<StartedClients, Failure> {
        let env = RealEnv::new();
        let (master, client_plan) = self.link.planned().await?;
        if self.rank_index.is_none() {
            self.warn_of_room(&master, plan).await;
        }
        let starting = StoreClientBuilder::from(client_plan.config.clone()).start(env.clone());
        let client = match timed(&env, starting).await {
            (Ok(client), _) => client,
            (Err(error), took) => return Err(unstarted(&master, &client_plan, error, took).await),
        };
        let ClientPlan { metadata, note, .. } = client_plan;
        if self.rank_index.unwrap_or(0) == 0 {
            note.iter().for_each(output::say);
        }
        let mut clients = Vec::new();
        for _ in 0..self.clients {
            match client.another().await {
                Ok(another) => clients.push(another),
                Err(error) => {
                    runtime::stop_in_time("the client", client.stop()).await;
                    return Err(Failure::unreachable(format!("cannot connect client {}", clients.len() + 1))
                        .tried(format!("master {} ({})", master.at, master.origin))
                        .found(error.to_string()));
                }
            }
        }
        let bench = StoreBench::new(env, &client, clients, plan.clone(), stop.clone(), Arc::clone(done)).await;
        let bench = Box::new(bench.map_err(|error| {
            transport::failure(&error, "register the clients' memory")
                .unwrap_or_else(|| Failure::host(error.to_string()))
        })?);
        let runner = BenchRunner::Local { bench, client: Box::new(client.clone()) };
        Ok(StartedClients { master, metadata, client, runner })
    }

    fn plan(&self, prefix: &str) -> Result<StoreBenchPlan, Failure> {
        let plan = StoreBenchPlan {
            prefix: prefix.to_owned(),
            sizes: self.object_size.iter().map(|size| size.0).collect(),
            objects: self.objects.unwrap_or(OBJECTS),
            batch: self.batch,
            read_ratio: self.read_ratio,
            zipf: self.zipf,
            verify: self.verify,
            replicas: self.replicas,
            seed: Seed(self.seed),
        };
        plan.check().map_err(|error| {
            let next = match error {
                StoreBenchPlanError::TooLarge { .. } => "lower --object-size or --batch-size",
                StoreBenchPlanError::Zipf(_) => "for example, use --zipf 0.99",
                StoreBenchPlanError::Ratio(_) => "for example, use --read-ratio 0.9",
                StoreBenchPlanError::Nothing(_) => "for example, use --object-size 1mb",
            };
            Failure::usage(error.to_string()).next(next)
        })?;
        Ok(plan)
    }

    /// Checks that this host has enough memory: each client needs buffers for two batches, one to
    /// put and one to read.
    fn check_memory(&self, plan: &StoreBenchPlan) -> Result<(), Failure> {
        let clients = u64::from(self.clients) * if self.rank_index.is_some() { 1 } else { u64::from(self.ranks) };
        let required = plan.batch_bytes().saturating_mul(2).saturating_mul(clients);
        let available = host::memory().map_or(u64::MAX, |memory| memory.available);
        if required > available {
            return Err(Failure::host(format!(
                "needs {} of memory; {} available",
                ByteSize(required),
                ByteSize(available)
            ))
            .tried("allocate a put buffer and a read buffer for each client")
            .next("lower --object-size, --batch, --clients or --ranks"));
        }
        Ok(())
    }

    /// Warns if the objects of all ranks do not fit into the store.
    async fn warn_of_room(&self, master: &MasterTarget, plan: &StoreBenchPlan) {
        if self.overfill {
            return;
        }
        let required = plan.stored_bytes().saturating_mul(u64::from(self.ranks));
        if let Some(warning) = room::warning(master, required).await {
            output::say(format!("warning: {warning}"));
        }
    }

    /// Runs all steps, and returns the report and the passes. After the first signal, `stop` is
    /// called, and the rest is skipped.
    async fn measure(
        &self,
        runner: &mut BenchRunner,
        plan: &StoreBenchPlan,
        signals: &mut Signals,
        at: &str,
        stop: &dyn Fn(),
    ) -> Result<(StoreReport, Vec<StorePass>), Failure> {
        let rounds = self.rounds.or((self.objects.is_some() || self.overfill || self.keep).then_some(1));
        let rules = MeasureRules {
            rounds,
            duration: self.duration,
            warm_up: !self.no_warm_up,
            keep: self.keep,
            ranks: self.ranks,
        };
        let flag = StopFlag::default();
        let mut stopped = None;
        let mut running = Box::pin(measure(runner, plan, rules, &flag));
        let measured = loop {
            tokio::select! {
                measured = &mut running => break measured?,
                signal = signals.next() => {
                    if stopped.is_some() {
                        return Err(Failure::interrupted(format!("{signal}: stopped without a report; the objects remain in the store"))
                            .next(removal(plan, at)));
                    }
                    output::say(format!("{signal}: waiting for the current batches to finish before reporting"));
                    flag.set();
                    stop();
                    stopped = Some(signal);
                }
            }
        };
        drop(running);
        let passes = measured.passes.clone();
        Ok((StoreReport::new(self, plan, at, measured, stopped), passes))
    }

    fn print(&self, report: &StoreReport) -> Outcome {
        match self.json {
            true => output::json(report)?,
            false => output::data(report.text(table::width()))?,
        }
        Ok(report.exit())
    }
}

/// The clients of this process, and what runs their steps.
struct StartedClients {
    master: MasterTarget,
    metadata: Origin<MetadataUri>,
    client: StoreClient<RealEnv>,
    runner: BenchRunner,
}

/// Returns the command that removes the objects of all ranks.
fn removal(plan: &StoreBenchPlan, at: &str) -> String {
    format!("mcctl store rm --force --regex '^{}' --master {at}", plan.prefix)
}

fn stopped_early(signal: StopSignal) -> Failure {
    Failure::interrupted(format!("{signal}: stopped before the client was ready"))
}

/// Returns an error if nothing was stored because no node is reachable. Without stored objects,
/// there is nothing to report.
async fn unreachable(master: &MasterTarget, metadata: &Origin<MetadataUri>, passes: &[StorePass]) -> Option<Failure> {
    let [StorePass { put, .. }] = passes else { return None };
    if put.objects > 0 || put.already_existing > 0 {
        return None;
    }
    let error = put.failed.values().find_map(|failed| failed.error.as_ref())?;
    let failure = store_failure::explained(master, metadata, "put objects", error).await;
    (failure.exit == Exit::Unreachable).then_some(failure)
}

/// Returns the error for a client that failed to start after `took`.
async fn unstarted(master: &MasterTarget, plan: &ClientPlan, error: StoreStartError, took: Duration) -> Failure {
    let is_master = matches!(error, StoreStartError::Master(_));
    let mut failure = connect::unstarted(master, plan, error).await;
    if is_master && failure.exit == Exit::Unreachable {
        let limits = master.timeouts();
        let found = failure.found.take().unwrap_or_default();
        failure.found = Some(format!(
            "{found}, after {} (limits: {} to connect, {} per call; see --timeout)",
            show_duration(took),
            show_duration(limits.connect),
            show_duration(limits.call)
        ));
    }
    failure
}
