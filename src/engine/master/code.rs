//! From the condition that made the master refuse to upstream's number: the only place that knows both.

use crate::engine::base::ErrorCode;

/// Why the master refuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// An argument cannot be meant: empty key, no length, no replicas, a pin's life without a pin.
    #[error("the request's arguments contradict each other or lack something")]
    BadArguments,
    /// The expression cannot be read.
    #[error("the regular expression cannot be read")]
    BadRegex,
    /// The kind of storage asked for is not there.
    #[error("the master has no storage of this kind")]
    NoSuchTier,
    /// No segment has room.
    #[error("no segment has room")]
    NoSpace,
    /// There is no such object.
    #[error("there is no such object")]
    NoObject,
    /// There is one already.
    #[error("the object exists")]
    ObjectExists,
    /// The object is leased to a reader.
    #[error("the object is leased to a reader")]
    Leased,
    /// The object is being written.
    #[error("the object is being written")]
    NotReady,
    /// Somebody else began this write.
    #[error("the write was begun by another client")]
    NotTheWriter,
    /// No write is under way that this could end.
    #[error("no such write is under way")]
    NoWrite,
    /// There is no such segment.
    #[error("there is no such segment")]
    NoSegment,
    /// The segment is there, but not in a state for this.
    #[error("the segment's state does not allow this")]
    SegmentBusy,
    /// The master keeps as many of these as it is made for.
    #[error("the master keeps as many of these as it is made for")]
    Full,
}

impl Refusal {
    /// What upstream answers in this case.
    pub fn code(self) -> ErrorCode {
        match self {
            Refusal::BadArguments | Refusal::BadRegex => ErrorCode::INVALID_PARAMS,
            Refusal::NoSuchTier => ErrorCode::DFS_SERVICE_UNAVAILABLE,
            Refusal::NoSpace => ErrorCode::NO_AVAILABLE_HANDLE,
            Refusal::NoObject => ErrorCode::OBJECT_NOT_FOUND,
            Refusal::ObjectExists => ErrorCode::OBJECT_ALREADY_EXISTS,
            Refusal::Leased => ErrorCode::OBJECT_HAS_LEASE,
            Refusal::NotReady => ErrorCode::REPLICA_IS_NOT_READY,
            Refusal::NotTheWriter => ErrorCode::ILLEGAL_CLIENT,
            Refusal::NoWrite => ErrorCode::INVALID_WRITE,
            Refusal::NoSegment => ErrorCode::SEGMENT_NOT_FOUND,
            Refusal::SegmentBusy | Refusal::Full => ErrorCode::UNAVAILABLE_IN_CURRENT_STATUS,
        }
    }
}
