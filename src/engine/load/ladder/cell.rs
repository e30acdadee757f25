//! The results for one prompt length and tier.

use serde::Serialize;

use crate::ladder::median::{MedianInterval, median_interval};
use crate::ladder::{LadderTier, TimeSaved};

/// Confidence level of the medians.
const LEVEL: f64 = 0.95;

/// Results for one prompt length and one tier.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LadderCell {
    /// Prompt length in tokens.
    pub length: u32,
    /// The tier that should serve the prompt.
    pub tier: LadderTier,
    pub requests: u32,
    /// Requests that this tier actually served, according to the server. Only these are evaluated.
    pub verified: u32,
    /// Prompt tokens in all requests, by source.
    pub device: u64,
    pub host: u64,
    pub storage: u64,
    pub computed: u64,
    /// TTFT (sent): time from the last byte of the request to the first token.
    pub ttft: Option<MedianTtft>,
    /// Prompt tokens per second until the first token, at the median.
    pub tokens_per_s: Option<f64>,
    /// Comparison with computing; `None` for computed prompts.
    pub saved: Option<TimeSaved>,
}

impl LadderCell {
    /// A cell to which no request has been added yet.
    pub fn new(length: u32, tier: LadderTier) -> LadderCell {
        LadderCell {
            length,
            tier,
            requests: 0,
            verified: 0,
            device: 0,
            host: 0,
            storage: 0,
            computed: 0,
            ttft: None,
            tokens_per_s: None,
            saved: None,
        }
    }
}

/// A median TTFT and its 95 % confidence interval, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct MedianTtft {
    pub median_ms: f64,
    /// Bounds of the interval, which are measured values. Absent with fewer than six.
    pub low_ms: Option<f64>,
    pub high_ms: Option<f64>,
    pub min_ms: f64,
    pub max_ms: f64,
}

impl MedianTtft {
    /// Returns the median of `times` in milliseconds, or `None` without any.
    pub(super) fn of(times: &[f64]) -> Option<MedianTtft> {
        let MedianInterval { median: median_ms, bounds } = median_interval(times, LEVEL)?;
        let low_ms = bounds.map(|bounds| bounds.0);
        let high_ms = bounds.map(|bounds| bounds.1);
        let min_ms = times.iter().copied().fold(f64::INFINITY, f64::min);
        let max_ms = times.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        Some(MedianTtft { median_ms, low_ms, high_ms, min_ms, max_ms })
    }

    /// Returns half of the width of the interval, in milliseconds.
    pub(super) fn half_width(&self) -> Option<f64> {
        Some((self.high_ms? - self.low_ms?) / 2.0)
    }
}
