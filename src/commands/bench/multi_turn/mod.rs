//! `mcctl bench multi-turn`: conversations against an inference server. The flags and defaults are those of SGLang's
//! `bench_multiturn.py`, which has some of its own; ours are beside them.

pub mod args;
mod files;
mod html;
mod leave;
pub(super) mod live;
pub(super) mod measure;
mod report;
mod table;

use md5::{Digest, Md5};

use crate::commands::bench::multi_turn::args::{
    Api, EndpointArgs, LoadArgs, OutputArgs, PhasesArgs, ServerArgs, WorkloadArgs,
};
use crate::commands::error::{Failure, Outcome};
use crate::commands::output;
use crate::engine::load::Seed;
use crate::engine::load::session::{Observers, PassPlan, Session, Side};
use crate::engine::load::workload::Workload;

pub(in crate::commands::bench) use leave::Leave;
pub(in crate::commands::bench) use report::Report;

/// What to send, where, when.
#[derive(Clone, Debug, clap::Args)]
#[command(
    after_help = "Latency counts from the instant for which a request was planned, so that a server that falls behind cannot \
    hide it.\nExit codes: 0 every request went well, 1 some failed, 2 command line wrong, 3 none went well."
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
    pub(super) output: OutputArgs,
}

impl Args {
    /// Measure.
    ///
    /// # Errors
    /// What the user has to know.
    pub fn run(self) -> Outcome {
        let session = self.session()?;
        let mut leave = Leave::open(&self, &self.work(&session))?;
        let measured = leave.carry_out(session, &mut Observers(Vec::new()))?;
        let report = Report::of(&self, leave.identity.clone(), &measured);
        let exit = report.exit();
        leave.finish(&self, &report, exit)
    }

    fn session(&self) -> Result<Session, Failure> {
        let target = self.endpoint.target()?;
        let seed = Seed(self.load.seed);
        let workload = self.workload.workload(self.endpoint.api, seed)?;
        workload.notes().iter().for_each(output::say);
        let conversations = workload.scripts().len() as u32;
        let run = PassPlan {
            name: "run".to_owned(),
            block: 0,
            part: 0..conversations,
            pace: workload.pace(self.load.pace(conversations)),
            rules: self.load.rules(),
            duration: self.load.duration,
        };
        let server = self.server.server(&self.endpoint.base_of(&target), self.endpoint.bearer_of(&target), true)?;
        let mut side = Side::new("A", target, Box::new(workload));
        (side.server, side.vocabulary) = (server, self.workload.vocab_size);
        Ok(Session { sides: vec![side], schedule: self.phases.schedule(0, run)?, seed, keep_figures: false })
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

    /// The workload's name, as other programs' results have it.
    fn dataset(&self) -> String {
        let name = self.workload.dataset.dataset_name.and_then(|name| clap::ValueEnum::to_possible_value(&name));
        name.map_or("synthetic".to_owned(), |name| name.get_name().to_owned())
    }
}
