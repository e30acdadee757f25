//! The figures of a tier ladder: TTFT per prompt length and tier, fitted lines, and where loading becomes faster than computing.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::engine::load::ladder::{LadderPrompts, LadderTier};
use crate::engine::load::session::Figure;

/// Results for one prompt length and one tier.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LadderCell {
    /// Prompt length in tokens.
    pub length: u32,
    /// The tier that should serve the prompt.
    pub tier: LadderTier,
    pub requests: u32,
    /// Requests that this tier actually served, according to the server. Only these are evaluated.
    pub verified: u32,
    /// Prompt tokens in all requests, by source.
    pub device: u64,
    pub host: u64,
    pub storage: u64,
    pub computed: u64,
    /// TTFT (sent): time from the last byte of the request to the first token, with the 95 % confidence interval of the
    /// mean.
    pub ttft: Option<Mean>,
    /// Prompt tokens per second until the first token.
    pub tokens_per_s: Option<f64>,
}

impl LadderCell {
    /// A cell to which no request has been added yet.
    pub fn new(length: u32, tier: LadderTier) -> LadderCell {
        LadderCell {
            length,
            tier,
            requests: 0,
            verified: 0,
            device: 0,
            host: 0,
            storage: 0,
            computed: 0,
            ttft: None,
            tokens_per_s: None,
        }
    }
}

/// A mean and its confidence interval, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Mean {
    pub mean_ms: f64,
    /// Bounds of the 95 % interval. Absent if there are fewer than two values.
    pub low_ms: Option<f64>,
    pub high_ms: Option<f64>,
}

/// TTFT as a fixed component plus a per-token component, fitted by least squares over the prompt lengths.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct LinearFit {
    pub tier: LadderTier,
    pub fixed_ms: f64,
    /// Inverse of the per-token component. Absent if TTFT does not increase with the prompt length.
    pub tokens_per_s: Option<f64>,
}

/// The prompt length above which loading from a tier is faster than computing the tokens.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct BreakEven {
    pub tier: LadderTier,
    /// Shortest measured length at and above which the tier's confidence interval lies below the interval for computed
    /// prompts.
    pub shown_from: Option<u32>,
    /// Length at which the fitted lines cross. Zero if the tier is always faster; absent if it is never faster.
    pub fitted: Option<f64>,
}

/// Results of a tier ladder.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Ladder {
    /// Sorted by length, then by tier.
    pub rungs: Vec<LadderCell>,
    pub fits: Vec<LinearFit>,
    /// Contains only cache tiers.
    pub break_even: Vec<BreakEven>,
}

impl Ladder {
    /// Evaluates the figures for each request, paired with the tier that should have served the request. `page` is the
    /// server's page size in tokens.
    pub fn of(rungs: &LadderPrompts, page: u32, figures: &[(LadderTier, Figure)]) -> Ladder {
        let mut cells: BTreeMap<(u32, LadderTier), (LadderCell, Vec<f64>)> = BTreeMap::new();
        for (tier, figure) in figures.iter().filter(|(_, figure)| figure.well) {
            let length = rungs.length(figure.turn.conversation);
            let (cell, times) =
                cells.entry((length, *tier)).or_insert_with(|| (LadderCell::new(length, *tier), Vec::new()));
            cell.requests += 1;
            cell.device += u64::from(figure.device);
            cell.host += u64::from(figure.host);
            cell.storage += u64::from(figure.storage);
            cell.computed += u64::from(figure.prompt.saturating_sub(figure.cached));
            if is_from(*tier, figure, page) {
                cell.verified += 1;
                times.push(figure.ttft.saturating_sub(figure.lag).as_secs_f64() * 1e3);
            }
        }
        let rungs: Vec<LadderCell> = cells
            .into_values()
            .map(|(cell, times)| {
                let ttft = mean(&times);
                let tokens_per_s = ttft.map(|ttft| f64::from(cell.length) / (ttft.mean_ms / 1e3).max(1e-9));
                LadderCell { ttft, tokens_per_s, ..cell }
            })
            .collect();
        let fits: Vec<LinearFit> = LadderTier::ALL.into_iter().filter_map(|tier| fit(tier, &rungs)).collect();
        let break_even = LadderTier::ALL[1..].iter().filter_map(|tier| break_even(*tier, &rungs, &fits)).collect();
        Ladder { rungs, fits, break_even }
    }

    /// Returns the lengths and tiers in `wanted` that have no verified request.
    pub fn missing(&self, wanted: &[LadderTier]) -> Vec<(u32, LadderTier)> {
        let lengths: std::collections::BTreeSet<u32> = self.rungs.iter().map(|rung| rung.length).collect();
        let has = |length, tier| {
            self.rungs.iter().any(|rung| (rung.length, rung.tier) == (length, tier) && rung.verified > 0)
        };
        let all = lengths.into_iter().flat_map(|length| wanted.iter().map(move |tier| (length, *tier)));
        all.filter(|(length, tier)| !has(*length, *tier)).collect()
    }
}

/// Whether `tier` served the request: all whole pages except the one with the last token came from it, and no page came from another tier.
fn is_from(tier: LadderTier, figure: &Figure, page: u32) -> bool {
    let page = page.max(1);
    let whole = figure.prompt.saturating_sub(1) / page * page;
    let tiers = [figure.device, figure.host, figure.storage];
    match tier {
        LadderTier::Cold => figure.cached == 0,
        LadderTier::Device => tiers == [whole, 0, 0],
        LadderTier::Host => tiers == [0, whole, 0],
        LadderTier::Storage => tiers == [0, 0, whole],
    }
}

fn mean(times: &[f64]) -> Option<Mean> {
    if times.is_empty() {
        return None;
    }
    let n = times.len() as f64;
    let mean_ms = times.iter().sum::<f64>() / n;
    let half = (times.len() > 1).then(|| {
        let variance = times.iter().map(|t| (t - mean_ms).powi(2)).sum::<f64>() / (n - 1.0);
        student(times.len() - 1) * (variance / n).sqrt()
    });
    Some(Mean { mean_ms, low_ms: half.map(|half| (mean_ms - half).max(0.0)), high_ms: half.map(|half| mean_ms + half) })
}

/// Returns the 97.5 % quantile of Student's t-distribution.
fn student(freedom: usize) -> f64 {
    const POINTS: [f64; 10] = [12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228];
    match freedom {
        0 => f64::INFINITY,
        1..=10 => POINTS[freedom - 1],
        // Cornish-Fisher expansion, accurate to within 0.001 for 11 or more degrees of freedom.
        _ => {
            let (z, n) = (1.959_964_f64, freedom as f64);
            z + (z.powi(3) + z) / (4.0 * n) + (5.0 * z.powi(5) + 16.0 * z.powi(3) + 3.0 * z) / (96.0 * n * n)
        }
    }
}

fn fit(tier: LadderTier, rungs: &[LadderCell]) -> Option<LinearFit> {
    let points: Vec<(f64, f64)> = rungs
        .iter()
        .filter(|rung| rung.tier == tier)
        .filter_map(|rung| Some((f64::from(rung.length), rung.ttft?.mean_ms)))
        .collect();
    if points.len() < 2 {
        return None;
    }
    let n = points.len() as f64;
    let (mx, my) = (points.iter().map(|p| p.0).sum::<f64>() / n, points.iter().map(|p| p.1).sum::<f64>() / n);
    let slope = points.iter().map(|(x, y)| (x - mx) * (y - my)).sum::<f64>()
        / points.iter().map(|(x, _)| (x - mx).powi(2)).sum::<f64>();
    Some(LinearFit { tier, fixed_ms: my - slope * mx, tokens_per_s: (slope > 0.0).then(|| 1e3 / slope) })
}

fn break_even(tier: LadderTier, rungs: &[LadderCell], fits: &[LinearFit]) -> Option<BreakEven> {
    let of = |tier: LadderTier| rungs.iter().filter(move |rung| rung.tier == tier && rung.ttft.is_some());
    let mut shown_from = None;
    for rung in of(tier).collect::<Vec<_>>().into_iter().rev() {
        let cold = of(LadderTier::Cold).find(|cold| cold.length == rung.length).and_then(|cold| cold.ttft?.low_ms);
        let high = rung.ttft.and_then(|ttft| ttft.high_ms);
        if !high.zip(cold).is_some_and(|(high, cold)| high < cold) {
            break;
        }
        shown_from = Some(rung.length);
    }
    of(tier).next()?;
    let line = |tier: LadderTier| {
        let fit = fits.iter().find(|fit| fit.tier == tier)?;
        Some((fit.fixed_ms, fit.tokens_per_s.map_or(0.0, |rate| 1e3 / rate)))
    };
    let fitted = line(tier).zip(line(LadderTier::Cold)).and_then(|((fixed, slope), (cold_fixed, cold_slope))| {
        match (fixed <= cold_fixed, slope < cold_slope) {
            (true, true) => Some(0.0),
            (false, true) => Some((fixed - cold_fixed) / (cold_slope - slope)),
            (_, false) => None,
        }
    });
    Some(BreakEven { tier, shown_from, fitted })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::load::{Seed, Turn};
    use std::time::Duration;

    fn rungs() -> LadderPrompts {
        LadderPrompts { lengths: vec![512, 1024, 2048], repeats: 3, vocabulary: 1000, output: 1, seed: Seed(1) }
    }

    fn figure(conversation: u32, tier: LadderTier, ms: f64) -> (LadderTier, Figure) {
        let prompt = rungs().length(conversation);
        let whole = (prompt - 1) / 16 * 16;
        let of = |wanted| if tier == wanted { whole } else { 0 };
        let figure = Figure {
            turn: Turn { conversation, index: 0 },
            well: true,
            ttft: Duration::from_secs_f64(ms / 1e3),
            e2e: Duration::ZERO,
            tpot: None,
            lag: Duration::ZERO,
            prompt,
            completion: 1,
            device: of(LadderTier::Device),
            host: of(LadderTier::Host),
            storage: of(LadderTier::Storage),
            cached: if tier == LadderTier::Cold { 0 } else { whole },
            expected: None,
        };
        (tier, figure)
    }

    /// Computing takes 10 ms plus 0.1 ms per token; L3 takes 60 ms plus 0.02 ms per token.
    fn figures() -> Vec<(LadderTier, Figure)> {
        let mut figures = Vec::new();
        for conversation in 0..9 {
            let length = f64::from(rungs().length(conversation));
            let noise = f64::from(conversation % 3) - 1.0;
            figures.push(figure(conversation, LadderTier::Cold, 10.0 + 0.1 * length + noise));
            figures.push(figure(conversation, LadderTier::Storage, 60.0 + 0.02 * length + noise));
        }
        figures
    }

    #[test]
    fn lines_cross_where_fetching_costs_as_much_as_computing() {
        let ladder = Ladder::of(&rungs(), 16, &figures());
        let cold = ladder.fits[0];
        assert!(
            (cold.fixed_ms - 10.0).abs() < 1e-6 && (cold.tokens_per_s.expect("a rising line") - 10_000.0).abs() < 1e-3
        );
        let even = ladder.break_even[0];
        assert_eq!((even.tier, even.shown_from), (LadderTier::Storage, Some(1024)));
        assert!((even.fitted.expect("the lines cross") - 625.0).abs() < 1e-6, "{even:?}");
        assert_eq!(ladder.missing(&[LadderTier::Cold, LadderTier::Storage]), []);
        assert_eq!(ladder.missing(&[LadderTier::Host]).len(), 3);
    }

    #[test]
    fn requests_answered_by_another_tier_do_not_count() {
        let mut figures = figures();
        for (_, figure) in figures.iter_mut().filter(|(tier, _)| *tier == LadderTier::Storage) {
            (figure.storage, figure.host) = (figure.storage - 16, 16);
        }
        let ladder = Ladder::of(&rungs(), 16, &figures);
        let storage: Vec<&LadderCell> = ladder.rungs.iter().filter(|rung| rung.tier == LadderTier::Storage).collect();
        assert!(storage.iter().all(|rung| rung.requests == 3 && rung.verified == 0 && rung.ttft.is_none()));
        assert_eq!(
            ladder.missing(&[LadderTier::Storage]),
            [(512, LadderTier::Storage), (1024, LadderTier::Storage), (2048, LadderTier::Storage)]
        );
        assert_eq!(ladder.break_even, []);
    }

    #[test]
    fn interval_of_a_mean_uses_students_distribution() {
        let interval = mean(&[1.0, 2.0, 3.0]).expect("some");
        assert!((interval.high_ms.expect("three") - (2.0 + 4.303 / 3.0_f64.sqrt())).abs() < 1e-9);
        assert_eq!(mean(&[1.0]).expect("one").low_ms, None);
        assert!((student(11) - 2.201).abs() < 3e-3 && (student(1000) - 1.962).abs() < 1e-3);
        assert_eq!(mean(&[]), None);
    }
}
