//! A trace's requests, one after the other, with the line that is wrong named.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};

use crate::commands::error::Failure;
use crate::engine::plan::trace::{self, LINE_BYTES_MAX, Request};

/// Is `line` the first one of the file that `mcctl bench multi-turn --records` writes?
fn is_records(line: &str) -> bool {
    let head: Result<serde_json::Value, _> = serde_json::from_str(line);
    head.is_ok_and(|head| head["schema"].as_str().is_some_and(|schema| schema.starts_with("mcctl.bench.record/")))
}

/// Hand each request of the file at `path` to `take`, with its line's number.
///
/// # Errors
/// The file cannot be read or has no request, a line is no request, or `take` says what is wrong with it.
pub fn each(path: &str, mut take: impl FnMut(u64, Request) -> Result<(), String>) -> Result<(), Failure> {
    let unreadable = |error: std::io::Error| {
        Failure::usage("the trace cannot be read").tried(path.to_owned()).found(error.to_string())
    };
    let mut file = BufReader::new(File::open(path).map_err(unreadable)?);
    let (mut line, mut number, mut any) = (String::new(), 0u64, false);
    loop {
        line.clear();
        number += 1;
        let wrong = |found: &str| {
            Failure::usage("a line of the trace is no request").tried(format!("{path}, line {number}")).found(found)
        };
        if Read::by_ref(&mut file).take(LINE_BYTES_MAX + 1).read_line(&mut line).map_err(unreadable)? == 0 {
            if !any {
                return Err(Failure::usage("the trace has no request").tried(path.to_owned()));
            }
            return Ok(());
        }
        if line.len() as u64 > LINE_BYTES_MAX {
            return Err(wrong("more than 16 MiB"));
        }
        if number == 1 && is_records(&line) {
            return Err(Failure::usage("these are records of 'mcctl bench', and no trace")
                .tried(format!("{path}, line 1"))
                .found(
                    "they have the lengths of the prompts and the tiers that answered, and do not say which prompts begin alike",
                )
                .next("give what that run played, if it was a trace (its --dataset-path): hash_ids on each line"));
        }
        let request = trace::request(&line).map_err(|error| {
            wrong(&error)
                .next("a trace in Mooncake's format has a JSON object with hash_ids, a list of numbers, on each line")
        })?;
        if let Some(request) = request {
            any = true;
            take(number, request).map_err(|error| wrong(&error))?;
        }
    }
}
