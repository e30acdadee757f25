//! Tracks goals per pass: goodput, steady state, and the first turns separately from later turns.

use std::sync::Arc;

use crate::measure::goodput::{Goodput, LatencyLimit};
use crate::measure::kep74::Kep74Totals;
use crate::measure::steady::SteadyState;
use crate::session::{AfterPass, Observer, PassId, PassResult};
use crate::{LiveCounters, LoadCaveat, TimedRequest};

/// Goal statistics for one pass.
#[derive(Clone, Debug)]
pub struct PassStats {
    pub id: PassId,
    pub goodput: Goodput,
    pub steady: SteadyState,
    pub first_turn: Kep74Totals,
    pub later_turns: Kep74Totals,
}

impl PassStats {
    /// Returns a caveat if the steady state of `pass` is too short to compute rates. `ratio`: the
    /// share of the peak concurrency that defines the steady state.
    pub fn caveat(&self, pass: &PassResult, ratio: f64) -> Option<LoadCaveat> {
        let window = self.steady.window(ratio)?;
        let e2e = pass.tally.all.e2e.summary().map(|e2e| e2e.mean);
        let caveat = LoadCaveat::SteadyStateTooShort { seconds: window.seconds(), ended: window.completed() };
        window.is_too_short(e2e).then_some(caveat)
    }
}

/// Observer that tracks goals.
#[derive(Debug)]
pub struct GoalTracker {
    limits: Vec<LatencyLimit>,
    /// Minimum share of requests that must meet the limits; otherwise the pass fails. After two
    /// failed passes in a row, the run stops.
    pub required_share: Option<f64>,
    /// Whether each pass met the required share.
    met: Vec<bool>,
    pub passes: Vec<PassStats>,
}

impl GoalTracker {
    /// Creates a tracker for `limits` that never stops the run.
    pub fn new(limits: &[LatencyLimit]) -> GoalTracker {
        GoalTracker { limits: limits.to_vec(), required_share: None, met: Vec::new(), passes: Vec::new() }
    }

    /// Returns whether fewer than the share `required` of the requests sent in `passes` met the
    /// limits.
    pub fn has_missed(&self, passes: &[PassResult], required: f64) -> bool {
        let sent: u64 = passes.iter().map(PassResult::sent).sum();
        let met: u64 = self.passes.iter().map(|pass| pass.goodput.met).sum();
        (met as f64) < required * sent as f64
    }
}

impl Observer for GoalTracker {
    fn pass_started(&mut self, pass: &PassId, _: u64, _: u64, _: &Arc<LiveCounters>) {
        self.passes.push(PassStats {
            id: pass.clone(),
            goodput: Goodput::new(&self.limits),
            steady: SteadyState::default(),
            first_turn: Kep74Totals::default(),
            later_turns: Kep74Totals::default(),
        });
    }

    fn record(&mut self, _: &PassId, record: &TimedRequest) {
        let Some(pass) = self.passes.last_mut() else { return };
        pass.goodput.add(record);
        pass.steady.add(record);
        if record.turn.index == 0 { pass.first_turn.add(record) } else { pass.later_turns.add(record) }
    }

    fn pass_ended(&mut self, pass: &PassResult) -> AfterPass {
        let (Some(required), Some(stats)) = (self.required_share, self.passes.last()) else {
            return AfterPass::Continue;
        };
        self.met.push(stats.goodput.share(pass.sent()) >= required);
        if is_settled(&self.met) { AfterPass::Stop } else { AfterPass::Continue }
    }
}

/// Returns whether the last two passes missed the limits, so that higher loads need not be run.
fn is_settled(met: &[bool]) -> bool {
    met.ends_with(&[false, false])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_failures_in_a_row_settle_a_sweep() {
        assert_eq!([&[true, false, false][..], &[false, true, false], &[false]].map(is_settled), [true, false, false]);
    }
}
