//! What a run tells, as a document (schema `mcctl.bench.multi-turn/1`).

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;

use crate::commands::bench::multi_turn::Args;
use crate::commands::bench::multi_turn::measure::Measured;
use crate::engine::load::Summary;
use crate::engine::load::measure::{Row, Tokens, is_late};
use crate::engine::load::session::Pass;
use crate::engine::load::target::Target;

/// The document. Latencies are in milliseconds.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    schema: &'static str,
    /// Version of mcctl.
    version: &'static str,
    pub(super) seed: u64,
    pub(super) passes: Vec<PassReport>,
    /// Why all of it may be doubted.
    pub(super) doubts: Vec<String>,
}

/// A measured run.
#[derive(Debug, Serialize)]
pub(super) struct PassReport {
    pub(super) name: String,
    pub(super) side: String,
    pub(super) block: u32,
    pub(super) target: String,
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
    /// The generator's own: from the instant at which a request could be sent to its last byte.
    pub(super) lag: Option<Summary>,
    /// Of requests for a place under the cap, part of all latencies that count from the plan.
    pub(super) wait: Option<Summary>,
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
    pub(super) fn of(args: &Args, measured: &Measured) -> Report {
        let executed = &measured.executed;
        let mut doubts = Vec::new();
        if let Some(signal) = measured.signal {
            doubts.push(format!("{signal} ended the run early"));
        }
        if let Some(broke) = &executed.broke {
            doubts.push(format!("not all was done: {broke}"));
        }
        Report {
            schema: "mcctl.bench.multi-turn/1",
            version: env!("CARGO_PKG_VERSION"),
            seed: args.load.seed,
            passes: executed.passes.iter().map(|pass| PassReport::of(args, &measured.sides, pass)).collect(),
            doubts,
        }
    }
}

impl PassReport {
    fn of(args: &Args, sides: &[(String, Target)], pass: &Pass) -> PassReport {
        let (tally, ran) = (&pass.tally, &pass.ran);
        let seconds = tally.took().as_secs_f64();
        let per_second = |count: u64| if seconds > 0.0 { count as f64 / seconds } else { 0.0 };
        let all = &tally.all;
        let (lag, ttft) = (tally.lag.summary(), all.ttft.summary());
        let mut doubts = Vec::new();
        if let (Some(lag), Some(ttft)) = (&lag, &ttft)
            && is_late(lag, ttft)
        {
            doubts.push(format!(
                "the generator was up to {:.1} ms late with its requests: this machine is too slow for the load, or busy",
                lag.p99.unwrap_or(lag.max).as_secs_f64() * 1e3
            ));
        }
        if let Some(wait) = tally.wait.summary()
            && wait.p50 > Duration::from_millis(1)
            && args.load.request_rate.is_finite()
        {
            doubts.push(format!(
                "half of the requests waited {:.1} ms and more for one of {} places in flight: the rate is above what the server \
                 or the cap allows",
                wait.p50.as_secs_f64() * 1e3,
                args.load.max_parallel
            ));
        }
        if all.tokens.uncounted > 0 {
            doubts.push(format!(
                "the server does not count its tokens: {} are counted as one a frame, and throughput and time per token with them",
                all.tokens.uncounted
            ));
        }
        let failures = tally.failures.iter();
        let row = |(at, row): (usize, &Row)| TurnRow {
            turn: at + 1,
            requests: row.requests,
            tokens: row.tokens,
            ttft: row.ttft.summary(),
            e2e: row.e2e.summary(),
        };
        let target = sides.get(pass.id.side).map(|(_, target)| format!("http://{}{}", target.at, target.path));
        PassReport {
            name: pass.id.name.clone(),
            side: pass.id.side_name.clone(),
            block: pass.id.block,
            target: target.unwrap_or_default(),
            sent: pass.sent(),
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
            wait: tally.wait.summary(),
            queue: tally.queue.summary(),
            storage_wait: tally.storage_wait.summary(),
            turns: tally.turns.iter().enumerate().map(row).collect(),
            doubts,
        }
    }
}
