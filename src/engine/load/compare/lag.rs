//! How much the load generator itself may contribute to a difference.
//!
//! TTFT and E2E latency count from the scheduled send time, so they include the generator lag. If
//! requests are sent late at one endpoint only, the difference of the means is off by up to the
//! mean lag. Token arrivals have kernel timestamps, so TPOT and ITL do not depend on the lag.
//! Without timestamps, they are off by up to the client read delay, divided by the number of
//! tokens.

use std::time::Duration;

use crate::compare::{Measure, PairedPasses};
use crate::{LatencyHistogram, LatencySummary};

/// The generator lag and read delay in the passes at one endpoint, in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SideLag {
    pub mean_ms: f64,
    /// 99th percentile, or the highest percentile that the sample size supports.
    pub p99_ms: f64,
    /// Mean client read delay; zero if unknown.
    pub read_ms: f64,
    /// Mean number of tokens after the first in a response.
    pub gaps: f64,
}

impl SideLag {
    pub(super) fn of(both: &PairedPasses<'_>) -> [SideLag; 2] {
        let ms = |duration: Duration| duration.as_secs_f64() * 1e3;
        [0, 1].map(|side| {
            let mut lag = LatencyHistogram::default();
            let mut delays = LatencyHistogram::default();
            for pass in &both.passes[side] {
                lag.add(&pass.tally.lag);
                delays.add(&pass.ran.delays);
            }
            let high = |lag: &LatencySummary| lag.p99.or(lag.p95).or(lag.p90).unwrap_or(lag.max);
            let gaps =
                |(_, a, b): &(u32, super::Figure, super::Figure)| f64::from([a, b][side].completion.saturating_sub(1));
            SideLag {
                mean_ms: lag.summary().map_or(0.0, |lag| ms(lag.mean)),
                p99_ms: lag.summary().map_or(0.0, |lag| ms(high(&lag))),
                read_ms: delays.summary().map_or(0.0, |delays| ms(delays.mean)),
                gaps: both.pairs.iter().map(gaps).sum::<f64>() / both.pairs.len().max(1) as f64,
            }
        })
    }
}

/// Returns the bound on the bias of the difference in `measure`, in its unit. The lag of only one
/// endpoint counts, since both shift the difference in opposite directions.
pub(super) fn bias(measure: Measure, lag: &[SideLag; 2]) -> f64 {
    let most = |of: fn(&SideLag) -> f64| lag.iter().map(of).fold(0.0, f64::max);
    match measure {
        Measure::Ttft => most(|side| side.mean_ms),
        Measure::E2e => most(|side| side.mean_ms + side.read_ms),
        Measure::Tpot | Measure::Itl => most(|side| side.read_ms / side.gaps.max(1.0)),
        Measure::Cached => 0.0,
    }
}
