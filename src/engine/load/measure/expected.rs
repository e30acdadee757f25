//! Expected and actual cache hits by turn.

use serde::Serialize;

use crate::measure::ROWS_MAX;

/// Expected and actual cached tokens over all requests for which the expected number is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ExpectedRow {
    pub requests: u64,
    pub prompt: u64,
    pub expected: u64,
    pub cached: u64,
    /// Requests with fewer cached tokens than expected.
    pub short: u64,
    /// Sum of missing tokens.
    pub short_tokens: u64,
    /// Cached tokens in excess of the expected number, because a similar prompt was still in flight
    /// or the server caches at a finer granularity.
    pub over_tokens: u64,
}

/// Expected and actual hits, by turn and in total.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Expectation {
    /// Rows by turn; the first turn is at index 0. The last row covers all turns from [`ROWS_MAX`]
    /// on.
    pub turns: Vec<ExpectedRow>,
    pub all: ExpectedRow,
}

impl Expectation {
    /// Counts a request for turn `index`.
    pub fn add(&mut self, index: u32, prompt: u32, expected: u32, cached: u32) {
        let place = (index as usize).min(ROWS_MAX - 1);
        if self.turns.len() <= place {
            self.turns.resize_with(place + 1, ExpectedRow::default);
        }
        for row in [&mut self.turns[place], &mut self.all] {
            row.requests += 1;
            row.prompt += u64::from(prompt);
            row.expected += u64::from(expected);
            row.cached += u64::from(cached);
            row.short += u64::from(cached < expected);
            row.short_tokens += u64::from(expected.saturating_sub(cached));
            row.over_tokens += u64::from(cached.saturating_sub(expected));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_and_surplus_tokens_are_counted_separately() {
        let mut expectation = Expectation::default();
        expectation.add(0, 100, 0, 16);
        expectation.add(1, 200, 96, 64);
        expectation.add(1_000, 300, 192, 192);
        assert_eq!(expectation.turns.len(), ROWS_MAX);
        let all = expectation.all;
        assert_eq!((all.requests, all.expected, all.cached), (3, 288, 272));
        assert_eq!((all.short, all.short_tokens, all.over_tokens), (1, 32, 16));
    }
}
