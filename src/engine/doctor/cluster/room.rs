//! Is there room for an object of this check, so that no key of anybody else is evicted for it? Pure.

use crate::engine::base::ByteSize;
use crate::engine::doctor::cluster::facts::{Facts, Segment, Usage};

/// Per cent of the whole memory that may be in use with the object in it: 2 below upstream's watermark of eviction.
const CLUSTER_MOST: u64 = 88;
/// Per cent of one segment: what it cannot take goes to others.
const SEGMENT_MOST: u64 = 95;
/// The largest object that is put where nobody tells how full the store is, bytes.
const BLIND_MAX: u64 = 16 << 20;

/// How full all segments are together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Room {
    whole: Option<Usage>,
}

impl Room {
    /// As the master told when the check began.
    pub fn of(facts: &Facts) -> Room {
        let value = |name: &str| facts.before.as_ref().and_then(|page| page.sum(name));
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "bytes; the cast saturates")]
        let whole = match (value("master_allocated_bytes"), value("master_total_capacity_bytes")) {
            (Some(used), Some(capacity)) => Some(Usage { used: used as u64, capacity: capacity as u64 }),
            _ => None,
        };
        Room { whole }
    }

    /// Why `bytes` more are not put towards `segment`; `None` when they may be.
    pub fn refuses(&self, segment: &Segment, bytes: u64) -> Option<String> {
        let over = |usage: &Usage, most: u64| usage.used.saturating_add(bytes) > usage.capacity / 100 * most;
        if let Some(usage) = segment.usage.filter(|usage| over(usage, SEGMENT_MOST)) {
            return Some(words("it", &usage, bytes, SEGMENT_MOST));
        }
        if let Some(usage) = self.whole.filter(|usage| over(usage, CLUSTER_MOST)) {
            return Some(words("the store", &usage, bytes, CLUSTER_MOST));
        }
        let is_blind = segment.usage.is_none() && self.whole.is_none() && bytes > BLIND_MAX;
        is_blind.then(|| {
            format!("nobody tells how full the store is, and more than {} could evict keys", ByteSize(BLIND_MAX))
        })
    }
}

fn words(what: &str, usage: &Usage, bytes: u64, most: u64) -> String {
    let (used, capacity) = (ByteSize(usage.used), ByteSize(usage.capacity));
    format!("{what} has {used} of {capacity} in use: {} more are over {most} % and could evict keys", ByteSize(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::doctor::cluster::facts::made_up::healthy;
    use crate::engine::http::Samples;

    const GIB: u64 = 1 << 30;
    const MIB: u64 = 1 << 20;

    fn segment(used: u64) -> Segment {
        Segment { usage: Some(Usage { used, capacity: GIB }), ..Segment::default() }
    }

    #[test]
    fn an_object_is_put_only_where_it_stays_below_the_watermark() {
        let room = Room { whole: Some(Usage { used: 0, capacity: GIB }) };
        assert_eq!(room.refuses(&segment(0), MIB), None);
        assert_eq!(room.refuses(&segment(0), 900 * MIB), None);
        let half = Room { whole: Some(Usage { used: GIB / 2, capacity: GIB }) };
        assert!(half.refuses(&segment(0), 900 * MIB).is_some_and(|why| why.contains("the store has")));
        assert!(room.refuses(&segment(GIB / 2), 900 * MIB).is_some_and(|why| why.contains("it has")));
        assert_eq!(half.refuses(&segment(GIB / 2), MIB), None);
    }

    #[test]
    fn where_nobody_tells_how_full_it_is_only_small_objects_are_put() {
        let blind = Room::default();
        assert_eq!(blind.refuses(&Segment::default(), MIB), None);
        assert!(blind.refuses(&Segment::default(), 900 * MIB).is_some());
        let mut facts = healthy();
        assert_eq!(Room::of(&facts).whole, Some(Usage { used: 0, capacity: 2 * GIB }));
        facts.before = Some(Samples::parse("master_active_clients 2\n"));
        assert_eq!(Room::of(&facts), blind);
    }
}
