//! The report of `bench verify`: the JSON document, the tables and plots.

use serde::Serialize;

use crate::commands::bench::caveat::{BenchCaveat, render_end};
use crate::commands::bench::measured::MeasuredSystem;
use crate::commands::bench::multi_turn::Identity;
use crate::commands::bench::verify::conclusion;
use crate::commands::cli::svg::{Axis, Plot, PlotSeries};
use crate::commands::cli::table::{ReportSection, ReportTable};
use crate::engine::load::verify::{Differences, NOISE_FACTOR, PairedRatio, SampleSize, TierResult, VerifyResult};

/// Powers of 10 at the ends of the axis. Divergences outside are drawn there, equal answers at the
/// left.
const POWERS: (f64, f64) = (-12.0, 2.0);

/// The JSON report (schema `mcctl.bench.verify/1`).
#[derive(Debug, Serialize)]
pub(super) struct VerifyReport {
    pub schema: &'static str,
    pub version: &'static str,
    pub target: String,
    pub seed: u64,
    /// Number of prompts, given or random.
    pub prompts: u32,
    /// Length of the longest one.
    pub prompt_tokens: u32,
    pub continuation_tokens: u32,
    pub output_tokens: u32,
    /// What the number of prompts was planned for; absent if the user chose it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sample_size: Option<SampleSize>,
    /// Whether all passes ran.
    pub complete: bool,
    pub measured: MeasuredSystem,
    #[serde(flatten)]
    pub result: VerifyResult,
    #[serde(rename = "doubts")]
    pub caveats: Vec<BenchCaveat>,
}

/// The document with its conclusion.
#[derive(Debug, Serialize)]
pub(super) struct VerifyDocument<'a> {
    #[serde(flatten)]
    report: &'a VerifyReport,
    conclusion: String,
}

impl VerifyReport {
    /// Returns the JSON document.
    pub(super) fn document(&self) -> VerifyDocument<'_> {
        VerifyDocument { report: self, conclusion: self.sentence() }
    }

    /// Returns the conclusion, one sentence per kind of verdict.
    pub(super) fn sentence(&self) -> String {
        conclusion::sentence(&self.result, self.complete)
    }

    /// Renders the report as text, wrapped to `width` columns.
    pub(super) fn text(&self, run: &Identity, width: usize) -> String {
        self.measured.section(run).render(width)
            + "\n"
            + &self.section().render(width)
            + "\n"
            + &render_end(&self.caveats, &[self.sentence()], width)
    }

    /// Describes what was sent.
    fn head(&self) -> String {
        let VerifyReport { prompts, prompt_tokens, continuation_tokens, output_tokens, .. } = self;
        let planned = self.sample_size.map_or(String::new(), |SampleSize { affected, power }| {
            format!(
                " They find a fault that affects {} % of the prompts with a probability of {} %.",
                rounded(affected * 100.0),
                rounded(power * 100.0)
            )
        });
        format!(
            "{prompts} prompts of up to {prompt_tokens} tokens, the last {continuation_tokens} of them with log-probabilities, and \
             {output_tokens} generated tokens.{planned}"
        )
    }

    /// Names the settings of the server that decide whether it repeats its answers.
    fn determinism(&self) -> Option<String> {
        let settings = &self.measured.servers.first()?.description.settings;
        let setting = |name: &str| settings.iter().find(|(known, _)| *known == name).map(|(_, value)| value);
        let deterministic = match setting("enable_deterministic_inference").and_then(serde_json::Value::as_bool) {
            Some(true) => "on",
            _ => "off or not reported",
        };
        let text = |name: &str| setting(name).and_then(serde_json::Value::as_str).unwrap_or("not reported").to_owned();
        Some(format!(
            "Deterministic inference of the server: {deterministic}. Attention backend: {}. Speculative decoding: {}. One prompt is \
             sent at a time.",
            text("attention_backend"),
            text("speculative_algorithm")
        ))
    }

    /// Returns the tables and plots.
    pub(super) fn section(&self) -> ReportSection {
        let mut section = ReportSection::new("Answers by tier");
        section.text.push(self.head());
        section.text.extend(self.determinism());
        section.tables = vec![self.tiers(), self.noise(), self.speed()];
        section.plots = vec![self.plot()];
        section
    }

    fn tiers(&self) -> ReportTable {
        let head = [
            "tier",
            "verdict",
            "verified",
            "compared with",
            "different",
            "other tokens",
            "KL median",
            "KL max",
            "limit",
            "KL from computing",
        ];
        let mut rows = ReportTable::new("", &head).text_column(1).text_column(3);
        for tier in &self.result.tiers {
            rows.row([
                tier.tier.name().to_owned(),
                tier.verdict.name().to_owned(),
                format!("{}/{}", tier.verified, tier.planned),
                tier.compared_with.map_or("-".to_owned(), |pass| pass.name().to_owned()),
                if tier.shifted { format!("{} (shifted)", tier.differing) } else { tier.differing.to_string() },
                tier.differences.tokens_differ.to_string(),
                nats(tier.differences.kl_median),
                largest(&tier.differences),
                nats(tier.limit),
                largest(&tier.from_computing),
            ]);
        }
        rows.notes.push(
            "KL: Kullback-Leibler divergence of the token distributions, in nats per token (mean over a prompt); a lower bound, because \
             only the likeliest tokens are known"
                .to_owned(),
        );
        rows.notes.push(format!(
            "different: prompts with a KL above the limit, {NOISE_FACTOR} times the largest one between repeated passes"
        ));
        rows.notes.push("other tokens: prompts with another token at temperature 0".to_owned());
        rows
    }

    fn noise(&self) -> ReportTable {
        let head = ["repeated passes", "prompts", "equal in every bit", "other tokens", "KL median", "KL max"];
        let mut rows = ReportTable::new("Noise", &head);
        let noise = &self.result.noise;
        for (name, part) in [
            ("computed twice", &noise.cold),
            ("computed alone, and in another batch", &noise.cold_paired),
            ("from L1 twice", &noise.device),
        ] {
            rows.row([
                name.to_owned(),
                part.prompts.to_string(),
                part.identical.to_string(),
                part.tokens_differ.to_string(),
                nats(part.kl_median),
                largest(part),
            ]);
        }
        rows
    }

    fn speed(&self) -> ReportTable {
        let head = ["tier", "token rate", "99.9 % interval", "accepted draft length", "99.9 % interval", ""];
        let mut rows = ReportTable::new("Decoding, compared with computing (1 = equal)", &head).text_column(5);
        let cells = |name: &str, decode: Option<PairedRatio>, accepted: Option<PairedRatio>, slower: bool| {
            let value =
                |ratio: Option<PairedRatio>| ratio.map_or("-".to_owned(), |ratio| format!("{:.2}", ratio.median));
            let slower = if slower { "slower" } else { "" };
            [name.to_owned(), value(decode), interval(decode), value(accepted), interval(accepted), slower.to_owned()]
        };
        rows.row(cells("computed twice", self.result.noise.decode, None, false));
        for TierResult { tier, decode, accept_length, slower, .. } in &self.result.tiers {
            rows.row(cells(tier.name(), *decode, *accept_length, *slower));
        }
        rows
    }

    /// Returns the distribution of the divergence over the prompts, a line for each tier.
    pub(super) fn plot(&self) -> Plot {
        let x = Axis::whole("KL as a power of 10, in nats per token (-12: equal)");
        let mut plot = Plot::new("Share of prompts up to this divergence", x, Axis::even("share, %"));
        let noise = &self.result.noise;
        let mut all = noise.cold.sorted.clone();
        all.extend(&noise.cold_paired.sorted);
        all.extend(&noise.device.sorted);
        all.sort_by(f64::total_cmp);
        plot = plot.with(PlotSeries::line("noise", 5, steps(&all)).dashed());
        for (colour, tier) in self.result.tiers.iter().enumerate().filter(|(_, tier)| tier.verified > 0) {
            plot = plot.with(PlotSeries::line(tier.tier.label(), colour, steps(&tier.differences.sorted)));
        }
        plot
    }
}

/// The points of a cumulative distribution. `sorted`: values in ascending order.
fn steps(sorted: &[f64]) -> Vec<(f64, f64)> {
    let share = |count: usize| count as f64 * 100.0 / sorted.len() as f64;
    let value = |kl: f64| kl.log10().clamp(POWERS.0, POWERS.1);
    let start = sorted.first().map(|_| (POWERS.0, 0.0));
    start.into_iter().chain(sorted.iter().enumerate().map(|(at, kl)| (value(*kl), share(at + 1)))).collect()
}

fn largest(of: &Differences) -> String {
    if of.infinite > 0 { "infinite".to_owned() } else { nats(of.kl_max) }
}

fn nats(value: Option<f64>) -> String {
    match value {
        None => "-".to_owned(),
        Some(0.0) => "0".to_owned(),
        Some(value) => format!("{value:.1e}"),
    }
}

fn interval(ratio: Option<PairedRatio>) -> String {
    let bounds = ratio.and_then(|ratio| ratio.low.zip(ratio.high));
    bounds.map_or("-".to_owned(), |(low, high)| format!("{low:.2} to {high:.2}"))
}

/// Formats without rounding errors of the conversion from percent.
fn rounded(value: f64) -> f64 {
    (value * 1e6).round() / 1e6
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distributions_rise_from_equal_answers_to_infinite_differences() {
        let found = steps(&[0.0, 1e-3, f64::INFINITY, f64::INFINITY]);
        assert_eq!(found, [(-12.0, 0.0), (-12.0, 25.0), (-3.0, 50.0), (2.0, 75.0), (2.0, 100.0)]);
        assert_eq!(steps(&[]), []);
    }

    #[test]
    fn divergences_are_written_with_two_digits() {
        assert_eq!([None, Some(0.0), Some(3.44e-7)].map(nats), ["-", "0", "3.4e-7"]);
        let broken = Differences { infinite: 1, ..Differences::default() };
        assert_eq!(largest(&broken), "infinite");
    }
}
