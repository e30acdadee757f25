//! What should have been cached beside what was, by turn. Pure.

use serde::Serialize;

use crate::engine::load::measure::ROWS_MAX;

/// Tokens that should have been cached, and those that were, of the requests that somebody kept count of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ExpectedRow {
    /// Requests.
    pub requests: u64,
    /// Tokens of their prompts.
    pub prompt: u64,
    /// That should have been cached.
    pub expected: u64,
    /// That were.
    pub cached: u64,
    /// Requests that got fewer than they should.
    pub short: u64,
    /// Tokens that they lacked.
    pub short_tokens: u64,
    /// Tokens that were cached beyond what should have been (another's prompt was still being answered, or its own rule is finer).
    pub over_tokens: u64,
}

/// By turn, and in all.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Expectation {
    /// The first turn at 0; the last row has all turns from [`ROWS_MAX`] on.
    pub turns: Vec<ExpectedRow>,
    /// All of them.
    pub all: ExpectedRow,
}

impl Expectation {
    /// Count a request of turn `index`.
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
    fn what_lacks_and_what_is_beyond_are_told_apart() {
        let mut told = Expectation::default();
        told.add(0, 100, 0, 16);
        told.add(1, 200, 96, 64);
        told.add(1_000, 300, 192, 192);
        assert_eq!(told.turns.len(), ROWS_MAX);
        let all = told.all;
        assert_eq!((all.requests, all.expected, all.cached), (3, 288, 272));
        assert_eq!((all.short, all.short_tokens, all.over_tokens), (1, 32, 16));
    }
}
