//! The table from SGLang's KEP-74, and the same table for real conversations.
//!
//! The "multi-turn" row in KEP-74 repeats the single-turn prompts. The second table measures turn 1 and later turns of conversations.

use serde::Serialize;

use crate::commands::table::{ReportSection, ReportTable};
use crate::engine::load::goals::PassStats;
use crate::engine::load::measure::kep74::Kep74Totals;
use crate::engine::load::plan::{KEP74_CONVERSATIONS, KEP74_FIRST, KEP74_REPLAY};

/// Figures for one row at one endpoint.
#[derive(Clone, Copy, Debug, Serialize)]
pub(in crate::commands::bench) struct Kep74Figures {
    pub requests: u64,
    /// Prompt and output tokens per second, from the first send to the last response.
    pub total_tokens_per_s: Option<f64>,
    pub mean_ttft_ms: Option<f64>,
    pub mean_itl_ms: Option<f64>,
}

/// A row of the table.
#[derive(Clone, Debug, Serialize)]
pub(in crate::commands::bench) struct Kep74TableRow {
    pub name: &'static str,
    pub without: Option<Kep74Figures>,
    pub with: Option<Kep74Figures>,
    /// Change in the three figures from `without` to `with`.
    pub percent: [Option<f64>; 3],
}

/// The tables for the preset kep74.
#[derive(Clone, Debug, Serialize)]
pub(in crate::commands::bench) struct Kep74Report {
    /// Same table as in KEP-74.
    pub table: Vec<Kep74TableRow>,
    pub multi_turn: Vec<Kep74TableRow>,
    pub without: String,
    pub with: Option<String>,
}

fn figures(work: &Kep74Totals) -> Kep74Figures {
    Kep74Figures {
        requests: work.requests,
        total_tokens_per_s: work.tokens_per_s(),
        mean_ttft_ms: work.ttft_ms(),
        mean_itl_ms: work.itl_ms(),
    }
}

fn row(name: &'static str, pass: &str, watched: &[PassStats], of: fn(&PassStats) -> &Kep74Totals) -> Kep74TableRow {
    let at = |side: &str| {
        watched.iter().find(|one| one.id.side_name == side && one.id.name == pass).map(|one| figures(of(one)))
    };
    let (without, with) = (at("A"), at("B"));
    let change = |of: fn(&Kep74Figures) -> Option<f64>| {
        let (without, with) = (of(&without?)?, of(&with?)?);
        (without > 0.0).then(|| (with / without - 1.0) * 100.0)
    };
    let percent = [change(|f| f.total_tokens_per_s), change(|f| f.mean_ttft_ms), change(|f| f.mean_itl_ms)];
    Kep74TableRow { name, without, with, percent }
}

impl Kep74Report {
    /// Computes the tables from the passes at `A` and, if present, at `B`.
    pub(super) fn of(watched: &[PassStats], without: String, with: Option<String>) -> Kep74Report {
        Kep74Report {
            table: vec![
                row("First-turn", KEP74_FIRST, watched, |one| &one.first_turn),
                row("Multi-turn", KEP74_REPLAY, watched, |one| &one.first_turn),
            ],
            multi_turn: vec![
                row("Turn 1", KEP74_CONVERSATIONS, watched, |one| &one.first_turn),
                row("Turns 2..n", KEP74_CONVERSATIONS, watched, |one| &one.later_turns),
            ],
            without,
            with,
        }
    }

    /// Returns the report sections.
    pub fn sections(&self) -> Vec<ReportSection> {
        let mut kep = ReportSection::new("KEP-74");
        kep.tables.push(self.table("KEP-74, as published", &self.table));
        kep.text.push(
            "As in KEP-74, the Multi-turn row repeats the First-turn prompts; it does not send conversations."
                .to_owned(),
        );
        kep.text.push(
            "Each row comes from a single run, so there are no confidence intervals. For intervals, use bench compare without the preset."
                .to_owned(),
        );
        let mut conversations = ReportSection::new("KEP-74, with conversations");
        conversations.tables.push(self.table("With conversations", &self.multi_turn));
        conversations.text.push(
            "Both rows come from one run. First and later turns are in flight at the same time: add their throughputs for the total."
                .to_owned(),
        );
        vec![kep, conversations]
    }

    /// Returns the report's conclusion: the mean TTFT of three rows.
    pub fn answer(&self) -> Vec<String> {
        let ms = |figures: Option<Kep74Figures>| {
            figures.and_then(|figures| figures.mean_ttft_ms).map_or("-".to_owned(), |ms| format!("{ms:.1} ms"))
        };
        let rows = self.table.iter().chain(self.multi_turn.last());
        rows.map(|row| match row.with {
            None => format!("{}: mean TTFT {}", row.name, ms(row.without)),
            with => {
                let change = row.percent[1].map_or("-".to_owned(), |percent| format!("{percent:+.1} %"));
                format!("{}: mean TTFT {} for 'without', {} for 'with' ({change})", row.name, ms(row.without), ms(with))
            }
        })
        .collect()
    }

    fn table(&self, title: &str, rows: &[Kep74TableRow]) -> ReportTable {
        let head = ["row", "endpoint", "Total token throughput (tok/s)", "Mean TTFT (ms)", "Mean ITL (ms)", "requests"];
        let mut table = ReportTable::new(title, &head).text_column(1);
        let number = |value: Option<f64>| value.map_or("-".to_owned(), |value| format!("{value:.2}"));
        for row in rows {
            let both = [("without", row.without), ("with", row.with)];
            for (name, figures) in both.into_iter().filter_map(|(name, figures)| figures.map(|f| (name, f))) {
                let name = if self.with.is_none() { "A" } else { name };
                table.row([
                    row.name.to_owned(),
                    name.to_owned(),
                    number(figures.total_tokens_per_s),
                    number(figures.mean_ttft_ms),
                    number(figures.mean_itl_ms),
                    figures.requests.to_string(),
                ]);
            }
            if row.with.is_some() {
                let change = |at: usize| row.percent[at].map_or("-".to_owned(), |percent| format!("{percent:+.2} %"));
                table.row([
                    row.name.to_owned(),
                    "difference".to_owned(),
                    change(0),
                    change(1),
                    change(2),
                    String::new(),
                ]);
            }
        }
        table.notes.push(match &self.with {
            Some(with) => format!("without: {}; with: {with}", self.without),
            None => format!("A: {}", self.without),
        });
        table.notes.push(
            "Throughput: prompt and output tokens, counted by the server. ITL: per token. TTFT: from the scheduled send time."
                .to_owned(),
        );
        table
    }
}
