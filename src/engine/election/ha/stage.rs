//! The stages of a promotion and of a hand-over, for the coverage of the simulation.

use crate::ha::followership::CandidateStep;
use crate::ha::leadership::HandOverStep;
use crate::ha::state::{HaCore, RoleState};

/// The stage of a master in a promotion or a hand-over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum HaStage {
    /// A standby that does not stand for election.
    #[default]
    Following,
    /// A standby that creates the key of its leader again.
    RecreatingKey,
    /// A candidate whose copy is being made ready.
    PreparingCopy,
    /// A candidate whose copy is ready.
    CopyReady,
    /// A candidate whose transaction has no result yet.
    Electing,
    /// A leader whose sync record is up to date.
    Leading,
    /// A leader whose write of the sync record has no result yet.
    WritingSyncRecord,
    /// A leader whose key has expired.
    KeyExpired,
    /// A leader that waits until changes are held.
    HoldingChanges,
    /// A leader that waits until its successor is ready.
    WaitingForSuccessor,
    /// A leader that deletes its key.
    DeletingKey,
    /// A leader whose key is deleted, and whose successor is not elected yet.
    KeyDeleted,
    /// The state is being discarded, or connections are forwarded to the successor.
    Ended,
}

impl HaStage {
    /// The stages that last for some time in the simulation. Changes are held within one step.
    pub const ALL: [HaStage; 11] = [
        HaStage::Following,
        HaStage::RecreatingKey,
        HaStage::PreparingCopy,
        HaStage::CopyReady,
        HaStage::Electing,
        HaStage::Leading,
        HaStage::WritingSyncRecord,
        HaStage::KeyExpired,
        HaStage::WaitingForSuccessor,
        HaStage::DeletingKey,
        HaStage::KeyDeleted,
    ];
}

impl HaCore {
    /// The last change that this standby has acknowledged over its stream, or 0.
    pub fn acknowledged(&self) -> u64 {
        match &self.role {
            RoleState::Standby(follower) => follower.acknowledged,
            _ => 0,
        }
    }

    /// Whether this standby is a candidate whose copy may lack changes. Its objects are dropped
    /// before it leads.
    pub fn is_dropping(&self) -> bool {
        matches!(&self.role, RoleState::Standby(follower) if follower.step.is_lossy())
    }

    /// The stage of this master.
    pub fn stage(&self) -> HaStage {
        match &self.role {
            RoleState::Standby(follower) => match follower.step {
                CandidateStep::None if follower.recreating.is_some() => HaStage::RecreatingKey,
                CandidateStep::None => HaStage::Following,
                CandidateStep::Preparing { .. } => HaStage::PreparingCopy,
                CandidateStep::Prepared { .. } => HaStage::CopyReady,
                CandidateStep::Electing { .. } => HaStage::Electing,
            },
            RoleState::Leader(leader) => match leader.hand_over.map(|hand_over| hand_over.step) {
                None if leader.is_key_gone => HaStage::KeyExpired,
                None if leader.writing.is_some() => HaStage::WritingSyncRecord,
                None => HaStage::Leading,
                Some(HandOverStep::Holding) => HaStage::HoldingChanges,
                Some(HandOverStep::Preparing | HandOverStep::Ready) => HaStage::WaitingForSuccessor,
                Some(HandOverStep::Releasing) => HaStage::DeletingKey,
                Some(HandOverStep::Released) => HaStage::KeyDeleted,
                Some(HandOverStep::Done) => HaStage::Ended,
            },
            RoleState::Resetting => HaStage::Ended,
        }
    }
}
