//! The answer in three lines: what the deployment needs, what is available, and what to do next.

use serde::Serialize;

use crate::commands::size_hugepages::host::TargetHost;
use crate::commands::size_hugepages::report::{RangeRow, SizingReport};
use crate::commands::size_hugepages::verdict::SizingVerdict;
use crate::engine::base::ByteSize;

/// The answer in three lines.
#[derive(Clone, Debug, Default, Serialize)]
pub struct SizingSummary {
    /// Huge pages and ordinary memory of the fullest host.
    pub needs: String,
    /// The host's resources, and whether they suffice.
    pub available: String,
    /// The command, setting or host that resolves a shortage.
    pub next: String,
}

/// Summarizes `report` for `host`.
pub fn summary(report: &SizingReport, host: &TargetHost) -> SizingSummary {
    SizingSummary { needs: needs(report, host), available: available(report, host), next: next(report, host) }
}

/// Formats huge pages as a count and in bytes.
pub fn pages(range: RangeRow, page: u64) -> String {
    let bytes = |n: u64| ByteSize(n.saturating_mul(page));
    let noun = if range.most == 1 { "huge page" } else { "huge pages" };
    let of = ByteSize(page);
    match range {
        RangeRow { least, most } if least == most => format!("{most} {noun} of {of} ({})", bytes(most)),
        RangeRow { least, most } => format!("{least} to {most} {noun} of {of} ({} to {})", bytes(least), bytes(most)),
    }
}

fn needs(report: &SizingReport, host: &TargetHost) -> String {
    let mut text = pages(report.host_hugepages, report.hugepage_bytes);
    if report.host_other_hugepages > 0 {
        let other = report.host_other_hugepages;
        text.push_str(&format!(", {} for arenas", pages(RangeRow { least: other, most: other }, host.other.page)));
    }
    format!("{text}, and {} of ordinary memory", ByteSize(report.guard.needed_bytes))
}

fn available(report: &SizingReport, host: &TargetHost) -> String {
    let found = match report.available_hugepages {
        Some(count) => format!("{count} huge pages ({})", ByteSize(count.saturating_mul(report.hugepage_bytes))),
        None => "an unknown number of huge pages".to_owned(),
    };
    let memory = match host.memory {
        Some(bytes) => format!("{} of ordinary memory", ByteSize(bytes)),
        None => "an unknown amount of ordinary memory".to_owned(),
    };
    let verdict = match report.verdict {
        SizingVerdict::Fits if host.memory.is_none() => "the huge pages suffice",
        SizingVerdict::Fits => "it fits",
        SizingVerdict::HugepagesShort if report.pasteable => "the huge pages must still be reserved",
        SizingVerdict::HugepagesShort | SizingVerdict::MemoryShort => "it does not fit",
        SizingVerdict::NotCertain => "whether it fits depends on the model",
        SizingVerdict::Unknown => "whether it fits is unknown",
    };
    format!("{found}, and {memory}: {verdict}")
}

fn next(report: &SizingReport, host: &TargetHost) -> String {
    let least_host = gib_up(report.host_bytes_min);
    let memory_short = host.memory.is_some() && report.guard.available_bytes < Some(report.guard.needed_bytes);
    let missing = report.host_hugepages.most.saturating_sub(report.available_hugepages.unwrap_or(0));
    match report.verdict {
        SizingVerdict::NotCertain => {
            "give --model NAME or a config.json: the result depends on its bytes per token".to_owned()
        }
        SizingVerdict::Unknown => {
            format!(
                "give --available-hugetlb SIZE; this kernel has no pool of {} pages",
                ByteSize(report.hugepage_bytes)
            )
        }
        SizingVerdict::Fits if report.pasteable => "paste the lines above".to_owned(),
        SizingVerdict::Fits => {
            format!("run the lines above on that host, without the #; it needs at least {least_host} GiB of memory")
        }
        SizingVerdict::HugepagesShort | SizingVerdict::MemoryShort if memory_short => {
            format!(
                "use a host with at least {least_host} GiB of memory, or lower --hicache-size or --global-segment-size (use --max-fit \
                 instead to find the largest sizes that fit)"
            )
        }
        _ if host.pool.allowed < host.pool.available && host.pool.allowed.is_some() => {
            "raise the huge page limit of this cgroup (hugetlb.*.max)".to_owned()
        }
        _ if report.pasteable => {
            format!("reserve {missing} huge pages: run this again with --apply as root, or paste the lines above")
        }
        _ => format!("reserve {missing} more huge pages on that host; it needs at least {least_host} GiB of memory"),
    }
}

/// Rounds up to whole GiB.
pub fn gib_up(bytes: u64) -> u64 {
    bytes.div_ceil(ByteSize::GIB)
}
