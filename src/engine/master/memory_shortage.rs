//! The figures that explain why no memory could be allocated, for the log.

use std::time::Duration;

use mcctl_base::Mono;

/// Shortest time between two reports.
const REPORT_PAUSE: Duration = Duration::from_secs(10);

/// The failed puts since the last report.
#[derive(Debug, Default)]
pub(super) struct FailedPuts {
    count: u64,
    /// The figures when the last of them failed.
    last: Option<MemoryShortage>,
    reported_at: Option<Mono>,
}

/// Why puts failed, and the figures of the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryShortage {
    pub cause: ShortageCause,
    /// Number of puts that failed since the last report.
    pub puts: u64,
    /// Size of the last of them.
    pub bytes: u64,
    pub used_bytes: u64,
    pub capacity_bytes: u64,
    /// Bytes of complete objects that are never evicted.
    pub hard_pinned_bytes: u64,
    pub soft_pinned_keys: u64,
}

/// Why memory could not be allocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShortageCause {
    NoSegment,
    /// Segments are mounted, but none accepts new objects.
    NoOpenSegment,
    /// Memory is free, but not in one piece, or not in a segment that accepts new objects.
    NoFittingRegion,
    /// Memory is being freed, or will be at the next eviction.
    Evicting,
    /// Hard-pinned objects leave too little memory, even if all others are evicted.
    HardPins,
    /// All objects have a pin or a lease, or are being written.
    NothingEvictable,
}

impl FailedPuts {
    /// Adds a put that failed.
    pub(crate) fn add(&mut self, shortage: MemoryShortage) {
        self.count += 1;
        self.last = Some(MemoryShortage { puts: self.count, ..shortage });
    }

    /// The last failed put, with the number since the last report, if it is time to report it.
    pub(crate) fn take_report(&mut self, now: Mono) -> Option<MemoryShortage> {
        if self.reported_at.is_some_and(|at| now < at + REPORT_PAUSE) {
            return None;
        }
        let shortage = self.last.take()?;
        self.count = 0;
        self.reported_at = Some(now);
        Some(shortage)
    }
}
