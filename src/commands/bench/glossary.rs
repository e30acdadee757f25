//! The terms of the benchmark reports: the only source for `--legend` and for the last section of
//! HTML pages.

use crate::commands::cli::table::{ReportSection, ReportTable};

/// Title of the section.
pub(in crate::commands::bench) const TITLE: &str = "Terms";

/// Terms and their meanings, in reading order.
const TERMS: [(&str, &str); 37] = [
    (
        "TTFT (scheduled)",
        "Time to first token: from the scheduled send time to the first token. Includes every wait, so a slow server cannot hide queueing",
    ),
    (
        "TTFT (sent)",
        "Time to first token: from the last byte of the request to the first token. Time in the server and the network only",
    ),
    ("ITL", "Inter-token latency: the time between two tokens of a response"),
    ("TPOT", "Time per output token of a request after the first: (last token - first token) / (tokens - 1)"),
    ("E2E latency", "End-to-end latency: from the scheduled send time to the end of the response"),
    (
        "p50, p90, p99",
        "Percentiles: 99 % of the values are at or below p99. 'too few': the run has too few values for this percentile",
    ),
    (
        "interval",
        "A confidence interval: an interval at 95 % contains the true value in 95 of 100 runs. Reports name the level of other intervals",
    ),
    (
        "scheduled send time",
        "When the load calls for a request, whether or not the server has finished the previous ones",
    ),
    ("concurrency wait", "Time that a request waited in the client for a free slot (--max-parallel)"),
    (
        "generator lag",
        "How late the client sent a request that could be sent. A large lag means that the client's machine is too slow or busy",
    ),
    ("generator bound", "By how much the generator may have shifted a difference between two servers"),
    ("working set", "Tokens of all conversations in one block of a comparison"),
    ("client read delay", "How long received data waited in the client before it was read. Included in the latencies"),
    ("server: queue", "Time in the server's queue, as reported by the server"),
    ("server: L3 wait", "Time that the server waited for data from L3, as reported by the server"),
    ("L1, device", "Cached prompts in the accelerator's memory"),
    ("L2, host", "Cached prompts in the memory of the server's host (HiCache)"),
    ("L3, storage", "Cached prompts in the store, such as Mooncake, shared by several servers"),
    ("computed", "Prompt tokens that were not cached, so the model processed them (prefill)"),
    ("source of a prompt", "Where most of its tokens came from: computed, L1, L2 or L3"),
    (
        "latency saved",
        "Estimate: the TTFT that a prompt would have had without the cache, minus its measured TTFT, both without the time in the server's queue. The first comes from a line fitted to the TTFT of the computed prompts in the same run",
    ),
    (
        "expected hits, missing",
        "Prompt tokens that the server had seen before, by whole pages, and those of them that it computed again",
    ),
    (
        "ceiling",
        "Share of the prompt tokens that a cache of unlimited size would hit in the requests that were sent, by whole pages. Includes prefixes that were still being computed for another request",
    ),
    (
        "sizes allow",
        "What LRU caches with the sizes of L1, of L1 and L2, and of all tiers would hit in the same requests. An L3 of unknown size counts as unlimited",
    ),
    (
        "missed",
        "The ceiling minus the actual hits: beyond the sizes of the caches, prefixes in flight (still being computed for another request), and other reasons",
    ),
    (
        "above the ceiling",
        "Hits that the requests of the run do not explain: the caches were warm, or prompts share more than the client can count",
    ),
    (
        "tokens since last use",
        "Reuse distance: tokens that the server processed between two uses of a prefix. A cache of N tokens serves about the distances below N",
    ),
    ("page", "The unit in which prompts are cached, in tokens. Parts of a page are always computed"),
    ("in flight", "Requests that were sent and whose response has not ended"),
    ("peak in flight", "The largest number of requests in flight at the same time"),
    (
        "steady state",
        "The longest interval with nearly the peak number of requests in flight, without ramp-up and drain",
    ),
    ("goodput", "Requests per second that met every latency limit (--goodput), and their share of the sent requests"),
    (
        "knee",
        "The load beyond which more load mostly adds latency: throughput grows by less than the square root of the load",
    ),
    ("best load", "The highest load up to the knee at which enough requests met the limits"),
    ("pass", "One run of the workload, such as a step of a sweep or a block of a comparison"),
    ("caveat", "A reason why a figure may be misleading"),
    ("offered load", "The load of a sweep step: requests per second, or conversations at a time"),
];

/// Returns the terms as a report section.
pub(in crate::commands::bench) fn section() -> ReportSection {
    let mut table = ReportTable::new("", &["term", "meaning"]).text_column(1);
    TERMS.iter().for_each(|(term, meaning)| table.row([*term, *meaning]));
    ReportSection { tables: vec![table], ..ReportSection::new(TITLE) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_term_is_explained_once() {
        let mut terms: Vec<&str> = TERMS.iter().map(|(term, _)| *term).collect();
        terms.sort_unstable();
        terms.dedup();
        assert_eq!(terms.len(), TERMS.len());
        assert!(TERMS.iter().all(|(_, meaning)| !meaning.is_empty() && !meaning.ends_with('.')));
    }

    #[test]
    fn the_documentation_has_the_same_terms() {
        let page = include_str!("../../../docs/bench-multi-turn.md");
        for (term, meaning) in TERMS {
            let row = format!("| {term} | {meaning} |");
            assert!(page.contains(&row), "docs/bench-multi-turn.md lacks {row}");
        }
    }
}
