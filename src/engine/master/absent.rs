//! Methods whose feature is not here, and what they answer: what a real master answers that has the feature switched off.
//!
//! The one place for it: a feature that arrives takes its lines out. Each line was read off a real 0.3.13.post1 master
//! (`mooncake_master` with default flags), except those marked *ours*, where the real one has no switch.

use crate::engine::base::ErrorCode;
use crate::engine::wire::{Expected, Method};

/// What a method without its feature answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Absent {
    /// This error.
    Refused(ErrorCode),
    /// This error, if there is an object with the key; otherwise `OBJECT_NOT_FOUND`.
    RefusedForKey(ErrorCode),
    /// Success with nothing in it.
    Nothing,
    /// Success with nothing in it, if there is an object with the key; otherwise `OBJECT_NOT_FOUND`.
    NothingForKey,
}

use Absent::{Nothing, NothingForKey, Refused, RefusedForKey};

/// The table.
pub(super) const ABSENT: &[(Method, Absent)] = &[
    // Copy and move tasks. There is never one.
    (Method::FetchTasks, Nothing),
    (Method::QueryTask, Refused(ErrorCode::TASK_NOT_FOUND)),
    (Method::MarkTaskToComplete, Refused(ErrorCode::TASK_NOT_FOUND)),
    // Ours: the real one would queue a task that then nobody could finish.
    (Method::CreateCopyTask, RefusedForKey(ErrorCode::UNAVAILABLE_IN_CURRENT_MODE)),
    (Method::CreateMoveTask, RefusedForKey(ErrorCode::UNAVAILABLE_IN_CURRENT_MODE)),
    (Method::CopyStart, Refused(ErrorCode::SEGMENT_NOT_FOUND)),
    (Method::CopyEnd, RefusedForKey(ErrorCode::OBJECT_NO_REPLICATION_TASK)),
    (Method::CopyRevoke, RefusedForKey(ErrorCode::OBJECT_NO_REPLICATION_TASK)),
    (Method::MoveStart, Refused(ErrorCode::SEGMENT_NOT_FOUND)),
    (Method::MoveEnd, RefusedForKey(ErrorCode::OBJECT_NO_REPLICATION_TASK)),
    (Method::MoveRevoke, RefusedForKey(ErrorCode::OBJECT_NO_REPLICATION_TASK)),
    (Method::DynamicReplicaCopyStart, RefusedForKey(ErrorCode::UNAVAILABLE_IN_CURRENT_STATUS)),
    (Method::DynamicReplicaCopyEnd, RefusedForKey(ErrorCode::OBJECT_NO_REPLICATION_TASK)),
    (Method::DynamicReplicaCopyRevoke, RefusedForKey(ErrorCode::OBJECT_NO_REPLICATION_TASK)),
    // Offload to the nodes' disks.
    (Method::MountLocalDiskSegment, Refused(ErrorCode::UNABLE_OFFLOAD)),
    (Method::UnmountLocalDiskSegment, Refused(ErrorCode::UNABLE_OFFLOAD)),
    (Method::OffloadObjectHeartbeat, Refused(ErrorCode::SEGMENT_NOT_FOUND)),
    (Method::ReportSsdCapacity, Refused(ErrorCode::SEGMENT_NOT_FOUND)),
    (Method::PollRemoveAll, Refused(ErrorCode::SEGMENT_NOT_FOUND)),
    // Ours: the real one notes a disk replica that no other switched-off part of it would ever drop.
    (Method::NotifyOffloadSuccess, Refused(ErrorCode::UNABLE_OFFLOAD)),
    (Method::EvictDiskReplica, NothingForKey),
    (Method::BatchEvictDiskReplica, NothingForKey),
    // Promotion back from disk.
    (Method::PromotionObjectHeartbeat, Refused(ErrorCode::SEGMENT_NOT_FOUND)),
    (Method::PromotionAllocStart, RefusedForKey(ErrorCode::REPLICA_IS_NOT_READY)),
    (Method::NotifyPromotionSuccess, RefusedForKey(ErrorCode::REPLICA_IS_NOT_READY)),
    (Method::NotifyPromotionFailure, NothingForKey),
    // NVMe-oF.
    (Method::MountNoFSegment, Refused(ErrorCode::UNAVAILABLE_IN_CURRENT_MODE)),
    (Method::ReMountNoFSegment, Refused(ErrorCode::UNAVAILABLE_IN_CURRENT_MODE)),
    (Method::UnmountNoFSegment, Refused(ErrorCode::UNAVAILABLE_IN_CURRENT_MODE)),
    (Method::GetAllNoFSegments, Nothing),
    (Method::GetNoFSegmentsByName, Refused(ErrorCode::SEGMENT_NOT_FOUND)),
];

impl Absent {
    /// The line of `method`.
    pub fn of(method: Method) -> Absent {
        let line = ABSENT.iter().find(|(listed, _)| *listed == method);
        line.map_or(Refused(ErrorCode::NOT_SUPPORTED), |(_, answer)| *answer)
    }

    /// Does the answer depend on whether the key is there?
    pub fn asks_for_key(self) -> bool {
        matches!(self, RefusedForKey(_) | NothingForKey)
    }

    /// The answer, for a result that can be empty.
    pub fn answer<T: Default>(self, key_is_there: bool) -> Expected<T> {
        match self.refusal(key_is_there) {
            Some(code) => Err(code),
            None => Ok(T::default()),
        }
    }

    /// The error, if the answer is one.
    pub fn refusal(self, key_is_there: bool) -> Option<ErrorCode> {
        match self {
            Refused(code) => Some(code),
            RefusedForKey(_) | NothingForKey if !key_is_there => Some(ErrorCode::OBJECT_NOT_FOUND),
            RefusedForKey(code) => Some(code),
            Nothing | NothingForKey => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_method_is_listed_twice() {
        let mut listed: Vec<Method> = ABSENT.iter().map(|(method, _)| *method).collect();
        listed.sort_unstable();
        listed.dedup();
        assert_eq!(listed.len(), ABSENT.len());
    }
}
