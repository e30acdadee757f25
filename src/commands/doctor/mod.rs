//! `mcctl doctor`: what is wrong with a host, the wheel, a running store, and what to do about it. Only looks.

mod catalogue;
mod config;
mod document;
mod intent;
mod peer;
mod running;
mod table;

use std::path::PathBuf;
use std::pin::pin;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::commands::args::show_duration;
use crate::commands::error::{Exit, Failure, Outcome};
use crate::commands::output;
use crate::commands::runtime::{self, Signals};
use crate::commands::store::connect::ConnectArgs;
use crate::commands::transport::TransportArgs;
use crate::engine::base::ByteSize;
use crate::engine::check::{Check, Report, Severity};
use crate::engine::doctor::{self, Selection, cluster, host, peer as peers, wheel};
use crate::engine::env::{RealEnv, deadline};
use crate::engine::sys::FileTree;

/// What reads files only has this long; a folder on a file system that is gone must not keep everything waiting.
const FILES_MAX: Duration = Duration::from_secs(5);

/// With `--trial` the devices may take their time, and so may making and locking each MiB of its memory.
const TRIAL_MAX: Duration = Duration::from_secs(30);
const TRIAL_MIB_MAX: Duration = Duration::from_millis(4);

/// What to look at, what to say.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Groups: host (this machine), config (--file, this environment, running processes, by the rules of mcctl lint), wheel (Mooncake's Python wheel and its libraries), cluster (a running master and its nodes: \
    looked at when --master or MOONCAKE_MASTER names one), serving (running SGLang servers: --sglang), peer (another host's engine over RDMA: --rdma-peer). --list names all checks.\n\
    The other end of --rdma-peer is any Mooncake engine that moves its bytes over rdma (mcctl serve store, a node, a SGLang server); where none \
    runs yet: mcctl bench transfer --mode target --protocol rdma --local-server-name HOST prints the name to give.\n\
    Read from the environment, as Mooncake and SGLang do: MC_*, MOONCAKE_*, SGLANG_*. A finding is no worse than what was asked for: \
    without --protocol rdma (or MOONCAKE_PROTOCOL=rdma, --rdma-peer or --trial), a plan or --ports, what only such a deployment would miss is info.\n\
    Exit codes: 0 nothing as bad as --fail-on, 1 something is, 2 the command line is wrong."
)]
pub struct Args {
    /// Only these checks or groups [default: all]
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    only: Vec<String>,
    /// Not these checks or groups
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    skip: Vec<String>,
    /// List the checks, and do none
    #[arg(long, conflicts_with = "problems")]
    list: bool,
    /// List the problems that operators meet, each with what recognises it, and do no check
    #[arg(long, alias = "list-problems")]
    problems: bool,
    /// One JSON document on stdout (schema mcctl.doctor/1)
    #[arg(long)]
    json: bool,
    /// List the checks that passed, too, with what they saw
    #[arg(long, short)]
    verbose: bool,
    /// End with 1 when something is as bad as this: warning or error
    #[arg(long, value_name = "SEVERITY", default_value = "warning")]
    fail_on: FailOn,
    /// What moves the bytes: tcp or rdma [default: not said; environment: MOONCAKE_PROTOCOL]
    #[arg(long, value_name = "PROTOCOL")]
    protocol: Option<intent::ProtocolName>,
    /// What is planned: the answer of mcctl size-hugepages --json, - for stdin
    #[arg(long, value_name = "FILE")]
    plan: Option<PathBuf>,
    /// Ordinary memory that the processes of this host will take in all, bytes or with kb, mb, gb, tb (powers of 1024)
    #[arg(long, alias = "expect-memory", value_name = "SIZE")]
    need_memory: Option<ByteSize>,
    /// Huge pages that they will take in all, as bytes
    #[arg(long, alias = "expect-hugepages", value_name = "SIZE", conflicts_with = "plan")]
    need_hugepages: Option<ByteSize>,
    /// Bytes of a huge page [default: 2mb; environment: MC_STORE_HUGEPAGE_SIZE]
    #[arg(long, value_name = "SIZE", conflicts_with = "plan")]
    hugepage_size: Option<ByteSize>,
    /// Register so much memory, beside a page, with each RDMA device for a trial: bytes or with kb, mb, gb, tb (powers of 1024)
    /// [default: the page only]
    #[arg(long, alias = "mr-test-size", value_name = "SIZE")]
    trial: Option<ByteSize>,
    /// Ports that services shall listen on: taken ones are errors then [default: looks at 50051, 9003, 8080, 8081, 9300]
    #[arg(long, value_name = "PORT,...", value_delimiter = ',', value_parser = clap::value_parser!(u16).range(1..))]
    ports: Option<Vec<u16>>,
    /// The interpreter, or the virtual environment, whose packages have the wheel [default: those on PATH, VIRTUAL_ENV, CONDA_PREFIX,
    /// PYTHONPATH]
    #[arg(long, value_name = "PATH")]
    python: Option<String>,
    /// Look at another host: a folder with copies of its /sys, /proc, /etc and /dev
    #[arg(long, value_name = "DIR", default_value = "/", hide_default_value = true)]
    root: PathBuf,
    /// Files of one deployment, or folders of them, to check with the rules of mcctl lint; - is stdin
    #[arg(long, value_name = "FILE|DIR", num_args = 1..)]
    file: Vec<String>,
    /// Processes to hold to the same rules [default: all of SGLang, Mooncake and mcctl that can be seen]
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
enum FailOn {
    Warning,
    Error,
}

impl Args {
    /// Look, and say it.
    ///
    /// # Errors
    /// What the user has to know.
    pub fn run(self) -> Outcome {
        let all = doctor::catalogue();
        let selection = Selection::parse(&self.only, &self.skip, &all).map_err(|unknown| {
            Failure::usage(unknown.to_string())
                .tried("--only and --skip")
                .next(format!("did you mean {}? --list names all", unknown.near.join(", ")))
        })?;
        if self.list {
            return catalogue::checks(&all, &selection, self.json);
        }
        if self.problems {
            return catalogue::problems(&all, self.json);
        }
        if selection.is_empty() {
            return Err(Failure::usage("no check is left to do").tried("--only and --skip").next("--list names all"));
        }
        let tree = FileTree::new(&self.root).map_err(|error| {
            let at = self.root.display();
            Failure::usage(format!("cannot look into {at}"))
                .tried(format!("--root {at}"))
                .found(error.to_string())
                .next("name a folder that has copies of /sys, /proc, /etc and /dev of a host")
        })?;
        if tree.resolve("/proc").is_none() && tree.resolve("/sys").is_none() {
            let at = self.root.display();
            return Err(Failure::usage(format!("{at} has neither /proc nor /sys"))
                .tried(format!("--root {at}"))
                .next("name a folder that has copies of /sys, /proc, /etc and /dev of a host"));
        }
        let intent = intent::read(&self)?;
        let places = intent::places(self.python.as_deref(), tree.is_this_host());
        if let Some(python) = &places.python {
            intent::is_interpreter(&tree, python)?;
        }
        let config = config::read(&self, &tree)?;
        runtime::block_on(0, async {
            let is_asked =
                self.only.iter().any(|name| cluster::CHECKS.iter().any(|c| c.id == name || c.group.word() == name));
            let word = |name| if name == intent::ProtocolName::Rdma { "rdma" } else { "tcp" };
            let protocol = self.protocol.map(|name| word(name).to_owned());
            let link = self.link.over(&TransportArgs { protocol, ..TransportArgs::default() });
            let questions = Questions {
                running: self.running.questions(&link, is_asked, &selection).await?,
                peer: self.peer.question(&self.link, &selection, tree.is_this_host()).await?,
            };
            let looking = look(&tree, &intent, &places, &config, &questions, &selection);
            let ((reports, peers), signal) = unless_stopped(&questions, looking).await?;
            if self.json {
                output::json(&document::Document::of(&reports, &peers))?;
            } else {
                output::data(format!("{}{}", peer::table(&peers), table::render(&reports, self.verbose)))?;
            }
            if let Some(signal) = signal {
                return Err(Failure::no(format!("{signal}: stopped before all was looked at")));
            }
            let limit = match self.fail_on {
                FailOn::Warning => Severity::Warning,
                FailOn::Error => Severity::Error,
            };
            let failed = reports.iter().filter_map(Report::worst).any(|worst| worst >= limit);
            Ok(if failed { Exit::No } else { Exit::Done })
        })
    }
}

/// What is asked of running things.
struct Questions {
    running: running::Questions,
    peer: Result<peers::Question, String>,
}

impl Questions {
    /// Begin nothing more.
    fn stop(&self) {
        self.running.stop();
        if let Ok(question) = &self.peer {
            question.stop.store(true, Ordering::Relaxed);
        }
    }
}

/// What the checks said, and what was seen of peers.
type Seen = (Vec<Report>, peers::Facts);

/// What `looking` finds, and the signal that cut it short, if one did: then what was put into the cluster is removed before the end.
///
/// # Errors
/// A second signal, which does not wait for that.
async fn unless_stopped(
    questions: &Questions,
    looking: impl Future<Output = Seen>,
) -> Result<(Seen, Option<&'static str>), Failure> {
    let mut signals = Signals::take_with_hangup()?;
    let mut looking = pin!(looking);
    let signal = tokio::select! {
        seen = &mut looking => return Ok((seen, None)),
        signal = signals.next() => signal,
    };
    questions.stop();
    output::say(format!("{signal}: what was put into the store is taken out again; once more to leave it there"));
    tokio::select! {
        seen = &mut looking => Ok((seen, Some(signal))),
        _ = signals.next() => Err(Failure::no(format!("{signal}: stopped before all was looked at"))),
    }
}

/// All groups at once.
async fn look(
    tree: &FileTree,
    intent: &host::Intent,
    places: &wheel::Places,
    config: &doctor::config::Question,
    questions: &Questions,
    selection: &Selection,
) -> Seen {
    let host_max = intent.trial.map_or(FILES_MAX, |bytes| {
        let mib = u32::try_from(bytes >> 20).unwrap_or(u32::MAX);
        TRIAL_MAX.saturating_add(TRIAL_MIB_MAX.saturating_mul(mib))
    });
    let host = {
        let (tree, intent, selection) = (tree.clone(), intent.clone(), selection.clone());
        move || host::run(&RealEnv::new(), &tree, &intent, &selection)
    };
    let wheel = {
        let (tree, places, selection) = (tree.clone(), places.clone(), selection.clone());
        move || wheel::run(&RealEnv::new(), &tree, &places, &selection)
    };
    let config = doctor::config::run(&RealEnv::new(), config, selection);
    let (host, wheel, running, (peer, facts)) = tokio::join!(
        files(host::checks(), selection, host_max, host),
        files(wheel::checks(), selection, FILES_MAX, wheel),
        running::look(&questions.running, selection),
        peer::look(&questions.peer, selection)
    );
    ([host, config, wheel, running, peer].concat(), facts)
}

/// Do `work`, which reads files and may be kept waiting by one, for no longer than `limit`.
async fn files(
    checks: Vec<Check>,
    selection: &Selection,
    limit: Duration,
    work: impl FnOnce() -> Vec<Report> + Send + 'static,
) -> Vec<Report> {
    match deadline(&RealEnv::new(), limit, tokio::task::spawn_blocking(work)).await {
        Ok(done) => done.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic())),
        Err(_) => {
            let reason =
                format!("a file could not be read, or a device did not answer, within {}", show_duration(limit));
            doctor::skipped(&checks, selection, &reason)
        }
    }
}
