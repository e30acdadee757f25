//! The verdict of a comparison in words. The primary metric comes first.

use crate::engine::load::compare::{Comparison, ComparisonRefusal, Measure};
use crate::engine::load::paired::{CONVERSATIONS_MIN, DifferenceVerdict};

/// Returns the verdict on one pass. `a` and `b` are the endpoint names.
fn of_pass(one: &Comparison, [a, b]: [&str; 2], primary: Measure) -> String {
    if !one.refusals.is_empty() {
        return refused(&one.refusals);
    }
    let word = primary.word();
    let head = match one.verdict_on(primary) {
        Some(DifferenceVerdict::Better) => format!("{b} is better than {a} in {word}"),
        Some(DifferenceVerdict::Worse) => format!("{b} is worse than {a} in {word}"),
        Some(DifferenceVerdict::NoDifferenceShown) => format!("no difference shown in {word} between {a} and {b}"),
        Some(DifferenceVerdict::TooFew) => {
            return format!("too few conversations: a verdict needs at least {CONVERSATIONS_MIN}");
        }
        None => format!("{word} has no values to compare"),
    };
    let others = |verdict, text: &str| {
        let found = one.with(verdict).into_iter().filter(|measure| *measure != primary).map(Measure::word);
        let found = found.collect::<Vec<_>>().join(", ");
        if found.is_empty() { String::new() } else { format!("; {text} {found}") }
    };
    format!("{head}{}{}", others(DifferenceVerdict::Better, "better in"), others(DifferenceVerdict::Worse, "worse in"))
}

fn refused(refusals: &[ComparisonRefusal]) -> String {
    let mut reasons: Vec<String> = refusals.iter().map(ToString::to_string).collect();
    reasons.dedup();
    format!("not compared: {}", reasons.join("; "))
}

/// Returns the verdict on `compared`, one clause per pass.
pub(super) fn summary(compared: &[Comparison], names: [&str; 2], primary: Measure) -> String {
    match compared {
        [] => format!("not compared: no pass ran on both {} and {}", names[0], names[1]),
        [one] => of_pass(one, names, primary),
        all => {
            let mut refusals: Vec<ComparisonRefusal> = all.iter().flat_map(|one| one.refusals.clone()).collect();
            refusals.dedup();
            if !refusals.is_empty() {
                return refused(&refusals);
            }
            let parts = all.iter().map(|one| format!("{}: {}", one.pass, of_pass(one, names, primary)));
            parts.collect::<Vec<_>>().join("; ")
        }
    }
}
