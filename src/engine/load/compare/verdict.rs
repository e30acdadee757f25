//! The result of a comparison over all of its passes: verdict, noise floor and caveats.

use serde::Serialize;

use crate::LoadCaveat;
use crate::compare::{CompareOptions, Comparison, ComparisonRefusal, SideFigures, compare};
use crate::paired::DifferenceVerdict;
use crate::session::PassResult;

/// Name prefix for passes that compare an endpoint with itself.
pub const SELF_COMPARE: &str = "a-a ";
/// Relative change in A's mean TTFT between the halves of its blocks above which it drifted.
const DRIFT_MAX: f64 = 0.2;

/// The endpoints to compare, as indices into the sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ComparedSides {
    pub pair: [usize; 2],
    /// The sides that measure the noise floor: A and A again.
    pub floor: Option<[usize; 2]>,
}

impl ComparedSides {
    /// Compares the first of `sides` endpoints with the last one. With three, the first two measure
    /// the noise floor.
    pub fn of(sides: usize) -> ComparedSides {
        ComparedSides { pair: [0, sides.saturating_sub(1)], floor: (sides > 2).then_some([0, 1]) }
    }
}

/// The verdict of a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ComparisonVerdict {
    /// B is better in at least one metric and worse in none.
    Better,
    /// B is worse in at least one metric and better in none.
    Worse,
    Mixed,
    NoDifferenceShown,
    TooFew,
    /// The passes are not comparable.
    Refused,
}

impl ComparisonVerdict {
    /// Returns the verdict for `compared`.
    pub fn of(compared: &[Comparison]) -> ComparisonVerdict {
        let any = |verdict| compared.iter().any(|one| !one.with(verdict).is_empty());
        let refused = compared.iter().any(|one| !one.refusals.is_empty()) || compared.is_empty();
        match (refused, any(DifferenceVerdict::Better), any(DifferenceVerdict::Worse)) {
            (true, _, _) => ComparisonVerdict::Refused,
            (_, true, true) => ComparisonVerdict::Mixed,
            (_, true, false) => ComparisonVerdict::Better,
            (_, false, true) => ComparisonVerdict::Worse,
            _ if any(DifferenceVerdict::NoDifferenceShown) => ComparisonVerdict::NoDifferenceShown,
            _ => ComparisonVerdict::TooFew,
        }
    }
}

/// Returns the labels of the metrics with this `verdict`, with the pass if there are several.
pub fn different(compared: &[Comparison], verdict: DifferenceVerdict) -> Vec<String> {
    let several = compared.len() > 1;
    let of = |one: &Comparison| {
        let suffix = if several { format!(" in pass {}", one.pass) } else { String::new() };
        one.with(verdict).iter().map(|m| format!("{}{suffix}", m.label().trim_end_matches(" ms"))).collect::<Vec<_>>()
    };
    compared.iter().flat_map(of).collect()
}

/// The comparison of two endpoints over all passes.
#[derive(Clone, Debug)]
pub struct EndpointComparison {
    /// A compared with itself, if that was measured.
    pub noise_floor: Option<Vec<Comparison>>,
    pub compared: Vec<Comparison>,
    pub verdict: ComparisonVerdict,
    /// Figures of the two endpoints over the compared passes.
    pub sides: [SideFigures; 2],
    /// Lowest confidence level of the intervals, from 0 to 1: that of the primary metric. Zero if
    /// nothing was compared.
    pub level: f64,
    pub caveats: Vec<LoadCaveat>,
}

impl EndpointComparison {
    /// Compares the passes of a session or of recorded runs. `a` and `b` are the names of the
    /// compared endpoints. If A differs from itself, the comparison is refused.
    pub fn of(
        passes: &[PassResult],
        sides: ComparedSides,
        [a, b]: [&str; 2],
        terms: &CompareOptions,
    ) -> EndpointComparison {
        let is_floor = |pass: &&PassResult| pass.id.name.starts_with(SELF_COMPARE);
        let (floor, others): (Vec<&PassResult>, Vec<&PassResult>) = passes.iter().partition(is_floor);
        let noise_floor = sides.floor.map(|sides| compare(&floor, sides, terms));
        let mut compared = compare(&others, sides.pair, terms);
        if let Some(floor) = &noise_floor {
            let of = [different(floor, DifferenceVerdict::Better), different(floor, DifferenceVerdict::Worse)].concat();
            if !of.is_empty() {
                let refusal = ComparisonRefusal::NotSteady { name: a.to_owned(), of: of.join(", ") };
                compared.iter_mut().for_each(|one| one.refuse(refusal.clone()));
            }
        }
        let level = compared.iter().flat_map(|one| &one.differences).map(|(_, found)| found.level).next();
        let mut caveats = Vec::new();
        for one in &compared {
            for (side, name) in [a, b].into_iter().enumerate() {
                let name = name.to_owned();
                let lag = one.lag[side];
                if lag.p99_ms > terms.lag_limit.as_secs_f64() * 1e3 {
                    let pass = one.pass.clone();
                    let limit = terms.lag_limit;
                    let p99_ms = lag.p99_ms;
                    let mean_ms = lag.mean_ms;
                    caveats.push(LoadCaveat::LagInComparison { pass, name: name.clone(), p99_ms, mean_ms, limit });
                }
                if one.warm[side] > 0 {
                    let pass = one.pass.clone();
                    let count = one.warm[side];
                    let of = one.first_prompts;
                    caveats.push(LoadCaveat::FirstPromptsCached { pass, name, count, of });
                }
            }
            if one.refusals.is_empty() && one.excluded != [0, 0] {
                let ([at_a, at_b], pass) = (one.excluded, one.pass.clone());
                let a = a.to_owned();
                let b = b.to_owned();
                caveats.push(LoadCaveat::RequestsExcluded { pass, a, b, at_a, at_b });
            }
            let pass = one.pass.clone();
            let a = a.to_owned();
            if one.dropped > 0 && one.blocks > 0 {
                let pass = pass.clone();
                let a = a.clone();
                let b = b.to_owned();
                let dropped = one.dropped;
                let blocks = one.blocks + one.dropped;
                caveats.push(LoadCaveat::BlocksDropped { pass, a, b, dropped, blocks });
            }
            if one.blocks < 2 && one.refusals.is_empty() {
                caveats.push(LoadCaveat::NotInterleaved { pass: pass.clone(), a: a.clone(), b: b.to_owned() });
            }
            if let Some([first_ms, second_ms]) = one.halves
                && first_ms > 0.0
                && (second_ms / first_ms - 1.0).abs() > DRIFT_MAX
            {
                caveats.push(LoadCaveat::Drift { pass, a, first_ms, second_ms });
            }
        }
        let verdict = ComparisonVerdict::of(&compared);
        // Only blocks that both endpoints completed, like the differences.
        let is_whole = |pass: &&&PassResult| {
            let same = |other: &&&PassResult| (&other.id.name, other.id.block) == (&pass.id.name, pass.id.block);
            let ran = |side| others.iter().filter(same).any(|other| other.id.side == side && !other.ran.stopped);
            sides.pair.into_iter().all(ran)
        };
        let figures =
            |side: usize| SideFigures::of(others.iter().filter(|pass| pass.id.side == side).filter(is_whole).copied());
        let sides = sides.pair.map(figures);
        EndpointComparison { noise_floor, compared, verdict, sides, level: level.unwrap_or(0.0), caveats }
    }
}
