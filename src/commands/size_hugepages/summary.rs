//! The three lines that come first: what the deployment needs, what is available, what to do.

use serde::Serialize;

use crate::commands::size_hugepages::host::Host;
use crate::commands::size_hugepages::report::{Range, Report};
use crate::commands::size_hugepages::verdict::Verdict;
use crate::engine::base::ByteSize;

/// The answer in three lines.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Summary {
    /// Huge pages and ordinary memory that the fullest host needs.
    pub needs: String,
    /// What that host has, and whether it is enough.
    pub available: String,
    /// The command, setting or host that solves what is missing.
    pub next: String,
}

/// The summary of `report` for `host`.
pub fn summary(report: &Report, host: &Host) -> Summary {
    Summary { needs: needs(report, host), available: available(report, host), next: next(report, host) }
}

/// Huge pages as a count and in bytes.
pub fn pages(range: Range, page: u64) -> String {
    let bytes = |n: u64| ByteSize(n.saturating_mul(page));
    let noun = if range.most == 1 { "huge page" } else { "huge pages" };
    let of = ByteSize(page);
    match range {
        Range { least, most } if least == most => format!("{most} {noun} of {of} ({})", bytes(most)),
        Range { least, most } => format!("{least} to {most} {noun} of {of} ({} to {})", bytes(least), bytes(most)),
    }
}

fn needs(report: &Report, host: &Host) -> String {
    let mut text = pages(report.host_hugepages, report.hugepage_bytes);
    if report.host_other_hugepages > 0 {
        let other = report.host_other_hugepages;
        text.push_str(&format!(", {} for arenas", pages(Range { least: other, most: other }, host.other.page)));
    }
    format!("{text}, and {} of ordinary memory", ByteSize(report.guard.needed_bytes))
}

fn available(report: &Report, host: &Host) -> String {
    let found = match report.available_hugepages {
        Some(count) => format!("{count} huge pages ({})", ByteSize(count.saturating_mul(report.hugepage_bytes))),
        None => "an unknown number of huge pages".to_owned(),
    };
    let memory = match host.memory {
        Some(bytes) => format!("{} of ordinary memory", ByteSize(bytes)),
        None => "an unknown amount of ordinary memory".to_owned(),
    };
    let verdict = match report.verdict {
        Verdict::Fits if host.memory.is_none() => "the huge pages suffice",
        Verdict::Fits => "it fits",
        Verdict::HugepagesShort if report.pasteable => "the huge pages are still to be reserved",
        Verdict::HugepagesShort | Verdict::MemoryShort => "it does not fit",
        Verdict::NotCertain => "whether it fits depends on the model",
        Verdict::Unknown => "whether it fits is unknown",
    };
    format!("{found}, and {memory}: {verdict}")
}

fn next(report: &Report, host: &Host) -> String {
    let least_host = gib_up(report.host_bytes_min);
    let memory_short = host.memory.is_some() && report.guard.available_bytes < Some(report.guard.needed_bytes);
    let missing = report.host_hugepages.most.saturating_sub(report.available_hugepages.unwrap_or(0));
    match report.verdict {
        Verdict::NotCertain => "give --model NAME or a config.json: its bytes per token decide".to_owned(),
        Verdict::Unknown => {
            format!(
                "give --available-hugetlb SIZE; this kernel has no pool of {} pages",
                ByteSize(report.hugepage_bytes)
            )
        }
        Verdict::Fits if report.pasteable => "paste the lines below".to_owned(),
        Verdict::Fits => {
            format!("run the lines below on that host, without the #; it needs at least {least_host} GiB of memory")
        }
        Verdict::HugepagesShort | Verdict::MemoryShort if memory_short => {
            format!(
                "use a host with at least {least_host} GiB of memory, or lower --hicache-size or --global-segment-size (use --fit \
                 instead of them to find the largest sizes that fit)"
            )
        }
        _ if host.pool.allowed < host.pool.available && host.pool.allowed.is_some() => {
            "raise the huge page limit of this control group (hugetlb.*.max)".to_owned()
        }
        _ if report.pasteable => {
            format!("reserve {missing} huge pages: run this again with --apply as root, or paste the lines below")
        }
        _ => format!("reserve {missing} more huge pages on that host; it needs at least {least_host} GiB of memory"),
    }
}

/// Whole GiB, rounded up.
pub fn gib_up(bytes: u64) -> u64 {
    bytes.div_ceil(ByteSize::GIB)
}
