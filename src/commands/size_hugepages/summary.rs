//! The three-line summary: needed resources, available resources, and the next step.

use crate::commands::size_hugepages::host::TargetHost;
use crate::commands::size_hugepages::report::{RangeRow, SizingReport, SizingSummary};
use crate::commands::size_hugepages::verdict::SizingVerdict;
use crate::engine::base::ByteSize;

/// Summarizes `report` for `host`.
pub(super) fn summary(report: &SizingReport, host: &TargetHost) -> SizingSummary {
    SizingSummary { needs: needs(report, host), available: available(report, host), next: next(report, host) }
}

/// Formats a number of huge pages as a count and as a size.
pub(super) fn pages(range: RangeRow, page: u64) -> String {
    let bytes = |n: u64| ByteSize(n.saturating_mul(page));
    let noun = if range.most == 1 { "huge page" } else { "huge pages" };
    let of = ByteSize(page);
    match range {
        RangeRow { least, most } if least == most => format!("{most} {of} {noun} ({})", bytes(most)),
        RangeRow { least, most } => format!("{least} to {most} {of} {noun} ({} to {})", bytes(least), bytes(most)),
    }
}

fn needs(report: &SizingReport, host: &TargetHost) -> String {
    if let Some(regular) = &report.regular {
        let RangeRow { least, most } = regular.needed_bytes;
        let memory = match least == most {
            true => ByteSize(most).to_string(),
            false => format!("{} to {}", ByteSize(least), ByteSize(most)),
        };
        return format!("{memory} of regular memory, without huge pages");
    }
    let mut text = pages(report.host_hugepages, report.hugepage_bytes);
    if report.host_other_hugepages > 0 {
        let other = report.host_other_hugepages;
        text.push_str(&format!(", {} for arenas", pages(RangeRow { least: other, most: other }, host.other.page)));
    }
    format!("{text}, and {} of regular (non-hugepage) memory", ByteSize(report.guard.needed_bytes))
}

/// The verdict in words.
fn verdict(report: &SizingReport, host: &TargetHost) -> &'static str {
    match report.verdict {
        SizingVerdict::Fits if host.memory.is_none() => "the huge pages are sufficient",
        SizingVerdict::Fits => "it fits",
        SizingVerdict::HugepagesShort if report.reservable => "the huge pages must still be reserved",
        SizingVerdict::HugepagesShort | SizingVerdict::MemoryShort | SizingVerdict::DevicesShort => "it does not fit",
        SizingVerdict::SegmentRejected => "the store rejects the segment",
        SizingVerdict::NotCertain => "whether it fits is not certain",
        SizingVerdict::Unknown => "whether it fits is unknown",
    }
}

fn available(report: &SizingReport, host: &TargetHost) -> String {
    let verdict = verdict(report, host);
    if report.regular.is_some() {
        let memory = host.memory.map_or("an unknown amount".to_owned(), |bytes| ByteSize(bytes).to_string());
        return format!("{memory} of regular memory: {verdict}");
    }
    let found = match report.available_hugepages {
        Some(count) => format!("{count} huge pages ({})", ByteSize(count.saturating_mul(report.hugepage_bytes))),
        None => "an unknown number of huge pages".to_owned(),
    };
    let memory = match host.memory {
        Some(bytes) => format!("{} of regular memory", ByteSize(bytes)),
        None => "an unknown amount of regular memory".to_owned(),
    };
    format!("{found}, and {memory}: {verdict}")
}

fn next(report: &SizingReport, host: &TargetHost) -> String {
    let least_host = gib_up(report.host_bytes_min);
    let memory_short = host.memory.is_some() && report.guard.available_bytes < Some(report.guard.needed_bytes);
    let missing = report.host_hugepages.most.saturating_sub(report.available_hugepages.unwrap_or(0));
    match report.verdict {
        SizingVerdict::NotCertain if report.ranks.iter().any(|rank| rank.pools_are_estimates) => {
            "set --device-pool-tokens, and --device-mamba-slots for a model with states: the result depends on the device's pools"
                .to_owned()
        }
        SizingVerdict::NotCertain => {
            "set --model to a model name or a config.json: the result depends on the model's bytes per token".to_owned()
        }
        SizingVerdict::SegmentRejected => {
            "set each segment to 0, or to at least 16 MiB per rank and per store service \
             (--global-segment-size, --store-segment-size), or use huge pages"
                .to_owned()
        }
        SizingVerdict::Unknown if report.regular.is_some() => "set --available-memory".to_owned(),
        SizingVerdict::Unknown => {
            format!("set --available-hugetlb; this kernel has no {} huge page pool", ByteSize(report.hugepage_bytes))
        }
        SizingVerdict::Fits if report.pasteable => "run the commands above".to_owned(),
        SizingVerdict::Fits => {
            format!(
                "run the commands above on the target host, without the #; it needs at least {least_host} GiB of memory"
            )
        }
        SizingVerdict::HugepagesShort | SizingVerdict::MemoryShort if memory_short || report.regular.is_some() => {
            // A ratio is not searched.
            let (l2, search) = match report.hicache_bytes {
                Some(_) => ("--hicache-size", "instead of one or both to find the largest sizes that fit"),
                None => ("--hicache-ratio", "instead of --global-segment-size to find the largest segment that fits"),
            };
            format!(
                "use a host with at least {least_host} GiB of memory, or lower {l2} or --global-segment-size (use --max-fit {search})"
            )
        }
        _ if host.pool.allowed < host.pool.available && host.pool.allowed.is_some() => {
            "raise this cgroup's huge page limit (hugetlb.*.max)".to_owned()
        }
        _ if report.pasteable => {
            format!(
                "reserve {missing} huge pages: run this command again with --apply as root, or run the commands above"
            )
        }
        _ => format!(
            "reserve {missing} more huge pages on the target host; it needs at least {least_host} GiB of memory"
        ),
    }
}

/// Rounds up to whole GiB.
pub(super) fn gib_up(bytes: u64) -> u64 {
    bytes.div_ceil(ByteSize::GIB)
}
