//! Checks that a probe object fits without evicting other keys. Pure.

use crate::cluster::facts::{ClusterFacts, ListedSegment};
use mcctl_base::ByteSize;
use mcctl_metadata::admin::types::MemoryUsage;

/// Maximum usage of the total memory, including the object, in percent: 2 points below upstream's
/// eviction watermark.
const CLUSTER_MOST: u64 = 88;
/// Maximum usage of one segment, in percent. Above it, objects are placed in other segments.
const SEGMENT_MOST: u64 = 95;
/// Maximum object size if the usage is unknown, in bytes.
const BLIND_MAX: u64 = 16 << 20;

/// The combined usage of all segments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Headroom {
    whole: Option<MemoryUsage>,
}

impl Headroom {
    /// From the master's metrics at the start of the check.
    pub(super) fn of(facts: &ClusterFacts) -> Headroom {
        let value = |name: &str| facts.before.as_ref().and_then(|page| page.sum(name));
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "bytes; the cast saturates")]
        let whole = match (value("master_allocated_bytes"), value("master_total_capacity_bytes")) {
            (Some(used), Some(capacity)) => Some(MemoryUsage { used: used as u64, capacity: capacity as u64 }),
            _ => None,
        };
        Headroom { whole }
    }

    /// Why an object of `bytes` bytes must not be put into `segment`; `None` if it may be.
    pub(super) fn refuses(&self, segment: &ListedSegment, bytes: u64) -> Option<String> {
        let over = |usage: &MemoryUsage, most: u64| usage.used.saturating_add(bytes) > usage.capacity / 100 * most;
        if let Some(usage) = segment.usage.filter(|usage| over(usage, SEGMENT_MOST)) {
            return Some(over_limit("the segment", &usage, bytes, SEGMENT_MOST));
        }
        if let Some(usage) = self.whole.filter(|usage| over(usage, CLUSTER_MOST)) {
            return Some(over_limit("the store", &usage, bytes, CLUSTER_MOST));
        }
        let is_blind = segment.usage.is_none() && self.whole.is_none() && bytes > BLIND_MAX;
        is_blind.then(|| {
            format!("store usage is unknown, and objects larger than {} could evict keys", ByteSize(BLIND_MAX))
        })
    }
}

fn over_limit(what: &str, usage: &MemoryUsage, bytes: u64, most: u64) -> String {
    let used = ByteSize(usage.used);
    let capacity = ByteSize(usage.capacity);
    format!("{what} uses {used} of {capacity}: {} more would exceed {most} % and could evict keys", ByteSize(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::facts::test_facts::healthy;
    use mcctl_net::http::Samples;

    const GIB: u64 = 1 << 30;
    const MIB: u64 = 1 << 20;

    fn segment(used: u64) -> ListedSegment {
        ListedSegment { usage: Some(MemoryUsage { used, capacity: GIB }), ..ListedSegment::default() }
    }

    #[test]
    fn probe_objects_stay_below_the_eviction_watermark() {
        let headroom = Headroom { whole: Some(MemoryUsage { used: 0, capacity: GIB }) };
        assert_eq!(headroom.refuses(&segment(0), MIB), None);
        assert_eq!(headroom.refuses(&segment(0), 900 * MIB), None);
        let half = Headroom { whole: Some(MemoryUsage { used: GIB / 2, capacity: GIB }) };
        assert!(half.refuses(&segment(0), 900 * MIB).is_some_and(|why| why.contains("the store uses")));
        assert!(headroom.refuses(&segment(GIB / 2), 900 * MIB).is_some_and(|why| why.contains("the segment uses")));
        assert_eq!(half.refuses(&segment(GIB / 2), MIB), None);
    }

    #[test]
    fn only_small_objects_are_put_if_the_usage_is_unknown() {
        let blind = Headroom::default();
        assert_eq!(blind.refuses(&ListedSegment::default(), MIB), None);
        assert!(blind.refuses(&ListedSegment::default(), 900 * MIB).is_some());
        let mut facts = healthy();
        assert_eq!(Headroom::of(&facts).whole, Some(MemoryUsage { used: 0, capacity: 2 * GIB }));
        facts.before = Some(Samples::parse("master_active_clients 2\n"));
        assert_eq!(Headroom::of(&facts), blind);
    }
}
