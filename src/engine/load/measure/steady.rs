//! The steady state: the longest stretch in which nearly as much was in flight as ever, without the filling up at the start and the
//! running empty at the end.
//!
//! Memory is bounded: time is cut into at most [`PIECES`] pieces, which grow with the run. So the stretch is known to a 256th of the
//! run, and shorter dips in what is in flight do not end it.

use std::time::Duration;

use crate::engine::load::Record;
use crate::engine::load::target::Outcome;

/// Pieces of time, at most.
pub const PIECES: usize = 512;
/// The first length of a piece.
const SHORTEST: Duration = Duration::from_millis(1);
/// The share of the peak that SGLang's `steady_state_serving` is mostly run with.
pub const RATIO: f64 = 0.8;

/// A quantity over time: things that last (with a weight per second while they do) and things that happen at an instant.
#[derive(Clone, Debug, Default)]
struct Course {
    /// Of each piece: the mean of what began or ended in it.
    part: Vec<f64>,
    /// What holds from the next piece on.
    step: Vec<f64>,
}

impl Course {
    fn edge(&mut self, at: f64, weight: f64) {
        let piece = at as usize;
        if self.part.len() <= piece {
            self.part.resize(piece + 1, 0.0);
            self.step.resize(piece + 1, 0.0);
        }
        self.part[piece] += weight * (1.0 - at.fract());
        self.step[piece] += weight;
    }

    /// Two pieces become one. Sums per piece (things at an instant) are kept as means: half of each.
    fn halve(&mut self) {
        let pairs = self.part.len().div_ceil(2);
        for i in 0..pairs {
            let (a, b) = (2 * i, 2 * i + 1);
            let at = |list: &[f64], i: usize| list.get(i).copied().unwrap_or(0.0);
            self.part[i] = (at(&self.part, a) + at(&self.step, a) + at(&self.part, b)) / 2.0;
            self.step[i] = at(&self.step, a) + at(&self.step, b);
        }
        self.part.truncate(pairs);
        self.step.truncate(pairs);
    }

    /// The mean in each of `pieces` pieces.
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

/// See the module.
#[derive(Clone, Debug)]
pub struct Steady {
    width: Duration,
    /// Requests in flight: from the last byte of one to its end.
    flying: Course,
    /// Tokens of answers, per second: the first at its instant, the others evenly from there to the last.
    output: Course,
    /// Tokens of prompts, per second, at the instant they were sent.
    input: Course,
    /// Requests that ended well, per second.
    done: Course,
    /// Seconds to the first token, and requests that had one, both per second.
    waited: Course,
    first: Course,
}

impl Default for Steady {
    fn default() -> Steady {
        let course = Course::default;
        Steady {
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

/// What was found.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Window {
    /// When it begins.
    pub from: Duration,
    /// When it ends.
    pub to: Duration,
    /// Most requests in flight of the whole run (a mean over a piece of it).
    pub peak: f64,
    /// In flight within it, on the mean.
    pub in_flight: f64,
    /// Requests that ended well within it, per second.
    pub requests_per_s: f64,
    /// Tokens of prompts sent within it, per second.
    pub input_per_s: f64,
    /// Tokens that came within it, per second.
    pub output_per_s: f64,
    /// Seconds from the planned instant to the first token, of those whose first token came within it; `None` of none.
    pub ttft: Option<f64>,
}

impl Steady {
    fn courses(&mut self) -> [&mut Course; 6] {
        [&mut self.flying, &mut self.output, &mut self.input, &mut self.done, &mut self.waited, &mut self.first]
    }

    /// `at` in pieces, after making room for it.
    fn place(&mut self, at: Duration) -> f64 {
        while at.as_nanos() / self.width.as_nanos() >= PIECES as u128 {
            self.courses().into_iter().for_each(Course::halve);
            self.width *= 2;
        }
        at.as_secs_f64() / self.width.as_secs_f64()
    }

    /// Something of `weight` at an instant: spread over its piece.
    fn at(&mut self, course: fn(&mut Steady) -> &mut Course, at: Duration, weight: f64) {
        let piece = self.place(at) as usize;
        let weight = weight / self.width.as_secs_f64();
        let course = course(self);
        if course.part.len() <= piece {
            course.part.resize(piece + 1, 0.0);
            course.step.resize(piece + 1, 0.0);
        }
        course.part[piece] += weight;
    }

    /// Something that lasts, with `weight` per second.
    fn during(&mut self, course: fn(&mut Steady) -> &mut Course, from: Duration, to: Duration, weight: f64) {
        let to = self.place(to.max(from));
        let from = self.place(from);
        let course = course(self);
        course.edge(from, weight);
        course.edge(to, -weight);
    }

    /// Count `record`.
    pub fn add(&mut self, record: &Record) {
        let exchange = &record.exchange;
        if matches!(exchange.outcome, Outcome::Connect(_)) {
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
        if exchange.outcome == Outcome::Ok {
            self.at(|s| &mut s.done, exchange.end, 1.0);
        }
    }

    /// The longest stretch with at least `ratio` of the peak in flight; `None` when nothing was ever in flight.
    pub fn window(&self, ratio: f64) -> Option<Window> {
        let pieces = self.flying.part.len();
        let flying = self.flying.means(pieces);
        let peak = flying.iter().copied().fold(0.0, f64::max);
        if peak <= 0.0 {
            return None;
        }
        // Sums of floats: what is equal may differ in its last digits.
        let least = peak * ratio - 1e-9;
        let (mut best, mut from) = (0..0, None);
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
        let mean = |course: &Course| course.means(best.end)[best.clone()].iter().sum::<f64>() / best.len() as f64;
        let (waited, first) = (mean(&self.waited), mean(&self.first));
        Some(Window {
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
    use crate::engine::load::Turn;
    use crate::engine::load::answer::Answer;
    use crate::engine::load::target::Exchange;

    /// From `wrote` to `end` (ms), the first token after a fifth of it, and so many tokens.
    fn record(wrote: u64, end: u64, tokens: u32) -> Record {
        let ms = Duration::from_millis;
        let first = wrote + (end - wrote) / 5;
        Record {
            turn: Turn { conversation: 0, index: 0 },
            planned: ms(wrote),
            free: ms(wrote),
            max_tokens: tokens,
            expected: None,
            exchange: Exchange {
                wrote: ms(wrote),
                first_token: Some(ms(first)),
                last_token: Some(ms(end)),
                arrived: tokens,
                answer: Answer { prompt_tokens: Some(100), completion_tokens: Some(tokens), ..Answer::default() },
                outcome: Outcome::Ok,
                ..Exchange::without_connection(ms(wrote), ms(end), String::new())
            },
        }
    }

    fn close(a: f64, b: f64, by: f64) {
        assert!((a - b).abs() <= by * b.abs(), "{a} is not {b}");
    }

    #[test]
    fn the_filling_up_and_the_running_empty_are_cut_off() {
        // Ten users, one second each, without a pause; they come one by one in the first ten seconds and leave likewise.
        let mut steady = Steady::default();
        for user in 0..10 {
            for turn in 0..60 {
                let wrote = 1_000 * user + 1_000 * turn;
                steady.add(&record(wrote, wrote + 1_000, 81));
            }
        }
        let found = steady.window(0.95).expect("something flew");
        close(found.peak, 10.0, 0.01);
        close(found.in_flight, 10.0, 0.01);
        assert!(
            (found.from.as_secs_f64() - 9.0).abs() < 0.3 && (found.to.as_secs_f64() - 60.0).abs() < 0.3,
            "{found:?}"
        );
        close(found.output_per_s, 810.0, 0.02);
        close(found.input_per_s, 1_000.0, 0.03);
        close(found.requests_per_s, 10.0, 0.03);
        close(found.ttft.expect("tokens came"), 0.2, 1e-6);
        // With half of the peak some of both ends belongs to it.
        let wide = steady.window(0.5).expect("something flew");
        assert!((wide.from.as_secs_f64() - 4.0).abs() < 0.3 && (wide.to.as_secs_f64() - 65.0).abs() < 0.3, "{wide:?}");
    }

    #[test]
    fn what_is_counted_stays_the_same_when_pieces_grow() {
        let mut steady = Steady::default();
        steady.add(&record(0, 100, 11));
        steady.add(&record(50, 150, 11));
        let sum = |steady: &Steady| {
            let seconds = steady.width.as_secs_f64();
            let of = |course: &Course| course.means(PIECES).iter().sum::<f64>() * seconds;
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
    fn nothing_in_flight_has_no_steady_state() {
        assert_eq!(Steady::default().window(RATIO), None);
        let mut steady = Steady::default();
        let lost = Record {
            exchange: Exchange::without_connection(Duration::ZERO, Duration::from_secs(1), "no".to_owned()),
            ..record(0, 1, 1)
        };
        steady.add(&lost);
        assert_eq!(steady.window(RATIO), None);
    }
}
