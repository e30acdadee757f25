//! Compares two endpoints under the same workload, and checks whether the comparison is valid.

mod lag;
mod same;
mod schedule;
mod side;
mod tiers;
mod verdict;
mod working_set;

use std::collections::BTreeMap;
use std::time::Duration;

use crate::paired::{self, BetterWhen, ConfidenceLevels, Difference, DifferenceRule, DifferenceVerdict, RequestPair};
use crate::session::{Figure, PassResult};
use crate::{Seed, Turn};

pub use lag::SideLag;
pub use same::ComparisonRefusal;
pub use schedule::{BLOCKS_MAX, blocks, in_turn};
pub use side::SideFigures;
pub use tiers::{CacheSizes, ComparedTier, TierQuestion, questions};
pub use verdict::{ComparedSides, ComparisonVerdict, EndpointComparison, SELF_COMPARE, different};
pub use working_set::{GivenLoad, LoadShape, WorkingSetPlan};

/// A metric to compare.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Measure {
    /// TTFT from the scheduled send time.
    Ttft,
    /// TPOT: mean time per token after the first, with each request weighted equally.
    Tpot,
    /// ITL: the same mean, but with each token weighted equally.
    Itl,
    /// E2E latency from the scheduled send time.
    E2e,
    Cached,
}

pub const MEASURES: [Measure; 5] = [Measure::Ttft, Measure::Tpot, Measure::Itl, Measure::E2e, Measure::Cached];

impl Measure {
    /// Returns the name used in JSON reports.
    pub const fn name(self) -> &'static str {
        match self {
            Measure::Ttft => "ttft_ms",
            Measure::Tpot => "tpot_ms",
            Measure::Itl => "itl_ms",
            Measure::E2e => "e2e_ms",
            Measure::Cached => "cached_tokens",
        }
    }

    /// Returns the label used in text reports.
    pub const fn label(self) -> &'static str {
        match self {
            Measure::Ttft => "TTFT ms",
            Measure::Tpot => "TPOT ms",
            Measure::Itl => "ITL ms",
            Measure::E2e => "E2E ms",
            Measure::Cached => "cached tokens",
        }
    }

    /// Returns the name without a unit, for sentences.
    pub fn word(self) -> &'static str {
        self.label().trim_end_matches(" ms")
    }

    /// Returns whether lower or higher values are better.
    pub const fn better_when(self) -> BetterWhen {
        match self {
            Measure::Cached => BetterWhen::More,
            _ => BetterWhen::Less,
        }
    }

    /// Returns the metric's values for the two requests, and the weight of the pair.
    fn of(self, a: &Figure, b: &Figure) -> Option<(f64, f64, f64)> {
        let ms = |duration: Duration| duration.as_secs_f64() * 1e3;
        let per_token = || a.tpot.zip(b.tpot).map(|(a, b)| (ms(a), ms(b)));
        match self {
            Measure::Ttft => Some((ms(a.ttft), ms(b.ttft), 1.0)),
            Measure::E2e => Some((ms(a.e2e), ms(b.e2e), 1.0)),
            Measure::Cached => Some((f64::from(a.cached), f64::from(b.cached), 1.0)),
            Measure::Tpot => per_token().map(|(a, b)| (a, b, 1.0)),
            Measure::Itl => {
                let gaps = f64::from(a.completion.min(b.completion).saturating_sub(1));
                per_token().map(|(of_a, of_b)| (of_a, of_b, gaps))
            }
        }
    }
}

/// The passes with the same name at both endpoints.
#[derive(Debug)]
struct PairedPasses<'a> {
    names: [&'a str; 2],
    /// Passes for blocks that both endpoints completed.
    passes: [Vec<&'a PassResult>; 2],
    /// Block and figures for each request that succeeded at both endpoints.
    pairs: Vec<(u32, Figure, Figure)>,
    /// Number of blocks that one endpoint did not complete.
    dropped: usize,
    /// Number of requests that succeeded at only one endpoint.
    alone: [u64; 2],
}

impl<'a> PairedPasses<'a> {
    fn of(passes: &[&'a PassResult], sides: [usize; 2], name: &str) -> PairedPasses<'a> {
        let of = |side: usize| {
            let mine = passes.iter().filter(|pass| pass.id.side == side && pass.id.name == name);
            mine.map(|pass| (pass.id.block, *pass)).collect::<BTreeMap<u32, &'a PassResult>>()
        };
        let [all_a, all_b] = sides.map(of);
        let name_of =
            |all: &BTreeMap<u32, &'a PassResult>| all.values().next().map_or("?", |pass| pass.id.side_name.as_str());
        let mut both = PairedPasses {
            names: [name_of(&all_a), name_of(&all_b)],
            passes: [vec![], vec![]],
            pairs: vec![],
            dropped: all_b.keys().filter(|block| !all_a.contains_key(*block)).count(),
            alone: [0, 0],
        };
        for (block, a) in &all_a {
            // Ignore a block at both endpoints if it was interrupted at either one.
            let Some(b) = all_b.get(block).filter(|b| !a.ran.stopped && !b.ran.stopped) else {
                both.dropped += 1;
                continue;
            };
            both.passes[0].push(a);
            both.passes[1].push(b);
            let well = |pass: &PassResult| {
                let well = pass.figures.iter().filter(|figure| figure.well);
                well.map(|figure| (figure.turn, *figure)).collect::<BTreeMap<Turn, Figure>>()
            };
            let mut of_a = well(a);
            let of_b = well(b);
            for (turn, figure) in of_b {
                match of_a.remove(&turn) {
                    Some(other) => both.pairs.push((*block, other, figure)),
                    None => both.alone[1] += 1,
                }
            }
            both.alone[0] += of_a.len() as u64;
        }
        both
    }

    /// Returns the pairs of first prompts.
    fn first_prompts(&self) -> impl Iterator<Item = &(u32, Figure, Figure)> {
        self.pairs.iter().filter(|(_, a, _)| a.turn.index == 0)
    }

    /// Returns how many first prompts were cached at each endpoint although no hit was expected,
    /// for example by the L3 of an earlier run.
    fn warm(&self) -> [u64; 2] {
        let is_warm = |figure: &Figure| figure.expected == Some(0) && figure.cached > 0;
        self.first_prompts()
            .fold([0, 0], |[at_a, at_b], (_, a, b)| [at_a + u64::from(is_warm(a)), at_b + u64::from(is_warm(b))])
    }
}

#[derive(Clone, Copy, Debug)]
pub struct CompareOptions {
    /// Minimum significant difference, as a share of the first endpoint's mean.
    pub margin: f64,
    /// The metric that decides. It was chosen before the run.
    pub primary: Measure,
    /// Generator lag (p99) above which the comparison has a caveat. It never prevents a verdict.
    pub lag_limit: Duration,
    /// Seed for the bootstrap.
    pub seed: Seed,
    /// Number of bootstrap samples; see [`paired::DRAWS`].
    pub draws: usize,
}

/// Comparison of the passes with the same name.
#[derive(Clone, Debug)]
pub struct Comparison {
    pub pass: String,
    /// Names of the two endpoints.
    pub names: [String; 2],
    /// Number of blocks that both endpoints completed.
    pub blocks: usize,
    /// Number of blocks that one endpoint did not complete. They are not compared.
    pub dropped: usize,
    /// Number of requests that succeeded at both endpoints.
    pub pairs: usize,
    /// Numbers of requests that succeeded at only one endpoint. They are not compared.
    pub excluded: [u64; 2],
    /// Generator lag at each endpoint.
    pub lag: [SideLag; 2],
    /// First prompts that were cached although the server had not received them in this run, at
    /// each endpoint.
    pub warm: [u64; 2],
    /// Number of first prompts.
    pub first_prompts: u64,
    /// Reasons why the endpoints cannot be compared. If not empty, `differences` is empty.
    pub refusals: Vec<ComparisonRefusal>,
    pub differences: Vec<(Measure, Difference)>,
    /// The first endpoint's mean TTFT in the first and second half of its passes, in milliseconds.
    /// A large change indicates drift.
    pub halves: Option<[f64; 2]>,
}

impl Comparison {
    /// Returns the metrics with this verdict.
    pub fn with(&self, verdict: DifferenceVerdict) -> Vec<Measure> {
        self.differences.iter().filter(|(_, found)| found.verdict == verdict).map(|(measure, _)| *measure).collect()
    }

    /// Returns the verdict on `measure`, if it was compared.
    pub fn verdict_on(&self, measure: Measure) -> Option<DifferenceVerdict> {
        self.differences.iter().find(|(of, _)| *of == measure).map(|(_, found)| found.verdict)
    }

    /// Adds a reason why the endpoints cannot be compared, and drops all differences.
    pub fn refuse(&mut self, refusal: ComparisonRefusal) {
        self.refusals.push(refusal);
        self.differences.clear();
    }
}

/// Compares the passes of `sides` by name, in the order in which they ran. Names that exist at only
/// one endpoint are skipped.
pub fn compare(passes: &[&PassResult], sides: [usize; 2], terms: &CompareOptions) -> Vec<Comparison> {
    let mut names: Vec<&str> = Vec::new();
    for pass in passes.iter().filter(|pass| pass.id.side == sides[0]) {
        let at_both = passes.iter().any(|other| other.id.side == sides[1] && other.id.name == pass.id.name);
        if at_both && !names.contains(&pass.id.name.as_str()) {
            names.push(&pass.id.name);
        }
    }
    let levels = ConfidenceLevels::of(names.len(), MEASURES.len() - 1);
    names.iter().map(|name| one(&PairedPasses::of(passes, sides, name), name, levels, terms)).collect()
}

fn one(both: &PairedPasses<'_>, name: &str, levels: ConfidenceLevels, terms: &CompareOptions) -> Comparison {
    let refusals = same::refusals(both);
    let lag = SideLag::of(both);
    let mut differences = Vec::new();
    let order = std::iter::once(terms.primary).chain(MEASURES.into_iter().filter(|other| *other != terms.primary));
    for measure in order.into_iter().filter(|_| refusals.is_empty()) {
        let level = if measure == terms.primary { levels.primary } else { levels.other };
        let pairs = both.pairs.iter().filter_map(|(block, a, b)| {
            let conversation = a.turn.conversation;
            measure.of(a, b).map(|(a, b, weight)| RequestPair { conversation, block: *block, weight, a, b })
        });
        let rule = DifferenceRule {
            level,
            margin: terms.margin,
            better_when: measure.better_when(),
            bias: lag::bias(measure, &lag),
            draws: terms.draws,
        };
        let found = paired::compare(&pairs.collect::<Vec<_>>(), rule, terms.seed);
        // A metric that is zero at both endpoints is not compared.
        differences.extend(found.filter(|d| (d.mean_a, d.mean_b) != (0.0, 0.0)).map(|found| (measure, found)));
    }
    Comparison {
        pass: name.to_owned(),
        names: both.names.map(str::to_owned),
        blocks: both.passes[0].len(),
        dropped: both.dropped,
        pairs: both.pairs.len(),
        excluded: both.alone,
        lag,
        warm: both.warm(),
        first_prompts: both.first_prompts().count() as u64,
        refusals,
        differences,
        halves: halves(&both.passes[0]),
    }
}

/// Returns the mean TTFT of the first and second half of `passes`, in milliseconds.
fn halves(passes: &[&PassResult]) -> Option<[f64; 2]> {
    let mean = |passes: &[&PassResult]| {
        let mut all = crate::LatencyHistogram::default();
        passes.iter().for_each(|pass| all.add(&pass.tally.all.ttft));
        all.summary().map(|summary| summary.mean.as_secs_f64() * 1e3)
    };
    let (first, second) = passes.split_at(passes.len() / 2);
    Some([mean(first)?, mean(second)?])
}

#[cfg(test)]
mod tests;
