//! The table of SGLang's KEP-74, and the one it stands for.
//!
//! Its "multi-turn" row is the same single-turn prompts once more; beside it stands what turns two and further of conversations
//! bring.

use serde::Serialize;

use crate::commands::bench::multi_turn::watch::{Watched, Work};
use crate::commands::bench::sheet::{Section, Sheet};

/// Names of its passes.
pub(super) const FIRST: &str = "first-turn";
pub(super) const REPLAY: &str = "replay";
pub(super) const TRUE: &str = "multi-turn";

/// A row at one endpoint.
#[derive(Clone, Copy, Debug, Serialize)]
pub(in crate::commands::bench) struct Figures {
    pub requests: u64,
    /// Of prompts and answers, per second from the first request to the last end.
    pub total_tokens_per_s: Option<f64>,
    pub mean_ttft_ms: Option<f64>,
    pub mean_itl_ms: Option<f64>,
}

/// A row.
#[derive(Clone, Debug, Serialize)]
pub(in crate::commands::bench) struct Row {
    pub name: &'static str,
    pub without: Option<Figures>,
    pub with: Option<Figures>,
    /// Of the three, from without to with.
    pub percent: [Option<f64>; 3],
}

/// See the module.
#[derive(Clone, Debug, Serialize)]
pub(in crate::commands::bench) struct Kep74Report {
    /// As the KEP has it.
    pub table: Vec<Row>,
    /// Of conversations.
    pub multi_turn: Vec<Row>,
    pub without: String,
    pub with: Option<String>,
}

fn figures(work: &Work) -> Figures {
    Figures {
        requests: work.requests,
        total_tokens_per_s: work.tokens_per_s(),
        mean_ttft_ms: work.ttft_ms(),
        mean_itl_ms: work.itl_ms(),
    }
}

fn row(name: &'static str, pass: &str, watched: &[Watched], of: fn(&Watched) -> &Work) -> Row {
    let at = |side: &str| {
        watched.iter().find(|one| one.id.side_name == side && one.id.name == pass).map(|one| figures(of(one)))
    };
    let (without, with) = (at("A"), at("B"));
    let change = |of: fn(&Figures) -> Option<f64>| {
        let (without, with) = (of(&without?)?, of(&with?)?);
        (without > 0.0).then(|| (with / without - 1.0) * 100.0)
    };
    let percent = [change(|f| f.total_tokens_per_s), change(|f| f.mean_ttft_ms), change(|f| f.mean_itl_ms)];
    Row { name, without, with, percent }
}

impl Kep74Report {
    /// Of the passes named above, at `A` and, where there is one, `B`.
    pub(super) fn of(watched: &[Watched], without: String, with: Option<String>) -> Kep74Report {
        Kep74Report {
            table: vec![
                row("First-turn", FIRST, watched, |one| &one.first),
                row("Multi-turn", REPLAY, watched, |one| &one.first),
            ],
            multi_turn: vec![
                row("Turn 1", TRUE, watched, |one| &one.first),
                row("Turns 2..n", TRUE, watched, |one| &one.further),
            ],
            without,
            with,
        }
    }

    /// What is shown of it.
    pub fn sections(&self) -> Vec<Section> {
        let mut kep = Section::new("KEP-74");
        kep.sheets.push(self.sheet("KEP-74, as published", &self.table));
        kep.text.push("Its Multi-turn row is the First-turn prompts once more, not conversations.".to_owned());
        kep.text.push("One run each, as there: no interval. bench compare without the preset gives one.".to_owned());
        let mut truly = Section::new("KEP-74, with conversations");
        truly.sheets.push(self.sheet("The same with conversations", &self.multi_turn));
        truly.text.push(
            "Both rows are of one run, in which first and further turns were in flight together: throughputs add up, where they overlap."
                .to_owned(),
        );
        vec![kep, truly]
    }

    fn sheet(&self, title: &str, rows: &[Row]) -> Sheet {
        let head = ["", "endpoint", "Total token throughput (tok/s)", "Mean TTFT (ms)", "Mean ITL (ms)", "requests"];
        let mut sheet = Sheet::new(title, &head).words(1);
        let number = |value: Option<f64>| value.map_or("-".to_owned(), |value| format!("{value:.2}"));
        for row in rows {
            let both = [("without", row.without), ("with", row.with)];
            for (name, figures) in both.into_iter().filter_map(|(name, figures)| figures.map(|f| (name, f))) {
                // One endpoint is neither.
                let name = if self.with.is_none() { "A" } else { name };
                sheet.row([
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
                sheet.row([
                    row.name.to_owned(),
                    "difference".to_owned(),
                    change(0),
                    change(1),
                    change(2),
                    String::new(),
                ]);
            }
        }
        sheet.notes.push(match &self.with {
            Some(with) => format!("without: {}; with: {with}", self.without),
            None => format!("A: {}", self.without),
        });
        sheet.notes.push(
            "tokens of prompts and answers over the window, both by the server's count; ITL per token; TTFT from the planned instant"
                .to_owned(),
        );
        sheet
    }
}
