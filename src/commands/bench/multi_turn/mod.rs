//! `mcctl bench multi-turn`: conversations against an inference server. The flags and defaults are those of SGLang's
//! `bench_multiturn.py`, which has some of its own; ours are beside them.

pub mod args;
mod html;
mod measure;
mod report;
mod table;

use crate::commands::bench::multi_turn::args::{EndpointArgs, LoadArgs, OutputArgs, WorkloadArgs};
use crate::commands::error::{Exit, Failure, Outcome};
use crate::commands::output;
use crate::engine::env::{Env, RealEnv};
use crate::engine::load::Seed;
use crate::engine::load::session::{PassPlan, Session, Side, Step};
use crate::engine::load::workload::Workload;

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
    pub(super) output: OutputArgs,
}

impl Args {
    /// Measure.
    ///
    /// # Errors
    /// What the user has to know.
    pub fn run(self) -> Outcome {
        let identity = report::Identity::of_this_run(self.load.seed, RealEnv::new().unix());
        let session = self.session()?;
        let measured = measure::carry_out(session, Vec::new())?;
        let report = report::Report::of(&self, identity, &measured);
        if let Some(path) = &self.output.html {
            std::fs::write(path, html::page(&report))
                .map_err(|error| Failure::host(format!("cannot write {}", path.display())).found(error.to_string()))?;
        }
        match self.output.json.as_deref() {
            Some(path) if path.as_os_str() != "-" => {
                let text = serde_json::to_string(&report).expect("our own documents have only text keys");
                std::fs::write(path, text + "\n").map_err(|error| {
                    Failure::host(format!("cannot write {}", path.display())).found(error.to_string())
                })?;
                output::data(table::render(&report))?;
            }
            Some(_) => output::json(&report)?,
            None => output::data(table::render(&report))?,
        }
        let (well, failed) =
            report.passes.iter().fold((0, 0), |sum, pass| (sum.0 + pass.completed, sum.1 + pass.failed));
        Ok(match (well, failed) {
            (0, 1..) => Exit::Unreachable,
            (_, 1..) => Exit::No,
            _ => Exit::Done,
        })
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
        Ok(Session {
            sides: vec![Side::new("A", target, Box::new(workload))],
            schedule: [(0, Step::Pass(Box::new(run)))].into(),
            seed,
            keep_figures: false,
        })
    }
}
