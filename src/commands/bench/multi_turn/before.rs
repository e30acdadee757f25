//! A run that was written down (`--records`), compared with another one or with a server: before and after a change.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

use serde_json::Value;

use crate::commands::bench::multi_turn::Args;
use crate::commands::bench::multi_turn::arrange::{Arranged, What};
use crate::commands::bench::multi_turn::compared::{ComparisonReport, Named, Sides};
use crate::commands::bench::multi_turn::files::record::{Begins, Ends, Header, Line, SCHEMA};
use crate::commands::bench::multi_turn::leave::Leave;
use crate::commands::bench::multi_turn::measure::Measured;
use crate::commands::bench::multi_turn::report::Report;
use crate::commands::bench::multi_turn::watch::Watch;
use crate::commands::error::{Exit, Failure, Outcome};
use crate::engine::load::Seed;
use crate::engine::load::session::{Executed, Pass, PassId};

/// The longest line that is read.
const LINE_MAX: u64 = 1 << 20;

/// A run from its records.
struct Written {
    seed: u64,
    passes: Vec<Pass>,
}

/// Read the run at `path`, as that of the endpoint number `side`. Of a run of several endpoints it is the first one's.
fn read(path: &Path, side: usize) -> Result<Written, Failure> {
    let shown = path.display();
    let wrong = |line: usize, why: String| {
        Failure::usage(format!("{shown}, line {line}: {why}"))
            .next("give a file that --records has written, or http://HOST:PORT")
    };
    let file = std::fs::File::open(path)
        .map_err(|error| Failure::usage(format!("cannot read {shown}")).found(error.to_string()))?;
    let mut reader = BufReader::new(file);
    let (mut seed, mut first): (Option<u64>, Option<String>) = (None, None);
    // Passes by their number; whether they have ended.
    let mut passes: BTreeMap<u32, (Pass, bool)> = BTreeMap::new();
    for number in 1.. {
        let mut line = Vec::new();
        let read = reader.by_ref().take(LINE_MAX).read_until(b'\n', &mut line);
        let length = read.map_err(|error| Failure::host(format!("cannot read {shown}")).found(error.to_string()))?;
        if length == 0 {
            break;
        }
        let Ok(value) = serde_json::from_slice::<Value>(&line) else {
            // A run that was broken off may have half a line at its end.
            if number > 1 && !line.ends_with(b"\n") && (line.len() as u64) < LINE_MAX {
                break;
            }
            return Err(wrong(number, "it is no JSON".to_owned()));
        };
        let bad = |error: serde_json::Error| wrong(number, error.to_string());
        if number == 1 {
            let header: Header = serde_json::from_value(value).map_err(bad)?;
            if header.schema != SCHEMA {
                return Err(wrong(1, format!("its schema is {}, not {SCHEMA}", header.schema)));
            }
            seed = Some(header.run.seed);
        } else if let Some(begins) = value.get("begins") {
            let begins: Begins = serde_json::from_value(begins.clone()).map_err(bad)?;
            if *first.get_or_insert_with(|| begins.side.clone()) == begins.side {
                let side_name = ["A", "B"][side].to_owned();
                let id = PassId { side, side_name, name: begins.name, block: begins.block };
                passes.insert(begins.pass, (Pass::new(id), false));
            }
        } else if let Some(ends) = value.get("ends") {
            let ends: Ends = serde_json::from_value(ends.clone()).map_err(bad)?;
            if let Some((pass, ended)) = passes.get_mut(&ends.pass) {
                *ended = !ends.stopped;
                pass.ran.unfinished = ends.unfinished;
            }
        } else {
            let line: Line = serde_json::from_value(value).map_err(bad)?;
            if let Some((pass, _)) = passes.get_mut(&line.pass) {
                pass.add(&line.record(), true);
            }
        }
    }
    let Some(seed) = seed else { return Err(wrong(1, "it is empty".to_owned())) };
    let passes = passes.into_values().map(|(mut pass, ended)| {
        pass.ran.stopped = !ended;
        pass
    });
    Ok(Written { seed, passes: passes.collect() })
}

impl Args {
    /// Compare the run at `before` with `after`: another one, or a server under the same work as these flags have it.
    ///
    /// # Errors
    /// What the user has to know.
    pub(in crate::commands::bench) fn run_against(mut self, before: &str, after: &str) -> Outcome {
        let a = read(Path::new(before), 0)?;
        let named = |name: &str, target: &str| Named { name: name.to_owned(), target: target.to_owned() };
        let mut passes = a.passes;
        let mut doubts = Vec::new();
        let (leave, measured) = if after.contains("://") {
            if a.seed != self.load.seed {
                return Err(Failure::usage(format!("{before} was run with --seed {}", a.seed))
                    .next("give the flags of that run"));
            }
            self.endpoint.url = Some(after.to_owned());
            self.settle()?;
            self.look_over(true)?;
            self.ask_server()?;
            let Arranged { mut session, what: What::Run, doubts: more } = self.arranged()? else {
                return Err(Failure::usage("a run from a file is compared with one run")
                    .next("leave out --a-a, sweeps and presets of several"));
            };
            session.keep_figures = true;
            doubts.extend(more);
            let mut leave = Leave::open(&self, &self.work(&session))?;
            let measured = leave.carry_out(session, &mut Watch::new(&[]))?;
            (leave, measured)
        } else {
            let mut b = read(Path::new(after), 1)?;
            if a.seed != b.seed {
                return Err(Failure::no(format!(
                    "{before} was run with --seed {}, {after} with --seed {}",
                    a.seed, b.seed
                ))
                .next("compare runs of the same seed and flags"));
            }
            passes.append(&mut b.passes);
            let executed = Executed { passes: Vec::new(), broke: None, stopped: false };
            (Leave::open(&self, "")?, Measured { sides: Vec::new(), executed, signal: None, doubts: Vec::new() })
        };
        let mut report = Report::of(&self, leave.identity.clone(), &measured);
        report.doubts.extend(doubts);
        let bugs = measured.bugs();
        passes.extend(measured.executed.passes.into_iter().map(|mut pass| {
            (pass.id.side, pass.id.side_name) = (1, "B".to_owned());
            pass
        }));
        let sides = Sides { pair: [0, 1], floor: None };
        let seed = Seed(self.load.seed);
        let comparison =
            ComparisonReport::of(&self.compare, seed, &passes, sides, [named("A", before), named("B", after)]);
        let exit = match report.exit() {
            Exit::Done => comparison.exit(),
            other => other,
        };
        let exit = if bugs > 0 { Exit::Bug } else { exit };
        report.comparison = Some(comparison);
        leave.finish(&self, &report, exit)
    }
}
