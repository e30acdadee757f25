//! `mcctl bench multi-turn`: benchmarks an inference server with multi-turn conversations. It
//! supports the flags and defaults of SGLang's `bench_multiturn.py` and adds its own.

mod analysis;
pub mod args;
mod baseline;
mod comparison;
mod comparison_plan;
mod comparison_text;
#[cfg(test)]
mod dry_run;
pub(super) mod execute;
mod files;
mod goals;
pub(super) mod html;
mod kep74;
mod outputs;
mod plan;
pub(super) mod preflight;
pub mod preset;
pub(super) mod progress;
mod recorded_run;
mod report;
mod request_log;
mod resolve;
mod scenario;
mod sweep_report;
mod text;
mod validate;

use std::fmt;

use md5::{Digest, Md5};

use crate::commands::bench::caveat::BenchCaveat;
use crate::commands::bench::env;
use crate::commands::bench::measured::{MeasuredServer, MeasuredSystem, QueriedServer};
use crate::commands::bench::multi_turn::args::{
    Api, CompareArgs, EndpointArgs, GoalsArgs, LoadArgs, OutputArgs, PhasesArgs, ProfileArgs, RequestArgs, ServerArgs,
    SweepArgs, WorkloadArgs,
};
use crate::commands::bench::multi_turn::files::RecordedLoad;
use crate::commands::bench::multi_turn::files::record::RunDescription;
use crate::commands::bench::multi_turn::preset::PresetArgs;
use crate::commands::bench::serving::compat::CompatFlags;
use crate::commands::cli::confirm::ConfirmArgs;
use crate::commands::cli::error::{Failure, Outcome};
use crate::engine::env::wall_clock;
use crate::engine::load::goals::GoalTracker;
use crate::engine::load::plan::{MeasurementKind, PlannedRun};
use crate::engine::load::session::Session;

pub(in crate::commands::bench) use files::{OpenMode, open};
pub(in crate::commands::bench) use outputs::{RunOutputs, replace};
pub(in crate::commands::bench) use report::{Identity, RunReport, SeriesReport};

/// Returns whether `text` is the URL of a server. Otherwise, it is the path of a records file.
pub(super) fn is_url(text: &str) -> bool {
    text.contains("://")
}

/// Computes a digest of the text written to it.
struct DigestWriter(Md5);

impl DigestWriter {
    /// Returns the digest of everything that was written, in hexadecimal.
    fn hex(self) -> String {
        self.0.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

impl fmt::Write for DigestWriter {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0.update(text);
        Ok(())
    }
}

/// Multi-turn benchmark against an inference server.
#[derive(Clone, Debug, clap::Args)]
#[command(
    before_help = "url num-clients num-rounds request-length output-length request-rate max-parallel dataset-name dataset-path"
)]
#[command(
    before_long_help = "mcctl bench multi-turn --url http://127.0.0.1:30000 --num-clients 8 --num-rounds 4  # 8 conversations with 4 rounds each\n\
    mcctl bench multi-turn --dataset-name sharegpt --dataset-path chats.json --request-rate 4  # conversations from a file, 4 requests per second"
)]
#[command(
    args_override_self = true,
    mut_args(negative_numbers_are_values),
    after_help = "Latency counts from the scheduled send time, so a slow server cannot hide queueing (no coordinated omission).\n\
    Exit codes:\n\
    \x20 0   every request succeeded\n\
    \x20 1   requests failed or timed out, a signal ended the run, a phase failed, a goal was missed,\n\
    \x20     B is worse, or the comparison was rejected\n\
    \x20 2   invalid command line\n\
    \x20 3   an endpoint is unreachable, or no request to it succeeded\n\
    \x20 4   a file could not be written, or this host allows too few connections\n\
    \x20 70  a bug in mcctl\n\
    If the reader of stdout closes the pipe, the exit code is 0 and the output files are complete."
)]
pub struct Args {
    #[command(flatten)]
    pub(super) endpoint: EndpointArgs,
    #[command(flatten)]
    pub(super) workload: WorkloadArgs,
    #[command(flatten)]
    pub(super) load: LoadArgs,
    #[command(flatten)]
    pub(super) request: RequestArgs,
    #[command(flatten)]
    pub(super) phases: PhasesArgs,
    #[command(flatten)]
    pub(super) confirm: ConfirmArgs,
    #[command(flatten)]
    pub(super) server: ServerArgs,
    #[command(flatten)]
    pub(super) goals: GoalsArgs,
    #[command(flatten)]
    pub(super) compare: CompareArgs,
    #[command(flatten)]
    pub(super) sweep: SweepArgs,
    #[command(flatten)]
    pub(super) preset: PresetArgs,
    #[command(flatten)]
    pub(super) output: OutputArgs,
    #[command(flatten)]
    pub(super) profile: ProfileArgs,
    #[command(flatten)]
    pub(super) accepted: CompatFlags,
    /// Set by `bench serving`.
    #[arg(skip)]
    pub(super) serving: bool,
    /// Number of blocks of the recorded comparison whose other endpoint is measured.
    #[arg(skip)]
    pub(super) recorded_blocks: Option<u32>,
}

/// Makes `--request-rate -1` an invalid rate instead of an unknown flag `-1`.
pub(super) fn negative_numbers_are_values(arg: clap::Arg) -> clap::Arg {
    let takes = arg.get_action().takes_values();
    if takes { arg.allow_negative_numbers(true) } else { arg }
}

impl Args {
    /// Runs the benchmark and writes the report.
    ///
    /// # Errors
    /// The command line is invalid, an endpoint is unreachable, or a file cannot be written.
    pub fn run(mut self) -> Outcome {
        if let Some(b) = self.compare.against.take_if(|against| !is_url(against)) {
            return self.run_recorded(None, &b);
        }
        self.resolve_flags()?;
        if self.compare.against.is_some() {
            self.choose_seed()?;
        }
        self.validate(false)?;
        self.query_server()?;
        let (PlannedRun { session, kind, caveats }, plan) = self.planned_run()?;
        let mut tracker = GoalTracker::new(&self.goals.goodput);
        if matches!(kind, MeasurementKind::Sweep(_)) && !self.sweep.sweep_all && !self.goals.goodput.is_empty() {
            tracker.required_share = Some(self.goals.share_to_pass());
        }
        let system = self.measured_system(&session)?;
        let mut outputs = RunOutputs::open(&self, self.description(&session, &system.servers))?;
        let measured = outputs.execute(session, &mut tracker)?;
        let mut report = RunReport::of(&self, outputs.identity.clone(), &measured);
        report.caveats.extend(caveats.into_iter().map(BenchCaveat::Load));
        report.caveats.extend(system.differences().map(BenchCaveat::Load));
        report.measured = Some(system);
        report.serving = outputs.figures();
        self.analyse(&kind, &measured, &tracker, plan, &mut report);
        let exit = self.exit(&kind, &measured, &tracker, &report);
        outputs.finish(&self, &report, exit)
    }

    /// Sets a seed if the flags do not: that of the interrupted run, or a new one. With a new one,
    /// no prompt is in L3 from an earlier run.
    ///
    /// # Errors
    /// The records to resume from are invalid.
    fn choose_seed(&mut self) -> Result<(), Failure> {
        if self.load.seed.is_none() {
            let seed = match &self.output.resume {
                Some(path) => recorded_run::seed_of(path)?,
                None => u64::try_from(wall_clock(&env()).0 / 1000).unwrap_or(1),
            };
            self.load.seed = Some(seed);
        }
        Ok(())
    }

    /// Returns the description of the run at `servers` for a records file. It is empty if no
    /// records are read or written, because hashing a large dataset takes time.
    fn description(&self, session: &Session, servers: &[MeasuredServer]) -> RunDescription {
        if self.output.records.is_none() && self.output.resume.is_none() {
            return RunDescription::default();
        }
        let mut digest = DigestWriter(Md5::new());
        let mut flags = Args { output: OutputArgs::default(), confirm: ConfirmArgs::default(), ..self.clone() };
        // A random number does not change what the flags mean.
        flags.workload.sessions.run = 0;
        digest.0.update(format!("{} {flags:?}", env!("CARGO_PKG_VERSION")));
        for side in &session.sides {
            for script in side.workload.scripts() {
                digest.0.update(format!("{script:?}"));
            }
            side.workload.fingerprint(&mut digest).expect("writing to a digest cannot fail");
        }
        let load = RecordedLoad::of(self, session);
        RunDescription { work: digest.hex(), load: Some(load), servers: servers.to_vec() }
    }

    /// Queries the servers of `session` for their descriptions.
    pub(super) fn measured_system(&self, session: &Session) -> Result<MeasuredSystem, Failure> {
        let queried = session.sides.iter().map(|side| QueriedServer {
            label: &side.name,
            target: self.endpoint.base_of(&side.target),
            client: side.server.as_ref(),
        });
        MeasuredSystem::query(&queried.collect::<Vec<_>>())
    }

    /// Returns whether requests are sent at the times recorded in a trace. A sweep or a comparison
    /// ignores these times.
    fn follows_trace(&self) -> bool {
        let dataset = &self.workload.dataset;
        let ignores_times = self.compare.against.is_some() || self.compare.self_compare || self.sweep.sweep().is_some();
        dataset.dataset_name == Some(args::DatasetName::Mooncake) && !dataset.ignore_trace_timestamps && !ignores_times
    }

    /// Returns the workload name that `bench_serving` writes into its results.
    fn dataset(&self) -> String {
        let name = self.workload.dataset.dataset_name.and_then(|name| clap::ValueEnum::to_possible_value(&name));
        name.map_or("synthetic".to_owned(), |name| name.get_name().to_owned())
    }
}
