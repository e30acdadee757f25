//! `mcctl doctor`: finds problems with a host, the wheel and a running store, and suggests
//! remedies.

mod catalogue;
mod config;
mod document;
mod intent;
mod peer;
mod plan_file;
mod running;
mod table;

use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::FutureExt;

use crate::commands::cli::args::show_duration;
use crate::commands::cli::error::{Exit, Failure, Outcome};
use crate::commands::cli::output;
use crate::commands::cli::progress_bar::{WorkProgress, WorkUnit};
use crate::commands::cli::runtime::{self, Signals, StopSignal};
use crate::commands::target::connect::ConnectArgs;
use crate::commands::target::transport::TransportArgs;
use crate::engine::base::ByteSize;
use crate::engine::check::{Check, CheckReport, Severity};
use crate::engine::doctor::{self, Selection, cluster, host, peer as peers, wheel};
use crate::engine::env::{RealEnv, deadline};
use crate::engine::sys::FileTree;

/// Time limit for checks that only read files. An unresponsive file system must not block the other
/// checks.
const FILES_MAX: Duration = Duration::from_secs(5);

/// Time limit for the checks of the wheel, for which up to two interpreters run.
const WHEEL_MAX: Duration = Duration::from_secs(35);

/// Timeout with `--mr-test-size`: a fixed allowance for the devices, plus an allowance per MiB for
/// allocating and locking memory.
const MR_TEST_MAX: Duration = Duration::from_secs(30);
const MR_TEST_MIB_MAX: Duration = Duration::from_millis(4);

/// Flags of `mcctl doctor`.
#[derive(Debug, clap::Args)]
#[command(before_help = "master protocol only skip verbose fail-on list json")]
#[command(before_long_help = "mcctl doctor  # check this host, the wheel and the store at MOONCAKE_MASTER\n\
    mcctl doctor --master 10.0.0.1:50051 --protocol rdma  # check an RDMA deployment\n\
    mcctl doctor --list  # list all checks")]
#[command(
    after_help = "Groups: host (this machine), config (--file, this environment and running processes, with the mcctl lint rules), wheel (Mooncake's Python wheel: an interpreter imports it), cluster (a running master and its nodes), \
    serving (running SGLang servers: --sglang), peer (an RDMA engine on another host: --rdma-peer). --list shows all checks.\n\n\
    Writes: doctor changes nothing except with these probes:\n  \
      cluster    with --master or MOONCAKE_MASTER: one object of --probe-bytes per node, then four on one node, with keys mcctl-doctor-*; all are force-removed \
    afterward. Nothing is written to a master found at the default address 127.0.0.1:50051; pass --master to probe it.\n  \
      serving    with --probe-serving: two prompts per run; this empties the first server's L1 and L2 caches.\n  \
      peer       with --rdma-peer: zero-byte RDMA writes and one read per path.\n  \
      host       with --data-dir: a temporary file of up to 128 KiB, which is removed.\n\n\
    The peer for --rdma-peer is any Mooncake engine that uses rdma (mcctl serve store, a node, an SGLang server). If none is running yet, \
    mcctl bench transfer --mode target --protocol rdma --local-server-name HOST prints the name to pass.\n\n\
    Environment variables, the same as for Mooncake and SGLang: MC_*, MOONCAKE_*, SGLANG_*. A problem that affects only a deployment that was not requested is reported as info: \
    RDMA problems without --protocol rdma (or MOONCAKE_PROTOCOL=rdma, --rdma-peer, --mr-test-size), sizes without a plan, ports without --ports.\n\n\
    Exit codes: 0 no finding at or above --fail-on, 1 at least one, or every selected check was skipped, 2 invalid command line."
)]
pub struct Args {
    /// Run only these checks or groups [default: all]
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    only: Vec<String>,
    /// Skip these checks or groups
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    skip: Vec<String>,
    /// List the checks and exit
    #[arg(long, conflicts_with = "list_problems")]
    list: bool,
    /// List common deployment problems and the checks that detect them, then exit
    #[arg(long, alias = "problems")]
    list_problems: bool,
    /// Print one JSON document to stdout (schema mcctl.doctor/1)
    #[arg(long)]
    json: bool,
    /// Also list the checks that passed and what they observed
    #[arg(long, short)]
    verbose: bool,
    /// Exit with code 1 if a finding has at least this severity: warning or error
    #[arg(long, value_name = "SEVERITY", default_value = "warning")]
    fail_on: FailThreshold,
    /// Planned protocol: tcp or rdma [default: none; environment: MOONCAKE_PROTOCOL]
    #[arg(long, value_name = "PROTOCOL")]
    protocol: Option<intent::ProtocolName>,
    /// Planned sizes: a deployment file (.toml or .yaml), or a file with the output of mcctl
    /// size-hugepages --json; - reads stdin. With a deployment file, its ports, transport, data
    /// directory and settings are checked, too
    #[arg(long, value_name = "FILE")]
    plan: Option<PathBuf>,
    /// Host in the deployment file to check (in Kubernetes: the workload) [default: the host with
    /// an address of this machine]
    #[arg(long, value_name = "HOST", requires = "plan")]
    plan_host: Option<String>,
    /// Planned regular (non-hugepage) memory for all processes on this host, in bytes or with a kb,
    /// mb, gb or tb suffix (powers of 1024)
    #[arg(long, alias = "need-memory", value_name = "SIZE")]
    expect_memory: Option<ByteSize>,
    /// Planned huge page memory for all processes on this host, in bytes or with a kb, mb, gb or tb
    /// suffix (powers of 1024)
    #[arg(long, alias = "need-hugepages", value_name = "SIZE", conflicts_with = "plan")]
    expect_hugepages: Option<ByteSize>,
    /// Huge page size [default: 2mb; environment: MC_STORE_HUGEPAGE_SIZE]
    #[arg(long, value_name = "SIZE", conflicts_with = "plan")]
    hugepage_size: Option<ByteSize>,
    /// Size of the test memory region to register with each RDMA device, in bytes or with a kb, mb,
    /// gb or tb suffix (powers of 1024) [default: one page]
    #[arg(long, alias = "trial", value_name = "SIZE")]
    mr_test_size: Option<ByteSize>,
    /// Planned ports; a port already in use is an error [default: checks 50051, 9003, 8080, 8081,
    /// 9300]
    #[arg(long, value_name = "PORT,...", value_delimiter = ',', value_parser = clap::value_parser!(u16).range(1..))]
    ports: Option<Vec<u16>>,
    /// Planned data directory of the master: checks its disk and its contents, and times syncs of a
    /// temporary file [environment: MOONCAKE_SNAPSHOT_LOCAL_PATH, whose mcctl/ID is only read]
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// Cluster that the data directory must belong to [environment: MC_STORE_CLUSTER_ID]
    #[arg(long, value_name = "ID")]
    cluster_id: Option<String>,
    /// Planned number of keys, for the size of the data directory [default: 1000000]
    #[arg(long, value_name = "N")]
    expect_keys: Option<u64>,
    /// Interpreter or virtual environment that imports the wheel [default: that of VIRTUAL_ENV or
    /// CONDA_PREFIX, otherwise the first one on PATH]
    #[arg(long, value_name = "PATH")]
    python: Option<String>,
    /// Check another host: a directory with copies of its /sys, /proc, /etc and /dev
    #[arg(long, value_name = "DIR", default_value = "/", hide_default_value = true)]
    root: PathBuf,
    /// Files or directories of a single deployment to check against the lint rules; - reads stdin
    #[arg(long, value_name = "FILE|DIR", num_args = 1..)]
    file: Vec<String>,
    /// Processes to check with the same rules [default: all visible SGLang, Mooncake and mcctl
    /// processes]
    #[arg(long, value_name = "PID,...", value_delimiter = ',')]
    pid: Option<Vec<u32>>,
    #[command(flatten)]
    running: running::RunningArgs,
    #[command(flatten)]
    peer: peer::PeerArgs,
    #[command(flatten)]
    link: ConnectArgs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum FailThreshold {
    Warning,
    Error,
}

impl Args {
    /// Runs the checks and prints the report.
    ///
    /// # Errors
    /// The command line is invalid, an input cannot be read, or a signal stopped the checks.
    pub fn run(self) -> Outcome {
        let all = doctor::catalogue();
        let selection = Selection::parse(&self.only, &self.skip, &all).map_err(|unknown| {
            Failure::usage(unknown.to_string())
                .tried("--only and --skip")
                .next(format!("did you mean {}? --list shows all checks and groups", unknown.near.join(", ")))
        })?;
        if self.list {
            return catalogue::checks(&all, &selection, self.json);
        }
        if self.list_problems {
            return catalogue::problems(&all, self.json);
        }
        if selection.is_empty() {
            return Err(Failure::usage("no check is selected")
                .tried("--only and --skip")
                .next("--list shows all checks"));
        }
        let tree = FileTree::new(&self.root).map_err(|error| {
            let at = self.root.display();
            Failure::usage(format!("cannot read {at}"))
                .tried(format!("--root {at}"))
                .found(error.to_string())
                .next("pass a directory with copies of a host's /sys, /proc, /etc and /dev")
        })?;
        if tree.resolve("/proc").is_none() && tree.resolve("/sys").is_none() {
            let at = self.root.display();
            return Err(Failure::usage(format!("{at} has neither /proc nor /sys"))
                .tried(format!("--root {at}"))
                .next("pass a directory with copies of a host's /sys, /proc, /etc and /dev"));
        }
        let intent = intent::read(&self, &tree)?;
        let search = intent::search(self.python.as_deref());
        if let Some(python) = &search.python {
            intent::is_interpreter(&tree, python)?;
        }
        let config = config::read(&self, &tree)?;
        runtime::block_on(0, async {
            let done = Arc::new(AtomicU64::new(0));
            let counter = Arc::clone(&done);
            let total = all.iter().filter(|check| selection.includes(check)).count() as u64;
            let progress =
                WorkProgress::start("running the checks", WorkUnit::Items("checks", Some(total)), move || {
                    counter.load(Ordering::Relaxed)
                });
            let is_asked =
                self.only.iter().any(|name| cluster::CHECKS.iter().any(|c| c.id == name || c.group.word() == name));
            let word = |name| if name == intent::ProtocolName::Rdma { "rdma" } else { "tcp" };
            let protocol = self.protocol.map(|name| word(name).to_owned());
            let transport = TransportArgs { protocol, ..TransportArgs::default() };
            let queries = DoctorQueries {
                running: self.running.queries((&self.link, &transport), is_asked, &selection).await?,
                peer: self.peer.query(&self.link, &selection, tree.is_this_host()).await?,
            };
            let checks = run_checks(&tree, &intent, &search, &config, &queries, &selection, &done);
            let ((reports, peers), signal) = unless_stopped(&queries, checks).await?;
            drop(progress);
            let limit = match self.fail_on {
                FailThreshold::Warning => Severity::Warning,
                FailThreshold::Error => Severity::Error,
            };
            if self.json {
                output::json(&document::DoctorDocument::of(&reports, &peers))?;
            } else {
                output::data(format!("{}{}", peer::table(&peers), table::render(&reports, self.verbose, limit)))?;
            }
            if let Some(signal) = signal {
                return Err(Failure::interrupted(format!("{signal}: stopped before all checks had completed")));
            }
            let failed = reports.iter().filter_map(CheckReport::worst).any(|worst| worst >= limit);
            // A caller must not take skipped checks for passed ones.
            Ok(if failed || document::has_checked_nothing(&reports) { Exit::No } else { Exit::Done })
        })
    }
}

/// The queries for running services.
struct DoctorQueries {
    running: running::RunningQueries,
    peer: Result<peers::PeerQuery, doctor::Unavailable>,
}

impl DoctorQueries {
    /// Prevents further probes from starting.
    fn stop(&self) {
        self.running.stop();
        if let Ok(query) = &self.peer {
            query.stop.store(true, Ordering::Relaxed);
        }
    }
}

/// The reports, and the facts about the peers.
type CheckResults = (Vec<CheckReport>, peers::PeerFacts);

/// Runs `checks` until it completes or a signal arrives. After a signal, probe objects in the
/// cluster are still removed. Returns the results and the signal.
///
/// # Errors
/// A second signal arrived before the probe objects were removed.
async fn unless_stopped(
    queries: &DoctorQueries,
    checks: impl Future<Output = CheckResults>,
) -> Result<(CheckResults, Option<StopSignal>), Failure> {
    let mut signals = Signals::take_with_hangup()?;
    let mut checks = pin!(checks);
    let signal = tokio::select! {
        seen = &mut checks => return Ok((seen, None)),
        signal = signals.next() => signal,
    };
    queries.stop();
    output::say(format!("{signal}: removing probe objects from the store; send another signal to exit immediately"));
    tokio::select! {
        seen = &mut checks => Ok((seen, Some(signal))),
        _ = signals.next() => Err(Failure::interrupted(format!("{signal}: stopped before all checks had completed"))),
    }
}

/// Runs all groups concurrently. Counts the completed checks in `done`.
async fn run_checks(
    tree: &FileTree,
    intent: &host::Intent,
    search: &wheel::WheelSearch,
    config: &doctor::config::ConfigInputs,
    queries: &DoctorQueries,
    selection: &Selection,
    done: &AtomicU64,
) -> CheckResults {
    let count = |reports: &[CheckReport]| done.fetch_add(reports.len() as u64, Ordering::Relaxed);
    let host_max = intent.mr_test_size.map_or(FILES_MAX, |bytes| {
        let mib = u32::try_from(bytes >> 20).unwrap_or(u32::MAX);
        MR_TEST_MAX.saturating_add(MR_TEST_MIB_MAX.saturating_mul(mib))
    });
    let host = {
        let tree = tree.clone();
        let intent = intent.clone();
        let selection = selection.clone();
        move || host::run(&RealEnv::new(), &tree, &intent, &selection)
    };
    let wheel = {
        let tree = tree.clone();
        let search = search.clone();
        let selection = selection.clone();
        move || wheel::run(&RealEnv::new(), &tree, &search, &selection)
    };
    let config = doctor::config::run(&RealEnv::new(), config, selection);
    count(&config);
    let (host, wheel, running, (peer, facts)) = tokio::join!(
        files(host::checks(), selection, host_max, host).inspect(|reports| _ = count(reports)),
        files(wheel::checks(), selection, WHEEL_MAX, wheel).inspect(|reports| _ = count(reports)),
        running::run_checks(&queries.running, selection).inspect(|reports| _ = count(reports)),
        peer::run_checks(&queries.peer, selection).inspect(|(reports, _)| _ = count(reports))
    );
    let reports = [host, config, wheel, running, peer].concat();
    (reports.into_iter().map(CheckReport::masked).collect(), facts)
}

/// Runs `work`, which reads files and may block, for at most `limit`.
async fn files(
    checks: Vec<Check>,
    selection: &Selection,
    limit: Duration,
    work: impl FnOnce() -> Vec<CheckReport> + Send + 'static,
) -> Vec<CheckReport> {
    match deadline(&RealEnv::new(), limit, tokio::task::spawn_blocking(work)).await {
        Ok(done) => done.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic())),
        Err(_) => {
            let reason = format!("a file or device did not respond within {}", show_duration(limit));
            doctor::skipped(&checks, selection, &reason)
        }
    }
}
