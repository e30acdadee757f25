//! Compares a recorded run (`--records`) with another recorded run or with a live server, e.g.
//! before and after a change.

use std::path::Path;

use crate::commands::bench::caveat::BenchCaveat;
use crate::commands::bench::measured::{MeasuredServer, MeasuredSystem};
use crate::commands::bench::multi_turn::comparison::{ComparisonReport, EndpointLabel};
use crate::commands::bench::multi_turn::execute::MeasuredRun;
use crate::commands::bench::multi_turn::files::RecordedLoad;
use crate::commands::bench::multi_turn::files::record::RunDescription;
use crate::commands::bench::multi_turn::outputs::RunOutputs;
use crate::commands::bench::multi_turn::recorded_run::{self, RecordedRun};
use crate::commands::bench::multi_turn::report::RunReport;
use crate::commands::bench::multi_turn::{Args, is_url};
use crate::commands::cli::error::{Exit, Failure, Outcome};
use crate::engine::load::Seed;
use crate::engine::load::compare::ComparedSides;
use crate::engine::load::goals::GoalTracker;
use crate::engine::load::plan::{MeasurementKind, PlannedRun};
use crate::engine::load::session::{PassResult, SessionResult};

/// The result of measuring the endpoint that was not recorded.
struct LiveRun {
    outputs: RunOutputs,
    measured: MeasuredRun,
    servers: Vec<MeasuredServer>,
    caveats: Vec<BenchCaveat>,
    /// URL of the server.
    target: String,
}

impl LiveRun {
    /// Nothing is measured, because both runs are recorded.
    fn none(outputs: RunOutputs) -> LiveRun {
        let executed = SessionResult { passes: Vec::new(), failed_step: None, stopped: false };
        let measured =
            MeasuredRun { sides: Vec::new(), executed, has_session_trees: false, signal: None, caveats: Vec::new() };
        LiveRun { outputs, measured, servers: Vec::new(), caveats: Vec::new(), target: String::new() }
    }
}

impl Args {
    /// Compares runs of which at least one is recorded. `a`: the records of A; `None` if A is the
    /// server at `--url`. `b`: the records of B, or the URL of a server. A server receives the load
    /// of the recorded run.
    ///
    /// # Errors
    /// The records cannot be read, the loads differ, or the run at the server cannot start.
    pub(in crate::commands::bench) fn run_recorded(mut self, a: Option<&str>, b: &str) -> Outcome {
        self.check_labels()?;
        let [label_a, label_b] = self.compare.labels().map(str::to_owned);
        let recorded_b = (!is_url(b)).then_some(b);
        let read = |path: Option<&str>, side: usize, name: &str| {
            path.map(|path| recorded_run::read(Path::new(path), side, name)).transpose()
        };
        let run_a = read(a, 0, &label_a)?;
        let run_b = read(recorded_b, 1, &label_b)?;
        for (run, path) in [(&run_a, a.unwrap_or_default()), (&run_b, b)] {
            if let Some(run) = run {
                run.check_complete(path)?;
                self.output.check_not_written(path)?;
            }
        }
        let mut targets = [a.unwrap_or_default().to_owned(), b.to_owned()];
        let mut caveats = Vec::new();
        // The endpoint that is measured now, if any, and its run.
        let (live, run) = match (&run_a, &run_b) {
            (Some(run_a), Some(run_b)) => {
                check_same_load([a.unwrap_or_default(), b], [run_a, run_b], &mut caveats)?;
                self.take_seed(a.unwrap_or_default(), run_a.seed)?;
                (None, LiveRun::none(RunOutputs::open(&self, RunDescription::default())?))
            }
            (Some(run), None) => {
                self.endpoint.url = Some(b.to_owned());
                (Some(1), self.run_as(a.unwrap_or_default(), run, &label_b)?)
            }
            (None, Some(run)) => (Some(0), self.run_as(b, run, &label_a)?),
            (None, None) => return Err(Failure::usage("neither run is recorded")),
        };
        let seed = self.load.seed.unwrap_or_default();
        let LiveRun { outputs, measured, servers, caveats: of_run, target } = run;
        caveats.extend(of_run);
        if let Some(side) = live {
            targets[side] = target;
        }
        let recorded = |run: &Option<RecordedRun>, at: usize, label: &str| {
            let known = run.as_ref().and_then(|run| run.server.clone());
            let unknown = || MeasuredServer::recorded(label, &targets[at]);
            let server = known.map_or_else(unknown, |server| server.of_record(label, &targets[at]));
            run.is_some().then_some(server)
        };
        let first = recorded(&run_a, 0, &label_a);
        let second = recorded(&run_b, 1, &label_b);
        let system = MeasuredSystem::of(first.into_iter().chain(servers).chain(second).collect());
        caveats.extend(system.differences().map(BenchCaveat::Load));
        let mut report = RunReport::of(&self, outputs.identity.clone(), &measured);
        report.measured = Some(system);
        report.caveats.extend(caveats);
        let bugs = measured.executed.bugs();
        let mut passes: Vec<PassResult> = [run_a, run_b].into_iter().flatten().flat_map(|run| run.passes).collect();
        passes.extend(measured.executed.passes.into_iter().map(|mut pass| {
            pass.id.side = live.unwrap_or(0);
            pass
        }));
        let [target_a, target_b] = targets;
        let labels =
            [EndpointLabel { name: label_a, target: target_a }, EndpointLabel { name: label_b, target: target_b }];
        let comparison = ComparisonReport::of(&self.compare, Seed(seed), &passes, ComparedSides::of(2), labels, None);
        let exit = match report.exit() {
            Exit::Done => comparison.exit(),
            other => other,
        };
        let exit = if bugs > 0 { Exit::Bug } else { exit };
        report.comparison = Some(comparison);
        outputs.finish(&self, &report, exit)
    }

    /// Uses the seed of the run recorded at `path`.
    ///
    /// # Errors
    /// `--seed` has another value.
    fn take_seed(&mut self, path: &str, seed: u64) -> Result<(), Failure> {
        if self.load.seed.is_some_and(|given| given != seed) {
            return Err(other_flag(path, format!("--seed {seed}")));
        }
        self.load.seed = Some(seed);
        Ok(())
    }

    /// Uses the load of the run recorded at `path` for the flags that are not given.
    ///
    /// # Errors
    /// A flag has another value.
    fn take_load(&mut self, path: &str, load: &RecordedLoad) -> Result<(), Failure> {
        let rate = load.request_rate.unwrap_or(f64::INFINITY);
        if self.load.request_rate.is_some_and(|given| given != rate) {
            return Err(other_flag(path, format!("--request-rate {rate}")));
        }
        self.load.request_rate = Some(rate);
        if self.compare.blocks.is_some_and(|given| Some(given) != load.blocks) {
            let recorded = load.blocks.map_or("in one pass".to_owned(), |blocks| format!("with --blocks {blocks}"));
            return Err(Failure::usage(format!("{path} was recorded {recorded}")).next("drop --blocks"));
        }
        // A run that follows recorded times has one pass without blocks.
        self.recorded_blocks = load.blocks.or((!self.follows_trace()).then_some(1));
        if self.workload.dataset.dataset_name.is_none() {
            if self.workload.num_clients.is_some_and(|given| given != load.conversations) {
                return Err(other_flag(path, format!("--num-clients {}", load.conversations)));
            }
            self.workload.num_clients = Some(load.conversations);
        }
        Ok(())
    }

    /// Measures the server at `--url` as endpoint `label`, with the load of `recorded`, whose file
    /// is `path`.
    ///
    /// # Errors
    /// The flags describe another load, or the run cannot start.
    fn run_as(&mut self, path: &str, recorded: &RecordedRun, label: &str) -> Result<LiveRun, Failure> {
        self.take_seed(path, recorded.seed)?;
        let mut caveats = Vec::new();
        match &recorded.load {
            Some(load) => self.take_load(path, load)?,
            None => caveats.push(BenchCaveat::LoadNotRecorded { path: path.to_owned() }),
        }
        self.resolve_flags()?;
        self.validate(true)?;
        self.query_server()?;
        let (PlannedRun { mut session, kind, caveats: of_plan }, _) = self.planned_run()?;
        if !matches!(kind, MeasurementKind::Single | MeasurementKind::OneSide { .. }) {
            return Err(Failure::usage("a recorded run can only be compared with a single run")
                .next("drop --self-compare, --preset kep74 and the sweep flags"));
        }
        if let Some(load) = &recorded.load {
            let differences = load.differences(&RecordedLoad::of(self, &session));
            if !differences.is_empty() {
                return Err(Failure::no(format!("the load differs from that of {path}"))
                    .found(differences.join("; "))
                    .next("use the flags of the recorded run, or record it again"));
            }
        }
        session.keep_figures = true;
        let mut target = String::new();
        for endpoint in &mut session.sides {
            label.clone_into(&mut endpoint.name);
            target = endpoint.target.url();
        }
        caveats.extend(of_plan.into_iter().map(BenchCaveat::Load));
        let servers = self.measured_system(&session)?.servers;
        let mut outputs = RunOutputs::open(self, self.description(&session, &servers))?;
        let measured = outputs.execute(session, &mut GoalTracker::new(&[]))?;
        Ok(LiveRun { outputs, measured, servers, caveats, target })
    }
}

fn other_flag(path: &str, recorded: String) -> Failure {
    let flag = recorded.split(' ').next().unwrap_or_default().to_owned();
    Failure::usage(format!("{path} was recorded with {recorded}"))
        .next(format!("drop {flag}, and use the other flags of the recorded run"))
}

/// Checks that the runs recorded at `paths` had the same load.
///
/// # Errors
/// Both paths are the same file, or the seeds or loads differ.
fn check_same_load(paths: [&str; 2], runs: [&RecordedRun; 2], caveats: &mut Vec<BenchCaveat>) -> Result<(), Failure> {
    let [a, b] = paths;
    let canonical = paths.map(|path| std::fs::canonicalize(path).ok());
    if canonical[0].is_some() && canonical[0] == canonical[1] {
        return Err(Failure::usage(format!("A and B are the same file: {a}"))
            .next("compare two runs; --self-compare measures how much a server differs from itself"));
    }
    let [of_a, of_b] = runs;
    if of_a.seed != of_b.seed {
        return Err(Failure::no(format!("the seeds differ: {a} has {}, {b} has {}", of_a.seed, of_b.seed))
            .next("compare runs with the same seed and flags"));
    }
    match (&of_a.load, &of_b.load) {
        (Some(load_a), Some(load_b)) => {
            let differences = load_a.differences(load_b);
            if !differences.is_empty() {
                return Err(Failure::no(format!("{a} and {b} were recorded with different loads"))
                    .found(differences.join("; "))
                    .next("compare runs with the same seed and flags"));
            }
        }
        (None, _) => caveats.push(BenchCaveat::LoadNotRecorded { path: a.to_owned() }),
        (_, None) => caveats.push(BenchCaveat::LoadNotRecorded { path: b.to_owned() }),
    }
    Ok(())
}
