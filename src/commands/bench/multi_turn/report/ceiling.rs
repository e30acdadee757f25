//! The hit rate next to its ceiling: what caches of unlimited size would hit, what the sizes allow,
//! what was measured, and why the rest was missed.

use crate::commands::cli::table::{ReportSection, ReportTable, percent};
use crate::engine::load::ceiling::HitCeiling;

const TITLE: &str = "Hit rate and its ceiling";

/// Returns the ceiling and what the sizes allow in a few words.
pub(super) fn summary(found: &HitCeiling) -> String {
    let share = |tokens: u64| percent(tokens, found.prompt);
    let allowed = found.allowed.map(|allowed| format!(", the sizes allow {} %", share(allowed.all)));
    format!("ceiling {} %{}", share(found.ceiling), allowed.unwrap_or_default())
}

/// Returns the section for a pass.
pub(super) fn section(found: &HitCeiling) -> ReportSection {
    let mut section = ReportSection::new(TITLE);
    let head = ["prompt tokens", "tokens", "%", "L1, %", "L1+L2, %", "all tiers, %"];
    let mut table = ReportTable::new(TITLE, &head);
    let share = |tokens: u64| percent(tokens, found.prompt);
    let cells = |tokens: u64, tiers: Option<[u64; 3]>| {
        let tiers = tiers.map_or(["-", "-", "-"].map(str::to_owned), |tiers| tiers.map(share));
        [tokens.to_string(), share(tokens)].into_iter().chain(tiers)
    };
    let mut row = |name: &str, tokens: u64, tiers: Option<[u64; 3]>| {
        table.row(std::iter::once(name.to_owned()).chain(cells(tokens, tiers)));
    };
    row("ceiling", found.ceiling, None);
    if let Some(allowed) = found.allowed {
        row("sizes allow", allowed.all, Some([allowed.device, allowed.memory, allowed.all]));
    }
    let measured = &found.measured;
    let tiers = [measured.device, measured.device + measured.host, measured.all];
    row("measured", measured.all, (measured.unknown_tier == 0).then_some(tiers));
    let missed = &found.missed;
    row("missed", missed.tokens, None);
    if let Some(beyond) = missed.beyond_sizes {
        row("- beyond the sizes", beyond, None);
    }
    row("- in flight", missed.in_flight, None);
    row("- other", missed.other, None);
    if found.excess > 0 {
        row("above the ceiling", found.excess, None);
    }
    table.notes.extend(notes(found));
    section.tables.push(table);
    section
}

fn notes(found: &HitCeiling) -> Vec<String> {
    let mut notes = Vec::new();
    let missed = &found.missed;
    if !missed.reasons.is_empty() || missed.unexplained > 0 {
        let mut reasons: Vec<String> = missed.reasons.iter().map(|(why, n)| format!("{why} {n}")).collect();
        if missed.unexplained > 0 {
            reasons.push(format!("unexplained {}", missed.unexplained));
        }
        notes
            .push(format!("Requests with missing hits by reason (a request may have several): {}", reasons.join(", ")));
    }
    if found.has_unknown_storage() {
        notes.push("L3 size unknown, so L3 counts as unlimited (set --master-metrics)".to_owned());
    }
    if let Some(why) = &found.sizes_unknown {
        notes.push(format!("The cache sizes are unknown ({why}), so what they allow is not computed"));
    }
    if found.approximate {
        notes
            .push("Approximate: prompts were sent as text, so the client cannot count their tokens exactly".to_owned());
    }
    if found.incomplete {
        notes.push("The ceiling is too low: the requests used more pages than mcctl tracks".to_owned());
    }
    notes
}

/// Returns a table with a row per endpoint or pass; `None` if no ceiling is known. `what`: title of
/// the first column.
pub(in crate::commands::bench::multi_turn) fn of_rows<'a>(
    what: &str,
    rows: impl Iterator<Item = (&'a str, Option<&'a HitCeiling>)>,
) -> Option<ReportTable> {
    let head = [
        what,
        "ceiling, %",
        "sizes allow, %",
        "in L1, %",
        "in L1+L2, %",
        "measured, %",
        "missed, %",
        "beyond the sizes, %",
        "in flight, %",
        "other, %",
    ];
    let mut table = ReportTable::new(TITLE, &head);
    let mut all_notes: Vec<(String, String)> = Vec::new();
    for (name, found) in rows {
        let Some(found) = found else { continue };
        let share = |tokens: u64| percent(tokens, found.prompt);
        let maybe = |tokens: Option<u64>| tokens.map_or("-".to_owned(), share);
        let missed = &found.missed;
        table.row([
            name.to_owned(),
            share(found.ceiling),
            maybe(found.allowed.map(|allowed| allowed.all)),
            maybe(found.allowed.map(|allowed| allowed.device)),
            maybe(found.allowed.map(|allowed| allowed.memory)),
            share(found.measured.all),
            share(missed.tokens),
            maybe(missed.beyond_sizes),
            share(missed.in_flight),
            share(missed.other),
        ]);
        for note in notes(found) {
            match all_notes.iter_mut().find(|(_, known)| *known == note) {
                Some((names, _)) => names.push_str(&format!(", {name}")),
                None => all_notes.push((name.to_owned(), note)),
            }
        }
    }
    table.notes = all_notes.into_iter().map(|(names, note)| format!("{names}: {note}")).collect();
    Some(table).filter(|table| !table.rows.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::load::ceiling::{AllowedHits, CeilingCounts, RequestHits, StorageReach, TierReach};
    use crate::engine::load::plan::UnknownSizes;

    fn found(sizes: Result<TierReach, UnknownSizes>) -> HitCeiling {
        let mut counts = CeilingCounts::default();
        counts.add(&RequestHits {
            prompt: 1_000,
            possible: 800,
            expected: 768,
            allowed: sizes.is_ok().then_some(AllowedHits { device: 128, memory: 384, all: 640 }),
            measured: [112, 240, 256, 0],
        });
        HitCeiling::of(&counts, sizes).expect("a request")
    }

    #[test]
    fn rows_split_the_missed_tokens() {
        let reach = TierReach { device: 4_096, memory: 8_192, storage: StorageReach::Unknown };
        let mut ceiling = found(Ok(reach));
        ceiling.missed.reasons.insert("below the L3 prefetch threshold".to_owned(), 1);
        let section = section(&ceiling);
        insta::with_settings!({prepend_module_to_snapshot => false, omit_expression => true}, {
            insta::assert_snapshot!("multi_turn_ceiling", section.render(100));
        });
        assert_eq!(summary(&ceiling), "ceiling 80.0 %, the sizes allow 64.0 %");
    }

    #[test]
    fn unknown_sizes_are_named() {
        let ceiling = found(Err(UnknownSizes::NoCalls));
        let text = section(&ceiling).render(100);
        assert!(!text.contains("sizes allow") && text.contains("unknown (--no-server-calls)"), "{text}");
        let table = of_rows("endpoint", [("A", Some(&ceiling)), ("B", None)].into_iter()).expect("a table");
        assert_eq!((table.rows.len(), &*table.rows[0][2]), (1, "-"));
    }
}
