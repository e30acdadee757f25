//! Methods of unsupported features, and their results, which are the same as on a real master with
//! the feature disabled.
//!
//! No other file lists these methods; when a feature is implemented, its entries are removed here.
//! Each entry was recorded from a real 0.3.13.post1 master (`mooncake_master` with default flags),
//! except for entries marked *ours*. For those, the real master has no switch to disable the
//! feature.

use mcctl_base::ErrorCode;
use mcctl_wire::{Expected, Method};

/// The result of a method whose feature is unsupported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum UnsupportedResult {
    Error(ErrorCode),
    /// This error if the key exists, `OBJECT_NOT_FOUND` otherwise.
    ErrorForKey(ErrorCode),
    /// Success with an empty result.
    Empty,
    /// Success with an empty result if the key exists, `OBJECT_NOT_FOUND` otherwise.
    EmptyForKey,
}

use UnsupportedResult::{Empty, EmptyForKey, Error, ErrorForKey};

/// The unsupported methods and their results.
pub(super) const UNSUPPORTED: &[(Method, UnsupportedResult)] = &[
    // Copy and move tasks. This master never creates any.
    (Method::FetchTasks, Empty),
    (Method::QueryTask, Error(ErrorCode::TASK_NOT_FOUND)),
    (Method::MarkTaskToComplete, Error(ErrorCode::TASK_NOT_FOUND)),
    // Ours: the real master would queue a task that no client could complete.
    (Method::CreateCopyTask, ErrorForKey(ErrorCode::UNAVAILABLE_IN_CURRENT_MODE)),
    (Method::CreateMoveTask, ErrorForKey(ErrorCode::UNAVAILABLE_IN_CURRENT_MODE)),
    (Method::CopyStart, Error(ErrorCode::SEGMENT_NOT_FOUND)),
    (Method::CopyEnd, ErrorForKey(ErrorCode::OBJECT_NO_REPLICATION_TASK)),
    (Method::CopyRevoke, ErrorForKey(ErrorCode::OBJECT_NO_REPLICATION_TASK)),
    (Method::MoveStart, Error(ErrorCode::SEGMENT_NOT_FOUND)),
    (Method::MoveEnd, ErrorForKey(ErrorCode::OBJECT_NO_REPLICATION_TASK)),
    (Method::MoveRevoke, ErrorForKey(ErrorCode::OBJECT_NO_REPLICATION_TASK)),
    (Method::DynamicReplicaCopyStart, ErrorForKey(ErrorCode::UNAVAILABLE_IN_CURRENT_STATUS)),
    (Method::DynamicReplicaCopyEnd, ErrorForKey(ErrorCode::OBJECT_NO_REPLICATION_TASK)),
    (Method::DynamicReplicaCopyRevoke, ErrorForKey(ErrorCode::OBJECT_NO_REPLICATION_TASK)),
    // Offloading to the nodes' disks.
    (Method::MountLocalDiskSegment, Error(ErrorCode::UNABLE_OFFLOAD)),
    (Method::UnmountLocalDiskSegment, Error(ErrorCode::UNABLE_OFFLOAD)),
    (Method::OffloadObjectHeartbeat, Error(ErrorCode::SEGMENT_NOT_FOUND)),
    (Method::ReportSsdCapacity, Error(ErrorCode::SEGMENT_NOT_FOUND)),
    (Method::PollRemoveAll, Error(ErrorCode::SEGMENT_NOT_FOUND)),
    // Ours: the real master records a disk replica that it would never drop while offloading is
    // disabled.
    (Method::NotifyOffloadSuccess, Error(ErrorCode::UNABLE_OFFLOAD)),
    (Method::EvictDiskReplica, EmptyForKey),
    (Method::BatchEvictDiskReplica, EmptyForKey),
    // Promotion from disk to memory.
    (Method::PromotionObjectHeartbeat, Error(ErrorCode::SEGMENT_NOT_FOUND)),
    (Method::PromotionAllocStart, ErrorForKey(ErrorCode::REPLICA_IS_NOT_READY)),
    (Method::NotifyPromotionSuccess, ErrorForKey(ErrorCode::REPLICA_IS_NOT_READY)),
    (Method::NotifyPromotionFailure, EmptyForKey),
    // NVMe-oF.
    (Method::MountNoFSegment, Error(ErrorCode::UNAVAILABLE_IN_CURRENT_MODE)),
    (Method::ReMountNoFSegment, Error(ErrorCode::UNAVAILABLE_IN_CURRENT_MODE)),
    (Method::UnmountNoFSegment, Error(ErrorCode::UNAVAILABLE_IN_CURRENT_MODE)),
    (Method::GetAllNoFSegments, Empty),
    (Method::GetNoFSegmentsByName, Error(ErrorCode::SEGMENT_NOT_FOUND)),
];

impl UnsupportedResult {
    /// Returns the entry for `method`.
    pub(crate) fn of(method: Method) -> UnsupportedResult {
        let entry = UNSUPPORTED.iter().find(|(listed, _)| *listed == method);
        entry.map_or(Error(ErrorCode::NOT_SUPPORTED), |(_, result)| *result)
    }

    /// Returns true if the result depends on whether the key exists.
    pub(crate) fn depends_on_key(self) -> bool {
        matches!(self, ErrorForKey(_) | EmptyForKey)
    }

    /// Returns the result of a method that returns an empty value on success.
    pub(crate) fn result<T: Default>(self, key_exists: bool) -> Expected<T> {
        match self.error(key_exists) {
            Some(code) => Err(code),
            None => Ok(T::default()),
        }
    }

    /// Returns the error code, if the result is an error.
    pub(crate) fn error(self, key_exists: bool) -> Option<ErrorCode> {
        match self {
            Error(code) => Some(code),
            ErrorForKey(_) | EmptyForKey if !key_exists => Some(ErrorCode::OBJECT_NOT_FOUND),
            ErrorForKey(code) => Some(code),
            Empty | EmptyForKey => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_method_is_listed_twice() {
        let mut listed: Vec<Method> = UNSUPPORTED.iter().map(|(method, _)| *method).collect();
        listed.sort_unstable();
        listed.dedup();
        assert_eq!(listed.len(), UNSUPPORTED.len());
    }
}
