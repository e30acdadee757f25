//! The figures of one compared endpoint over all of its passes.

use crate::LatencyHistogram;
use crate::ceiling::HitCeiling;
use crate::measure::TokenTotals;
use crate::session::PassResult;

/// Totals and TTFT of one endpoint, over the passes that are compared.
#[derive(Clone, Debug, Default)]
pub struct SideFigures {
    pub requests: u64,
    pub failed: u64,
    pub tokens: TokenTotals,
    /// TTFT from the scheduled send time.
    pub ttft: LatencyHistogram,
    /// Duration of the passes in seconds, without the time between them.
    pub seconds: f64,
    /// The ceiling of the hit rate; `None` if it is unknown.
    pub ceiling: Option<HitCeiling>,
}

impl SideFigures {
    /// Returns the sums over `passes`.
    pub fn of<'a>(passes: impl IntoIterator<Item = &'a PassResult>) -> SideFigures {
        let mut sum = SideFigures::default();
        let mut ceilings = Vec::new();
        for pass in passes {
            ceilings.extend(pass.observed.as_ref().and_then(|observed| observed.ceiling.as_ref()));
            sum.requests += pass.tally.all.requests;
            sum.failed += pass.tally.failed();
            sum.tokens = sum.tokens.plus(&pass.tally.all.tokens);
            sum.ttft.add(&pass.tally.all.ttft);
            sum.seconds += pass.tally.took().as_secs_f64();
        }
        sum.ceiling = HitCeiling::sum(ceilings);
        sum
    }

    /// Returns `count` per second of the passes.
    pub fn per_second(&self, count: u64) -> f64 {
        if self.seconds > 0.0 { count as f64 / self.seconds } else { 0.0 }
    }
}
