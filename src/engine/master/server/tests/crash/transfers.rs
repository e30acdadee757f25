//! The transfers to segments that are removed: some end, and some continue for a while.

use super::memory::AddressRange;
use super::process::Process;
use super::world::{DISCARD, World};
use crate::StateEffect;
use mcctl_base::SegmentId;

impl World {
    /// Handles the unmounted segments, and counts the effects of the state.
    pub(super) fn handle_effects(&mut self, process: &mut Process<'_>) {
        for effect in std::mem::take(&mut self.trace.effects) {
            match effect {
                StateEffect::Unmounted { segment, .. } => self.removed(process, segment),
                StateEffect::Evicted { objects, .. } => self.counts.count_many("evicted objects", objects),
                StateEffect::ClientExpired { .. } => self.counts.count("expired clients"),
                StateEffect::Mounted { .. }
                | StateEffect::SuspiciousEnd { .. }
                | StateEffect::ClientsMissing(_)
                | StateEffect::NoClientMissing
                | StateEffect::MemoryShortage(_) => {}
            }
        }
    }

    /// A segment was unmounted. Its process may still serve the memory, and mount it again.
    fn removed(&mut self, process: &mut Process<'_>, segment: SegmentId) {
        let now = self.ms();
        for response in process.unsent() {
            response.outcome.limit_transfers(segment, now + DISCARD);
        }
        if self.nodes.iter().any(|node| node.segments.iter().any(|held| held.id == segment)) {
            self.limit_transfers(segment);
        } else {
            self.end_transfers(segment);
        }
    }

    /// Limits the time of the writes to a segment that was removed. Their puts can no longer end,
    /// and a write in progress ends within the discard time.
    pub(super) fn limit_transfers(&mut self, segment: SegmentId) {
        let end = self.ms() + DISCARD;
        for writer in self.writers.iter_mut().filter(|writer| writer.ranges.iter().any(is_in(segment))) {
            writer.until = writer.until.min(end);
            self.counts.count("writers of removed segments");
        }
        let readers = self.readers.iter().filter(|reader| reader.ranges.iter().any(is_in(segment)));
        self.counts.count_many("readers of removed segments", readers.count() as u64);
    }

    /// Ends the transfers to a segment whose process no longer serves the memory.
    pub(super) fn end_transfers(&mut self, segment: SegmentId) {
        self.readers.iter_mut().for_each(|reader| reader.ranges.retain(|range| !is_in(segment)(range)));
        // A client does not complete an object that it cannot write.
        self.writers.retain(|writer| writer.is_written || !writer.ranges.iter().any(is_in(segment)));
        self.writers.iter_mut().for_each(|writer| writer.ranges.retain(|range| !is_in(segment)(range)));
    }
}

/// Whether a range is in the memory of a segment. Segments are mounted at addresses that contain
/// their ids.
pub(super) fn is_in(segment: SegmentId) -> impl Fn(&AddressRange) -> bool {
    move |range| (range.0 >> 20) & 0xf_ffff == segment.0
}
