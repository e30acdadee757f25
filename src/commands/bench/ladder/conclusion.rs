//! The conclusion of a tier ladder: for each tier one sentence that names every measured length.

use crate::commands::bench::joined::joined;
use crate::engine::load::ladder::{AbsentTier, BreakEven, EQUAL_SHARE, Ladder, LadderCell, LadderTier, TierVerdict};

/// Returns a sentence for each tier, and one for the tiers that the server lacks.
pub(super) fn sentences(ladder: &Ladder, absent: &[AbsentTier]) -> Vec<String> {
    let rungs = &ladder.rungs;
    let mut sentences: Vec<String> = LadderTier::ALL[1..]
        .iter()
        .filter_map(|tier| {
            let of_tier: Vec<&LadderCell> = rungs.iter().filter(|rung| rung.tier == *tier).collect();
            let even = ladder.break_even.iter().find(|even| even.tier == *tier);
            (!of_tier.is_empty()).then(|| format!("{}: {}", tier.label(), sentence(&of_tier, even)))
        })
        .collect();
    if let Some(first) = absent.first() {
        let names: Vec<&str> = absent.iter().map(|absent| absent.tier.label()).collect();
        sentences.push(format!("{}: absent, because the server runs without {}", names.join(" and "), first.flag));
    }
    sentences
}

/// Names the lengths of one tier by verdict.
fn sentence(rungs: &[&LadderCell], even: Option<&BreakEven>) -> String {
    let with = |wanted: TierVerdict| {
        let found = rungs.iter().filter(move |rung| rung.saved.as_ref().is_some_and(|saved| saved.verdict == wanted));
        found.map(|rung| rung.length).collect::<Vec<u32>>()
    };
    let faster = with(TierVerdict::Faster);
    let slower = with(TierVerdict::Slower);
    let equal = with(TierVerdict::Equal);
    let all = |lengths: &[u32]| match (lengths.len() == rungs.len(), lengths) {
        (true, [one]) => format!("at the only measured length ({one} tokens)"),
        (true, [first, .., last]) => format!("at every measured length ({first} to {last} tokens)"),
        _ => format!("at {} tokens", joined(lengths.iter().map(u32::to_string))),
    };
    let mut parts = Vec::new();
    if !faster.is_empty() {
        parts.push(format!("faster than computing {}, by {}", all(&faster), saved(rungs, &faster)));
    }
    if !equal.is_empty() {
        parts.push(format!("as fast as computing, within {} %, {}", EQUAL_SHARE * 100.0, all(&equal)));
    }
    if !slower.is_empty() {
        parts.push(format!("slower than computing {}", all(&slower)));
    }
    let undecided = rungs.iter().filter_map(|rung| {
        let reason = rung.saved.as_ref()?.reason.as_ref()?;
        Some((rung.length, reason.to_string()))
    });
    let mut undecided = undecided.peekable();
    if undecided.peek().is_some() {
        parts.push(format!("undecided at {}", reasons(undecided)));
    }
    let unverified = rungs.iter().filter(|rung| rung.saved.is_none()).map(|rung| rung.length.to_string());
    let mut unverified = unverified.peekable();
    if unverified.peek().is_some() {
        parts.push(format!("not measured at {} tokens, because no prompt was verified", joined(unverified)));
    }
    let shows_change = faster.len() < rungs.len();
    if let Some((even, fitted)) = even.and_then(|even| Some((even, even.fitted?))).filter(|_| shows_change) {
        let outside = if even.extrapolated { ", outside the measured lengths" } else { "" };
        parts.push(format!("the lines cross at about {fitted:.0} tokens{outside}"));
    }
    parts.join("; ")
}

/// Returns the time saved at the shortest and at the longest of `lengths`.
fn saved(rungs: &[&LadderCell], lengths: &[u32]) -> String {
    let ends = [lengths.first(), lengths.last().filter(|_| lengths.len() > 1)];
    let saved = ends.into_iter().flatten().filter_map(|length| {
        let rung = rungs.iter().find(|rung| rung.length == *length)?;
        Some((length, rung.saved.as_ref()?.median_ms))
    });
    let saved: Vec<String> = match lengths.len() {
        1 => saved.map(|(_, ms)| format!("{ms:.1} ms")).collect(),
        _ => saved.map(|(length, ms)| format!("{ms:.1} ms at {length}")).collect(),
    };
    joined(saved)
}

/// Names lengths with the reason for each; lengths with the same reason share it.
fn reasons(undecided: impl Iterator<Item = (u32, String)>) -> String {
    let mut groups: Vec<(Vec<u32>, String)> = Vec::new();
    for (length, reason) in undecided {
        match groups.last_mut() {
            Some((lengths, same)) if *same == reason => lengths.push(length),
            _ => groups.push((vec![length], reason)),
        }
    }
    let group = |(lengths, reason): &(Vec<u32>, String)| {
        format!("{} tokens ({reason})", joined(lengths.iter().map(u32::to_string)))
    };
    groups.iter().map(group).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::load::ladder::{TimeSaved, Undecided};
    use crate::engine::load::server::ServerInfo;

    fn rung(length: u32, tier: LadderTier, verdict: TierVerdict, reason: Option<Undecided>) -> LadderCell {
        let saved = TimeSaved { pairs: 8, median_ms: 1.0, low_ms: None, high_ms: None, verdict, reason };
        LadderCell { saved: Some(saved), ..LadderCell::new(length, tier) }
    }

    fn sentences_of(rungs: Vec<LadderCell>, info: &ServerInfo) -> Vec<String> {
        sentences(&Ladder { rungs, ..Ladder::default() }, &AbsentTier::of(info))
    }

    #[test]
    fn sentences_name_every_length_and_the_reason() {
        use TierVerdict::{Equal, Faster, Slower, Undecided as Open};
        let tier = LadderTier::Storage;
        let outlier = Undecided::Outliers { computed: false, outliers: 1, samples: 8, from_ms: 480.0, median_ms: 32.0 };
        let rungs = vec![
            LadderCell::new(256, tier),
            rung(512, tier, Slower, None),
            rung(1024, tier, Equal, None),
            rung(2048, tier, Faster, None),
            rung(4096, tier, Open, Some(outlier)),
            rung(8192, tier, Faster, None),
        ];
        let info = ServerInfo { has_host: true, storage: Some("mooncake".to_owned()), ..ServerInfo::default() };
        let all = [512, 1024].map(|length| rung(length, tier, Faster, None)).into();
        let few = [512, 1024].map(|length| rung(length, tier, Open, Some(Undecided::TooFew { pairs: 3 }))).into();
        let found = [rungs, all, few].map(|rungs| sentences_of(rungs, &info).join("\n"));
        insta::assert_snapshot!(found.join("\n"));
    }

    #[test]
    fn tiers_that_the_server_lacks_are_absent() {
        let rungs = vec![rung(512, LadderTier::Device, TierVerdict::Faster, None)];
        let without_host = sentences_of(rungs, &ServerInfo::default());
        let info = ServerInfo { has_host: true, ..ServerInfo::default() };
        insta::assert_snapshot!([without_host, sentences_of(Vec::new(), &info)].concat().join("\n"));
    }
}
