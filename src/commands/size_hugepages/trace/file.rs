//! Reads a trace file, or stdin.

use std::fs::Metadata;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::commands::cli::error::Failure;
use crate::commands::cli::progress_bar::{WorkProgress, WorkUnit};
use crate::commands::cli::{input, output};
use crate::commands::size_hugepages::trace::args::TraceArgs;
use crate::engine::trace::{
    self, BadRow, RowError, TimeUnit, Trace, TraceCaveat, TraceError, TraceOptions, TraceRefusal,
};

/// Reads the trace that `args` name. Caveats are reported on stderr.
///
/// # Errors
/// The file cannot be read, is not a trace, or has a malformed row.
pub(super) fn read(path: &str, args: &TraceArgs) -> Result<Trace, Failure> {
    let unreadable =
        |error: std::io::Error| Failure::usage("cannot read the trace").tried(path.to_owned()).found(error.to_string());
    let options = TraceOptions {
        block_tokens: args.block_size,
        time_unit: args.time_unit,
        skip_bad: args.skip_bad,
        keys_max: if args.per_request { usize::MAX } else { usize::try_from(args.sample_blocks).unwrap_or(usize::MAX) },
        live_sessions: args.live_sessions,
    };
    let (file, total): (Box<dyn BufRead>, _) = match path {
        "-" => (Box::new(BufReader::new(std::io::stdin())), None),
        _ => {
            let file = input::open(Path::new(path)).map_err(unreadable)?;
            let total = file.metadata().ok().filter(Metadata::is_file).map(|data| data.len());
            (Box::new(BufReader::with_capacity(1 << 20, file)), total)
        }
    };
    let read_bytes = Arc::new(AtomicU64::new(0));
    let counter = Arc::clone(&read_bytes);
    let _progress =
        WorkProgress::start("reading the trace", WorkUnit::Bytes(total), move || counter.load(Ordering::Relaxed));
    let read = trace::read(file, &options, |bytes| read_bytes.store(bytes, Ordering::Relaxed));
    let trace = read.map_err(|error| failure(path, &error))?;
    if let Some(bad) = &trace.first_bad {
        output::say(match trace.skipped {
            1 => format!("note: skipped 1 malformed row; it is {bad}"),
            skipped => format!("note: skipped {skipped} malformed rows; the first is {bad}"),
        });
    }
    Ok(trace)
}

/// A caveat as text, with the flag that removes it.
pub(super) fn caveat(caveat: &TraceCaveat) -> String {
    match caveat {
        TraceCaveat::TimeUnitDoubt { unit, .. } => {
            let other = if *unit == TimeUnit::Seconds { "ms" } else { "s" };
            format!("{caveat}: if that is right, set --time-unit {other}")
        }
        TraceCaveat::AssumedSessionStarts { .. } => format!("{caveat} (--live-sessions)"),
        _ => caveat.to_string(),
    }
}

fn failure(path: &str, error: &TraceError) -> Failure {
    let next = match error {
        TraceError::Io { .. } => "use a file that can be read to its end",
        TraceError::Gzip => "decompress it: zcat FILE | mcctl size-hugepages --trace -",
        TraceError::Refused(TraceRefusal::BenchRecords) => {
            "use the trace that the run replayed (its --dataset-path), with hash_ids on each line"
        }
        TraceError::Refused(TraceRefusal::JsonArray) => "use one object per line: jq -c '.[]' FILE",
        TraceError::Refused(TraceRefusal::BurstGpt | TraceRefusal::ShareGpt | TraceRefusal::TextOnly) => {
            "use a trace with hash IDs or sessions; mcctl bench multi-turn can replay text"
        }
        TraceError::Row(BadRow { reason: RowError::BlockCount(count), .. }) if count.suggested.is_some() => {
            "omit --block-size, or set it to the size that fits; --skip-bad skips other rows"
        }
        TraceError::Row(_) => "fix the row, or skip malformed rows with --skip-bad",
        TraceError::UnknownFormat { .. }
        | TraceError::Refused(_)
        | TraceError::Empty
        | TraceError::NoRequests { .. }
        | TraceError::AllRowsBad { .. }
        | TraceError::TooManySessions => "use one of the formats in mcctl size-hugepages --help",
    };
    Failure::usage("cannot use the trace").tried(path.to_owned()).found(error.to_string()).next(next)
}
