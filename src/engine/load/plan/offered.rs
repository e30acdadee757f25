//! The load that a pass offers: rate, limits and duration.

use std::ops::Range;
use std::time::Duration;

use crate::numpy::{self, PriorDraws};
use crate::session::PassPlan;
use crate::{Arrivals, Gaps, Pace, Rate, Rules, Seed};

/// When requests are sent, and for how long.
#[derive(Clone, Debug)]
pub struct OfferedLoad {
    /// Requests per second, above zero. If infinite, the next request is sent as soon as a response completes.
    pub rate: f64,
    pub gaps: Gaps,
    /// Reproduces the arrival times of `sglang.bench_serving`, which samples these values before them. It uses Poisson arrivals.
    pub numpy_draws: Option<Vec<PriorDraws>>,
    pub seed: Seed,
    /// Limits that apply at any rate.
    pub rules: Rules,
    /// Nothing is sent after this time.
    pub duration: Duration,
}

impl Default for OfferedLoad {
    /// One request per second with Poisson arrivals, for one hour.
    fn default() -> OfferedLoad {
        OfferedLoad {
            rate: 1.0,
            gaps: Gaps::POISSON,
            numpy_draws: None,
            seed: Seed(1),
            rules: Rules::default(),
            duration: Duration::from_secs(3600),
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
        match &self.numpy_draws {
            Some(draws) => {
                let at = numpy::arrivals(self.seed, self.rate, conversations, draws);
                Pace::Conversations(Arrivals::Recorded { at, speed: 1.0 }.instants(rng))
            }
            None => {
                let arrivals = Arrivals::Drawn { gaps: self.gaps, rate: Rate::Constant(self.rate) };
                Pace::Requests(arrivals.instants(rng))
            }
        }
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
