//! The records of an interrupted run, read to go on from.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom};
use std::path::Path;

use serde::Deserialize;

use crate::commands::bench::multi_turn::files::record::{Header, Line, SCHEMA};
use crate::commands::error::Failure;
use crate::engine::load::session::Before;

/// The longest line that is read.
const LINE_MAX: u64 = 1 << 20;
/// Most requests of one file.
const REQUESTS_MAX: u64 = 1 << 22;
/// Most passes of one.
const PASSES_MAX: u32 = 100_000;

/// What there is to go on from.
#[derive(Debug, Default)]
pub(in crate::commands::bench) struct Resumed {
    /// Its passes, in order.
    pub passes: Vec<Before>,
    /// When the run that left them began.
    pub started: String,
    /// Requests in it.
    pub requests: u64,
}

impl Resumed {
    /// So many of its first passes are over.
    pub fn over(&self) -> u32 {
        self.passes.iter().take_while(|pass| pass.complete).count() as u32
    }
}

/// The passes' ends, as far as they matter here.
#[derive(Deserialize)]
struct End {
    pass: u32,
    unfinished: u64,
    stopped: bool,
}

#[derive(Deserialize)]
struct Other {
    ends: Option<End>,
}

/// Read the records at `path`, of a run with the digest `work`. A last line that was cut off is cut away from the file.
///
/// # Errors
/// It is no such file, or of another run.
pub(super) fn read(path: &Path, work: &str) -> Result<Resumed, Failure> {
    let cannot = |found: String| Failure::usage(format!("cannot go on from {}", path.display())).found(found);
    let file = File::options().read(true).write(true).open(path).map_err(|error| cannot(error.to_string()))?;
    if !file.metadata().is_ok_and(|metadata| metadata.is_file()) {
        return Err(cannot("it is no plain file".to_owned()));
    }
    let mut reader = BufReader::new(file);
    let mut resumed = Resumed::default();
    let (mut number, mut good) = (0_u64, 0_u64);
    loop {
        let mut line = Vec::new();
        let taken = reader.by_ref().take(LINE_MAX).read_until(b'\n', &mut line);
        let length = taken.map_err(|error| cannot(error.to_string()))? as u64;
        if line.last() != Some(&b'\n') {
            if length >= LINE_MAX {
                return Err(cannot(format!("line {} is longer than {LINE_MAX} bytes", number + 1)));
            }
            break;
        }
        number += 1;
        good += length;
        let wrong = |error: serde_json::Error| cannot(format!("line {number}: {error}"));
        if number == 1 {
            let header: Header = serde_json::from_slice(&line).map_err(wrong)?;
            if header.schema != SCHEMA {
                return Err(cannot(format!("it is {}, not {SCHEMA}", header.schema)));
            }
            if header.work != work {
                return Err(cannot(format!("it is of another measurement: {}", header.run.line()))
                    .next("give the same flags (those of the report may differ), the same data and the same mcctl"));
            }
            resumed.started = header.run.started;
            continue;
        }
        if let Ok(request) = serde_json::from_slice::<Line>(&line) {
            resumed.requests += 1;
            if resumed.requests > REQUESTS_MAX {
                return Err(cannot(format!("it has more than {REQUESTS_MAX} requests")));
            }
            if let Some(before) = pass(&mut resumed.passes, request.pass) {
                before.add(request.record());
            }
            continue;
        }
        let other: Other = serde_json::from_slice(&line).map_err(wrong)?;
        if let Some(end) = other.ends
            && let Some(before) = pass(&mut resumed.passes, end.pass)
        {
            before.complete = !end.stopped && end.unfinished == 0;
        }
    }
    if number == 0 {
        return Err(cannot("it has no whole line".to_owned()));
    }
    let mut file = reader.into_inner();
    let end = file.seek(SeekFrom::End(0)).map_err(|error| cannot(error.to_string()))?;
    if end > good {
        file.set_len(good).map_err(|error| cannot(error.to_string()))?;
    }
    Ok(resumed)
}

fn pass(passes: &mut Vec<Before>, number: u32) -> Option<&mut Before> {
    if number >= PASSES_MAX {
        return None;
    }
    let place = number as usize;
    if passes.len() <= place {
        passes.resize_with(place + 1, Before::default);
    }
    passes.get_mut(place)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reads(text: &str) -> Result<Resumed, Failure> {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("r");
        std::fs::write(&path, text).expect("room");
        let read = read(&path, "w");
        if read.is_ok() {
            assert!(std::fs::read_to_string(&path).expect("there").ends_with('\n'));
        }
        read
    }

    const HEAD: &str = r#"{"schema":"mcctl.bench.record/1","run":{"version":"1","command":["mcctl"],"started":"s","processors":1,"seed":1},"work":"w"}"#;

    #[test]
    fn a_cut_last_line_is_cut_away_and_ends_are_known() {
        let text = format!(
            "{HEAD}\n{{\"begins\":{{}}}}\n{{\"ends\":{{\"pass\":0,\"unfinished\":0,\"stopped\":false}}}}\n\
             {{\"ends\":{{\"pass\":1,\"unfinished\":0,\"stopped\":true}}}}\n{{\"pass\":1,\"sid"
        );
        let resumed = reads(&text).expect("it is one");
        assert_eq!(resumed.passes.iter().map(|pass| pass.complete).collect::<Vec<_>>(), [true, false]);
    }

    #[test]
    fn what_is_no_records_file_or_of_another_run_is_refused() {
        let other = HEAD.replace("\"work\":\"w\"", "\"work\":\"v\"") + "\n";
        for bad in ["", "x", "{}\n", "[1]\n", &other, &format!("{HEAD}\nnonsense\n")] {
            assert!(reads(bad).is_err_and(|failure| failure.exit.code() == 2), "{bad}");
        }
        assert!(read(Path::new("/nonexistent"), "w").is_err());
        assert!(read(Path::new("/dev/zero"), "w").is_err());
    }
}
