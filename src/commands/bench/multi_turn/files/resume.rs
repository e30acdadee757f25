//! Reads the records of an interrupted run, for `--resume`.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom};
use std::path::Path;

use serde::Deserialize;

use crate::commands::bench::multi_turn::files::record::{RecordsHeader, RequestRecord, SCHEMA};
use crate::commands::cli::error::Failure;
use crate::engine::load::session::PreviousPass;

/// Maximum line length in bytes.
const LINE_MAX: u64 = 1 << 20;
/// Maximum number of requests in a file.
const REQUESTS_MAX: u64 = 1 << 22;
/// Maximum number of passes in a file.
const PASSES_MAX: u32 = 100_000;

#[derive(Debug, Default)]
pub(in crate::commands::bench) struct ResumedRun {
    pub passes: Vec<PreviousPass>,
    /// When the interrupted run started.
    pub started: String,
    pub requests: u64,
}

impl ResumedRun {
    /// Returns how many passes at the beginning of the run are complete.
    pub(crate) fn completed_passes(&self) -> u32 {
        self.passes.iter().take_while(|pass| pass.complete).count() as u32
    }
}

/// The fields needed from the line at the end of a pass.
#[derive(Deserialize)]
struct PassEndLine {
    pass: u32,
    unfinished: u64,
    stopped: bool,
}

#[derive(Deserialize)]
struct OtherLine {
    ends: Option<PassEndLine>,
}

/// Reads the records at `path`, whose run must have the digest `work`. Removes an incomplete last
/// line from the file.
///
/// # Errors
/// The file is not a records file, or it belongs to another run.
pub(super) fn read(path: &Path, work: &str) -> Result<ResumedRun, Failure> {
    let cannot = |found: String| Failure::usage(format!("cannot resume from {}", path.display())).found(found);
    let file = File::options().read(true).write(true).open(path).map_err(|error| cannot(error.to_string()))?;
    if !file.metadata().is_ok_and(|metadata| metadata.is_file()) {
        return Err(cannot("not a regular file".to_owned()));
    }
    let mut reader = BufReader::new(file);
    let mut resumed = ResumedRun::default();
    let mut number = 0_u64;
    let mut good = 0_u64;
    loop {
        let mut line = Vec::new();
        let read = reader.by_ref().take(LINE_MAX).read_until(b'\n', &mut line);
        let length = read.map_err(|error| cannot(error.to_string()))? as u64;
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
            let header: RecordsHeader = serde_json::from_slice(&line).map_err(wrong)?;
            if header.schema != SCHEMA {
                return Err(cannot(format!("the schema is {}, not {SCHEMA}", header.schema)));
            }
            if header.described.work != work {
                return Err(cannot(format!("the records belong to another run: {}", header.run.line()))
                    .next("use the same flags (report flags may differ), the same data and the same mcctl version"));
            }
            resumed.started = header.run.started;
            continue;
        }
        if let Ok(request) = serde_json::from_slice::<RequestRecord>(&line) {
            resumed.requests += 1;
            if resumed.requests > REQUESTS_MAX {
                return Err(cannot(format!("the file contains more than {REQUESTS_MAX} requests")));
            }
            if let Some(before) = pass(&mut resumed.passes, request.pass) {
                before.add(request.record());
            }
            continue;
        }
        let other: OtherLine = serde_json::from_slice(&line).map_err(wrong)?;
        if let Some(end) = other.ends
            && let Some(before) = pass(&mut resumed.passes, end.pass)
        {
            before.complete = !end.stopped && end.unfinished == 0;
        }
    }
    if number == 0 {
        return Err(cannot("the file contains no complete line".to_owned()));
    }
    let mut file = reader.into_inner();
    let end = file.seek(SeekFrom::End(0)).map_err(|error| cannot(error.to_string()))?;
    if end > good {
        file.set_len(good).map_err(|error| cannot(error.to_string()))?;
    }
    Ok(resumed)
}

fn pass(passes: &mut Vec<PreviousPass>, number: u32) -> Option<&mut PreviousPass> {
    if number >= PASSES_MAX {
        return None;
    }
    let index = number as usize;
    if passes.len() <= index {
        passes.resize_with(index + 1, PreviousPass::default);
    }
    passes.get_mut(index)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reads(text: &str) -> Result<ResumedRun, Failure> {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("r");
        std::fs::write(&path, text).expect("room");
        let read = read(&path, "w");
        if read.is_ok() {
            assert!(std::fs::read_to_string(&path).expect("a file").ends_with('\n'));
        }
        read
    }

    const HEAD: &str = r#"{"schema":"mcctl.bench.record/1","run":{"version":"1","command":["mcctl"],"started":"s","processors":1,"seed":1},"work":"w"}"#;

    #[test]
    fn an_incomplete_last_line_is_removed() {
        let text = format!(
            "{HEAD}\n{{\"begins\":{{}}}}\n{{\"ends\":{{\"pass\":0,\"unfinished\":0,\"stopped\":false}}}}\n\
             {{\"ends\":{{\"pass\":1,\"unfinished\":0,\"stopped\":true}}}}\n{{\"pass\":1,\"sid"
        );
        let resumed = reads(&text).expect("valid records");
        assert_eq!(resumed.passes.iter().map(|pass| pass.complete).collect::<Vec<_>>(), [true, false]);
    }

    #[test]
    fn other_files_and_other_runs_are_refused() {
        let other = HEAD.replace("\"work\":\"w\"", "\"work\":\"v\"") + "\n";
        for bad in ["", "x", "{}\n", "[1]\n", &other, &format!("{HEAD}\nnonsense\n")] {
            assert!(reads(bad).is_err_and(|failure| failure.exit.code() == 2), "{bad}");
        }
        assert!(read(Path::new("/nonexistent"), "w").is_err());
        assert!(read(Path::new("/dev/zero"), "w").is_err());
    }
}
