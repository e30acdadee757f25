//! Steady state: the longest interval with nearly the peak number of requests in flight, excluding
//! ramp-up and drain.
//!
//! Memory is bounded: time is divided into at most [`PIECES`] pieces, which grow with the run. The
//! interval is therefore accurate to 1/256 of the run, and shorter dips in concurrency do not end
//! it.

use std::time::Duration;

use crate::TimedRequest;
use crate::target::ExchangeOutcome;

/// Maximum number of time pieces.
pub const PIECES: usize = 512;
/// Initial length of a piece.
const SHORTEST: Duration = Duration::from_millis(1);
/// Minimum share of the peak that SGLang's `steady_state_serving` usually uses.
pub const RATIO: f64 = 0.8;

/// Minimum duration for computing rates, in seconds.
const SECONDS_MIN: f64 = 2.0;
/// Minimum number of completed requests for computing rates.
const REQUESTS_MIN: f64 = 20.0;

/// A quantity over time, made up of spans with a constant rate and of instantaneous events.
#[derive(Clone, Debug, Default)]
struct RateCurve {
    /// Per piece: contribution from spans that start or end in it, and from events.
    part: Vec<f64>,
    /// Per piece: change in the rate from the next piece on.
    step: Vec<f64>,
}

impl RateCurve {
    fn edge(&mut self, at: f64, weight: f64) {
        let piece = at as usize;
        if self.part.len() <= piece {
            self.part.resize(piece + 1, 0.0);
            self.step.resize(piece + 1, 0.0);
        }
        self.part[piece] += weight * (1.0 - at.fract());
        self.step[piece] += weight;
    }

    /// Merges pairs of pieces. Events are stored as rates, so each contributes half.
    fn halve(&mut self) {
        let pairs = self.part.len().div_ceil(2);
        for i in 0..pairs {
            let a = 2 * i;
            let b = 2 * i + 1;
            let at = |list: &[f64], i: usize| list.get(i).copied().unwrap_or(0.0);
            self.part[i] = (at(&self.part, a) + at(&self.step, a) + at(&self.part, b)) / 2.0;
            self.step[i] = at(&self.step, a) + at(&self.step, b);
        }
        self.part.truncate(pairs);
        self.step.truncate(pairs);
    }

    /// Returns the mean rate in each of the first `pieces` pieces.
    fn means(&self, pieces: usize) -> Vec<f64> {
        let mut level = 0.0;
        let piece = |i: usize| {
            let mean = level + self.part.get(i).copied().unwrap_or(0.0);
            level += self.step.get(i).copied().unwrap_or(0.0);
            mean
        };
        (0..pieces).map(piece).collect()
    }
}

/// Finds the steady state of a run.
#[derive(Clone, Debug)]
pub struct SteadyState {
    width: Duration,
    /// Requests in flight, from the last byte of the request to the end of the response.
    flying: RateCurve,
    /// Output tokens per second. The first token counts when it arrives; the others are spread
    /// evenly up to the last.
    output: RateCurve,
    /// Prompt tokens per second, counted when the request was sent.
    input: RateCurve,
    /// Successful requests per second.
    done: RateCurve,
    /// Sum of TTFT in seconds, and number of first tokens, both per second.
    waited: RateCurve,
    first: RateCurve,
}

impl Default for SteadyState {
    fn default() -> SteadyState {
        let course = RateCurve::default;
        SteadyState {
            width: SHORTEST,
            flying: course(),
            output: course(),
            input: course(),
            done: course(),
            waited: course(),
            first: course(),
        }
    }
}

/// The steady-state interval and its rates.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SteadyWindow {
    pub from: Duration,
    pub to: Duration,
    /// Peak number of requests in flight during the run (mean over one piece).
    pub peak: f64,
    /// Mean number of requests in flight within the interval.
    pub in_flight: f64,
    /// Successful requests per second.
    pub requests_per_s: f64,
    /// Prompt tokens sent per second.
    pub input_per_s: f64,
    /// Output tokens received per second.
    pub output_per_s: f64,
    /// Mean TTFT (scheduled) in seconds for requests whose first token arrived in the interval;
    /// `None` if there were none.
    pub ttft: Option<f64>,
}

impl SteadyWindow {
    /// Returns the number of requests that completed within the interval.
    pub fn completed(&self) -> f64 {
        (self.requests_per_s * self.seconds()).round()
    }

    /// Returns the length of the interval in seconds.
    pub fn seconds(&self) -> f64 {
        self.to.as_secs_f64() - self.from.as_secs_f64()
    }

    /// Returns whether the interval is too short to compute rates: shorter than two seconds or than
    /// `e2e`, the mean E2E latency, or with fewer than 20 completed requests.
    pub fn is_too_short(&self, e2e: Option<Duration>) -> bool {
        let seconds = self.seconds();
        let few = seconds < SECONDS_MIN || self.completed() < REQUESTS_MIN;
        few || e2e.is_some_and(|e2e| seconds < e2e.as_secs_f64())
    }
}

impl SteadyState {
    fn courses(&mut self) -> [&mut RateCurve; 6] {
        [&mut self.flying, &mut self.output, &mut self.input, &mut self.done, &mut self.waited, &mut self.first]
    }

    /// Converts `at` to a position in pieces, widening the pieces first if needed.
    fn place(&mut self, at: Duration) -> f64 {
        while at.as_nanos() / self.width.as_nanos() >= PIECES as u128 {
            self.courses().into_iter().for_each(RateCurve::halve);
            self.width *= 2;
        }
        at.as_secs_f64() / self.width.as_secs_f64()
    }

    /// Adds an event with `weight`, spread over its piece.
    fn at(&mut self, course: fn(&mut SteadyState) -> &mut RateCurve, at: Duration, weight: f64) {
        let piece = self.place(at) as usize;
        let weight = weight / self.width.as_secs_f64();
        let course = course(self);
        if course.part.len() <= piece {
            course.part.resize(piece + 1, 0.0);
            course.step.resize(piece + 1, 0.0);
        }
        course.part[piece] += weight;
    }

    /// Adds a span with `weight` per second.
    fn during(&mut self, course: fn(&mut SteadyState) -> &mut RateCurve, from: Duration, to: Duration, weight: f64) {
        let to = self.place(to.max(from));
        let from = self.place(from);
        let course = course(self);
        course.edge(from, weight);
        course.edge(to, -weight);
    }

    /// Adds `record` to the counts.
    pub fn add(&mut self, record: &TimedRequest) {
        let exchange = &record.exchange;
        if matches!(exchange.outcome, ExchangeOutcome::Connect(_)) {
            return;
        }
        self.during(|s| &mut s.flying, exchange.wrote, exchange.end, 1.0);
        self.at(|s| &mut s.input, exchange.wrote, f64::from(exchange.answer.prompt_tokens.unwrap_or(0)));
        if let (Some(first), Some(last)) = (exchange.first_token, exchange.last_token) {
            let tokens = exchange.answer.completion_tokens.unwrap_or(exchange.arrived);
            let took = last.saturating_sub(first).as_secs_f64();
            let further = f64::from(tokens.saturating_sub(1));
            if took > 0.0 {
                self.at(|s| &mut s.output, first, f64::from(tokens.min(1)));
                self.during(|s| &mut s.output, first, last, further / took);
            } else {
                self.at(|s| &mut s.output, first, f64::from(tokens));
            }
            self.at(|s| &mut s.waited, first, first.saturating_sub(record.planned).as_secs_f64());
            self.at(|s| &mut s.first, first, 1.0);
        }
        if exchange.outcome == ExchangeOutcome::Ok {
            self.at(|s| &mut s.done, exchange.end, 1.0);
        }
    }

    /// Returns the longest interval with at least `ratio` of the peak in flight, or `None` if
    /// nothing was ever in flight.
    pub fn window(&self, ratio: f64) -> Option<SteadyWindow> {
        let pieces = self.flying.part.len();
        let flying = self.flying.means(pieces);
        let peak = flying.iter().copied().fold(0.0, f64::max);
        if peak <= 0.0 {
            return None;
        }
        // Tolerate rounding errors in the floating-point sums.
        let least = peak * ratio - 1e-9;
        let mut best = 0..0;
        let mut from = None;
        for piece in 0..=pieces {
            match (flying.get(piece).is_some_and(|level| *level >= least), from) {
                (true, None) => from = Some(piece),
                (false, Some(start)) => {
                    if piece - start > best.len() {
                        best = start..piece;
                    }
                    from = None;
                }
                _ => {}
            }
        }
        let mean = |course: &RateCurve| course.means(best.end)[best.clone()].iter().sum::<f64>() / best.len() as f64;
        let waited = mean(&self.waited);
        let first = mean(&self.first);
        Some(SteadyWindow {
            from: self.width * best.start as u32,
            to: self.width * best.end as u32,
            peak,
            in_flight: mean(&self.flying),
            requests_per_s: mean(&self.done),
            input_per_s: mean(&self.input),
            output_per_s: mean(&self.output),
            ttft: (first > 0.0).then(|| waited / first),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Turn;
    use crate::answer::ModelAnswer;
    use crate::target::Exchange;

    /// A request from `wrote` to `end` (ms) with `tokens` tokens. The first token arrives after one
    /// fifth of that time.
    fn record(wrote: u64, end: u64, tokens: u32) -> TimedRequest {
        let ms = Duration::from_millis;
        let first = wrote + (end - wrote) / 5;
        TimedRequest {
            turn: Turn { conversation: 0, index: 0 },
            planned: ms(wrote),
            eligible_at: ms(wrote),
            max_tokens: tokens,
            possible: None,
            own_tokens: None,
            exchange: Exchange {
                wrote: ms(wrote),
                first_token: Some(ms(first)),
                last_token: Some(ms(end)),
                arrived: tokens,
                answer: ModelAnswer {
                    prompt_tokens: Some(100),
                    completion_tokens: Some(tokens),
                    ..ModelAnswer::default()
                },
                outcome: ExchangeOutcome::Ok,
                ..Exchange::without_connection(ms(wrote), ms(end), String::new())
            },
        }
    }

    fn close(a: f64, b: f64, by: f64) {
        assert!((a - b).abs() <= by * b.abs(), "{a} differs from {b}");
    }

    #[test]
    fn ramp_up_and_drain_are_cut_off() {
        // Ten users send 1 s requests back to back. They join at one per second during the first
        // ten seconds, and leave at the same rate.
        let mut steady = SteadyState::default();
        for user in 0..10 {
            for turn in 0..60 {
                let wrote = 1_000 * user + 1_000 * turn;
                steady.add(&record(wrote, wrote + 1_000, 81));
            }
        }
        let found = steady.window(0.95).expect("requests in flight");
        close(found.peak, 10.0, 0.01);
        close(found.in_flight, 10.0, 0.01);
        assert!(
            (found.from.as_secs_f64() - 9.0).abs() < 0.3 && (found.to.as_secs_f64() - 60.0).abs() < 0.3,
            "{found:?}"
        );
        close(found.output_per_s, 810.0, 0.02);
        close(found.input_per_s, 1_000.0, 0.03);
        close(found.requests_per_s, 10.0, 0.03);
        close(found.ttft.expect("first tokens"), 0.2, 1e-6);
        // At half the peak, parts of ramp-up and drain are included.
        let wide = steady.window(0.5).expect("requests in flight");
        assert!((wide.from.as_secs_f64() - 4.0).abs() < 0.3 && (wide.to.as_secs_f64() - 65.0).abs() < 0.3, "{wide:?}");
    }

    #[test]
    fn totals_stay_the_same_when_pieces_grow() {
        let mut steady = SteadyState::default();
        steady.add(&record(0, 100, 11));
        steady.add(&record(50, 150, 11));
        let sum = |steady: &SteadyState| {
            let seconds = steady.width.as_secs_f64();
            let of = |course: &RateCurve| course.means(PIECES).iter().sum::<f64>() * seconds;
            [of(&steady.flying), of(&steady.output), of(&steady.input), of(&steady.done)]
        };
        let before = sum(&steady);
        close(before[0], 0.2, 1e-9);
        close(before[1], 22.0, 1e-9);
        for hour in 1..=5_u64 {
            steady.add(&record(hour * 3_600_000, hour * 3_600_000, 0));
        }
        let after = sum(&steady);
        close(after[0], 0.2, 1e-9);
        close(after[1], 22.0, 1e-9);
        close(after[2], before[2] + 500.0, 1e-9);
        assert!(steady.flying.part.len() <= PIECES && steady.width > Duration::from_secs(30));
    }

    #[test]
    fn run_without_requests_has_no_steady_state() {
        assert_eq!(SteadyState::default().window(RATIO), None);
        let mut steady = SteadyState::default();
        let lost = TimedRequest {
            exchange: Exchange::without_connection(Duration::ZERO, Duration::from_secs(1), "no".to_owned()),
            ..record(0, 1, 1)
        };
        steady.add(&lost);
        assert_eq!(steady.window(RATIO), None);
    }

    #[test]
    fn window_is_too_short_for_rates_with_little_time_or_few_requests() {
        let window = |seconds: f64, requests_per_s: f64| SteadyWindow {
            from: Duration::from_secs(1),
            to: Duration::from_secs(1) + Duration::from_secs_f64(seconds),
            peak: 8.0,
            in_flight: 7.5,
            requests_per_s,
            input_per_s: 0.0,
            output_per_s: 0.0,
            ttft: None,
        };
        let ms = |ms: u64| Some(Duration::from_millis(ms));
        let short = window(0.5, 100.0);
        assert_eq!((short.is_too_short(ms(100)), short.seconds(), short.completed()), (true, 0.5, 50.0));
        assert!(window(10.0, 1.0).is_too_short(ms(100)));
        assert!(window(10.0, 10.0).is_too_short(ms(12_000)));
        assert!(!window(10.0, 10.0).is_too_short(ms(1_000)));
        assert!(!window(10.0, 10.0).is_too_short(None));
    }
}
