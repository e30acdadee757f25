//! Reports the tables of the preset kep74.

use serde::Serialize;

use crate::commands::cli::table::{ReportSection, ReportTable};
use crate::engine::load::kep74::{Kep74Figures, Kep74TableRow, Kep74Tables};

/// The tables for the kep74 preset.
#[derive(Clone, Debug, Serialize)]
pub(in crate::commands::bench) struct Kep74Report {
    #[serde(flatten)]
    pub tables: Kep74Tables,
    pub without: String,
    pub with: Option<String>,
}

impl Kep74Report {
    /// Returns the report sections.
    pub(crate) fn sections(&self) -> Vec<ReportSection> {
        let mut kep = ReportSection::new("KEP-74");
        kep.tables.push(self.table("KEP-74, as published", &self.tables.table));
        kep.text.push(
            "As in KEP-74, the Multi-turn row repeats the First-turn prompts; it does not send conversations."
                .to_owned(),
        );
        kep.text.push(
            "Each row comes from a single run, so there are no confidence intervals. For intervals, use bench compare without the preset."
                .to_owned(),
        );
        let mut conversations = ReportSection::new("KEP-74, with conversations");
        conversations.tables.push(self.table("With conversations", &self.tables.multi_turn));
        conversations.text.push(
            "Both rows come from one run. First and later turns are in flight at the same time: add their throughputs for the total."
                .to_owned(),
        );
        vec![kep, conversations]
    }

    /// Returns the report's conclusion: the mean TTFT of three rows.
    pub(crate) fn answer(&self) -> Vec<String> {
        let ms = |figures: Option<Kep74Figures>| {
            figures.and_then(|figures| figures.mean_ttft_ms).map_or("-".to_owned(), |ms| format!("{ms:.1} ms"))
        };
        let rows = self.tables.table.iter().chain(self.tables.multi_turn.last());
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
