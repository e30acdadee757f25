//! Reasons why the master refuses a request, and their error codes in upstream. Only this file
//! contains the mapping.

use mcctl_base::ErrorCode;

/// Why the master refuses a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MasterRefusal {
    /// For example, an empty key, size 0, no replicas, or a soft-pin TTL without a soft pin.
    #[error("invalid or contradictory arguments")]
    BadArguments,
    /// The tenant's name is invalid.
    #[error("invalid name of a tenant")]
    BadTenant,
    #[error("invalid regular expression")]
    BadRegex,
    #[error("storage tier not available")]
    NoSuchTier,
    #[error("no segment has enough free space")]
    NoSpace,
    #[error("object not found")]
    NoObject,
    #[error("object already exists")]
    ObjectExists,
    #[error("object is leased to a reader")]
    Leased,
    /// The object is still being written.
    #[error("object is being written")]
    NotReady,
    #[error("another client started this write")]
    NotTheWriter,
    /// The object has no write in progress that the request could end.
    #[error("no write in progress")]
    NoWrite,
    #[error("segment not found")]
    NoSegment,
    /// The segment exists, but its status does not allow the request.
    #[error("the segment's status does not allow this")]
    SegmentBusy,
    #[error("the limit on clients or segments has been reached")]
    Full,
}

impl MasterRefusal {
    /// The error code that upstream returns for this reason.
    pub fn code(self) -> ErrorCode {
        match self {
            MasterRefusal::BadArguments | MasterRefusal::BadRegex => ErrorCode::INVALID_PARAMS,
            MasterRefusal::BadTenant => ErrorCode::TENANT_NOT_REGISTERED,
            MasterRefusal::NoSuchTier => ErrorCode::DFS_SERVICE_UNAVAILABLE,
            MasterRefusal::NoSpace => ErrorCode::NO_AVAILABLE_HANDLE,
            MasterRefusal::NoObject => ErrorCode::OBJECT_NOT_FOUND,
            MasterRefusal::ObjectExists => ErrorCode::OBJECT_ALREADY_EXISTS,
            MasterRefusal::Leased => ErrorCode::OBJECT_HAS_LEASE,
            MasterRefusal::NotReady => ErrorCode::REPLICA_IS_NOT_READY,
            MasterRefusal::NotTheWriter => ErrorCode::ILLEGAL_CLIENT,
            MasterRefusal::NoWrite => ErrorCode::INVALID_WRITE,
            MasterRefusal::NoSegment => ErrorCode::SEGMENT_NOT_FOUND,
            MasterRefusal::SegmentBusy | MasterRefusal::Full => ErrorCode::UNAVAILABLE_IN_CURRENT_STATUS,
        }
    }
}
