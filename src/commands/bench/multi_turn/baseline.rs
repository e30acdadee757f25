//! Compares a recorded run (`--records`) with another recorded run or with a live server, e.g. before and after a change.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

use serde_json::Value;

use crate::commands::bench::caveat::BenchCaveat;
use crate::commands::bench::measured::MeasuredServer;
use crate::commands::bench::multi_turn::comparison::{ComparisonReport, EndpointLabel};
use crate::commands::bench::multi_turn::execute::MeasuredRun;
use crate::commands::bench::multi_turn::files::record::{PassEnd, PassStart, RecordsHeader, RequestRecord, SCHEMA};
use crate::commands::bench::multi_turn::outputs::RunOutputs;
use crate::commands::bench::multi_turn::report::RunReport;
use crate::commands::bench::multi_turn::{Args, is_url};
use crate::commands::error::{Exit, Failure, Outcome};
use crate::engine::load::Seed;
use crate::engine::load::compare::ComparedSides;
use crate::engine::load::goals::GoalTracker;
use crate::engine::load::plan::{MeasurementKind, PlannedRun};
use crate::engine::load::session::{PassId, PassResult, SessionResult};

/// Maximum line length in bytes.
const LINE_MAX: u64 = 1 << 20;

/// A run loaded from its records file.
struct RecordedRun {
    seed: u64,
    passes: Vec<PassResult>,
}

/// Reads the run at `path` as endpoint `side` with this `name`. If the run has several endpoints, only the first is read.
fn read(path: &Path, side: usize, name: &str) -> Result<RecordedRun, Failure> {
    let shown = path.display();
    let wrong = |line: usize, reason: String| {
        Failure::usage(format!("{shown}, line {line}: {reason}"))
            .next("specify a file written with --records, or http://HOST:PORT")
    };
    let file = std::fs::File::open(path)
        .map_err(|error| Failure::usage(format!("cannot read {shown}")).found(error.to_string()))?;
    let mut reader = BufReader::new(file);
    let (mut seed, mut first): (Option<u64>, Option<String>) = (None, None);
    // Passes by number, each with a flag that indicates whether it is complete.
    let mut passes: BTreeMap<u32, (PassResult, bool)> = BTreeMap::new();
    for number in 1.. {
        let mut line = Vec::new();
        let read = reader.by_ref().take(LINE_MAX).read_until(b'\n', &mut line);
        let length = read.map_err(|error| Failure::host(format!("cannot read {shown}")).found(error.to_string()))?;
        if length == 0 {
            break;
        }
        let Ok(value) = serde_json::from_slice::<Value>(&line) else {
            // An interrupted run may end with an incomplete line.
            if number > 1 && !line.ends_with(b"\n") && (line.len() as u64) < LINE_MAX {
                break;
            }
            return Err(wrong(number, "invalid JSON".to_owned()));
        };
        let bad = |error: serde_json::Error| wrong(number, error.to_string());
        if number == 1 {
            let header: RecordsHeader = serde_json::from_value(value).map_err(bad)?;
            if header.schema != SCHEMA {
                return Err(wrong(1, format!("the schema is {}, not {SCHEMA}", header.schema)));
            }
            seed = Some(header.run.seed);
        } else if let Some(begins) = value.get("begins") {
            let begins: PassStart = serde_json::from_value(begins.clone()).map_err(bad)?;
            if *first.get_or_insert_with(|| begins.side.clone()) == begins.side {
                let side_name = name.to_owned();
                let id = PassId { side, side_name, name: begins.name, block: begins.block };
                passes.insert(begins.pass, (PassResult::new(id), false));
            }
        } else if let Some(ends) = value.get("ends") {
            let ends: PassEnd = serde_json::from_value(ends.clone()).map_err(bad)?;
            if let Some((pass, ended)) = passes.get_mut(&ends.pass) {
                *ended = !ends.stopped;
                pass.ran.unfinished = ends.unfinished;
            }
        } else {
            let line: RequestRecord = serde_json::from_value(value).map_err(bad)?;
            if let Some((pass, _)) = passes.get_mut(&line.pass) {
                pass.add(&line.record(), true);
            }
        }
    }
    let Some(seed) = seed else { return Err(wrong(1, "the file is empty".to_owned())) };
    let passes = passes.into_values().map(|(mut pass, ended)| {
        pass.ran.stopped = !ended;
        pass
    });
    Ok(RecordedRun { seed, passes: passes.collect() })
}

/// Returns the seed of the run at `path`.
///
/// # Errors
/// The file is not a records file.
pub(super) fn seed_of(path: &Path) -> Result<u64, Failure> {
    read(path, 0, "A").map(|run| run.seed)
}

impl Args {
    /// Compares runs of which at least one is recorded. `a`: the records of A; `None` if A is the server at `--url`. `b`: the records of B, or
    /// the URL of a server. A server receives the workload of the recorded run.
    ///
    /// # Errors
    /// The records cannot be read, or the run at the server cannot start.
    pub(in crate::commands::bench) fn run_recorded(mut self, a: Option<&str>, b: &str) -> Outcome {
        self.check_labels()?;
        let [label_a, label_b] = self.compare.labels().map(str::to_owned);
        let recorded_b = (!is_url(b)).then_some(b);
        let read = |path: Option<&str>, side: usize, name: &str| {
            path.map(|path| read(Path::new(path), side, name)).transpose()
        };
        let (run_a, run_b) = (read(a, 0, &label_a)?, read(recorded_b, 1, &label_b)?);
        let (path, seed) = match (&run_a, &run_b) {
            (Some(run_a), Some(run_b)) if run_a.seed != run_b.seed => {
                let (path_a, of_a, of_b) = (a.unwrap_or_default(), run_a.seed, run_b.seed);
                return Err(Failure::no(format!("the seeds differ: {path_a} has {of_a}, {b} has {of_b}"))
                    .next("compare runs with the same seed and flags"));
            }
            (Some(run), _) => (a.unwrap_or_default(), run.seed),
            (None, Some(run)) => (b, run.seed),
            (None, None) => return Err(Failure::usage("neither run is recorded")),
        };
        if self.load.seed.is_some_and(|given| given != seed) {
            return Err(Failure::usage(format!("{path} was recorded with --seed {seed}"))
                .next("drop --seed, and use the other flags of the recorded run"));
        }
        self.load.seed = Some(seed);
        let mut passes: Vec<PassResult> = Vec::new();
        let mut caveats = Vec::new();
        let mut system = None;
        // The endpoint that is measured now, if any.
        let live = match (&run_a, &run_b) {
            (None, _) => Some(0),
            (_, None) => Some(1),
            _ => None,
        };
        let mut targets = [a.unwrap_or_default().to_owned(), b.to_owned()];
        let (outputs, measured) = if let Some(side) = live {
            if side == 1 {
                self.endpoint.url = Some(b.to_owned());
            }
            self.resolve_flags()?;
            self.validate(true)?;
            self.query_server()?;
            let (PlannedRun { mut session, kind: MeasurementKind::Single, caveats: more }, _) = self.planned_run()?
            else {
                return Err(Failure::usage("a recorded run can only be compared with a single run")
                    .next("drop --self-compare, --preset kep74 and the sweep flags"));
            };
            session.keep_figures = true;
            for endpoint in &mut session.sides {
                endpoint.name = [&label_a, &label_b][side].clone();
                targets[side] = endpoint.target.url();
            }
            caveats.extend(more.into_iter().map(BenchCaveat::Load));
            let mut outputs = RunOutputs::open(&self, &self.work_digest(&session))?;
            let mut found = self.measured_system(&session)?;
            let other = 1 - side;
            let recorded = MeasuredServer::recorded([&label_a, &label_b][other], &targets[other]);
            found.servers.iter_mut().for_each(|server| server.label = [&label_a, &label_b][side].clone());
            found.servers.insert(if other == 0 { 0 } else { found.servers.len() }, recorded);
            system = Some(found);
            let measured = outputs.execute(session, &mut GoalTracker::new(&[]))?;
            (outputs, measured)
        } else {
            let executed = SessionResult { passes: Vec::new(), failed_step: None, stopped: false };
            (
                RunOutputs::open(&self, "")?,
                MeasuredRun { sides: Vec::new(), executed, signal: None, caveats: Vec::new() },
            )
        };
        passes.extend([run_a, run_b].into_iter().flatten().flat_map(|run| run.passes));
        let mut report = RunReport::of(&self, outputs.identity.clone(), &measured);
        report.measured = system;
        report.caveats.extend(caveats);
        let bugs = measured.executed.bugs();
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
}
