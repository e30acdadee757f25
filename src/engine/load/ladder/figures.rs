//! The figures of a tier ladder: TTFT per prompt length and tier, and the time that a tier saves.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::ladder::{BreakEven, LadderCell, LadderPrompts, LadderTier, LinearFit, MedianTtft, TierVerdict, TimeSaved};
use crate::session::Figure;

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
    /// Evaluates the figures for each request, paired with the tier that should have served the
    /// request. `page` is the server's page size in tokens.
    pub fn of(prompts: &LadderPrompts, page: u32, figures: &[(LadderTier, Figure)]) -> Ladder {
        let mut cells: BTreeMap<(u32, LadderTier), (LadderCell, BTreeMap<u32, f64>)> = BTreeMap::new();
        for (tier, figure) in figures.iter().filter(|(_, figure)| figure.well) {
            let length = prompts.length(figure.turn.conversation);
            let (cell, times) =
                cells.entry((length, *tier)).or_insert_with(|| (LadderCell::new(length, *tier), BTreeMap::new()));
            cell.requests += 1;
            cell.device += u64::from(figure.device);
            cell.host += u64::from(figure.host);
            cell.storage += u64::from(figure.storage);
            cell.computed += u64::from(figure.prompt.saturating_sub(figure.cached));
            if is_from(*tier, figure, page) {
                cell.verified += 1;
                times.insert(figure.turn.conversation, figure.ttft.saturating_sub(figure.lag).as_secs_f64() * 1e3);
            }
        }
        let computed: BTreeMap<u32, f64> = cells
            .iter()
            .filter(|((_, tier), _)| *tier == LadderTier::Cold)
            .flat_map(|(_, (_, times))| times.iter().map(|(prompt, ms)| (*prompt, *ms)))
            .collect();
        let rungs: Vec<LadderCell> = cells
            .into_values()
            .map(|(cell, times)| {
                let ttft = MedianTtft::of(&times.values().copied().collect::<Vec<_>>());
                let tokens_per_s = ttft.map(|ttft| f64::from(cell.length) / (ttft.median_ms / 1e3).max(1e-9));
                let pairs = times.iter().filter_map(|(prompt, ms)| Some((*computed.get(prompt)?, *ms)));
                let saved = match cell.tier {
                    LadderTier::Cold => None,
                    _ => TimeSaved::of(&pairs.collect::<Vec<_>>()),
                };
                LadderCell { ttft, tokens_per_s, saved, ..cell }
            })
            .collect();
        let fits: Vec<LinearFit> = LadderTier::ALL.into_iter().filter_map(|tier| LinearFit::of(tier, &rungs)).collect();
        let break_even = LadderTier::ALL[1..].iter().filter_map(|tier| BreakEven::of(*tier, &rungs, &fits)).collect();
        Ladder { rungs, fits, break_even }
    }

    /// Returns the lengths at which more prompts could narrow an interval: the bounds of a median
    /// or of the time saved are further apart than `precision` (a share of the median TTFT of
    /// computing) in each direction, or a comparison is undecided.
    pub fn unsettled(&self, precision: f64) -> Vec<u32> {
        let is_settled = |rung: &&LadderCell| {
            let cold = self.rung(rung.length, LadderTier::Cold).and_then(|cold| cold.ttft);
            let limit = cold.map_or(0.0, |cold| precision * cold.median_ms);
            let is_narrow = |half: Option<f64>| half.is_some_and(|half| half <= limit);
            // A tier that the server does not use at this length stays without a verified request.
            rung.ttft.is_none_or(|ttft| is_narrow(ttft.half_width()))
                && rung
                    .saved
                    .as_ref()
                    .is_none_or(|saved| saved.verdict != TierVerdict::Undecided && is_narrow(saved.half_width()))
        };
        let mut lengths: Vec<u32> =
            self.rungs.iter().filter(|rung| !is_settled(rung)).map(|rung| rung.length).collect();
        lengths.dedup();
        lengths
    }

    /// Returns the results for one length and tier.
    pub fn rung(&self, length: u32, tier: LadderTier) -> Option<&LadderCell> {
        self.rungs.iter().find(|rung| (rung.length, rung.tier) == (length, tier))
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

/// Whether `tier` served the request: all whole pages except the one with the last token came from
/// it, and no page came from another tier. No tier serves a prompt of a single page.
fn is_from(tier: LadderTier, figure: &Figure, page: u32) -> bool {
    let page = page.max(1);
    let whole = figure.prompt.saturating_sub(1) / page * page;
    let tiers = [figure.device, figure.host, figure.storage];
    match tier {
        LadderTier::Cold => figure.cached == 0,
        _ if whole == 0 => false,
        LadderTier::Device => tiers == [whole, 0, 0],
        LadderTier::Host => tiers == [0, whole, 0],
        LadderTier::Storage => tiers == [0, 0, whole],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Seed, Turn};
    use std::time::Duration;

    fn prompts() -> LadderPrompts {
        let prompts = LadderPrompts::new(vec![512, 1024, 2048], 1000, 1, Seed(1));
        prompts.add(&[512, 1024, 2048], 8);
        prompts
    }

    fn figure(conversation: u32, tier: LadderTier, ms: f64) -> (LadderTier, Figure) {
        let prompt = prompts().length(conversation);
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
        for conversation in 0..24 {
            let length = f64::from(prompts().length(conversation));
            let noise = f64::from(conversation / 3 % 3) - 1.0;
            figures.push(figure(conversation, LadderTier::Cold, 10.0 + 0.1 * length + noise));
            figures.push(figure(conversation, LadderTier::Storage, 60.0 + 0.02 * length - noise));
        }
        figures
    }

    #[test]
    fn a_tier_is_faster_from_where_its_line_crosses_that_of_computing() {
        let ladder = Ladder::of(&prompts(), 16, &figures());
        let cold = ladder.fits[0];
        assert!((cold.fixed_ms - 10.0).abs() < 0.5 && (cold.tokens_per_s.expect("a rising line") - 1e4).abs() < 50.0);
        let even = ladder.break_even[0];
        assert_eq!((even.tier, even.shown_from, even.extrapolated), (LadderTier::Storage, Some(1024), false));
        assert!((even.fitted.expect("the lines cross") - 625.0).abs() < 10.0, "{even:?}");
        let verdict =
            |length| ladder.rung(length, LadderTier::Storage).and_then(|rung| rung.saved.clone()).map(|s| s.verdict);
        assert_eq!(
            [512, 1024, 2048].map(verdict),
            [Some(TierVerdict::Slower), Some(TierVerdict::Faster), Some(TierVerdict::Faster)]
        );
        assert_eq!(ladder.missing(&[LadderTier::Cold, LadderTier::Storage]), []);
        assert_eq!(ladder.missing(&[LadderTier::Host]).len(), 3);
        assert_eq!((ladder.unsettled(0.1), ladder.unsettled(0.001)), (vec![], vec![512, 1024, 2048]));
    }

    #[test]
    fn an_outlier_leaves_the_length_unsettled_until_there_are_more_prompts() {
        let mut figures = figures();
        let disturbed = figures.iter_mut().find(|(tier, figure)| *tier == LadderTier::Storage && figure.prompt == 2048);
        disturbed.expect("a figure").1.ttft = Duration::from_millis(480);
        let ladder = Ladder::of(&prompts(), 16, &figures);
        assert_eq!(ladder.unsettled(0.1), [2048]);
        let rung = ladder.rung(2048, LadderTier::Storage).expect("measured");
        let ttft = rung.ttft.expect("verified");
        assert!((ttft.median_ms - 101.0).abs() < 2.0 && ttft.max_ms == 480.0 && ttft.low_ms > Some(99.0), "{ttft:?}");
        assert_eq!(rung.saved.as_ref().map(|saved| saved.verdict), Some(TierVerdict::Undecided));
        assert_eq!(ladder.break_even[0].shown_from, None);
        // The others keep their verdicts.
        let other = ladder.rung(1024, LadderTier::Storage).and_then(|rung| rung.saved.as_ref());
        assert_eq!(other.map(|saved| saved.verdict), Some(TierVerdict::Faster));
    }

    #[test]
    fn a_prompt_of_one_page_is_served_from_no_tier() {
        let mut figures = figures();
        for (_, figure) in &mut figures {
            figure.storage = 0;
            figure.cached = 0;
        }
        let ladder = Ladder::of(&prompts(), 2048, &figures);
        let verified =
            |tier| ladder.rungs.iter().filter(|rung| rung.tier == tier).map(|rung| rung.verified).sum::<u32>();
        assert_eq!((verified(LadderTier::Cold), verified(LadderTier::Storage)), (24, 0));
    }

    #[test]
    fn requests_answered_by_another_tier_do_not_count() {
        let mut figures = figures();
        for (_, figure) in figures.iter_mut().filter(|(tier, _)| *tier == LadderTier::Storage) {
            figure.storage -= 16;
            figure.host = 16;
        }
        let ladder = Ladder::of(&prompts(), 16, &figures);
        let storage: Vec<&LadderCell> = ladder.rungs.iter().filter(|rung| rung.tier == LadderTier::Storage).collect();
        assert!(storage.iter().all(|rung| rung.requests == 8 && rung.verified == 0 && rung.ttft.is_none()));
        assert_eq!(
            ladder.missing(&[LadderTier::Storage]),
            [(512, LadderTier::Storage), (1024, LadderTier::Storage), (2048, LadderTier::Storage)]
        );
        assert_eq!((ladder.break_even, ladder.rungs[0].length), (vec![], 512));
    }
}
