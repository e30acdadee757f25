//! The table from SGLang's KEP-74, and the same table for whole conversations.
//!
//! The "multi-turn" row in KEP-74 repeats the single-turn prompts. The second table measures turn
//! 1 and later turns of conversations.

use serde::Serialize;

use crate::goals::PassStats;
use crate::measure::kep74::Kep74Totals;

/// Pass names in KEP-74's table: single turns, and the same turns again.
pub const FIRST: &str = "first-turn";
pub const REPLAY: &str = "replay";
/// Name of the pass with whole conversations.
pub const CONVERSATIONS: &str = "multi-turn";

/// Figures for one row at one endpoint.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Kep74Figures {
    pub requests: u64,
    /// Prompt and output tokens per second, from the first send to the last response.
    pub total_tokens_per_s: Option<f64>,
    pub mean_ttft_ms: Option<f64>,
    pub mean_itl_ms: Option<f64>,
}

impl From<&Kep74Totals> for Kep74Figures {
    fn from(totals: &Kep74Totals) -> Kep74Figures {
        Kep74Figures {
            requests: totals.requests,
            total_tokens_per_s: totals.tokens_per_s(),
            mean_ttft_ms: totals.ttft_ms(),
            mean_itl_ms: totals.itl_ms(),
        }
    }
}

/// A row of the table.
#[derive(Clone, Debug, Serialize)]
pub struct Kep74TableRow {
    pub name: &'static str,
    pub without: Option<Kep74Figures>,
    pub with: Option<Kep74Figures>,
    /// Change in the three figures from `without` to `with`.
    pub percent: [Option<f64>; 3],
}

impl Kep74TableRow {
    /// Compares a part of the pass `pass` at the endpoints `A` (`without`) and `B` (`with`).
    fn of(name: &'static str, pass: &str, stats: &[PassStats], part: fn(&PassStats) -> &Kep74Totals) -> Kep74TableRow {
        let at = |side: &str| {
            let found = stats.iter().find(|one| one.id.side_name == side && one.id.name == pass);
            found.map(|one| Kep74Figures::from(part(one)))
        };
        let without = at("A");
        let with = at("B");
        let change = |of: fn(&Kep74Figures) -> Option<f64>| {
            let without = of(&without?)?;
            let with = of(&with?)?;
            (without > 0.0).then(|| (with / without - 1.0) * 100.0)
        };
        let percent = [change(|f| f.total_tokens_per_s), change(|f| f.mean_ttft_ms), change(|f| f.mean_itl_ms)];
        Kep74TableRow { name, without, with, percent }
    }
}

/// The table of all turns and the table by turn.
#[derive(Clone, Debug, Serialize)]
pub struct Kep74Tables {
    /// Same table as in KEP-74.
    pub table: Vec<Kep74TableRow>,
    pub multi_turn: Vec<Kep74TableRow>,
}

impl Kep74Tables {
    /// Computes the tables from the passes at `A` and, if present, at `B`.
    pub fn of(stats: &[PassStats]) -> Kep74Tables {
        Kep74Tables {
            table: vec![
                Kep74TableRow::of("First-turn", FIRST, stats, |one| &one.first_turn),
                Kep74TableRow::of("Multi-turn", REPLAY, stats, |one| &one.first_turn),
            ],
            multi_turn: vec![
                Kep74TableRow::of("Turn 1", CONVERSATIONS, stats, |one| &one.first_turn),
                Kep74TableRow::of("Turns 2..n", CONVERSATIONS, stats, |one| &one.later_turns),
            ],
        }
    }
}
