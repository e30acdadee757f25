//! Compares a recorded run (`--records`) with another recorded run or with a live server, e.g. before and after a change.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

use serde_json::Value;

use crate::commands::bench::caveat::BenchCaveat;
use crate::commands::bench::measured::MeasuredServer;
use crate::commands::bench::multi_turn::Args;
use crate::commands::bench::multi_turn::comparison::{ComparisonReport, EndpointLabel};
use crate::commands::bench::multi_turn::execute::MeasuredRun;
use crate::commands::bench::multi_turn::files::record::{PassEnd, PassStart, RecordsHeader, RequestRecord, SCHEMA};
use crate::commands::bench::multi_turn::outputs::RunOutputs;
use crate::commands::bench::multi_turn::report::RunReport;
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

/// Reads the run at `path` as endpoint `side`. If the run has several endpoints, only the first is read.
fn read(path: &Path, side: usize) -> Result<RecordedRun, Failure> {
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
                let side_name = ["A", "B"][side].to_owned();
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

impl Args {
    /// Compares the recorded run at `before` with `after`: another recorded run, or the URL of a server that receives the same workload.
    ///
    /// # Errors
    /// The records cannot be read, or the run against `after` cannot start.
    pub(in crate::commands::bench) fn run_against(mut self, before: &str, after: &str) -> Outcome {
        let a = read(Path::new(before), 0)?;
        let label = |name: &str, target: &str| EndpointLabel { name: name.to_owned(), target: target.to_owned() };
        let mut passes = a.passes;
        let mut caveats = Vec::new();
        let mut system = None;
        let (outputs, measured) = if after.contains("://") {
            if a.seed != self.load.seed {
                return Err(Failure::usage(format!("{before} was recorded with --seed {}", a.seed))
                    .next("use the same flags as the recorded run"));
            }
            self.endpoint.url = Some(after.to_owned());
            self.resolve_flags()?;
            self.validate(true)?;
            self.query_server()?;
            let PlannedRun { mut session, kind: MeasurementKind::Single, caveats: more } = self.planned_run()? else {
                return Err(Failure::usage("a recorded run can only be compared with a single run")
                    .next("drop --self-compare, --preset kep74 and the sweep flags"));
            };
            session.keep_figures = true;
            caveats.extend(more.into_iter().map(BenchCaveat::Load));
            let mut outputs = RunOutputs::open(&self, &self.work_digest(&session))?;
            let mut found = self.measured_system(&session)?;
            found.servers.iter_mut().for_each(|server| server.label = "B".to_owned());
            found.servers.insert(0, MeasuredServer::recorded("A", before));
            system = Some(found);
            let measured = outputs.execute(session, &mut GoalTracker::new(&[]))?;
            (outputs, measured)
        } else {
            let mut b = read(Path::new(after), 1)?;
            if a.seed != b.seed {
                return Err(Failure::no(format!("the seeds differ: {before} has {}, {after} has {}", a.seed, b.seed))
                    .next("compare runs with the same seed and flags"));
            }
            passes.append(&mut b.passes);
            let executed = SessionResult { passes: Vec::new(), failed_step: None, stopped: false };
            (
                RunOutputs::open(&self, "")?,
                MeasuredRun { sides: Vec::new(), executed, signal: None, caveats: Vec::new() },
            )
        };
        let mut report = RunReport::of(&self, outputs.identity.clone(), &measured);
        report.measured = system;
        report.caveats.extend(caveats);
        let bugs = measured.executed.bugs();
        passes.extend(measured.executed.passes.into_iter().map(|mut pass| {
            (pass.id.side, pass.id.side_name) = (1, "B".to_owned());
            pass
        }));
        let sides = ComparedSides::of(2);
        let seed = Seed(self.load.seed);
        let comparison =
            ComparisonReport::of(&self.compare, seed, &passes, sides, [label("A", before), label("B", after)]);
        let exit = match report.exit() {
            Exit::Done => comparison.exit(),
            other => other,
        };
        let exit = if bugs > 0 { Exit::Bug } else { exit };
        report.comparison = Some(comparison);
        outputs.finish(&self, &report, exit)
    }
}
