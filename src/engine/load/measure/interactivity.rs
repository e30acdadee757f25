//! Interactivity: how fast a user of an agent sees tokens, from the request to the last one.
//!
//! AgentX publishes the inverse of the 90th percentile of E2E latency per output token, against the
//! throughput per GPU.

use std::time::Duration;

use serde::Serialize;

use crate::TimedRequest;
use crate::measure::TokenTotals;
use crate::{LatencyHistogram, LatencySummary};

/// E2E latency per output token, over the successful requests.
#[derive(Clone, Debug, Default)]
pub struct PerTokenLatency(LatencyHistogram);

/// Interactivity and throughput of a pass. Interactivity is in output tokens per second for one
/// user.
#[derive(Clone, Debug, Serialize)]
pub struct InteractivityReport {
    /// E2E latency per output token.
    pub e2e_per_output_token: LatencySummary,
    /// Inverse of its median.
    pub p50_interactivity: f64,
    /// Inverse of its 90th percentile: nine of ten requests are at least as fast.
    pub p90_interactivity: f64,
    /// Prompt and output tokens per second, including cached prompt tokens.
    pub tokens_per_s: f64,
    pub output_tokens_per_s: f64,
    /// Both, divided by the number of GPUs. `None` if it is not known.
    pub per_gpu: Option<GpuThroughput>,
}

/// Throughput per GPU, in tokens per second.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct GpuThroughput {
    pub gpus: u32,
    pub tokens_per_s: f64,
    pub output_tokens_per_s: f64,
}

impl PerTokenLatency {
    /// Adds a successful request with `tokens` output tokens.
    pub(super) fn add(&mut self, record: &TimedRequest, tokens: u32) {
        if tokens > 0 {
            self.0.record(record.exchange.end.saturating_sub(record.planned) / tokens, 1);
        }
    }

    /// Returns the report of a pass with these `tokens` in `took`; `None` without a request.
    pub fn report(&self, tokens: &TokenTotals, took: Duration, gpus: Option<u32>) -> Option<InteractivityReport> {
        let summary = self.0.summary()?;
        let inverse = |share: f64| self.0.at(share).map_or(0.0, |value| 1.0 / value.as_secs_f64().max(1e-9));
        let seconds = took.as_secs_f64().max(1e-9);
        let output = (tokens.completion + tokens.uncounted) as f64 / seconds;
        let all = tokens.prompt as f64 / seconds + output;
        let per_gpu = gpus.map(|gpus| GpuThroughput {
            gpus,
            tokens_per_s: all / f64::from(gpus),
            output_tokens_per_s: output / f64::from(gpus),
        });
        Some(InteractivityReport {
            e2e_per_output_token: summary,
            p50_interactivity: inverse(0.5),
            p90_interactivity: inverse(0.9),
            tokens_per_s: all,
            output_tokens_per_s: output,
            per_gpu,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Turn;
    use crate::target::Exchange;

    fn record(end_ms: u64) -> TimedRequest {
        let end = Duration::from_millis(end_ms);
        TimedRequest {
            turn: Turn { conversation: 0, index: 0 },
            planned: Duration::ZERO,
            eligible_at: Duration::ZERO,
            max_tokens: 10,
            possible: None,
            own_tokens: None,
            exchange: Exchange::without_connection(Duration::ZERO, end, String::new()),
        }
    }

    #[test]
    fn interactivity_is_the_inverse_of_a_percentile() {
        let mut latency = PerTokenLatency::default();
        // 10, 20, ... 100 ms per token.
        (1..=10).for_each(|tenth| latency.add(&record(100 * tenth), 10));
        latency.add(&record(1), 0);
        let tokens = TokenTotals { prompt: 900, completion: 100, ..TokenTotals::default() };
        let report = latency.report(&tokens, Duration::from_secs(2), Some(4)).expect("a report");
        assert_eq!(report.e2e_per_output_token.count, 10);
        assert!((report.p90_interactivity - 1.0 / 0.09).abs() < 0.1, "{report:?}");
        assert!((report.p50_interactivity - 20.0).abs() < 0.2, "{report:?}");
        assert_eq!((report.tokens_per_s, report.output_tokens_per_s), (500.0, 50.0));
        assert_eq!(report.per_gpu, Some(GpuThroughput { gpus: 4, tokens_per_s: 125.0, output_tokens_per_s: 12.5 }));
        assert!(PerTokenLatency::default().report(&tokens, Duration::ZERO, None).is_none());
    }
}
