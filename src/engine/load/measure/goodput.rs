//! Goodput: requests that met every limit a user set, per second and as a share of what was sent.
//!
//! As SGLang's `bench_serving` has it: what failed did not meet, and an answer of one token has a time per token of nothing. Latencies
//! count from the planned instant, so a server that lets requests wait before it takes them does not meet either.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use crate::engine::load::Record;
use crate::engine::load::session::Figure;

/// What a limit is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Metric {
    /// To the first token.
    Ttft,
    /// Per token after the first.
    Tpot,
    /// Between tokens: the mean gap of a request, the same number as [`Metric::Tpot`] where every token has its own frame.
    Itl,
    /// To the end.
    E2e,
}

impl Metric {
    /// Its word on the command line and in reports.
    pub const fn word(self) -> &'static str {
        match self {
            Metric::Ttft => "ttft",
            Metric::Tpot => "tpot",
            Metric::Itl => "itl",
            Metric::E2e => "e2el",
        }
    }

    fn of(self, times: &Times) -> Duration {
        match self {
            Metric::Ttft => times.ttft,
            Metric::Tpot | Metric::Itl => times.tpot.unwrap_or_default(),
            Metric::E2e => times.e2e,
        }
    }
}

/// A limit: `ttft:200` is 200 milliseconds to the first token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    /// On what.
    pub metric: Metric,
    /// At most this.
    pub most: Duration,
}

/// A text is no limit.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is no limit: write ttft:MS, tpot:MS, itl:MS or e2el:MS with milliseconds above 0")]
pub struct ParseLimitError(pub String);

impl FromStr for Limit {
    type Err = ParseLimitError;

    fn from_str(text: &str) -> Result<Limit, ParseLimitError> {
        let wrong = || ParseLimitError(text.to_owned());
        let (word, ms) = text.split_once(':').ok_or_else(wrong)?;
        let metric = match word {
            "ttft" => Metric::Ttft,
            "tpot" => Metric::Tpot,
            "itl" => Metric::Itl,
            "e2el" | "e2e" => Metric::E2e,
            _ => return Err(wrong()),
        };
        let ms: f64 = ms.parse().ok().filter(|ms| *ms > 0.0 && *ms <= 86_400_000.0).ok_or_else(wrong)?;
        Ok(Limit { metric, most: Duration::from_secs_f64(ms / 1e3) })
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.metric.word(), self.most.as_secs_f64() * 1e3)
    }
}

/// The latencies of a request that went well, from whichever instant they count.
#[derive(Clone, Copy, Debug, Default)]
pub struct Times {
    /// To the first token.
    pub ttft: Duration,
    /// Per token after the first; `None` with fewer than two.
    pub tpot: Option<Duration>,
    /// To the end.
    pub e2e: Duration,
}

/// How many requests met the limits.
#[derive(Clone, Debug, Default)]
pub struct Goodput {
    limits: Vec<Limit>,
    /// Requests that ended, well or not.
    pub ended: u64,
    /// That met every limit.
    pub met: u64,
    /// That met each limit, in their order.
    pub met_by: Vec<u64>,
}

impl Goodput {
    /// Nothing counted yet. The last of several limits on one metric holds.
    pub fn new(limits: &[Limit]) -> Goodput {
        let mut kept: Vec<Limit> = Vec::new();
        for limit in limits {
            kept.retain(|other| other.metric != limit.metric);
            kept.push(*limit);
        }
        Goodput { met_by: vec![0; kept.len()], limits: kept, ended: 0, met: 0 }
    }

    /// The limits.
    pub fn limits(&self) -> &[Limit] {
        &self.limits
    }

    /// Count `record`.
    pub fn add(&mut self, record: &Record) {
        self.count(&Figure::of(record));
    }

    fn count(&mut self, figure: &Figure) {
        let times = Times { ttft: figure.ttft, tpot: figure.tpot, e2e: figure.e2e };
        self.add_times(figure.well.then_some(&times));
    }

    /// Count a request of these latencies; of none, if it failed.
    pub fn add_times(&mut self, times: Option<&Times>) {
        self.ended += 1;
        let mut all = times.is_some();
        for (limit, met) in self.limits.iter().zip(&mut self.met_by) {
            let ok = times.is_some_and(|times| limit.metric.of(times) <= limit.most);
            *met += u64::from(ok);
            all &= ok;
        }
        self.met += u64::from(all);
    }

    /// The share of `sent` requests that met every limit; nothing of nothing.
    pub fn share(&self, sent: u64) -> f64 {
        if sent == 0 { 0.0 } else { self.met as f64 / sent as f64 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::load::Turn;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn figure(well: bool, ttft: u64, tpot: Option<u64>, e2e: u64) -> Figure {
        Figure {
            turn: Turn { conversation: 0, index: 0 },
            well,
            ttft: ms(ttft),
            e2e: ms(e2e),
            tpot: tpot.map(ms),
            lag: ms(0),
            prompt: 0,
            completion: 0,
            device: 0,
            host: 0,
            storage: 0,
            cached: 0,
            expected: None,
        }
    }

    fn limits(text: &str) -> Vec<Limit> {
        text.split(' ').map(|one| one.parse().expect(one)).collect()
    }

    #[test]
    fn a_request_is_good_when_it_meets_every_limit_and_a_failure_meets_none() {
        let mut goodput = Goodput::new(&limits("ttft:200 tpot:20 e2el:1000"));
        goodput.count(&figure(true, 200, Some(20), 1_000));
        goodput.count(&figure(true, 201, Some(10), 900));
        goodput.count(&figure(false, 1, Some(1), 1));
        goodput.count(&figure(true, 100, None, 100));
        assert_eq!((goodput.ended, goodput.met, &goodput.met_by[..]), (4, 2, &[2, 3, 3][..]));
        // One more is in flight: it was sent, and met nothing.
        assert!((goodput.share(5) - 0.4).abs() < 1e-12);
        assert_eq!(Goodput::default().share(0), 0.0);
    }

    #[test]
    fn limits_are_read_as_bench_serving_writes_them_and_nonsense_is_refused() {
        for text in ["ttft:200", "tpot:0.5", "itl:3", "e2el:10000"] {
            assert_eq!(text.parse::<Limit>().expect(text).to_string(), text);
        }
        for text in ["", "ttft", "ttft:", "ttft:-1", "ttft:0", "ttft:inf", "ttft:NaN", "x:1", "200", "ttft:1e300"] {
            assert!(text.parse::<Limit>().is_err(), "{text}");
        }
        let twice = Goodput::new(&limits("ttft:1 itl:2 ttft:3"));
        assert_eq!(twice.limits().iter().map(Limit::to_string).collect::<Vec<_>>(), ["itl:2", "ttft:3"]);
    }
}
