//! A planned hand-over: changes are held, the standby makes its copy ready, the leader deletes its key, and the standby
//! creates its own.

use std::time::Duration;

use crate::engine::base::Mono;
use crate::engine::ha::action::{HaAction, HaMessage};
use crate::engine::ha::config::AckMode;
use crate::engine::ha::leadership::{HandOver, HandOverStep};
use crate::engine::ha::member::MemberId;
use crate::engine::ha::planted::{HaMistake, is_planted};
use crate::engine::ha::record::TxnOutcome;
use crate::engine::ha::state::{HaCore, RoleState};

/// A hand-over that makes no progress for this long is cancelled.
pub(super) const HAND_OVER_TIMEOUT: Duration = Duration::from_millis(1500);

impl HaCore {
    /// Begins to hand over to a standby in sync, if there is one.
    pub(super) fn step_down(&mut self, now: Mono) {
        let RoleState::Leader(leader) = &mut self.role else { return };
        if leader.hand_over.is_some() {
            return;
        }
        let Some((to, _)) = leader.replicas.best() else { return };
        leader.hand_over = Some(HandOver { to, last: 0, since: now, step: HandOverStep::Holding });
        self.actions.push(HaAction::HoldChanges(true));
    }

    /// No request changes anything any more. The last change is `last`.
    pub(super) fn ask_to_take_over(&mut self, now: Mono, last: u64) {
        let RoleState::Leader(leader) = &mut self.role else { return };
        leader.appended = leader.appended.max(last);
        let Some(hand_over) = leader.hand_over.as_mut().filter(|it| it.step == HandOverStep::Holding) else { return };
        hand_over.step = HandOverStep::Preparing;
        hand_over.since = now;
        hand_over.last = last;
        self.actions.push(HaAction::Send(hand_over.to, HaMessage::TakeOver { last }));
    }

    /// The standby `from` is ready to serve. If this answers an earlier hand-over, its copy may lack changes, so all must be
    /// acknowledged.
    pub(super) fn note_ready(&mut self, now: Mono, from: MemberId) {
        let RoleState::Leader(leader) = &mut self.role else { return };
        let acked = leader.replicas.get(from).map_or(0, |replica| replica.acked);
        if let Some(hand_over) = &mut leader.hand_over
            && hand_over.to == from
            && hand_over.step == HandOverStep::Preparing
            && acked >= hand_over.last
        {
            hand_over.step = HandOverStep::Ready;
            self.delete_key(now);
        }
    }

    /// Deletes the key, if the successor is ready. With asynchronous acknowledgements, responses may have been sent for changes
    /// that a standby lacks. All standbys that can be elected must have them first.
    pub(super) fn delete_key(&mut self, now: Mono) {
        let RoleState::Leader(leader) = &mut self.role else { return };
        let Some(hand_over) = leader.hand_over.as_mut().filter(|it| it.step == HandOverStep::Ready) else { return };
        let lacks_changes =
            |id: &MemberId| leader.replicas.get(*id).is_none_or(|replica| replica.acked < hand_over.last);
        let is_list_known = leader.writing.is_none() && !leader.must_write;
        let waits_for_others = leader.ack == AckMode::Async && !is_planted(HaMistake::ListedNotAwaited);
        if waits_for_others && (!is_list_known || leader.listed.iter().any(lacks_changes)) {
            return;
        }
        hand_over.step = HandOverStep::Releasing;
        hand_over.since = now;
        let address = self.me.rpc.to_string();
        self.actions.push(HaAction::DeleteKey { view: leader.view, address });
    }

    pub(super) fn note_key_deletion(&mut self, now: Mono, outcome: &TxnOutcome) {
        let RoleState::Leader(leader) = &mut self.role else { return self.request_observation(now) };
        let is_releasing = leader.hand_over.is_some_and(|hand_over| hand_over.step == HandOverStep::Releasing);
        match outcome {
            TxnOutcome::Done(_) if is_releasing => {
                leader.key_lease = 0;
                leader.is_key_gone = true;
                self.release(now);
            }
            _ => self.request_observation(now),
        }
    }

    /// The records were read while this master hands over. The view was `before`.
    pub(super) fn compare_hand_over(&mut self, now: Mono, before: u64) {
        let RoleState::Leader(leader) = &mut self.role else { return };
        let Some(hand_over) = leader.hand_over else { return };
        match hand_over.step {
            HandOverStep::Released if leader.view > before => {
                // The successor did not create the key, and this master has.
                leader.hand_over = None;
                self.cancel_hand_over(now, hand_over.to);
            }
            HandOverStep::Releasing if leader.is_key_gone => self.release(now),
            HandOverStep::Releasing => {
                let address = self.me.rpc.to_string();
                self.actions.push(HaAction::DeleteKey { view: leader.view, address });
            }
            _ => {}
        }
    }

    /// The key is deleted, so the standby may create its own.
    fn release(&mut self, now: Mono) {
        let RoleState::Leader(leader) = &mut self.role else { return };
        let Some(hand_over) = leader.hand_over.as_mut() else { return };
        hand_over.step = HandOverStep::Released;
        hand_over.since = now;
        self.actions.push(HaAction::Send(hand_over.to, HaMessage::Released));
    }

    /// Cancels a hand-over whose standby is gone, or takes too long.
    pub(super) fn advance_hand_over(&mut self, now: Mono) {
        let RoleState::Leader(leader) = &mut self.role else { return };
        let Some(hand_over) = leader.hand_over else { return };
        let is_gone = !leader.replicas.get(hand_over.to).is_some_and(|replica| replica.is_connected);
        let is_late = now.since(hand_over.since) >= HAND_OVER_TIMEOUT;
        if matches!(hand_over.step, HandOverStep::Preparing | HandOverStep::Ready) && (is_gone || is_late) {
            leader.hand_over = None;
            return self.cancel_hand_over(now, hand_over.to);
        }
        self.delete_key(now);
    }

    /// The standby's copy may be ready to serve, and then follows no more changes.
    pub(super) fn cancel_hand_over(&mut self, now: Mono, to: MemberId) {
        if let RoleState::Leader(leader) = &mut self.role {
            leader.replicas.leave(to);
        }
        self.actions.push(HaAction::Send(to, HaMessage::Cancel));
        self.actions.push(HaAction::HoldChanges(false));
        self.request_observation(now);
    }
}
