//! The standbys of a leader: their acknowledgements, and which ones responses wait for.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::ha::member::MemberId;
use crate::ha::planted::{HaMistake, is_planted};
use mcctl_base::Mono;

/// A standby becomes required if it lacks at most this number of changes, or only changes of the
/// last [`LAG_TIME`] to twice that: responses then wait for it that long once, at any rate of
/// changes.
const LAG_MAX: u64 = 4096;
/// Time by which a standby may be behind when it becomes required ([`LAG_MAX`]).
const LAG_TIME: Duration = Duration::from_millis(50);

/// The relation of a standby to the sync record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplicaPhase {
    /// It is still catching up. Responses do not wait for it.
    Following,
    /// Responses wait for it. It will be listed once it has all changes up to this one, which is
    /// not known at first: see [`ReplicaSet::require_from`].
    Joining { from: Option<u64> },
    /// It is listed in the sync record.
    InSync,
    /// It does not acknowledge. Responses wait until a sync record without it is written.
    Leaving,
}

/// The leader's record of a standby.
#[derive(Clone, Copy, Debug)]
pub struct Replica {
    pub phase: ReplicaPhase,
    /// The last change that it has acknowledged.
    pub acked: u64,
    /// Time at which it last sent an acknowledgement that shows progress, or had nothing to
    /// acknowledge.
    pub progress_at: Mono,
    /// It does not stand for election before this time, on the leader's clock.
    pub promised_until: Mono,
    pub is_connected: bool,
    /// Its process is about to end. Acknowledgements may still arrive from it.
    pub is_leaving: bool,
}

impl Replica {
    /// Whether responses wait for it.
    pub fn is_required(&self) -> bool {
        self.phase != ReplicaPhase::Following
    }

    /// Whether the sync record lists it.
    pub fn is_in_sync(&self) -> bool {
        self.phase == ReplicaPhase::InSync
    }
}

/// All standbys of a leader.
#[derive(Clone, Debug, Default)]
pub(super) struct ReplicaSet {
    members: BTreeMap<MemberId, Replica>,
    lag: LagMarks,
}

/// The leader's last changes at two earlier times.
#[derive(Clone, Copy, Debug, Default)]
struct LagMarks {
    newer: Option<(Mono, u64)>,
    /// At least [`LAG_TIME`] before `newer`.
    older: Option<(Mono, u64)>,
}

impl LagMarks {
    /// Notes the leader's last change at `now`.
    fn note(&mut self, now: Mono, appended: u64) {
        if self.newer.is_none_or(|(at, _)| now.since(at) >= LAG_TIME) {
            self.older = self.newer.replace((now, appended));
        }
    }

    /// The changes that a standby must have that is not more than about [`LAG_TIME`] behind; `None`
    /// if it is not known.
    fn required(&self, now: Mono) -> Option<u64> {
        self.older.filter(|(at, _)| now.since(*at) <= 3 * LAG_TIME).map(|(_, appended)| appended)
    }
}

impl ReplicaSet {
    /// A standby connected. It has all changes up to `applied`.
    pub(super) fn connect(&mut self, now: Mono, id: MemberId, applied: u64) {
        let fresh = Replica {
            phase: ReplicaPhase::Following,
            acked: applied,
            progress_at: now,
            promised_until: Mono::ZERO,
            is_connected: true,
            is_leaving: false,
        };
        let replica = self.members.entry(id).or_insert(fresh);
        replica.is_connected = true;
        replica.is_leaving = false;
        replica.acked = replica.acked.max(applied);
        replica.progress_at = now;
    }

    /// The connection of a standby ended.
    pub(super) fn disconnect(&mut self, id: MemberId) {
        let Some(replica) = self.members.get_mut(&id) else { return };
        replica.is_connected = false;
        if !replica.is_required() {
            self.members.remove(&id);
        }
    }

    /// A standby acknowledges all changes up to `applied`. `appended` is the leader's last change.
    /// `is_listed`: the sync record lists it, and no record without it can still be written.
    pub(super) fn ack(&mut self, now: Mono, id: MemberId, applied: u64, appended: u64, is_listed: bool) {
        let Some(replica) = self.members.get_mut(&id) else { return };
        self.lag.note(now, appended);
        let recent = self.lag.required(now);
        let is_close = applied.max(replica.acked) + LAG_MAX >= appended
            || recent.is_some_and(|recent| applied.max(replica.acked) >= recent);
        let is_progress = applied > replica.acked || applied >= appended;
        if is_progress {
            replica.progress_at = now;
        }
        replica.acked = replica.acked.max(applied);
        match replica.phase {
            ReplicaPhase::Following if is_progress && !replica.is_leaving && is_close => {
                replica.phase = ReplicaPhase::Joining { from: None };
            }
            ReplicaPhase::Leaving if is_progress && !replica.is_leaving && is_listed => {
                replica.phase = ReplicaPhase::InSync;
            }
            _ => {}
        }
    }

    /// Whether a standby has begun to join, and [`require_from`](Self::require_from) was not called
    /// since.
    pub(super) fn has_new_joining(&self) -> bool {
        self.members.values().any(|replica| replica.phase == ReplicaPhase::Joining { from: None })
    }

    /// All later responses wait for the joining standbys. Changes up to `appended` may have been
    /// answered before.
    pub(super) fn require_from(&mut self, appended: u64) {
        for replica in self.members.values_mut() {
            if replica.phase == (ReplicaPhase::Joining { from: None }) {
                replica.phase = ReplicaPhase::Joining { from: Some(appended) };
            }
        }
    }

    /// A standby does not stand for election before `until`.
    pub(super) fn promise(&mut self, id: MemberId, until: Mono) {
        if let Some(replica) = self.members.get_mut(&id) {
            replica.promised_until = replica.promised_until.max(until);
        }
    }

    /// A standby may stand for election from now on.
    pub(super) fn end_promise(&mut self, id: MemberId) {
        if let Some(replica) = self.members.get_mut(&id) {
            replica.promised_until = Mono::ZERO;
        }
    }

    /// Records that a standby will send no more acknowledgements.
    pub(super) fn leave(&mut self, id: MemberId) {
        let Some(replica) = self.members.get_mut(&id) else { return };
        replica.is_leaving = true;
        if replica.is_required() {
            replica.phase = ReplicaPhase::Leaving;
        }
    }

    /// Marks the required standbys that have not acknowledged for `timeout`, although they lack
    /// changes: `appended` is the leader's last one. A standby that has all changes stays in the
    /// sync record, so that it can be elected, unless it is disconnected and another one in sync is
    /// connected. So does `successor`, which takes over.
    pub(super) fn expire(&mut self, now: Mono, timeout: Duration, appended: u64, successor: Option<MemberId>) {
        let is_any_connected = self.members.values().any(|replica| replica.is_connected && replica.is_in_sync());
        for (id, replica) in &mut self.members {
            let lacks_changes = replica.acked < appended
                || matches!(replica.phase, ReplicaPhase::Joining { .. })
                || !replica.is_connected && is_any_connected;
            let is_late = now.since(replica.progress_at) >= timeout && Some(*id) != successor;
            if replica.is_required() && lacks_changes && is_late {
                replica.phase = ReplicaPhase::Leaving;
            }
        }
    }

    /// Extends the time limits by `gap`, in which the leader did not run and could not receive
    /// acknowledgements.
    pub(super) fn postpone(&mut self, gap: Duration) {
        self.members.values_mut().for_each(|replica| replica.progress_at = replica.progress_at + gap);
    }

    /// The sync record lists exactly these standbys, and no write of another one can still succeed.
    /// Responses need not wait for the others that do not acknowledge.
    pub(super) fn release_unlisted(&mut self, listed: &[MemberId]) {
        for (id, replica) in &mut self.members {
            if replica.phase == ReplicaPhase::Leaving && !listed.contains(id) {
                replica.phase = ReplicaPhase::Following;
                replica.is_leaving |= is_planted(HaMistake::NotAddedAgain);
            }
        }
        self.members.retain(|_, replica| replica.is_connected || replica.is_required());
    }

    /// The time of the last progress of the required standby that has made none for longest.
    pub(super) fn least_progress(&self) -> Option<Mono> {
        let is_watched = |replica: &&Replica| replica.is_required() && replica.phase != ReplicaPhase::Leaving;
        self.members.values().filter(is_watched).map(|replica| replica.progress_at).min()
    }

    /// The standbys that the next sync record should list, in the order of their IDs.
    pub(super) fn wanted(&self) -> impl Iterator<Item = MemberId> {
        let is_wanted = |replica: &Replica| match replica.phase {
            ReplicaPhase::InSync => true,
            ReplicaPhase::Leaving => is_planted(HaMistake::SyncFlagKept),
            ReplicaPhase::Joining { from } => from.is_some_and(|from| replica.acked >= from) && replica.is_connected,
            ReplicaPhase::Following => false,
        };
        self.members.iter().filter(move |(_, replica)| is_wanted(replica)).map(|(id, _)| *id)
    }

    /// A sync record that lists exactly these standbys was written, and no write before it can
    /// still succeed.
    pub(super) fn list(&mut self, ids: &[MemberId]) {
        for (id, replica) in &mut self.members {
            if ids.contains(id) && matches!(replica.phase, ReplicaPhase::Joining { .. }) {
                replica.phase = ReplicaPhase::InSync;
            }
        }
        self.release_unlisted(ids);
    }

    /// Requires a standby that the sync record lists, also if this set does not contain it yet.
    pub(super) fn require(&mut self, now: Mono, id: MemberId) {
        let unknown = Replica {
            phase: ReplicaPhase::InSync,
            acked: 0,
            progress_at: now,
            promised_until: Mono::ZERO,
            is_connected: false,
            is_leaving: false,
        };
        let replica = self.members.entry(id).or_insert(unknown);
        if !replica.is_required() {
            replica.phase = ReplicaPhase::InSync;
        }
    }

    /// The last change that all required standbys have; `appended` if there are none.
    pub(super) fn acked(&self, appended: u64) -> u64 {
        let is_ignored =
            |replica: &Replica| replica.phase == ReplicaPhase::Leaving && is_planted(HaMistake::SyncFlagKept);
        let required = self.members.values().filter(|replica| replica.is_required() && !is_ignored(replica));
        required.map(|replica| replica.acked).min().unwrap_or(appended)
    }

    /// The time up to which no required standby stands for election; `None` if none is required.
    pub(super) fn promised_until(&self) -> Option<Mono> {
        let required = self.members.values().filter(|replica| replica.is_required());
        required.map(|replica| replica.promised_until).min()
    }

    /// The connected standby in sync that has acknowledged the most changes.
    pub(super) fn best(&self) -> Option<MemberId> {
        let ready = |replica: &Replica| replica.is_connected && replica.phase == ReplicaPhase::InSync;
        let members = self.members.iter().filter(|(_, replica)| ready(replica));
        members.max_by_key(|(_, replica)| replica.acked).map(|(id, _)| *id)
    }

    /// The standby with this ID, if it is connected or required.
    pub(super) fn get(&self, id: MemberId) -> Option<&Replica> {
        self.members.get(&id)
    }

    /// The standbys that are connected or required.
    pub(super) fn iter(&self) -> impl Iterator<Item = (MemberId, &Replica)> {
        self.members.iter().map(|(id, replica)| (*id, replica))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: MemberId = MemberId(2);

    #[test]
    fn a_late_standby_leaves_only_if_it_lacks_changes_and_can_return() {
        let mut set = in_sync();
        let timeout = Duration::from_secs(1);
        let late = Mono::ZERO + timeout;
        set.expire(late, timeout, 5, None);
        assert!(set.wanted().eq([ID]), "no response waits for it");
        set.postpone(timeout);
        set.expire(late, timeout, 6, None);
        assert!(set.wanted().eq([ID]), "the leader did not run");
        set.expire(late + timeout, timeout, 6, Some(ID));
        assert!(set.wanted().eq([ID]), "it takes over");
        set.expire(late + timeout, timeout, 6, None);
        assert_eq!(set.wanted().count(), 0);
        set.ack(late + timeout, ID, 6, 6, false);
        assert_eq!(set.wanted().count(), 0, "a record without it may have been written");
        set.ack(late + timeout, ID, 6, 6, true);
        assert!(set.wanted().eq([ID]));
    }

    /// A standby in sync.
    fn in_sync() -> ReplicaSet {
        let mut set = ReplicaSet::default();
        set.connect(Mono::ZERO, ID, 0);
        set.ack(Mono::ZERO, ID, 5, 5, false);
        set.require_from(5);
        assert!(set.wanted().eq([ID]));
        set.list(&[ID]);
        set
    }

    #[test]
    fn a_standby_joins_at_any_rate_of_changes_if_it_is_not_far_behind_in_time() {
        // A million changes per second, and acknowledgements every 10 ms of a standby that is
        // behind by this many of them.
        let joins = |behind: u64| {
            let mut set = ReplicaSet::default();
            set.connect(Mono::ZERO, ID, 0);
            for tens in 1..50u64 {
                let appended = 10_000 * tens;
                set.ack(Mono::from_ms(10 * tens), ID, appended.saturating_sub(behind), appended, false);
            }
            set.has_new_joining()
        };
        assert!(joins(4_000) && joins(45_000) && !joins(200_000));
    }

    #[test]
    fn a_standby_that_leaves_is_not_listed_again_until_it_connects_again() {
        let mut set = in_sync();
        set.leave(ID);
        assert_eq!(set.wanted().count(), 0);
        set.list(&[]);
        // Its process continues for a moment.
        set.ack(Mono::ZERO, ID, 6, 6, true);
        set.require_from(6);
        assert!(set.wanted().count() == 0 && set.acked(9) == 9, "nothing waits for it");
        set.disconnect(ID);
        set.connect(Mono::ZERO, ID, 6);
        set.ack(Mono::ZERO, ID, 6, 6, false);
        set.require_from(6);
        assert!(set.wanted().eq([ID]));
    }
}
