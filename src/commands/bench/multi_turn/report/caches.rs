//! Report sections about the server's caches during a pass.

use crate::commands::cli::svg::{Axis, Plot, PlotSeries};
use crate::commands::cli::table::{ReportSection, ReportTable, truncated};
use crate::engine::load::server::observed::{ExplainedShortfall, TimelinePoint};
use crate::engine::load::server::{CounterCheck, ServerCounters, ServerObservation, ShortfallReason};

/// Maximum number of requests with missing hits to list. The JSON report lists up to 100.
const SHOWN: usize = 10;

pub(super) fn section(observed: &ServerObservation) -> ReportSection {
    let mut section = ReportSection::new("Caches");
    section.text.extend(observed.missing.iter().map(|missing| format!("not available: {missing}")));
    section.text.extend(observed.counters.as_ref().map(counted));
    if let Some(master) = &observed.master {
        let full = 100.0 * master.allocated_bytes as f64 / master.capacity_bytes.max(1) as f64;
        section.text.push(format!(
            "store master: {} objects, {full:.1} % used, {} evicted, {} failed allocations",
            master.keys, master.evicted_keys, master.allocation_failures
        ));
    }
    match observed.agrees {
        Some(true) => {
            section.text.push("Cached tokens in the responses match the server's counters, by tier".to_owned())
        }
        Some(false) => {
            let differences: Vec<String> = observed.compared.iter().map(CounterCheck::describe).collect();
            section.text.push(format!(
                "Cached tokens in the responses differ from the server's counters: {}",
                differences.join("; ")
            ));
        }
        None => {}
    }
    section.tables.extend(expected(observed));
    section.tables.extend(reuse(observed));
    section.tables.extend(shorts(observed));
    section.plots.extend(over_time(&observed.timeline));
    section
}

fn counted(counters: &ServerCounters) -> String {
    let mut counts = vec![
        format!("evicted {}", counters.evicted),
        format!("copied to L2 {}", counters.backed_up),
        format!("loaded from L2 {}", counters.loaded_back),
        format!("written to L3 {}", counters.stored),
        format!("prefetched {}", counters.prefetched),
    ];
    let reasons =
        [("dropped", &counters.dropped), ("unfulfilled", &counters.unfulfilled), ("deferred", &counters.deferred)];
    for (name, reasons) in reasons {
        counts.extend(reasons.iter().filter(|(_, n)| **n > 0).map(|(why, n)| format!("{name} ({why}) {n}")));
    }
    let rates = [("prefetch", counters.prefetch_rate), ("write", counters.backup_rate)];
    counts.extend(rates.iter().filter_map(|(name, rate)| Some(format!("{name} at {:.3} GB/s", rate.mean()?))));
    format!("Server counters, tokens: {}", counts.join(", "))
}

fn expected(observed: &ServerObservation) -> Option<ReportTable> {
    let expectation = observed.expectation.as_ref().filter(|expectation| expectation.all.requests > 0)?;
    let head =
        ["turn", "expected hits, tokens", "actual hits, tokens", "requests with missing hits", "missing, tokens"];
    let mut table = ReportTable::new("Expected and actual cache hits", &head);
    for (at, row) in expectation.turns.iter().enumerate().filter(|(_, row)| row.requests > 0) {
        let numbers = [row.expected, row.cached, row.short, row.short_tokens].map(|n| n.to_string());
        table.row(std::iter::once((at + 1).to_string()).chain(numbers));
    }
    if observed.is_near {
        table
            .notes
            .push("Approximate: prompts were sent as text, so the client cannot count their tokens exactly".to_owned());
    }
    Some(table)
}

fn reuse(observed: &ServerObservation) -> Option<ReportTable> {
    if observed.reuse.is_empty() {
        return None;
    }
    let head = ["tokens since last use", "expected hits, tokens", "device", "host", "storage", "missing"];
    let mut table = ReportTable::new("Hits by tokens since the last use of a prefix", &head);
    for row in &observed.reuse {
        let range = match row.below {
            u64::MAX => format!("{} or more", row.from),
            below if below == row.from + 1 => row.from.to_string(),
            below => format!("{} to {}", row.from, below - 1),
        };
        let device = row.device + row.cached_somewhere;
        let numbers = [row.expected, device, row.host, row.storage, row.missed].map(|n| n.to_string());
        table.row(std::iter::once(range).chain(numbers));
    }
    Some(table)
}

fn shorts(observed: &ServerObservation) -> Option<ReportTable> {
    let short = &observed.short;
    if short.requests == 0 {
        return None;
    }
    let reasons: Vec<String> = short.reasons.iter().map(|(why, n)| format!("{why} {n}")).collect();
    let title = format!("{} requests with missing hits, {} of them unexplained", short.requests, short.unexplained);
    let head = ["conversation", "turn", "expected", "device", "host", "storage", "server-side reason"];
    let mut table = ReportTable::new(&title, &head).text_column(6);
    for shortfall in short.listed.iter().take(SHOWN) {
        let ExplainedShortfall { conversation, turn, expected, device, host, storage, reasons, .. } = shortfall;
        let why: Vec<String> = reasons.iter().map(ShortfallReason::kind).collect();
        let numbers = [*conversation, *turn, *expected, *device, *host, *storage].map(|n| n.to_string());
        let why = if why.is_empty() { "unexplained".to_owned() } else { truncated(&why.join(", "), 60) };
        table.row(numbers.into_iter().chain([why]));
    }
    if short.requests > SHOWN as u64 {
        table.notes.push(format!("{} more (--json lists up to 100)", short.requests - SHOWN as u64));
    }
    if !reasons.is_empty() {
        table.notes.push(format!("Requests by reason (a request may have several): {}", reasons.join(", ")));
    }
    Some(table)
}

/// Returns plots of the server's counters over time.
fn over_time(moments: &[TimelinePoint]) -> Vec<Plot> {
    if moments.len() < 2 {
        return Vec::new();
    }
    let of = |value: &dyn Fn(&TimelinePoint) -> f64| -> Vec<(f64, f64)> {
        moments.iter().map(|moment| (moment.seconds, value(moment))).collect()
    };
    let seconds = || Axis::even("seconds since the start");
    let mut plots = vec![
        Plot::new("Server counters: prompt tokens", seconds(), Axis::even("tokens, cumulative"))
            .with(PlotSeries::line("computed", 5, of(&|m| m.computed as f64)))
            .with(PlotSeries::line("device (L1)", 0, of(&|m| m.device as f64)))
            .with(PlotSeries::line("host (L2)", 2, of(&|m| m.host as f64)))
            .with(PlotSeries::line("storage (L3)", 1, of(&|m| m.storage as f64))),
        Plot::new("Server counters: tokens moved between tiers", seconds(), Axis::even("tokens, cumulative"))
            .with(PlotSeries::line("evicted from L1", 5, of(&|m| m.evicted as f64)))
            .with(PlotSeries::line("copied to L2", 2, of(&|m| m.backed_up as f64)))
            // Dashed, because it coincides with the previous line if everything in L2 is also
            // written to L3.
            .with(PlotSeries::line("written to L3", 1, of(&|m| m.stored as f64)).dashed()),
    ];
    if moments.iter().any(|moment| moment.master.is_some()) {
        let objects = of(&|m| m.master.map_or(f64::NAN, |master| master.keys as f64));
        let evicted = of(&|m| m.master.map_or(f64::NAN, |master| master.evicted_keys as f64));
        plots.push(
            Plot::new("Store master", seconds(), Axis::even("objects"))
                .with(PlotSeries::line("held", 0, objects))
                .with(PlotSeries::line("evicted, cumulative", 5, evicted)),
        );
    }
    plots
}
