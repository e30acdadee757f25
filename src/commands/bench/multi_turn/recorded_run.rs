//! Reads the records of a whole run (`--records`), to compare it with another run.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

use serde_json::Value;

use crate::commands::bench::measured::MeasuredServer;
use crate::commands::bench::multi_turn::files::RecordedLoad;
use crate::commands::bench::multi_turn::files::record::{PassEnd, PassStart, RecordsHeader, RequestRecord, SCHEMA};
use crate::commands::cli::error::Failure;
use crate::engine::load::compare::SELF_COMPARE;
use crate::engine::load::session::{PassId, PassResult};

/// Maximum line length in bytes.
const LINE_MAX: u64 = 1 << 20;

/// A run loaded from its records file.
pub(super) struct RecordedRun {
    pub seed: u64,
    /// The load; `None` if an older version recorded the run.
    pub load: Option<RecordedLoad>,
    /// The server, if it was recorded.
    pub server: Option<MeasuredServer>,
    pub passes: Vec<PassResult>,
}

impl RecordedRun {
    /// Checks that there is something to compare.
    ///
    /// # Errors
    /// The run at `path` was interrupted before its first pass ended.
    pub(super) fn check_complete(&self, path: &str) -> Result<(), Failure> {
        if self.passes.iter().any(|pass| !pass.ran.stopped) {
            return Ok(());
        }
        Err(Failure::usage(format!("{path} has no complete pass"))
            .found("the recorded run ended early")
            .next("continue the run with --resume, or record it again"))
    }
}

/// Reads the run at `path` as endpoint `side` with this `name`. If the run has several endpoints,
/// only the first is read, without the passes that compare it with itself.
///
/// # Errors
/// The file cannot be read, or it is not a records file.
pub(super) fn read(path: &Path, side: usize, name: &str) -> Result<RecordedRun, Failure> {
    let shown = path.display();
    let wrong = |line: usize, reason: String| {
        Failure::usage(format!("{shown}, line {line}: {reason}"))
            .next("specify a file written with --records, or http://HOST:PORT")
    };
    let file = std::fs::File::open(path)
        .map_err(|error| Failure::usage(format!("cannot read {shown}")).found(error.to_string()))?;
    let mut reader = BufReader::new(file);
    let (mut header, mut first): (Option<RecordsHeader>, Option<String>) = (None, None);
    // Passes by number, each with a flag that indicates whether it is complete.
    let mut passes: BTreeMap<u32, (PassResult, bool)> = BTreeMap::new();
    let mut requests: BTreeMap<(u32, u32, u32), RequestRecord> = BTreeMap::new();
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
            let found: RecordsHeader = serde_json::from_value(value).map_err(bad)?;
            if found.schema != SCHEMA {
                return Err(wrong(1, format!("the schema is {}, not {SCHEMA}", found.schema)));
            }
            header = Some(found);
        } else if let Some(begins) = value.get("begins") {
            let begins: PassStart = serde_json::from_value(begins.clone()).map_err(bad)?;
            let is_first = *first.get_or_insert_with(|| begins.side.clone()) == begins.side;
            if is_first && !begins.name.starts_with(SELF_COMPARE) {
                let side_name = name.to_owned();
                let id = PassId { side, side_name, name: begins.name, block: begins.block };
                // A resumed run begins its pass again.
                passes.entry(begins.pass).or_insert_with(|| (PassResult::new(id), false));
            }
        } else if let Some(ends) = value.get("ends") {
            let ends: PassEnd = serde_json::from_value(ends.clone()).map_err(bad)?;
            if let Some((pass, ended)) = passes.get_mut(&ends.pass) {
                *ended = !ends.stopped;
                pass.ran.unfinished = ends.unfinished;
            }
        } else {
            let line: RequestRecord = serde_json::from_value(value).map_err(bad)?;
            // A resumed run may send a turn again: the last response counts.
            if passes.contains_key(&line.pass) {
                requests.insert((line.pass, line.conversation, line.turn), line);
            }
        }
    }
    let Some(header) = header else { return Err(wrong(1, "the file is empty".to_owned())) };
    for line in requests.values() {
        if let Some((pass, _)) = passes.get_mut(&line.pass) {
            pass.add(&line.record(), true);
        }
    }
    let passes = passes.into_values().map(|(mut pass, ended)| {
        pass.ran.stopped = !ended;
        pass
    });
    let described = header.described;
    let server = described.servers.into_iter().find(|server| first.as_ref() == Some(&server.label));
    Ok(RecordedRun { seed: header.run.seed, load: described.load, server, passes: passes.collect() })
}

/// Returns the seed of the run at `path`.
///
/// # Errors
/// The file is not a records file.
pub(super) fn seed_of(path: &Path) -> Result<u64, Failure> {
    read(path, 0, "A").map(|run| run.seed)
}
