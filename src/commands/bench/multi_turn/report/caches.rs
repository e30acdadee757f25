//! What a pass showed of the server's caches, as people see it.

use crate::commands::bench::sheet::{Section, Sheet, cut};
use crate::commands::svg::{Axis, Plot, Series};
use crate::engine::load::server::observed::{Moment, ShortTold};
use crate::engine::load::server::{Compared, Counters, Observed, Reason};

/// Requests that got too little are listed up to this many here; the document has more.
const SHOWN: usize = 10;

pub(super) fn section(observed: &Observed) -> Section {
    let mut section = Section::new("Caches");
    section.text.extend(observed.missing.iter().map(|missing| format!("not seen: {missing}")));
    section.text.extend(observed.counters.as_ref().map(counted));
    if let Some(master) = &observed.master {
        let full = 100.0 * master.allocated_bytes as f64 / master.capacity_bytes.max(1) as f64;
        section.text.push(format!(
            "the store's master: {} objects, {full:.1} % full, {} evicted, {} without room",
            master.keys, master.evicted_keys, master.allocation_failures
        ));
    }
    match observed.agrees {
        Some(true) => section.text.push("answers and the server's counters agree exactly, by tier".to_owned()),
        Some(false) => {
            let words: Vec<String> = observed.compared.iter().map(Compared::words).collect();
            section.text.push(format!("answers and the server's counters differ: {}", words.join("; ")));
        }
        None => {}
    }
    section.sheets.extend(expected(observed));
    section.sheets.extend(reuse(observed));
    section.sheets.extend(shorts(observed));
    section.plots.extend(over_time(&observed.timeline));
    section
}

fn counted(counters: &Counters) -> String {
    let mut words = vec![
        format!("evicted {}", counters.evicted),
        format!("copied to the host {}", counters.backed_up),
        format!("back from it {}", counters.loaded_back),
        format!("written to the store {}", counters.stored),
        format!("fetched {}", counters.prefetched),
    ];
    let reasons =
        [("dropped", &counters.dropped), ("unfulfilled", &counters.unfulfilled), ("deferred", &counters.deferred)];
    for (name, reasons) in reasons {
        words.extend(reasons.iter().filter(|(_, n)| **n > 0).map(|(why, n)| format!("{name} ({why}) {n}")));
    }
    let rates = [("a fetch", counters.prefetch_rate), ("a write", counters.backup_rate)];
    words.extend(rates.iter().filter_map(|(name, rate)| Some(format!("{name} at {:.3} GB/s", rate.mean()?))));
    format!("the server's counters, in tokens: {}", words.join(", "))
}

fn expected(observed: &Observed) -> Option<Sheet> {
    let expectation = observed.expectation.as_ref().filter(|told| told.all.requests > 0)?;
    let head = ["turn", "should be, tokens", "were, tokens", "requests short", "short, tokens"];
    let mut sheet = Sheet::new("Cached tokens that should have been, and were", &head);
    for (at, row) in expectation.turns.iter().enumerate().filter(|(_, row)| row.requests > 0) {
        let numbers = [row.expected, row.cached, row.short, row.short_tokens].map(|n| n.to_string());
        sheet.row(std::iter::once((at + 1).to_string()).chain(numbers));
    }
    if observed.is_near {
        sheet.notes.push("prompts are text, of which only the server knows the tokens: near the truth".to_owned());
    }
    Some(sheet)
}

fn reuse(observed: &Observed) -> Option<Sheet> {
    if observed.reuse.is_empty() {
        return None;
    }
    let head = ["tokens since its last use", "should be, tokens", "device", "host", "storage", "missed"];
    let mut sheet = Sheet::new("Hits by how far back a prefix was used", &head);
    for row in &observed.reuse {
        let range = match row.below {
            u64::MAX => format!("{} and more", row.from),
            below if below == row.from + 1 => row.from.to_string(),
            below => format!("{} to {}", row.from, below - 1),
        };
        let device = row.device + row.cached_somewhere;
        let numbers = [row.expected, device, row.host, row.storage, row.missed].map(|n| n.to_string());
        sheet.row(std::iter::once(range).chain(numbers));
    }
    Some(sheet)
}

fn shorts(observed: &Observed) -> Option<Sheet> {
    let short = &observed.short;
    if short.requests == 0 {
        return None;
    }
    let reasons: Vec<String> = short.reasons.iter().map(|(why, n)| format!("{why} {n}")).collect();
    let title = format!(
        "{} requests got less than they should have, {} of them unexplained",
        short.requests, short.unexplained
    );
    let head = ["conversation", "turn", "should be", "device", "host", "storage", "the server's reason"];
    let mut sheet = Sheet::new(&title, &head).words(6);
    for told in short.listed.iter().take(SHOWN) {
        let ShortTold { conversation, turn, expected, device, host, storage, reasons, .. } = told;
        let why: Vec<String> = reasons.iter().map(Reason::kind).collect();
        let numbers = [*conversation, *turn, *expected, *device, *host, *storage].map(|n| n.to_string());
        let why = if why.is_empty() { "unexplained".to_owned() } else { cut(&why.join(", "), 60) };
        sheet.row(numbers.into_iter().chain([why]));
    }
    if short.requests > SHOWN as u64 {
        sheet.notes.push(format!("and {} more (the document lists up to 100)", short.requests - SHOWN as u64));
    }
    if !reasons.is_empty() {
        sheet.notes.push(format!("requests by reason, of which one may have several: {}", reasons.join(", ")));
    }
    Some(sheet)
}

/// The server's own counters over the time, for a page.
fn over_time(moments: &[Moment]) -> Vec<Plot> {
    if moments.len() < 2 {
        return Vec::new();
    }
    let of = |value: &dyn Fn(&Moment) -> f64| -> Vec<(f64, f64)> {
        moments.iter().map(|moment| (moment.seconds, value(moment))).collect()
    };
    let seconds = || Axis::even("seconds since the start");
    let mut plots = vec![
        Plot::new("The server's counters: tokens of prompts", seconds(), Axis::even("tokens so far"))
            .with(Series::line("computed", 5, of(&|m| m.computed as f64)))
            .with(Series::line("device (L1)", 0, of(&|m| m.device as f64)))
            .with(Series::line("host (L2)", 2, of(&|m| m.host as f64)))
            .with(Series::line("storage (L3)", 1, of(&|m| m.storage as f64))),
        Plot::new("The server's counters: tokens between tiers", seconds(), Axis::even("tokens so far"))
            .with(Series::line("evicted from L1", 5, of(&|m| m.evicted as f64)))
            .with(Series::line("copied to L2", 2, of(&|m| m.backed_up as f64)))
            // The same as what is above it, where all that goes to L2 goes on to L3.
            .with(Series::line("written to L3", 1, of(&|m| m.stored as f64)).dashed()),
    ];
    if moments.iter().any(|moment| moment.master.is_some()) {
        let objects = of(&|m| m.master.map_or(f64::NAN, |master| master.keys as f64));
        let evicted = of(&|m| m.master.map_or(f64::NAN, |master| master.evicted_keys as f64));
        plots.push(
            Plot::new("The store's master", seconds(), Axis::even("objects"))
                .with(Series::line("held", 0, objects))
                .with(Series::line("evicted so far", 5, evicted)),
        );
    }
    plots
}
