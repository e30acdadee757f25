//! A planned hand-over: changes are held, the standby makes its copy ready, the leader deletes its
//! key, and the standby creates its own.

use std::time::Duration;

use crate::ha::action::{HaAction, HaMessage, HandOverProblem};
use crate::ha::config::AckMode;
use crate::ha::leadership::{HandOver, HandOverStep};
use crate::ha::member::MemberId;
use crate::ha::planted::{HaMistake, is_planted};
use crate::ha::record::{HandOverTxn, SyncRecord, TxnOutcome};
use crate::ha::state::{HaCore, RoleState};
use mcctl_base::Mono;

/// A hand-over that makes no progress for this long is cancelled. A standby that makes its copy
/// ready reports progress with each answer to a ping. After the key was deleted,
/// [`RELEASED_TIMEOUT`] applies while the successor is connected.
pub(super) const HAND_OVER_TIMEOUT: Duration = Duration::from_millis(1500);

/// A connected successor must be elected within this time after the key was deleted. It covers a
/// second request to etcd, which is sent after one second without a response.
pub(super) const RELEASED_TIMEOUT: Duration = Duration::from_millis(2500);

impl HaCore {
    /// Begins a hand-over to a standby in sync, if there is one.
    pub(super) fn step_down(&mut self, now: Mono, is_ending: bool) {
        let RoleState::Leader(leader) = &mut self.role else {
            return self.actions.push(HaAction::ReportHandOver(HandOverProblem::NotLeading));
        };
        if let Some(hand_over) = &mut leader.hand_over {
            hand_over.is_final |= is_ending;
            return;
        }
        let Some(to) = leader.replicas.best() else {
            return self.actions.push(HaAction::ReportHandOver(HandOverProblem::NoStandby));
        };
        leader.hand_over = Some(HandOver { to, last: 0, since: now, step: HandOverStep::Holding, is_final: is_ending });
        self.actions.push(HaAction::HoldChanges(true));
    }

    /// Handles the report that changes are held. The last change is `last`.
    pub(super) fn ask_to_take_over(&mut self, now: Mono, last: u64) {
        let RoleState::Leader(leader) = &mut self.role else { return };
        leader.appended = leader.appended.max(last);
        let Some(hand_over) = leader.hand_over.as_mut().filter(|it| it.step == HandOverStep::Holding) else { return };
        hand_over.step = HandOverStep::Preparing;
        hand_over.since = now;
        hand_over.last = last;
        self.actions.push(HaAction::Send(hand_over.to, HaMessage::TakeOver { last }));
    }

    /// Handles the report that the standby `from` is ready to serve. The report may belong to an
    /// earlier hand-over, and the copy may then lack changes, so all must be acknowledged.
    pub(super) fn note_ready(&mut self, now: Mono, from: MemberId) {
        let RoleState::Leader(leader) = &mut self.role else { return };
        let acked = leader.replicas.get(from).map_or(0, |replica| replica.acked);
        if let Some(hand_over) = &mut leader.hand_over
            && hand_over.to == from
            && hand_over.step == HandOverStep::Preparing
            && acked >= hand_over.last
        {
            hand_over.step = HandOverStep::Ready;
            hand_over.since = now;
            self.delete_key(now);
        }
    }

    /// Deletes the key, if the successor is ready. With asynchronous acknowledgements, responses
    /// may have been sent for changes that a standby lacks. All standbys that can be elected must
    /// have them first.
    pub(super) fn delete_key(&mut self, now: Mono) {
        let RoleState::Leader(leader) = &mut self.role else { return };
        let Some(hand_over) = leader.hand_over.as_mut().filter(|it| it.step == HandOverStep::Ready) else { return };
        let lacks_changes =
            |id: &MemberId| leader.replicas.get(*id).is_none_or(|replica| replica.acked < hand_over.last);
        let waits_for_others = leader.ack == AckMode::Async && !is_planted(HaMistake::ListedNotAwaited);
        let is_any_late = waits_for_others && (leader.must_write || leader.listed.iter().any(lacks_changes));
        if leader.writing.is_some() || is_any_late {
            return;
        }
        hand_over.step = HandOverStep::Releasing;
        hand_over.since = now;
        self.request_deletion();
    }

    /// The record states that the hand-over was completed, so each copy that it lists has all
    /// changes.
    fn request_deletion(&mut self) {
        let RoleState::Leader(leader) = &self.role else { return };
        let sync = SyncRecord { handed_over: true, ..self.same_record(leader) };
        let address = self.me.rpc.to_string();
        let txn = HandOverTxn { view: leader.view, address, expected_sync: leader.sync_revision, sync };
        self.actions.push(HaAction::DeleteKey(txn));
    }

    pub(super) fn note_key_deletion(&mut self, now: Mono, outcome: &TxnOutcome) {
        let RoleState::Leader(leader) = &mut self.role else { return self.request_observation(now) };
        let is_releasing = leader.hand_over.is_some_and(|hand_over| hand_over.step == HandOverStep::Releasing);
        match outcome {
            TxnOutcome::Done(revision) if is_releasing => {
                leader.sync_revision = *revision;
                leader.written_at = now;
                leader.key_lease = 0;
                leader.is_key_gone = true;
                self.release(now);
            }
            _ => self.request_observation(now),
        }
    }

    /// Handles the records that were read during a hand-over. The view was `before`.
    pub(super) fn compare_hand_over(&mut self, now: Mono, before: u64) {
        let is_recorded = self.sync_record().is_some_and(|sync| sync.handed_over);
        let RoleState::Leader(leader) = &mut self.role else { return };
        let Some(hand_over) = leader.hand_over else { return };
        match hand_over.step {
            HandOverStep::Released if leader.view > before && hand_over.is_final => {
                // Another standby has created the key for this master.
                self.request_deletion();
            }
            HandOverStep::Released if leader.view > before => {
                // This master has created the key, and not the successor.
                self.cancel_hand_over(now, HandOverProblem::KeyCreatedAgain);
            }
            HandOverStep::Releasing if leader.is_key_gone && (is_recorded || leader.ack == AckMode::Sync) => {
                self.release(now);
            }
            HandOverStep::Releasing if leader.is_key_gone => {
                // The key expired before it was deleted, so the record does not state that the
                // hand-over was completed.
                if let Some(hand_over) = &mut leader.hand_over {
                    hand_over.step = HandOverStep::Ready;
                    hand_over.since = now;
                }
            }
            HandOverStep::Releasing => self.request_deletion(),
            _ => {}
        }
    }

    /// Handles the deletion of the key, after which the standby may create its own.
    fn release(&mut self, now: Mono) {
        let RoleState::Leader(leader) = &mut self.role else { return };
        let Some(hand_over) = leader.hand_over.as_mut() else { return };
        hand_over.step = HandOverStep::Released;
        hand_over.since = now;
        // This message ends the promise of the standby.
        leader.replicas.end_promise(hand_over.to);
        self.actions.push(HaAction::Send(hand_over.to, HaMessage::Released));
    }

    /// Ends a hand-over whose standby is disconnected, or makes no progress. That of a process that
    /// is about to end is not cancelled: changes stay held, and a standby that has everything can
    /// still be elected.
    pub(super) fn advance_hand_over(&mut self, now: Mono) {
        let RoleState::Leader(leader) = &mut self.role else { return };
        let Some(hand_over) = &mut leader.hand_over else { return };
        let is_gone = !leader.replicas.get(hand_over.to).is_some_and(|replica| replica.is_connected);
        let is_released = hand_over.step == HandOverStep::Released;
        let limit = if is_released && !is_gone { RELEASED_TIMEOUT } else { HAND_OVER_TIMEOUT };
        let is_late = now.since(hand_over.since) >= limit;
        let problem = if is_gone { HandOverProblem::StandbyGone } else { HandOverProblem::NoProgress(limit) };
        if (is_released || hand_over.step == HandOverStep::Releasing) && is_late && hand_over.is_final {
            return self.actions.push(HaAction::ReportHandOver(problem));
        }
        if !matches!(hand_over.step, HandOverStep::Preparing | HandOverStep::Ready) || !is_gone && !is_late {
            return self.delete_key(now);
        }
        if !hand_over.is_final {
            return self.cancel_hand_over(now, problem);
        }
        if is_gone && let Some(other) = leader.replicas.best().filter(|other| *other != hand_over.to) {
            hand_over.to = other;
            hand_over.since = now;
            hand_over.step = HandOverStep::Preparing;
            let take_over = HaMessage::TakeOver { last: hand_over.last };
            return self.actions.push(HaAction::Send(other, take_over));
        }
        self.actions.push(HaAction::ReportHandOver(problem));
        self.delete_key(now);
    }

    /// Cancels the hand-over: this master keeps leading. The standby, whose copy may be ready to
    /// serve, follows again after it has connected again.
    pub(super) fn cancel_hand_over(&mut self, now: Mono, problem: HandOverProblem) {
        let RoleState::Leader(leader) = &mut self.role else { return };
        let Some(HandOver { to, .. }) = leader.hand_over.take() else { return };
        // It stays in the sync record, because it has all changes, until a response has waited for
        // it for too long.
        self.actions.push(HaAction::Send(to, HaMessage::Cancel));
        self.actions.push(HaAction::HoldChanges(false));
        self.actions.push(HaAction::ReportHandOver(problem));
        self.request_observation(now);
    }
}
