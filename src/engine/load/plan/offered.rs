//! The load that a pass offers: rate, limits and duration.

use std::ops::Range;
use std::time::Duration;

use crate::session::PassPlan;
use crate::{Arrivals, Gaps, LiveSessionPlan, Pace, Rate, Rules, Seed};

/// When requests are sent, and for how long.
#[derive(Clone, Debug)]
pub struct OfferedLoad {
    /// Requests per second, above zero. If infinite, the next request is sent as soon as a response
    /// completes.
    pub rate: f64,
    pub gaps: Gaps,
    pub seed: Seed,
    /// Limits that apply at any rate.
    pub rules: Rules,
    /// Nothing is sent after this time.
    pub duration: Duration,
    /// If set, a single run keeps this number of sessions live, whatever the rate.
    pub sessions: Option<LiveSessionPlan>,
}

impl Default for OfferedLoad {
    /// One request per second with Poisson arrivals, for one hour.
    fn default() -> OfferedLoad {
        OfferedLoad {
            rate: 1.0,
            gaps: Gaps::POISSON,
            seed: Seed(1),
            rules: Rules::default(),
            duration: Duration::from_secs(3600),
            sessions: None,
        }
    }
}

impl OfferedLoad {
    /// Returns the maximum number of requests in flight, if there is one.
    pub fn in_flight(&self) -> Option<u32> {
        Some(self.rules.in_flight).filter(|most| *most != usize::MAX).and_then(|most| u32::try_from(most).ok())
    }

    /// Returns the pace for sending `conversations`.
    pub fn pace(&self, conversations: u32) -> Pace {
        if self.rate.is_infinite() {
            return Pace::Closed { conversations: conversations as usize };
        }
        let rng = self.seed.generator("arrivals", 0);
        let instants = Arrivals::Drawn { gaps: self.gaps, rate: Rate::Constant(self.rate) }.instants(rng.clone());
        if !self.rules.whole_conversations {
            return Pace::Requests(instants);
        }
        // As in `sglang.bench_serving`, the first request is sent at once.
        let first = instants.clone().next().unwrap_or_default();
        let at = instants.take(conversations as usize).map(|at| at.saturating_sub(first)).collect();
        Pace::Conversations(Arrivals::Recorded { at, speed: 1.0 }.instants(rng))
    }

    /// Returns a pass over the conversations in `part`.
    pub fn pass(&self, name: &str, block: u32, part: Range<u32>) -> PassPlan {
        PassPlan {
            name: name.to_owned(),
            block,
            pace: self.pace(part.len() as u32),
            part,
            rules: self.rules,
            duration: self.duration,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_of_the_whole_conversations_starts_at_once() {
        let rules = Rules { whole_conversations: true, ..Rules::default() };
        let Pace::Conversations(instants) = (OfferedLoad { rate: 4.0, rules, ..OfferedLoad::default() }).pace(20_001)
        else {
            panic!("conversations start at these times");
        };
        let at: Vec<f64> = instants.map(|at| at.as_secs_f64()).collect();
        assert_eq!((at.len(), at[0]), (20_001, 0.0));
        assert!((at[20_000] / 20_000.0 - 0.25).abs() < 0.01, "{}", at[20_000]);
    }
}
