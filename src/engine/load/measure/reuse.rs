//! Which tier answers, by how far back a prefix was used: what was in a cache of so many tokens is, roughly, what was used within so
//! many tokens. Pure.

use serde::Serialize;

/// Distances are told apart by powers of two; the last row has all beyond.
const ROWS: usize = 42;

/// Tokens that should have been cached, by how far back they were used, and where they came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reuse {
    rows: [ReuseRow; ROWS],
}

impl Default for Reuse {
    fn default() -> Reuse {
        Reuse { rows: [ReuseRow::default(); ROWS] }
    }
}

/// One distance.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ReuseRow {
    /// The least distance of the row: tokens of prompts and answers that the server saw between two uses.
    pub from: u64,
    /// The first distance beyond it.
    pub below: u64,
    /// Tokens that should have been cached.
    pub expected: u64,
    /// That came from L1.
    pub device: u64,
    /// From L2.
    pub host: u64,
    /// From L3.
    pub storage: u64,
    /// From a cache without a word which.
    pub cached_somewhere: u64,
    /// That were computed again.
    pub missed: u64,
}

impl Reuse {
    /// A prompt whose `parts` (tokens, distance), from its front on, should have been cached. Tiers answer from the front on, too: L1
    /// has the beginning, L2 what follows, L3 the rest.
    pub fn add(&mut self, parts: &[(u32, u64)], device: u32, host: u32, storage: u32, somewhere: u32) {
        let mut left = [device, host, storage, somewhere];
        for (tokens, distance) in parts {
            let row = &mut self.rows[place(*distance)];
            row.expected += u64::from(*tokens);
            let mut missing = *tokens;
            let columns = [&mut row.device, &mut row.host, &mut row.storage, &mut row.cached_somewhere];
            for (column, left) in columns.into_iter().zip(&mut left) {
                let taken = missing.min(*left);
                *left -= taken;
                missing -= taken;
                *column += u64::from(taken);
            }
            row.missed += u64::from(missing);
        }
    }

    /// Count all of `other`.
    pub fn plus(&mut self, other: &Reuse) {
        for (mine, theirs) in self.rows.iter_mut().zip(&other.rows) {
            mine.expected += theirs.expected;
            mine.device += theirs.device;
            mine.host += theirs.host;
            mine.storage += theirs.storage;
            mine.cached_somewhere += theirs.cached_somewhere;
            mine.missed += theirs.missed;
        }
    }

    /// The rows that have something, nearest first.
    pub fn rows(&self) -> Vec<ReuseRow> {
        let bounds = |place: usize| match place {
            0 => (0, 1),
            _ => (1 << (place - 1), if place == ROWS - 1 { u64::MAX } else { 1 << place }),
        };
        let named = self.rows.iter().enumerate().map(|(place, row)| {
            let (from, below) = bounds(place);
            ReuseRow { from, below, ..*row }
        });
        named.filter(|row| row.expected > 0).collect()
    }
}

/// The row of a distance: nothing, one, two to three, four to seven ...
fn place(distance: u64) -> usize {
    ((u64::BITS - distance.leading_zeros()) as usize).min(ROWS - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiers_answer_from_the_front_of_a_prompt_on() {
        let mut reuse = Reuse::default();
        reuse.add(&[(64, 3), (32, 1000), (16, 1_000_000)], 48, 32, 16, 0);
        let rows = reuse.rows();
        let told: Vec<[u64; 6]> =
            rows.iter().map(|r| [r.from, r.expected, r.device, r.host, r.storage, r.missed]).collect();
        assert_eq!(told, [[2, 64, 48, 16, 0, 0], [512, 32, 0, 16, 16, 0], [524_288, 16, 0, 0, 0, 16]]);
    }

    #[test]
    fn rows_are_powers_of_two_and_the_last_takes_all_beyond() {
        assert_eq!([0, 1, 2, 3, 4, u64::MAX].map(place), [0, 1, 2, 2, 3, ROWS - 1]);
        let mut reuse = Reuse::default();
        reuse.add(&[(1, u64::MAX), (1, 0)], 5, 0, 0, 0);
        let rows = reuse.rows();
        assert_eq!((rows[0].from, rows[0].below, rows[1].below), (0, 1, u64::MAX));
        reuse.plus(&reuse.clone());
        assert_eq!(reuse.rows()[0].expected, 2);
    }
}
