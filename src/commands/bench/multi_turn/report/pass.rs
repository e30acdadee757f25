//! One measured run.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;

use crate::commands::bench::multi_turn::Args;
use crate::commands::bench::multi_turn::goals::Goals;
use crate::commands::bench::multi_turn::report::ms;
use crate::engine::load::measure::series::{Bucket, Series};
use crate::engine::load::measure::{Row, Tokens, is_late};
use crate::engine::load::server::Observed;
use crate::engine::load::session::Pass;
use crate::engine::load::target::Target;
use crate::engine::load::{Histogram, Ran, Summary};

/// A measured run.
#[derive(Debug, Serialize)]
pub(in crate::commands::bench) struct PassReport {
    pub name: String,
    pub side: String,
    pub block: u32,
    pub target: String,
    /// Requests that were sent: ok, failed and unfinished.
    pub sent: u64,
    pub completed: u64,
    pub failed: u64,
    pub unfinished: u64,
    pub failures: BTreeMap<String, Failed>,
    pub bad_frames: u64,
    /// Seconds from the first request to the last end.
    pub seconds: f64,
    pub requests_per_s: f64,
    pub input_tokens_per_s: f64,
    pub output_tokens_per_s: f64,
    pub tokens: Tokens,
    /// From the planned instant to the first token.
    pub ttft: Option<Summary>,
    /// From the last byte of the request to the first token.
    pub ttft_from_send: Option<Summary>,
    /// Between tokens.
    pub itl: Option<Summary>,
    pub tpot: Option<Summary>,
    pub e2e: Option<Summary>,
    /// The generator's own: from the instant at which a request could be sent to its last byte.
    pub lag: Option<Summary>,
    /// Of requests for a place under the cap, part of all latencies that count from the plan.
    pub wait: Option<Summary>,
    /// By the server's word.
    pub queue: Option<Summary>,
    /// By the server's word.
    pub storage_wait: Option<Summary>,
    pub turns: Vec<TurnRow>,
    /// What the server's other routes told of it.
    pub server: Option<Observed>,
    pub distributions: Distributions,
    pub series: SeriesReport,
    /// Requests that met the limits, and the steady state.
    pub goals: Option<Goals>,
    pub generator: Generator,
    /// Why the figures may be doubted.
    pub doubts: Vec<String>,
    /// Are there passes of several blocks? Then each is named.
    #[serde(skip)]
    pub in_blocks: bool,
}

/// How the generator itself fared.
#[derive(Debug, Serialize)]
pub(in crate::commands::bench) struct Generator {
    /// Of its processor, in its busiest second: 1 is all of it.
    pub processor_share: Option<f64>,
    /// How long what came in had lain unread.
    pub read_delay: Option<Summary>,
    /// Connections that were opened.
    pub connections: u64,
    /// Requests that were sent once more, since the server had closed their idle connection.
    pub resent: u64,
    /// Requests that were sent again, as a busy server asked.
    pub retried: u64,
}

impl Generator {
    fn of(ran: &Ran) -> Generator {
        Generator {
            processor_share: ran.share.map(|share| (share * 1e3).round() / 1e3),
            read_delay: ran.delays.summary(),
            connections: ran.connections,
            resent: ran.resent,
            retried: ran.retried,
        }
    }
}

/// A kind of failure.
#[derive(Debug, Serialize)]
pub(in crate::commands::bench) struct Failed {
    pub count: u64,
    /// The first one's words.
    pub first: String,
}

/// One turn of all conversations.
#[derive(Debug, Serialize)]
pub(in crate::commands::bench) struct TurnRow {
    /// Counted from one.
    pub turn: usize,
    pub requests: u64,
    pub tokens: Tokens,
    pub ttft: Option<Summary>,
    pub e2e: Option<Summary>,
    /// The first and the third quarter of the times to the first token, where there are four.
    pub ttft_quartiles_ms: Option<[f64; 2]>,
}

/// Values in milliseconds, each with the share of all that lies at or below it.
#[derive(Debug, Serialize)]
pub(in crate::commands::bench) struct Distributions {
    pub ttft: Vec<(f64, f64)>,
    pub itl: Vec<(f64, f64)>,
    pub tpot: Vec<(f64, f64)>,
    pub e2e: Vec<(f64, f64)>,
}

/// How it went over the time.
#[derive(Debug, Serialize)]
pub(in crate::commands::bench) struct SeriesReport {
    /// Width of a bucket.
    pub width_s: f64,
    /// From the start of the run on.
    pub buckets: Vec<Bucket>,
}

impl From<&Series> for SeriesReport {
    fn from(series: &Series) -> SeriesReport {
        let round = |value: f64| (value * 1e6).round() / 1e6;
        let buckets = series.buckets().iter().map(|bucket| Bucket {
            busy_s: round(bucket.busy_s),
            output_tokens: round(bucket.output_tokens),
            ttft_sum_s: round(bucket.ttft_sum_s),
            ttft_max_s: round(bucket.ttft_max_s),
            ..*bucket
        });
        SeriesReport { width_s: series.width().as_secs_f64(), buckets: buckets.collect() }
    }
}

fn curve(histogram: &Histogram) -> Vec<(f64, f64)> {
    histogram.curve().into_iter().map(|(value, share)| ((ms(value) * 1e3).round() / 1e3, share)).collect()
}

impl PassReport {
    pub fn of(args: &Args, sides: &[(String, Target)], pass: &Pass) -> PassReport {
        let (tally, ran) = (&pass.tally, &pass.ran);
        let seconds = tally.took().as_secs_f64();
        let per_second = |count: u64| if seconds > 0.0 { count as f64 / seconds } else { 0.0 };
        let all = &tally.all;
        let failures = tally.failures.iter();
        let row = |(at, row): (usize, &Row)| TurnRow {
            turn: at + 1,
            requests: row.requests,
            tokens: row.tokens,
            ttft: row.ttft.summary(),
            e2e: row.e2e.summary(),
            ttft_quartiles_ms: (row.ttft.count() >= 4)
                .then(|| [0.25, 0.75].map(|q| row.ttft.at(q).map_or(0.0, |value| (ms(value) * 1e3).round() / 1e3))),
        };
        let target = sides.get(pass.id.side).map(|(_, target)| target.url());
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
            ttft: all.ttft.summary(),
            ttft_from_send: tally.ttft_from_send.summary(),
            itl: ran.gaps.summary(),
            tpot: tally.tpot.summary(),
            e2e: all.e2e.summary(),
            lag: tally.lag.summary(),
            wait: tally.wait.summary(),
            queue: tally.queue.summary(),
            storage_wait: tally.storage_wait.summary(),
            turns: tally.turns.iter().enumerate().map(row).collect(),
            server: pass.observed.clone(),
            distributions: Distributions {
                ttft: curve(&all.ttft),
                itl: curve(&ran.gaps),
                tpot: curve(&tally.tpot),
                e2e: curve(&all.e2e),
            },
            series: SeriesReport::from(&tally.series),
            goals: None,
            generator: Generator::of(&pass.ran),
            doubts: doubts(args, pass),
            in_blocks: false,
        }
    }

    /// What it is called where there are several.
    pub fn label(&self) -> String {
        if self.in_blocks {
            format!("{} {} (block {})", self.side, self.name, self.block)
        } else {
            format!("{} {}", self.side, self.name)
        }
    }
}

/// Why the figures of a pass may be doubted.
fn doubts(args: &Args, pass: &Pass) -> Vec<String> {
    let (tally, all) = (&pass.tally, &pass.tally.all);
    let mut doubts = Vec::new();
    if let (Some(lag), Some(ttft)) = (tally.lag.summary(), all.ttft.summary())
        && is_late(&lag, &ttft)
    {
        doubts.push(format!(
            "the generator was up to {:.1} ms late with its requests: this machine is too slow for the load, or busy",
            ms(lag.p99.unwrap_or(lag.max))
        ));
    }
    if let Some(wait) = tally.wait.summary()
        && wait.p50 > Duration::from_millis(1)
        && args.load.request_rate.is_finite()
    {
        doubts.push(format!(
            "half of the requests waited {:.1} ms and more for one of {} places in flight: the rate is above what the server \
             or the cap allows",
            ms(wait.p50),
            args.load.max_parallel.map_or("unlimited".to_owned(), |most| most.to_string())
        ));
    }
    doubts.extend(pass.ran.doubts().iter().map(ToString::to_string));
    if all.tokens.uncounted > 0 {
        doubts.push(format!(
            "the server does not count its tokens: {} are counted as one a frame, and throughput and time per token with them",
            all.tokens.uncounted
        ));
    }
    if tally.bad_frames > 0 {
        doubts.push(format!("{} frames of the answers could not be read, and count for no token", tally.bad_frames));
    }
    doubts.extend(pass.observed.iter().flat_map(|observed| observed.doubts.iter().cloned()));
    doubts
}
