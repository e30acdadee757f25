//! What a pass showed of the server: its own counters beside the sums over the answers, hits beside those that should have been, and
//! why some were not. Pure.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;

use crate::engine::base::Mono;
use crate::engine::load::measure::expected::Expectation;
use crate::engine::load::measure::reuse::ReuseRow;
use crate::engine::load::measure::{Tally, Tokens};
use crate::engine::load::server::{Counters, Info, Master, Reason, Ring, Short, explain};
use crate::engine::load::target::Outcome;
use crate::engine::load::workload::foreseen::Noted;
use crate::engine::load::{Record, Turn};

/// Requests that got too little and are looked into; more are counted only.
pub const SHORTS_MAX: usize = 100_000;
/// Of them, so many are listed.
pub const LISTED_MAX: usize = 100;
/// Moments of the timeline at most.
pub const MOMENTS_MAX: usize = 600;

/// A figure of the server beside ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Compared {
    /// Of what: `device tokens`.
    pub of: &'static str,
    /// Sum over the answers.
    pub answers: u64,
    /// What the server counted.
    pub server: u64,
}

/// A request that got less than it should have, with the server's reasons.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ShortTold {
    /// Which conversation, from zero.
    pub conversation: u32,
    /// Which turn, from one.
    pub turn: u32,
    /// Tokens of its prompt.
    pub prompt: u32,
    /// That should have been cached.
    pub expected: u32,
    /// That came from L1.
    pub device: u32,
    /// From L2.
    pub host: u32,
    /// From L3.
    pub storage: u32,
    /// What the server did meanwhile that explains it. Empty: unexplained.
    pub reasons: Vec<Reason>,
}

/// Requests that got less from the caches than they should have.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Shorts {
    /// All of them.
    pub requests: u64,
    /// Those that nothing explains.
    pub unexplained: u64,
    /// Those that were too many to be looked into.
    pub unexamined: u64,
    /// By reason; a request may have several.
    pub reasons: BTreeMap<String, u64>,
    /// The first of them, those that nothing explains before the others.
    pub listed: Vec<ShortTold>,
}

/// The server at an instant, on the clock of the pass. Tokens, counted since it began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Moment {
    /// When, in seconds since the pass began.
    pub seconds: f64,
    /// From L1.
    pub device: u64,
    /// From L2.
    pub host: u64,
    /// From L3.
    pub storage: u64,
    /// Computed.
    pub computed: u64,
    /// Evicted from L1.
    pub evicted: u64,
    /// Written to L2.
    pub backed_up: u64,
    /// Written to L3.
    pub stored: u64,
    /// Requests that run.
    pub running: u64,
    /// Requests that wait.
    pub queued: u64,
    /// In L2 now.
    pub host_used: u64,
    /// The L3's master then: fill, keys, evictions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub master: Option<Master>,
}

/// See the module.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Observed {
    /// What the server says of itself.
    pub info: Option<Info>,
    /// What it counted during the pass.
    pub counters: Option<Counters>,
    /// What the master of its L3 counted meanwhile.
    pub master: Option<Master>,
    /// The sums over the answers beside the server's counters.
    pub compared: Vec<Compared>,
    /// Are they the same?
    pub agrees: Option<bool>,
    /// Hits that should have been beside those that were.
    pub expectation: Option<Expectation>,
    /// Are expectations near the truth only, since prompts are text?
    pub is_near: bool,
    /// Requests that got too little.
    pub short: Shorts,
    /// Hits by how far back a prefix was used.
    pub reuse: Vec<ReuseRow>,
    /// Tokens of first turns that were cached though nobody here ever sent them.
    pub warm_tokens: u64,
    /// The server over time.
    pub timeline: Vec<Moment>,
    /// What could not be seen, and why.
    pub missing: Vec<String>,
    /// Why the figures may be doubted.
    pub doubts: Vec<String>,
}

/// A request that got too little, by the clock of the pass.
#[derive(Debug)]
struct Found {
    short: Short,
    /// The end of the turn before it, if there is one.
    since: Option<Duration>,
    came: Duration,
    until: Duration,
}

/// Watches the requests of a pass for those that get too little.
#[derive(Debug, Default)]
pub struct Shortfalls {
    /// When the last turn of each conversation ended.
    ends: std::collections::HashMap<u32, Duration>,
    found: Vec<Found>,
    requests: u64,
}

impl Shortfalls {
    /// Look at `record`; did it get less than it should have?
    pub fn add(&mut self, record: &Record) -> bool {
        let end = record.exchange.end;
        let before = self.ends.insert(record.turn.conversation, end);
        let (Some(expected), Some(prompt)) = (record.expected, record.exchange.answer.prompt_tokens) else {
            return false;
        };
        let cached = record.exchange.answer.cached.clone().unwrap_or_default();
        let actual = record.exchange.answer.cached_in_all();
        if record.exchange.outcome != Outcome::Ok || actual >= expected {
            return false;
        }
        self.requests += 1;
        if self.found.len() < SHORTS_MAX {
            let short = Short {
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
            self.found.push(Found { short, since, came: record.exchange.wrote, until: end });
        }
        true
    }

    /// Explain them by what was scraped: of a pass that began at `started`, after one that ended at `before`. What a first turn
    /// should have found is of that one, and may have been evicted by the steps between them.
    pub fn explained(self, started: Mono, before: Option<Mono>, ring: &Ring, info: Option<&Info>) -> Shorts {
        let mut told = Shorts { requests: self.requests, ..Shorts::default() };
        told.unexamined = self.requests - self.found.len() as u64;
        let (mut bare, mut others) = (Vec::new(), Vec::new());
        for Found { short, since, came, until } in self.found {
            let since = since.map_or(before.unwrap_or(started), |since| started + since);
            let short = Short { since, came: started + came, until: started + until, ..short };
            let reasons = explain(&short, ring, info);
            for reason in &reasons {
                *told.reasons.entry(reason.kind()).or_default() += 1;
            }
            told.unexplained += u64::from(reasons.is_empty());
            let list = if reasons.is_empty() { &mut bare } else { &mut others };
            if list.len() < LISTED_MAX {
                let Turn { conversation, index } = short.turn;
                list.push(ShortTold {
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
        told.listed = bare;
        told
    }
}

/// The sums over the answers beside what the server counted.
pub fn compare(tally: &Tally, counters: &Counters) -> Vec<Compared> {
    let Tokens { prompt, completion, device, host, storage, cached_somewhere, .. } = tally.all.tokens;
    // A server may count a cached token without a word where, and tell the answer where: then the sums are compared.
    let by_tier = counters.cached_somewhere == cached_somewhere;
    let mut rows = vec![
        Compared { of: "requests", answers: tally.all.requests, server: counters.requests },
        Compared { of: "prompt tokens", answers: prompt, server: counters.prompt },
        Compared { of: "answer tokens", answers: completion, server: counters.completion },
    ];
    if by_tier {
        rows.push(Compared { of: "device tokens", answers: device, server: counters.device });
        rows.push(Compared { of: "host tokens", answers: host, server: counters.host });
        rows.push(Compared { of: "storage tokens", answers: storage, server: counters.storage });
    } else {
        rows.push(Compared { of: "cached tokens", answers: tally.all.tokens.cached(), server: counters.cached() });
    }
    rows
}

/// Are all of them the same?
pub fn agree(rows: &[Compared]) -> bool {
    rows.iter().all(|row| row.answers == row.server)
}

impl Observed {
    /// What is said of the requests that got too little, of warm caches, and of counters that disagree.
    pub fn judge(&mut self, noted: Option<&Noted>, is_full: bool) {
        if self.info.as_ref().is_some_and(|info| info.simulator) {
            self.doubts.push("the server is a simulator: its latencies are those of its cost model".to_owned());
        }
        let differing: Vec<String> =
            self.compared.iter().filter(|row| row.answers != row.server).map(Compared::words).collect();
        if self.agrees == Some(false) {
            self.doubts.push(format!(
                "the server's counters differ from the answers' sums ({}): others use it, requests failed, it took some back or began \
                 anew, or a server's page is missing (--metrics-url)",
                differing.join(", ")
            ));
        }
        if self.short.unexplained > 0 && !self.is_near {
            self.doubts.push(format!(
                "{} requests got less from the caches than they should have, and no counter of the server explains it",
                self.short.unexplained
            ));
        }
        if self.short.unexamined > 0 {
            self.doubts.push(format!("{} more of them were not looked into", self.short.unexamined));
        }
        if let Some(noted) = noted {
            self.warm_tokens = noted.warm;
            if noted.warm > 0 {
                self.doubts.push(format!(
                    "the cache was warm: {} tokens of first turns were cached though this run never sent them (--phases flush,clear \
                     empties the caches first; another --seed sends others)",
                    noted.warm
                ));
            }
        }
        if is_full {
            self.doubts.push("there were more pages than are followed: later hits are not all expected".to_owned());
        }
    }
}

impl Compared {
    /// `device tokens 96 / 80`.
    pub fn words(&self) -> String {
        format!("{} {} in the answers, {} counted", self.of, self.answers, self.server)
    }
}

/// The points of a pass as moments on its clock, thinned to [`MOMENTS_MAX`].
pub fn timeline(ring: &Ring, started: Mono, ended: Mono) -> Vec<Moment> {
    let points: Vec<_> = ring.between(started - Duration::from_millis(1500), ended + Duration::from_secs(5)).collect();
    let Some(first) = points.iter().find_map(|point| point.server.as_ref()) else { return Vec::new() };
    let step = points.len().div_ceil(MOMENTS_MAX).max(1);
    let moment = |point: &&crate::engine::load::server::Point| {
        let counted = point.server.clone()?.since(first);
        Some(Moment {
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
    use crate::engine::load::answer::{Answer, Cached};
    use crate::engine::load::server::Point;
    use crate::engine::load::target::Exchange;

    fn record(conversation: u32, index: u32, end_ms: u64, expected: u32, device: u32) -> Record {
        let end = Duration::from_millis(end_ms);
        let answer = Answer {
            prompt_tokens: Some(100),
            completion_tokens: Some(5),
            cached_tokens: Some(device),
            cached: Some(Cached { device, ..Cached::default() }),
            ..Answer::default()
        };
        let mut exchange = Exchange::without_connection(Duration::ZERO, end, String::new());
        (exchange.answer, exchange.outcome) = (answer, Outcome::Ok);
        Record {
            turn: Turn { conversation, index },
            planned: Duration::ZERO,
            free: Duration::ZERO,
            max_tokens: 5,
            expected: Some(expected),
            exchange,
        }
    }

    #[test]
    fn a_short_one_is_explained_by_what_grew_since_the_turn_before_it() {
        let mut falls = Shortfalls::default();
        assert!(!falls.add(&record(1, 0, 100, 0, 0)));
        assert!(!falls.add(&record(2, 0, 150, 0, 0)));
        assert!(falls.add(&record(1, 1, 300, 96, 32)));
        assert!(falls.add(&record(2, 1, 900, 96, 32)));
        let started = Mono::from_ms(1_000);
        let mut ring = Ring::default();
        for (ms, evicted) in [(990, 0), (1_200, 0), (1_350, 0), (1_500, 64), (2_000, 64)] {
            let counters = Counters { evicted, ..Counters::default() };
            ring.push(Point { at: Mono::from_ms(ms), server: Some(counters), master: None }, false);
        }
        let told = falls.explained(started, None, &ring, None);
        assert_eq!((told.requests, told.unexplained, told.unexamined), (2, 1, 0));
        assert_eq!(
            told.listed.iter().map(|short| (short.conversation, short.reasons.len())).collect::<Vec<_>>(),
            [(1, 0), (2, 1)]
        );
        assert_eq!(told.reasons["evicted from L1"], 1);
    }

    #[test]
    fn sums_that_differ_are_named_and_doubted() {
        let mut tally = Tally::default();
        tally.add(&record(0, 0, 5, 0, 32));
        let counters = Counters { requests: 1, prompt: 100, completion: 5, device: 32, ..Counters::default() };
        assert!(agree(&compare(&tally, &counters)));
        let rows = compare(&tally, &Counters { device: 16, host: 16, ..counters });
        let mut observed = Observed { agrees: Some(agree(&rows)), compared: rows, ..Observed::default() };
        observed.judge(None, false);
        assert!(
            observed.doubts[0].contains("device tokens 32 in the answers, 16 counted, host tokens 0"),
            "{observed:?}"
        );
    }

    #[test]
    fn the_timeline_is_on_the_clock_of_the_pass_and_bounded() {
        let mut ring = Ring::default();
        for ms in 0..2_000 {
            let counters = Counters { device: ms, ..Counters::default() };
            ring.push(Point { at: Mono::from_ms(ms), server: Some(counters), master: None }, false);
        }
        let told = timeline(&ring, Mono::from_ms(500), Mono::from_ms(1_000));
        assert!(told.len() <= MOMENTS_MAX && told[0].seconds == 0.0 && told[0].device == 0, "{:?}", told[0]);
        assert!(told.last().is_some_and(|last| last.seconds > 1.4 && last.device > 1_900));
        assert_eq!(timeline(&Ring::default(), Mono::ZERO, Mono::ZERO), []);
    }
}
