//! `mcctl bench store`: objects in and out of a cluster, any Mooncake master's.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;

use crate::commands::args::{self, show_duration};
use crate::commands::bench::sheet::{Section, Sheet};
use crate::commands::error::{Exit, Failure, Outcome};
use crate::commands::output;
use crate::commands::runtime::{self, Signals};
use crate::commands::serve::node::NodePlan;
use crate::commands::store::link::{self, LinkArgs, LinkPlan, UsedMetadata};
use crate::commands::target::Master;
use crate::commands::transport::{self, TransportArgs};
use crate::engine::base::ByteSize;
use crate::engine::bench::store::{self as bench, Done, Pass, Plan, PlanError, Stop};
use crate::engine::env::{Env, RealEnv, processors};
use crate::engine::load::{Seed, Summary};
use crate::engine::store::{Node, NodeError, StoreClient, StoreError};
use crate::engine::sys::host;

/// What is stored and read, and how.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "An object that is not there when it is read is a failure: evicted, or never stored. With --overfill, which is for stores \
    smaller than what is put, it is counted, and no failure. An object that got fewer copies than --replicas, since too few nodes had \
    room, is counted and a reason for doubt.\n\
    Exit codes: 0 all went well, 1 objects failed or were missing, or a signal ended it (what ran is reported), 2 command line wrong, \
    3 the master does not answer or no node can be reached, 4 this host lacks the memory."
)]
pub struct Args {
    /// Bytes of an object; several, separated by ',', are taken in turn
    #[arg(long, visible_alias = "value-size", value_name = "SIZE,..", default_value = "1mb", value_delimiter = ',')]
    object_size: Vec<ByteSize>,
    /// Objects of a batch
    #[arg(long, visible_alias = "batch-size", value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=4096))]
    batch: u32,
    /// Clients at once, each with a connection of its own to the master
    #[arg(long, visible_alias = "threads", value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024))]
    clients: u32,
    /// Objects that are put, and then read
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..=100_000_000))]
    objects: u32,
    /// Read for so long [default: until as many objects were read as were put]
    #[arg(long, value_name = "TIME", value_parser = args::limit)]
    duration: Option<Duration>,
    /// Share of batches that are reads once all is put; the others put further objects
    #[arg(long, value_name = "SHARE", default_value_t = 1.0)]
    read_ratio: f64,
    /// Read popular objects more often: popularity falls with the rank to the power of ALPHA [default: all in turn]
    #[arg(long, value_name = "ALPHA")]
    zipf: Option<f64>,
    /// Compare every byte that is read (CPU figures then include that; latencies do not)
    #[arg(long)]
    verify: bool,
    /// Copies of each object
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=64))]
    replicas: u64,
    /// The store is to be overfilled: objects that are no longer there when they are read are counted, and no failure
    #[arg(long)]
    overfill: bool,
    /// Leave the objects in the store
    #[arg(long)]
    keep: bool,
    /// Where all choices come from
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// One JSON document on stdout
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    link: LinkArgs,
    #[command(flatten)]
    transport: TransportArgs,
}

/// Batches below which a median says little.
const BATCHES_MIN: u64 = 30;
/// Errors of a node or master that cannot be reached.
const AWAY: [&str; 3] = ["TRANSFER_FAIL", "RPC_FAIL", "RPC_TIMEOUT"];

impl Args {
    /// Measure.
    ///
    /// # Errors
    /// What the user has to know.
    pub fn run(self) -> Outcome {
        let env = RealEnv::new();
        let plan = self.plan(&format!("mcctl-bench-{:016x}-", env.rng()))?;
        self.check_memory(&plan)?;
        // Tasks wait more than they work: bytes are moved by the transfer engine's threads.
        runtime::block_on(processors().max(2), async {
            let mut signals = Signals::take()?;
            let start = async {
                let (master, plan) = self.link.over(&self.transport).planned().await?;
                let LinkPlan { node: node_plan, config, metadata, note, .. } = plan;
                let client_config = config.client.clone();
                let began = env.now();
                match Node::start(config, env.clone()).await {
                    Ok(node) => Ok((master, client_config, metadata, note, node)),
                    Err(error) => Err(unstarted(&master, &node_plan, &metadata, error, env.now().since(began)).await),
                }
            };
            let (master, client_config, metadata, note, node) = tokio::select! {
                started = start => started?,
                signal = signals.next() => return Err(Failure::no(format!("{signal}: stopped before it was ready"))),
            };
            note.iter().for_each(output::say);
            let mut clients = Vec::new();
            for _ in 0..self.clients {
                let engine = node.client().engine().clone();
                match StoreClient::connect(client_config.clone(), env.clone(), engine, None).await {
                    Ok(client) => clients.push(client),
                    Err(error) => {
                        runtime::stop_in_time("the client", node.stop()).await;
                        return Err(Failure::unreachable(format!("cannot connect client {}", clients.len() + 1))
                            .tried(format!("master {} ({})", master.at, master.origin))
                            .found(error.to_string()));
                    }
                }
            }
            let told = self.measure(&node, clients, &plan, &mut signals, (&master, &metadata)).await;
            runtime::stop_in_time("the client", node.stop()).await;
            told
        })
    }

    fn plan(&self, prefix: &str) -> Result<Plan, Failure> {
        let plan = Plan {
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
                PlanError::TooLarge { .. } => "lower --object-size or --batch",
                PlanError::Zipf(_) => "give --zipf 0.99, for example",
                PlanError::Ratio(_) => "give --read-ratio 0.9, for example",
                PlanError::Nothing(_) => "give --object-size 1mb, for example",
            };
            Failure::usage(error.to_string()).next(next)
        })?;
        Ok(plan)
    }

    /// Each client has room for a batch out and a batch in.
    fn check_memory(&self, plan: &Plan) -> Result<(), Failure> {
        let wanted = plan.batch_bytes().saturating_mul(2).saturating_mul(u64::from(self.clients));
        let available = host::memory().map_or(u64::MAX, |memory| memory.available);
        if wanted > available {
            return Err(Failure::host(format!("{} of memory are wanted", ByteSize(wanted)))
                .tried("take memory for a batch out and a batch in, for each client")
                .found(format!("{} are available", ByteSize(available)))
                .next("lower --object-size, --batch or --clients"));
        }
        Ok(())
    }

    async fn measure(
        &self,
        node: &Node<RealEnv>,
        clients: Vec<StoreClient<RealEnv>>,
        plan: &Plan,
        signals: &mut Signals,
        (master, metadata): (&Master, &UsedMetadata),
    ) -> Outcome {
        let at = master.at.to_string();
        let stop = Stop::default();
        let mut running = tokio::spawn(bench::run(RealEnv::new(), clients, plan.clone(), stop.clone()));
        let mut stopped = None;
        let passes = loop {
            tokio::select! {
                passes = &mut running => break passes.unwrap_or_else(|bug| std::panic::resume_unwind(bug.into_panic())),
                signal = signals.next() => {
                    if stopped.is_some() {
                        running.abort();
                        return Err(Failure::no(format!("{signal}: stopped without a report; its objects are left"))
                            .next(format!("mcctl store rm --force --regex '{}' --master {at}", plan.every_key())));
                    }
                    output::say(format!("{signal}: the batches under way end, then the report comes"));
                    stop.stop();
                    stopped = Some(signal);
                }
            }
        };
        let passes = passes.map_err(|error| {
            transport::failure(&error, "registering the clients' memory")
                .unwrap_or_else(|| Failure::host(error.to_string()))
        })?;
        let ours = plan.every_key();
        let left = match self.keep {
            true => Ok(None),
            false => tokio::select! {
                gone = node.client().remove_by_regex(&ours, true) => gone.map(Some),
                signal = signals.next() => {
                    output::say(format!("{signal}: its objects may be left"));
                    Ok(None)
                }
            },
        };
        if stopped.is_none()
            && let Some(failure) = unreachable(master, metadata, &passes).await
        {
            return Err(failure);
        }
        let report = Report::new(self, plan, &at, &passes, stopped.is_some(), left);
        if self.json {
            output::json(&report)?;
        } else {
            output::data(report.text())?;
        }
        Ok(report.exit())
    }
}

/// Why nothing could be stored, where that is because no node could be reached: there is nothing to report then.
async fn unreachable(master: &Master, metadata: &UsedMetadata, passes: &[Pass]) -> Option<Failure> {
    let [Pass { put, .. }] = passes else { return None };
    if put.objects > 0 || put.taken > 0 {
        return None;
    }
    let error = put.failed.values().find_map(|failed| failed.error.as_ref())?;
    let failure = link::explained(master, metadata, "put objects", error).await;
    (failure.exit == Exit::Unreachable).then_some(failure)
}

/// The client did not start within `took`.
async fn unstarted(
    master: &Master,
    plan: &NodePlan,
    metadata: &UsedMetadata,
    error: NodeError,
    took: Duration,
) -> Failure {
    let is_master = matches!(error, NodeError::Master(_));
    let mut failure = link::unstarted(master, plan, metadata, error).await;
    if is_master && failure.exit == Exit::Unreachable {
        let limits = master.timeouts();
        let found = failure.found.take().unwrap_or_default();
        failure.found = Some(format!(
            "{found}, after {} (at most {} for a connection, {} for an answer: --timeout)",
            show_duration(took),
            show_duration(limits.connect),
            show_duration(limits.call)
        ));
    }
    failure
}

/// The document.
#[derive(Debug, Serialize)]
struct Report {
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
    /// Were objects to be missing?
    overfill: bool,
    stopped: bool,
    passes: Vec<PassReport>,
    /// Objects that were removed at the end; none: they are left, or nobody knows.
    removed: Option<i64>,
    doubts: Vec<String>,
}

#[derive(Debug, Serialize)]
struct PassReport {
    name: &'static str,
    seconds: f64,
    cpu_s: f64,
    cpu_us_per_object: Option<f64>,
    cpu_s_per_gb: Option<f64>,
    put: Option<Figures>,
    get: Option<Figures>,
}

#[derive(Debug, Serialize)]
struct Figures {
    batches: u64,
    objects: u64,
    bytes: u64,
    objects_per_s: f64,
    gb_per_s: f64,
    /// Of a whole batch.
    latency: Option<Summary>,
    missing: u64,
    already_there: u64,
    /// Objects that got fewer copies than were asked for.
    fewer_copies: u64,
    verified: u64,
    failed: u64,
    failures: BTreeMap<String, FailureReport>,
}

#[derive(Debug, Serialize)]
struct FailureReport {
    count: u64,
    first: String,
}

impl Figures {
    fn new(pass: &Pass, done: &Done) -> Option<Figures> {
        let failed = done.failures();
        let any = done.objects + done.missing + done.taken + failed;
        (any > 0).then(|| Figures {
            batches: done.batches,
            objects: done.objects,
            bytes: done.bytes,
            objects_per_s: pass.per_second(done.objects),
            gb_per_s: pass.per_second(done.bytes) / 1e9,
            latency: done.latency.summary(),
            missing: done.missing,
            already_there: done.taken,
            fewer_copies: done.fewer_copies,
            verified: done.verified,
            failed,
            failures: done
                .failed
                .iter()
                .map(|(name, failed)| {
                    (name.clone(), FailureReport { count: failed.count, first: failed.first.clone() })
                })
                .collect(),
        })
    }
}

impl Report {
    fn new(
        args: &Args,
        plan: &Plan,
        master: &str,
        passes: &[Pass],
        stopped: bool,
        left: Result<Option<i64>, StoreError>,
    ) -> Report {
        let mut doubts = Vec::new();
        if stopped {
            doubts.push("a signal ended it before its time: the figures are those of what ran".to_owned());
        }
        for pass in passes {
            for (what, done) in [("put", &pass.put), ("get", &pass.get)] {
                let latencies = done.latency.count();
                if latencies > 0 && latencies < BATCHES_MIN {
                    doubts.push(format!(
                        "{}: {latencies} batches of {what}, too few for a latency: raise --objects or --duration, or lower --batch",
                        pass.name
                    ));
                }
                if done.missing > 0 && args.overfill {
                    doubts.push(format!(
                        "{}: {} objects were not there to be read; the figures are of those that were",
                        pass.name, done.missing
                    ));
                }
                if done.fewer_copies > 0 {
                    doubts.push(format!(
                        "{}: {} of {} objects got fewer copies than --replicas {}: there were not enough nodes with room for them",
                        pass.name, done.fewer_copies, done.objects, plan.replicas
                    ));
                }
            }
        }
        let removed = left.unwrap_or_else(|error| {
            doubts.push(format!("its objects are left in the store: {error}"));
            None
        });
        let passes = passes.iter().map(|pass| {
            let gb = (pass.put.bytes + pass.get.bytes) as f64 / 1e9;
            let cpu = pass.cpu.as_secs_f64();
            PassReport {
                name: pass.name,
                seconds: pass.elapsed.as_secs_f64(),
                cpu_s: cpu,
                cpu_us_per_object: pass.cpu_per_object().map(|cpu| cpu.as_secs_f64() * 1e6),
                cpu_s_per_gb: (gb > 0.0).then(|| cpu / gb),
                put: Figures::new(pass, &pass.put),
                get: Figures::new(pass, &pass.get),
            }
        });
        Report {
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
            doubts,
        }
    }

    /// Everything that was measured: the pass, the kind of work, and what came of it.
    fn figures(&self) -> impl Iterator<Item = (&PassReport, &'static str, &Figures)> {
        self.passes.iter().flat_map(move |pass| {
            [("put", &pass.put), ("get", &pass.get)]
                .into_iter()
                .filter_map(move |(what, figures)| Some((pass, what, figures.as_ref()?)))
        })
    }

    /// Objects that failed, those that were not there among them unless that was to be so.
    fn failures(&self) -> u64 {
        let missing = |figures: &Figures| if self.overfill { 0 } else { figures.missing };
        self.figures().map(|(_, _, figures)| figures.failed + missing(figures)).sum()
    }

    /// How the run ends: 1 where anything failed, or not all of it was done; 3 where no byte was moved, since a node or the master
    /// could not be reached.
    fn exit(&self) -> Exit {
        let figures = || self.figures().map(|(_, _, figures)| figures);
        let moved = figures().any(|figures| figures.objects > 0);
        let mut errors = figures().flat_map(|figures| figures.failures.keys()).peekable();
        let is_away = !moved && errors.peek().is_some() && errors.all(|name| AWAY.contains(&name.as_str()));
        if is_away {
            Exit::Unreachable
        } else if self.failures() > 0 || self.stopped {
            Exit::No
        } else {
            Exit::Done
        }
    }

    /// The report for people.
    fn text(&self) -> String {
        let sizes: Vec<String> = self.object_bytes.iter().map(|bytes| ByteSize(*bytes).to_string()).collect();
        let mut whole = Section::new("");
        whole.text.push(format!(
            "store at {}: {} objects of {}, {} a batch, {} client{} (seed {})",
            self.master,
            self.objects,
            sizes.join(", "),
            self.batch,
            self.clients,
            if self.clients == 1 { "" } else { "s" },
            self.seed,
        ));
        let mut moved =
            Sheet::new("", &["pass", "what", "objects", "objects/s", "GB/s", "CPU us/object", "missing", "failed"])
                .words(1);
        let head = ["a batch, ms", "what", "count", "mean", "std", "min", "p50", "p90", "p95", "p99", "p99.9", "max"];
        let mut batches = Sheet::new("", &head).words(1);
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
        whole.sheets = vec![moved, batches];
        let mut text = whole.text() + "\n";
        for (pass, what, figures) in self.figures() {
            for (name, failed) in &figures.failures {
                text.push_str(&format!("failed: {}: {what}: {} x {name}: {}\n", pass.name, failed.count, failed.first));
            }
            if figures.missing > 0 && !self.overfill {
                text.push_str(&format!(
                    "failed: {}: {what}: {} objects were not there: the store has evicted them, or never got them (a store that is \
                     smaller than what is put takes --overfill)\n",
                    pass.name, figures.missing
                ));
            }
        }
        if self.verified {
            let verified: u64 = self.passes.iter().filter_map(|pass| Some(pass.get.as_ref()?.verified)).sum();
            text.push_str(&format!("{verified} objects compared byte for byte\n"));
        }
        for doubt in &self.doubts {
            text.push_str(&format!("doubt: {doubt}\n"));
        }
        match self.removed {
            Some(removed) => text.push_str(&format!("{removed} objects removed again\n")),
            None => text.push_str(&format!("its objects are left: {}...\n", self.prefix)),
        }
        text
    }
}
