//! Restored segments whose clients have not called yet: what waits for them, for the admin API and
//! the log.

use std::time::Duration;

use crate::effect::{Effects, StateEffect};
use crate::missing_clients::{MissingClients, MissingReport};
use crate::slots::SegmentSlot;
use crate::state::MasterState;
use crate::view::UnconfirmedSegment;
use mcctl_base::Mono;
use mcctl_wire::types::SegmentStatus;

/// Maximum number of names in a report.
const NAMES_MAX: usize = 8;

impl MasterState {
    /// Begins to wait for the clients of restored segments. Those that have not called a little
    /// later are logged.
    pub fn expect_clients(&mut self, now: Mono) {
        self.missing_report = MissingReport::starting(now);
    }

    /// The restored segments whose clients have not called; `None` if there are none. Visits all
    /// segments.
    pub fn missing_clients(&self, now: Mono) -> Option<MissingClients> {
        let mut missing = MissingClients::default();
        for slot in (0..self.segments.slots()).map(SegmentSlot) {
            let Some(segment) = self.unconfirmed(now, slot) else { continue };
            missing.segments += 1;
            missing.replicas += segment.replicas;
            missing.dropped_in = segment.dropped_in;
            if let Some(mounted) = self.segments.get(slot)
                && missing.names.len() < NAMES_MAX
                && !missing.names.contains(&mounted.segment.name)
            {
                missing.names.push(mounted.segment.name.clone());
            }
        }
        (missing.segments > 0).then_some(missing)
    }

    /// What waits for the client of the segment in `slot`; `None` if the client has called since
    /// the restore.
    pub(super) fn unconfirmed(&self, now: Mono, slot: SegmentSlot) -> Option<UnconfirmedSegment> {
        let mounted = self.segments.get(slot)?;
        if mounted.confirmed || mounted.status == SegmentStatus::UNMOUNTING {
            return None;
        }
        let dropped_in = self.confirm_until.map_or(Duration::ZERO, |until| until.since(now));
        Some(UnconfirmedSegment { replicas: u64::from(self.segments.replicas(slot)), dropped_in })
    }

    /// Reports the missing clients once, and the end of the wait.
    pub(super) fn report_missing_clients(&mut self, now: Mono, out: &mut Effects) {
        if !self.missing_report.is_due(now) {
            return;
        }
        let missing = self.missing_clients(now);
        if self.missing_report.keep(now, missing.is_some()) {
            out.list.push(missing.map_or(StateEffect::NoClientMissing, StateEffect::ClientsMissing));
        }
    }
}
