//! The same prompts answered by each tier on purpose: what the first token costs when a prompt is computed, and when it comes from L1,
//! L2 or L3; and from which length on L3 is faster than computing. Pure: the plan of the steps, and the look at what they brought.
//!
//! A request counts for a tier only when the server's own word says that this tier answered it.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use serde::Serialize;

use crate::engine::load::session::{Control, Figure, PassPlan, Step, Tier};
use crate::engine::load::workload::{Ask, Prompt, Workload};
use crate::engine::load::{Answer, Pace, Rules, Script, Seed, Turn};

/// Where a prompt's tokens come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Rung {
    /// All of it is computed.
    Cold,
    /// L1.
    Device,
    /// L2.
    Host,
    /// L3.
    Storage,
}

impl Rung {
    /// All of them, nearest to the processor last.
    pub const ALL: [Rung; 4] = [Rung::Cold, Rung::Device, Rung::Host, Rung::Storage];

    /// The name of its passes.
    pub const fn name(self) -> &'static str {
        match self {
            Rung::Cold => "cold",
            Rung::Device => "device",
            Rung::Host => "host",
            Rung::Storage => "storage",
        }
    }
}

/// Prompts of token ids: so many of each length, one conversation of one turn each.
#[derive(Clone, Debug)]
pub struct Rungs {
    /// The lengths, in tokens.
    pub lengths: Vec<u32>,
    /// Prompts of each.
    pub repeats: u32,
    /// Ids are drawn below this.
    pub vocabulary: u32,
    /// Tokens of an answer.
    pub output: u32,
    /// The ids come from it.
    pub seed: Seed,
}

impl Rungs {
    /// The length of the prompt of `conversation`.
    pub fn length(&self, conversation: u32) -> u32 {
        let at = (conversation / self.repeats.max(1)) as usize;
        self.lengths.get(at).or(self.lengths.last()).copied().unwrap_or(1)
    }

    /// The prompts in groups that fit together into `tokens`; a group has at least one.
    pub fn groups(&self, tokens: u64) -> Vec<Range<u32>> {
        let all = self.lengths.len() as u32 * self.repeats;
        let (mut groups, mut from, mut sum) = (Vec::new(), 0, 0);
        for at in 0..all {
            let length = u64::from(self.length(at) + self.output);
            if at > from && sum + length > tokens {
                groups.push(from..at);
                (from, sum) = (at, 0);
            }
            sum += length;
        }
        groups.push(from..all);
        groups.retain(|group| !group.is_empty());
        groups
    }
}

impl Workload for Rungs {
    fn scripts(&self) -> Vec<Script> {
        vec![Script { turns: 1, ..Script::default() }; self.lengths.len() * self.repeats as usize]
    }

    fn ask(&mut self, turn: Turn) -> Ask {
        use rand::Rng;
        let mut rng = self.seed.generator("ladder", u64::from(turn.conversation));
        let ids = (0..self.length(turn.conversation)).map(|_| rng.random_range(1..self.vocabulary.max(2))).collect();
        Ask::new(Prompt::Ids(ids), self.output)
    }

    fn heard(&mut self, _: Turn, _: &Answer) {}

    fn over(&mut self, _: Turn) {}
}

/// The steps, for prompts in `groups`: computed first, again at once, again after others pushed it out of L1, again after L1 and L2
/// were emptied.
pub fn schedule(groups: &[Range<u32>], has_host: bool, has_storage: bool) -> VecDeque<(usize, Step)> {
    let pass = |rung: Rung, part: &Range<u32>| {
        let plan = PassPlan {
            name: rung.name().to_owned(),
            block: 0,
            part: part.clone(),
            pace: Pace::Closed { conversations: 1 },
            rules: Rules { in_flight: 1, ..Rules::default() },
            duration: std::time::Duration::from_secs(24 * 3600),
        };
        Step::Pass(Box::new(plan))
    };
    let mut steps = vec![Step::Control(Control::Warm(2))];
    for part in groups {
        steps.extend([Step::Control(Control::Settle), Step::Control(Control::Flush)]);
        steps.extend([pass(Rung::Cold, part), pass(Rung::Device, part)]);
        if has_host {
            steps.extend([
                Step::Control(Control::Settle),
                Step::Control(Control::Fill(Tier::Device)),
                pass(Rung::Host, part),
            ]);
        }
        if has_storage {
            steps.extend([Step::Control(Control::Settle), Step::Control(Control::Flush), pass(Rung::Storage, part)]);
        }
    }
    steps.into_iter().map(|step| (0, step)).collect()
}

/// One length at one tier.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Measured {
    /// Tokens of the prompts.
    pub length: u32,
    /// The tier that was to answer.
    pub tier: Rung,
    /// Requests that went well.
    pub requests: u32,
    /// Those that the tier did answer, by the server's word; only they count.
    pub verified: u32,
    /// Tokens of all of them, by where they came from.
    pub device: u64,
    /// From L2.
    pub host: u64,
    /// From L3.
    pub storage: u64,
    /// Computed.
    pub computed: u64,
    /// From the last byte of the request to the first token, with the 95 % interval of the mean.
    pub ttft: Option<Mean>,
    /// Tokens of the prompt by that time, per second.
    pub tokens_per_s: Option<f64>,
}

/// A mean with its interval, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Mean {
    /// The mean.
    pub mean_ms: f64,
    /// The lower end of its 95 % interval; absent of fewer than two.
    pub low_ms: Option<f64>,
    /// The upper end.
    pub high_ms: Option<f64>,
}

/// Time to the first token as a fixed part and a part per token, by least squares over the lengths.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Fit {
    /// The tier.
    pub tier: Rung,
    /// The fixed part.
    pub fixed_ms: f64,
    /// Further tokens per second; absent where more tokens do not take longer.
    pub tokens_per_s: Option<f64>,
}

/// From which length on a tier is faster than computing.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct BreakEven {
    /// The tier.
    pub tier: Rung,
    /// The least measured length from which on its interval lies below that of computing, at this and every longer one.
    pub shown_from: Option<u32>,
    /// Where the two straight lines cross; zero where the tier is faster at any length, absent where it never is.
    pub fitted: Option<f64>,
}

/// What a ladder says.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Ladder {
    /// By length, then by tier.
    pub rungs: Vec<Measured>,
    /// By tier.
    pub fits: Vec<Fit>,
    /// Of the tiers that are caches.
    pub break_even: Vec<BreakEven>,
}

impl Ladder {
    /// Look at figures, each with the tier that was to answer it. `page` is the server's.
    pub fn of(rungs: &Rungs, page: u32, figures: &[(Rung, Figure)]) -> Ladder {
        let mut cells: BTreeMap<(u32, Rung), (Measured, Vec<f64>)> = BTreeMap::new();
        for (tier, figure) in figures.iter().filter(|(_, figure)| figure.well) {
            let length = rungs.length(figure.turn.conversation);
            let empty = || Measured {
                length,
                tier: *tier,
                requests: 0,
                verified: 0,
                device: 0,
                host: 0,
                storage: 0,
                computed: 0,
                ttft: None,
                tokens_per_s: None,
            };
            let (cell, times) = cells.entry((length, *tier)).or_insert_with(|| (empty(), Vec::new()));
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
        let rungs: Vec<Measured> = cells
            .into_values()
            .map(|(cell, times)| {
                let ttft = mean(&times);
                let tokens_per_s = ttft.map(|ttft| f64::from(cell.length) / (ttft.mean_ms / 1e3).max(1e-9));
                Measured { ttft, tokens_per_s, ..cell }
            })
            .collect();
        let fits: Vec<Fit> = Rung::ALL.into_iter().filter_map(|tier| fit(tier, &rungs)).collect();
        let break_even = Rung::ALL[1..].iter().filter_map(|tier| break_even(*tier, &rungs, &fits)).collect();
        Ladder { rungs, fits, break_even }
    }

    /// Tiers among `wanted` that answered no request of some length.
    pub fn lacking(&self, wanted: &[Rung]) -> Vec<(u32, Rung)> {
        let lengths: std::collections::BTreeSet<u32> = self.rungs.iter().map(|rung| rung.length).collect();
        let has = |length, tier| {
            self.rungs.iter().any(|rung| (rung.length, rung.tier) == (length, tier) && rung.verified > 0)
        };
        let all = lengths.into_iter().flat_map(|length| wanted.iter().map(move |tier| (length, *tier)));
        all.filter(|(length, tier)| !has(*length, *tier)).collect()
    }
}

/// Did `tier` answer? All whole pages but that of the last token come from it, and none from elsewhere.
fn is_from(tier: Rung, figure: &Figure, page: u32) -> bool {
    let page = page.max(1);
    let whole = figure.prompt.saturating_sub(1) / page * page;
    let tiers = [figure.device, figure.host, figure.storage];
    match tier {
        Rung::Cold => figure.cached == 0,
        Rung::Device => tiers == [whole, 0, 0],
        Rung::Host => tiers == [0, whole, 0],
        Rung::Storage => tiers == [0, 0, whole],
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

/// The 97.5 % point of Student's distribution.
fn student(freedom: usize) -> f64 {
    const POINTS: [f64; 10] = [12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228];
    match freedom {
        0 => f64::INFINITY,
        1..=10 => POINTS[freedom - 1],
        // Cornish and Fisher's expansion, right to a thousandth from here on.
        _ => {
            let (z, n) = (1.959_964_f64, freedom as f64);
            z + (z.powi(3) + z) / (4.0 * n) + (5.0 * z.powi(5) + 16.0 * z.powi(3) + 3.0 * z) / (96.0 * n * n)
        }
    }
}

fn fit(tier: Rung, rungs: &[Measured]) -> Option<Fit> {
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
    Some(Fit { tier, fixed_ms: my - slope * mx, tokens_per_s: (slope > 0.0).then(|| 1e3 / slope) })
}

fn break_even(tier: Rung, rungs: &[Measured], fits: &[Fit]) -> Option<BreakEven> {
    let of = |tier: Rung| rungs.iter().filter(move |rung| rung.tier == tier && rung.ttft.is_some());
    let mut shown_from = None;
    for rung in of(tier).collect::<Vec<_>>().into_iter().rev() {
        let cold = of(Rung::Cold).find(|cold| cold.length == rung.length).and_then(|cold| cold.ttft?.low_ms);
        let high = rung.ttft.and_then(|ttft| ttft.high_ms);
        if !high.zip(cold).is_some_and(|(high, cold)| high < cold) {
            break;
        }
        shown_from = Some(rung.length);
    }
    of(tier).next()?;
    let line = |tier: Rung| {
        let fit = fits.iter().find(|fit| fit.tier == tier)?;
        Some((fit.fixed_ms, fit.tokens_per_s.map_or(0.0, |rate| 1e3 / rate)))
    };
    let fitted = line(tier).zip(line(Rung::Cold)).and_then(|((fixed, slope), (cold_fixed, cold_slope))| {
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
    use std::time::Duration;

    fn rungs() -> Rungs {
        Rungs { lengths: vec![512, 1024, 2048], repeats: 3, vocabulary: 1000, output: 1, seed: Seed(1) }
    }

    fn figure(conversation: u32, tier: Rung, ms: f64) -> (Rung, Figure) {
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
            device: of(Rung::Device),
            host: of(Rung::Host),
            storage: of(Rung::Storage),
            cached: if tier == Rung::Cold { 0 } else { whole },
            expected: None,
        };
        (tier, figure)
    }

    /// Computing takes 10 ms and 0.1 ms a token, L3 60 ms and 0.02 ms a token.
    fn figures() -> Vec<(Rung, Figure)> {
        let mut figures = Vec::new();
        for conversation in 0..9 {
            let length = f64::from(rungs().length(conversation));
            let noise = f64::from(conversation % 3) - 1.0;
            figures.push(figure(conversation, Rung::Cold, 10.0 + 0.1 * length + noise));
            figures.push(figure(conversation, Rung::Storage, 60.0 + 0.02 * length + noise));
        }
        figures
    }

    #[test]
    fn the_lines_cross_where_fetching_costs_as_much_as_computing() {
        let ladder = Ladder::of(&rungs(), 16, &figures());
        let cold = ladder.fits[0];
        assert!((cold.fixed_ms - 10.0).abs() < 1e-6 && (cold.tokens_per_s.expect("it rises") - 10_000.0).abs() < 1e-3);
        let even = ladder.break_even[0];
        assert_eq!((even.tier, even.shown_from), (Rung::Storage, Some(1024)));
        assert!((even.fitted.expect("they cross") - 625.0).abs() < 1e-6, "{even:?}");
        assert_eq!(ladder.lacking(&[Rung::Cold, Rung::Storage]), []);
        assert_eq!(ladder.lacking(&[Rung::Host]).len(), 3);
    }

    #[test]
    fn what_another_tier_answered_does_not_count() {
        let mut figures = figures();
        for (_, figure) in figures.iter_mut().filter(|(tier, _)| *tier == Rung::Storage) {
            (figure.storage, figure.host) = (figure.storage - 16, 16);
        }
        let ladder = Ladder::of(&rungs(), 16, &figures);
        let storage: Vec<&Measured> = ladder.rungs.iter().filter(|rung| rung.tier == Rung::Storage).collect();
        assert!(storage.iter().all(|rung| rung.requests == 3 && rung.verified == 0 && rung.ttft.is_none()));
        assert_eq!(
            ladder.lacking(&[Rung::Storage]),
            [(512, Rung::Storage), (1024, Rung::Storage), (2048, Rung::Storage)]
        );
        assert_eq!(ladder.break_even, []);
    }

    #[test]
    fn prompts_go_in_groups_that_fit_and_none_is_left_out() {
        assert_eq!(rungs().groups(1_600), [0..3, 3..4, 4..5, 5..6, 6..7, 7..8, 8..9]);
        assert_eq!(rungs().groups(1 << 20), std::iter::once(0..9).collect::<Vec<_>>());
        assert_eq!(rungs().groups(1).len(), 9);
    }

    #[test]
    fn steps_leave_out_the_tiers_that_the_server_lacks() {
        let names = |steps: VecDeque<(usize, Step)>| {
            let passes = steps.into_iter().filter_map(|(_, step)| match step {
                Step::Pass(plan) => Some(plan.name),
                Step::Control(_) => None,
            });
            passes.collect::<Vec<_>>()
        };
        assert_eq!(names(schedule(&[0..1, 1..2], false, false)), ["cold", "device", "cold", "device"]);
        assert_eq!(names(schedule(&[0..1; 1], true, true)), ["cold", "device", "host", "storage"]);
    }

    #[test]
    fn the_interval_of_a_mean_is_students() {
        let told = mean(&[1.0, 2.0, 3.0]).expect("some");
        assert!((told.high_ms.expect("three") - (2.0 + 4.303 / 3.0_f64.sqrt())).abs() < 1e-9);
        assert_eq!(mean(&[1.0]).expect("one").low_ms, None);
        assert!((student(11) - 2.201).abs() < 3e-3 && (student(1000) - 1.962).abs() < 1e-3);
        assert_eq!(mean(&[]), None);
    }
}
