//! What a pass reveals about the server: its counters compared with the sums over the responses,
//! actual hits compared with expected hits, and reasons for shortfalls. No I/O.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Serialize, Serializer};

use crate::ceiling::HitCeiling;
use crate::measure::expected::Expectation;
use crate::measure::reuse::ReuseRow;
use crate::measure::{Tally, TokenTotals};
use crate::server::{CounterHistory, ServerCounters, ServerInfo, Shortfall, ShortfallReason, StoreCounters, explain};
use crate::target::ExchangeOutcome;
use crate::workload::expected_hits::HitStatistics;
use crate::{TimedRequest, Turn};
use mcctl_base::Mono;
use mcctl_base::time::RoundedDuration;

/// Maximum number of shortfalls to analyze. Further ones are only counted.
pub const SHORTS_MAX: usize = 100_000;
/// Maximum number of shortfalls to list.
pub const LISTED_MAX: usize = 100;
/// Maximum number of timeline points.
pub const MOMENTS_MAX: usize = 600;

/// A server counter and the corresponding sum over the responses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct CounterCheck {
    /// Name of the figure, e.g. `device tokens`.
    pub of: &'static str,
    /// Sum over the responses.
    pub answers: u64,
    /// Increase in the server's counter.
    pub server: u64,
}

/// A request with fewer cached tokens than expected, and the reasons.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ExplainedShortfall {
    /// Conversation index, from 0.
    pub conversation: u32,
    /// Turn number, from 1.
    pub turn: u32,
    pub prompt: u32,
    pub expected: u32,
    /// Cached tokens from L1.
    pub device: u32,
    /// Cached tokens from L2.
    pub host: u32,
    /// Cached tokens from L3.
    pub storage: u32,
    /// Events that explain the shortfall; empty if unexplained.
    pub reasons: Vec<ShortfallReason>,
}

/// Requests with fewer cached tokens than expected.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ShortfallReport {
    pub requests: u64,
    /// Number of requests without an explanation.
    pub unexplained: u64,
    /// Number of requests beyond [`SHORTS_MAX`], which were not analyzed.
    pub unexamined: u64,
    /// Number of requests by reason. A request may have several reasons.
    pub reasons: BTreeMap<String, u64>,
    /// The first shortfalls; unexplained ones are listed first.
    pub listed: Vec<ExplainedShortfall>,
}

/// Server state at one point in the pass. Token counts are increases since the first point.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct TimelinePoint {
    /// Seconds since the start of the pass.
    pub seconds: f64,
    /// Prompt tokens served from L1.
    pub device: u64,
    /// Prompt tokens served from L2.
    pub host: u64,
    /// Prompt tokens served from L3.
    pub storage: u64,
    pub computed: u64,
    pub evicted: u64,
    pub backed_up: u64,
    pub stored: u64,
    pub running: u64,
    pub queued: u64,
    /// Current L2 usage in tokens.
    pub host_used: u64,
    /// Counters of the L3 master at this point.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub master: Option<StoreCounters>,
}

/// What was observed about a server during a pass.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ServerObservation {
    pub info: Option<ServerInfo>,
    /// Increase in the server's counters during the pass.
    pub counters: Option<ServerCounters>,
    /// Increase in the L3 master's counters.
    pub master: Option<StoreCounters>,
    /// Server counters compared with the sums over the responses.
    pub compared: Vec<CounterCheck>,
    /// Whether all counters match the sums.
    pub agrees: Option<bool>,
    /// Expected and actual hits.
    pub expectation: Option<Expectation>,
    /// The ceiling of the hit rate. The report of the pass contains it.
    #[serde(skip)]
    pub ceiling: Option<HitCeiling>,
    /// Whether expected hits are approximate because prompts were sent as text.
    pub is_near: bool,
    /// Requests with fewer cached tokens than expected.
    pub short: ShortfallReport,
    /// Cache hits by reuse distance.
    pub reuse: Vec<ReuseRow>,
    /// First-turn tokens that were cached although this run had not sent them before.
    pub warm_tokens: u64,
    /// Server state over time.
    pub timeline: Vec<TimelinePoint>,
    /// Data that the server did not provide.
    pub missing: Vec<MissingData>,
    /// Reasons why the figures may be invalid. Reports call them `doubts`.
    #[serde(rename = "doubts")]
    pub caveats: Vec<ObservationCaveat>,
}

/// Server data that was not available for a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MissingData {
    #[error("the server's settings (the server does not support SGLang's /server_info)")]
    ServerInfo,
    #[error("the page size, which is required to compute expected hits (set --page-size)")]
    PageSize,
    #[error("the server's counters (start SGLang with --enable-metrics, or set --metrics-url)")]
    Counters,
    #[error("the master's counters (set --master-metrics)")]
    StoreCounters,
    #[error("the server's counters at the start or end of the pass")]
    CountersOfPass,
}

/// A reason why the cache figures of a pass may be invalid.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ObservationCaveat {
    #[error("the server is a simulator, so latencies come from its cost model")]
    Simulator,
    #[error(
        "the server's counters differ from the sums over the responses ({}): there are other clients, requests failed or were \
         retracted, the server restarted, or a metrics page is missing (--metrics-url)",
        .0.iter().map(CounterCheck::describe).collect::<Vec<_>>().join(", ")
    )]
    CountersDiffer(Vec<CounterCheck>),
    #[error("{0} requests had fewer cached tokens than expected, and no server counter explains why")]
    UnexplainedShortfall(u64),
    #[error("{0} more requests with fewer cached tokens than expected were not analyzed")]
    UnexaminedShortfall(u64),
    #[error(
        "the cache was warm: {0} first-turn tokens were cached although this run had never sent them (clear the caches \
         first with --phases flush,clear, or change --seed)"
    )]
    WarmCache(u64),
    #[error("the server used more pages than mcctl tracks, so later expected hits are underestimated")]
    TooManyPages,
    #[error("{objects} objects were still in the store {:.1} s after it was first cleared", .after.as_secs_f64())]
    StoreNotEmpty { objects: u64, after: Duration },
    #[error("the server was still writing back to L2 or L3 after {}", RoundedDuration(*.0))]
    StillWriting(Duration),
}

impl Serialize for MissingData {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl Serialize for ObservationCaveat {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// A shortfall, with times relative to the start of the pass.
#[derive(Debug)]
struct PendingShortfall {
    short: Shortfall,
    /// End of the previous turn, if any.
    since: Option<Duration>,
    came: Duration,
    until: Duration,
}

/// Collects requests with fewer cached tokens than expected during a pass.
#[derive(Debug, Default)]
pub struct ShortfallWatcher {
    /// End of the last turn in each conversation.
    ends: std::collections::HashMap<u32, Duration>,
    found: Vec<PendingShortfall>,
    requests: u64,
}

impl ShortfallWatcher {
    /// Checks `record`. Returns whether it had fewer cached tokens than expected.
    pub fn add(&mut self, record: &TimedRequest) -> bool {
        let end = record.exchange.end;
        let before = self.ends.insert(record.turn.conversation, end);
        let (Some(possible), Some(prompt)) = (record.possible, record.exchange.answer.prompt_tokens) else {
            return false;
        };
        let expected = possible.expected;
        let cached = record.exchange.answer.cached.clone().unwrap_or_default();
        let actual = record.exchange.answer.cached_in_all();
        if record.exchange.outcome != ExchangeOutcome::Ok || actual >= expected {
            return false;
        }
        self.requests += 1;
        if self.found.len() < SHORTS_MAX {
            let short = Shortfall {
                turn: record.turn,
                prompt,
                answer: record.exchange.answer.completion_tokens.unwrap_or(record.exchange.arrived),
                expected,
                device: cached.device,
                host: cached.host,
                storage: cached.storage,
                since: Mono::ZERO,
                came: Mono::ZERO,
                until: Mono::ZERO,
            };
            let since = before.filter(|_| record.turn.index > 0);
            self.found.push(PendingShortfall { short, since, came: record.exchange.wrote, until: end });
        }
        true
    }

    /// Explains the shortfalls of a pass that began at `started`, after a previous pass that ended
    /// at `before`. The prefix of a first turn was last used in the previous pass, so evictions
    /// between the two passes count.
    pub fn explained(
        self,
        started: Mono,
        before: Option<Mono>,
        ring: &CounterHistory,
        info: Option<&ServerInfo>,
    ) -> ShortfallReport {
        let mut report = ShortfallReport { requests: self.requests, ..ShortfallReport::default() };
        report.unexamined = self.requests - self.found.len() as u64;
        let mut bare = Vec::new();
        let mut others = Vec::new();
        for PendingShortfall { short, since, came, until } in self.found {
            let since = since.map_or(before.unwrap_or(started), |since| started + since);
            let short = Shortfall { since, came: started + came, until: started + until, ..short };
            let reasons = explain(&short, ring, info);
            for reason in &reasons {
                *report.reasons.entry(reason.kind()).or_default() += 1;
            }
            report.unexplained += u64::from(reasons.is_empty());
            let list = if reasons.is_empty() { &mut bare } else { &mut others };
            if list.len() < LISTED_MAX {
                let Turn { conversation, index } = short.turn;
                list.push(ExplainedShortfall {
                    conversation,
                    turn: index + 1,
                    prompt: short.prompt,
                    expected: short.expected,
                    device: short.device,
                    host: short.host,
                    storage: short.storage,
                    reasons,
                });
            }
        }
        bare.extend(others);
        bare.truncate(LISTED_MAX);
        report.listed = bare;
        report
    }
}

/// Compares the sums over the responses with the server's counters.
pub fn compare(tally: &Tally, counters: &ServerCounters) -> Vec<CounterCheck> {
    let TokenTotals { prompt, completion, device, host, storage, cached_somewhere, .. } = tally.all.tokens;
    // A server may count a cached token without a tier but report the tier in the response. In that
    // case, only the totals are compared.
    let by_tier = counters.cached_somewhere == cached_somewhere;
    let mut rows = vec![
        CounterCheck { of: "requests", answers: tally.all.requests, server: counters.requests },
        CounterCheck { of: "prompt tokens", answers: prompt, server: counters.prompt },
        CounterCheck { of: "answer tokens", answers: completion, server: counters.completion },
    ];
    if by_tier {
        rows.push(CounterCheck { of: "device tokens", answers: device, server: counters.device });
        rows.push(CounterCheck { of: "host tokens", answers: host, server: counters.host });
        rows.push(CounterCheck { of: "storage tokens", answers: storage, server: counters.storage });
    } else {
        rows.push(CounterCheck { of: "cached tokens", answers: tally.all.tokens.cached(), server: counters.cached() });
    }
    rows
}

/// Returns whether all rows match.
pub fn agree(rows: &[CounterCheck]) -> bool {
    rows.iter().all(|row| row.answers == row.server)
}

impl ServerObservation {
    /// Adds the caveats that follow from the observation. `is_full` is set if more pages were used
    /// than are tracked.
    pub fn judge(&mut self, statistics: Option<&HitStatistics>, is_full: bool) {
        if let Some(ceiling) = &mut self.ceiling {
            ceiling.missed.reasons = self.short.reasons.clone();
            ceiling.missed.unexplained = self.short.unexplained;
            ceiling.approximate = self.is_near;
            ceiling.incomplete = is_full;
        }
        if self.info.as_ref().is_some_and(|info| info.simulator) {
            self.caveats.push(ObservationCaveat::Simulator);
        }
        if self.agrees == Some(false) {
            let differing = self.compared.iter().filter(|row| row.answers != row.server).copied().collect();
            self.caveats.push(ObservationCaveat::CountersDiffer(differing));
        }
        if self.short.unexplained > 0 && !self.is_near {
            self.caveats.push(ObservationCaveat::UnexplainedShortfall(self.short.unexplained));
        }
        if self.short.unexamined > 0 {
            self.caveats.push(ObservationCaveat::UnexaminedShortfall(self.short.unexamined));
        }
        if let Some(statistics) = statistics {
            self.warm_tokens = statistics.warm;
            if statistics.warm > 0 {
                self.caveats.push(ObservationCaveat::WarmCache(statistics.warm));
            }
        }
        if is_full {
            self.caveats.push(ObservationCaveat::TooManyPages);
        }
    }
}

impl CounterCheck {
    /// Returns a string such as `device tokens 96 in the responses, 80 counted by the server`.
    pub fn describe(&self) -> String {
        format!("{} {} in the responses, {} counted by the server", self.of, self.answers, self.server)
    }
}

/// Returns the samples of a pass with times relative to its start, thinned to [`MOMENTS_MAX`].
pub fn timeline(ring: &CounterHistory, started: Mono, ended: Mono) -> Vec<TimelinePoint> {
    let points: Vec<_> = ring.between(started - Duration::from_millis(1500), ended + Duration::from_secs(5)).collect();
    let Some(first) = points.iter().find_map(|point| point.server.as_ref()) else { return Vec::new() };
    let step = points.len().div_ceil(MOMENTS_MAX).max(1);
    let moment = |point: &&crate::server::CounterSample| {
        let counted = point.server.clone()?.since(first);
        Some(TimelinePoint {
            seconds: point.at.since(started).as_secs_f64(),
            device: counted.device,
            host: counted.host,
            storage: counted.storage,
            computed: counted.computed,
            evicted: counted.evicted,
            backed_up: counted.backed_up,
            stored: counted.stored,
            running: counted.now.running,
            queued: counted.now.queued,
            host_used: counted.now.host_used,
            master: point.master,
        })
    };
    points.iter().step_by(step).filter_map(moment).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::answer::{CachedTokens, ModelAnswer};
    use crate::ceiling::PossibleHits;
    use crate::server::CounterSample;
    use crate::target::Exchange;

    fn record(conversation: u32, index: u32, end_ms: u64, expected: u32, device: u32) -> TimedRequest {
        let end = Duration::from_millis(end_ms);
        let answer = ModelAnswer {
            prompt_tokens: Some(100),
            completion_tokens: Some(5),
            cached_tokens: Some(device),
            cached: Some(CachedTokens { device, ..CachedTokens::default() }),
            ..ModelAnswer::default()
        };
        let mut exchange = Exchange::without_connection(Duration::ZERO, end, String::new());
        exchange.answer = answer;
        exchange.outcome = ExchangeOutcome::Ok;
        TimedRequest {
            turn: Turn { conversation, index },
            planned: Duration::ZERO,
            eligible_at: Duration::ZERO,
            max_tokens: 5,
            possible: Some(PossibleHits { ceiling: expected, expected, allowed: None }),
            own_tokens: None,
            exchange,
        }
    }

    #[test]
    fn shortfall_is_explained_by_counters_since_the_previous_turn() {
        let mut falls = ShortfallWatcher::default();
        assert!(!falls.add(&record(1, 0, 100, 0, 0)));
        assert!(!falls.add(&record(2, 0, 150, 0, 0)));
        assert!(falls.add(&record(1, 1, 300, 96, 32)));
        assert!(falls.add(&record(2, 1, 900, 96, 32)));
        let started = Mono::from_ms(1_000);
        let mut ring = CounterHistory::default();
        for (ms, evicted) in [(990, 0), (1_200, 0), (1_350, 0), (1_500, 64), (2_000, 64)] {
            let counters = ServerCounters { evicted, ..ServerCounters::default() };
            ring.push(CounterSample { at: Mono::from_ms(ms), server: Some(counters), master: None }, false);
        }
        let report = falls.explained(started, None, &ring, None);
        assert_eq!((report.requests, report.unexplained, report.unexamined), (2, 1, 0));
        assert_eq!(
            report.listed.iter().map(|short| (short.conversation, short.reasons.len())).collect::<Vec<_>>(),
            [(1, 0), (2, 1)]
        );
        assert_eq!(report.reasons["evicted from L1"], 1);
    }

    #[test]
    fn differing_counters_are_named_in_a_caveat() {
        let mut tally = Tally::default();
        tally.add(&record(0, 0, 5, 0, 32));
        let counters =
            ServerCounters { requests: 1, prompt: 100, completion: 5, device: 32, ..ServerCounters::default() };
        assert!(agree(&compare(&tally, &counters)));
        let rows = compare(&tally, &ServerCounters { device: 16, host: 16, ..counters });
        let mut observed =
            ServerObservation { agrees: Some(agree(&rows)), compared: rows, ..ServerObservation::default() };
        observed.judge(None, false);
        let [ObservationCaveat::CountersDiffer(rows)] = &observed.caveats[..] else { panic!("{observed:?}") };
        assert_eq!(
            rows.iter().map(|row| (row.of, row.answers, row.server)).collect::<Vec<_>>(),
            [("device tokens", 32, 16), ("host tokens", 0, 16)]
        );
    }

    #[test]
    fn timeline_starts_with_the_pass_and_is_bounded() {
        let mut ring = CounterHistory::default();
        for ms in 0..2_000 {
            let counters = ServerCounters { device: ms, ..ServerCounters::default() };
            ring.push(CounterSample { at: Mono::from_ms(ms), server: Some(counters), master: None }, false);
        }
        let points = timeline(&ring, Mono::from_ms(500), Mono::from_ms(1_000));
        assert!(points.len() <= MOMENTS_MAX && points[0].seconds == 0.0 && points[0].device == 0, "{:?}", points[0]);
        assert!(points.last().is_some_and(|last| last.seconds > 1.4 && last.device > 1_900));
        assert_eq!(timeline(&CounterHistory::default(), Mono::ZERO, Mono::ZERO), []);
    }
}
