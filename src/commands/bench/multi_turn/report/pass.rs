//! The report of one pass.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::commands::bench::caveat::BenchCaveat;
use crate::commands::bench::multi_turn::goals::GoalsReport;
use crate::commands::bench::multi_turn::report::ms;
use crate::commands::bench::multi_turn::report::sources::SourcesReport;
use crate::engine::load::ceiling::HitCeiling;
use crate::engine::load::measure::interactivity::InteractivityReport;
use crate::engine::load::measure::series::{Bucket, TimeSeries};
use crate::engine::load::measure::{TokenTotals, TurnStats};
use crate::engine::load::plan::OfferedLoad;
use crate::engine::load::server::ServerObservation;
use crate::engine::load::session::PassResult;
use crate::engine::load::target::LoadTarget;
use crate::engine::load::{LatencyHistogram, LatencySummary, RunStats};

/// The report of a pass.
#[derive(Debug, Serialize)]
pub(in crate::commands::bench) struct PassReport {
    pub name: String,
    pub side: String,
    pub block: u32,
    pub target: String,
    /// Number of sent requests: succeeded, failed and unfinished.
    pub sent: u64,
    pub completed: u64,
    pub failed: u64,
    pub unfinished: u64,
    pub failures: BTreeMap<String, FailureSummary>,
    pub bad_frames: u64,
    /// Seconds from the first send to the last response.
    pub seconds: f64,
    pub requests_per_s: f64,
    pub input_tokens_per_s: f64,
    pub output_tokens_per_s: f64,
    pub tokens: TokenTotals,
    /// The ceiling of the hit rate; `None` if it is unknown.
    pub ceiling: Option<HitCeiling>,
    /// Time from the scheduled send time to the first token.
    pub ttft: Option<LatencySummary>,
    /// Time from the last byte of the request to the first token.
    pub ttft_from_send: Option<LatencySummary>,
    pub itl: Option<LatencySummary>,
    pub tpot: Option<LatencySummary>,
    pub e2e: Option<LatencySummary>,
    /// Generator lag: the time from when a request could be sent to when its last byte was sent.
    pub lag: Option<LatencySummary>,
    /// Wait for a concurrency slot; included in all latencies from the scheduled send time.
    pub wait: Option<LatencySummary>,
    /// Queue time reported by the server.
    pub queue: Option<LatencySummary>,
    /// Time spent waiting for L3, reported by the server.
    pub storage_wait: Option<LatencySummary>,
    pub turns: Vec<TurnRow>,
    /// TTFT by source of the prompt, the latency that the cache saved, and lengths.
    pub sources: SourcesReport,
    /// Cache figures and counters from the server's management routes.
    pub server: Option<ServerObservation>,
    pub distributions: Distributions,
    pub series: SeriesReport,
    pub goals: Option<GoalsReport>,
    /// Interactivity and throughput; `None` without live sessions.
    pub interactivity: Option<InteractivityReport>,
    pub generator: GeneratorReport,
    #[serde(rename = "doubts")]
    pub caveats: Vec<BenchCaveat>,
    /// The run has several blocks, so labels include the block.
    #[serde(skip)]
    pub in_blocks: bool,
}

/// Load on the generator itself.
#[derive(Debug, Serialize)]
pub(in crate::commands::bench) struct GeneratorReport {
    /// CPU usage in the busiest second, in cores.
    pub processor_share: Option<f64>,
    /// How long received data waited before it was read.
    pub read_delay: Option<LatencySummary>,
    pub connections: u64,
    /// Requests sent again because the server had closed the idle connection.
    pub resent: u64,
    /// Requests retried after 429 or 503.
    pub retried: u64,
}

impl GeneratorReport {
    fn of(ran: &RunStats) -> GeneratorReport {
        GeneratorReport {
            processor_share: ran.share.map(|share| (share * 1e3).round() / 1e3),
            read_delay: ran.delays.summary(),
            connections: ran.connections,
            resent: ran.resent,
            retried: ran.retried,
        }
    }
}

/// Failures of one type.
#[derive(Debug, Serialize)]
pub(in crate::commands::bench) struct FailureSummary {
    pub count: u64,
    /// Message from the first failure.
    pub first: String,
}

/// Figures for one turn over all conversations.
#[derive(Debug, Serialize)]
pub(in crate::commands::bench) struct TurnRow {
    /// Turn number, from one.
    pub turn: usize,
    pub requests: u64,
    pub tokens: TokenTotals,
    pub ttft: Option<LatencySummary>,
    pub e2e: Option<LatencySummary>,
    /// First and third quartile of TTFT; `None` if there are fewer than four requests.
    pub ttft_quartiles_ms: Option<[f64; 2]>,
}

/// Cumulative distributions: values in milliseconds, each with the share of values at or below it.
#[derive(Debug, Serialize)]
pub(in crate::commands::bench) struct Distributions {
    pub ttft: Vec<(f64, f64)>,
    pub itl: Vec<(f64, f64)>,
    pub tpot: Vec<(f64, f64)>,
    pub e2e: Vec<(f64, f64)>,
}

#[derive(Debug, Serialize)]
pub(in crate::commands::bench) struct SeriesReport {
    /// Bucket width in seconds.
    pub width_s: f64,
    /// Buckets since the start of the pass.
    pub buckets: Vec<Bucket>,
}

impl From<&TimeSeries> for SeriesReport {
    fn from(series: &TimeSeries) -> SeriesReport {
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

fn curve(histogram: &LatencyHistogram) -> Vec<(f64, f64)> {
    histogram.curve().into_iter().map(|(value, share)| ((ms(value) * 1e3).round() / 1e3, share)).collect()
}

impl PassReport {
    /// Builds the report for `pass` at `load`. `sides` contains the endpoint names and targets,
    /// `gpus` is the number of GPUs of the server, if it is known.
    pub(crate) fn of(
        sides: &[(String, LoadTarget)],
        load: &OfferedLoad,
        gpus: Option<u32>,
        pass: &PassResult,
    ) -> PassReport {
        let tally = &pass.tally;
        let ran = &pass.ran;
        let seconds = tally.took().as_secs_f64();
        let per_second = |count: u64| if seconds > 0.0 { count as f64 / seconds } else { 0.0 };
        let all = &tally.all;
        let failures = tally.failures.iter();
        let row = |(at, row): (usize, &TurnStats)| TurnRow {
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
                .map(|(kind, (count, first))| (kind.clone(), FailureSummary { count: *count, first: first.clone() }))
                .collect(),
            bad_frames: tally.bad_frames,
            seconds,
            requests_per_s: per_second(all.requests),
            input_tokens_per_s: per_second(all.tokens.prompt),
            output_tokens_per_s: per_second(all.tokens.completion + all.tokens.uncounted),
            tokens: all.tokens,
            ceiling: pass.observed.as_ref().and_then(|observed| observed.ceiling.clone()),
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
            sources: SourcesReport::of(tally),
            server: pass.observed.clone(),
            distributions: Distributions {
                ttft: curve(&all.ttft),
                itl: curve(&ran.gaps),
                tpot: curve(&tally.tpot),
                e2e: curve(&all.e2e),
            },
            series: SeriesReport::from(&tally.series),
            goals: None,
            interactivity: load.sessions.and_then(|_| tally.per_token.report(&all.tokens, tally.took(), gpus)),
            generator: GeneratorReport::of(&pass.ran),
            caveats: pass.caveats(load).into_iter().map(BenchCaveat::Load).collect(),
            in_blocks: false,
        }
    }

    /// Returns the pass label for a report with several passes.
    pub(crate) fn label(&self) -> String {
        if self.in_blocks {
            format!("{} {} (block {})", self.side, self.name, self.block)
        } else {
            format!("{} {}", self.side, self.name)
        }
    }
}
