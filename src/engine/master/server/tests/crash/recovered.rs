//! The checks of the disk at a start, and of the state that is restored from it.

use std::time::Duration;

use super::env::CrashEnv;
use super::trace::{TracedChange, TracedState};
use super::world::{RELEASE, World};
use crate::server::data::RestoredMaster;
use crate::{StandbyState, StorePolicy};
use mcctl_base::{Mono, SegmentId, Unix};
use mcctl_journal::{DataDir, JournalError, RecoveredItem, RecoveryReport, SnapshotTrailer};
use mcctl_sys::env::Env;

/// A change as the log contains it.
pub(super) struct RecoveredChange {
    pub sequence: u64,
    pub at: Unix,
    pub payload: Vec<u8>,
}

/// The contents of a directory, read without the code that restores a master.
pub(super) struct RecoveredData {
    pub report: RecoveryReport,
    pub changes: Vec<RecoveredChange>,
    pub snapshot: Option<(u64, SnapshotTrailer)>,
    /// The state that the snapshot and the changes yield.
    pub state: TracedState,
}

impl RecoveredData {
    /// Reads the directory. `None`: the disk reports an error.
    pub(super) fn read(dir: &DataDir, policy: &StorePolicy) -> Option<RecoveredData> {
        let mut changes = Vec::new();
        let mut snapshot = None;
        let mut begun = 0;
        let mut standby = StandbyState::new(policy.clone());
        let mut apply = |payload: &[u8]| {
            standby.apply_payload(Mono::from_ms(10), Duration::ZERO, payload).expect("it fits");
        };
        let report = dir.recover(|item| {
            match item {
                RecoveredItem::SnapshotBegin { sequence, .. } => begun = sequence,
                RecoveredItem::SnapshotChunk { payload, .. } => apply(payload),
                RecoveredItem::SnapshotEnd(summary) => snapshot = Some((begun, summary)),
                RecoveredItem::Record { sequence, at, payload, .. } => {
                    apply(payload);
                    changes.push(RecoveredChange { sequence, at, payload: payload.to_vec() });
                }
            }
            Ok::<(), JournalError>(())
        });
        match report {
            Ok(report) => Some(RecoveredData { report, changes, snapshot, state: TracedState::of(&standby.state) }),
            Err(JournalError::Storage { .. }) => None,
            Err(error) => panic!("the data is refused: {error}"),
        }
    }
}

impl World {
    /// Compares the directory with the changes that processes have made. Afterwards, the changes
    /// that it does not contain are lost.
    pub(super) fn check_recovered(&mut self, found: &RecoveredData) {
        let last = found.report.last_sequence;
        if let Some((sequence, error)) = found.report.damaged_snapshots.first() {
            panic!("the snapshot after change {sequence} is damaged: {error}");
        }
        if let Some(write) = self.finished.iter().find(|write| write.must_be_kept && write.sequence > last) {
            panic!("the acknowledged write of key {} is lost", write.key);
        }
        assert!(
            last >= self.promised.kill,
            "the acknowledged change {} is lost: {last} is the last",
            self.promised.kill
        );
        self.add_first_change(found);
        self.check_changes(found);
        let lost = self.trace.changes.len() - last as usize;
        self.counts.count_many("lost changes", lost as u64);
        self.counts.count_many("torn logs", u64::from(found.report.torn.is_some()));
        self.trace.changes.truncate(last as usize);
        self.finished.retain(|write| write.sequence <= last);
        assert_eq!(found.state, self.trace.state(last), "the recovered state differs from that of the last process");
        self.check_replay(last);
    }

    /// Adds the first change of a process that ended before it could serve, if the directory
    /// contains it.
    fn add_first_change(&mut self, found: &RecoveredData) {
        if found.report.last_sequence > self.trace.count() {
            assert_eq!(found.report.last_sequence, self.trace.count() + 1);
            let change = found.changes.last().expect("no snapshot contains it yet");
            let payload = change.payload.clone();
            let at = change.at;
            let boot = self.first_change_boot;
            let behind = found.state;
            let is_complete = self.trace.is_complete;
            self.trace.changes.push(TracedChange { payload, at, behind, boot, is_complete });
        }
    }

    fn check_changes(&mut self, found: &RecoveredData) {
        let mut next = 1;
        if let Some((sequence, summary)) = found.snapshot {
            let saved = self.trace.state(sequence);
            assert_eq!((summary.digest, summary.items), (saved.digest, saved.counts.objects), "snapshot {sequence}");
            self.counts.count("restarts from a snapshot");
            next = sequence + 1;
        }
        for change in &found.changes {
            assert_eq!(change.sequence, next, "there is a gap");
            let traced = &mut self.trace.changes[next as usize - 1];
            if traced.payload.is_empty() {
                traced.payload.clone_from(&change.payload);
            }
            assert_eq!((&change.payload, change.at), (&traced.payload, traced.at), "change {next} has other bytes");
            next += 1;
        }
    }

    /// Applies all changes since the directory was created to an empty state, and compares the
    /// digest after each.
    pub(super) fn check_each_change(&self) {
        let mut standby = StandbyState::new(self.policy());
        for (nth, change) in self.trace.changes.iter().enumerate().filter(|(_, change)| !change.payload.is_empty()) {
            standby.apply_payload(Mono::from_ms(10), Duration::ZERO, &change.payload).expect("it fits");
            assert_eq!(standby.digest(), change.behind.digest, "change {}", nth + 1);
        }
    }

    /// Applies all changes since the directory was created to an empty state.
    fn check_replay(&self, last: u64) {
        let mut standby = StandbyState::new(self.policy());
        for change in self.trace.changes.iter().filter(|change| !change.payload.is_empty()) {
            standby.apply_payload(Mono::from_ms(10), Duration::ZERO, &change.payload).expect("it fits");
        }
        assert_eq!(TracedState::of(&standby.state), self.trace.state(last), "a replay yields another state");
    }

    /// Segments whose mount was lost are mounted again.
    fn limit_transfers_to_lost_segments(&mut self, restored: &RestoredMaster) {
        let nodes = self.nodes.iter().flat_map(|node| &node.segments).map(|segment| segment.id);
        let lost: Vec<SegmentId> = nodes.filter(|id| restored.state.segments.find(*id).is_none()).collect();
        lost.into_iter().for_each(|segment| self.limit_transfers(segment));
    }

    /// Checks a restored state, and adds the first change of its process, which is durable.
    pub(super) fn check_restored(
        &mut self,
        found: &RecoveredData,
        restored: &RestoredMaster,
        dir: &DataDir,
        env: &CrashEnv,
    ) {
        let last = found.report.last_sequence;
        let report = &restored.report;
        assert_eq!(report.restored, self.trace.state(last).counts);
        assert_eq!(report.changes, found.changes.len() as u64);
        let lost_power = self.trace.changes.last().is_some_and(|change| change.boot != self.storage.boot_id());
        let needs_hold = lost_power && !self.trace.is_complete(last);
        let hold = if needs_hold { Duration::from_millis(RELEASE.max(self.lease)) } else { Duration::ZERO };
        assert_eq!(report.hold, hold);
        self.counts.count_many("restarts with a hold", u64::from(needs_hold));
        self.trace.push(Vec::new(), env.unix(), &restored.state);
        if self.trace.state(last) != self.trace.state(last + 1) {
            let payload = RecoveredData::read(dir, &self.policy()).and_then(|mut data| data.changes.pop());
            payload.into_iter().for_each(|change| self.trace.changes[last as usize].payload = change.payload);
        }
        self.limit_transfers_to_lost_segments(restored);
        for write in &mut self.finished {
            write.must_be_kept = true;
            write.survives_power_loss = true;
        }
        assert_eq!((restored.writer.durable(), restored.writer.appended()), (last + 1, last + 1));
        self.promised.kill = last + 1;
        self.promised.power_loss = last + 1;
    }
}
