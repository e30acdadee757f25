//! `mcctl bench multi-turn`: conversations against an inference server. The flags and defaults are those of SGLang's
//! `bench_multiturn.py`, which has some of its own; ours are beside them.

pub mod args;
mod arrange;
mod before;
mod compared;
#[cfg(test)]
mod dry;
mod files;
mod goals;
mod html;
mod kep74;
mod leave;
pub(super) mod live;
mod look;
pub(super) mod measure;
mod paced;
pub mod preset;
mod printed;
pub(super) mod reach;
mod report;
mod settle;
mod swept;
mod table;
mod unused;
mod watch;

use std::fmt;

use md5::{Digest, Md5};

use crate::commands::bench::multi_turn::args::{
    Api, CompareArgs, EndpointArgs, GoalsArgs, LoadArgs, OutputArgs, PhasesArgs, ProfileArgs, RequestArgs, ServerArgs,
    SweepArgs, WorkloadArgs,
};
use crate::commands::bench::multi_turn::arrange::{Arranged, What};
use crate::commands::bench::multi_turn::preset::PresetArgs;
use crate::commands::bench::multi_turn::watch::Watch;
use crate::commands::bench::serving::accepted::Accepted;
use crate::commands::confirm::ConfirmArgs;
use crate::commands::error::Outcome;
use crate::engine::load::session::Session;

pub(in crate::commands::bench) use files::{OpenManner, open};
pub(in crate::commands::bench) use leave::Leave;
pub(in crate::commands::bench) use report::{Report, SeriesReport};

/// A digest of what is written to it.
struct Digested(Md5);

impl fmt::Write for Digested {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0.update(text);
        Ok(())
    }
}

/// What to send, where, when.
#[derive(Clone, Debug, clap::Args)]
#[command(
    args_override_self = true,
    mut_args(negative_numbers_are_values),
    after_help = "Latency counts from the instant for which a request was planned, so that a server that falls behind cannot \
    hide it.\nExit codes: 0 every request went well, 1 some failed or were given up (or: a signal ended the run, \
    the caches could not be brought into the state that was asked for, a goal was missed, B is worse, the two cannot be \
    compared), 2 command line wrong, 3 nothing listens there or none went well at an endpoint, 4 a file could not be written, or this \
    host does not allow as many connections, 70 a bug in mcctl. Where the reader of stdout has gone away the code is 0: what the run came \
    to is in its files."
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
    pub(super) accepted: Accepted,
    /// Is this `bench serving`?
    #[arg(skip)]
    pub(super) serving: bool,
}

/// So that `--request-rate -1` is a wrong rate, and not an unknown flag `-1`.
pub(super) fn negative_numbers_are_values(arg: clap::Arg) -> clap::Arg {
    let takes = arg.get_action().takes_values();
    if takes { arg.allow_negative_numbers(true) } else { arg }
}

impl Args {
    /// Measure.
    ///
    /// # Errors
    /// What the user has to know.
    pub fn run(mut self) -> Outcome {
        self.settle()?;
        self.look_over(false)?;
        self.ask_server()?;
        let Arranged { session, what, doubts } = self.arranged()?;
        let mut watch = Watch::new(&self.goals.goodput);
        if matches!(what, What::Sweep(_)) && !self.sweep.sweep_all && !self.goals.goodput.is_empty() {
            watch.enough = Some(self.goals.share_to_pass());
        }
        let mut leave = Leave::open(&self, &self.work(&session))?;
        let measured = leave.carry_out(session, &mut watch)?;
        let mut report = Report::of(&self, leave.identity.clone(), &measured);
        report.doubts.extend(doubts);
        report.serving = leave.figures();
        self.look(&what, &measured, &watch, &mut report);
        let exit = self.exit(&what, &measured, &watch, &report);
        leave.finish(&self, &report, exit)
    }

    /// A digest of all that decides what is asked of whom; what is left of it does not count. Nothing where nobody wants to know: the
    /// words of a dataset may be many.
    fn work(&self, session: &Session) -> String {
        if self.output.records.is_none() && self.output.resume.is_none() {
            return String::new();
        }
        let mut digest = Digested(Md5::new());
        let flags = Args { output: OutputArgs::default(), confirm: ConfirmArgs::default(), ..self.clone() };
        digest.0.update(format!("{} {flags:?}", env!("CARGO_PKG_VERSION")));
        for side in &session.sides {
            for script in side.workload.scripts() {
                digest.0.update(format!("{script:?}"));
            }
            side.workload.fingerprint(&mut digest).expect("a digest takes all");
        }
        digest.0.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
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
