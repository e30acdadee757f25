//! What a run tells, as a document (schema `mcctl.bench.multi-turn/1`).

use std::collections::BTreeMap;

use serde::Serialize;

use crate::commands::bench::multi_turn::Args;
use crate::engine::load::measure::{Row, Tally, Tokens, is_late};
use crate::engine::load::target::Target;
use crate::engine::load::{Ran, Summary};

/// The document. Latencies are in milliseconds.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    schema: &'static str,
    pub(super) target: String,
    pub(super) seed: u64,
    /// Requests that were sent: ok, failed and unfinished.
    pub(super) sent: u64,
    pub(super) completed: u64,
    pub(super) failed: u64,
    pub(super) unfinished: u64,
    pub(super) failures: BTreeMap<String, Failed>,
    pub(super) bad_frames: u64,
    /// Seconds from the first request to the last end.
    pub(super) seconds: f64,
    pub(super) requests_per_s: f64,
    pub(super) input_tokens_per_s: f64,
    pub(super) output_tokens_per_s: f64,
    pub(super) tokens: Tokens,
    /// From the planned instant to the first token.
    pub(super) ttft: Option<Summary>,
    /// From the last byte of the request to the first token.
    pub(super) ttft_from_send: Option<Summary>,
    /// Between tokens.
    pub(super) itl: Option<Summary>,
    pub(super) tpot: Option<Summary>,
    pub(super) e2e: Option<Summary>,
    /// From the planned instant to the last byte of the request: the generator, and the wait for a free place.
    pub(super) lag: Option<Summary>,
    /// By the server's word.
    pub(super) queue: Option<Summary>,
    /// By the server's word.
    pub(super) storage_wait: Option<Summary>,
    pub(super) turns: Vec<TurnRow>,
    /// Why the figures may be doubted.
    pub(super) doubts: Vec<String>,
}

/// A kind of failure.
#[derive(Debug, Serialize)]
pub(super) struct Failed {
    pub(super) count: u64,
    /// The first one's words.
    pub(super) first: String,
}

/// One turn of all conversations.
#[derive(Debug, Serialize)]
pub(super) struct TurnRow {
    /// Counted from one.
    pub(super) turn: usize,
    pub(super) requests: u64,
    pub(super) tokens: Tokens,
    pub(super) ttft: Option<Summary>,
    pub(super) e2e: Option<Summary>,
}

impl Report {
    pub(super) fn of(args: &Args, target: &Target, tally: &Tally, ran: &Ran, stopped: Option<&str>) -> Report {
        let seconds = tally.took().as_secs_f64();
        let per_second = |count: u64| if seconds > 0.0 { count as f64 / seconds } else { 0.0 };
        let all = &tally.all;
        let (lag, ttft) = (tally.lag.summary(), all.ttft.summary());
        let mut doubts = Vec::new();
        if let (Some(lag), Some(ttft)) = (&lag, &ttft)
            && is_late(lag, ttft)
        {
            doubts.push(format!(
                "requests left up to {:.1} ms after their planned instant: the cap of {} requests in flight was reached, or this \
                 machine is too slow for the load",
                lag.p99.unwrap_or(lag.max).as_secs_f64() * 1e3,
                args.max_parallel
            ));
        }
        if all.tokens.uncounted > 0 {
            doubts.push(format!(
                "the server does not count its tokens: {} are counted as one a frame, and throughput and time per token with them",
                all.tokens.uncounted
            ));
        }
        if let Some(signal) = stopped {
            doubts.push(format!("{signal} ended the run early"));
        }
        let failures = tally.failures.iter();
        let row = |(at, row): (usize, &Row)| TurnRow {
            turn: at + 1,
            requests: row.requests,
            tokens: row.tokens,
            ttft: row.ttft.summary(),
            e2e: row.e2e.summary(),
        };
        Report {
            schema: "mcctl.bench.multi-turn/1",
            target: format!("http://{}{}", target.at, target.path),
            seed: args.seed,
            sent: all.requests + tally.failed() + ran.unfinished,
            completed: all.requests,
            failed: tally.failed(),
            unfinished: ran.unfinished,
            failures: failures
                .map(|(kind, (count, first))| (kind.clone(), Failed { count: *count, first: first.clone() }))
                .collect(),
            bad_frames: tally.bad_frames,
            seconds,
            requests_per_s: per_second(all.requests),
            input_tokens_per_s: per_second(all.tokens.prompt),
            output_tokens_per_s: per_second(all.tokens.completion + all.tokens.uncounted),
            tokens: all.tokens,
            ttft,
            ttft_from_send: tally.ttft_from_send.summary(),
            itl: ran.gaps.summary(),
            tpot: tally.tpot.summary(),
            e2e: all.e2e.summary(),
            lag,
            queue: tally.queue.summary(),
            storage_wait: tally.storage_wait.summary(),
            turns: tally.turns.iter().enumerate().map(row).collect(),
            doubts,
        }
    }
}
