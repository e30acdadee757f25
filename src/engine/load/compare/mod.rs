//! Two endpoints under the same work: what differs, and whether it may be compared at all.

mod same;
mod schedule;

use std::collections::BTreeMap;
use std::time::Duration;

use crate::engine::load::paired::{self, Difference, Pair, Rule, Verdict, Wanted, level_of_each};
use crate::engine::load::session::{Figure, Pass};
use crate::engine::load::{Seed, Turn};

pub use same::Refusal;
pub use schedule::{BLOCKS_MAX, blocks, in_turn};

/// What is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Measure {
    /// To the first token, from the plan.
    Ttft,
    /// Per token after the first, a request as much as another.
    Tpot,
    /// The same, a token as much as another.
    Itl,
    /// To the end, from the plan.
    E2e,
    /// Tokens of the prompt that were cached.
    Cached,
}

/// All of them.
pub const MEASURES: [Measure; 5] = [Measure::Ttft, Measure::Tpot, Measure::Itl, Measure::E2e, Measure::Cached];

impl Measure {
    /// Its name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Measure::Ttft => "ttft_ms",
            Measure::Tpot => "tpot_ms",
            Measure::Itl => "itl_ms",
            Measure::E2e => "e2e_ms",
            Measure::Cached => "cached_tokens",
        }
    }

    /// Its name for people.
    pub const fn words(self) -> &'static str {
        match self {
            Measure::Ttft => "TTFT ms",
            Measure::Tpot => "TPOT ms",
            Measure::Itl => "ITL ms",
            Measure::E2e => "E2E ms",
            Measure::Cached => "cached tokens",
        }
    }

    /// Which way is better.
    pub const fn wanted(self) -> Wanted {
        match self {
            Measure::Cached => Wanted::More,
            _ => Wanted::Less,
        }
    }

    /// Its figure of both requests, and the weight of the pair.
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

/// What is done by both endpoints in passes of one name, side by side.
struct Both<'a> {
    names: [&'a str; 2],
    /// Passes of blocks that both had.
    passes: [Vec<&'a Pass>; 2],
    /// The block, and the figures of a request that went well at both.
    pairs: Vec<(u32, Figure, Figure)>,
    /// Requests that went well at one of them only.
    alone: [u64; 2],
}

impl<'a> Both<'a> {
    fn of(passes: &[&'a Pass], sides: [usize; 2], name: &str) -> Both<'a> {
        let of = |side: usize| {
            let mine = passes.iter().filter(|pass| pass.id.side == side && pass.id.name == name);
            mine.map(|pass| (pass.id.block, *pass)).collect::<BTreeMap<u32, &'a Pass>>()
        };
        let [all_a, all_b] = sides.map(of);
        let name_of =
            |all: &BTreeMap<u32, &'a Pass>| all.values().next().map_or("?", |pass| pass.id.side_name.as_str());
        let mut both =
            Both { names: [name_of(&all_a), name_of(&all_b)], passes: [vec![], vec![]], pairs: vec![], alone: [0, 0] };
        for (block, a) in &all_a {
            // A block that was broken off at one endpoint is left out at both.
            let Some(b) = all_b.get(block).filter(|b| !a.ran.stopped && !b.ran.stopped) else { continue };
            both.passes[0].push(a);
            both.passes[1].push(b);
            let well = |pass: &Pass| {
                let well = pass.figures.iter().filter(|figure| figure.well);
                well.map(|figure| (figure.turn, *figure)).collect::<BTreeMap<Turn, Figure>>()
            };
            let (mut of_a, of_b) = (well(a), well(b));
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
}

/// How to compare.
#[derive(Clone, Copy, Debug)]
pub struct Terms {
    /// A difference has to be beyond this share of the first endpoint's mean.
    pub margin: f64,
    /// The generator may be this late.
    pub lag_limit: Duration,
    /// The bootstrap draws from it.
    pub seed: Seed,
    /// So often ([`paired::DRAWS`]).
    pub draws: usize,
}

/// Passes of one name at both endpoints.
#[derive(Clone, Debug)]
pub struct Compared {
    /// Their name.
    pub pass: String,
    /// Names of the endpoints.
    pub names: [String; 2],
    /// Blocks that both had.
    pub blocks: usize,
    /// Requests that went well at both.
    pub pairs: usize,
    /// Why it says nothing. With any of these there are no differences.
    pub refusals: Vec<Refusal>,
    /// What differs.
    pub differences: Vec<(Measure, Difference)>,
    /// Mean time to first token of the first endpoint in its first and second half, milliseconds: it should have stayed the same.
    pub halves: Option<[f64; 2]>,
}

impl Compared {
    /// The measures with this verdict.
    pub fn with(&self, verdict: Verdict) -> Vec<Measure> {
        self.differences.iter().filter(|(_, found)| found.verdict == verdict).map(|(measure, _)| *measure).collect()
    }

    /// Nothing can be said: `refusal`.
    pub fn refuse(&mut self, refusal: Refusal) {
        self.refusals.push(refusal);
        self.differences.clear();
    }
}

/// Compare the passes of `sides` by their names, in the order in which they were run. A name that only one of them has is left out.
pub fn compare(passes: &[&Pass], sides: [usize; 2], terms: &Terms) -> Vec<Compared> {
    let mut names: Vec<&str> = Vec::new();
    for pass in passes.iter().filter(|pass| pass.id.side == sides[0]) {
        let there = passes.iter().any(|other| other.id.side == sides[1] && other.id.name == pass.id.name);
        if there && !names.contains(&pass.id.name.as_str()) {
            names.push(&pass.id.name);
        }
    }
    let level = level_of_each(names.len() * MEASURES.len());
    names.iter().map(|name| one(&Both::of(passes, sides, name), name, level, terms)).collect()
}

fn one(both: &Both<'_>, name: &str, level: f64, terms: &Terms) -> Compared {
    let refusals = same::refusals(both, terms.lag_limit);
    let mut differences = Vec::new();
    for measure in MEASURES.into_iter().filter(|_| refusals.is_empty()) {
        let pairs = both.pairs.iter().filter_map(|(block, a, b)| {
            let conversation = a.turn.conversation;
            measure.of(a, b).map(|(a, b, weight)| Pair { conversation, block: *block, weight, a, b })
        });
        let rule = Rule { level, margin: terms.margin, wanted: measure.wanted(), draws: terms.draws };
        let found = paired::compare(&pairs.collect::<Vec<_>>(), rule, terms.seed);
        // What neither endpoint ever has is nothing to compare.
        differences.extend(found.filter(|d| (d.mean_a, d.mean_b) != (0.0, 0.0)).map(|found| (measure, found)));
    }
    Compared {
        pass: name.to_owned(),
        names: both.names.map(str::to_owned),
        blocks: both.passes[0].len(),
        pairs: both.pairs.len(),
        refusals,
        differences,
        halves: halves(&both.passes[0]),
    }
}

/// Mean time to first token of the first and of the second half of `passes`, milliseconds.
fn halves(passes: &[&Pass]) -> Option<[f64; 2]> {
    let mean = |passes: &[&Pass]| {
        let mut all = crate::engine::load::Histogram::default();
        passes.iter().for_each(|pass| all.add(&pass.tally.all.ttft));
        all.summary().map(|summary| summary.mean.as_secs_f64() * 1e3)
    };
    let (first, second) = passes.split_at(passes.len() / 2);
    Some([mean(first)?, mean(second)?])
}

#[cfg(test)]
mod tests;
