//! Lengths of prompts and responses in tokens, in bounded memory.

use std::collections::BTreeMap;

use serde::Serialize;

/// Lengths keep this many significant bits, so quantiles are accurate to 1 %.
const BITS: u32 = 8;

/// A histogram of lengths.
#[derive(Clone, Debug, Default)]
pub struct TokenHistogram {
    counts: BTreeMap<u32, u64>,
    count: u64,
    sum: u64,
    min: u32,
    max: u32,
}

/// Summary of lengths, in tokens.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LengthSummary {
    pub count: u64,
    pub mean: f64,
    pub min: u32,
    pub p50: u32,
    pub p90: u32,
    pub max: u32,
    /// Cumulative distribution: lengths, each with the share of lengths at or below it.
    pub distribution: Vec<(u32, f64)>,
}

impl TokenHistogram {
    /// Adds the length of a prompt or response.
    pub fn record(&mut self, tokens: u32) {
        let excess = (u32::BITS - tokens.leading_zeros()).saturating_sub(BITS);
        *self.counts.entry(tokens >> excess << excess).or_default() += 1;
        self.min = if self.count == 0 { tokens } else { self.min.min(tokens) };
        self.max = self.max.max(tokens);
        self.count += 1;
        self.sum += u64::from(tokens);
    }

    fn at(&self, q: f64) -> u32 {
        let wanted = (q * self.count as f64).ceil().max(1.0) as u64;
        let mut below = 0;
        for (tokens, count) in &self.counts {
            below += count;
            if below >= wanted {
                return (*tokens).clamp(self.min, self.max);
            }
        }
        self.max
    }

    /// Returns the summary, or `None` if nothing was recorded.
    pub fn summary(&self) -> Option<LengthSummary> {
        if self.count == 0 {
            return None;
        }
        let mut distribution: Vec<(u32, f64)> = vec![(self.min, 0.0)];
        for step in 1..=50 {
            let share = f64::from(step) / 50.0;
            let tokens = if step == 50 { self.max } else { self.at(share) };
            match distribution.last_mut() {
                Some(last) if last.0 == tokens => last.1 = share,
                _ => distribution.push((tokens, share)),
            }
        }
        Some(LengthSummary {
            count: self.count,
            mean: (self.sum as f64 / self.count as f64 * 10.0).round() / 10.0,
            min: self.min,
            p50: self.at(0.5),
            p90: self.at(0.9),
            max: self.max,
            distribution,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_accurate_to_one_percent_in_bounded_memory() {
        let mut lengths = TokenHistogram::default();
        assert_eq!(lengths.summary(), None);
        (1..=100_000).for_each(|tokens| lengths.record(tokens));
        let found = lengths.summary().expect("lengths");
        assert_eq!((found.min, found.max, found.count, found.mean), (1, 100_000, 100_000, 50_000.5));
        assert!((f64::from(found.p50) - 50_000.0).abs() <= 500.0 && (f64::from(found.p90) - 90_000.0).abs() <= 900.0);
        assert!(lengths.counts.len() < 4_000 && found.distribution.len() <= 51);
    }

    #[test]
    fn equal_lengths_have_one_step() {
        let mut lengths = TokenHistogram::default();
        (0..9).for_each(|_| lengths.record(512));
        let found = lengths.summary().expect("lengths");
        assert_eq!((found.p50, found.p90, &found.distribution[..]), (512, 512, &[(512, 1.0)][..]));
        lengths.record(u32::MAX);
        lengths.record(0);
        assert_eq!(lengths.summary().map(|found| (found.min, found.max)), Some((0, u32::MAX)));
    }
}
