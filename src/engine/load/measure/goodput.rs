//! Goodput: requests that met every user-defined limit, per second and as a share of all requests
//! sent.
//!
//! As in SGLang's `bench_serving`, failed requests do not meet the limits, and a one-token response
//! has a TPOT of zero. Latencies are measured from the scheduled send time, so a server gains
//! nothing by queueing requests.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use crate::TimedRequest;
use crate::session::Figure;

/// The latency metric that a limit applies to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Metric {
    /// Time to first token.
    Ttft,
    /// Time per output token after the first.
    Tpot,
    /// Inter-token latency: the mean gap within a request. Equal to [`Metric::Tpot`] if every token
    /// arrives in its own frame.
    Itl,
    E2e,
}

impl Metric {
    /// Returns the name used on the command line and in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Metric::Ttft => "ttft",
            Metric::Tpot => "tpot",
            Metric::Itl => "itl",
            Metric::E2e => "e2el",
        }
    }

    fn of(self, times: &RequestLatency) -> Duration {
        match self {
            Metric::Ttft => times.ttft,
            Metric::Tpot | Metric::Itl => times.tpot.unwrap_or_default(),
            Metric::E2e => times.e2e,
        }
    }
}

/// A latency limit, e.g. `ttft:200` for a TTFT of at most 200 ms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LatencyLimit {
    pub metric: Metric,
    /// Upper bound on the latency, inclusive.
    pub most: Duration,
}

/// The string is not a valid limit.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid limit '{0}': use ttft:MS, tpot:MS, itl:MS or e2el:MS with MS above 0")]
pub struct ParseLatencyLimitError(pub String);

impl FromStr for LatencyLimit {
    type Err = ParseLatencyLimitError;

    fn from_str(text: &str) -> Result<LatencyLimit, ParseLatencyLimitError> {
        let wrong = || ParseLatencyLimitError(text.to_owned());
        let (word, ms) = text.split_once(':').ok_or_else(wrong)?;
        let metric = match word {
            "ttft" => Metric::Ttft,
            "tpot" => Metric::Tpot,
            "itl" => Metric::Itl,
            "e2el" | "e2e" => Metric::E2e,
            _ => return Err(wrong()),
        };
        let ms: f64 = ms.parse().ok().filter(|ms| *ms > 0.0 && *ms <= 86_400_000.0).ok_or_else(wrong)?;
        Ok(LatencyLimit { metric, most: Duration::from_secs_f64(ms / 1e3) })
    }
}

impl fmt::Display for LatencyLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.metric.name(), self.most.as_secs_f64() * 1e3)
    }
}

/// The latencies of a successful request. TTFT and E2E latency are measured from the same point in
/// time, which the caller chooses.
#[derive(Clone, Copy, Debug, Default)]
pub struct RequestLatency {
    pub ttft: Duration,
    /// Mean time per token after the first; `None` if there are fewer than two tokens.
    pub tpot: Option<Duration>,
    pub e2e: Duration,
}

/// Counts requests that met the limits.
#[derive(Clone, Debug, Default)]
pub struct Goodput {
    limits: Vec<LatencyLimit>,
    /// Number of finished requests, including failed ones.
    pub ended: u64,
    /// Number of requests that met every limit.
    pub met: u64,
    /// Number of requests that met each limit, in the order of the limits.
    pub met_by: Vec<u64>,
}

impl Goodput {
    /// Creates an empty counter. If several limits apply to the same metric, the last one is used.
    pub fn new(limits: &[LatencyLimit]) -> Goodput {
        let mut kept: Vec<LatencyLimit> = Vec::new();
        for limit in limits {
            kept.retain(|other| other.metric != limit.metric);
            kept.push(*limit);
        }
        Goodput { met_by: vec![0; kept.len()], limits: kept, ended: 0, met: 0 }
    }

    /// Returns the limits in use.
    pub fn limits(&self) -> &[LatencyLimit] {
        &self.limits
    }

    /// Adds `record` to the counts.
    pub fn add(&mut self, record: &TimedRequest) {
        self.count(&Figure::of(record));
    }

    fn count(&mut self, figure: &Figure) {
        let times = RequestLatency { ttft: figure.ttft, tpot: figure.tpot, e2e: figure.e2e };
        self.add_times(figure.well.then_some(&times));
    }

    /// Counts a request with these latencies, or a failed request if `None`.
    pub fn add_times(&mut self, times: Option<&RequestLatency>) {
        self.ended += 1;
        let mut all = times.is_some();
        for (limit, met) in self.limits.iter().zip(&mut self.met_by) {
            let ok = times.is_some_and(|times| limit.metric.of(times) <= limit.most);
            *met += u64::from(ok);
            all &= ok;
        }
        self.met += u64::from(all);
    }

    /// Returns the share of `sent` requests that met every limit, or 0 if none were sent.
    pub fn share(&self, sent: u64) -> f64 {
        if sent == 0 { 0.0 } else { self.met as f64 / sent as f64 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Turn;

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

    fn limits(text: &str) -> Vec<LatencyLimit> {
        text.split(' ').map(|one| one.parse().expect(one)).collect()
    }

    #[test]
    fn good_requests_meet_every_limit_and_failures_meet_none() {
        let mut goodput = Goodput::new(&limits("ttft:200 tpot:20 e2el:1000"));
        goodput.count(&figure(true, 200, Some(20), 1_000));
        goodput.count(&figure(true, 201, Some(10), 900));
        goodput.count(&figure(false, 1, Some(1), 1));
        goodput.count(&figure(true, 100, None, 100));
        assert_eq!((goodput.ended, goodput.met, &goodput.met_by[..]), (4, 2, &[2, 3, 3][..]));
        // A fifth request was sent and is still in flight.
        assert!((goodput.share(5) - 0.4).abs() < 1e-12);
        assert_eq!(Goodput::default().share(0), 0.0);
    }

    #[test]
    fn limits_parse_like_in_bench_serving() {
        for text in ["ttft:200", "tpot:0.5", "itl:3", "e2el:10000"] {
            assert_eq!(text.parse::<LatencyLimit>().expect(text).to_string(), text);
        }
        for text in ["", "ttft", "ttft:", "ttft:-1", "ttft:0", "ttft:inf", "ttft:NaN", "x:1", "200", "ttft:1e300"] {
            assert!(text.parse::<LatencyLimit>().is_err(), "{text}");
        }
        let twice = Goodput::new(&limits("ttft:1 itl:2 ttft:3"));
        assert_eq!(twice.limits().iter().map(LatencyLimit::to_string).collect::<Vec<_>>(), ["itl:2", "ttft:3"]);
    }
}
