//! `mcctl bench store`: benchmarks puts and gets on a store, with any Mooncake master.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde::Serialize;

use crate::commands::args::{self, show_duration};
use crate::commands::bench::caveat::{BenchCaveat, render_end};
use crate::commands::connect::{self, ClientArgs, ClientPlan};
use crate::commands::error::{Exit, Failure, Outcome};
use crate::commands::master_target::MasterTarget;
use crate::commands::origin::Origin;
use crate::commands::output;
use crate::commands::progress_bar::{WorkProgress, WorkUnit};
use crate::commands::runtime::{self, Signals};
use crate::commands::store_failure;
use crate::commands::table::{self, ReportSection, ReportTable};
use crate::commands::transport;
use crate::engine::base::ByteSize;
use crate::engine::bench::store::{
    self as bench, OperationStats, StopFlag, StoreBenchPlan, StoreBenchPlanError, StorePass,
};
use crate::engine::env::{Env, RealEnv, processors, timed};
use crate::engine::load::{LatencySummary, Seed};
use crate::engine::metadata::MetadataUri;
use crate::engine::store::{StoreClient, StoreClientBuilder, StoreError, StoreStartError};
use crate::engine::sys::host;

/// Store benchmark with puts and gets.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "An object that is missing when read (evicted, or never stored) counts as a failure. With --overfill, for stores \
    smaller than the data, missing objects are counted, but not as failures. If an object has fewer replicas than --replicas, because too \
    few nodes have free space, the report includes a caveat.\n\
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
    #[arg(long, visible_alias = "batch-size", value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=4096))]
    batch: u32,
    /// Number of concurrent clients, each with its own connection to the master
    #[arg(long, visible_alias = "threads", value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024))]
    clients: u32,
    /// Number of objects to put and then read
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..=100_000_000))]
    objects: u32,
    /// Duration of the second pass [default: until every object has been read once]
    #[arg(long, value_name = "TIME", value_parser = args::limit)]
    duration: Option<Duration>,
    /// Share of read batches in the second pass, from 0 to 1; all other batches put new objects
    #[arg(long, value_name = "SHARE", default_value_t = 1.0)]
    read_ratio: f64,
    /// Exponent of a Zipf distribution for reads, above 0 and at most 10 [default: read objects sequentially]
    #[arg(long, value_name = "ALPHA")]
    zipf: Option<f64>,
    /// Compare every byte read (CPU figures include the comparison; latencies do not)
    #[arg(long)]
    verify: bool,
    /// Number of replicas per object
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=64))]
    replicas: u64,
    /// Allow more data than the store can hold: objects missing when read are counted, but not as failures
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
    #[command(flatten)]
    link: ClientArgs,
}

/// Minimum number of batches for latency percentiles.
const BATCHES_MIN: u64 = 30;
/// Errors that indicate an unreachable node or master.
const UNREACHABLE: [&str; 3] = ["TRANSFER_FAIL", "RPC_FAIL", "RPC_TIMEOUT"];

impl Args {
    /// Runs the benchmark and writes the report.
    ///
    /// # Errors
    /// The command line is invalid, the master or all nodes are unreachable, or this host does not have enough memory.
    pub fn run(self) -> Outcome {
        let env = RealEnv::new();
        let plan = self.plan(&format!("mcctl-bench-{:016x}-", env.rng()))?;
        self.check_memory(&plan)?;
        // Tasks spend most of their time waiting, because the transfer engine's threads move the data.
        runtime::block_on(processors().max(2), async {
            let mut signals = Signals::take()?;
            let start = async {
                let (master, plan) = self.link.planned().await?;
                let starting = StoreClientBuilder::from(plan.config.clone()).start(env.clone());
                match timed(&env, starting).await {
                    (Ok(client), _) => Ok((master, plan, client)),
                    (Err(error), took) => Err(unstarted(&master, &plan, error, took).await),
                }
            };
            let (master, ClientPlan { metadata, note, .. }, client) = tokio::select! {
                started = start => started?,
                signal = signals.next() => return Err(Failure::no(format!("{signal}: stopped before the client was ready"))),
            };
            note.iter().for_each(output::say);
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
            let outcome = self.measure(&client, clients, &plan, &mut signals, (&master, &metadata)).await;
            runtime::stop_in_time("the client", client.stop()).await;
            outcome
        })
    }

    fn plan(&self, prefix: &str) -> Result<StoreBenchPlan, Failure> {
        let plan = StoreBenchPlan {
            prefix: prefix.to_owned(),
            sizes: self.object_size.iter().map(|size| size.0).collect(),
            objects: self.objects,
            batch: self.batch,
            duration: self.duration,
            read_ratio: self.read_ratio,
            zipf: self.zipf,
            verify: self.verify,
            replicas: self.replicas,
            seed: Seed(self.seed),
        };
        plan.check().map_err(|error| {
            let next = match error {
                StoreBenchPlanError::TooLarge { .. } => "lower --object-size or --batch",
                StoreBenchPlanError::Zipf(_) => "for example, use --zipf 0.99",
                StoreBenchPlanError::Ratio(_) => "for example, use --read-ratio 0.9",
                StoreBenchPlanError::Nothing(_) => "for example, use --object-size 1mb",
            };
            Failure::usage(error.to_string()).next(next)
        })?;
        Ok(plan)
    }

    /// Checks that this host has enough memory: each client needs buffers for two batches, one to put and one to read.
    fn check_memory(&self, plan: &StoreBenchPlan) -> Result<(), Failure> {
        let required = plan.batch_bytes().saturating_mul(2).saturating_mul(u64::from(self.clients));
        let available = host::memory().map_or(u64::MAX, |memory| memory.available);
        if required > available {
            return Err(Failure::host(format!(
                "needs {} of memory; {} available",
                ByteSize(required),
                ByteSize(available)
            ))
            .tried("allocate a put buffer and a read buffer for each client")
            .next("lower --object-size, --batch or --clients"));
        }
        Ok(())
    }

    async fn measure(
        &self,
        client: &StoreClient<RealEnv>,
        clients: Vec<StoreClient<RealEnv>>,
        plan: &StoreBenchPlan,
        signals: &mut Signals,
        (master, metadata): (&MasterTarget, &Origin<MetadataUri>),
    ) -> Outcome {
        let at = master.at.to_string();
        let stop = StopFlag::default();
        let done = Arc::new(AtomicU64::new(0));
        let counter = Arc::clone(&done);
        // The number of objects in a timed or mixed pass is not known in advance.
        let total = (plan.duration.is_none() && plan.read_ratio >= 1.0).then(|| 2 * u64::from(plan.objects));
        let progress = WorkProgress::start("put and get", WorkUnit::Items("objects", total), move || {
            counter.load(Ordering::Relaxed)
        });
        let mut running = tokio::spawn(bench::run(RealEnv::new(), clients, plan.clone(), stop.clone(), done));
        let mut stopped = None;
        let passes = loop {
            tokio::select! {
                passes = &mut running => break passes.unwrap_or_else(|bug| std::panic::resume_unwind(bug.into_panic())),
                signal = signals.next() => {
                    if stopped.is_some() {
                        running.abort();
                        return Err(Failure::no(format!("{signal}: stopped without a report; the objects remain in the store"))
                            .next(format!("mcctl store rm --force --regex '{}' --master {at}", plan.every_key())));
                    }
                    output::say(format!("{signal}: waiting for the current batches to finish before reporting"));
                    stop.set();
                    stopped = Some(signal);
                }
            }
        };
        drop(progress);
        let passes = passes.map_err(|error| {
            transport::failure(&error, "register the clients' memory")
                .unwrap_or_else(|| Failure::host(error.to_string()))
        })?;
        let keys = plan.every_key();
        let removed = match self.keep {
            true => Ok(None),
            false => tokio::select! {
                removed = client.remove_by_regex(&keys, true) => removed.map(Some),
                signal = signals.next() => {
                    output::say(format!("{signal}: objects may remain in the store"));
                    Ok(None)
                }
            },
        };
        if stopped.is_none()
            && let Some(failure) = unreachable(master, metadata, &passes).await
        {
            return Err(failure);
        }
        let report = StoreReport::new(self, plan, &at, &passes, stopped.is_some(), removed);
        if self.json {
            output::json(&report)?;
        } else {
            output::data(report.text(table::width()))?;
        }
        Ok(report.exit())
    }
}

/// Returns an error if nothing was stored because no node is reachable. Without stored objects, there is nothing to report.
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

#[derive(Debug, Serialize)]
struct StoreReport {
    schema: &'static str,
    master: String,
    prefix: String,
    object_bytes: Vec<u64>,
    objects: u32,
    batch: u32,
    clients: u32,
    replicas: u64,
    read_ratio: f64,
    zipf: Option<f64>,
    seed: u64,
    verified: bool,
    overfill: bool,
    stopped: bool,
    passes: Vec<StorePassReport>,
    /// Number of objects removed at the end; `None` if they were kept or could not be removed.
    removed: Option<i64>,
    #[serde(rename = "doubts")]
    caveats: Vec<BenchCaveat>,
}

#[derive(Debug, Serialize)]
struct StorePassReport {
    name: &'static str,
    seconds: f64,
    cpu_s: f64,
    cpu_us_per_object: Option<f64>,
    cpu_s_per_gb: Option<f64>,
    put: Option<OperationReport>,
    get: Option<OperationReport>,
}

#[derive(Debug, Serialize)]
struct OperationReport {
    batches: u64,
    objects: u64,
    bytes: u64,
    objects_per_s: f64,
    gb_per_s: f64,
    /// Latency of whole batches.
    latency: Option<LatencySummary>,
    missing: u64,
    already_there: u64,
    /// Number of objects with fewer replicas than `--replicas`.
    fewer_copies: u64,
    verified: u64,
    failed: u64,
    failures: BTreeMap<String, ErrorReport>,
}

#[derive(Debug, Serialize)]
struct ErrorReport {
    count: u64,
    first: String,
}

impl OperationReport {
    fn new(pass: &StorePass, done: &OperationStats) -> Option<OperationReport> {
        let failed = done.failures();
        let any = done.objects + done.missing + done.already_existing + failed;
        (any > 0).then(|| OperationReport {
            batches: done.batches,
            objects: done.objects,
            bytes: done.bytes,
            objects_per_s: pass.per_second(done.objects),
            gb_per_s: pass.per_second(done.bytes) / 1e9,
            latency: done.latency.summary(),
            missing: done.missing,
            already_there: done.already_existing,
            fewer_copies: done.fewer_copies,
            verified: done.verified,
            failed,
            failures: done
                .failed
                .iter()
                .map(|(name, failed)| (name.clone(), ErrorReport { count: failed.count, first: failed.first.clone() }))
                .collect(),
        })
    }
}

impl StoreReport {
    fn new(
        args: &Args,
        plan: &StoreBenchPlan,
        master: &str,
        passes: &[StorePass],
        stopped: bool,
        removed: Result<Option<i64>, StoreError>,
    ) -> StoreReport {
        let mut caveats = Vec::new();
        if stopped {
            caveats.push(BenchCaveat::Signal { signal: "a signal" });
        }
        for pass in passes {
            for (what, done) in [("put", &pass.put), ("get", &pass.get)] {
                let latencies = done.latency.count();
                if latencies > 0 && latencies < BATCHES_MIN {
                    let operation = if pass.name == what { what.to_owned() } else { format!("{}: {what}", pass.name) };
                    caveats.push(BenchCaveat::TooFewStoreBatches { operation, batches: latencies });
                }
                if done.missing > 0 && args.overfill {
                    caveats.push(BenchCaveat::MissingObjects { pass: pass.name, objects: done.missing });
                }
                if done.fewer_copies > 0 {
                    caveats.push(BenchCaveat::FewerCopies {
                        pass: pass.name,
                        fewer: done.fewer_copies,
                        objects: done.objects,
                        replicas: plan.replicas,
                    });
                }
            }
        }
        let removed = removed.unwrap_or_else(|error| {
            caveats.push(BenchCaveat::NotRemoved { error: error.to_string(), prefix: plan.prefix.clone() });
            None
        });
        let passes = passes.iter().map(|pass| {
            let gb = (pass.put.bytes + pass.get.bytes) as f64 / 1e9;
            let cpu = pass.cpu.as_secs_f64();
            StorePassReport {
                name: pass.name,
                seconds: pass.elapsed.as_secs_f64(),
                cpu_s: cpu,
                cpu_us_per_object: pass.cpu_per_object().map(|cpu| cpu.as_secs_f64() * 1e6),
                cpu_s_per_gb: (gb > 0.0).then(|| cpu / gb),
                put: OperationReport::new(pass, &pass.put),
                get: OperationReport::new(pass, &pass.get),
            }
        });
        StoreReport {
            schema: "mcctl.bench.store/1",
            master: master.to_owned(),
            prefix: plan.prefix.clone(),
            object_bytes: plan.sizes.clone(),
            objects: plan.objects,
            batch: plan.batch,
            clients: args.clients,
            replicas: plan.replicas,
            read_ratio: plan.read_ratio,
            zipf: plan.zipf,
            seed: plan.seed.0,
            verified: plan.verify,
            overfill: args.overfill,
            stopped,
            passes: passes.collect(),
            removed,
            caveats,
        }
    }

    /// Returns every pass with its operations and figures.
    fn figures(&self) -> impl Iterator<Item = (&StorePassReport, &'static str, &OperationReport)> {
        self.passes.iter().flat_map(move |pass| {
            [("put", &pass.put), ("get", &pass.get)]
                .into_iter()
                .filter_map(move |(what, figures)| Some((pass, what, figures.as_ref()?)))
        })
    }

    /// Returns the number of failed objects. Missing objects count as failed unless `--overfill` is set.
    fn failures(&self) -> u64 {
        let missing = |figures: &OperationReport| if self.overfill { 0 } else { figures.missing };
        self.figures().map(|(_, _, figures)| figures.failed + missing(figures)).sum()
    }

    /// Returns the exit code: 1 if objects failed or the run was stopped; 3 if nothing was transferred because the master or a node is
    /// unreachable.
    fn exit(&self) -> Exit {
        let figures = || self.figures().map(|(_, _, figures)| figures);
        let moved = figures().any(|figures| figures.objects > 0);
        let mut errors = figures().flat_map(|figures| figures.failures.keys()).peekable();
        let is_unreachable =
            !moved && errors.peek().is_some() && errors.all(|name| UNREACHABLE.contains(&name.as_str()));
        if is_unreachable {
            Exit::Unreachable
        } else if self.failures() > 0 || self.stopped {
            Exit::No
        } else {
            Exit::Done
        }
    }

    /// Renders the report, wrapped to `width` columns.
    fn text(&self, width: usize) -> String {
        let sizes: Vec<String> = self.object_bytes.iter().map(|bytes| ByteSize(*bytes).to_string()).collect();
        let mut whole = ReportSection::new("");
        whole.text.push(format!(
            "store at {}: {} objects of {}, {} per batch, {} client{} (seed {})",
            self.master,
            self.objects,
            sizes.join(", "),
            self.batch,
            self.clients,
            if self.clients == 1 { "" } else { "s" },
            self.seed,
        ));
        let mut moved = ReportTable::new(
            "",
            &["pass", "operation", "objects", "objects/s", "GB/s", "CPU us/object", "missing", "failed"],
        )
        .text_column(1);
        let head = ["pass", "operation", "count", "mean", "std", "min", "p50", "p90", "p95", "p99", "p99.9", "max"];
        let mut batches = ReportTable::new("Batch latency, ms", &head).text_column(1);
        for (pass, what, figures) in self.figures() {
            moved.row([
                pass.name.to_owned(),
                what.to_owned(),
                figures.objects.to_string(),
                format!("{:.0}", figures.objects_per_s),
                format!("{:.3}", figures.gb_per_s),
                pass.cpu_us_per_object.map_or("-".to_owned(), |cpu| format!("{cpu:.0}")),
                figures.missing.to_string(),
                figures.failed.to_string(),
            ]);
            if let Some(latency) = &figures.latency {
                let (ms, maybe) = (
                    |took: Duration| format!("{:.2}", took.as_secs_f64() * 1e3),
                    |took: Option<Duration>| {
                        took.map_or("too few".to_owned(), |took| format!("{:.2}", took.as_secs_f64() * 1e3))
                    },
                );
                batches.row([
                    pass.name.to_owned(),
                    what.to_owned(),
                    latency.count.to_string(),
                    ms(latency.mean),
                    ms(latency.deviation),
                    ms(latency.min),
                    ms(latency.p50),
                    maybe(latency.p90),
                    maybe(latency.p95),
                    maybe(latency.p99),
                    maybe(latency.p999),
                    ms(latency.max),
                ]);
            }
        }
        whole.tables = vec![moved, batches];
        let mut text = whole.render(width) + "\n";
        for (pass, what, figures) in self.figures() {
            for (name, failed) in &figures.failures {
                let line = format!("failed: {}: {what}: {} x {name}: {}", pass.name, failed.count, failed.first);
                text.push_str(&table::wrapped_line(&line, width));
            }
            if figures.missing > 0 && !self.overfill {
                let line = format!(
                    "failed: {}: {what}: {} objects not found: they were evicted or never stored (if the store is smaller than the data, \
                     use --overfill)",
                    pass.name, figures.missing
                );
                text.push_str(&table::wrapped_line(&line, width));
            }
        }
        text + &render_end(&self.caveats, &self.answer(), width)
    }

    /// Returns the report's conclusion: puts, gets, and what happened to the objects.
    fn answer(&self) -> Vec<String> {
        let line = |name: &'static str| {
            let figures: Vec<_> = self.figures().filter(|(_, what, _)| *what == name).collect();
            let objects: u64 = figures.iter().map(|(_, _, figures)| figures.objects).sum();
            let best = figures.iter().max_by(|a, b| a.2.gb_per_s.total_cmp(&b.2.gb_per_s))?;
            let p50 = best
                .2
                .latency
                .as_ref()
                .map_or("-".to_owned(), |latency| format!("{:.2} ms", latency.p50.as_secs_f64() * 1e3));
            Some(format!("{name}: {objects} objects, {:.3} GB/s, batch latency p50 {p50}", best.2.gb_per_s))
        };
        let mut answer: Vec<String> = ["put", "get"].into_iter().filter_map(line).collect();
        let verified: u64 = self.passes.iter().filter_map(|pass| Some(pass.get.as_ref()?.verified)).sum();
        let verified =
            if self.verified { format!("{verified} objects compared byte for byte, ") } else { String::new() };
        let failed = self.failures();
        answer.push(match self.removed {
            Some(removed) => format!("{verified}{failed} failed, {removed} removed"),
            None => format!("{verified}{failed} failed, objects kept under the prefix {}", self.prefix),
        });
        answer
    }
}
