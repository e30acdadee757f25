//! Reads the requests in a trace file. Errors include the line number.

use std::fs::{File, Metadata};
use std::io::{BufRead, BufReader, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::commands::cli::error::Failure;
use crate::commands::cli::progress_bar::{WorkProgress, WorkUnit};
use crate::engine::plan::trace::{self, LINE_BYTES_MAX, TraceError, TraceRequest};

/// Whether `line` is the first line of a file written by `mcctl bench multi-turn --records`.
fn is_records(line: &str) -> bool {
    let head: Result<serde_json::Value, _> = serde_json::from_str(line);
    head.is_ok_and(|head| head["schema"].as_str().is_some_and(|schema| schema.starts_with("mcctl.bench.record/")))
}

/// Why a request in a trace is rejected.
#[derive(Debug, thiserror::Error)]
pub(super) enum LineError {
    #[error(transparent)]
    Trace(#[from] TraceError),
    #[error("too many distinct blocks")]
    TooManyBlocks,
    #[error("more than {0} requests")]
    TooManyRequests(usize),
}

/// Calls `take` with each request in the file at `path` and its line number.
///
/// # Errors
/// The file cannot be read or contains no requests, a line is invalid, or `take` rejects a request.
pub(super) fn each(
    path: &str,
    mut take: impl FnMut(u64, TraceRequest) -> Result<(), LineError>,
) -> Result<(), Failure> {
    let unreadable =
        |error: std::io::Error| Failure::usage("cannot read the trace").tried(path.to_owned()).found(error.to_string());
    let file = File::open(path).map_err(unreadable)?;
    let total = file.metadata().ok().filter(Metadata::is_file).map(|data| data.len());
    let read_bytes = Arc::new(AtomicU64::new(0));
    let counter = Arc::clone(&read_bytes);
    let _progress =
        WorkProgress::start("replaying the trace", WorkUnit::Bytes(total), move || counter.load(Ordering::Relaxed));
    let mut file = BufReader::new(file);
    let mut line = String::new();
    let mut number = 0u64;
    let mut any = false;
    loop {
        line.clear();
        number += 1;
        let wrong = |found: &str| {
            Failure::usage("invalid request in the trace").tried(format!("{path}, line {number}")).found(found)
        };
        if Read::by_ref(&mut file).take(LINE_BYTES_MAX + 1).read_line(&mut line).map_err(unreadable)? == 0 {
            if !any {
                return Err(Failure::usage("the trace contains no requests").tried(path.to_owned()));
            }
            return Ok(());
        }
        if line.len() as u64 > LINE_BYTES_MAX {
            return Err(wrong("the line is longer than 16 MiB"));
        }
        if number == 1 && is_records(&line) {
            return Err(Failure::usage("this is a `mcctl bench` record file, not a trace")
                .tried(format!("{path}, line 1"))
                .found("records contain prompt lengths and tiers, but not which prompts share a prefix")
                .next("pass the trace that the run replayed (its --dataset-path), with hash_ids on each line"));
        }
        let request = trace::request(&line).map_err(|error| {
            wrong(&error.to_string())
                .next("each line must be a JSON object with hash_ids, a list of numbers (Mooncake's format)")
        })?;
        if let Some(request) = request {
            any = true;
            take(number, request).map_err(|error| wrong(&error.to_string()))?;
        }
        read_bytes.fetch_add(line.len() as u64, Ordering::Relaxed);
    }
}
