//! `mcctl bench multi-turn`: conversations against an inference server. The flags and defaults are those of SGLang's
//! `bench_multiturn.py`, which has some of its own; ours are beside them.

pub mod args;
mod arrange;
mod before;
mod compared;
mod files;
mod goals;
mod html;
mod kep74;
mod leave;
pub(super) mod live;
mod look;
pub(super) mod measure;
pub mod preset;
mod report;
mod swept;
mod table;
mod watch;

use md5::{Digest, Md5};

use crate::commands::bench::multi_turn::args::{
    Api, CompareArgs, EndpointArgs, GoalsArgs, LoadArgs, OutputArgs, PhasesArgs, ServerArgs, SweepArgs, WorkloadArgs,
};
use crate::commands::bench::multi_turn::arrange::{Arranged, What};
use crate::commands::bench::multi_turn::preset::PresetArgs;
use crate::commands::bench::multi_turn::watch::Watch;
use crate::commands::error::Outcome;
use crate::engine::load::session::Session;

pub(in crate::commands::bench) use leave::Leave;
pub(in crate::commands::bench) use report::Report;

/// What to send, where, when.
#[derive(Clone, Debug, clap::Args)]
#[command(
    args_override_self = true,
    after_help = "Latency counts from the instant for which a request was planned, so that a server that falls behind cannot \
    hide it.\nExit codes: 0 every request went well, 1 some failed or were given up (or: \
    the caches could not be brought into the state that was asked for, a goal was missed, B is worse, the two cannot be \
    compared), 2 command line wrong, 3 none went well, 4 a file could not be written."
)]
pub struct Args {
    #[command(flatten)]
    pub(super) endpoint: EndpointArgs,
    #[command(flatten)]
    pub(super) workload: WorkloadArgs,
    #[command(flatten)]
    pub(super) load: LoadArgs,
    #[command(flatten)]
    pub(super) phases: PhasesArgs,
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
}

impl Args {
    /// Measure.
    ///
    /// # Errors
    /// What the user has to know.
    pub fn run(self) -> Outcome {
        let Arranged { session, what, doubts } = self.arranged()?;
        let mut watch = Watch::new(&self.goals.goodput);
        if matches!(what, What::Sweep(_)) && !self.sweep.sweep_all && !self.goals.goodput.is_empty() {
            watch.enough = Some(self.goals.share_to_pass());
        }
        let mut leave = Leave::open(&self, &self.work(&session))?;
        let measured = leave.carry_out(session, &mut watch)?;
        let mut report = Report::of(&self, leave.identity.clone(), &measured);
        report.doubts.extend(doubts);
        self.look(&what, &measured, &watch, &mut report);
        let exit = self.exit(&what, &measured, &watch, &report);
        leave.finish(&self, &report, exit)
    }

    /// A digest of all that decides what is asked of whom; what is left of it does not count.
    fn work(&self, session: &Session) -> String {
        let mut digest = Md5::new();
        let flags = Args { output: OutputArgs::default(), ..self.clone() };
        digest.update(format!("{} {flags:?}", env!("CARGO_PKG_VERSION")));
        for side in &session.sides {
            for script in side.workload.scripts() {
                digest.update(format!("{script:?}"));
            }
        }
        digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Do requests come at the times of a trace? In a sweep or a comparison they do not.
    fn follows_trace(&self) -> bool {
        let dataset = &self.workload.dataset;
        let together = self.compare.against.is_some() || self.compare.a_a || self.sweep.sweep().is_some();
        dataset.dataset_name == Some(args::Name::Mooncake) && !dataset.ignore_trace_timestamps && !together
    }

    /// The workload's name, as other programs' results have it.
    fn dataset(&self) -> String {
        let name = self.workload.dataset.dataset_name.and_then(|name| clap::ValueEnum::to_possible_value(&name));
        name.map_or("synthetic".to_owned(), |name| name.get_name().to_owned())
    }
}
