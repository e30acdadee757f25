//! Cache hits by reuse distance. A cache with space for N tokens holds roughly the tokens that were
//! used within the last N, so the histogram shows which reuse distances each tier serves.

use serde::Serialize;

/// Number of rows. Distances are grouped by powers of two; the last row covers everything beyond.
const ROWS: usize = 42;

/// Expected cached tokens by reuse distance, and the tier that served them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReuseHistogram {
    rows: [ReuseRow; ROWS],
}

impl Default for ReuseHistogram {
    fn default() -> ReuseHistogram {
        ReuseHistogram { rows: [ReuseRow::default(); ROWS] }
    }
}

/// One range of reuse distances.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ReuseRow {
    /// Lower bound (inclusive): number of prompt and output tokens that the server processed
    /// between two uses.
    pub from: u64,
    /// Upper bound (exclusive), in the same unit.
    pub below: u64,
    pub expected: u64,
    pub device: u64,
    pub host: u64,
    pub storage: u64,
    /// Cached, but the server reports no tier.
    pub cached_somewhere: u64,
    /// Tokens that were recomputed.
    pub missed: u64,
}

impl ReuseHistogram {
    /// Adds a prompt to the counts. `parts` lists its expected hits as pairs of (tokens, distance),
    /// in order from its start. Tiers also serve a prompt from the start: L1 first, then L2, then
    /// L3.
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

    /// Adds all counts from `other`.
    pub fn plus(&mut self, other: &ReuseHistogram) {
        for (mine, theirs) in self.rows.iter_mut().zip(&other.rows) {
            mine.expected += theirs.expected;
            mine.device += theirs.device;
            mine.host += theirs.host;
            mine.storage += theirs.storage;
            mine.cached_somewhere += theirs.cached_somewhere;
            mine.missed += theirs.missed;
        }
    }

    /// Returns the non-empty rows, shortest distance first.
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

/// Returns the row for a distance: 0, 1, 2-3, 4-7 and so on.
fn place(distance: u64) -> usize {
    ((u64::BITS - distance.leading_zeros()) as usize).min(ROWS - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiers_answer_from_the_start_of_a_prompt() {
        let mut reuse = ReuseHistogram::default();
        reuse.add(&[(64, 3), (32, 1000), (16, 1_000_000)], 48, 32, 16, 0);
        let rows = reuse.rows();
        let found: Vec<[u64; 6]> =
            rows.iter().map(|r| [r.from, r.expected, r.device, r.host, r.storage, r.missed]).collect();
        assert_eq!(found, [[2, 64, 48, 16, 0, 0], [512, 32, 0, 16, 16, 0], [524_288, 16, 0, 0, 0, 16]]);
    }

    #[test]
    fn rows_are_powers_of_two_and_the_last_is_open_ended() {
        assert_eq!([0, 1, 2, 3, 4, u64::MAX].map(place), [0, 1, 2, 2, 3, ROWS - 1]);
        let mut reuse = ReuseHistogram::default();
        reuse.add(&[(1, u64::MAX), (1, 0)], 5, 0, 0, 0);
        let rows = reuse.rows();
        assert_eq!((rows[0].from, rows[0].below, rows[1].below), (0, 1, u64::MAX));
        reuse.plus(&reuse.clone());
        assert_eq!(reuse.rows()[0].expected, 2);
    }
}
