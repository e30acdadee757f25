//! Writes a synthetic request trace in one of the public formats to stdout. The same arguments
//! produce the same bytes.
//!
//! ```sh
//! cargo run --release -p mcctl-trace --example generate_trace -- KIND [OPTIONS]
//! ```
//!
//! `--help` lists the kinds, the options and the defaults. What each kind matches, with seed 1:
//!
//! - `mooncake` (FAST'25 `conversation_trace.jsonl`): 12,031 requests, mean input 12,035, mean
//!   output 343, blocks of 512, one hour. Not matched: reuse (ceiling 45.2 %), turns per
//!   conversation, arrival pattern.
//! - `bailian` (Qwen usage traces): fields, blocks of 16, hashes not chained (sets of blocks
//!   overcount by 0.18 points, 0.17 % in trace A). Not matched: number of rows, lengths, shares of
//!   the types.
//! - `weka` (`cc-traces-weka-042026`): 739 sessions, 59,274 requests, about 90 M hash IDs, ceiling
//!   about 96.8 %, blocks of 64. Not matched: distribution of lengths, share of subagents, times.
//! - `tracelab` (TraceLab, all users): 8,058 sessions, 665,453 rounds, 52 users, field names, form
//!   of the timestamps. Not matched: distribution of lengths, projects, tools, duplicate and empty
//!   rounds.
//! - `litellm` (LiteLLM 1.111 spend logs): field names, chained hashes of 16 hex digits with the
//!   last partial block. Nothing else is matched.
//! - `vllm` (timed traces of `vllm bench serve`): one hash ID for each 16 tokens, seconds. Nothing
//!   else is matched.
//!
//! "Ceiling" is the share of prompt tokens that an unlimited cache hits. `--scale` divides all
//! lengths in tokens, and leaves the block size unchanged. `--requests` and `--sessions` change the
//! size of the trace, not the lengths and not the time that it covers.
//!
//! Memory holds lengths, the hash ids of conversations that continue, and one session of `weka`.

mod args;
mod bailian;
mod common;
mod conversations;
mod litellm;
mod mooncake;
mod tracelab;
mod weka;

use std::env;
use std::error::Error;
use std::io::{self, Write};
use std::process::ExitCode;

use crate::args::{Command, Kind};
use crate::common::{Output, Result};

const KINDS: &[Kind] =
    &[mooncake::MOONCAKE, bailian::BAILIAN, weka::WEKA, tracelab::TRACELAB, litellm::LITELLM, mooncake::VLLM];

/// Exit codes: 0 done, 1 the trace was not written, 2 invalid arguments.
fn main() -> ExitCode {
    let arguments = env::args_os().skip(1).map(|argument| argument.to_string_lossy().into_owned());
    let (code, message) = match args::parse(arguments, KINDS) {
        Err(error) => (2, error.to_string()),
        Ok(command) => match run(&command, &mut io::stdout().lock()) {
            Err(error) if !is_closed_pipe(&*error) => (1, format!("cannot write the trace: {error}")),
            _ => return ExitCode::SUCCESS,
        },
    };
    // Without stderr, the exit code remains.
    let _ = writeln!(io::stderr(), "error: {message}");
    ExitCode::from(code)
}

fn run(command: &Command, out: &mut dyn Write) -> Result<()> {
    match command {
        Command::Help => out.write_all(args::usage(KINDS).as_bytes())?,
        Command::Generate(kind, options) => {
            let mut out = Output::with_capacity(1 << 20, out);
            (kind.generate)(options, &mut out)?;
            out.flush()?;
        }
    }
    Ok(())
}

/// Whether the reader of stdout ended, as in `generate_trace mooncake | head`.
fn is_closed_pipe(error: &(dyn Error + 'static)) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trace(line: &str) -> Vec<u8> {
        let command = args::parse(line.split_whitespace().map(str::to_owned), KINDS).unwrap();
        let mut bytes = Vec::new();
        run(&command, &mut bytes).unwrap();
        bytes
    }

    #[test]
    fn the_seed_determines_the_bytes() {
        for Kind { name, sessions, .. } in KINDS {
            let sessions = if sessions.is_some() { "--sessions 5" } else { "" };
            let seeded = |seed| trace(&format!("{name} --requests 40 {sessions} --seed {seed} --scale 16"));
            let first = seeded(1);
            assert!(!first.is_empty() && first.ends_with(b"\n"), "{name}");
            assert!(first == seeded(1), "{name}");
            assert!(first != seeded(2), "{name}");
        }
    }

    /// The means of FAST'25's `conversation_trace.jsonl`.
    #[test]
    fn mooncake_has_the_published_mean_lengths() {
        for (line, scale) in [("mooncake", 1.0), ("mooncake --seed 7 --requests 2000 --scale 4", 4.0)] {
            let bytes = trace(line);
            let rows: Vec<serde_json::Value> =
                serde_json::Deserializer::from_slice(&bytes).into_iter().map(Result::unwrap).collect();
            for (field, published) in [("input_length", 12_035.0), ("output_length", 343.0)] {
                let sum: f64 = rows.iter().map(|row| row[field].as_f64().unwrap()).sum();
                let ratio = sum / rows.len() as f64 * scale / published;
                assert!((ratio - 1.0).abs() < 0.01, "{line}: {field} has {ratio} of the published mean");
            }
        }
    }
}
